"""Where to stop: every rule of TapOut's table 1 as a fixed plan, and TapOut choosing among them.

python benchmarks/stopping.py --drafter generalist                   # rules, and TapOut over them
python benchmarks/stopping.py --drafter generalist --part settings   # what else TapOut could be
python benchmarks/stopping.py --drafter generalist --part means      # blend: rules played, and seen
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from paired import Method, Timing, measure, report, save
from rich.console import Console
from rich.table import Table

from draftwise import Speculator, zoo

TABLE_1 = ("max-confidence", "svip", "adaedl", "svip-difference", "logit-margin")
GRID = ("max-confidence:0.6", "max-confidence:0.4", "svip:0.9", "svip:1.2", "adaedl:0.5")
"""Thresholds beside the paper's own: what tuning could have found."""
TAPOUT = {
    "TapOut, UCB1, blend": {"policy": "ucb1:beta=1", "reward": "blend"},
    "TapOut, UCB1, simple": {"policy": "ucb1:beta=1", "reward": "simple"},
    "TapOut, UCB-Tuned, blend": {"policy": "ucb-tuned", "reward": "blend"},
    "TapOut, Thompson, blend": {"policy": "thompson-gaussian", "reward": "blend"},
}
TOKEN_LEVEL = {
    "TapOut token, UCB1": "tapout-token:bandit=ucb1:beta=1",
    "TapOut token, Thompson": "tapout-token:bandit=thompson-bernoulli",
}


def settings(length: int) -> dict[str, dict[str, Any]]:
    """By name, what ``Speculator.from_pretrained`` is given beyond target and drafter."""
    one: dict[str, Any] = {"preset": "tapout", "policy": "fixed:0"}
    found: dict[str, dict[str, Any]] = {"plain": {"preset": "plain"}}
    for fixed in (4, 6):
        found[f"length {fixed}"] = {**one, "rules": ["fixed"], "lengths": [fixed]}
    for rule in (*TABLE_1, *GRID):
        found[rule] = {**one, "rules": [rule], "lengths": [length]}
    for name, options in TAPOUT.items():
        found[name] = {"preset": "tapout", "lengths": [length], **options}
    for name, rule in TOKEN_LEVEL.items():
        found[name] = {**one, "rules": [rule], "lengths": [length]}
    return found


def variants(length: int) -> dict[str, dict[str, Any]]:
    """TapOut with shorter drafts and more feedback, beside two rules and this project's own."""
    one: dict[str, Any] = {"preset": "tapout", "policy": "fixed:0", "lengths": [length]}
    found: dict[str, dict[str, Any]] = {"plain": {"preset": "plain"}}
    for rule in ("max-confidence:0.4", "adaedl:0.5"):
        found[rule] = {**one, "rules": [rule]}
    for cap in (length, 16):
        for feedback in ("bandit", "prefix:rules=true"):
            options = {"preset": "tapout", "lengths": [cap], "feedback": feedback}
            found[f"TapOut, {cap}, {feedback}"] = options
    found["draftwise"] = {"preset": "draftwise"}
    return found


class Counted:
    """One method; counts what it drafted, kept and emitted."""

    def __init__(self, drafter: str, options: dict[str, Any], scope: str, tokens: int) -> None:
        drafters = [] if options["preset"] == "plain" else [f"zoo:{drafter}"]
        self._spec = Speculator.from_pretrained("zoo", drafters, scope=scope, **options)
        self._tokens = tokens
        self.rounds = self.drafted = self.accepted = 0

    def __call__(self, prompt: list[int]) -> list[int]:
        result = self._spec.generate(prompt, max_new_tokens=self._tokens, ignore_eos=True)
        self.rounds += result.stats.num_rounds
        self.drafted += result.stats.num_drafted
        self.accepted += result.stats.num_accepted
        return list(result.tokens)

    @property
    def counts(self) -> dict[str, float]:
        """m and % as the paper has them: accepted tokens a round, and accepted over drafted."""
        return {"m": self.accepted / self.rounds, "rate": self.accepted / max(1, self.drafted)}


def by_domain(timing: Timing, domains: list[str]) -> dict[str, dict[str, Any]]:
    """Times plain with its interval, by method and domain; ``all`` are all prompts together."""
    rows: dict[str, dict[str, Any]] = {}
    for name in timing.names:
        rows[name] = {}
        for domain in [*dict.fromkeys(domains), "all"]:
            chosen = [i for i, d in enumerate(domains) if domain in {d, "all"}]
            part = Timing(
                timing.names, timing.seconds[:, chosen], timing.num_tokens[chosen], timing.identical
            )
            rows[name][domain] = [round(value, 3) for value in part.ratio(name, "plain")]
    return rows


