"""A bundled EAGLE-3 head from nothing: prompts, answers, training, and alpha as the data grow.

    python -m benchmarks heads --target smollm2 --work heads --avoid question.jsonl \
        --suite spec-bench:question.jsonl --tokens 6000000 --out heads.json       # hours of a CPU
    python -m benchmarks heads --target smollm2 --work heads --device cuda --seconds 540 --rows 512
    python -m benchmarks heads --target smollm2 --work dry --tokens 3000 --suite prompts.jsonl

User turns come from templates of everyday chats (two of three) and from the target (Magpie),
filtered and kept away from the --avoid files; the target answers them at temperatures 0, 0.7 and 1
in turn. The head is trained on the answers, with drafts unrolled over --depth tokens, from scratch
or from --start. Alpha by depth and category is measured on the answers to the --suite and to
``everyday.jsonl``, at temperatures 1 and 0, before and after each of --parts: where the curve is
flat, more data do not pay.

Every prompt, answer, state and checkpoint is in --work as soon as it exists: after an interruption
the same command goes on. --seconds is the time for everything; two thirds of it go to the answers.
On a CPU the target's states are kept as it answers, 2 (F + D) bytes per token, so that training
needs no forward of it. Weights are written to WORK/head: with --start, the mean of the trained
weights, counted --blend, and those of --start, which generalises better than either.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from shared.compare import as_asked
from shared.script import run, show
from torch import Tensor

from draftwise.bench.suites import load_suite
from draftwise.chat import encode
from draftwise.nn.eagle import EagleHead
from draftwise.nn.eagle_files import default_taps, load_head
from draftwise.nn.load import load_model, load_tokenizer
from draftwise.nn.model import CausalModel
from draftwise.pool import resolve_target
from draftwise_lab.train.answers import answers, read_kept
from draftwise_lab.train.data import Text, groups, observed_batches
from draftwise_lab.train.eagle import (
    acceptance_by_depth,
    draft_vocabulary,
    eagle_loss,
    new_head,
)
from draftwise_lab.train.loop import TrainingSettings, fit
from draftwise_lab.train.prompts import Runs, make_prompts, runs, runs_of
from draftwise_lab.train.save import save_head
from draftwise_lab.train.turns import made_turns

BLOCK = 4  # batches of prompts that are written, then answered, before the next ones
TEMPERATURES = (0.0, 0.7, 1.0)
LONGEST_PROMPT, LONGEST_ANSWER = 400, 192  # tokens
SHARE = 2 / 3  # of --seconds for prompts and answers
EVERYDAY = Path(__file__).with_name("everyday.jsonl")  # questions of chats, never trained on
GREEDY = 1e6  # factor on the logits that puts all probability on the argmax


def train(args: argparse.Namespace) -> dict[str, Any]:
    begin, work = time.monotonic(), Path(args.work)
    path, _ = resolve_target(args.target)
    target = load_model(path, dtype=args.dtype, device=args.device)
    tokenizer = load_tokenizer(path)
    until = begin + SHARE * args.seconds if args.seconds else math.inf
    texts = written(args, target, tokenizer, work, until)
    num_tokens = sum(len(text.tokens) - text.start for text in texts)
    judged = held_out(args, target, tokenizer, work)
    print(f"{len(texts)} answers of {num_tokens} tokens; training")
    head = beginning(args, target, texts)
    start = {name: weights.detach().clone() for name, weights in head.named_parameters()}
    curve = list(learnt(args, head, target, texts, judged, work, begin))
    if args.start:
        blend(head, start, args.blend)
        curve.append(
            {**curve[-1], "blend": args.blend, "alpha": alphas(args, head, target, judged)}
        )
    show([point | point["alpha"] for point in curve])
    save_head(head.cpu(), work / "head", dtype=torch.bfloat16, verifier=target.name)
    return {
        "target": args.target, "tokens": num_tokens, "answers": len(texts),
        "draft_vocab": args.draft_vocab, "depth": args.depth, "curve": curve,
        "seconds": round(time.monotonic() - begin),
    }  # fmt: skip


def written(
    args: argparse.Namespace, target: CausalModel, tokenizer: Any, work: Path, until: float
) -> list[Text]:
    """The target's answers to the turns in WORK/prompts.jsonl, which grows until there are
    --tokens tokens of them or time is up.
    """
    avoid, found = runs_of([EVERYDAY, *map(Path, args.avoid or ())]), list[Text]()
    asked = list(read_kept(work / "prompts.jsonl"))
    while True:
        encoded = [
            list(encode([{"role": "user", "content": text}], tokenizer).tokens)[:LONGEST_PROMPT]
            for _, (text,) in asked
        ]
        heats = [TEMPERATURES[i % len(TEMPERATURES)] for i in range(len(asked))]
        found = answers(
            target.module, encoded, heats, work / "answers.jsonl", max_new_tokens=LONGEST_ANSWER,
            eos_token_id=tokenizer.eos_token_id, seed=args.seed, rows=args.rows,
            taps=default_taps(target.num_layers), states=states_of(args), deadline=until,
        )  # fmt: skip
        num_tokens = sum(len(text.tokens) - text.start for text in found)
        print(f"{num_tokens} tokens of {len(found)} answers", flush=True)
        if num_tokens >= args.tokens or time.monotonic() > until:
            return found
        asked += more_turns(args, target, tokenizer, work, asked, found, avoid)


def states_of(args: argparse.Namespace) -> Path | None:
    """Where the target's states are kept for several epochs; a GPU computes them faster."""
    return None if args.device == "cuda" else Path(args.work) / "states" / "texts"


