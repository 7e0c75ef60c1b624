"""A head that goes on learning from what its target said, while nothing is asked."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from draftwise.nn.heads.eagle import EagleHead
from draftwise.nn.model import CausalModel
from draftwise.train.data import Observed, Text, observe
from draftwise.train.eagle import eagle_loss
from draftwise.train.loop import TrainingSettings, make_optimizer

LONGEST = 1024
"""Of a text, only the last so many tokens are read."""


class DrafterAdapter:
    """An EAGLE head's second life: a copy learns from verified texts, and the head takes it over.

    Source: the idea of Test-Time Speculation (arXiv 2605.09329); the loss is the head's own
        (``eagle_loss``). Lossless by construction: whatever a head's weights are, its drafts are
        verified with the q that they were sampled from, and weights change between answers only.
    Update: a step is on the newest text, and on one of the older ones, so that a topic does not
        wipe out what was known; every text is learned ``repeats`` times as the newest.
    State: a copy of the head and of AdamW's moments, in float32; the last ``most`` tokens of text.
    Cost: one forward of the target a text and some of the head a step, in time that is given.
    """

    def __init__(
        self,
        target: CausalModel,
        head: EagleHead,
        *,
        lr: float = 3e-4,
        num_passes: int = 3,
        repeats: int = 4,
        most: int = 8192,
    ) -> None:
        self._target, self._head = target, head
        self._num_passes, self._repeats, self._most = num_passes, repeats, most
        lent = {id(module): module for module in head.borrowed if module is not None}
        self._learner = copy.deepcopy(head, dict(lent)).float().train()
        for name, weights in self._learner.named_parameters():
            weights.requires_grad_(name.partition(".")[0] not in {"embed_tokens", "lm_head"})
        settings = TrainingSettings(1, lr, warmup_steps=0, weight_decay=0.0)
        self._optimizer = make_optimizer(self._learner, settings)
        self._draws = torch.Generator().manual_seed(0)
        self._texts: deque[Text] = deque()
        self._batches: deque[Observed] = deque()
        self._left = 0
        self.num_steps = 0

    def hear(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """An answer of the target's, to be learned from; too short ones teach nothing."""
        tokens = (*prompt, *answer)[-LONGEST:]
        start = max(1, len(tokens) - len(answer))
        if len(tokens) - start < 2 or len(tokens) < 3:
            return
        self._texts.append(Text(tuple(tokens), start))
        self._left += self._repeats
        while sum(len(text.tokens) for text in self._texts) > self._most and len(self._texts) > 1:
            self._texts.popleft()
            if self._batches:
                self._batches.popleft()

    def step(self) -> bool:
        """Learn once, if something is left to be learned; whether it did."""
        if not self._left:
            return False
        while len(self._batches) < len(self._texts):  # what the target says of the new ones
            text = self._texts[len(self._batches)]
            self._batches.append(observe(self._target.module, [text], self._head.taps))
        newest = len(self._batches) - 1
        older = int(torch.randint(len(self._batches), (1,), generator=self._draws))
        is_half = self._target.dtype != torch.float32
        with (
            torch.enable_grad(),
            torch.autocast(self._target.device.type, torch.bfloat16, enabled=is_half),
        ):
            losses = [
                eagle_loss(self._learner, self._batches[place], self._num_passes)
                for place in {newest, older}
            ]
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._learner.parameters(), 0.5)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._left -= 1
        self.num_steps += 1
        return True

    @torch.no_grad()
    def apply(self) -> None:
        """Let the head draft with what was learned: between answers only."""
        theirs = dict(self._learner.named_parameters())
        for name, weights in self._head.named_parameters():
            weights.copy_(theirs[name])

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Learn in a thread of its own while the block runs (it waits for the user), then apply."""
        ended = threading.Event()

        def learn() -> None:
            while not ended.is_set() and self.step():
                pass

        thread = threading.Thread(target=learn, name="adapt", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            self.apply()
