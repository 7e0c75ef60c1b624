"""Figures 2 and 6 of TapOut on the zoo: entropy along drafts, and what a bandit thinks of its arms.

python -m benchmarks stopping_figures --part entropy --out benchmarks/results/stopping_entropy.json
python -m benchmarks stopping_figures --part arms --work FOLDER --out FILE.json

Greedy, one drafter. Each draws a PNG beside its JSON; intervals are over prompts. FOLDER is that of
``stopping.py``, from which the second takes what the rules did as fixed plans.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table
from shared.results import save
from shared.stopping_ways import TABLE_1, Played, rule, rules_bandit
from stopping import PRICES, TOGETHER, play, prompts, remembered
from transformers.utils import logging

Floats = NDArray[np.float64]

LENGTH = 16
SURVIVED = 8
"""Drafts of which at least so many tokens were accepted are followed from their first to this."""
AGE = 16
"""Tokens in a bin of the position in the answer."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
NUM_RESAMPLES = 2000


def means(table: Floats) -> dict[str, list[float | None]]:
    """Mean and interval of each column of [prompts, positions, (sum, num)]; None where none is."""
    picks = np.random.default_rng(0).integers(0, len(table), (NUM_RESAMPLES, len(table)))
    drawn = table[picks].sum(1)
    with np.errstate(invalid="ignore"):
        value = table.sum(0)[:, 0] / table.sum(0)[:, 1]
        low, high = np.nanquantile(drawn[..., 0] / drawn[..., 1], [0.025, 0.975], axis=0)
    shown = table.sum(0)[:, 1] >= 10
    columns = zip(("mean", "low", "high"), (value, low, high), strict=True)
    return {
        name: [round(float(x), 3) if ok else None for x, ok in zip(xs, shown, strict=True)]
        for name, xs in columns
    }


def along(rounds: Sequence[Any], roots: Floats, start: int) -> dict[str, Floats]:
    """[positions, (sum, num)] of one answer; roots: [tokens of text] sqrt(H) of q at each."""
    tables = {"accepted": LENGTH, "reached": LENGTH, "survivors": SURVIVED, "acceptance": LENGTH}
    found = {name: np.zeros((size, 2)) for name, size in tables.items()}
    for round_ in rounds:
        first, kept = round_.position, round_.num_accepted
        for i in range(min(kept + 1, round_.num_drafted)):
            root = roots[first + i] if first + i < len(roots) else np.nan
            if np.isnan(root):
                continue
            found["reached"][i] += (root, 1)
            found["acceptance"][i] += (i < kept, 1)
            if i < kept:
                found["accepted"][i] += (root, 1)
            if kept >= SURVIVED and i < SURVIVED:
                found["survivors"][i] += (root, 1)
    answer = roots[start:]
    ages = [answer[i : i + AGE] for i in range(0, 10 * AGE, AGE)]
    found["by_answer_position"] = np.array([(own.sum(), len(own)) for own in ages])
    return found


@torch.inference_mode()
def entropy(args: argparse.Namespace) -> dict[str, Any]:
    """Drafts of 16 tokens; q along what was accepted is q along the text, and read off there."""
    spec = rule("fixed", LENGTH).speculator()
    texts, domains = prompts(args.prompts)
    module: Any = spec.drafters[0].model.module  # type: ignore[attr-defined]
    tables: dict[str, list[dict[str, Floats]]] = {}
    options: dict[str, Any] = {"max_new_tokens": args.tokens, "temperature": 0.0}
    for first in track(range(0, len(texts), TOGETHER), console=Console(stderr=True)):
        rows = [spec.tokenizer(text)["input_ids"] for text in texts[first : first + TOGETHER]]
        rounds: list[list[Any]] = [[] for _ in rows]
        for round_ in spec.start(rows, **options):
            rounds[round_.request].append(round_)
        for own, row, domain in zip(rounds, rows, domains[first:], strict=False):
            ids = [*row, *(token for round_ in own for token in round_.tokens)]
            logs = module(torch.tensor([ids])).logits[0].float().log_softmax(-1)
            roots = (-(logs.exp() * logs).sum(-1)).clamp(min=0).sqrt().double().numpy()
            shifted = np.concatenate([[np.nan], roots[:-1]])  # q at a position: what came before
            tables.setdefault(domain, []).append(along(own, shifted, len(row)))
    tables["all"] = [table for found in list(tables.values()) for table in found]
    found = {
        domain: {key: means(np.array([one[key] for one in own])) for key in own[0]}
        for domain, own in tables.items()
    }
    draw_grid(list(found), lambda axes, d: draw_entropy(axes, d, found[d]), picture(args.out))
    return {"entropy": found}


