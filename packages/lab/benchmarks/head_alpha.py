"""Acceptance of the tokens of EAGLE heads and of a target's own layers, by category of prompt.

The target answers prompts of each category, at temperatures 1 and 0, and the head drafts at every
position of these answers. At temperature 1 a token counts as its mean min(1, q/p); greedily, as 1
if the head's argmax is the target's. Depth 2 is a draft's second token, whether or not the first
was accepted; a layer reads no hidden states, and has one alpha for all depths. Also reported: the
share of answer tokens in the draft vocabulary.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from shared.compare import as_asked
from shared.script import run, show
from torch import Tensor

from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.heads.eagle import EagleHead, LentHead, load_head
from draftwise.nn.load import load_borrower, load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.pool import resolve_target
from draftwise.real.bundled import own_specs
from draftwise.train.answers import answers
from draftwise.train.data import Text
from draftwise.train.drafter import measure_acceptance
from draftwise.train.eagle import acceptance_by_depth

GREEDY = 1e6
"""Factor on the logits that puts all probability on the argmax."""


def compare(args: argparse.Namespace) -> dict[str, Any]:
    path, _ = resolve_target(args.target)
    target, tokenizer = load_model(path, dtype="float32", device="cpu"), load_tokenizer(path)
    specs = {"head": f"eagle:{args.head}"} if args.head else own_specs(args.target)
    drafters = {name: load(spec, target) for name, spec in specs.items()}
    items, found, rows = load_suite(args.suite, args.prompts).items, dict[str, Any](), []
    for domain in dict.fromkeys(item.domain for item in items):
        texts_of = [item.turns[0] for item in items if item.domain == domain]
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
            for name, drafter in drafters.items():
                sharpness = 1.0 if heat else GREEDY
                alphas, ids = looked_at(drafter, target.module, texts, args.depth, sharpness)
                share = 1.0 if ids is None else float(torch.isin(said, ids).float().mean())
                kept = [round(alpha, 4) for alpha in alphas]
                own[name] = {"alphas": kept, "in_vocabulary": round(share, 4)}
                depths = {f"depth {i}": alpha for i, alpha in enumerate(kept, 1)}
                rows.append({"category": domain, "T": heat, "drafter": name, **depths})
    show(rows)
    return {"target": args.target, "prompts": args.prompts, "categories": found}


def load(spec: str, target: CausalModel) -> EagleHead | CausalModel:
    """Load an EAGLE head, or a layer of the target."""
    kind, _, folder = spec.partition(":")
    return load_head(folder, target).eval() if kind == "eagle" else load_borrower(folder, target)


def looked_at(
    drafter: EagleHead | CausalModel, target: Any, texts: list[Text], depth: int, sharpness: float
) -> tuple[list[float], Tensor | None]:
    """Alpha by depth along these texts, and the ids of the tokens that can be drafted."""
    if isinstance(drafter, EagleHead):
        return acceptance_by_depth(drafter, target, texts, depth, sharpness), drafter.draft_ids
    head = drafter.module.get_output_embeddings()
    ids = head.ids if isinstance(head, LentHead) else None
    return [measure_acceptance(target, {"layer": drafter.module}, texts, sharpness)["layer"]], ids


if __name__ == "__main__":
    run(
        __doc__, compare, target="smollm2", suite={"required": True}, prompts=10, tokens=128,
        depth=5, head={"help": "folder; default: the drafters that are bundled with the target"},
    )  # fmt: skip
