"""What the operators of every source mean: one module per idea, over relay_ops.

The converters of `onnx/`, `torch_export/` and `jax/` only read how their source spells an operator, and call these
modules with what all have in common, a `Builder`. So one network gives the same operators, whatever road it came by.
"""