def draw_entropy(axes: Any, domain: str, found: Mapping[str, Any]) -> None:
    """Root of the entropy and acceptance by position in the draft."""
    for key, label, colour, style in (
        ("accepted", "√entropy, accepted tokens", COLOURS[0], "-"),
        ("survivors", f"√entropy, drafts with {SURVIVED} or more accepted", COLOURS[1], "--"),
        ("acceptance", "acceptance, once reached", COLOURS[2], "-"),
    ):
        nums = [np.array(found[key][k], dtype=float) for k in ("mean", "low", "high")]
        xs = np.arange(1, len(nums[0]) + 1)
        axes.plot(xs, nums[0], style, color=colour, label=label, linewidth=1.5)
        axes.fill_between(xs, nums[1], nums[2], color=colour, alpha=0.15, linewidth=0)
    axes.set(title=domain, xlabel="position in the draft", ylim=(0, 2.3), xlim=(0.5, LENGTH + 0.5))
    axes.set_xticks([1, 4, 8, 12, 16])


def ranks(values: Floats) -> Floats:
    """Ranks along the last axis; equal values share theirs."""
    mine, theirs = values[..., :, np.newaxis], values[..., np.newaxis, :]
    found: Floats = (mine > theirs).sum(-1) + 0.5 * (mine == theirs).sum(-1)
    return found


