"""Other programs change the prices of steps within seconds: drafts never cost more than credit."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from draftwise.controller.controller import Controller, Limits
from draftwise.controller.costs import MeasuredCostModel, Step, StepCosts
from draftwise.controller.guard import ROUNDS, SURE, Guard, Next

NUM_STEPS, NOISE = 2000, 0.03
LEAST_S = 1.0 + 0.8 * NOISE  # mean of a plain step of 1 s, with noise


class Factors(NamedTuple):
    """Of the seconds of a plain step, and of what drafts add to it."""

    plain: float = 1.0
    drafts: float = 1.0


Machine = Callable[[float], Factors]  # by the time, in plain steps
QUIET = Factors()
MACHINES: dict[str, Machine] = {
    "everything doubles": lambda t: Factors(2, 2) if t > 300 else QUIET,
    "drafts become dear": lambda t: Factors(1, 20) if t > 300 else QUIET,
    "drafts become dearer than plain steps": lambda t: Factors(2, 24) if t > 300 else QUIET,
    "drafts are dear now and then": lambda t: Factors(1, 20) if int(t / 150) % 2 else QUIET,
    "everything doubles now and then": lambda t: Factors(2, 2) if int(t / 150) % 2 else QUIET,
    "drafts become dear slowly": lambda t: Factors(1 + min(t, 1500) / 7500, 1 + min(t, 1500) / 75),
}


class Account:
    """What a run took, and what plain decoding of its tokens would have taken."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self.machine, self.rng = machine, random.Random(seed)
        self.now = self.plain_s = 0.0

    def step(self, tokens: float, extra_s: float) -> float:
        """The seconds of a step that emits so many tokens for each request."""
        factors = self.machine(self.now)
        noise = 1 + abs(self.rng.gauss(0, NOISE))
        seconds = (factors.plain + extra_s * factors.drafts) * noise
        self.now += seconds
        self.plain_s += tokens * factors.plain * LEAST_S
        return seconds

    @property
    def speed(self) -> float:
        return self.plain_s / self.now


