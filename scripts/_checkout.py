"""Puts this checkout first on the path, where another copy of halo_tvm is installed: imported before what needs one."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
