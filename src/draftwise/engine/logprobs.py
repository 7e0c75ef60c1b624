"""Log-probabilities of tokens, from the logits that were computed anyway."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from draftwise.types import Floats


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the target thought of one token: raw log-probabilities, before temperature and cuts.

    top: the likeliest tokens and theirs, as many as were asked for, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def logprobs(logits: Tensor, tokens: Tensor, num_top: int) -> list[Tensor]:
    """What the target thought of [n] tokens: theirs [n, 2], and the likeliest [n, k] twice.

    logits: [n, V] before each of them. Raw: before temperature, penalties and cuts, as vLLM reports
    them. Returns tokens beside their log-probabilities, then the likeliest tokens, then theirs.
    """
    found = logits.float().log_softmax(-1)
    own = found.gather(1, tokens.clamp(min=0)[:, None])[:, 0].double()
    best = found.topk(max(1, num_top), dim=-1)
    pairs = own.new_zeros((len(own), 2))
    pairs[:, 0], pairs[:, 1] = tokens, own
    return [pairs, best.indices[:, :num_top], best.values[:, :num_top]]


def as_logprobs(pairs: Floats, ids: Floats, values: Floats) -> list[TokenLogprobs]:
    """The same on the host, one a token."""
    return [
        TokenLogprobs(int(token), value, tuple(zip(map(int, those), theirs, strict=True)))
        for (token, value), those, theirs in zip(
            pairs.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]
