"""Rules for attention, on CPUs and GPUs; what they share lies beside them."""

from ._problem import HEAD_MULTIPLE, WIDEST_EVERYWHERE

__all__ = ["HEAD_MULTIPLE", "WIDEST_EVERYWHERE"]
