"""MetaSchedule's search over our rules' spaces; see docs/metaschedule.md."""

from __future__ import annotations

from .engine import search, tune_tasks
from .proposals import Trial

__all__ = ["Trial", "search", "tune_tasks"]
