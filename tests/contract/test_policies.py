"""The contract of every policy in the table: a new policy is tested without a new test.

Method: each test runs over the whole table with the options that the table gives for it. A policy
that does not promise a property is listed next to the test with the reason, and only there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwise.protocols import Policy
from draftwise.registry import LAB_POLICIES, POLICIES, make_policy
from draftwise.types import Decision, DraftwiseError, Feedback

NAMES = sorted({*POLICIES, *LAB_POLICIES} - {"goodput"})
"""``goodput`` prices plans and learns from evidence alone (``tests/controller``)."""
NEEDS_EVERYTHING = {
    "hedge": "hedging has no use for bandit feedback: one plan alone has no regret",
    "normalhedge": "as hedge",
    "adanormalhedge": "as hedge",
}
STAYS = {
    "fixed": "learns nothing, by definition",
    "random": "learns nothing, by definition",
    "draft-all": "plays all plans, by definition",
    "router": "picks before the request starts",
}
EXPLORES_FOR_EVER = {
    "exp3": "the box mixes in the uniform draw with probability gamma = 0.4, for ever",
}
NEVER_RETRIES = {
    "fixed": "plays one plan, by definition",
    "router": "plays one plan, by definition",
    "draft-all": "plays all plans, by definition",
    "sequential-halving": "drops plans for good, by definition",
    "petc": "commits, by definition",
}
ORDER_MATTERS = {
    "discounted-ucb": "older values count less, by definition",
    "sliding-ucb": "the ring keeps the order, to know what leaves it first",
    "hedge": "at the anytime rate the mean loss of the draw depends on the weights so far",
    "normalhedge": "the regret is against the draw's own weights, which the first one moves",
    "adanormalhedge": "as normalhedge",
    "delayed": "a queue keeps the order",
    "batched": "which feedback is skipped depends on its place",
}
NAMED = {
    "fixed": "its option is the plan's number, which renaming does not change",
    "router": "its option is the plan's number, which renaming does not change",
    "draft-all": "plan 0 stands for all",
}
WRAPPERS = {
    "delayed": "base=%s,rounds=0",
    "batched": "base=%s,warmup=0,batch=1,skip=1",
    "copies": "base=%s",
    "one-plan": "base=%s",
}


def spec(name: str) -> str:
    """The policy's name with the options of the table."""
    given = POLICIES[name][1] if name in POLICIES else {}
    options = ",".join(f"{key}={value}" for key, value in given.items())
    return f"{name}:{options}" if options else name


def make(name: str, num_plans: int = 4, seed: int = 0) -> Any:
    return make_policy(spec(name), num_plans, seed)


def all_but(*tables: dict[str, str]) -> list[str]:
    return [name for name in NAMES if not any(name in table for table in tables)]


def tell(name: str, decision: Decision, values: np.ndarray) -> Feedback:
    """The kind of feedback that this policy is made for: bandit, or panoramic."""
    seen = np.full(len(values), name in NEEDS_EVERYTHING)
    seen[decision.plan] = True
    return Feedback(values, seen)


def play(
    name: str, policy: Any, values_of: Callable[[int], np.ndarray], rounds: int
) -> list[Decision]:
    decisions = []
    for t in range(rounds):
        decisions.append(policy.choose())
        policy.learn(decisions[-1], tell(name, decisions[-1], values_of(t)))
    return decisions


def bernoulli(means: list[float], seed: int = 1) -> Callable[[int], np.ndarray]:
    rng = np.random.default_rng(seed)
    return lambda t: (rng.random(len(means)) < means).astype(np.float64)


def assert_distribution(probabilities: np.ndarray, num_plans: int) -> None:
    assert probabilities.shape == (num_plans,)
    assert np.isfinite(probabilities).all()
    assert probabilities.min() >= 0
    assert probabilities.sum() == pytest.approx(1, abs=1e-9)


