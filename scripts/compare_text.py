#!/usr/bin/env python3
"""Does an artifact say what transformers says? Greedy text of ten prompts, token by token, in float32.

    halo-tvm compile --model ./SmolLM2 -o smollm2.halo
    python scripts/compare_text.py ./SmolLM2 smollm2.halo

Where texts part, the two logits that decided are printed: rounding may choose between equals, a wrong kernel does more.
Ends with 1 when a text differs.
"""

from __future__ import annotations

import argparse
import sys

import _checkout  # noqa: F401  before halo_tvm

from halo_tvm import LanguageModel

PROMPTS = (
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):",
    "Water boils at",
    "The three primary colours are",
    "In 1969, the first",
    "A recipe for bread: take",
    "Dear Sir or Madam,",
    "2, 3, 5, 7, 11,",
    "The mitochondria of a cell",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="what transformers loads")
    parser.add_argument("artifact")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    import torch
    from transformers import AutoModelForCausalLM

    source = AutoModelForCausalLM.from_pretrained(options.directory, dtype=torch.float32).eval()
    different = 0
    with LanguageModel.load(options.artifact, context=1024, threads=options.threads) as model:
        for prompt in PROMPTS:
            ids = model.tokens(prompt)
            given = torch.tensor([ids])
            with torch.no_grad():
                whole = source.generate(
                    given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=options.tokens
                )
            wanted = tuple(whole[0, len(ids) :].tolist())
            answer = model.generate(ids, max_new_tokens=options.tokens)
            parted = next((i for i, (a, b) in enumerate(zip(answer.tokens, wanted)) if a != b), None)
            same = answer.tokens == wanted
            print(f"{'equal' if same else 'DIFFERENT':9} {len(wanted):3} tokens  {prompt!r} -> {answer.text[:60]!r}")
            if not same:
                different += 1
                if parted is not None:
                    logits = model.prefill([*ids, *wanted[:parted]])
                    ours, theirs = (f"{t} {logits[t]:.6f}" for t in (answer.tokens[parted], wanted[parted]))
                    print(f"          at token {parted}: ours {ours}, theirs {theirs}")
    print(f"{len(PROMPTS) - different} of {len(PROMPTS)} texts are equal")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
