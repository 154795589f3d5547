"""Language models: an artifact with `prefill` and `decode` that keeps its caches, and text in and out of it.

`steps` owns the caches, `text` the tokenizer, `chat` the template of conversations, `sampling` the choice of tokens,
`model` is what a user holds.
"""

from .model import Generation, LanguageModel
from .sampling import Sampling

__all__ = ["Generation", "LanguageModel", "Sampling"]