def shown(policy: Policy) -> tuple[list[float], list[float]]:
    """What a policy shows of its state: two policies that show the same choose alike."""
    return policy.probabilities().tolist(), policy.estimates().tolist()


CONTRACT = [name for name in vars(Policy) if not name.startswith("_")]


def test_the_contract_is_four_methods() -> None:
    assert CONTRACT == ["choose", "learn", "probabilities", "estimates"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", CONTRACT)
def test_every_policy_has_the_methods_of_the_contract(name: str, method: str) -> None:
    mine = inspect.signature(getattr(type(make(name)), method))
    assert list(mine.parameters) == list(inspect.signature(getattr(Policy, method)).parameters)


@pytest.mark.parametrize("name", NAMES)
def test_fresh_policy_has_probabilities_and_estimates(name: str) -> None:
    for num_plans in (1, 2, 5):
        policy = make_policy(name, num_plans)
        assert_distribution(policy.probabilities(), num_plans)
        assert policy.estimates().shape == (num_plans,)
        assert 0 <= policy.choose().plan < num_plans


@pytest.mark.parametrize("name", NAMES)
def test_finite_after_many_extreme_rounds(name: str) -> None:
    """1e4 rounds of zeros, then 1e4 of ones; each decision counts for 50 rounds, for speed."""
    policy, num_plans = make(name), 4
    for value in (0.0, 1.0):
        for _ in range(200):
            decision = policy.choose()
            assert 0 < decision.prob <= 1
            feedback = tell(name, decision, np.full(num_plans, value))
            for _ in range(50):
                policy.learn(decision, feedback)
        assert_distribution(policy.probabilities(), num_plans)
        assert np.isfinite(policy.estimates()).all()


@pytest.mark.parametrize("name", all_but(STAYS, EXPLORES_FOR_EVER))
@pytest.mark.parametrize("best", [0, 2, 3])
def test_moves_to_the_best_plan(name: str, best: int) -> None:
    """Gap 0.5, 2,000 rounds: over 0.9 of the last 500 choices, or of the probability.

    Values are Bernoulli at a fixed seed. Each policy's expected share is 0.95 or more, so that a
    sound policy fails with a probability under 1e-4 at another seed.
    """
    means = [0.25] * 4
    means[best] = 0.75
    policy = make(name)
    last = play(name, policy, bernoulli(means), 2000)[-500:]
    share = np.mean([decision.plan == best for decision in last])
    assert max(share, policy.probabilities()[best]) > 0.9
    assert policy.estimates().argmax() == best


@pytest.mark.parametrize("name", all_but(NEVER_RETRIES))
def test_every_plan_is_retried(name: str) -> None:
    """With equal plans, a policy with equal bonuses (greedy) would play the first for ever."""
    counts = np.zeros(4)
    policy = make(name)
    for decision in play(name, policy, lambda t: np.full(4, 0.5), 400):
        counts[decision.plan] += 1
    assert counts.min() >= 20


@pytest.mark.parametrize("name", NAMES)
def test_the_probability_is_the_one_drawn_from(name: str) -> None:
    policy = make(name)
    values = bernoulli([0.2, 0.4, 0.6, 0.5])
    for t in range(60):
        before = policy.probabilities()
        decision = policy.choose()
        assert decision.prob == pytest.approx(before[decision.plan], abs=1e-12)
        policy.learn(decision, tell(name, decision, values(t)))


@pytest.mark.parametrize("name", all_but(NAMED))
def test_renaming_plans_permutes_choices(name: str) -> None:
    """Two policies learn the same rounds under two numberings of the plans."""
    order = np.array([2, 0, 3, 1])  # plan i of one is plan order[i] of the other
    one, other = make(name), make(name)
    rng = np.random.default_rng(3)
    for t in range(600):
        plan, values = int(rng.integers(4)) if t >= 4 else t, rng.random(4)
        renamed = np.empty(4)
        renamed[order] = values
        first, second = Decision(plan, 0.25, t + 1), Decision(int(order[plan]), 0.25, t + 1)
        one.learn(first, tell(name, first, values))
        other.learn(second, tell(name, second, renamed))
    np.testing.assert_allclose(other.probabilities()[order], one.probabilities(), atol=1e-9)
    np.testing.assert_allclose(other.estimates()[order], one.estimates(), atol=1e-9)


@pytest.mark.parametrize("name", all_but(ORDER_MATTERS))
def test_two_in_flight_may_be_learned_in_either_order(name: str) -> None:
    one, other = make(name), make(name)
    values = bernoulli([0.2, 0.4, 0.6, 0.5])
    for policy in (one, other):
        play(name, policy, bernoulli([0.2, 0.4, 0.6, 0.5]), 20)
    made = [(one.choose(), other.choose()) for _ in range(2)]
    told = [values(0), values(1)]
    for index in (0, 1):
        one.learn(made[index][0], tell(name, made[index][0], told[index]))
    for index in (1, 0):
        other.learn(made[index][1], tell(name, made[index][1], told[index]))
    assert shown(one) == shown(other)


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_same_run(name: str) -> None:
    runs = [play(name, make(name, seed=7), bernoulli([0.3, 0.5, 0.4, 0.6]), 100) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_alone_and_outputs_are_copies(name: str) -> None:
    policy = make(name)
    values, seen = np.array([0.1, 0.9, 0.4, 0.2]), np.ones(4, dtype=bool)
    values.flags.writeable = seen.flags.writeable = False
    for _ in range(12):
        policy.learn(policy.choose(), Feedback(values, seen))
    probabilities, estimates = policy.probabilities(), policy.estimates()
    policy.probabilities()[:] = 7
    policy.estimates()[:] = 7
    np.testing.assert_array_equal(policy.probabilities(), probabilities)
    np.testing.assert_array_equal(policy.estimates(), estimates)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1.01, -0.01, float("nan"), float("inf")])
