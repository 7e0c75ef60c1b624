"""Feedback of a round: hand-computed plans, delayed feedback, and HedgeSpec's games."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from draftwise.bandits.feedback import Panoramic, drafted_by
from draftwise.registry import FEEDBACKS, make_feedback, make_policy, make_reward
from draftwise.types import (
    PLAIN,
    Decision,
    DraftwiseError,
    Evidence,
    Feedback,
    Outcome,
    Plan,
    RoundFacts,
    Scores,
    TreeShape,
)

A = [Plan("a", k) for k in (1, 2, 4, 8)]
PLANS = [PLAIN, *A, Plan("a", 4, "max-confidence:0.8"), Plan("b", 4), Plan("lookup", 2)]


def scores(alphas: Sequence[float], start: int = 10, matches: Any = None) -> Scores:
    array = np.array(alphas, dtype=np.float64)
    found = None if matches is None else np.array(matches)
    return Scores(start, array, array, found)


def played(
    index: int, drafted: int, accepted: int, told: Mapping[str, Scores] | None = None,
    start: int = 10, plans: Sequence[Plan] = PLANS, **facts: Any,
) -> tuple[Decision, Evidence]:  # fmt: skip
    evidence = Evidence(plans[index], drafted, accepted, told or {}, emitted_start=start, **facts)
    return Decision(index, 0.5, 1), evidence


def make(spec: str, reward: str = "length", plans: Sequence[Plan] = PLANS) -> Any:
    return make_feedback(spec, plans=plans, reward=make_reward(reward))


def reveal_one(revealer: Any, round_: tuple[Decision, Evidence]) -> Feedback:
    [(decision, feedback)] = revealer.reveal(*round_)
    assert decision is round_[0]
    return feedback


def shown(feedback: Feedback) -> dict[int, float]:
    return {int(i): float(feedback.values[i]) for i in np.flatnonzero(feedback.seen)}


@pytest.mark.parametrize("name", sorted(FEEDBACKS))
def test_what_the_engine_may_ask(name: str) -> None:
    revealer = make(name)
    assert revealer.panoramic is (name == "panoramic")
    assert revealer.every == 1
    assert revealer.flush() == []


def test_bandit_shows_the_played_plan_alone() -> None:
    assert shown(reveal_one(make("bandit"), played(3, 4, 2))) == {3: 0.25}
    assert shown(reveal_one(make("bandit"), played(0, 0, 0))) == {0: 0.0}


@pytest.mark.parametrize(
    ("drafted", "accepted", "expected"),
    [
        (4, 2, {0: 0.0, 1: 1 / 8, 2: 2 / 8, 3: 2 / 8, 4: 2 / 8}),  # rejected: all lengths are known
        (4, 0, {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}),
        (4, 4, {0: 0.0, 1: 1 / 8, 2: 2 / 8, 3: 4 / 8}),  # all accepted: no longer length is known
        (3, 3, {0: 0.0, 1: 1 / 8, 2: 2 / 8, 3: 3 / 8}),  # ended early, but its own length is known
        (3, 1, {0: 0.0, 1: 1 / 8, 2: 1 / 8, 3: 1 / 8, 4: 1 / 8}),
        (0, 0, {0: 0.0, 3: 0.0}),  # nothing was drafted
    ],
)
def test_prefix_by_hand(drafted: int, accepted: int, expected: dict[int, float]) -> None:
    """Plan a x 4 played; other lengths of its drafter and rule get min(a, k) / 8 (L = 8)."""
    assert shown(reveal_one(make("prefix"), played(3, drafted, accepted))) == expected


@pytest.mark.parametrize(
    ("index", "drafted", "accepted", "expected"),
    [(3, 4, 2, 2 / 8), (3, 4, 4, None), (3, 2, 1, 1 / 2)],
)
def test_prefix_knows_what_a_longer_plan_would_have_drafted(
    index: int, drafted: int, accepted: int, expected: float | None
) -> None:
    """In terms of drafted tokens, a x 8 would have drafted 8, or the played number if the draft
    ended by itself; after full acceptance the number is unknown."""
    feedback = reveal_one(make("prefix", "blend:alpha=0"), played(index, drafted, accepted))
    assert shown(feedback).get(4) == expected


def test_prefix_under_a_stop_rule_keeps_to_that_rule() -> None:
    plans = [Plan("a", k, rule) for rule in ("svip:0.6", "fixed") for k in (2, 4, 8)]
    stopped = reveal_one(make("prefix", plans=plans), played(1, 3, 1, plans=plans))
    assert shown(stopped) == {0: 1 / 8, 1: 1 / 8, 2: 1 / 8}
    ran_out = reveal_one(make("prefix", plans=plans), played(1, 4, 1, plans=plans))
    assert shown(ran_out) == {0: 1 / 8, 1: 1 / 8}  # where the rule stops after 4 is unknown


def test_prefix_is_what_shorter_plans_really_get() -> None:
    """For every pattern of accepted tokens, playing length k directly gives the count that playing
    8 reveals for k."""
    for pattern in range(2**8):
        coins = [bool(pattern >> j & 1) for j in range(8)]
        counts = {k: next((j for j in range(k) if not coins[j]), k) for k in (1, 2, 4, 8)}
        feedback = reveal_one(make("prefix"), played(4, 8, counts[8]))
        assert shown(feedback) == {0: 0.0} | {
            1 + i: counts[k] / 8 for i, k in enumerate((1, 2, 4, 8))
        }


@pytest.mark.parametrize("name", ["prefix", "free"])
def test_prefix_may_keep_to_the_lengths_it_always_determines(name: str) -> None:
    """With ``longer=false`` a x 4 reveals nothing about a x 8, even after a rejection."""
    feedback = reveal_one(make(f"{name}:longer=false"), played(3, 4, 1))
    assert shown(feedback) == {0: 0.0, 1: 1 / 8, 2: 1 / 8, 3: 1 / 8}


def test_longer_lengths_are_seen_in_bad_rounds_only() -> None:
    """Always playing a x 4 at alpha = 0.9 shows a x 8 only after rejections: its observed mean is
    1.37, its true mean 5.13. The shorter lengths are unbiased. This is why ``longer=false``
    exists."""
    law = [(0.9**a * 0.1, a) for a in range(4)] + [(0.9**4, 4)]
    told, weight = np.zeros(len(PLANS)), np.zeros(len(PLANS))
    for prob, accepted in law:
        for index, value in shown(reveal_one(make("prefix"), played(3, 4, accepted))).items():
            told[index] += prob * value * 8
            weight[index] += prob
    means = {k: sum(0.9**j for j in range(1, k + 1)) for k in (1, 2, 4, 8)}
    for index, k in ((1, 1), (2, 2), (3, 4)):
        assert weight[index] == pytest.approx(1)
        assert told[index] == pytest.approx(means[k])
    assert told[4] / weight[4] == pytest.approx(1.37, abs=0.01)
    assert means[8] == pytest.approx(5.13, abs=0.01)


def test_prefix_and_divergence_see_only_drafted_positions() -> None:
    """a x 4 is rejected at once, so the alphas 5 to 8 of a x 8 were never computed."""
    round_ = played(3, 4, 0, drafted_alphas=np.array([0.5, 0.5, 1.0, 1.0]))
    assert shown(reveal_one(make("prefix", "divergence"), round_)) == {
        0: 0.0, 1: 0.5 / 8, 2: 1 / 8, 3: 3 / 8
    }  # fmt: skip


def test_seconds_are_known_of_the_played_plan_alone() -> None:
    for name in ("bandit", "prefix", "free"):
        assert shown(reveal_one(make(name, "throughput"), played(3, 4, 2, seconds=0.1))) == {
            3: 3 / 9
        }


def test_free_shows_retrieval_and_backlog_beside_the_prefixes() -> None:
    """``lookup`` is scored on both emitted positions; ``b`` is scored on one position of a plan of
    4, so its plan stays unseen; ``a`` is valued by its counts although its scores are known."""
    told = {
        "a": scores([0.9, 0.3], start=10),
        "b": scores([0.7, 0.7, 0.7], start=8),
        "lookup": scores([0.5, 0.25], matches=[3, 4]),
    }
    feedback = reveal_one(make("free"), played(3, 4, 1, told))
    expected = {0: 0, 1: 1 / 8, 2: 1 / 8, 3: 1 / 8, 4: 1 / 8, 7: (0.5 + 0.125) / 8}
    assert shown(feedback) == pytest.approx(expected)


def test_free_waits_for_a_plans_whole_length_whatever_the_alphas_say() -> None:
    """An alpha of 0 settles b x 4 early, but no plan is valued before its whole length is known."""
    revealer = make("free")
    told = {"b": scores([1.0, 0.0]), "lookup": scores([1.0])}
    feedback = reveal_one(revealer, played(0, 0, 0, told))
    assert shown(feedback) == {0: 0.0}
    told = {"b": scores([0.0, 0.5], start=12), "lookup": scores([0.5, 0.25, 1.0], start=11)}
    (late, now) = revealer.reveal(*played(0, 0, 0, told, start=11))
    assert late[0] is not now[0]
    assert shown(late[1]) == {6: 1 / 8, 7: 1.5 / 8}
    assert shown(now[1]) == pytest.approx({0: 0.0, 7: (0.5 + 0.125) / 8})
    assert revealer.flush() == []


def test_free_is_unbiased_about_drafters_that_did_not_play() -> None:
    """``lookup`` has alpha 1 at a random half of the positions and 0.6 elsewhere; ``a`` plays and
    emits 1 to 3 tokens a round. The mean of the values shown is that over all positions."""
    rng = np.random.default_rng(0)
    alphas = np.where(rng.random(9000) < 0.5, 1.0, 0.6)
    plans = [Plan("a", 2), Plan("lookup", 4)]
    revealer, at, values = make("free", plans=plans), 0, []
    while at < 8900:
        accepted = int(rng.integers(3))
        end = at + accepted + 1
        told = {"lookup": scores(alphas[at:end], at, matches=[1] * (end - at))}
        for _, feedback in revealer.reveal(*played(0, 2, accepted, told, at, plans)):
            values += [feedback.values[1]] if feedback.seen[1] else []
        at = end
    truth = [sum(np.cumprod(alphas[i : i + 4])) / 4 for i in range(8900)]
    assert len(values) > 4000
    assert np.mean(values) == pytest.approx(np.mean(truth), abs=0.01)


def test_free_says_nothing_of_the_played_drafter_under_another_rule() -> None:
    """Greedy, alpha 0 for ``a``: where a x 4 with a stop rule would end is unknown."""
    feedback = reveal_one(make("free"), played(3, 4, 0, {"a": scores([0.0])}))
    assert shown(feedback) == dict.fromkeys((0, 1, 2, 3, 4), 0.0)


def test_free_takes_scores_that_start_late_for_nothing() -> None:
    feedback = reveal_one(make("free"), played(0, 0, 0, {"lookup": scores([1.0] * 3, start=12)}))
    assert shown(feedback) == {0: 0.0}


def test_free_is_always_delivered() -> None:
    only_b = [Plan("b", 4), Plan("c", 4)]
    round_ = played(0, 4, 1, {}, plans=only_b)
    assert shown(reveal_one(make("free", "acceptance", only_b), round_)) == {}


def test_free_expected_length_of_the_played_plan_uses_its_verdict() -> None:
    """1 + alphas through the first rejection: (1 + 0.9 + 0.3) / 9, and for a x 1 (1 + 0.9) / 9."""
    feedback = reveal_one(
        make("free", "expected-length"), played(3, 4, 1, {"a": scores([0.9, 0.3])})
    )
    known = shown(feedback)
    assert known[3] == known[4] == known[2] == pytest.approx(2.2 / 9)
    assert known[1] == pytest.approx(1.9 / 9)
    assert known[0] == pytest.approx(1 / 9)


TWO = [Plan("a", 2), Plan("b", 2)]


def panorama(
    t: int, start: int, a: Sequence[float], b: Sequence[float], accepted: int = 1, at: int = 0
) -> tuple[Decision, Evidence]:
    """Round t played a x 2; both drafters are scored from ``at`` (default: the round's start)."""
    told = {"a": scores(a, at or start), "b": scores(b, at or start)}
    return Decision(0, 0.5, t), Evidence(TWO[0], 2, accepted, told, emitted_start=start)


def test_panoramic_waits_for_the_longest_length() -> None:
    """Round 1 emits position 10 only; length 2 also needs position 11, which round 2 emits."""
    revealer = make("panoramic", "expected-length", TWO)
    first, second = panorama(1, 10, [0.5], [1.0], 0), panorama(2, 11, [0.4, 0.3], [0.2, 0.1])
    assert revealer.reveal(*first) == []
    told = revealer.reveal(*second)
    assert [decision.round for decision, _ in told] == [1, 2]
    assert shown(told[0][1]) == pytest.approx({0: (1 + 0.5 + 0.2) / 3, 1: (1 + 1 + 0.2) / 3})
    assert shown(told[1][1]) == pytest.approx({0: (1.4 + 0.12) / 3, 1: (1.2 + 0.02) / 3})
    assert revealer.flush() == []


def test_panoramic_flush_gives_what_is_known() -> None:
    """At the end of the text a's product is still open, and b's is settled by an alpha of 0."""
    revealer = make("panoramic", "expected-length", TWO)
    assert revealer.reveal(*panorama(1, 10, [0.5], [0.0], 0)) == []
    [(decision, feedback)] = revealer.flush()
    assert decision.round == 1
    # the played plan is valued by its verification: 1 + 0.5; b by its product: 1
    assert shown(feedback) == pytest.approx({0: 1.5 / 3, 1: 1 / 3})
    assert revealer.flush() == []


def test_panoramic_per_token_is_the_token_level_game() -> None:
    """HedgeSpec Figure 4: one vector per emitted token."""
    revealer = make("panoramic:per_token=true", "expected-length", TWO)
    told = revealer.reveal(*panorama(1, 10, [0.9, 0.8, 0.7], [0.1, 0.2, 0.3], accepted=2))
    told += revealer.reveal(*panorama(2, 13, [0.6], [0.4], accepted=0))
    assert [decision.round for decision, _ in told] == [1, 1, 1]
    a = [feedback.values[0] for _, feedback in told]
    expected = [(1 + x + x * y) / 3 for x, y in ((0.9, 0.8), (0.8, 0.7), (0.7, 0.6))]
    assert a == pytest.approx(expected)
    assert len(revealer.flush()) == 1


def test_hedgespec_example_7_censoring() -> None:
    """Drafter 1 (alphas 1, 0, ..) always gets 2 tokens. Drafter 2 (0.6, 0.6, then 0.9) gets 1 + 0.6
    + 0.36 = 1.96 in chunks of 2 and loses; over 8 tokens it exceeds 2 and wins."""
    plans = [Plan("one", 8), Plan("two", 8)]
    told = {"one": scores([1.0, 0.0] * 4), "two": scores([0.6, 0.6] + [0.9] * 6)}
    round_ = Decision(0, 0.5, 1), Evidence(plans[0], 8, 1, told, emitted_start=10)
    chunk = shown(reveal_one(make("panoramic:delay=0", "expected-length", plans), round_))
    assert chunk == pytest.approx({0: 2 / 3, 1: 1.96 / 3})
    token = shown(reveal_one(make("panoramic", "expected-length", plans), round_))
    two = 1 + 0.6 + 0.36 * sum(0.9**j for j in range(7))
    assert token == pytest.approx({0: 2 / 9, 1: two / 9})
    assert chunk[0] > chunk[1]
    assert token[0] < token[1]


def test_panoramic_chunk_cuts_plain_decoding_alike() -> None:
    plans = [PLAIN, Plan("a", 8)]
    round_ = (
        Decision(1, 0.5, 1),
        Evidence(plans[1], 8, 1, {"a": scores([0.5, 0.5])}, emitted_start=10),
    )
    feedback = reveal_one(make("panoramic:delay=0", "expected-length", plans), round_)
    assert shown(feedback) == pytest.approx({0: 1 / 3, 1: 1.75 / 3})


def test_panoramic_acceptance_does_not_wait() -> None:
    """f_t = 1 - alpha_t needs no later tokens; scores beyond the emitted ones do not count."""
    revealer = make("panoramic", "acceptance", TWO)
    told = revealer.reveal(*panorama(1, 10, [0.5, 0.9], [1.0, 0.9], 0))
    assert shown(told[0][1]) == {0: 0.5, 1: 1.0}


def test_panoramic_longer_delay_waits_longer_and_changes_no_value() -> None:
    values = []
    for spec, rounds in (("panoramic", 2), ("panoramic:delay=5", 5)):
        revealer, told = make(spec, "expected-length", TWO), []
        for t in range(rounds):
            assert not told
            told = revealer.reveal(*panorama(t + 1, 10 + t, [0.5 + t / 10], [0.2], 0))
        assert told[0][0].round == 1
        values.append(shown(told[0][1]))
    assert values[0] == values[1]


def test_panoramic_every_and_warmup() -> None:
    """``every`` asks for scores in the two rounds of warm-up, then in one round of three."""
    revealer = make("panoramic:every=3,warmup=2", "expected-length", TWO)
    asked = []
    for t in range(4):
        asked.append(revealer.every)
        revealer.reveal(*panorama(t + 1, 10 + t, [0.5], [0.5], 0))
    assert asked == [1, 1, 3, 3]


def test_panoramic_backlog_settles_the_rounds_between() -> None:
    """Scores of ``b`` arrive in round 3 for its whole backlog, then feedback of rounds 1 to 3."""
    revealer = make("panoramic:every=3", "expected-length", TWO)
    for t, start in ((1, 10), (2, 12)):
        told = {"a": scores([0.5, 0.5], start)}
        evidence = Evidence(TWO[0], 2, 1, told, emitted_start=start)
        assert revealer.reveal(Decision(0, 0.5, t), evidence) == []
    late = {"a": scores([0.5, 0.5], 14), "b": scores([0.9, 0.8, 0.7, 0.6, 0.5, 0.4], 10)}
    told = revealer.reveal(Decision(0, 0.5, 3), Evidence(TWO[0], 2, 1, late, emitted_start=14))
    assert [decision.round for decision, _ in told] == [1, 2, 3]
    b = [feedback.values[1] for _, feedback in told]
    pairs = ((0.9, 0.8), (0.7, 0.6), (0.5, 0.4))
    assert b == pytest.approx([(1 + x + x * y) / 3 for x, y in pairs])


def test_panoramic_is_not_held_up_for_ever() -> None:
    """``b`` is never scored (it failed): after ``every`` overdue rounds a's values come alone."""
    revealer, rounds = make("panoramic:every=2", "expected-length", TWO), []
    for t in range(6):
        told = {"a": scores([0.5, 0.5], 10 + 2 * t)}
        evidence = Evidence(TWO[0], 2, 1, told, emitted_start=10 + 2 * t)
        for decision, feedback in revealer.reveal(Decision(0, 0.5, t + 1), evidence):
            rounds.append((t + 1, decision.round))
            assert feedback.seen.tolist() == [True, False]
    assert rounds == [(3, 1), (4, 2), (5, 3), (6, 4)]


def test_panoramic_hybrid_starts_with_acceptance() -> None:
    """HedgeSpec B.5: the first vectors are 1 - f_t = alpha, at once; then expected lengths."""
    revealer = make("panoramic:hybrid=2", "expected-length", TWO)
    told = []
    for t in range(4):
        told.append(revealer.reveal(*panorama(t + 1, 10 + t, [0.5], [0.25], 0)))
    assert [[d.round for d, _ in each] for each in told] == [[1], [2], [], [3]]
    assert shown(told[0][0][1]) == {0: 0.5, 1: 0.25}
    assert shown(told[3][0][1]) == pytest.approx({0: 1.75 / 3, 1: 1.3125 / 3})


def test_panoramic_hybrid_values_all_plans_alike() -> None:
    """While the loss is acceptance, ``none`` has no value: 0.5 (one token of two) against alphas of
    0.4 would win."""
    plans = [PLAIN, Plan("a", 1)]
    revealer = make("panoramic:hybrid=1", "expected-length", plans)
    rounds = [
        (Decision(0, 0.5, t), Evidence(PLAIN, 0, 0, {"a": scores([0.4], at)}, emitted_start=at))
        for t, at in ((1, 10), (2, 11))
    ]
    assert shown(reveal_one(revealer, rounds[0])) == {1: 0.4}
    assert shown(reveal_one(revealer, rounds[1])) == pytest.approx({0: 0.5, 1: 0.7})


def test_panoramic_falls_back_to_the_played_plan_where_alphas_do_not_tell() -> None:
    revealer = make("panoramic", "throughput", TWO)
    round_ = panorama(1, 10, [0.5, 0.5], [0.5, 0.5])
    timed = round_[0], Evidence(TWO[0], 2, 1, round_[1].scores, emitted_start=10, seconds=1.0)
    assert shown(reveal_one(revealer, timed)) == {0: 2 / 3}


def test_panoramic_memory_does_not_grow() -> None:
    """The history keeps only the alphas of positions whose feedback is pending."""
    revealer = make("panoramic", "expected-length", TWO)
    for t in range(2000):
        revealer.reveal(*panorama(t + 1, 10 + 2 * t, [0.5, 0.5], [0.5, 0.5]))
    assert len(revealer._history) <= 8
    assert len(revealer._waiting) <= 2


def test_free_memory_does_not_grow() -> None:
    """``b`` is never scored: feedback that waits for it is dropped after ``MAX_WAIT`` tokens."""
    revealer = make("free")
    for t in range(2000):
        told = {"lookup": scores([0.5, 0.5], 10 + 2 * t, matches=[1, 1])}
        revealer.reveal(*played(2, 2, 1, told, 10 + 2 * t))
    assert len(revealer._history) <= 2 * 64
    assert len(revealer._waiting) <= 32


def test_panoramic_ignores_a_backlog_that_nothing_waits_for() -> None:
    revealer = make("panoramic", "expected-length", TWO)
    reveal_one(revealer, panorama(1, 10, [0.5, 0.5], [0.5, 0.5]))
    feedback = reveal_one(revealer, panorama(2, 12, [0.1] * 4 + [0.5] * 2, [0.5] * 6, at=8))
    assert shown(feedback) == pytest.approx({0: 1.75 / 3, 1: 1.75 / 3})
    assert len(revealer._history) == 0


def test_panoramic_equals_the_theorem_on_random_text() -> None:
    """Over 100 rounds of random lengths every decision is revealed once, in order, with the value
    that the whole text gives in hindsight."""
    rng = np.random.default_rng(0)
    plans = [PLAIN, *(Plan(name, k) for name in "abc" for k in (1, 3, 6))]
    text = {name: rng.random(900) for name in "abc"}
    revealer = Panoramic(plans, make_reward("expected-length"))
    told, starts, at = [], [], 0
    for t in range(100):
        num = int(rng.integers(1, 8))
        known = {name: scores(alphas[at : at + num], at) for name, alphas in text.items()}
        starts.append(at)
        evidence = Evidence(plans[9], 6, num - 1, known, emitted_start=at)
        told += revealer.reveal(Decision(9, 1.0, t + 1), evidence)
        at += num
    assert len(told) > 90
    assert [decision.round for decision, _ in told] == list(range(1, len(told) + 1))
    for (_, feedback), start in zip(told, starts, strict=False):
        for index, plan in enumerate(plans):
            alphas = text.get(plan.drafter, np.zeros(0))[start : start + plan.length]
            expected = (1 + np.cumprod(alphas).sum()) / 7
            assert feedback.values[index] == pytest.approx(expected)
    assert len(told) + len(revealer.flush()) == 100


def test_qfi_d_learns_in_order_what_a_policy_without_delay_learns() -> None:
    """HedgeSpec Algorithm 1: the queue passes the base learner an undelayed stream, so its state
    equals that of a twin that learned the same rounds at once."""
    rng, plans = np.random.default_rng(1), [Plan("a", 4), Plan("b", 4)]
    text = {name: rng.random(300) for name in "ab"}
    late, prompt = (make_policy("normalhedge", 2) for _ in range(2))
    revealer, at, num_told, at_once = Panoramic(plans, make_reward("expected-length")), 0, 0, []
    for t in range(40):
        num = int(rng.integers(1, 6))
        known = {name: scores(alphas[at : at + num], at) for name, alphas in text.items()}
        evidence = Evidence(plans[0], 4, num - 1, known, emitted_start=at)
        for decision, feedback in revealer.reveal(Decision(0, 0.5, t + 1), evidence):
            late.learn(decision, feedback)
            num_told += 1
        at_once.append([(1 + np.cumprod(text[name][at : at + 4]).sum()) / 5 for name in "ab"])
        at += num
    for values in at_once[:num_told]:
        prompt.learn(Decision(0, 0.5, 1), Feedback(np.array(values), np.ones(2, dtype=bool)))
    assert num_told >= 35
    assert late.probabilities().tolist() == pytest.approx(prompt.probabilities().tolist())
    assert late.estimates().tolist() == pytest.approx(prompt.estimates().tolist())


def test_switching_cost_by_hand() -> None:
    """MetaSD H.1 at 0.01 a token: b first plays after 6 emitted tokens, a again after 3 more."""
    plans = [Plan("a", 2), Plan("b", 2), PLAIN]
    revealer = make("bandit:switching=0.01", "length", plans)
    got = []
    for index, start in ((0, 100), (0, 103), (1, 106), (2, 109), (0, 110), (1, 113)):
        accepted = 0 if index == 2 else 2
        round_ = played(index, accepted, accepted, start=start, plans=plans)
        got.append(shown(reveal_one(revealer, round_))[index])
    assert got == pytest.approx([1, 1, 0.94, 0, 0.96, 0.96])


def test_switching_cost_is_never_below_0_and_free_for_retrieval() -> None:
    plans = [Plan("a", 2), Plan("lookup", 2), Plan("b", 2)]
    for name in ("bandit", "prefix", "free"):
        revealer = make(f"{name}:switching=1", "length", plans)
        reveal_one(revealer, played(0, 2, 2, start=100, plans=plans))
        told = {"lookup": scores([1.0, 1.0], 103, matches=[2, 3])}
        assert shown(reveal_one(revealer, played(1, 2, 2, told, start=103, plans=plans)))[1] == 1
        assert shown(reveal_one(revealer, played(2, 2, 2, start=106, plans=plans)))[2] == 0


def test_rounding_at_the_ends_is_mended_and_nonsense_is_not() -> None:
    """An alpha of 1 + 1e-7 from single precision becomes 1; policies refuse a reward of 1.5."""

    def off(value: float) -> Any:
        return lambda outcome: value

    plans = [Plan("a", 1)]
    for value, expected in ((1 + 1e-7, 1.0), (-1e-7, 0.0), (1.5, 1.5), (math.nan, None)):
        revealer = make_feedback("bandit", plans=plans, reward=off(value))
        feedback = reveal_one(revealer, played(0, 1, 1, plans=plans))
        assert shown(feedback) == ({} if expected is None else {0: expected})
    bad = make_feedback("bandit", plans=plans, reward=off(1.5))
    told = bad.reveal(*played(0, 1, 1, plans=plans))
    with pytest.raises(ValueError, match="outside"):
        make_policy("ucb1", 1).learn(*told[0])


def test_a_plain_function_is_a_reward() -> None:
    def reward(outcome: Outcome) -> float:
        return outcome.plan.length / outcome.max_length

    revealer = make_feedback("panoramic", plans=TWO, reward=reward)
    assert shown(reveal_one(revealer, panorama(1, 10, [0.5, 0.5], [0.5, 0.5]))) == {0: 1, 1: 1}


@pytest.mark.parametrize("feedback", sorted(FEEDBACKS))
@pytest.mark.parametrize("reward", ["length", "divergence", "expected-length", "acceptance"])
@pytest.mark.parametrize("policy", ["ucb1", "exp3spec", "normalhedge", "goodput"])
def test_everything_composes(feedback: str, reward: str, policy: str) -> None:
    """Any policy, reward and feedback together run 60 rounds over mixed plans without an error."""
    rng = np.random.default_rng(0)
    chooser = make_policy(policy, len(PLANS), plans=PLANS)
    revealer, at, learned = make(feedback, reward), 0, 0
    for _ in range(60):
        decision = chooser.choose()
        plan = PLANS[decision.plan]
        accepted = int(rng.integers(0, plan.length + 1))
        told = {name: scores(rng.random(accepted + 1), at) for name in ("a", "b")}
        told["lookup"] = scores(rng.random(accepted + 1), at, matches=[1] * (accepted + 1))
        evidence = RoundFacts(
            plan, plan.length, accepted, told, rng.random(plan.length), at, 0.1,
            matches={"lookup": 1},
        )  # fmt: skip
        for made, outcome in [*revealer.reveal(decision, evidence)]:
            chooser.learn(made, outcome)
            learned += 1
        at += accepted + 1
    late = learned + len(revealer.flush())
    assert late == 60 if feedback != "free" else late >= 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("panoramic:every=0", "every"), ("panoramic:delay=-1", "delay"),
        ("panoramic:hybrid=-1", "hybrid"), ("panoramic:warmup=-1", "warmup"),
        ("bandit:switching=-1", "switching"), ("free:switching=nan", "switching"),
        ("bandit:delay=1", "its options are: switching"), ("all", "bandit, prefix, free"),
        ("prefix:longer=2", "true or false"),
    ],
)  # fmt: skip
def test_bad_specs_say_what_is_valid(text: str, message: str) -> None:
    with pytest.raises(DraftwiseError, match=message):
        make(text)


def test_a_tree_says_nothing_of_chains_nor_a_chain_of_trees() -> None:
    """A tree round does not reveal how many tokens a chain would have got, nor vice versa."""
    chain, tree = Plan("a", 4), Plan("a", 4, tree=TreeShape(2, 8))
    for played, asked in ((chain, tree), (tree, chain), (tree, tree)):
        assert drafted_by(asked, Evidence(played, num_drafted=4, num_accepted=1)) is None
