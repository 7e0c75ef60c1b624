"""The controller, driven as engines drive it."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

from controller.kinds import interpreted
from draftwise.controller.controller import Controller, Limits
from draftwise.controller.costs import Step
from draftwise.controller.guard import MARGIN, Guard, Tuning

CREDIT, SHARE, PROBE_SHARE = Tuning().credit, Tuning().share, Tuning().probe_share


class Engine:
    """Simulates texts with repetitions, a head of a given accuracy, and step costs."""

    def __init__(
        self, controller: Controller, num: int, *, right: float = 0.7, copies: float = 0.5,
        wide_s: float = 1e-5, seed: int = 0, num_answer: int = 150,
    ) -> None:  # fmt: skip
        self.controller, self.num, self.right, self.copies = controller, num, right, copies
        self.wide_s, self.rng, self.num_answer = wide_s, random.Random(seed), num_answer
        self.texts: dict[str, tuple[list[int], int]] = {}
        self.chains: dict[str, list[int]] = {}
        self.num_begun = self.tokens = self.drafted = 0
        self.seconds = self.plain_s = 0.0
        self.log: list[tuple[float, float]] = []

    def _new(self) -> None:
        text = [self.rng.randrange(500) for _ in range(40)]
        while len(text) < 40 + self.num_answer:
            if self.rng.random() < self.copies:
                at = self.rng.randrange(len(text) - 8)
                text += text[at : at + 2 + int(self.rng.expovariate(0.1))]
            else:
                text.append(self.rng.randrange(500))
        name = f"request {self.num_begun}"
        self.num_begun += 1
        self.texts[name] = text, 40
        self.chains[name] = []
        self.controller.begin(name, text[:40])

    def step(self, pause_s: float = 0.0, own_s: float = 0.0) -> None:
        while len(self.texts) < self.num:
            self._new()
        controller, names = self.controller, list(self.texts)
        length = controller.num_to_draft
        drafted = sum(len(self.chains[n]) for n in names)
        seconds = 0.006 + self.wide_s * drafted + (1e-4 + 3e-4 * length) * (length > 0)
        seconds += pause_s
        emitted = []
        for name in names:
            text, at = self.texts[name]
            kept = _in_common(self.chains[name], text[at:-1])
            emitted.append(text[at : at + kept + 1])
            self.texts[name] = text, at + kept + 1
        self.log.append((0.006 * sum(map(len, emitted)) / len(names), seconds))
        self.tokens += sum(map(len, emitted))
        self.drafted += drafted
        step = Step(len(names), len(names) + drafted, seconds, length, own_seconds=own_s)
        controller.observe(step, names, emitted)
        for name in names:
            text, at = self.texts[name]
            if at >= len(text) - 1:
                controller.end(name)
                del self.texts[name]
        while len(self.texts) < self.num:
            self._new()
        self.choose(length)
        controller.work()

    def choose(self, length: int) -> None:
        names = list(self.texts)
        rooms, offers = [], []
        for name in names:
            text, at = self.texts[name]
            rooms.append(max(0, min(16, len(text) - at - 1)))
            offers.append(
                [t if self.rng.random() < self.right else 999 for t in text[at : at + length]]
            )
        chains = self.controller.choose(names, rooms, offers if length else None)
        assert all(len(c) <= room for c, room in zip(chains, rooms, strict=True))
        self.chains = dict(zip(names, chains, strict=True))

    def speed(self, begin: int = 0) -> float:
        """Speed relative to plain decoding."""
        return sum(p for p, _ in self.log[begin:]) / sum(s for _, s in self.log[begin:])


def _in_common(draft: list[int], truth: list[int]) -> int:
    pairs = zip(draft, truth, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(draft), len(truth)))


@pytest.mark.parametrize("num", [1, 5])
def test_compiled_and_interpreted_are_equal(num: int) -> None:
    """Acceptance, costs and choices give the same drafts and the same state in both versions."""
    pytest.importorskip("numba")
    module, limits = interpreted("controller.controller"), Limits(model=True)
    assert not hasattr(module.choose, "signatures")
    engines = [Engine(made(limits), num) for made in (Controller, module.Controller)]
    for _ in range(150):
        for engine in engines:
            engine.step()
        first, second = engines
        assert first.chains == second.chains
    states = [engine.controller.state() for engine in engines]
    numbers = [list(_numbers(state)) for state in states]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-9)
    assert engines[0].drafted > 200


def _numbers(state: Any) -> Iterator[float]:
    """All numbers of a state, in order."""
    if isinstance(state, dict | list):
        for part in state.values() if isinstance(state, dict) else state:
            yield from _numbers(part)
    else:
        yield state


@pytest.mark.parametrize("num", [1, 8])
def test_drafts_where_it_pays(num: int) -> None:
    engine = Engine(Controller(Limits(model=True)), num)
    for _ in range(300):
        engine.step()
    assert engine.speed(50) > 1.7


def test_never_slower_where_nothing_can_be_drafted() -> None:
    engine = Engine(Controller(Limits(model=True)), 2, right=0.0, copies=0.0)
    for _ in range(2000):
        engine.step()
    assert engine.speed() > 0.99
    assert engine.controller.guard.speed == pytest.approx(engine.speed(), abs=0.01)


def test_never_slower_where_verifying_is_dear() -> None:
    engine = Engine(Controller(Limits(model=True)), 4, wide_s=0.003)
    for _ in range(2000):
        engine.step()
    assert engine.speed() > 0.99


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_are_reported_late_do_not_end_drafts(seed: int) -> None:
    """A step reported late looks long and the next one short, by a tenth on a GPU. Trusting these
    times exactly would price out drafts for thousands of steps."""
    limits = Limits(max_draft=4, model=True, retrieval=False)
    engine = Engine(Controller(limits), 64, right=0.36, copies=0.0, seed=seed)
    rng, late = random.Random(seed), 0.0
    for _ in range(300):
        now = rng.gauss(0.0, 5e-4)
        engine.step(pause_s=now - late)
        late = now
    assert engine.speed() > 1.12  # always one token: 1.16


@pytest.mark.parametrize("pause_s", [0.008, 0.015, 0.06])
def test_kernels_that_load_with_the_first_drafts_do_not_end_them(pause_s: float) -> None:
    """If drafts are charged for loading kernels, the account is empty for 1,000 steps."""
    limits = Limits(max_draft=4, model=True, retrieval=False)
    engine = Engine(Controller(limits), 64, right=0.36, copies=0.0)
    shapes = set[tuple[int, int]]()
    for _ in range(300):
        drafted = sum(map(len, engine.chains.values()))
        shape = engine.controller.num_to_draft, (64 + drafted).bit_length()
        engine.step(pause_s=0.0 if shape in {*shapes, (0, 7)} else pause_s)
        shapes.add(shape)
    assert len(shapes) > 3
    assert engine.speed(100) > 1.12  # always one token: 1.16


def test_plain_decoding_is_measured_while_drafts_pay() -> None:
    """Some of 32 requests always have a draft while plain steps, slow at first, become much faster;
    unless they are measured, drafts stay in use for good and take 1.4 times as long."""
    engine, drafted = Engine(Controller(Limits()), 32, copies=0.1, num_answer=1500), []
    for number in range(1500):
        drafted.append(any(engine.chains.values()))
        engine.step(pause_s=-0.0035 if number > 20 and not drafted[-1] else 0.0)
    assert sum(drafted[20:60]) > 35
    assert sum(drafted[-500:]) < 100


def test_measuring_plain_decoding_costs_little() -> None:
    engine = Engine(Controller(Limits()), 32, copies=0.9, num_answer=1500)
    num_plain = 0
    for _ in range(1500):
        num_plain += not any(engine.chains.values())
        engine.step()
    assert 4 <= num_plain <= 10


@pytest.mark.parametrize("num", [1, 4, 16])
def test_first_drafts_are_short_and_for_all_requests(num: int) -> None:
    """The first drafts have 1 token each, then 2, and at most twice the longest that was timed."""
    controller = Controller(Limits())
    names = [str(row) for row in range(num)]
    for row, name in enumerate(names):
        controller.begin(name, [100 * row + i % 30 for i in range(120)])
    ends, lengths = [120] * num, [[0] * num]
    for _ in range(12):
        drafted = sum(lengths[-1])
        emitted = [
            [100 * row + (ends[row] + i) % 30 for i in range(lengths[-1][row] + 1)]
            for row in range(num)
        ]
        ends = [end + len(tokens) for end, tokens in zip(ends, emitted, strict=True)]
        step = Step(num, num + drafted, 0.006 + 1e-5 * drafted)
        controller.observe(step, names, emitted)
        lengths.append([len(chain) for chain in controller.choose(names, [16] * num)])
    assert lengths[1:3] == [[1] * num, [2] * num]
    longest = [max(each) for each in lengths[1:]]
    assert all(late <= 2 * early for early, late in itertools.pairwise(longest))
    assert longest[-1] > 8


def test_known_prices_need_no_short_trials() -> None:
    controller = Controller(Limits())
    controller.costs.load_table({1: 0.006, 64: 0.0065})
    controller.begin("a", [*range(30)] * 4)
    controller.observe(Step(1, 1, 0.006), ["a"], [[0]])
    assert len(controller.choose(["a"], [16])[0]) == 16


def test_a_resting_guard_searches_in_one_of_eight_steps() -> None:
    controller = Controller(Limits(8))
    engine = Engine(controller, 2, copies=0.0)
    for _ in range(3):
        engine.step()
    assert controller.guard.allows_drafts
    searched = sum(not controller.rests(2) for _ in range(8))
    controller.guard.observe(1.0, 1e6, 0.006)
    resting = 0
    for _ in range(64):
        is_resting = controller.rests(2)
        resting += is_resting
        if not is_resting:
            engine.choose(0)
    assert (searched, resting) == (8, 56)


def test_with_a_model_most_steps_rest_where_nothing_is_drafted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller = Controller(Limits(model=True))
    # a verified token costs more than 0.02, the lowest acceptance that a table can predict
    engine, full = Engine(controller, 4, right=0.0, copies=0.0, wide_s=5e-5), 0
    survivals = controller._survivals

    def counted(*args: Any) -> Any:
        nonlocal full
        full += 1
        return survivals(*args)

    monkeypatch.setattr(controller, "_survivals", counted)
    for _ in range(1200):
        engine.step()
    begun, full = engine.drafted, 0
    for _ in range(400):
        engine.step()
    assert 400 / 8 <= full < 400 / 5  # every eighth, and after each probe
    assert engine.drafted - begun < 20


def test_drafting_comes_back() -> None:
    engine = Engine(Controller(Limits(model=True)), 4, right=0.0, copies=0.0)
    for _ in range(600):
        engine.step()
    engine.right, engine.copies = 0.8, 0.6
    for _ in range(600):
        engine.step()
    assert engine.speed(900) > 1.5


@pytest.mark.parametrize("where", ["pause_s", "own_s"])
def test_a_pause_does_not_end_drafting(where: str) -> None:
    engine = Engine(Controller(Limits(model=True)), 4)
    for num in range(200):
        engine.step(**{where: 10.0 * (num == 100)})
    assert engine.controller.guard.allows_drafts
    assert engine.speed(110) > 1.7


@pytest.mark.parametrize("num", [1, 16])
def test_promises_are_kept(num: int) -> None:
    """Predicted acceptance of the model drafter is within 3% of the actual one."""
    engine = Engine(Controller(Limits(model=True, retrieval=False)), num, num_answer=60)
    while engine.num_begun < 200:
        engine.step()
    controller = engine.controller
    assert controller.promised == pytest.approx(controller.kept, rel=0.03)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_requests", [1, 16])
def test_the_guards_bound_holds_against_an_adversary(seed: int, num_requests: int) -> None:
    """The adversary's drafts promise as much as needed to be chosen, and are rejected."""
    rng = random.Random(seed)
    guard, plain, worst_step = Guard(), 1.0, 3.0
    lost: list[float] = []
    total, most = 0.0, 0.0
    guard.observe(1.0, plain, plain)
    for num in range(5000):
        if guard.margin(num_requests) < math.inf:
            good = num < 500 or (guard.balance < 0.5 * CREDIT and rng.random() < 0.3)
            tokens, seconds = (3.0, plain) if good else (1.0, worst_step)
        else:
            tokens, seconds = 1.0, plain
        guard.observe(tokens, seconds, plain)
        total += seconds - tokens * plain
        lost.append(total)
    low = 0.0
    for i, value in enumerate(lost):  # over any period: the loss since its most favourable start
        low = min(low, value - SHARE * i)
        most = max(most, value - SHARE * i - low)
    assert most <= CREDIT + CREDIT / num_requests + worst_step + 1e-6