def test_values_outside_0_to_1_are_turned_away(name: str, value: float) -> None:
    policy = make(name)
    decision = policy.choose()
    before = shown(policy)
    values, seen = np.full(4, 0.5), np.zeros(4, dtype=bool)
    values[decision.plan], seen[decision.plan] = value, True
    with pytest.raises(ValueError, match="outside"):
        policy.learn(decision, Feedback(values, seen))
    assert shown(policy) == before


ROUNDS = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.floats(0.01, 1),
        st.lists(st.floats(0, 1), min_size=4, max_size=4),
        st.lists(st.booleans(), min_size=4, max_size=4),
    ),
    max_size=12,
)
"""For each round: the plan played, its probability, the values, and which of them were seen."""


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(ROUNDS)
def test_any_values_in_any_order_leave_a_policy_sound(name: str, rounds: list[Any]) -> None:
    policy = make(name)
    for number, (plan, prob, values, seen) in enumerate(rounds, 1):
        policy.learn(Decision(plan, prob, number), Feedback(np.array(values), np.array(seen)))
    assert_distribution(policy.probabilities(), 4)
    assert np.isfinite(policy.estimates()).all()
    assert 0 <= policy.choose().plan < 4


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_seen_may_hold_anything(name: str) -> None:
    policy, twin = make(name), make(name)
    decision = policy.choose()
    assert twin.choose() == decision
    seen = np.zeros(4, dtype=bool)
    seen[decision.plan] = True
    policy.learn(decision, Feedback(np.where(seen, 0.5, np.nan), seen))
    twin.learn(decision, Feedback(np.where(seen, 0.5, 0.0), seen))
    assert shown(policy) == shown(twin)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_seen_is_no_round(name: str) -> None:
    """Evidence before the first round shows no value and must not change the probabilities."""
    policy = make(name)
    before = policy.probabilities()
    policy.learn(Decision(0, 1.0, 0), Feedback(np.zeros(4), np.zeros(4, dtype=bool)))
    np.testing.assert_array_equal(policy.probabilities(), before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("decision", "values", "seen"),
    [
        (Decision(4, 1.0, 1), np.zeros(4), np.ones(4, dtype=bool)),
        (Decision(-1, 1.0, 1), np.zeros(4), np.ones(4, dtype=bool)),
        (Decision(0, 0.0, 1), np.zeros(4), np.ones(4, dtype=bool)),
        (Decision(0, 1.5, 1), np.zeros(4), np.ones(4, dtype=bool)),
        (Decision(0, float("nan"), 1), np.zeros(4), np.ones(4, dtype=bool)),
        (Decision(0, 1.0, 1), np.zeros(3), np.ones(4, dtype=bool)),
        (Decision(0, 1.0, 1), np.zeros((4, 1)), np.ones(4, dtype=bool)),
        (Decision(0, 1.0, 1), np.zeros(4), np.ones(3, dtype=bool)),
        (Decision(0, 1.0, 1), np.zeros(4), np.ones(4)),
    ],
)
def test_nonsense_is_turned_away(
    name: str, decision: Decision, values: np.ndarray, seen: np.ndarray
) -> None:
    with pytest.raises(ValueError, match=r"plan|probability|shape|must be"):
        make(name).learn(decision, Feedback(values, seen))


