"""Help texts that the options of several verbs share."""

from __future__ import annotations

MODEL = (
    "built-in name, model file (ONNX, GGUF, .keras, .h5, .pt2, TFLite, TorchScript, jax.export, StableHLO), "
    "or Hugging Face directory"
)
THREADS = "threads to use (default: one for each physical core this process may run on, within a container's quota)"
RANGES = "dimensions of an input, each a number or a range, e.g. input_ids=1..8x1..512 (repeatable)"
SIGNATURE = "which function of a TFLite file or SavedModel (default: serving_default); also --model MODEL:NAME"
INPUTS = (
    "example inputs (.npz, by name in order): a reference case; "
    "TorchScript, which declares none, takes its inputs from it"
)
TRUST = "import files that can run code also where this system cannot confine that"
SIZES = "sizes of named dimensions, e.g. batch=1,sequence=128"
PRECISION = (
    "arithmetic of products with weights: fp32; bf16: weights in bfloat16; fp16; "
    "int8: weights per channel, activations per token; int4: groups of 32 "
    "(default: fp16 on a GPU, else fp32; of a file of integers, a GGUF or GPTQ say, what keeps these)"
)
FORCE_PRECISION = "take --precision also where this target computes it slower than fp32"
LOG = "directory of tuning records, looked up before all others"
JSON = "write the result as JSON to FILE ('-': standard output)"
MARKDOWN = "write the result as Markdown to FILE"
FUNCTION = "function of the artifact, e.g. decode of a language model (`inspect` lists them)"
KV = "how a language model keeps keys and values (default: fp32 at fp32 and on a GPU, else fp16)"
SLOTS = "a language model also decodes up to so many sequences together"