def test_an_empty_account_allows_only_drafts_that_promise_much() -> None:
    guard = Guard()
    guard.observe(1.0, 1.0, 1.0)
    assert guard.margin(1) == 1.0
    guard.observe(1.0, 1.0 + guard.balance + 0.6 * CREDIT, 1.0)
    assert [guard.margin(num) for num in (1, 2, 16)] == [MARGIN, math.inf, math.inf]
    guard.observe(1.0, 1.0 + 0.6 * CREDIT, 1.0)
    assert guard.margin(1) == math.inf


def test_a_bad_start_does_not_end_drafting() -> None:
    """The first texts cannot be drafted and spend the whole credit; later texts can be drafted."""
    engine = Engine(Controller(Limits(8)), 1, copies=0.0, num_answer=60, wide_s=5e-4)
    engine.step()
    guard = engine.controller.guard
    plain_s = guard.balance / CREDIT
    guard.observe(1.0, plain_s + 1.2 * guard.balance, plain_s)
    engine.copies = 0.7
    for _ in range(400):
        engine.step()
    assert engine.speed(100) > 1.2


def test_a_tokens_price_follows_the_number_of_requests() -> None:
    """With few requests after many, a drafted token is worth more of a step's seconds."""

    def drafted_after(num_before: int, seed: int) -> int:
        engine = Engine(Controller(Limits(8)), num_before, copies=0.6, wide_s=1.5e-3, seed=seed)
        for _ in range(120):
            engine.step()
        engine.num = 2
        for name in list(engine.texts)[2:]:
            engine.controller.end(name)
            del engine.texts[name]
        before = engine.drafted
        for _ in range(20):
            engine.step()
        return engine.drafted - before

    many, few = (sum(drafted_after(num, seed) for seed in range(8)) for num in (16, 2))
    assert many >= 0.6 * few


