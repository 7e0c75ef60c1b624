"""Where to stop: fixed lengths, TapOut, SpecDec++ and draftwise's own rule, at given costs.

One drafter of the zoo, and all held-out prompts of a run in one order. Answers are really
generated; forwards are counted and priced afterwards (``PRICES``), so that a run is reproducible.
Methods that choose by price run once for each price. FOLDER keeps finished answers, so that an
interrupted run can be resumed. Figures are PNGs next to the JSON; intervals are over prompts.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared.clock import Cost, Cost2, put_on_clock
from shared.compare import span
from shared.script import run, show, track

from draftwise import Speculator, zoo
from draftwise.types import Floats
from draftwise_lab.plotting import band, dress, panels

DRAFTER, FIXED = "generalist", (1, 2, 3, 4, 6, 8)
TABLE_1 = ("max-confidence", "svip", "adaedl", "svip-difference", "logit-margin")
GRID = ("max-confidence:0.6", "max-confidence:0.4", "svip:0.9", "svip:1.2", "adaedl:0.5")
"""Thresholds other than the paper's own: what tuning could have found."""
HEAD, LAGGING = "SpecDec++, bundled head", "SpecDec++, bundled head, lag"
UCB, SIMPLE = "TapOut, UCB1, blend", "TapOut, UCB1, simple"
PRICES: dict[str, tuple[Cost2, Cost2]] = {
    "zoo": ((7.5, 0.2), (0.42, 0.02)),
    "dear": ((7.5, 0.2), (1.5, 0.05)),
}
"""Milliseconds of a forward and of each token, of target and drafter: the zoo's own, and a drafter
a fifth of its target, which is how Llama's 1B and 8B lie."""
BASES = ("plain", "best length", "best rule", UCB, HEAD, LAGGING, "draftwise")
LENGTH, SURVIVED, AGE = 16, 8, 16
"""Of ``entropy``: tokens of a draft; accepted tokens of drafts followed that far; answer bins."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Way:
    """Options of ``Speculator.from_pretrained`` beyond the target and the drafter.

    shares: all prompts teach one policy. is_priced: its choices depend on the costs of forwards.
    """

    options: dict[str, Any]
    shares: bool = False
    is_priced: bool = False

    def speculator(self) -> Speculator:
        """A new one without memory."""
        drafters = [] if self.options["preset"] == "plain" else [f"zoo:{DRAFTER}"]
        scope = "session" if self.shares else "request"
        return Speculator.from_pretrained("zoo", drafters, scope=scope, **self.options)


def rule(spec: str, length: int = 128) -> Way:
    return Way({"preset": "tapout", "policy": "fixed:0", "rules": [spec], "lengths": [length]})


def rules_bandit(policy: str = "ucb1:beta=1", reward: str = "blend", **more: Any) -> Way:
    """TapOut: a bandit over the rules of table 1."""
    return Way({"preset": "tapout", "policy": policy, "reward": reward, **more}, shares=True)


def lengths_bandit(policy: str, feedback: str) -> Way:
    """A bandit over the fixed lengths, by the same reward."""
    options = {"policy": policy, "reward": "blend", "feedback": feedback}
    return Way({"preset": "banditspec", "lengths": FIXED, **options}, shares=True)


WAYS: dict[str, Way] = {
    "plain": Way({"preset": "plain"}),
    **{f"length {k}": rule("fixed", k) for k in FIXED},
    **{spec: rule(spec) for spec in TABLE_1},
    HEAD: rule("head", 20),
    LAGGING: rule("head:lag=true", 20),
    "TapOut token, UCB1": rule("tapout-token:bandit=ucb1:beta=1"),
    UCB: rules_bandit(),
    "TapOut, prefix:rules=true": rules_bandit(feedback="prefix:rules=true"),
    "draftwise": Way({"preset": "draftwise"}, is_priced=True),
}
"""What is played at every temperature; the last one at every price."""
MORE: dict[str, Way] = {
    **{spec: rule(spec) for spec in GRID},
    "TapOut token, Thompson": rule("tapout-token:bandit=thompson-bernoulli"),
    SIMPLE: rules_bandit(reward="simple"),
    "TapOut, UCB-Tuned, blend": rules_bandit("ucb-tuned"),
    "TapOut, Thompson, blend": rules_bandit("thompson-gaussian"),
    **{f"lengths, UCB1, {f}": lengths_bandit("ucb1:beta=1", f) for f in ("bandit", "prefix")},
}
"""The rest of TapOut's tables, and variants."""


