"""Language models: an artifact with `prefill` and `decode` that keeps its caches, and text in and out of it.

`steps` owns the caches, `text` the tokenizer, `chat` the template of conversations, `sampling` the choice of tokens,
`answer` is one answer as it grows, `model` what a user holds.
"""

from .answer import Generation
from .model import LanguageModel
from .sampling import Sampling

__all__ = ["Generation", "LanguageModel", "Sampling"]
