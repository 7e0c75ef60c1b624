"""What speculation did for one response: vLLM's ``metrics.speculative_decoding``, and our own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from draftwise.engine.request import Stats


def speculative_decoding(rounds: Sequence[tuple[int, int]], num_spec_tokens: int) -> dict[str, Any]:
    """vLLM's form. rounds: (drafted, accepted) a round; those without a draft are no spec steps.

    >>> speculative_decoding([(2, 1), (0, 0), (2, 2)], 2)["acceptance_histogram"]
    [0, 1, 1]
    """
    steps = [(drafted, accepted) for drafted, accepted in rounds if drafted]
    num_drafted, num_accepted = (sum(step[i] for step in steps) for i in (0, 1))
    histogram = Counter(min(accepted, num_spec_tokens) for _, accepted in steps)
    return {
        "mean_acceptance_length": 1 + num_accepted / len(steps) if steps else 1.0,
        "draft_acceptance_rate": num_accepted / num_drafted if num_drafted else 0.0,
        "acceptance_histogram": [histogram[n] for n in range(num_spec_tokens + 1)],
        "num_spec_steps": len(steps),
        "num_accepted_draft_tokens": num_accepted,
        "num_draft_tokens": num_drafted,
        "num_spec_tokens": num_spec_tokens,
    }


def own_counts(stats: Iterable[Stats]) -> dict[str, Any]:
    """Rounds, emitted tokens and pulls by drafter over all answers of a response."""
    pulls: Counter[str] = Counter()
    num_rounds = num_emitted = 0
    for one in stats:
        pulls += one.pulls
        num_rounds, num_emitted = num_rounds + one.num_rounds, num_emitted + one.num_emitted
    return {
        "num_rounds": num_rounds,
        "mean_accepted_tokens": num_emitted / num_rounds if num_rounds else 0.0,
        "pulls": dict(pulls),
    }
