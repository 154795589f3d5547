"""Run an artifact once and print or save its outputs; let a language model answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..config import RunConfig, parse_sizes
from ..errors import UsageError
from ..whole_file import replaced
from ._show import check_writable, table

if TYPE_CHECKING:
    import numpy as np

CONFIG = RunConfig


def run(config: RunConfig) -> int:
    """Load, run, and show each output's shape and range, or what a language model says."""
    if config.prompt is not None or config.interactive or config.audio is not None:
        from ._answers import answer

        return answer(config)
    from ..array_files import write_npz
    from ..runtime import load

    check_writable(config.output)
    given = read_inputs(config.input)
    with load(config.artifact, threads=config.threads, function=config.function) as module:
        module.run(**module.example_inputs(given, sizes=parse_sizes(config.shape), seed=config.seed))
        outputs = {spec.name: module.get_output(i) for i, spec in enumerate(module.output_specs)}
    rows = [
        (
            n,
            list(a.shape),
            a.dtype,
            *((f"{a.min():.6g}", f"{a.max():.6g}", f"{a.mean():.6g}") if a.size else ("", "", "")),
        )
        for n, a in outputs.items()
    ]
    print(table(("output", "shape", "dtype", "least", "greatest", "mean"), rows))
    if config.output:
        try:
            with replaced(Path(config.output)) as file:
                write_npz(file, outputs)
        except OSError as error:
            raise UsageError(
                f"{config.output} must be writable, but {error.strerror or error}: name another file"
            ) from None
    return 0


def read_inputs(words: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Arrays of `NAME=FILE.npy` and `FILE.npz` words; `UsageError` for a file that holds none."""
    import numpy as np

    from ..array_files import Unreadable, read_arrays

    arrays: dict[str, np.ndarray] = {}
    for word in words:
        name, equals, file = word.rpartition("=")
        try:
            found = read_arrays(file)
        except (FileNotFoundError, Unreadable) as error:
            raise UsageError(
                f"an input is NAME=FILE.npy or FILE.npz, but {file!r} cannot be read ({error}): correct --input"
            ) from None
        if equals and isinstance(found, np.ndarray):
            arrays[name] = found
        elif not equals and not isinstance(found, np.ndarray):
            arrays.update(found)
        else:
            raise UsageError(f"an input is NAME=FILE.npy or FILE.npz, but {word!r} was given: correct --input")
    return arrays