@dataclass(frozen=True)
class Played:
    """One answer, and what it took.

    forwards: of target and drafter, their number and their tokens. blend: number of rounds and sum
    of TapOut's reward, by rule.
    """

    forwards: list[list[int]]
    emitted: int
    rounds: int
    drafted: int
    accepted: int
    blend: dict[str, tuple[int, float]]

    def seconds(self, *prices: Cost2) -> float:
        """At these prices of target and drafter."""
        pairs = zip(prices, self.forwards, strict=True)
        return 1e-3 * sum(each * num + token * tokens for (each, token), (num, tokens) in pairs)


def prompts(number: int) -> tuple[list[str], list[str]]:
    """Held-out prompts, domain after domain, and the domain of each."""
    chosen = [(d, text) for d, texts in zoo.prompts().items() for text in texts[:number]]
    return [text for _, text in chosen], [domain for domain, _ in chosen]


def play(
    way: Way, texts: Sequence[str], prices: tuple[Cost2, Cost2], options: dict[str, Any]
) -> list[Played]:
    """Every prompt alone, with its own seed, on a clock with these prices."""
    spec, counts, found = way.speculator(), np.zeros((2, 2), int), list[Played]()
    spec._num_prefixes = 0  # prefill every prompt
    put_on_clock(spec, counted(counts[0], prices[0]), counted(counts[1], prices[1]))
    for seed, text in enumerate(texts):
        counts[:] = 0
        rounds = list(spec.start(text, seed=seed, **options))
        blend: dict[str, tuple[int, float]] = {}
        for round_ in rounds:
            if n := round_.num_drafted:
                num, total = blend.get(round_.plan.rule, (0, 0.0))
                reward = round_.num_accepted / 2 * (1 / 128 + 1 / n)
                blend[round_.plan.rule] = (num + 1, total + reward)
        emitted, drafted, accepted = (
            sum(getattr(round_, f"num_{what}") for round_ in rounds)
            for what in ("emitted", "drafted", "accepted")
        )
        found.append(Played(counts.tolist(), emitted, len(rounds), drafted, accepted, blend))
    return found


def counted(counts: Any, price: Cost2) -> Cost:
    """A model's price, which counts its forwards and their tokens."""

    def cost(_: int, tokens: int) -> float:
        counts[:] += (1, tokens)
        return price[0] + price[1] * tokens

    return cost


