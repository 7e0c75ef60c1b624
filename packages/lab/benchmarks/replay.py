"""Many requests, one after another: what they teach each other, replayed from recorded answers.

    python -m benchmarks record --stream test --prompts 58 --tokens 120 --out requests.npz
    python -m benchmarks replay --trace requests.npz --part memory
    python -m benchmarks replay --trace requests.npz --part memory --tokens 24
    python -m benchmarks replay --trace requests.npz --part many        # 32 and 64 drafters
    python -m benchmarks replay --trace requests.npz --part recovery    # wrong, then right

The complete default policy on the simulator's requests, domains mixed at random, at the costs of
``fixed_costs.py``; reading prompts with the target is included. Scope ``request``: each learns
anew; ``auto``: it has the memory.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from shared.results import save
from simulator_agrees import RETRIEVAL, TARGET_MS, table

from draftwise.bench.paired import ratio
from draftwise.policies.goodput.experience import WINDOW, Experience
from draftwise.policies.goodput.policy import Goodput
from draftwise.types import PLAIN, Decision, Evidence, Feedback, Plan
from draftwise_lab.sim.environments.recorded import Recorded
from draftwise_lab.sim.play import first_impressions
from draftwise_lab.sim.request import SimulatedRequest
from draftwise_lab.sim.text import Text, Track, runs_of

LONGEST = 16
BROKEN = 100
"""Requests for which a drafter of the part ``recovery`` fails."""
REQUEST, AUTO = "request", "auto"


@dataclass(frozen=True, slots=True)
class Recording:
    """One request: its text as the simulator sees it, and its tokens."""

    text: Text
    domain: str
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class Answered:
    """Seconds, reading included, rounds, and how often each drafter played."""

    seconds: float
    rounds: int
    played: Mapping[str, int]


def read(path: str, tokens: int, seed: int) -> list[Recording]:
    """The requests of a file, in random order."""
    world, stored = Recorded(path, table(LONGEST)), np.load(path)
    kinds = [f"{f}@{t:g}" for f, t in zip(stored["fam"], stored["temp"], strict=True)]
    found = []
    for domain in world.domains:
        places = np.flatnonzero(np.array(kinds) == domain)
        for place, text in zip(places, world.texts(domain, 0, tokens, LONGEST), strict=True):
            own = stored["tokens"][place].tolist()
            prompt = [token for token in own[:WINDOW] if token >= 0]
            found.append(Recording(text, domain.partition("@")[0], prompt, own[WINDOW:]))
    return [found[i] for i in np.random.default_rng(seed).permutation(len(found))]


def plans_of(drafters: Sequence[str]) -> list[Plan]:
    """All lengths of all drafters, and none."""
    return [PLAIN, *(Plan(name, k) for name in drafters for k in range(1, LONGEST + 1))]


def answer(one: Recording, plans: Sequence[Plan], memory: Experience | None) -> Answered:
    """A request as the engine plays it."""
    request = SimulatedRequest(one.text, plans, table(LONGEST), {})
    policy, nothing = Goodput(len(plans), plans), np.zeros(len(plans))
    played: dict[str, int] = {}

    def learn(decision: Decision, evidence: Evidence) -> None:
        policy.learn(decision, Feedback(nothing, nothing.astype(bool), evidence))

    if memory is not None:
        policy.recall(memory, one.prompt)
    for evidence in first_impressions(request, policy, everyone=False):
        learn(Decision(0, 1.0, 0), evidence)
    while not request.is_done:
        decision, start = policy.choose(), request.position
        looks = policy.curious()
        evidence = request.play(plans[decision.plan], mixer=policy.mixer, looks=looks)
        if evidence.num_drafted:
            played[evidence.plan.drafter] = played.get(evidence.plan.drafter, 0) + 1
        learn(decision, replace(evidence, tokens=one.answer[start : request.position]))
    reading_s = 1e-3 * (TARGET_MS[0] + TARGET_MS[1] * (one.text.prompt_length - 1))
    return Answered(request.seconds + reading_s, request.num_rounds, played)


def play(
    setting: str,
    requests: Sequence[Recording],
    drafters: Sequence[str],
    change: Callable[[int, Recording], Recording] | None = None,
) -> list[Answered]:
    """All requests in turn; change: of the request with this number, before it is played."""
    plans = plans_of(drafters)
    memory = Goodput(len(plans), plans).new_memory() if setting == AUTO else None
    found = []
    for number, one in enumerate(track(requests, setting, console=Console(stderr=True))):
        own = one if change is None else change(number, one)
        found.append(answer(own, plans, memory))
    return found


def over(own: Sequence[Answered], base: Sequence[Answered], kept: Any = slice(None)) -> list[float]:
    """How much faster, and the 95% interval."""
    seconds = [np.array([one.seconds for one in found])[kept] for found in (own, base)]
    tokens = np.ones(len(seconds[0]))
    found = ratio(tokens, seconds[0], tokens, seconds[1])
    return [round(value, 3) for value in (found.value, found.low, found.high)]


def part_memory(requests: Sequence[Recording], drafters: Sequence[str]) -> dict[str, Any]:
    """Scopes, and the best pool of each domain in hindsight."""
    labels = np.array([one.domain for one in requests])
    found = {setting: play(setting, requests, drafters) for setting in (REQUEST, AUTO)}
    found["best pool"], pools = best_pools(requests, drafters, found[AUTO])
    plain = [_plain(one) for one in requests]
    rows = {}
    for setting, own in found.items():
        rows[setting] = {
            "over_plain": over(own, plain),
            "over_request": over(own, found[REQUEST]),
            "of_best_pool": over(own, found["best pool"]),
            "domains_over_request": _by_domain(own, found[REQUEST], labels),
            "domains_of_best_pool": _by_domain(own, found["best pool"], labels),
            "rounds": sum(one.rounds for one in own),
        }
    return {"settings": rows, "best_pools": pools}


def best_pools(
    requests: Sequence[Recording], drafters: Sequence[str], whole: Sequence[Answered]
) -> tuple[list[Answered], dict[str, list[str]]]:
    """By domain the fastest of: all, one model and retrieval, two of these and the generalist."""
    models = [name for name in drafters if name != RETRIEVAL]
    pools = [[RETRIEVAL], *([name, RETRIEVAL] for name in models)]
    pools += [[name, "generalist", RETRIEVAL] for name in models if name != "generalist"]
    best, names = list(whole), {}
    for domain in sorted({one.domain for one in requests}):
        places = [i for i, one in enumerate(requests) if one.domain == domain]
        own = [requests[i] for i in places]
        tried = [(list(drafters), [whole[i] for i in places])]
        tried += [(pool, play(AUTO, own, pool)) for pool in pools]
        names[domain], chosen = min(tried, key=lambda pair: sum(a.seconds for a in pair[1]))
        for place, one in zip(places, chosen, strict=True):
            best[place] = one
    return best, names


def part_many(requests: Sequence[Recording], drafters: Sequence[str]) -> dict[str, Any]:
    """Pools of 32 and 64: the zoo's, and copies of them that are damaged at random."""
    alone, rows = play(AUTO, requests, drafters), {}
    models = [name for name in drafters if name != RETRIEVAL]
    for num in (32, 64):
        rng = np.random.default_rng(num)
        copies = {
            f"copy{i}": (str(rng.choice(models)), float(rng.uniform(0.3, 1.0)))
            for i in range(num - len(drafters))
        }

        def add(number: int, one: Recording, copies: Any = copies) -> Recording:
            rng = np.random.default_rng(number)
            more = {n: damaged(one.text.tracks[s], d, rng) for n, (s, d) in copies.items()}
            return replace(one, text=replace(one.text, tracks={**one.text.tracks, **more}))

        for setting in (REQUEST, AUTO):
            own = play(setting, requests, [*drafters, *copies], add)
            thirds = np.array_split(np.arange(len(requests)), 3)
            rows[f"{num}, {setting}"] = {
                "of_the_pool_without_copies": over(own, alone),
                "by_thirds": [over(own, alone, third)[0] for third in thirds],
            }
    return {"damage": "tokens replaced by wrong ones: 30% to 100%, by copy", "pools": rows}


