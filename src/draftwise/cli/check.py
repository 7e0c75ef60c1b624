"""``draftwise check``: does drafting change a model's answers in this dtype, on this device?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from draftwise.bench.suites import usual_items
from draftwise.chat import has_template
from draftwise.checks import comma_separated, option
from draftwise.cli import options as o
from draftwise.cli.demo import plain_like
from draftwise.cli.failures import Output, note, refused_values
from draftwise.cli.load import Given, check_chat, read_batch
from draftwise.cli.show import Bars, make_table
from draftwise.registry import Preset

if TYPE_CHECKING:
    from draftwise.nn.check import LosslessnessReport
    from draftwise.speculator import Speculator

LENGTHS = (1, 2, 4, 8, 15)  # draft lengths; the verifying forwards have 2 to 16 tokens
EVERYTHING = Preset("random", "length", "free", LENGTHS, with_none=False)
"""Random drafters and lengths, so that slow ones are checked, too."""
_NUM_PROMPTS = 10


MODELS = o.Models(target="zoo")


@o.command
def check(
    *,
    models: o.Models = MODELS,
    prompts: Path | None = option(
        None, "One per line, or jsonl with `prompt`, `messages` or `turns`. Default: the "
        "prompts of `demo`.",
        "--prompts", "--batch", "-b",
    ),
    is_chat: bool = o.AS_CHAT,
    max_new_tokens: int = option(
        32, "Maximum number of tokens per answer.", "--max-new-tokens", "-n", least=1
    ),
    widths: str = option(
        "2,4,8,16", "Widths in tokens of the forwards compared with width one.", metavar="N,N"
    ),
    seed: int = o.SEED,
    as_json: bool = o.AS_JSON,
) -> None:  # fmt: skip
    """Compare answers with and without drafts in this dtype and on this device.

    Every prompt is answered greedily twice, plainly and with drafts of every drafter and length;
    then the plain answer is recomputed in forwards of one and of several tokens. Exit code 0:
    equal, or different only where two tokens tie to within rounding (half precision); 1: tokens
    differ in float32, or logits by more than rounding explains; 2: refused.
    """
    with refused_values():
        said = f"--widths {widths!r}: write whole numbers from 2, such as 2,4,8,16"
        sizes = sorted(set(comma_separated(widths, int, 2, said)))
        given = [] if prompts is None else read_batch(prompts, is_chat)
        wanted = models.settings(seed=seed)
        o.check(wanted)
        if is_chat or any(one.is_chat for one in given):
            check_chat(wanted.target)
    base = o.load(wanted)
    from draftwise.nn.check import LosslessnessReport

    if prompts is None:
        is_chat = has_template(base.tokenizer)
        given = [Given(one.first) for one in usual_items(is_chat)[:_NUM_PROMPTS]]
        given = [one.as_chat() for one in given] if is_chat else given
    report = LosslessnessReport(base.target, sizes)
    counts = _answer_all(base, given, max_new_tokens, seed, report)
    found = report.as_json() | {"model": wanted.target} | counts
    if as_json:
        print(json.dumps(found))
    else:
        Output().print(_table(found))
        print(*_lines(found), sep="\n")
    if not counts["num_drafted"]:
        note("no token was drafted: the answers say nothing here; give other --drafter or prompts")
    raise SystemExit(0 if report.is_lossless else 1)


def _answer_all(
    base: Speculator, given: list[Given], num: int, seed: int, report: LosslessnessReport
) -> dict[str, int]:
    from draftwise.speculator import Speculator

    plain = plain_like(base)
    drafting = Speculator(base.target, base.tokenizer, base.drafters, EVERYTHING, seed=seed)
    counts = dict.fromkeys(("num_rounds", "num_drafted", "num_accepted"), 0)
    texts = [one.encoded(base) for one in given]
    with Bars("prompts") as progress:
        for prompt in progress.track(texts):
            tokens, other = (
                made.generate(prompt, max_new_tokens=num, temperature=0.0, seed=seed)
                for made in (plain, drafting)
            )
            report.add(prompt.tokens, tokens.tokens, other.tokens)
            for name in counts:
                counts[name] += getattr(other.stats, name)
    return counts


def _table(found: dict[str, Any]) -> Table:
    title = f"{Path(found['model']).name}, {found['dtype']}, {found['device']}"
    headings = "positions", "argmax\nchanges", "largest\nmargin", "share of what\nrounding explains"
    table = make_table("forward over", right=headings, title=title)
    for width, row in found["widths"].items():
        share = row["largest_share_of_bound"]
        counts = str(row["num_positions"]), str(row["num_flips"])
        margin = _logits(row["largest_flip_margin"])
        table.add_row(f"{width} tokens", *counts, margin, "" if share is None else f"{share:.1%}")
    return table


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"plain decoding: {found['num_positions']} tokens, {found['num_ties']} exact ties"
    yield (
        f"with drafts: {found['num_drafted']} tokens drafted in {found['num_rounds']} rounds, "
        f"{found['num_accepted']} accepted; {found['num_different']} of {found['num_prompts']} "
        "answers differ"
    )
    for number, answer in enumerate(found["answers"], 1):
        if not answer["is_equal"]:
            margin = answer["margin"]
            how = "one answer ends" if margin is None else f"{_logits(margin)} logits apart"
            why = "" if answer["is_rounding"] else ", more than rounding explains"
            yield f"  prompt {number}: token {answer['position'] + 1} differs ({how}{why})"
    yield found["verdict"]


def _logits(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
