"""Write a model as ONNX, operators recognised and joined; onnxruntime says what that changed. Or write it as GGUF."""

from __future__ import annotations

from ..config import ExportConfig
from ..errors import ValidationFailed
from ..model_names import refuse_unspeakable
from ._show import check_writable, size, table

CONFIG = ExportConfig


def run(config: ExportConfig) -> int:
    """Export, run the file in onnxruntime, and print its error, nodes and time beside the source's."""
    from ..exporters.command import export_language_model, export_model

    check_writable(config.output)
    refuse_unspeakable(config.output, "--output")
    if config.output.endswith(".gguf"):
        print(f"{config.output} {size(export_language_model(config).stat().st_size)}")
        return 0
    made = export_model(config)
    found = made.comparison
    rows = [
        (name, m.nodes, f"{m.median_ms:.3g}") for name, m in (("before", found.before), ("after", found.after)) if m
    ]
    print(f"{made.path} {size(made.size_bytes)}, opset {made.opset}")
    print(table(("graph", "nodes", "median ms in onnxruntime"), rows))
    if made.without_before:
        print(f"no figures from before: {made.without_before}")
    print(f"largest error: {found.error:.2g} of the largest element of {found.worst}")
    if found.saturated is not None:
        print(f"with sums of bytes that saturate, as onnxruntime's do on this CPU: {found.saturated:.2g}")
    if found.error > made.tolerance:
        raise ValidationFailed(
            f"expected onnxruntime to agree with the source within {made.tolerance:g}, found {found.error:.2g} in "
            f"{found.worst}: do not use {made.path.name}, and report the model"
        )
    return 0
