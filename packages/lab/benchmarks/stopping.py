"""Where to stop: fixed lengths, TapOut, SpecDec++ and draftwise's own rule, at given costs.

One drafter of the zoo, and all held-out prompts of a run in one order. Answers are really
generated; forwards are counted and priced afterwards (``PRICES``), so that a run is reproducible.
Methods that choose by price run once for each price, on a clock that forwards advance. FOLDER keeps
finished answers, so that an interrupted run can be resumed. Figures are PNGs next to the JSON;
intervals are over prompts, those of ``runs`` over runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared.claims import half_interval
from shared.clock import Cost2, put_on_clock
from shared.compare import span
from shared.script import run, show, track

from draftwise import Speculator, zoo
from draftwise.engine.records import Round
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
TOGETHER = 14
"""Prompts in a batch, where none learns from another."""
BASES = ("plain", "best length", "best rule", UCB, HEAD, LAGGING, "draftwise")
LENGTH, SURVIVED, AGE = 16, 8, 16
"""Of ``entropy``: tokens of a draft; accepted tokens of drafts followed that far; answer bins."""
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class Way:
    """Options of ``Speculator.from_pretrained`` beyond the target and the drafter.

    shares: all prompts teach one policy, so they run in sequence. is_priced: its choices depend on
    the costs of forwards.
    """

    options: dict[str, Any]
    shares: bool = False
    is_priced: bool = False

    @property
    def reads_in_vain(self) -> bool:
        """Whether its rule judges a token only after reading it."""
        rule = str(self.options.get("rules", [""])[0])
        return rule.startswith("head") and "lag=true" not in rule

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
    """One answer: forwards and tokens of target and drafter, and its result.

    blend: number of rounds and sum of TapOut's reward, by rule. clock_s: seconds on the given
    clock.
    """

    target_forwards: int
    target_tokens: int
    draft_forwards: int
    draft_tokens: int
    emitted: int
    rounds: int
    drafted: int
    accepted: int
    blend: dict[str, tuple[int, float]]
    clock_s: float = 0.0

    def seconds(self, target: Cost2, drafter: Cost2) -> float:
        """At these prices; on the clock for methods that choose by price."""
        if self.clock_s:
            return self.clock_s
        of_target = target[0] * self.target_forwards + target[1] * self.target_tokens
        of_drafter = drafter[0] * self.draft_forwards + drafter[1] * self.draft_tokens
        return 1e-3 * (of_target + of_drafter)


def count(way: Way, rounds: Sequence[Round], num_prompt: int, budget: int) -> Played:
    """Forwards and tokens of both models in the rounds of one request.

    A draft of n tokens takes n forwards, the first of which reads the unread tokens; a rule that
    judges a token after reading it, and then stops, takes one more.
    """
    forwards, fed, unread, left = 0, 0, num_prompt, budget
    blend: dict[str, tuple[int, float]] = {}
    for round_ in rounds:
        n, accepted = round_.num_drafted, round_.num_accepted
        vain = int(way.reads_in_vain and 0 < n < min(round_.plan.length, left - 1))
        if n:
            forwards, fed = forwards + n + vain, fed + unread + n - 1 + vain
            unread = 0
            num, total = blend.get(round_.plan.rule, (0, 0.0))
            blend[round_.plan.rule] = (num + 1, total + accepted / 2 / 128 + accepted / 2 / n)
        unread += round_.num_emitted - min(max(n - 1, 0) + vain, accepted)
        left -= round_.num_emitted
    drafted = sum(round_.num_drafted for round_ in rounds)
    return Played(
        len(rounds) + 1, num_prompt - 1 + drafted + len(rounds), forwards, fed,
        budget - left, len(rounds), drafted, sum(r.num_accepted for r in rounds), blend,
    )  # fmt: skip


def prompts(number: int) -> tuple[list[str], list[str]]:
    """Held-out prompts, domain after domain, and the domain of each."""
    chosen = [(d, text) for d, texts in zoo.prompts().items() for text in texts[:number]]
    return [text for _, text in chosen], [domain for domain, _ in chosen]


def play(
    way: Way, texts: Sequence[str], prices: tuple[Cost2, Cost2] | None, options: dict[str, Any]
) -> list[Played]:
    """Every prompt with its own seed; alone where prompts teach each other or a clock runs."""
    spec = way.speculator()
    ids = [spec.tokenizer(text)["input_ids"] for text in texts]
    now = None if prices is None else put_on_clock(spec, *prices)
    size = 1 if way.shares or now is not None else TOGETHER
    found: list[Played] = []
    for first in range(0, len(ids), size):
        rows, before = ids[first : first + size], now() if now else 0.0
        rounds: list[list[Any]] = [[] for _ in rows]
        for round_ in spec.start(rows, seed=list(range(first, first + len(rows))), **options):
            rounds[round_.request].append(round_)
        found += [
            count(way, own, len(row), options["max_new_tokens"])
            for own, row in zip(rounds, rows, strict=True)
        ]
        if now is not None:
            found[-1] = dataclasses.replace(found[-1], clock_s=now() - before)
    return found


def check(name: str, way: Way, text: str, options: dict[str, Any]) -> None:
    """Raise unless the counts of one answer's rounds agree with the clock."""
    [timed] = play(way, [text], PRICES["zoo"], options)
    counted = dataclasses.replace(timed, clock_s=0.0).seconds(*PRICES["zoo"])
    if not math.isclose(counted, timed.clock_s):
        raise RuntimeError(f"{name}: forwards count {counted} s, the clock says {timed.clock_s} s")


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

            def make(name: str = name, way: Way = way, costs: Any = costs) -> list[Played]:
                if not way.is_priced:
                    check(name, way, texts[0], options)
                return play(way, texts, costs if way.is_priced else None, options)

            path = folder / f"{name}{f' @{price}' if way.is_priced else ''}.json"
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


