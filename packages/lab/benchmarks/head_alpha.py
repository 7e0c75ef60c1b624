"""How often the tokens of EAGLE heads and of a target's own layers are accepted, by what is asked.

    python -m benchmarks head_alpha --suite spec-bench:question.jsonl --prompts 20 --target smollm2

The target answers prompts of each category itself, at temperature 1 and at 0; along these answers
the head drafts at every place. At temperature 1 a token counts min(1, q/p) on average; greedy, 1
where the head's favourite is the target's. Depth 2 is a draft's second token, with the first one
of the draft before it, accepted or not; a layer reads no states, and has one alpha for all depths.
Also: the share of answer tokens in the draft vocabulary.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from shared.results import save
from torch import Tensor

from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.heads.borrower import load_borrower
from draftwise.nn.heads.eagle import EagleHead, LentHead, load_head
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.pool import resolve_target
from draftwise.real.bundled import own_specs
from draftwise.train.answers import answers
from draftwise.train.data import Text
from draftwise.train.drafter import measure_acceptance
from draftwise.train.eagle import acceptance_by_depth

GREEDY = 1e6
"""Times the logits, so that all is on the favourite."""


def main() -> None:
    """Answer, look, print, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--head", help="folder; default: the drafters that come along")
    parser.add_argument("--suite", required=True)
    parser.add_argument("--prompts", type=int, default=10, help="of each category")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    path, _ = resolve_target(args.target)
    target = load_model(path, dtype="float32", device="cpu")
    tokenizer = load_tokenizer(path)
    specs = {"head": f"eagle:{args.head}"} if args.head else own_specs(args.target)
    drafters = {name: load(spec, target) for name, spec in specs.items()}
    suite, found = load_suite(args.suite, args.prompts), dict[str, dict[str, Any]]()
    table = Table(
        "category", "answers at", "drafter", *(f"depth {i + 1}" for i in range(args.depth))
    )
    domains = list(dict.fromkeys(item.domain for item in suite.items))
    for domain in domains:
        asked = [
            encode(as_asked(item.turns[0], tokenizer), tokenizer).tokens
            for item in suite.items
            if item.domain == domain
        ]
        for heat in (0.0, 1.0):
            with tempfile.TemporaryDirectory() as folder:
                texts = answers(
                    target.module,
                    asked,
                    [heat] * len(asked),
                    Path(folder) / "answers.jsonl",
                    max_new_tokens=args.tokens,
                    eos_token_id=tokenizer.eos_token_id,
                    seed=1,
                    rows=32,
                )
            sharpness = 1.0 if heat else GREEDY
            said = torch.tensor([token for text in texts for token in text.tokens[text.start :]])
            row = found.setdefault(domain, {}).setdefault(f"{heat:g}", {"tokens": len(said)})
            for name, drafter in drafters.items():
                alphas, ids = looked_at(drafter, target, texts, args.depth, sharpness)
                share = 1.0 if ids is None else float(torch.isin(said, ids).float().mean())
                kept = [round(alpha, 4) for alpha in alphas]
                row[name] = {"alphas": kept, "in_vocabulary": round(share, 4)}
                table.add_row(domain, f"T = {heat:g}", name, *(f"{alpha:.2f}" for alpha in alphas))
    Console().print(table)
    save(args.out, {"target": args.target, "prompts": args.prompts, "categories": found})


def as_asked(text: str, tokenizer: Any) -> str | list[dict[str, str]]:
    """A user's turn, or for a base model the text to go on with."""
    return [{"role": "user", "content": text}] if tokenizer.chat_template else text


def load(spec: str, target: CausalModel) -> EagleHead | CausalModel:
    """A head, or a layer of the target."""
    kind, _, folder = spec.partition(":")
    return load_head(folder, target).eval() if kind == "eagle" else load_borrower(folder, target)


def looked_at(
    drafter: EagleHead | CausalModel,
    target: CausalModel,
    texts: list[Text],
    depth: int,
    sharpness: float,
) -> tuple[list[float], Tensor | None]:
    """Alpha by depth along these texts, and the tokens that can be drafted."""
    if isinstance(drafter, EagleHead):
        alphas = acceptance_by_depth(drafter, target.module, texts, depth, sharpness)
        return alphas, drafter.draft_ids
    held = {"layer": drafter.module}
    head = drafter.module.get_output_embeddings()
    ids = head.ids if isinstance(head, LentHead) else None
    return [measure_acceptance(target.module, held, texts, sharpness)["layer"]], ids


if __name__ == "__main__":
    main()
