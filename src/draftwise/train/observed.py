"""What a target says of texts: states that a drafter learns from, made once and kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from draftwise.lines import replacing
from draftwise.train.lesson import Text, group_order, groups, head_logits, pad


@dataclass(frozen=True)
class Observed:
    """What the target says of some texts.

    tokens [B, T] padded; positions [A], flat, that predict a learned token; states [B, T, F], the
    taps side by side; last [A, D], normed; best [A], favourite tokens; target: whose they are.
    """

    tokens: Tensor
    positions: Tensor
    states: Tensor
    last: Tensor
    best: Tensor
    target: PreTrainedModel

    @torch.no_grad()
    def logits(self, ids: Tensor | None = None) -> Tensor:
        """[A, V] the target's logits, or [A, len(ids)] of these tokens alone, which is cheaper."""
        return head_logits(self.target, self.last, ids).float()


@torch.no_grad()
def observe(target: PreTrainedModel, texts: Sequence[Text], taps: Sequence[int]) -> Observed:
    """One forward of the target over these texts."""
    tokens, positions = (x.to(target.device) for x in pad(texts))
    output = target.base_model(input_ids=tokens, use_cache=False, output_hidden_states=True)
    nothing = output.last_hidden_state[..., :0]
    states = torch.cat([nothing, *(output.hidden_states[tap] for tap in taps)], dim=-1)
    last = output.last_hidden_state.flatten(0, 1)[positions]
    best = head_logits(target, last).argmax(-1)
    return Observed(tokens, positions, states.float(), last, best, target)


def halved(states: Tensor, dtype: torch.dtype) -> Tensor:
    """In two bytes a number: bfloat16 where they come in it, or are too large for float16, as some
    of Gemma 3's are (above 65,504)."""
    half = states.half()
    return half if dtype != torch.bfloat16 and half.isfinite().all() else states.bfloat16()


def observed_batches(
    target: PreTrainedModel,
    lessons: Mapping[str, Sequence[Text]],
    taps: Sequence[int],
    *,
    seed: int,
    tokens_per_batch: int = 2048,
    keep: Path | None = None,
) -> Callable[[int], Observed]:
    """step -> batch, of one lesson each; every epoch goes through all in an order of its own.

    With ``keep``, what the target said is kept there, by lesson, in 2 (F + D) bytes a token, and
    it is asked once only: its logits are made anew of the states, over the tokens that a head can
    draft, which takes a hundredth of a forward.
    """
    table = [
        (name, number, group)
        for name, texts in lessons.items()
        for number, group in enumerate(groups(texts, tokens_per_batch))
    ]

    def batch(step: int) -> Observed:
        epoch, place = divmod(step, len(table))
        name, number, group = table[group_order(len(table), seed, epoch)[place]]
        path = None if keep is None else keep / name / f"{number}.pt"
        if path is not None and path.exists():
            kept = torch.load(path, map_location=target.device, weights_only=True)
            tokens, positions, states, last, best = kept
            return Observed(tokens, positions, states.float(), last.to(target.dtype), best, target)
        found = observe(target, [lessons[name][i] for i in group], taps)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            halves = (halved(found.states, target.dtype), halved(found.last, target.dtype))
            with replacing(path) as unfinished:
                torch.save([found.tokens, found.positions, *halves, found.best], unfinished)
        return found

    return batch