def spearman(a: Floats, b: Floats) -> Floats:
    """Rank correlation along the last axis."""
    x, y = (ranks(v) - v.shape[-1] / 2 for v in (a, b))
    found: Floats = (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return found


def speeds_and_values(
    fixed: Sequence[Sequence[Played]], bandit: Sequence[Played], price: str
) -> tuple[Floats, Floats, Floats, Floats]:
    """[prompts, rules, 2] tokens and seconds of each rule, its blend (sum, num) as a fixed plan and
    in the bandit's rounds; and [prompts, rules] rounds in which the bandit played it."""
    costs = PRICES[price]
    speed = np.array([[(p.emitted, p.seconds(*costs)) for p in own] for own in fixed])
    alone = np.array(
        [[p.blend[r][::-1] for p in own] for r, own in zip(TABLE_1, fixed, strict=True)]
    )
    arms = np.array([[p.blend.get(r, (0, 0.0))[::-1] for r in TABLE_1] for p in bandit])
    return speed.swapaxes(0, 1), alone.swapaxes(0, 1), arms, arms[..., 1]


def judge(speed: Floats, alone: Floats, arms: Floats) -> dict[str, Any]:
    """Rank correlation of speed with the arms' values, and with those of the rules alone."""
    num = len(speed)
    picks = np.random.default_rng(0).integers(0, num, (NUM_RESAMPLES, num))

    def rate(table: Floats) -> tuple[Floats, Floats]:
        drawn = table[picks].sum(1)
        return table.sum(0)[:, 0] / table.sum(0)[:, 1], drawn[..., 0] / np.maximum(drawn[..., 1], 1)

    (fast, fast_drawn), found = rate(speed), {}
    for name, table in (("arms", arms), ("alone", alone)):
        value, drawn = rate(table)
        low, high = np.quantile(spearman(fast_drawn, drawn), [0.025, 0.975])
        found[name] = {
            "values": [round(float(v), 4) for v in value],
            "spearman": [round(float(x), 2) for x in (spearman(fast, value), low, high)],
        }
    return {"tok_per_s": [round(float(v), 1) for v in fast], **found}


def arms(args: argparse.Namespace) -> dict[str, Any]:
    """TapOut's UCB1 with a memory for each domain, beside each rule as a fixed plan."""
    texts, domains = prompts(args.prompts)
    options = {"max_new_tokens": args.tokens, "temperature": 0.0}
    folder = args.work / f"T0-{args.prompts}x{args.tokens}"
    fixed: list[list[Played]] = []
    for name in TABLE_1:
        known = remembered(folder / f"{name}.json")
        fixed.append(known or play(rule(name), texts, None, options))
    found: dict[str, Any] = {}
    for domain in [*dict.fromkeys(domains), "all"]:
        at = [i for i, d in enumerate(domains) if domain in {d, "all"}]
        bandit = play(rules_bandit(), [texts[i] for i in at], None, options)
        own = [[runs[i] for i in at] for runs in fixed]
        found[domain] = {}
        for price in PRICES:
            speed, alone, values, rounds = speeds_and_values(own, bandit, price)
            found[domain][price] = judge(speed, alone, values)
            found[domain]["rounds"] = rounds.sum(0).astype(int).tolist()
    table = Table("domain", "price", *TABLE_1, "spearman, arms", "spearman, alone")
    for domain, row in found.items():
        for price in PRICES:
            one = row[price]
            cells = [
                f"{v:.3f} {s:.0f}/s"
                for v, s in zip(one["arms"]["values"], one["tok_per_s"], strict=True)
            ]
            table.add_row(
                domain, price, *cells, *(str(one[k]["spearman"]) for k in ("arms", "alone"))
            )
    Console(width=190).print(table)
    draw_grid(list(found), lambda axes, d: draw_arms(axes, d, found[d]["zoo"]), picture(args.out))
    return {"rules": TABLE_1, "arms": found}


def draw_arms(axes: Any, domain: str, found: Mapping[str, Any]) -> None:
    """Speed as a fixed plan to the right; upwards the bandit's final value (full), and the value
    that the rule has when it always plays (hollow)."""
    value, low, high = found["arms"]["spearman"]
    values = zip(found["arms"]["values"], found["alone"]["values"], strict=True)
    for name, x, (y, alone), colour in zip(
        TABLE_1, found["tok_per_s"], values, COLOURS, strict=True
    ):
        axes.scatter([x], [y], color=colour, label=name, s=40)
        axes.scatter([x], [alone], facecolors="none", edgecolors=colour, s=40)
    axes.margins(0.15)
    axes.locator_params(axis="x", nbins=4)
    axes.set_title(f"{domain}: {value:+.1f} ({low:+.1f} to {high:+.1f})")
    axes.set(xlabel="tokens/s as a fixed plan", ylabel="blend")


def draw_grid(names: Sequence[str], draw: Callable[[Any, str], None], path: Path | None) -> None:
    """A panel for each name, two rows, one legend below all; a PNG."""
    if path is None:
        return
    columns = -(-len(names) // 2)
    figure = Figure(figsize=(3.1 * columns, 6.0), dpi=130, layout="constrained")
    panels = figure.subplots(2, columns, squeeze=False).ravel()
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(panels, names, strict=False):
        draw(axes, name)
        axes.title.set_fontsize(10)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False
    )
    figure.savefig(path, metadata={"Software": None})


def picture(out: str | None) -> Path | None:
    """The PNG beside the JSON."""
    return Path(out).with_suffix(".png") if out else None


def main() -> None:
    """Draw one figure and write its numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--part", required=True, choices=["entropy", "arms"])
    parser.add_argument("--work", type=Path, default=Path("."), help="the folder of stopping.py")
    parser.add_argument("--prompts", type=int, default=8, help="of each domain")
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    save(args.out, entropy(args) if args.part == "entropy" else arms(args))


if __name__ == "__main__":
    main()
