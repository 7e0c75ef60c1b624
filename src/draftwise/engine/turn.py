"""One request in one round: what was chosen, drafted, verified, kept, and made known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from draftwise.drafters.protocol import Context
from draftwise.engine.logprobs import TokenLogprobs
from draftwise.engine.request import Request
from draftwise.types import NONE, PLAIN, Decision, Draft, Floats, Plan, Scores, Verdict

NOTHING = Verdict(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
"""The verdict of a turn that was not judged yet."""

EMPTY = Draft.chain([], None, NONE)
"""The draft of the plan ``none``, and of whatever has nothing to propose."""


@dataclass(slots=True)
class Turn:
    """A row of a round, filled in phase by phase.

    plans: what it plays; several only where the policy plays one of every drafter. parts: each
    drafter's draft, which stand side by side in ``draft``. played: what became of the first plan.
    logits: [N + 1, V] after the text and each node. hidden: by tap, [N + 1, D] states there.
    uniforms: [N + 1] of the nodes and of the bonus token. verdict: what is kept. alphas, ratios:
    [N] of the nodes, as in ``Scores``; asides: these two of the draft's asides. targets: p before
    each token of the verdict. logprobs: at each place, where asked for. judged: what verification
    shows of each drafter. waits: whether a drafter must read on first, so that what was chosen is
    played later. scores: all that became known of drafters.
    """

    request: Request
    decision: Decision
    plans: Sequence[Plan]
    parts: list[tuple[str, Draft]] = field(default_factory=list)
    draft: Draft = EMPTY
    played: Plan = PLAIN
    logits: Tensor | None = None
    hidden: Mapping[int, Tensor] = field(default_factory=dict)
    uniforms: Floats = field(default_factory=lambda: np.zeros(1))
    verdict: Verdict = NOTHING
    alphas: Floats = field(default_factory=lambda: np.zeros(0))
    ratios: Floats = field(default_factory=lambda: np.zeros(0))
    asides: list[tuple[float, float]] = field(default_factory=list)
    targets: Sequence[int | Tensor] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    judged: Mapping[str, Scores] = field(default_factory=dict)
    num_emitted: int = 0
    waits: bool = False
    scores: dict[str, Scores] = field(default_factory=dict)

    @property
    def context(self) -> Context:
        """The request's text, as drafters see it."""
        return self.request.context

    @property
    def row(self) -> int:
        """The request's row in every cache."""
        return self.request.context.row

    @property
    def fed(self) -> list[int]:
        """What the target reads: the text's last token, and the draft."""
        return [self.context.tokens[-1], *self.draft.tokens.tolist()]

    @property
    def kept(self) -> list[int]:
        """Of what was fed, the places that stay: the root, and accepted nodes that were emitted."""
        return [0, *(self.verdict.path + 1).tolist()][: self.num_emitted]