def runs(args: argparse.Namespace) -> dict[str, Any]:
    """Bandits that prompts share, over several runs: how much of their speed is due to the order of
    prompts.

    The mean over runs of the speed relative to the best fixed length, whose speed does not depend
    on order.
    """
    texts, _ = prompts(args.domains)
    options, _ = settings(args)
    lengths, found = ("length 2", "length 4", "length 6"), dict[str, list[dict[str, float]]]()
    asked = [(n, 0) for n in lengths] + [(n, r) for r in range(args.runs) for n in (UCB, SIMPLE)]
    for name, number in track(asked):
        order = random.Random(number).sample(texts, len(texts))
        played = play((WAYS | MORE)[name], order, None, options)
        tokens = sum(one.emitted for one in played)
        speed = {p: tokens / sum(one.seconds(*c) for one in played) for p, c in PRICES.items()}
        found.setdefault(name, []).append(speed)
    best = {p: max(lengths, key=lambda name: found[name][0][p]) for p in PRICES}
    rows: dict[str, Any] = {name: {} for name in (UCB, SIMPLE)}
    for name, row in rows.items():
        for p in PRICES:
            ratios = np.array([one[p] for one in found[name]]) / found[best[p]][0][p]
            mean, half = float(ratios.mean()), half_interval(ratios)
            row[p] = [round(x, 3) for x in (mean, mean - half, mean + half)]
    show(rows, f"over {best}")
    return {"num_runs": args.runs, "costs_ms": PRICES, "best": best, "ways": rows}


def means(args: argparse.Namespace) -> dict[str, Any]:
    """Mean blend of each rule in the rounds it played, and in all rounds that showed it.

    Rules are played at random, so the rounds they play are no selection; ``prefix:rules=true``
    shows each of them also where it would have stopped another rule's draft, and those rounds are a
    selection.
    """
    spec = rules_bandit("random", feedback="prefix:rules=true").speculator()
    rounds = [
        round_
        for seed, text in enumerate(prompts(args.domains)[0])
        for round_ in spec.start(text, max_new_tokens=args.tokens, seed=seed)
    ]
    found: dict[str, Any] = {}
    for index, plan in enumerate(spec.plans):
        own = [r for r in rounds if r.plan.rule == plan.rule and r.num_drafted]
        blends = [r.num_accepted / 2 * (1 / plan.length + 1 / r.num_drafted) for r in own]
        found[plan.rule] = {
            "rounds": len(own),
            "played": round(sum(blends) / len(own), 3),
            "shown": round(float(rounds[-1].estimates[index]), 3),
            "drafted": round(sum(r.num_drafted for r in own) / len(own), 2),
        }
    show(found)
    return {"rules": found}


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
    for first in track(range(0, len(texts), TOGETHER)):
        rows = [spec.tokenizer(text)["input_ids"] for text in texts[first : first + TOGETHER]]
        rounds: list[list[Any]] = [[] for _ in rows]
        for round_ in spec.start(rows, max_new_tokens=args.tokens, temperature=0.0):
            rounds[round_.request].append(round_)
        for own, row, domain in zip(rounds, rows, domains[first:], strict=False):
            ids = [*row, *(token for round_ in own for token in round_.tokens)]
            logs = module(torch.tensor([ids])).logits[0].float().log_softmax(-1)
            roots = (-(logs.exp() * logs).sum(-1)).clamp(min=0).sqrt().double().numpy()
            shifted = np.concatenate(
                [[np.nan], roots[:-1]]
            )  # q at a position depends on the tokens before it
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
        remembered(folder / f"{n}.json", lambda n=n: play(rule(n), texts, None, options))
        for n in TABLE_1
    ]
    found: dict[str, Any] = {}
    for domain in track([*dict.fromkeys(domains), "all"]):
        at = [i for i, d in enumerate(domains) if domain in {d, "all"}]
        bandit = play(rules_bandit(), [texts[i] for i in at], None, options)
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
    parts = {"table": table, "runs": runs, "means": means, "entropy": entropy, "arms": arms}
    run(
        __doc__, parts, work=".", temperature=0.0, domains=8, tokens=160, runs=8,
        more={"action": "store_true", "help": "tuned rules and variants, too"},
    )  # fmt: skip