def more_turns(
    args: argparse.Namespace, target: CausalModel, tokenizer: Any, work: Path,
    asked: Sequence[tuple[int, list[str]]], found: Sequence[Text], avoid: Runs,
) -> list[tuple[int, list[str]]]:  # fmt: skip
    """The next turns: one of the target's own after every two from templates."""
    known = {text for _, (text,) in asked}
    num = max(1, min(BLOCK * args.rows, args.tokens // 40) // 3)
    have = sum(1 for _, texts in read_kept(work / "prompts.all") if texts[0] in known)
    own, share = make_prompts(
        target, tokenizer, have + num, work / "prompts.all", rows=args.rows, seed=args.seed,
        avoid=avoid,
    )  # fmt: skip
    print(share, flush=True)
    own = [text for text in own if text not in known][:num]
    passages = [tokenizer.decode(text.tokens[text.start : -1]) for text in found]
    passages = [text for text in passages if len(text) > 400]
    made = list[str]()
    for text in made_turns(args.seed + len(asked), passages):
        if text not in known and avoid.isdisjoint(runs(text)):
            known.add(text)
            made.append(text)
        if len(made) == 2 * num:
            break
    texts = [one for three in zip(own, made[:num], made[num:], strict=False) for one in three]
    rows = [(len(asked) + place, [text]) for place, text in enumerate(texts)]
    with (work / "prompts.jsonl").open("a", encoding="utf-8") as file:
        file.writelines(json.dumps([index, *text]) + "\n" for index, text in rows)
    return rows


def held_out(
    args: argparse.Namespace, target: CausalModel, tokenizer: Any, work: Path
) -> dict[str, dict[float, list[Text]]]:
    """By category and temperature: the target's answers to be drafted along."""
    suites = (args.suite, str(EVERYDAY))
    items = [item for suite in suites for item in load_suite(suite, args.held_out).items]
    found: dict[str, dict[float, list[Text]]] = {}
    for domain in dict.fromkeys(item.domain for item in items):
        turns = [item.text for item in items if item.domain == domain]
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


def beginning(args: argparse.Namespace, target: CausalModel, texts: Sequence[Text]) -> EagleHead:
    """A new head, or a copy of --start in float32."""
    if args.start is None:
        ids = draft_vocabulary(texts, args.draft_vocab, target.vocab_size)
        return new_head(target.module, ids, seed=args.seed, lends=True)
    given = load_head(args.start, target)
    head = new_head(target.module, given.draft_ids, seed=args.seed, lends=True)
    head.load_state_dict(given.state_dict())
    return head


@torch.no_grad()
def blend(head: EagleHead, start: Mapping[str, Tensor], share: float) -> None:
    """Replace the weights by ``share`` of them and the rest of those at the start.

    Source: Wortsman et al. 2022 (WiSE-FT, arXiv 2109.01903), section 3.
    """
    for name, weights in head.named_parameters():
        weights.lerp_(start[name], 1 - share)


def learnt(
    args: argparse.Namespace, head: EagleHead, target: CausalModel, texts: Sequence[Text],
    judged: dict[str, dict[float, list[Text]]], work: Path, begin: float,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Train in one pass over the texts; yield alpha after each part of it."""
    steps = max(args.parts, round(args.epochs * len(groups(texts, args.batch_tokens))))
    settings = TrainingSettings(
        steps, args.lr, min(100, steps // 10), steps // 2, clip=0.5, bf16=args.dtype == "bfloat16"
    )
    states = states_of(args)
    batches = observed_batches(
        target.module, {"texts": texts}, head.config.taps, seed=args.seed,
        tokens_per_batch=args.batch_tokens, keep=states and states.parent,
    )  # fmt: skip
    num_tokens = sum(len(text.tokens) - text.start for text in texts)
    name = f"{len(texts)}-{args.draft_vocab}-{args.depth}-{steps}"
    known = [point for _, (point,) in read_kept(work / f"curve-{name}.jsonl")]
    yield from known  # measured before an interruption

    def until(end: int) -> list[float]:
        return fit(
            head, lambda model, batch: eagle_loss(model, batch, args.depth), batches, settings,
            checkpoint=work / f"head-{name}.pt", stop_at=end,
        )  # fmt: skip

    for part in range(len(known), args.parts + 1):
        losses = until(steps * part // args.parts) if part else []
        alpha = alphas(args, head, target, judged)
        seen = round(num_tokens * args.epochs * part / args.parts)
        took = round(time.monotonic() - begin)
        loss = losses[-1] if losses else None
        point = {"tokens": seen, "loss": loss, "seconds": took, "alpha": alpha}
        with (work / f"curve-{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps([part, point]) + "\n")
        print(json.dumps(point), flush=True)
        yield point
    until(steps)  # reads the weights, if an earlier run measured all parts


def alphas(
    args: argparse.Namespace, head: EagleHead, target: CausalModel,
    judged: dict[str, dict[float, list[Text]]],
) -> dict[str, list[float]]:  # fmt: skip
    """By category and temperature: the mean acceptance of a draft's first, second, .. token."""
    head.eval()
    found = {}
    for domain, by_heat in judged.items():
        for heat, texts in by_heat.items():
            sharpness = 1.0 if heat else GREEDY
            with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
                by_depth = acceptance_by_depth(head, target.module, texts, args.depth, sharpness)
            found[f"{domain}, T = {heat:g}"] = [round(alpha, 4) for alpha in by_depth]
    return found


def main() -> None:
    run(
        __doc__, train, target="smollm2", work={"required": True}, suite={"required": True},
        start={"default": None, "help": "folder of a head to go on from, instead of a new one"},
        blend={"type": float, "default": 0.7, "help": "share of the trained weights with --start"},
        avoid={"nargs": "*", "help": "jsonl files whose texts no prompt may share"},
        tokens=6_000_000, seconds={"type": float, "default": None, "help": "time for everything"},
        parts={"type": int, "default": 8, "help": "measurements of alpha along the training"},
        held_out={"type": int, "default": 16, "help": "prompts of each category"},
        epochs=1.0, depth=3, draft_vocab=8192, batch_tokens=2048, lr=2e-3, rows=96, seed=1,
        dtype="bfloat16", device="cpu",
    )  # fmt: skip


if __name__ == "__main__":
    main()
