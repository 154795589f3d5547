"""How far apart two arrays are, where infinities and NaN are values as well."""

from __future__ import annotations

import numpy as np


def differences(output: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """|output - expected| in float64 of arrays of one shape; 0 where both are the same infinity, or both NaN,
    infinite where only one of them is either."""
    found, wanted = output.astype(np.float64), expected.astype(np.float64)
    same = (found == wanted) | np.isnan(found) & np.isnan(wanted)
    with np.errstate(invalid="ignore"):
        error = np.abs(found - wanted)
    return np.where(same, 0.0, np.where(np.isnan(error), np.inf, error))


def largest_finite(values: np.ndarray) -> float:
    """The largest magnitude of the finite values; 0 of none."""
    wide = values.astype(np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0.0))


def relative_error(output: np.ndarray, expected: np.ndarray, least: float = 0.0) -> float:
    """The largest of the `differences`, as a share of the largest finite magnitude of `expected`.

    A magnitude below `least` counts as that, and 0 as 1.
    """
    return float(differences(output, expected).max(initial=0.0)) / (max(largest_finite(expected), least) or 1.0)
