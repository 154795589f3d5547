"""Stage "metaschedule": TVM's own search proposes decisions of our rules' spaces."""

from __future__ import annotations

from .stage import MetaSchedule

__all__ = ["MetaSchedule"]
