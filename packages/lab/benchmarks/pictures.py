"""Pictures of the docs, drawn from a running engine: `python -m benchmarks pictures` writes SVGs.

The phases are those of an engine's round; the tree is a bundled drafter's draft with the tokens
that the target accepted; the cache is a batch's after its rounds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftwise import Speculator, zoo
from draftwise.engine import loop
from draftwise.engine.outputs import PHASES
from draftwise.engine.request import RoundState

HERE = Path(__file__).parents[3] / "docs" / "pictures"
RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
KEPT, DROPPED, BONUS, PROMPT, INK = "#00a878", "#d9d9d9", "#e69f00", "#9a8cff", "#333333"
SAYS = {
    "choose": "the policy picks\na plan",
    "catch_up": "drafters read what\nthey missed",
    "draft": "a drafter proposes\ntokens",
    "verify": "one forward of\nthe target",
    "commit": "what was accepted\nenters the caches",
    "probe": "other drafters are\nscored, if worth it",
    "feedback": "what the round\nsaid of each plan",
    "learn": "the policy takes\nit in",
}
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "draftwise", "font.size": 9}


def canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty white picture without axes; width and height are in inches."""
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.subplots()
    axes.axis("off")
    return figure, axes


def the_loop() -> Figure:
    figure, axes = canvas(7.5, 4.2)
    names = [name for name in PHASES if name != "prefill"]
    angles = np.pi / 2 - 2 * np.pi * np.arange(len(names)) / len(names)
    places = np.stack([1.9 * np.cos(angles), np.sin(angles)], axis=1)
    for i, (name, (x, y)) in enumerate(zip(names, places, strict=True)):
        way = places[(i + 1) % len(names)] - (x, y)
        axes.annotate("", (x, y) + 0.62 * way, (x, y) + 0.4 * way, arrowprops={"arrowstyle": "->"})
        box = {"boxstyle": "round,pad=.5", "fc": KEPT if name == "verify" else "#f4f4f4"}
        axes.text(x, y, f"{name}\n{SAYS[name]}", ha="center", va="center", bbox=box)
    axes.text(0, 0, "a round", ha="center", va="center", fontsize=12)
    axes.set(xlim=(-2.5, 2.5), ylim=(-1.3, 1.3))
    return figure


def drafted(
    prompt: str, num_rounds: int, **setting: Any
) -> tuple[Speculator, list[list[RoundState]]]:
    """The states of each round of one answer."""
    rounds: list[list[RoundState]] = []
    judge = loop.verify_batch

    def watched(turns: Sequence[RoundState]) -> None:
        judge(turns)
        rounds.append(list(turns))

    with patch.object(loop, "verify_batch", watched):
        spec = Speculator.from_pretrained("zoo", policy="fixed:0", seed=0, **setting)
        list(islice(spec.start([prompt]), num_rounds))
    return spec, rounds


def a_tree() -> Figure:
    """Draw the round with the most accepted tokens among the first twelve."""
    spec, rounds = drafted(
        zoo.prompts()["sql"][0], 12, preset="banditspec", drafters=["zoo:sql"], lengths=[4],
        trees=["3x14"],
    )  # fmt: skip
    (turn,) = max(rounds, key=lambda turns: turns[0].verdict.num_accepted)
    draft, kept = turn.draft, {int(node) for node in turn.verdict.path}
    parents = [draft.parent(node) for node in range(len(draft))]
    depth = {-1: 0}
    for node, parent in enumerate(parents):
        depth[node] = depth[parent] + 1
    leaves = [node for node in range(len(draft)) if node not in parents]
    height, free = dict[int, float](), count(len(leaves), -1)

    def settle(node: int) -> float:
        heights = [settle(child) for child, parent in enumerate(parents) if parent == node]
        height[node] = float(np.mean(heights)) if heights else float(next(free))
        return height[node]

    settle(-1)
    figure, axes = canvas(7, 0.38 * len(leaves) + 0.6)
    text = spec.tokenizer.decode
    for node in range(-1, len(draft)):
        x, y = depth[node], height[node]
        if node >= 0:
            parent = parents[node]
            shade = KEPT if node in kept else DROPPED
            axes.plot([depth[parent], x], [height[parent], y], color=shade, lw=2, zorder=1)
        shown = "text so far" if node < 0 else repr(text([int(draft.tokens[node])]))
        face = PROMPT if node < 0 else KEPT if node in kept else DROPPED
        axes.text(x, y, shown, ha="center", va="center", bbox={"boxstyle": "round", "fc": face})
    last = int(turn.verdict.path[-1]) if kept else -1
    bonus, x, y = repr(text([int(turn.verdict.tokens[-1])])), depth[last] + 1, height[last]
    axes.plot([x - 1, x], [y, y], color=BONUS, lw=2, zorder=1)
    box = {"boxstyle": "round", "fc": BONUS}
    axes.text(x, y, f"{bonus} (bonus)", ha="center", va="center", bbox=box)
    axes.set(xlim=(-0.6, max(depth.values()) + 1.7), ylim=(0.2, len(leaves) + 0.8))
    return figure