def test_probes_take_their_share_of_the_time() -> None:
    guard = Guard()
    spent = sum(0.07 for _ in range(10_000) if guard.may_probe(1.0, 0.07))
    assert spent <= PROBE_SHARE * 10_000 + 0.07
    assert spent > 0.5 * PROBE_SHARE * 10_000


def test_tenants_do_not_see_each_other() -> None:
    text = list(range(100, 160))
    for tenant, shares, is_found in ((0, True, True), (1, True, False), (0, False, False)):
        controller = Controller(Limits())
        controller.begin("first", text[:2], shares=shares)
        for token in text[2:]:
            controller.observe(Step(1, 1, 0.01), ["first"], [[token]])
        controller.end("first")
        while controller.work():
            pass
        controller.begin("second", [1, 2, *text[4:20]], tenant=tenant)
        controller.observe(Step(1, 1, 0.01), ["second"], [[text[20]]])
        (chain,) = controller.choose(["second"], [8])
        assert (chain == text[21 : 21 + len(chain)] and len(chain) > 0) == is_found


def test_a_name_may_come_again_and_the_unknown_may_end() -> None:
    controller = Controller(Limits())
    controller.end("never seen")
    controller.begin("a", [1, 2, 3])
    controller.begin("a", [4, 5])
    assert "a" in controller
    controller.end("a")
    assert "a" not in controller
    assert controller.choose([], []) == []
    for num in range(40):
        controller.begin(str(num), [1, 2, 1])
    assert len(controller.choose([str(num) for num in range(40)], [4] * 40)) == 40


