"""The arrays of a reference: what a model was fed, what its source computed, and what may be off."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..array_files import Unreadable, read_npz
from ..artifact import OpenArtifact
from ..errors import ArtifactCorrupt, HaloError, UsageError

PREFIX = "text."  # of the keys of a passage, which `language.fidelity` compares
_KEY = re.compile(r"case(\d+)\.(input|output|error)\.(.+)")


def by_case(arrays: Mapping[str, np.ndarray], *, own: bool) -> dict[int, dict[str, dict[str, np.ndarray]]]:
    """Arrays by case, by what they are ("input", "output", "error") and by name.

    What does not fit is `ArtifactCorrupt` in the artifact's own reference, else `UsageError`.
    """
    problem: type[HaloError] = ArtifactCorrupt if own else UsageError
    advice = "compile the model again" if own else "pass the reference of this model"
    cases: dict[int, dict[str, dict[str, np.ndarray]]] = {}
    for key, array in arrays.items():
        if key.startswith(PREFIX):
            continue
        match = _KEY.fullmatch(key)
        if match is None:
            raise problem(f"reference: expected keys like case0.input.x, found {key[:80]!r}; {advice}")
        numbers = array.dtype.kind in "biufc" or array.dtype.kind == "V" and array.dtype.type is not np.void
        if not numbers or (match[2] == "error" and array.size != 1):
            raise problem(
                f"reference: expected numbers (one for an error) as {key[:80]!r}, "
                f"found {array.dtype}{list(array.shape)}; {advice}"
            )
        case = cases.setdefault(int(match[1]), {"input": {}, "output": {}, "error": {}})
        case[match[2]][match[3]] = array
    empty = [i for i, case in cases.items() if not case["output"]]
    if not cases or empty:
        found = f"none for case {empty[0]}" if empty else "no case"
        raise UsageError(f"reference: expected outputs to compare with, found {found}; {advice}")
    return cases


def read_arrays(reference: Path | str | None, artifact: OpenArtifact) -> Mapping[str, np.ndarray]:
    """The arrays of an .npz file, or those that lie in the artifact; `UsageError` for anything else."""
    if reference is None:
        return artifact.reference()
    file = Path(reference)
    advice = "leave it out to use the one in the artifact"
    if file.suffix != ".npz" or not file.is_file():
        raise UsageError(f"reference: expected an .npz file with keys like case0.output.logits, found {file}; {advice}")
    try:
        return read_npz(file)
    except (FileNotFoundError, Unreadable) as error:
        raise UsageError(
            f"reference: expected arrays in {file}, found none that can be read ({error}); {advice}"
        ) from None
