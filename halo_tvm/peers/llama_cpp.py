"""llama.cpp on a GGUF file, through the C interface that llama-cpp-python has built.

Settings: the threads asked for, for prompts and for single tokens; everything else as it is by default (a cache in
float16, flash attention where it chooses it), prompts of up to 512 tokens in one piece.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from ..errors import MissingPackage, PeerFailed
from .protocol import LoadRequest
from .speaking import serve_speaker

_CHUNK = 512


class LlamaCpp:
    version = ""
    note = ""

    def load(self, request: LoadRequest) -> None:
        try:
            import llama_cpp
        except ModuleNotFoundError:
            raise MissingPackage("llama_cpp", "the peer llama-cpp", "pip install llama-cpp-python") from None
        self.api, self.version = llama_cpp, llama_cpp.__version__
        self.quiet = llama_cpp.llama_log_callback(lambda *_: None)  # kept: the library calls it later
        llama_cpp.llama_log_set(self.quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(
            request.model.encode(), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = int(str(request.options["context"]))
        settings.n_batch = settings.n_ubatch = _CHUNK
        settings.n_threads = settings.n_threads_batch = request.threads
        self.context = self.model and llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise PeerFailed(
                "expected a GGUF file that llama.cpp loads, found one that it refuses: leave llama-cpp out"
            )
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.note = llama_cpp.llama_print_system_info().decode().strip()

    def truncate(self, count: int) -> None:
        memory = self.api.llama_get_memory(self.context)
        if not self.api.llama_memory_seq_rm(memory, 0, count, -1):
            raise PeerFailed(f"expected llama.cpp to keep {count} tokens, found that it cannot: leave llama-cpp out")

    def read(self, ids: Sequence[int]) -> int:
        for start in range(0, len(ids), _CHUNK):
            part = ids[start : start + _CHUNK]
            tokens = (self.api.llama_token * len(part))(*part)
            if self.api.llama_decode(self.context, self.api.llama_batch_get_one(tokens, len(part))):
                raise PeerFailed("expected llama.cpp to read the tokens, found an error: use a smaller depth or prompt")
        logits = self.api.llama_get_logits_ith(self.context, -1)
        return int(np.ctypeslib.as_array(logits, (self.vocabulary,)).argmax())


if __name__ == "__main__":
    serve_speaker(LlamaCpp())