def test_drafts_may_be_trimmed() -> None:
    controller = Controller(Limits())
    text = [1, 2, 3, 4, 5, 6] * 6
    controller.costs.load_table({1: 0.01, 16: 0.01})
    controller.begin("a", text)
    controller.observe(Step(1, 1, 0.01), ["a"], [[1]])
    (chain,) = controller.choose(["a"], [4])
    assert chain == [2, 3, 4, 5]
    controller.observe(Step(1, 3, 0.01), ["a"], [[2, 3, 4]], num_verified=[2])
    assert controller.choose(["a"], [2]) == [[5, 6]]
    assert controller.choose(["a"], [0]) == [[]]


def test_state_round_trip() -> None:
    engine = Engine(Controller(Limits(model=True)), 4)
    for _ in range(200):
        engine.step()
    state = json.loads(json.dumps(engine.controller.state()))
    other = Controller(Limits(model=True))
    other.load_state(state)
    assert json.loads(json.dumps(other.state())) == state
    warm = Engine(other, 4, seed=1)
    for _ in range(20):
        warm.step()
    cold = Engine(Controller(Limits(model=True)), 4, seed=1)
    for _ in range(20):
        cold.step()
    assert warm.speed() > cold.speed()


@pytest.mark.parametrize(
    "damage",
    [
        {"max_draft": 3}, {"acceptance": {}}, {"look_ahead": [1.0]},
        {"costs": {}}, {"guard": {"plain_s": -1.0, "spent_s": 0.0}}, {"speed": [1.0, float("nan")]},
        {"speed": None}, {"costs": None}, {"guard": {}}, {"look_ahead": [10**400] * 18},
        {"guard": {"plain_s": 10**400, "spent_s": 0.0}},
    ],
)  # fmt: skip
def test_refuses_a_damaged_state_and_keeps_its_own(damage: dict[str, Any]) -> None:
    controller = Controller(Limits(model=True))
    before = controller.state()
    with pytest.raises(ValueError, match=r"state|guard"):
        controller.load_state({**before, **damage})
    assert controller.state() == before
