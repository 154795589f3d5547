"""The two ends of an engine that speaks: commands about tokens, one JSON object per line.

    {"command": "load", "request": {...}}                       ->  {"ok": true, "version": "0.3.36", "note": "..."}
    {"command": "begin", "before": [ids]}                       ->  {"ok": true}       these tokens are in the caches
    {"command": "speak", "read": [ids], "say": [ids]}           ->  {"ok": true, "seconds": 0.12}     behind those
    {"command": "likeliest"}                                    ->  {"ok": true, "token": 7}   behind the last one

All engines read and say the same tokens: the likeliest one is looked for at every step, and not followed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from .protocol import LoadRequest, answer_all


class Speaker(Protocol):
    """One engine in its own process. `load` gets the context as an option."""

    version: str
    note: str

    def load(self, request: LoadRequest) -> None:
        """Load the model; raises `MissingPackage` when the engine is not installed."""

    def truncate(self, count: int) -> None:
        """Keep the first `count` tokens in the caches."""

    def read(self, ids: Sequence[int]) -> int:
        """Read tokens in one call; the likeliest one behind the last."""


def serve_speaker(speaker: Speaker) -> None:
    """Speak as commands say, until there are no more."""
    answer_all(_Worker(speaker).execute)


class _Worker:
    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.before: list[int] = []
        self.token = 0

    def execute(self, message: dict[str, object]) -> dict[str, object]:
        command = message["command"]
        if command == "load":
            self.speaker.load(LoadRequest(**message["request"]))  # type: ignore[arg-type]
            return {"version": self.speaker.version, "note": self.speaker.note}
        if command == "begin":
            self.before = _ids(message, "before")
            self.speaker.truncate(0)
            if self.before:
                self.speaker.read(self.before)
            return {}
        if command == "speak":
            return {"seconds": self._speak(_ids(message, "read"), _ids(message, "say"))}
        if command == "likeliest":
            return {"token": self.token}
        raise AssertionError(f"unknown command {command!r}")

    def _speak(self, read: Sequence[int], say: Sequence[int]) -> float:
        self.speaker.truncate(len(self.before))
        start = time.perf_counter()
        if read:
            self.token = self.speaker.read(read)
        for token in say:
            self.token = self.speaker.read((token,))
        return time.perf_counter() - start


def _ids(message: Mapping[str, object], part: str) -> list[int]:
    found = message[part]
    assert isinstance(found, list), f"{part} are no token ids"
    return [int(token) for token in found]


class HaloSpeaker:
    """Our own artifact through the public runtime, in its own process like every peer.

    An encoder-decoder reads several tokens as a text, whose answer begins anew; it says tokens behind the text that was
    read, or behind one of a single token.
    """

    version = ""
    note = ""

    def load(self, request: LoadRequest) -> None:
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # see `halo.Halo`
        import halo_tvm

        self.version = halo_tvm.__version__
        context = int(str(request.options["context"]))
        self.model = halo_tvm.LanguageModel.load(request.model, context=context, threads=request.threads)

    def truncate(self, count: int) -> None:
        if self.model.encodes and not count:
            self.model.encode([0])
        self.model.truncate(0 if self.model.encodes else count)

    def read(self, ids: Sequence[int]) -> int:
        if self.model.encodes and len(ids) > 1:
            return int(self.model.prefill(ids).argmax())
        logits = self.model.decode(ids[0]) if len(ids) == 1 else self.model.extend(ids)
        return int(logits.argmax())


if __name__ == "__main__":
    serve_speaker(HaloSpeaker())
