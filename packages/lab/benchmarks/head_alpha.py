"""Acceptance of the tokens of EAGLE heads, by category of prompt.

The target answers prompts of each category, at temperatures 1 and 0, and the head drafts at every
position of these answers. At temperature 1 a token counts as its mean min(1, q/p); greedily, as 1
if the head's argmax is the target's. Depth 2 is a draft's second token, whether or not the first
was accepted. Also reported: the share of answer tokens in the draft vocabulary.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from shared.compare import as_asked
from shared.script import run, show

from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.eagle_files import load_head
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.pool import resolve_target
from draftwise_lab.train.answers import answers
from draftwise_lab.train.eagle import acceptance_by_depth
from draftwise_zoo import own_specs

GREEDY = 1e6
"""Factor on the logits that puts all probability on the argmax."""


def compare(args: argparse.Namespace) -> dict[str, Any]:
    path, _ = resolve_target(args.target)
    target, tokenizer = load_model(path, dtype="float32", device="cpu"), load_tokenizer(path)
    specs = {"head": f"eagle:{args.head}"} if args.head else own_specs(args.target)
    heads = {n: load_head(spec.partition(":")[2], target).eval() for n, spec in specs.items()}
    items, found, rows = load_suite(args.suite, args.prompts).items, dict[str, Any](), []
    for domain in dict.fromkeys(item.domain for item in items):
        texts_of = [item.text for item in items if item.domain == domain]
        asked = [encode(one, tokenizer).tokens for one in as_asked(texts_of, tokenizer)]
        for heat in (0.0, 1.0):
            with tempfile.TemporaryDirectory() as folder:
                texts = answers(
                    target.module, asked, [heat] * len(asked), Path(folder) / "answers.jsonl",
                    max_new_tokens=args.tokens, eos_token_id=tokenizer.eos_token_id,
                    seed=1, rows=32,
                )  # fmt: skip
            said = torch.tensor([token for text in texts for token in text.tokens[text.start :]])
            own = found.setdefault(domain, {}).setdefault(f"{heat:g}", {"tokens": len(said)})
            for name, head in heads.items():
                sharpness = 1.0 if heat else GREEDY
                alphas = acceptance_by_depth(head, target.module, texts, args.depth, sharpness)
                ids = head.draft_ids
                share = 1.0 if ids is None else float(torch.isin(said, ids).float().mean())
                kept = [round(alpha, 4) for alpha in alphas]
                own[name] = {"alphas": kept, "in_vocabulary": round(share, 4)}
                depths = {f"depth {i}": alpha for i, alpha in enumerate(kept, 1)}
                rows.append({"category": domain, "T": heat, "drafter": name, **depths})
    show(rows)
    return {"target": args.target, "prompts": args.prompts, "categories": found}


if __name__ == "__main__":
    run(
        __doc__, compare, target="smollm2", suite={"required": True}, prompts=10, tokens=128,
        depth=5, head={"help": "folder; default: the heads that are bundled with the target"},
    )  # fmt: skip