def damaged(track: Track, share: float, rng: np.random.Generator) -> Track:
    """A drafter of which this share of tokens is wrong."""
    kept = rng.random(len(track.alphas)) >= share
    ratios = track.ratios * kept
    return replace(
        track, alphas=track.alphas * kept, ratios=ratios, runs=runs_of(ratios > 0.5),
        prompt=track.prompt * (rng.random(len(track.prompt)) >= share),
    )  # fmt: skip


def part_recovery(requests: Sequence[Recording], drafters: Sequence[str]) -> dict[str, Any]:
    """Requests of its own domain until a specialist plays that failed in all before."""
    rows = {}
    for domain in sorted({one.domain for one in requests} & set(drafters)):

        def fail(number: int, one: Recording, name: str = domain) -> Recording:
            if number >= BROKEN:
                return one
            broken = damaged(one.text.tracks[name], 1.0, np.random.default_rng(0))
            return replace(one, text=replace(one.text, tracks={**one.text.tracks, name: broken}))

        own, always = play(AUTO, requests, drafters, fail), play(AUTO, requests, drafters)
        later = [i for i in range(BROKEN, len(requests)) if requests[i].domain == domain]
        shares = [[run[i].played.get(domain, 0) > 0 for i in later] for run in (own, always)]
        rows[domain] = {
            "requests_until_played": shares[0].index(True) + 1 if any(shares[0]) else None,
            "had_it_never_failed": shares[1].index(True) + 1 if any(shares[1]) else None,
            "played_in": [float(np.mean(share)) for share in shares],
            "speed_of_never_failed": over(own, always, later),
        }
    return {"requests_broken": BROKEN, "specialists": rows}


def _by_domain(own: Sequence[Answered], base: Sequence[Answered], labels: Any) -> dict[str, float]:
    return {str(name): over(own, base, labels == name)[0] for name in np.unique(labels)}


def _plain(one: Recording) -> Answered:
    steps = 1e-3 * one.text.limit * sum(TARGET_MS)
    reading = 1e-3 * (TARGET_MS[0] + TARGET_MS[1] * (one.text.prompt_length - 1))
    return Answered(steps + reading, one.text.limit, {})


PARTS = {"memory": part_memory, "many": part_many, "recovery": part_recovery}


def main() -> None:
    """Read, replay, compare."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", required=True, help="greedy answers of ``record.py``")
    parser.add_argument("--part", choices=list(PARTS), default="memory")
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--requests", type=int, help="only so many")
    parser.add_argument("--seed", type=int, default=0, help="of the order of requests")
    parser.add_argument("--out", help="JSON file for the results")
    options = parser.parse_args()
    requests = read(options.trace, options.tokens, options.seed)[: options.requests]
    drafters = list(requests[0].text.tracks)
    found = PARTS[options.part](requests, drafters)
    save(options.out, {"requests": len(requests), "tokens": options.tokens, **found})


if __name__ == "__main__":
    main()
