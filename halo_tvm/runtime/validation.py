"""Does an artifact still compute what its source model computed?

The reference (reference.npz, or arrays of the same keys) holds seeded inputs and the source's outputs:
    case{i}.input.{name}    case{i}.output.{name} (float64 or float32)    case{i}.error.{name} (scalar, optional)
`error` is the largest absolute error acceptable for that output: of models that round to integers on the way,
or in references made by hand. Without it the tables below decide: by the dtype of the output, and wider where the
artifact computes in a lower precision than float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifact import FunctionSpec, OpenArtifact, opened
from ..errors import ArtifactCorrupt, UsageError, ValidationFailed
from .cases import PREFIX, by_case, read_arrays
from .executor import Module, load
from .row_order import in_order_of
from .tensors import as_pairs, numpy_dtype

if TYPE_CHECKING:
    from .language.fidelity import TextCheck


@dataclass(frozen=True)
class Tolerance:
    """|output - reference| <= factor * (relative * max|reference| + absolute), element by element."""

    relative: float
    absolute: float


# By dtype of the output. float32: sums over some thousand terms, in another order, through dozens of layers,
# lose about three of seven digits in the worst element; 16-bit types: the same share of their own digits.
TOLERANCES: dict[str, Tolerance] = {
    "float64": Tolerance(1e-9, 1e-10),
    "float32": Tolerance(1e-4, 1e-5),
    "float16": Tolerance(1e-2, 1e-3),
    "bfloat16": Tolerance(4e-2, 4e-3),
}
EXACT = Tolerance(0.0, 0.0)  # integers and booleans


@dataclass(frozen=True)
class Precision:
    """What a lower precision may cost: the bounds of every floating-point output, and of integers made of them."""

    relative_l2: float  # |output - reference| / |reference|, Euclidean: the measure of what rounding costs on average
    relative: float  # of the largest element: the worst element, which outliers of a row decide
    unequal_share: float  # of integers and booleans
    divergence: float  # of a language model's distributions from the source's: nats per token, see `language.fidelity`


# By `Manifest.precision`; fp32 has the table by dtype. Twice to three times what trained models showed
# (docs/precision.md): a wrong kernel is off by more than the result's own size. The divergence is a gate on quality:
# what a language model may lose, measured on a text.
PRECISIONS: dict[str, Precision] = {
    "bf16": Precision(relative_l2=0.05, relative=0.1, unequal_share=0.02, divergence=0.01),
    "fp16": Precision(relative_l2=0.02, relative=0.05, unequal_share=0.01, divergence=0.005),
    "int8": Precision(relative_l2=0.25, relative=0.5, unequal_share=0.1, divergence=0.01),
    "int4": Precision(relative_l2=0.6, relative=1.0, unequal_share=0.3, divergence=0.15),
}
DIVERGENCE = 1e-4  # at fp32: what is kept of the source is rounded to float32
UNEQUAL_SHARE = 1e-3  # of integers and booleans, in outputs of at least a thousand
_CHUNK = 1 << 20  # elements compared at a time: logits of a long sequence are gigabytes in float64


@dataclass(frozen=True)
class OutputCheck:
    """How one output of one case compares; `top1` is the share of rows with the same largest element."""

    case: int
    output: str
    max_abs_error: float
    relative_l2: float
    cosine: float
    top1: float | None
    bound: float
    bound_from: str  # the reference, the dtype or the precision whose tolerance was used
    passed: bool
    l2_bound: float | None = None  # on relative_l2, where the precision sets one


def validate_artifact(
    path: Path | str,
    *,
    reference: Path | str | Mapping[str, np.ndarray] | None = None,
    factor: float = 1.0,
    threads: int | None = None,
    divergence: float | None = None,
) -> dict[str, object]:
    """Run every case of the reference and compare; the result is fit for JSON.

    `reference` replaces the artifact's own: an .npz file or arrays by key. `factor` widens every bound. `divergence` is
    how far a language model may be from its source on a text, in nats per token: by default what it was accepted with
    when it was compiled, else what its precision may cost.

    Returns
    -------
    {"passed": True, "cases": n, "factor": f, "precision": "int8", "tolerance": {...}, "outputs": [...], "text": {...}}
    `outputs` has the fields of `OutputCheck`, `tolerance` those of `Precision`; it is None at fp32. `text` has those of
    `language.fidelity.TextCheck`, and is None where the reference has no passage. `drawn` names the outputs made of
    random numbers: they are computed, and not compared, since the source draws others.

    Raises
    ------
    ValidationFailed
        an output is off by more than its bound; its `report` attribute is the same dictionary
    UsageError
        there is no reference, or it does not fit the model
    """
    if not factor > 0:
        raise UsageError(f"factor: expected a number above 0, found {factor}; 1 keeps the bounds as they are")
    with opened(path) as artifact:
        return _validated(artifact, reference, factor, threads, divergence)


def _validated(
    artifact: OpenArtifact,
    reference: Path | str | Mapping[str, np.ndarray] | None,
    factor: float,
    threads: int | None,
    divergence: float | None,
) -> dict[str, object]:
    arrays = reference if isinstance(reference, Mapping) else read_arrays(reference, artifact)
    text = _text_of(arrays)
    cases = by_case(arrays, own=reference is None)
    with load(artifact, threads=threads) as module:
        precision, drawn = module.manifest.precision, module.spec.drawn
        checks = [check for index in sorted(cases) for check in _check_case(module, index, cases[index], factor)]
        language = module.manifest.language is not None
        said = None if text is None else _check_text(module, artifact, text, divergence, factor, threads)
    checks += _check_steps(artifact, cases, factor, precision, threads) if language else []
    failed = [c for c in checks if not c.passed]
    report: dict[str, object] = {
        "passed": not failed and (said is None or said.passed),
        "cases": len(cases),
        "factor": factor,
        "precision": precision,
        "tolerance": asdict(PRECISIONS[precision]) if precision in PRECISIONS else None,
        "outputs": [{k: _json_number(v) for k, v in asdict(c).items()} for c in checks],
        "drawn": list(drawn),
        "text": None if said is None else {k: _json_number(v) for k, v in asdict(said).items()},
    }
    if failed:
        worst = max(failed, key=lambda c: c.max_abs_error / c.bound if c.bound else np.inf)
        found, limit, kind = worst.max_abs_error, worst.bound, "an error"
        if found <= limit and worst.l2_bound is not None:
            found, limit, kind = worst.relative_l2, worst.l2_bound, "a relative L2 error"
        raise ValidationFailed(
            f"output {worst.output!r} of case {worst.case}: expected {kind} of at most {limit:.3g} "
            f"({worst.bound_from}), found {found:.3g}; {len(failed)} of {len(checks)} outputs are off: "
            "compile with a lower opt level or a higher precision, and report it if the error stays",
            report,
        )
    if said is not None and said.divergence <= said.bound and said.lost_in_caches:
        wider = "fp16 or fp32" if "int8" in _kept_types(artifact) else "fp32"
        raise ValidationFailed(
            f"the passage of {said.tokens} tokens: expected a divergence from the source behind caches of at most "
            f"{said.caches_bound:.3g} nats per token, found {said.behind_caches:.3g}, and {said.divergence:.3g} "
            f"without caches: compile with --kv {wider}, or accept it with --allow-quality-loss",
            report,
        )
    if said is not None and not said.passed:
        raise ValidationFailed(
            f"the passage of {said.tokens} tokens: expected a divergence from the source of at most {said.bound:.3g} "
            f"nats per token ({precision}), found {said.divergence:.3g}, with a perplexity of {said.perplexity:.4g} "
            f"where the source has {said.source_perplexity:.4g}, and the same likeliest token {said.top1:.1%} of the "
            "time: compile with a higher precision, or accept it with --allow-quality-loss",
            report,
        )
    return report


def compare(
    output: np.ndarray,
    expected: np.ndarray,
    *,
    case: int,
    name: str,
    error: float | None,
    factor: float,
    precision: str = "fp32",
) -> OutputCheck:
    """Measure one output against its reference; a NaN or infinity must be matched by an equal one."""
    output, expected = as_pairs(output), as_pairs(expected)
    flat, reference = output.reshape(-1), expected.reshape(-1)
    max_abs = largest = 0.0
    products = np.zeros(4)  # sums of o*o, r*r, o*r and (o - r)**2
    for start in range(0, flat.size, _CHUNK):
        a = flat[start : start + _CHUNK].astype(np.float64)
        b = reference[start : start + _CHUNK].astype(np.float64)
        finite = np.isfinite(a) & np.isfinite(b)
        if not ((a == b) | (np.isnan(a) & np.isnan(b)) | finite).all():
            max_abs = float("inf")
        a, b = a[finite], b[finite]
        difference = a - b
        max_abs = max(max_abs, float(np.abs(difference).max(initial=0.0)))
        largest = max(largest, float(np.abs(b).max(initial=0.0)))
        products += [a @ a, b @ b, a @ b, difference @ difference]
    norm_a, norm_b, norm_difference = np.sqrt(products[[0, 1, 3]])
    relative_l2 = float(norm_difference / norm_b if norm_b else norm_difference)
    dtype = str(output.dtype)
    tolerance, lower = TOLERANCES.get(dtype, EXACT), PRECISIONS.get(precision)
    bound = error if error is not None else tolerance.relative * largest + tolerance.absolute
    bound_from = "given by the reference" if error is not None else f"tolerance of {dtype}"
    l2_bound = None
    if lower is not None and tolerance is not EXACT:
        l2_bound = factor * lower.relative_l2
        if lower.relative * largest + tolerance.absolute > bound:
            bound, bound_from = lower.relative * largest + tolerance.absolute, f"tolerance of {precision}"
    bound *= factor
    # Where nearly all is zero a relative error says little: what the dtype allows anyway is close enough.
    close = l2_bound is None or relative_l2 <= l2_bound or max_abs <= factor * tolerance.absolute
    passed = max_abs <= bound and close
    if not passed and tolerance is EXACT and error is None:
        # An index of the largest of two nearly equal scores may flip: so many elements may differ.
        share = UNEQUAL_SHARE if lower is None else lower.unequal_share
        passed = flat.size >= 1 / share and _unequal(flat, reference) <= factor * share * flat.size
    return OutputCheck(
        case=case,
        output=name,
        max_abs_error=max_abs,
        relative_l2=relative_l2,
        cosine=float(products[2] / (norm_a * norm_b)) if norm_a and norm_b else float(norm_a == norm_b),
        top1=_top1(output, expected),
        bound=bound,
        bound_from=bound_from,
        passed=passed,
        l2_bound=l2_bound,
    )


def _unequal(flat: np.ndarray, reference: np.ndarray) -> int:
    chunks = range(0, flat.size, _CHUNK)
    return sum(int((flat[i : i + _CHUNK] != reference[i : i + _CHUNK]).sum()) for i in chunks)


def _top1(output: np.ndarray, expected: np.ndarray) -> float | None:
    if output.ndim < 2 or output.size == 0 or output.shape[-1] < 2 or np.issubdtype(output.dtype, np.integer):
        return None
    return float((output.argmax(-1) == expected.argmax(-1)).mean())


def _check_case(
    module: Module, index: int, case: Mapping[str, Mapping[str, np.ndarray]], factor: float
) -> list[OutputCheck]:
    outputs = module(**case["input"])
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    compared = {}
    for spec, output in zip(module.output_specs, arrays, strict=True):
        expected = case["output"].get(spec.name)
        if expected is None or spec.name in module.spec.drawn:
            continue  # a reference may cover some outputs only; none at all is refused by `by_case`
        if expected.shape != output.shape:
            raise ValidationFailed(
                f"output {spec.name!r} of case {index}: expected shape {list(expected.shape)}, "
                f"found {list(output.shape)}; compile the model again from its source"
            )
        compared[spec.name] = (output, expected)

    def check(name: str, output: np.ndarray, expected: np.ndarray) -> OutputCheck:
        given, precision = case["error"].get(name), module.manifest.precision
        error = None if given is None else float(given.item())
        return compare(output, expected, case=index, name=name, error=error, factor=factor, precision=precision)

    checks = [check(name, *pair) for name, pair in compared.items()]
    if not all(c.passed for c in checks) and module.manifest.precision not in PRECISIONS:
        outputs, expecteds = zip(*compared.values())
        ordered = in_order_of(outputs, expecteds, [c.bound for c in checks])
        if ordered is not None:
            pairs = zip(compared.items(), ordered)
            again = [check(name, output, expected) for (name, (_, expected)), output in pairs]
            checks = [replace(c, bound_from=f"{c.bound_from}, rows of nearly equal scores in any order") for c in again]
    _check_names(module.spec, index, case["output"])
    return checks


def _check_steps(
    artifact: OpenArtifact,
    cases: Mapping[int, Mapping[str, Mapping[str, np.ndarray]]],
    factor: float,
    precision: str,
    threads: int | None,
) -> list[OutputCheck]:
    """A language model's functions behind caches against the reference of `main`: the same tokens, behind caches.

    Caches of fewer bits than the artifact's arithmetic cost what such arithmetic would.
    """
    from .language.check import logits_behind_caches  # it loads what most artifacts do not need
    from .language.spec import has_caches

    if not has_caches(artifact.manifest):
        return []
    precision = _with_caches(artifact, precision)
    return [
        compare(found, wanted, case=index, name=f"{name}.logits", error=None, factor=factor, precision=precision)
        for index, name, found, wanted in logits_behind_caches(artifact, cases, threads)
    ]


def _with_caches(artifact: OpenArtifact, precision: str) -> str:
    """The precision that costs as much as `precision` and the artifact's caches do."""
    kept = _kept_types(artifact)
    if "int8" in kept and precision != "int4":
        return "int8"
    return "fp16" if precision == "fp32" and "float16" in kept else precision