def against(timing: Timing, base: str) -> dict[str, list[float]]:
    """Each method's speed over one of them, with intervals."""
    return {n: [round(v, 3) for v in timing.ratio(n, base)] for n in timing.names}


def show(rows: dict[str, dict[str, Any]], methods: dict[str, Counted]) -> None:
    """One line a method: speed by domain, all with its interval, and the paper's m and %."""
    domains = list(next(iter(rows.values())))
    table = Table("method", *domains, "95%", "m", "%")
    for name, found in rows.items():
        value, low, high = found["all"]
        counts = methods[name].counts
        table.add_row(
            name, *(f"{found[d][0]:.2f}" for d in domains[:-1]), f"{value:.2f}",
            f"{low:.2f}-{high:.2f}", f"{counts['m']:.2f}", f"{counts['rate']:.2f}",
        )  # fmt: skip
    Console(width=160).print(table)


def means(args: argparse.Namespace) -> dict[str, Any]:
    """Mean blend of each rule in the rounds it played, and in all that a feedback showed it in."""
    found: dict[str, Any] = {}
    table = Table("policy, feedback", "rule", "rounds", "mean played", "mean seen", "drafted")
    texts = [text for group in zoo.prompts().values() for text in group[: args.prompts]]
    for policy, feedback in (("ucb1:beta=1", "bandit"), ("random", "prefix:rules=true")):
        spec = Speculator.from_pretrained(
            "zoo", [f"zoo:{args.drafter}"], preset="tapout", policy=policy, feedback=feedback,
            lengths=[args.length], scope="session",
        )  # fmt: skip
        rounds = [
            (round_.plan.rule, round_.num_drafted, round_.num_accepted, round_.estimates)
            for text in texts
            for round_ in spec.start(text, max_new_tokens=args.tokens, ignore_eos=True)
        ]
        for index, plan in enumerate(spec.plans):
            own = [(n, a) for rule, n, a, _ in rounds if rule == plan.rule]
            blends = [a / 2 / args.length + a / 2 / max(n, 1) for n, a in own]
            num = max(len(own), 1)
            row = [len(own), sum(blends) / num, rounds[-1][3][index], sum(n for n, _ in own) / num]
            found[f"{policy}, {feedback}, {plan.rule}"] = [round(float(x), 3) for x in row]
            table.add_row(f"{policy}, {feedback}", plan.rule, *(f"{x:.3g}" for x in row))
    Console().print(table)
    return {"means": found}


def main() -> None:
    """Time all methods on the zoo's prompts and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--drafter", default="generalist", help="a drafter of the zoo")
    parser.add_argument("--part", default="rules", choices=["rules", "settings", "means"])
    parser.add_argument("--length", type=int, default=128, help="the longest draft")
    parser.add_argument("--prompts", type=int, default=2, help="of each domain")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scope", default="session", choices=["session", "request"])
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.part == "means":
        save(args.out, means(args))
        return
    methods = {
        name: Counted(args.drafter, options, args.scope, args.tokens)
        for name, options in (settings if args.part == "rules" else variants)(args.length).items()
    }
    encode: Callable[[str], Any] = lambda text: methods["plain"]._spec.tokenizer(text)["input_ids"]  # noqa: E731
    chosen = {domain: found[: args.prompts] for domain, found in zoo.prompts().items()}
    domains = [domain for domain, found in chosen.items() for _ in found]
    prompts = [encode(text) for found in chosen.values() for text in found]
    timed: dict[str, Method] = dict(methods)
    timing = measure(timed, prompts, args.repeats, base="plain")
    rows = by_domain(timing, domains)
    show(rows, methods)
    summary = report(timing, "plain", f"stop rules, drafter {args.drafter}, all prompts")
    tuned = [name for name in methods if name in {*TABLE_1, *GRID}]
    best = max(tuned, key=lambda name: timing.tok_per_s(name))
    save(args.out, {
        "stopping": summary, "by_domain": rows, "counts": {n: m.counts for n, m in methods.items()},
        "best_rule": best, "over_best_rule": against(timing, best),
        "prompts": len(prompts),
    })  # fmt: skip


if __name__ == "__main__":
    main()
