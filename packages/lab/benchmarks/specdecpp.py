"""SpecDec++ on the zoo: heads, and what they gain in expectation; ``draftwise sweep`` for the rest.

The drafter is the generalist. Heads are trained on prompts of four domains (sql, translate, edit,
prose); the other two, python and math, are out of domain, as HumanEval and GSM8K are in the paper.
All measurements use held-out prompts, sampled at temperature 1 unless noted.

``expected``: from random positions of the target's answers the drafter continues for 16 tokens.
min(1, p/q) of each token gives the expected number of emitted tokens of a draft of n tokens, so
heads, thresholds and lengths differ only by where they stop; seconds are those of forwards measured
here. Each head is shown at its best threshold of 49, which favours all heads equally; positions are
random, not the starts of rounds.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shared.compare import span
from shared.script import run, show, track

from draftwise import zoo
from draftwise.drafters.lm import LMDrafter
from draftwise.nn.load import load_model
from draftwise.types import Costs
from draftwise_lab.train import head as training
from draftwise_lab.train.data import Text
from draftwise_lab.train.speedup import MAX_LENGTH, measure_costs
from draftwise_lab.zoo.corpus import Answers, load_tokenizer

DOMAINS = {
    "in domain": ("sql", "translate", "edit", "prose"), "out of domain": ("python", "math"),
}  # fmt: skip
LENGTHS = (1, 2, 3, 4, 6, 8, 10, 12, 14)
DEPTHS, WEIGHTS = (0, 1, 2, 3, 4), (1.0, 3.0, 6.0, 12.0)
THRESHOLDS = np.linspace(0.02, 0.98, 49)
"""Thresholds of ``expected``."""
BASE = "sampled-D3-w6-s0"
Rounds = tuple[np.ndarray, np.ndarray]
"""[n] expected tokens and seconds of a round at each position."""


class Scene:
    def __init__(self, args: argparse.Namespace) -> None:
        self.work = Path(args.work)
        self.tokenizer = load_tokenizer(zoo.target_path())
        self.target = load_model(str(zoo.target_path()))
        self.answers = Answers(self.target.module, self.tokenizer, self.work)
        home = zoo.drafter_paths()["generalist"]
        self.drafter = LMDrafter("generalist", load_model(str(home)), self.target, home)

    def judged(self) -> tuple[training.Setting, training.Judged]:
        """Drafts along the target's answers to prompts of the four domains."""
        setting = training.Setting(self.target.module, self.drafter.model.module)
        texts = [self.answers.for_stops(domain) for domain in DOMAINS["in domain"]]
        rows = [text for row in zip(*texts, strict=True) for text in row]
        return setting, training.judge_texts(setting, rows, self.work / "specdecpp" / "judged")

    def test_texts(self) -> dict[str, list[Text]]:
        """The target's answers to held-out prompts, in domain and out of domain."""
        return {
            name: [text for domain in domains for text in self.answers.heldout(domain)]
            for name, domains in DOMAINS.items()
        }


def folder_of(work: Path, head: training.HeadOptions) -> Path:
    kind = "tied" if head.tied else head.label
    return work / "specdecpp" / f"{kind}-D{head.num_layers}-w{head.w_rej:g}-s{head.seed}"


def variants() -> list[training.HeadOptions]:
    """The paper's grid; the other label and tied layers, each with seeds to estimate noise."""
    one = training.HeadOptions
    grid = [one(depth, w, "sampled") for depth in DEPTHS for w in WEIGHTS]
    grid += [one(d, w, "sampled", seed=1) for d, w in ((2, 6.0), (3, 6.0), (4, 6.0), (3, 1.0))]
    grid += [one(3, w, "analytic", seed=seed) for w in (1.0, 6.0) for seed in (0, 1)]
    pairs = itertools.product((2, 3, 4), (0, 1))
    return grid + [one(depth, 6.0, "sampled", tied=True, seed=seed) for depth, seed in pairs]


