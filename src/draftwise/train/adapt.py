"""Online training of an EAGLE head on its target's answers while the target is idle."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from draftwise.nn.heads.eagle import EagleHead
from draftwise.nn.model import CausalModel
from draftwise.train.data import Observed, Text, observe
from draftwise.train.eagle import eagle_loss
from draftwise.train.loop import TrainingRun, TrainingSettings

LONGEST = 1024  # maximum tokens used, from the end of a text


class DrafterAdapter:
    """Trains a copy of an EAGLE head on verified texts, and copies its weights to the head.

    Source: Test-Time Speculation (arXiv 2605.09329); the loss is ``eagle_loss``. Lossless: drafts
    are verified with the q that they were sampled from, and weights change between answers only.
    Each step uses the newest text and an older one, so that a new topic does not erase earlier
    ones; a text is the newest for ``repeats`` steps. State: the copy and AdamW's moments in
    float32; the last ``most`` tokens of text.
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
        self._learner = copy.deepcopy(head, lent).float().train()
        for name, weights in self._learner.named_parameters():
            weights.requires_grad_(not name.startswith(("embed_tokens.", "lm_head.")))
        bf16 = target.dtype != torch.float32
        settings = TrainingSettings(1 << 30, lr, 0, clip=0.5, weight_decay=0.0, bf16=bf16)
        self._run = TrainingRun(self._learner, settings)
        self._draws = torch.Generator().manual_seed(0)
        self._texts: deque[Text] = deque()
        self._batches: deque[Observed] = deque()
        self._left = 0

    def learn_from(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Add an answer of the target as training text; very short ones are ignored."""
        tokens = (*prompt, *answer)[-LONGEST:]
        start = max(1, len(tokens) - len(answer))
        if len(tokens) - start < 2:
            return
        self._texts.append(Text(tokens, start))
        self._left += self._repeats
        while sum(len(text.tokens) for text in self._texts) > self._most and len(self._texts) > 1:
            self._texts.popleft()
            if self._batches:
                self._batches.popleft()

    def step(self) -> bool:
        """Run a training step if there is text left to train on; return whether it did."""
        if not self._left:
            return False
        for text in list(self._texts)[len(self._batches) :]:
            self._batches.append(observe(self._target.module, [text], self._head.taps))
        newest = len(self._batches) - 1
        older = int(torch.randint(len(self._batches), (1,), generator=self._draws))
        batches = [self._batches[place] for place in {newest, older}]
        with torch.enable_grad():
            self._run.advance(self._loss, batches)
        self._left -= 1
        return True

    def _loss(self, learner: EagleHead, batches: Sequence[Observed]) -> Tensor:
        return torch.stack([eagle_loss(learner, b, self._num_passes) for b in batches]).mean()

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the trained weights to the head. Call it between answers only."""
        theirs = dict(self._learner.named_parameters())
        for name, weights in self._head.named_parameters():
            weights.copy_(theirs[name])

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Train in a background thread while the block waits for the user, then apply."""
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
