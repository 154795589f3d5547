"""onnxruntime-genai on a folder that `export --caches --for onnxruntime` writes, with logits of the last token alone.

Settings: the threads asked for, one buffer for caches that come in and go out, attention over them as one operator.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from ..errors import MissingPackage
from .protocol import LoadRequest
from .speaking import serve_speaker


class OnnxRuntimeGenai:
    version = ""
    note = ""

    def load(self, request: LoadRequest) -> None:
        try:
            import onnxruntime_genai as genai
        except ModuleNotFoundError:
            raise MissingPackage(
                "onnxruntime_genai", "the peer onnxruntime-genai", "pip install onnxruntime-genai"
            ) from None
        self.version = genai.__version__
        config = genai.Config(request.model)
        threads = {"session_options": {"intra_op_num_threads": request.threads}}
        config.overlay(json.dumps({"model": {"decoder": threads}}))
        self.model = genai.Model(config)
        settings = genai.GeneratorParams(self.model)
        settings.set_search_options(max_length=int(str(request.options["context"])), do_sample=False)
        self.generator = genai.Generator(self.model, settings)

    def truncate(self, count: int) -> None:
        if self.generator.token_count() > count:
            self.generator.rewind_to(count)

    def read(self, ids: Sequence[int]) -> int:
        self.generator.append_tokens(np.asarray(ids, np.int32))
        return int(np.asarray(self.generator.get_logits()).argmax())


if __name__ == "__main__":
    serve_speaker(OnnxRuntimeGenai())
