"""Logits padded to different sizes: the tokens that a drafter and its target share.

Qwen2.5 has 151,665 tokens, and 151,936 rows of logits as 0.5B and 152,064 as 7B.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True)
class Shared:
    """The first ``num`` tokens, of the drafter's ``own`` rows of logits and the target's ``size``.

    q is normalised over them; the others are padding, or words that the target alone has.
    """

    num: int
    own: int
    size: int

    def readable(self, tokens: Sequence[int]) -> Sequence[int]:
        """The drafter has no embedding for the target's last rows: it reads its own last one."""
        if self.own >= self.size:
            return tokens
        return [min(token, self.own - 1) for token in tokens]

    def spread(self, logits: Tensor) -> Tensor:
        """[..., own] as [..., size], minus infinity for what is not shared."""
        if self.own == self.size:
            return logits
        return pad(logits[..., : self.num], (0, self.size - self.num), value=float("-inf"))
