"""How far a result may be from its float64 reference, by dtype, and why."""

from __future__ import annotations

import numpy as np

# (relative to the largest element, absolute). float32: a thousand-term sum in another order loses about
# three bits; the transcendental polynomials are good to 2.5e-7. float16: such a number, rounded once.
TOLERANCES = {
    "float32": (2e-6, 1e-6),
    "float16": (2**-11 + 2e-6, 1e-6),
    **dict.fromkeys(("int64", "int32", "int8", "uint8", "bool"), (0.0, 0.0)),
}


def assert_close(result: np.ndarray, reference: np.ndarray) -> None:
    """`result` equals the float64 `reference` within the tolerance of its dtype."""
    assert result.shape == reference.shape
    relative, absolute = TOLERANCES[str(result.dtype)]
    bound = absolute + relative * np.abs(reference).max(initial=0.0)
    error = np.abs(result.astype(np.float64) - reference).max(initial=0.0)
    assert error <= bound, f"error {error:.2e} over {bound:.2e}"