def of_controller(machine: Machine, num: int, *, model: bool, right: float, seed: int) -> float:
    """Speed over plain decoding: texts of repeated blocks, and a head of a given accuracy."""
    account, rng = Account(machine, seed), random.Random(seed + 1)
    controller = Controller(Limits(max_draft=8, model=model))
    names = [str(index) for index in range(num)]
    texts = {name: list(range(40)) for name in names}
    for name in names:
        controller.begin(name, texts[name])
    drafts: list[list[int]] = [[] for _ in names]

    def next_tokens(text: list[int], count: int) -> list[int]:
        """Blocks of 20 tokens; every other block repeats an earlier one."""
        found: list[int] = []
        for at in range(len(text), len(text) + count):
            block, place = divmod(at, 20)
            found.append(1000 * block + place if block % 2 else 1000 * (block // 4) + place)
        return found

    for _ in range(NUM_STEPS):
        length = controller.num_to_draft
        emitted = []
        for name, draft in zip(names, drafts, strict=True):
            true = next_tokens(texts[name], len(draft) + 1)
            kept = next((i for i, t in enumerate(draft) if t != true[i]), len(draft))
            emitted.append(true[: kept + 1])
        drafted = sum(map(len, drafts))
        extra_s = 0.025 * drafted + (0.015 + 0.05 * length) * (length > 0)
        seconds = account.step(sum(map(len, emitted)) / num, extra_s)
        controller.observe(Step(num, num + drafted, seconds, length), names, emitted)
        for name, tokens in zip(names, emitted, strict=True):
            texts[name] += tokens
        offers = None
        if length:
            true_next = (next_tokens(texts[name], length) for name in names)
            offers = [[t if rng.random() < right else 500_000 for t in each] for each in true_next]
        drafts = controller.choose(names, [8] * num, offers)
        controller.work()
    return account.speed


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(
    ("num", "model", "right"), [(1, True, 0.5), (8, True, 0.5), (8, True, 0.7), (8, False, 0.0)]
)
def test_drafts_never_lose_where_prices_change(
    machine: str, num: int, model: bool, right: float
) -> None:
    speed = of_controller(MACHINES[machine], num, model=model, right=right, seed=0)
    assert speed >= 0.99
    if machine.startswith("everything doubles") and num == 1:
        assert speed > 1.2  # where plain steps slow down as much, drafts go on


def of_rounds(machine: Machine, accepted: float, draft_s: float, seed: int) -> float:
    """Speed of draftwise's own engine's guard and prices, where four tokens are drafted or none."""
    account, rng = Account(machine, seed), random.Random(seed)
    costs, guard = MeasuredCostModel({"a": draft_s}), Guard(ROUNDS)
    for number in range(NUM_STEPS):
        is_plain = guard.next_step(1, costs.is_unmeasured(1, 100)) is not Next.DRAFT
        is_plain = is_plain or guard.margin(1) > 1.0
        kept = 0
        while not is_plain and kept < 4 and rng.random() < accepted:
            kept += 1
        width = 1 if is_plain else 5
        seconds = account.step(1 + kept, (width - 1) * (0.05 + draft_s))
        plain_s = costs.observe(Step(1, width, seconds), 100 + number % 100)
        plain_s, proven_s = (seconds, seconds) if is_plain else (plain_s, costs.proven_s)
        guard.observe(1 + kept, seconds, plain_s, 1.0, proven_s, costs.confirmed)
        guard.num_idle = guard.num_idle + 1 if is_plain else 0
    return account.speed


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("accepted", [0.0, 0.5, 0.8])
def test_the_account_holds_in_rounds_too(machine: str, accepted: float) -> None:
    speed = of_rounds(MACHINES[machine], accepted, 0.05, seed=0)
    assert speed >= 0.99
    if machine.startswith("everything doubles") and accepted == 0.8:
        assert speed > 1.5


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_plain_step_confirms_the_part_of_a_rise_that_it_shows(share: float) -> None:
    costs = StepCosts()
    for number in range(100):
        costs.observe(Step(1, 1 + number % 4, 1.0 + 0.1 * (number % 4)), 100)
    for number in range(40):  # steps with drafts take twice as long
        costs.observe(Step(1, 2 + number % 3, 2.0 + 0.2 * (number % 3)), 100)
    assert costs.confirmed is None
    assert costs.proven_s == pytest.approx(1.0, rel=0.05)
    risen = costs.seconds(1, 100, 0, 0).item()
    costs.observe(Step(1, 1, 1.0 + share * (risen - 1.0)), 100)
    assert costs.confirmed == pytest.approx(share, abs=0.1)


def test_where_drafts_pay_plain_steps_are_few_and_become_fewer() -> None:
    guard, plain = Guard(ROUNDS), []
    for number in range(3000):
        is_plain = guard.next_step(1, is_unmeasured=False) is Next.PLAIN
        plain += [number] * is_plain
        guard.num_idle = 0 if not is_plain else 1
        guard.observe(1.0 if is_plain else 2.0, 1.0, 1.0)
    assert plain[:3] == pytest.approx([16, 64, 256], abs=3)
    assert len(plain) < 0.0035 * 3000


def test_a_step_rests_where_nothing_was_drafted_for_long_or_nothing_may_be() -> None:
    guard, kinds = Guard(ROUNDS), []
    for _ in range(1000):
        kinds.append(guard.next_step(1, is_unmeasured=False))
        guard.num_idle += 1
        guard.observe(1.0, 1.0, 1.0)
    assert set(kinds) == {Next.DRAFT, Next.REST}
    assert kinds[:64].count(Next.REST) == 0
    assert kinds[-80:].count(Next.DRAFT) == 10
    guard.num_idle = 1
    guard.observe(1.0, 1.0 + ROUNDS.credit + 0.9 * ROUNDS.overdraft, 1.0)
    assert guard.margin(1) == SURE, "an empty account, which only sure drafts may overdraw"
    assert [guard.next_step(1, is_unmeasured=False) for _ in range(16)] == [Next.DRAFT] * 16
    guard.num_idle = 8  # and none came
    assert [guard.next_step(1, is_unmeasured=False) for _ in range(16)].count(Next.DRAFT) == 2
    guard.num_idle = 1
    guard.observe(1.0, 1.0 + 0.2 * ROUNDS.overdraft, 1.0)
    assert guard.margin(1) == math.inf, "overdrawn as far as it may be"
    assert [guard.next_step(1, is_unmeasured=False) for _ in range(16)].count(Next.DRAFT) == 2


def of_batches(
    num: int, promise: float, gain: float, *, unlearnt: int = 10, scoring_s: float = 7.5
) -> float:
    """Speed of batches on whose prompts drafters are scored, which plain decoding does not need.

    Drafts double the seconds of a round. The first ones, of which nothing is known, lose 40%.
    """
    guard, spent_s, plain_s, num_drafts = Guard(ROUNDS), 0.0, 0.0, 0
    for number in range(NUM_STEPS):
        if number % 60 == 0 and not guard.is_in_debt:
            guard.charge(scoring_s)
            spent_s += scoring_s
        kind = guard.next_step(num, is_unmeasured=False)
        is_plain = kind is not Next.DRAFT or promise < guard.margin(num)
        num_drafts += not is_plain
        tokens = 1.0 if is_plain else 2.0 * (gain if num_drafts > unlearnt else 0.6)
        seconds = 1.0 if is_plain else 2.0
        guard.num_idle = guard.num_idle + 1 if is_plain else 0
        guard.observe(tokens, seconds, 1.0, math.sqrt(num))
        guard.earn_probes(seconds)
        spent_s += seconds
        plain_s += tokens
    return plain_s / spent_s


@pytest.mark.parametrize("num", [1, 4, 16, 64])
@pytest.mark.parametrize("scoring_s", [7.5, 40.0])
def test_batches_whose_prompts_cost_more_than_the_credit_draft_on(
    num: int, scoring_s: float
) -> None:
    assert of_batches(num, promise=1.5, gain=1.3, scoring_s=scoring_s) > 1.1


@pytest.mark.parametrize(("seconds", "num_rounds"), [(3.0, 3), (20.0, 20), (500.0, 499)])
def test_what_scoring_takes_is_repaid_by_a_surplus_before_the_next(
    seconds: float, num_rounds: int
) -> None:
    guard = Guard(ROUNDS)
    guard.charge(seconds)  # before the first round, whose length is not known
    guard.observe(1.0, 1.0, 1.0)
    assert guard.margin(1) < math.inf, "useless drafters do not shut out useful ones"
    for number in range(num_rounds):
        assert guard.is_in_debt, f"after {number} rounds that saved a second each"
        guard.observe(2.0, 1.0, 1.0)
    assert not guard.is_in_debt


def test_savings_do_not_pay_for_probes_of_running_requests() -> None:
    guard, num_probes = Guard(ROUNDS), 0
    for _ in range(NUM_STEPS):
        guard.observe(2.0, 1.0, 1.0)  # saves a second
        guard.earn_probes(1.0)
        if guard.has_probe_share:
            guard.charge_probe(0.2)
            num_probes += 1
    share = 0.2 * num_probes / NUM_STEPS
    assert 0.9 * ROUNDS.probe_share < share <= ROUNDS.probe_share + 0.2 / NUM_STEPS


@pytest.mark.parametrize("num", [1, 4, 16, 64])
@pytest.mark.parametrize("gain", [0.2, 0.6, 0.95])
def test_drafts_that_promise_much_and_keep_nothing_lose_one_overdraft(
    num: int, gain: float
) -> None:
    scoring_s, root = 7.5, math.sqrt(num)
    lost = ROUNDS.credit / root + ROUNDS.overdraft * root + scoring_s + 2.0  # and one round
    least = 1.0 - lost / NUM_STEPS - ROUNDS.share - ROUNDS.probe_share
    assert of_batches(num, promise=1.5, gain=gain, scoring_s=scoring_s) > least