@pytest.mark.parametrize("name", NAMES)
def test_learns_from_decisions_it_did_not_make(name: str) -> None:
    policy = make(name)
    for t in range(400):
        decision = Decision(t % 4, 0.25, t + 1)
        policy.learn(decision, tell(name, decision, np.array([0.0, 0.0, 1.0, 0.0])))
    if name not in STAYS:
        assert policy.probabilities()[2] > 0.5


@pytest.mark.parametrize(
    "text",
    [
        "fixed:plan=4", "ucb1:beta=0", "ucb1:beta=inf", "ucbspec:delta=0", "ucbspec:delta=2",
        "hedge:eta=-1", "goodput:prior=0", "goodput:discount=1.5", "exp3:gamma=0", "exp3:gamma=1.1",
        "discounted-ucb:discount=0", "discounted-ucb:beta=-1", "sliding-ucb:window=0",
        "sliding-ucb:beta=0", "sequential-halving:budget=0", "sequential-halving:period=0",
        "petc:c=0", "petc:num_tokens=0", "router:plan=-1", "router:num_cells=0",
        "thompson-gaussian:prior_sd=0", "thompson-gaussian:noise_sd=nan", "delayed:rounds=-1",
        "batched:warmup=-1", "batched:batch=0", "batched:skip=0",
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused_by_name(text: str) -> None:
    option = text.partition(":")[2].partition("=")[0]
    with pytest.raises(DraftwiseError, match=option):
        make_policy(text, 4)


@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
@pytest.mark.parametrize("base", ["ucb1", "exp3spec", "normalhedge", "thompson-gaussian"])
def test_a_wrapper_that_does_nothing_changes_no_choice(wrapper: str, base: str) -> None:
    """A delay of 0, batches of 1 and copies without delay must not change any choice."""
    plain = make_policy(base, 4, seed=3)
    seed = np.random.default_rng(3)
    if wrapper == "copies":  # the one copy draws from a generator of its own
        plain = make_policy(base, 4, np.random.default_rng(seed.integers(2**63)))
    wrapped = make_policy(f"{wrapper}:{WRAPPERS[wrapper] % base}", 4, seed=3)
    runs = [play(base, each, bernoulli([0.3, 0.5, 0.4, 0.6]), 200) for each in (plain, wrapped)]
    assert runs[0] == runs[1]
    np.testing.assert_array_equal(plain.probabilities(), wrapped.probabilities())


def test_an_unknown_policy_lists_the_valid_names() -> None:
    with pytest.raises(DraftwiseError, match=r"ucb1.*goodput"):
        make_policy("no-such-policy", 4)
    with pytest.raises(ValueError, match="at least one plan"):
        make_policy("ucb1", 0)