def _kept_types(artifact: OpenArtifact) -> set[str]:
    return {tensor.dtype for tensor in artifact.manifest.functions["decode"].inputs}


def _check_names(spec: FunctionSpec, index: int, expected: Mapping[str, np.ndarray]) -> None:
    names = [t.name for t in spec.outputs]
    unknown = sorted(set(expected) - set(names))
    if unknown:
        raise UsageError(
            f"reference case {index}: expected outputs among {', '.join(names)}, found {', '.join(unknown)}; "
            "pass the reference of this model"
        )


def _text_of(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    if not any(key.startswith(PREFIX) for key in arrays):
        return None
    from .language.fidelity import text_of

    try:
        return text_of(arrays)
    except ValueError as error:
        raise UsageError(f"reference: expected a passage of text as compile writes it, found {error}") from None


def _text_bound(module: Module, given: float | None, precision: str, key: str = "bound") -> float:
    """How far the artifact may be from its source: `given`, what it was accepted with, or what `precision` allows.

    `key` is that of the bound in the validation of the manifest.
    """
    if given is not None:
        return given
    kept: Any = (module.manifest.validation or {}).get("text")
    if kept is not None and (key == "bound" or kept.get(key) is not None):
        try:
            return float(kept[key])
        except (KeyError, TypeError, ValueError):
            raise ArtifactCorrupt(
                f"manifest.json: validation: expected a text with the bound of its divergence, found {kept!r:.80}; "
                "compile the model again"
            ) from None
    known = PRECISIONS.get(precision)
    return DIVERGENCE if known is None else known.divergence


def _check_text(
    module: Module,
    artifact: OpenArtifact,
    text: Mapping[str, np.ndarray],
    given: float | None,
    factor: float,
    threads: int | None,
) -> TextCheck:
    """`main` on the passage, in windows as many as it takes at once; single steps behind caches of few bits, too."""
    from .language.check import reader_behind_caches
    from .language.fidelity import compare_text
    from .language.spec import has_caches

    precision = module.manifest.precision
    bound = factor * _text_bound(module, given, precision)

    ids = module.input_specs[0]
    batch = ids.shape[0]
    rows = module.spec.ranges[batch][0] if isinstance(batch, str) else int(batch)

    def logits(tokens: np.ndarray) -> np.ndarray:
        found = module(**{ids.name: tokens.astype(numpy_dtype(ids.dtype))})
        return (found[0] if isinstance(found, tuple) else found).astype(np.float32, copy=False)

    if not (has_caches(artifact.manifest) and _kept_types(artifact) & {"int8", "float16"}):
        return compare_text(logits, text, rows, bound)
    wider = factor * _text_bound(module, given, _with_caches(artifact, precision), "caches_bound")
    with reader_behind_caches(artifact, text["ids"], threads) as behind:
        return compare_text(logits, text, rows, bound, behind=behind, caches_bound=max(bound, wider))


def _json_number(value: object) -> object:
    """JSON has no infinity or NaN: a string says which."""
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
