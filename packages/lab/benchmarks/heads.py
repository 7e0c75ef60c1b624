"""A bundled EAGLE-3 head from nothing: prompts, answers, training, and alpha as the data grow.

    python -m benchmarks heads --target smollm2 --work heads --avoid question.jsonl \
        --suite spec-bench:question.jsonl --tokens 6000000 --out heads.json       # hours of a CPU
    python -m benchmarks heads --target smollm2 --work heads --device cuda --seconds 540 --rows 512
    python -m benchmarks heads --target smollm2 --work dry --tokens 3000 --suite prompts.jsonl

The target writes user turns (Magpie), which are filtered and kept away from the --avoid files, and
answers them at temperatures 0, 0.7 and 1 in turn. The head is trained on the answers in one pass,
with drafts unrolled over --depth tokens. Alpha by depth and category is measured on the --suite's
answers, at temperatures 1 and 0, after each eighth of the data: where the curve is flat, more
data do not pay.

Every prompt, answer and checkpoint is in --work as soon as it exists: after an interruption the
same command goes on. --seconds is the time for everything; two thirds of it go to the answers.
Weights are written to WORK/head.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from shared.compare import as_asked
from shared.script import run, show

from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.heads.eagle import EagleHead
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.pool import resolve_target
from draftwise_lab.train.answers import answers
from draftwise_lab.train.data import Text, groups, observed_batches
from draftwise_lab.train.eagle import (
    acceptance_by_depth,
    draft_vocabulary,
    eagle_loss,
    new_head,
)
from draftwise_lab.train.loop import TrainingSettings, fit
from draftwise_lab.train.prompts import make_prompts, runs_of
from draftwise_lab.train.save import save_head

BLOCK = 500  # prompts that are written, then answered, before the next ones
TEMPERATURES = (0.0, 0.7, 1.0)
LONGEST_PROMPT, LONGEST_ANSWER = 400, 256  # tokens
SHARE = 2 / 3  # of --seconds for prompts and answers
PARTS = 8  # measurements along the pass
GREEDY = 1e6  # factor on the logits that puts all probability on the argmax
HELD_OUT = 16  # prompts of each category of the suite


def train(args: argparse.Namespace) -> dict[str, Any]:
    begin, work = time.monotonic(), Path(args.work)
    path, _ = resolve_target(args.target)
    target = load_model(path, dtype=args.dtype, device=args.device)
    tokenizer = load_tokenizer(path)
    until = begin + SHARE * args.seconds if args.seconds else math.inf
    texts = list(written(args, target, tokenizer, work, until))
    num_tokens = sum(len(text.tokens) - text.start for text in texts)
    judged = held_out(args, target, tokenizer, work)
    print(f"{len(texts)} answers of {num_tokens} tokens; training")
    ids = draft_vocabulary(texts, args.draft_vocab, target.vocab_size)
    head = new_head(target.module, ids, seed=args.seed, lends=True)
    curve = list(learnt(args, head, target, texts, judged, work, begin))
    show([point | point["alpha"] for point in curve])
    save_head(head.cpu(), work / "head", dtype=torch.bfloat16, verifier=target.name)
    return {
        "target": args.target, "tokens": num_tokens, "answers": len(texts),
        "draft_vocab": args.draft_vocab, "depth": args.depth, "curve": curve,
        "seconds": round(time.monotonic() - begin),
    }  # fmt: skip


def written(
    args: argparse.Namespace, target: CausalModel, tokenizer: Any, work: Path, until: float
) -> Iterator[Text]:
    """The target's answers to its own prompts, until there are --tokens of them or time is up."""
    avoid, asked, found = runs_of(map(Path, args.avoid or ())), list[list[int]](), list[Text]()
    num_tokens = 0
    while num_tokens < args.tokens and time.monotonic() < until:
        num = min(len(asked) + BLOCK, len(asked) + max(args.rows, args.tokens // 40))
        prompts, share = make_prompts(
            target, tokenizer, num, work / "prompts.all", rows=args.rows, seed=args.seed,
            avoid=avoid,
        )  # fmt: skip
        asked = [
            list(encode([{"role": "user", "content": text}], tokenizer).tokens)[:LONGEST_PROMPT]
            for text in prompts[:num]
        ]
        heats = [TEMPERATURES[i % len(TEMPERATURES)] for i in range(len(asked))]
        found = answers(
            target.module, asked, heats, work / "answers.jsonl", max_new_tokens=LONGEST_ANSWER,
            eos_token_id=tokenizer.eos_token_id, seed=args.seed, rows=args.rows,
        )  # fmt: skip
        num_tokens = sum(len(text.tokens) - text.start for text in found)
        print(f"{num_tokens} tokens of {len(found)} answers; {share}", flush=True)
    return iter(found)


def held_out(
    args: argparse.Namespace, target: CausalModel, tokenizer: Any, work: Path
) -> dict[str, dict[float, list[Text]]]:
    """By category of the suite and temperature: the target's answers to be drafted along."""
    items = load_suite(args.suite, HELD_OUT).items
    found: dict[str, dict[float, list[Text]]] = {}
    for domain in dict.fromkeys(item.domain for item in items):
        turns = [item.turns[0] for item in items if item.domain == domain]
        asked = [encode(one, tokenizer).tokens[:1024] for one in as_asked(turns, tokenizer)]
        found[domain] = {
            heat: answers(
                target.module, asked, [heat] * len(asked),
                work / f"held-out-{domain}-{heat:g}.jsonl", max_new_tokens=128,
                eos_token_id=tokenizer.eos_token_id, seed=args.seed, rows=args.rows,
            )
            for heat in (0.0, 1.0)
        }  # fmt: skip
    return found


def learnt(
    args: argparse.Namespace, head: EagleHead, target: CausalModel, texts: Sequence[Text],
    judged: dict[str, dict[float, list[Text]]], work: Path, begin: float,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Train in one pass over the texts; yield alpha after each part of it."""
    steps = max(PARTS, round(args.epochs * len(groups(texts, args.batch_tokens))))
    settings = TrainingSettings(
        steps, args.lr, min(100, steps // 10), steps // 4, clip=0.5, bf16=args.dtype == "bfloat16"
    )
    batches = observed_batches(
        target.module, {"texts": texts}, head.config.taps, seed=args.seed,
        tokens_per_batch=args.batch_tokens,
    )  # fmt: skip
    num_tokens = sum(len(text.tokens) - text.start for text in texts)
    for part in range(1, PARTS + 1):
        end = steps * part // PARTS
        losses = fit(
            head, lambda model, batch: eagle_loss(model, batch, args.depth), batches, settings,
            checkpoint=work / f"head-{len(texts)}-{args.draft_vocab}-{args.depth}.pt", stop_at=end,
        )  # fmt: skip
        head.eval()
        with torch.autocast(args.device, torch.bfloat16, enabled=settings.bf16):
            alpha = alphas(head, target, judged, args.depth)
        seen = round(num_tokens * args.epochs * part / PARTS)
        took = round(time.monotonic() - begin)
        yield {"tokens": seen, "loss": losses[-1], "seconds": took, "alpha": alpha}


def alphas(
    head: EagleHead, target: CausalModel, judged: dict[str, dict[float, list[Text]]], depth: int
) -> dict[str, list[float]]:
    """By category and temperature: the mean acceptance of a draft's first, second, .. token."""
    found = {}
    for domain, by_heat in judged.items():
        for heat, texts in by_heat.items():
            sharpness = 1.0 if heat else GREEDY
            by_depth = acceptance_by_depth(head, target.module, texts, depth, sharpness)
            found[f"{domain}, T = {heat:g}"] = [round(alpha, 4) for alpha in by_depth]
    return found


if __name__ == "__main__":
    run(
        __doc__, train, target="smollm2", work={"required": True}, suite={"required": True},
        avoid={"nargs": "*", "help": "jsonl files whose texts no prompt may share"},
        tokens=6_000_000, seconds={"type": float, "default": None, "help": "time for everything"},
        epochs=1.0, depth=3, draft_vocab=8192, batch_tokens=2048, lr=2e-3, rows=96, seed=1,
        dtype="bfloat16", device="cpu",
    )  # fmt: skip