def a_ragged_cache() -> Figure:
    """Draw three rows after eight rounds: prompt, tokens added by each round, discarded tokens."""
    spec = Speculator.from_pretrained(
        "zoo", drafters=["zoo:math"], policy="fixed:0", preset="banditspec", lengths=[6], seed=0
    )
    texts = zoo.prompts()["math"]
    prompts = [texts[0][-60:], texts[1][-28:], texts[2][-45:]]
    added: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
    for round_ in spec.start(prompts, max_new_tokens=64):
        if len(added[round_.request]) < 8:
            added[round_.request].append((round_.num_emitted, round_.num_drafted))
    lengths = [len(spec.tokenizer(prompt)["input_ids"]) for prompt in prompts]
    figure, axes = canvas(8, 2.4)
    bar = {"edgecolor": "white", "height": 0.6}
    for row, length in enumerate(lengths):
        axes.barh(-row, length, color=PROMPT, **bar)
        start = length
        for i, (emitted, _) in enumerate(added[row]):
            axes.barh(-row, emitted, left=start, color=KEPT if i % 2 else "#7fd3bb", **bar)
            axes.text(start + emitted / 2, -row, emitted, ha="center", va="center")
            start += emitted
        wasted = added[row][-1][1] + 1 - added[row][-1][0]
        axes.barh(-row, wasted, left=start, color=DROPPED, hatch="//", **bar)
        axes.text(-1, -row, f"row {row}", ha="right", va="center")
    said = {PROMPT: "prompt", KEPT: "emitted, by round", DROPPED: "discarded: written over"}
    for shade, what in said.items():
        axes.barh(0, 0, color=shade, label=what)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncol=3, frameon=False)
    return figure


def the_price() -> Figure:
    """Expected tokens of a draft and the price of its seconds, by the draft's length.

    Seconds: a forward of SmolLM2 over 1, 2, .. tokens (``widths.json``, medians, float32,
    products of draftwise). Tokens: chains whose every token is accepted with the given probability.
    """
    found = json.loads((RESULTS / "widths.json").read_text())
    ms = np.array(found["ways"]["float32, products of draftwise"]["median_ms"])
    lengths = np.arange(17)
    seconds = np.interp(lengths + 1, found["widths"], ms) / ms[0]
    figure = Figure(figsize=(7.5, 2.7), facecolor="white")
    for axes, alpha in zip(figure.subplots(1, 2, sharey=True), (0.85, 0.5), strict=True):
        tokens = np.cumsum(alpha**lengths)
        rate = (tokens / seconds).max()  # tokens per plain step that the best length reaches
        gains = tokens - rate * seconds
        best = int(gains.argmax())
        axes.plot(lengths, tokens, color=KEPT, lw=2, label="expected tokens")
        axes.plot(lengths, rate * seconds, color=BONUS, lw=2, label="price of the seconds")
        axes.axvline(best, color=INK, lw=1, ls=":")
        says = f"best: {best} tokens,\n{rate:.1f} times plain"
        side, way = ("left", 0.4) if best < 8 else ("right", -0.4)
        axes.text(best + way, 0.2, says, ha=side)
        axes.set_title(f"{alpha:.0%} of the tokens are accepted", fontsize=9)
        axes.set(xlabel="drafted tokens", ylim=(0, 8.5), xlim=(0, 16))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[1].legend(loc="upper right", frameon=False)
    return figure


PICTURES = {"loop": the_loop, "tree": a_tree, "cache": a_ragged_cache, "price": the_price}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES], default=[])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        for name in options.names or PICTURES:
            path = options.out / f"{name}.svg"
            PICTURES[name]().savefig(path, metadata={"Date": None}, bbox_inches="tight")


if __name__ == "__main__":
    main()