def remembered(path: Path, make: Callable[[], list[Played]]) -> list[Played]:
    """Stored answers, or new ones, which are stored."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([dataclasses.asdict(played) for played in make()]))
    return [Played(**row) for row in json.loads(path.read_text())]


def settings(args: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    """Options of ``generate``, and the folder of stored answers."""
    options = {"max_new_tokens": args.tokens, "temperature": args.temperature}
    return options, Path(args.work) / f"T{args.temperature:g}-{args.domains}x{args.tokens}"


def table(args: argparse.Namespace) -> dict[str, Any]:
    """Every method relative to others, by price."""
    texts, domains = prompts(args.domains)
    options, folder = settings(args)
    played: dict[str, dict[str, list[Played]]] = {price: {} for price in PRICES}
    for name, way in track((WAYS | (MORE if args.more else {})).items()):
        for price, costs in PRICES.items():
            path = folder / f"{name}{f' @{price}' if way.is_priced else ''}.json"
            make = functools.partial(play, way, texts, costs, options)
            played[price][name] = remembered(path, make)
    found = {p: compare(played[p], costs, domains) for p, costs in PRICES.items()}
    for price, own in found.items():
        show(
            {n: {**row["over"], "m": row["m"], "%": row["rate"]} for n, row in own["ways"].items()},
            f"T = {args.temperature:g}, prices: {price}; best: {own['best']}",
        )
    return {"temperature": args.temperature, "costs_ms": PRICES, "prices": found}


def compare(
    played: dict[str, list[Played]], costs: tuple[Cost2, Cost2], domains: list[str]
) -> dict[str, Any]:
    """Each method's speed on some prompts, relative to plain by domain, and the paper's m and %."""
    seconds = {n: np.array([p.seconds(*costs) for p in rows]) for n, rows in played.items()}
    tokens = {n: np.array([float(p.emitted) for p in rows]) for n, rows in played.items()}
    speed = {n: float(tokens[n].sum() / seconds[n].sum()) for n in played}

    def rate(name: str, domain: str) -> float:
        at = np.array(domains) == domain
        return float(tokens[name][at].sum() / seconds[name][at].sum())

    best = {
        "best length": max((f"length {k}" for k in FIXED), key=lambda n: speed[n]),
        "best rule": max(TABLE_1, key=lambda n: speed[n]),
    }
    rows: dict[str, Any] = {}
    for name, own in played.items():
        rounds, drafted, accepted = (
            sum(getattr(p, key) for p in own) for key in ("rounds", "drafted", "accepted")
        )
        over = {base: best.get(base, base) for base in BASES}
        rows[name] = {
            "tok_per_s": round(speed[name], 1),
            "m": round(accepted / rounds, 3),
            "rate": round(accepted / max(drafted, 1), 3),
            "over": {
                base: span(tokens[name], seconds[name], tokens[of], seconds[of])
                for base, of in over.items()
            },
            "by_domain": {
                domain: round(rate(name, domain) / rate("plain", domain), 3)
                for domain in dict.fromkeys(domains)
            },
        }
    return {"best": best, "ways": rows}


def column_means(sums: Floats) -> dict[str, list[float | None]]:
    """Mean and interval of each column of [prompts, positions, (sum, num)]; None if empty."""
    picks = np.random.default_rng(0).integers(0, len(sums), (NUM_RESAMPLES, len(sums)))
    drawn, total = sums[picks].sum(1), sums.sum(0)
    with np.errstate(invalid="ignore"):
        low, high = np.nanquantile(drawn[..., 0] / drawn[..., 1], [0.025, 0.975], axis=0)
        columns = {"mean": total[:, 0] / total[:, 1], "low": low, "high": high}
    shown = total[:, 1] >= 10
    return {
        name: [round(float(x), 3) if ok else None for x, ok in zip(xs, shown, strict=True)]
        for name, xs in columns.items()
    }


def along(rounds: Sequence[Any], roots: Floats, start: int) -> dict[str, Floats]:
    """[positions, (sum, num)] of one answer; roots: [tokens of text] sqrt(H) of q at each."""
    sizes = {"accepted": LENGTH, "reached": LENGTH, "survivors": SURVIVED, "acceptance": LENGTH}
    found = {name: np.zeros((size, 2)) for name, size in sizes.items()}
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
    ages = [roots[start:][i : i + AGE] for i in range(0, 10 * AGE, AGE)]
    found["by_answer_position"] = np.array([(own.sum(), len(own)) for own in ages])
    return found


@torch.inference_mode()
def entropy(args: argparse.Namespace) -> dict[str, Any]:
    """Drafts of 16 tokens; q along accepted tokens is q along the text."""
    spec = rule("fixed", LENGTH).speculator()
    texts, domains = prompts(args.domains)
    module: Any = spec.drafters[0].model.module  # type: ignore[attr-defined]
    tables: dict[str, list[dict[str, Floats]]] = {}
    for text, domain in track(list(zip(texts, domains, strict=True))):
        row = spec.tokenizer(text)["input_ids"]
        own = list(spec.start(row, max_new_tokens=args.tokens, temperature=0.0))
        ids = [*row, *(token for round_ in own for token in round_.tokens)]
        logs = module(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        roots = (-(logs.exp() * logs).sum(-1)).clamp(min=0).sqrt().double().numpy()
        # q at a position depends on the tokens before it
        shifted = np.concatenate([[np.nan], roots[:-1]])
        tables.setdefault(domain, []).append(along(own, shifted, len(row)))
    tables["all"] = [one for found in list(tables.values()) for one in found]
    found = {
        domain: {key: column_means(np.array([one[key] for one in own])) for key in own[0]}
        for domain, own in tables.items()
    }

    def draw(axes: Any, domain: str) -> None:
        for key, label, colour in (
            ("accepted", "√entropy, accepted tokens", COLOURS[0]),
            ("survivors", f"√entropy, drafts with {SURVIVED} or more accepted", COLOURS[1]),
            ("acceptance", "acceptance, once reached", COLOURS[2]),
        ):
            values = [np.array(found[domain][key][k], float) for k in ("mean", "low", "high")]
            xs = np.arange(1, len(values[0]) + 1)
            band(axes, xs, (values[0], values[1], values[2]), colour, label=label)
        axes.set(ylim=(0, 2.3), xticks=[1, 4, 8, 12, 16], xlabel="position in the draft")

    draw_grid({domain: domain for domain in found}, draw, args.out)
    return {"entropy": found}


def spearman(a: Floats, b: Floats) -> Floats:
    """Rank correlation along the last axis; ties share their rank."""

    def ranks(values: Floats) -> Floats:
        mine, theirs = values[..., :, np.newaxis], values[..., np.newaxis, :]
        found: Floats = (mine > theirs).sum(-1) + 0.5 * (mine == theirs).sum(-1)
        return found - values.shape[-1] / 2

    x, y = ranks(a), ranks(b)
    found: Floats = (x * y).sum(-1) / np.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return found


def judge(speed: Floats, alone: Floats, bandit: Floats) -> dict[str, Any]:
    """Rank correlation of speed with the arms' values, and with those of the rules alone.

    speed: [prompts, rules, 2] tokens and seconds; the others: blend (sum, num).
    """
    picks = np.random.default_rng(0).integers(0, len(speed), (NUM_RESAMPLES, len(speed)))

    def rate(sums: Floats) -> tuple[Floats, Floats]:
        drawn = sums[picks].sum(1)
        return sums.sum(0)[:, 0] / sums.sum(0)[:, 1], drawn[..., 0] / np.maximum(drawn[..., 1], 1)

    (fast, fast_drawn), found = rate(speed), dict[str, Any]()
    for name, sums in (("arms", bandit), ("alone", alone)):
        value, drawn = rate(sums)
        low, high = np.quantile(spearman(fast_drawn, drawn), [0.025, 0.975])
        found[name] = {
            "values": [round(float(v), 4) for v in value],
            "spearman": [round(float(x), 2) for x in (spearman(fast, value), low, high)],
        }
    return {"tok_per_s": [round(float(v), 1) for v in fast], **found}


def arms(args: argparse.Namespace) -> dict[str, Any]:
    """TapOut's UCB1 with a memory for each domain, and each rule as a fixed plan."""
    texts, domains = prompts(args.domains)
    options, folder = settings(args)
    fixed = [
        remembered(
            folder / f"{n}.json", functools.partial(play, rule(n), texts, PRICES["zoo"], options)
        )
        for n in TABLE_1
    ]
    found: dict[str, Any] = {}
    for domain in track([*dict.fromkeys(domains), "all"]):
        at = [i for i, d in enumerate(domains) if domain in {d, "all"}]
        bandit = play(rules_bandit(), [texts[i] for i in at], PRICES["zoo"], options)
        values = np.array([[p.blend.get(r, (0, 0.0))[::-1] for r in TABLE_1] for p in bandit])
        alone = [[own[i].blend[r][::-1] for i in at] for r, own in zip(TABLE_1, fixed, strict=True)]
        found[domain] = {"rounds": values[..., 1].sum(0).astype(int).tolist()}
        for price, costs in PRICES.items():
            speed = [[(own[i].emitted, own[i].seconds(*costs)) for i in at] for own in fixed]
            speeds, blends = (np.array(side).swapaxes(0, 1) for side in (speed, alone))
            found[domain][price] = judge(speeds, blends, values)
    show({d: {p: row[p]["arms"]["spearman"] for p in PRICES} for d, row in found.items()})

    def draw(axes: Any, domain: str) -> None:
        """Speed as a fixed plan; the bandit's final value (full), the rule's own (hollow)."""
        own = found[domain]["zoo"]
        values = zip(own["arms"]["values"], own["alone"]["values"], strict=True)
        plots = zip(TABLE_1, own["tok_per_s"], values, COLOURS, strict=True)
        for name, x, (y, alone), colour in plots:
            axes.scatter([x], [y], color=colour, label=name, s=40)
            axes.scatter([x], [alone], facecolors="none", edgecolors=colour, s=40)
        axes.margins(0.15)
        axes.locator_params(axis="x", nbins=4)
        axes.set(xlabel="tokens/s as a fixed plan", ylabel="blend")

    spans = {d: "{:+.1f} ({:+.1f} to {:+.1f})".format(*row["zoo"]["arms"]["spearman"])
             for d, row in found.items()}  # fmt: skip
    draw_grid({domain: f"{domain}: {text}" for domain, text in spans.items()}, draw, args.out)
    return {"rules": TABLE_1, "arms": found}


def draw_grid(titles: dict[str, str], draw: Callable[[Any, str], None], out: str | None) -> None:
    """A panel for each name, in two rows with one legend below; a PNG next to the JSON."""
    if out is None:
        return
    figure, grid = panels(len(titles), -(-len(titles) // 2), 3.1, 3.0)
    for axes, (name, title) in zip(grid, titles.items(), strict=True):
        draw(axes, name)
        dress(axes, title=title)
    handles = grid[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=5, frameon=False)
    figure.savefig(Path(out).with_suffix(".png"), metadata={"Software": None})


if __name__ == "__main__":
    parts = {"table": table, "entropy": entropy, "arms": arms}
    run(
        __doc__, parts, work=".", temperature=0.0, domains=8, tokens=160,
        more={"action": "store_true", "help": "tuned rules and variants, too"},
    )  # fmt: skip
