"""What every policy checks of its feedback: whatever is not in [0, 1] is turned away."""

from __future__ import annotations

import numpy as np

from draftwise.types import Bools, Decision, Feedback, Floats


def check_feedback(decision: Decision, feedback: Feedback, num_plans: int) -> tuple[Floats, Bools]:
    """``values`` [K] and ``seen`` [K] of a feedback that is fit to be learned from.

    Only the seen entries are examined; the others may hold anything.
    Errors: ValueError for a plan outside 0 .. K-1, a probability outside (0, 1], a shape that is
    not [K], a ``seen`` that is not boolean, or a seen value that is not a number in [0, 1].

    >>> fine = Feedback(np.array([0.5, 9.0]), np.array([True, False]))
    >>> check_feedback(Decision(0, 1.0, 1), fine, 2)[1].tolist()
    [True, False]
    """
    if not 0 <= decision.plan < num_plans:
        raise ValueError(f"the decision's plan {decision.plan} is not one of 0..{num_plans - 1}")
    if not 0.0 < decision.prob <= 1.0:
        raise ValueError(f"the decision's probability {decision.prob} is not in (0, 1]")
    values = np.asarray(feedback.values, dtype=np.float64)
    seen = np.asarray(feedback.seen)
    if values.shape != (num_plans,) or seen.shape != (num_plans,) or seen.dtype != np.bool_:
        raise ValueError(
            f"feedback has values {values.shape} and seen {seen.shape} of {seen.dtype}; "
            f"both must be ({num_plans},), and seen boolean"
        )
    told = values[seen]
    if told.size and not (np.minimum.reduce(told) >= 0.0 and np.maximum.reduce(told) <= 1.0):
        raise ValueError(
            f"a seen value lies outside [0, 1]: {told.tolist()}; rewards must be scaled to [0, 1]"
        )
    return values, seen
