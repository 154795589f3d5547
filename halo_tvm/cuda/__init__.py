"""NVIDIA's device compiler: finding it, machine code from source, what each kernel needs, code in a library.

Nothing is imported here: `toolkit` alone serves the listing of targets, which must not wait for TVM.
"""