def heads(args: argparse.Namespace) -> dict[str, Any]:
    """Train every head; measure how well each predicts drafts along answers to held-out prompts."""
    scene = Scene(args)
    setting, judged = scene.judged()
    tests, found, rows = {}, dict[str, Any](), dict[str, Any]()
    for name, texts in scene.test_texts().items():
        folder = scene.work / "specdecpp" / "judged" / name.replace(" ", "-")
        some = training.label_all(replace(setting, temperature=1.0, seed=1), texts, folder)
        chains = training.draft_chains(setting, texts, num_chains=512)
        tests[name] = training.Judged(judged.taught, some, chains)
    for variant in track(variants()):
        folder = folder_of(scene.work, variant)
        head = training.train_head(judged.taught, variant)
        training.save(head, folder, {"w_rej": variant.w_rej, "label": variant.label})
        found[folder.name] = own = {
            name: training.measure_head(test, head, variant.w_rej).numbers
            for name, test in tests.items()
        }
        pairs = itertools.product(own, ("kl", "kl_without_weight", "ece", "ece_without_weight"))
        rows[folder.name] = {f"{key}, {name}": own[name][key] for name, key in pairs}
    show(rows)
    return {"heads": found}


class Places:
    """Drafts, and the gain and cost of drafting n tokens at each position."""

    def __init__(self, chains: training.LabelledChains, costs: Costs) -> None:
        self.hidden = chains.hidden
        alive = chains.truth.double().numpy().cumprod(1)
        self._emitted = 1 + np.concatenate([np.zeros((len(alive), 1)), alive.cumsum(1)], axis=1)
        (self._draft_s,) = costs.draft_s.values()
        self._seconds = costs.target_s + self._draft_s * np.arange(MAX_LENGTH + 1)

    def play(self, lengths: np.ndarray, in_vain: Any = 0.0) -> Rounds:
        seconds = self._seconds[lengths] + self._draft_s * in_vain
        return self._emitted[np.arange(len(lengths)), lengths], seconds

    def fixed(self, length: int) -> Rounds:
        return self.play(np.full(len(self.hidden), length))

    def head(self, folder: Path, lag: bool) -> tuple[Rounds, float, float]:
        """A head's result at its best threshold, the threshold, and the mean length there."""
        with torch.inference_mode():
            odds = training.load(folder).eval()(self.hidden.flatten(0, 1))
        odds = odds.view(self.hidden.shape[:2])
        doubt = 1 - (0.5 + 0.5 * np.tanh(0.5 * odds.double().numpy())).cumprod(1)
        found = []
        for h in THRESHOLDS.tolist():
            stops = doubt > h
            lengths = np.where(stops.any(1), stops.argmax(1) + 1 + lag, MAX_LENGTH)
            lengths = np.minimum(lengths, MAX_LENGTH)
            rounds = self.play(lengths, (lengths < MAX_LENGTH) & (not lag))
            found.append((rounds, h, float(lengths.mean())))
        return max(found, key=lambda one: rate(one[0]))


def rate(found: Rounds) -> float:
    return float(found[0].sum() / found[1].sum())


def expected(args: argparse.Namespace) -> dict[str, Any]:
    """Lengths and heads relative to the best length, and heads relative to the paper's head."""
    scene = Scene(args)
    target, drafter = scene.target, scene.drafter.model
    costs = measure_costs(target, drafter)
    setting = training.Setting(target.module, drafter.module)
    folders, found = sorted((scene.work / "specdecpp").glob("*-D*-w*")), {}
    for name, texts in scene.test_texts().items():
        chains = training.draft_chains(setting, texts, length=MAX_LENGTH, num_chains=args.places)
        places = Places(chains, costs)
        fixed = {f"K={length}": places.fixed(length) for length in LENGTHS}
        best = max(fixed, key=lambda n: rate(fixed[n]))
        own = {f"{f.name}{', lag' * lag}": places.head(f, lag) for f in folders for lag in (0, 1)}
        rows: dict[str, Any] = {
            n: {"tok_per_s": rate(f), "over_best_fixed": span(*f, *fixed[best])}
            for n, f in fixed.items()
        }
        for n, (f, h, length) in own.items():
            rows[n] = {
                "tok_per_s": rate(f),
                "h": h,
                "mean_length": length,
                "over_best_fixed": span(*f, *fixed[best]),
                "over_base": span(*f, *own[BASE][0]),
            }
        found[name] = {"best_fixed": best, "base": BASE, "rows": rows}
        show(rows, name)
    seconds = {"target_s": costs.target_s.tolist(), "draft_s": costs.draft_s[drafter.name]}
    return {"places": args.places, "costs": seconds, "panels": found}


if __name__ == "__main__":
    run(
        __doc__, {"heads": heads, "expected": expected}, places=1200,
        work={"required": True, "help": "folder of heads and answers"},
    )  # fmt: skip
