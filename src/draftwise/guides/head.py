"""Stop where a trained head believes that some token of the draft will be rejected."""

from __future__ import annotations

from pathlib import Path

from draftwise.checks import flag, probability
from draftwise.guides.head_file import HeadWeights, read_head
from draftwise.types import DraftStep, DraftwiseError


class Head:
    """Stop when ``1 - prod_i P(token i is accepted)``, as a head predicts it, exceeds ``h``.

    Source: SpecDec++, section 4.3, equation 4.1 and algorithm 1; h 0.7 as section 5.3 recommends
        for w_rej = 6, D = 3. Written ``head:PATH,h=0.7``; without a path it is the folder ``head``
        beside the drafter's weights.
    Update: none online; ``draftwise train head`` makes the weights.
    Differs: (1) the product covers the token just kept, as section 4.3 defines the stopping rule;
        algorithm 1 and the authors' code judge the token before it (``lag=true``: the last token is
        never judged before it is submitted); (2) where no hidden state is shown (drafts of
        retrieval) the head knows nothing, and goes on.
    State: the product over the draft that grows, a float. Cost: O((D + 1) H^2) a token for D layers
        of hidden size H, on one core: 16 microseconds at H = 128 and D = 3, 9 milliseconds at 4096.
    Errors: ValueError if h is not in [0, 1]; DraftwiseError for a folder without a head that can
        be read, or, once it is used, where neither a path nor a drafter's folder is known.

    >>> import tempfile
    >>> Head(None, tempfile.gettempdir() + "/nothing/here")
    Traceback (most recent call last):
        ...
    draftwise.errors.DraftwiseError: there is no acceptance head in ...
    """

    needs_probs = False
    is_pure = always_goes_on = False

    def __init__(
        self, home: Path | None, path: str | None = None, h: float = 0.7, lag: bool = False
    ) -> None:
        self._threshold, self._lag = probability("h", h), flag("lag", lag)
        self.waits_for_hidden = not lag
        folder = Path(path) if path is not None else home / "head" if home is not None else None
        self._loaded = None if folder is None else read_head(folder)
        self._survival = 1.0

    @property
    def needs_hidden(self) -> int:
        """The size of the hidden states that it reads."""
        return self._weights.hidden_size

    @property
    def survival(self) -> float:
        """The predicted probability that every token judged so far is accepted."""
        return self._survival

    def goes_on(self, step: DraftStep) -> bool:
        """Whether the draft probably stands; always at depth 0."""
        if step.depth == 0:
            self._survival = 1.0
            return True
        hidden = step.hidden_before if self._lag else step.hidden
        is_first_of_lag = self._lag and step.depth == 1
        if hidden is not None and not is_first_of_lag:
            self._survival *= self._weights.acceptance(hidden)
        return 1.0 - self._survival <= self._threshold

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        """Nothing to learn."""

    @property
    def _weights(self) -> HeadWeights:
        if self._loaded is None:
            raise DraftwiseError(
                "rule 'head' has no weights: write head:PATH, or use it on a drafter whose folder "
                "holds one (draftwise train head --out DRAFTER/head)"
            )
        return self._loaded
