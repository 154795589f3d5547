"""What an emulated function must not do."""

from __future__ import annotations


class KernelFault(Exception):
    """An emulated GPU function does what a GPU must not be asked for: a race, a barrier for some, a wrong address."""
