"""A model with scripted distributions by position, and a policy that plays a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from draftwise.controller.goodput import Goodput
from draftwise.controller.guard import NO_GUARD
from draftwise.drafters.lm import LMDrafter
from draftwise.nn.cache import UNLIMITED, RaggedCache
from draftwise.nn.model import Logits
from draftwise.registry import Preset
from draftwise.speculator import Speculator
from draftwise.types import Decision, DraftStep, Feedback, Floats

VOCAB = 64
PROMPT = [0]


class Scripted:
    """Stands in for a ``CausalModel``: after the prompt ``[0]`` its answer is the script.

    A token of -1 in the script gives logits that are not finite; every ``wrong``-th position gets
    another token. ``fed`` counts the input tokens.
    """

    def __init__(self, script: Sequence[int], name: str = "target", wrong: int = 0) -> None:
        self.name, self.vocab_size, self.max_positions, self.num_parameters = name, VOCAB, 10**6, 1
        self.module, self.is_current = torch.nn.Module(), True
        self.device = torch.device("cpu")
        self.packs, self.token_bytes = False, 8
        self.serves_trees, self.taps = False, frozenset[int]()
        self.num_layers = self.hidden_size = 1
        self._script = [0, *script, *[0] * 100]
        for position in range(wrong, len(self._script), wrong) if wrong else ():
            self._script[position] = (self._script[position] + 1) % VOCAB
        self.fed = 0

    def new_cache(self, num_rows: int = 0, capacity: int = UNLIMITED) -> RaggedCache:
        return RaggedCache(num_rows, capacity)

    def extend(
        self,
        cache: RaggedCache,
        rows: Sequence[int],
        tokens: Sequence[Sequence[int]],
        keep: int,
        trees: Sequence[Any] = (),
    ) -> Logits:
        assert not any(trees)
        counts = [len(t) for t in tokens]
        block = torch.zeros(len(rows), max(counts), VOCAB)
        for index, (row, count) in enumerate(zip(rows, counts, strict=True)):
            for step in range(count):
                token = self._script[cache.lengths[row] + step + 1]
                block[index, step, token] = float("nan") if token < 0 else 20.0
            cache.lengths[row] += count
        self.fed += sum(counts)
        width = max(counts)
        ends = [row * width + count for row, count in enumerate(counts)]
        return Logits(block.flatten(0, 1), ends, sum(counts))


class Playlist:
    """A policy that plays the plans of a list, then the last plan for ever."""

    def __init__(self, plans: Sequence[int], num_plans: int) -> None:
        self._plans, self._num_plans, self._num = list(plans), num_plans, 0
        self.heard: list[Feedback] = []

    def choose(self) -> Decision:
        plan = self._plans[min(self._num, len(self._plans) - 1)]
        self._num += 1
        return Decision(plan, 1.0, self._num)

    def learn(self, decision: Decision, feedback: Feedback) -> None:
        self.heard.append(feedback)

    def probabilities(self) -> Floats:
        return np.full(self._num_plans, 1 / self._num_plans)

    def estimates(self) -> Floats:
        return np.zeros(self._num_plans)


def scripted(
    script: Sequence[int], length: int = 4, wrong: int = 0, tokenizer: Any = None
) -> Speculator:
    """A scripted target, and a drafter that errs at every ``wrong``-th position of the script."""
    target: Any = Scripted(script)
    drafter = LMDrafter("knows", Scripted(script, "knows", wrong), target)  # type: ignore[arg-type]
    setting = Preset("fixed:0", "length", "free", (length,))
    return Speculator(target, tokenizer, [drafter], setting, seed=0)


def byte_tokenizer(merges: Sequence[str] = ("the", "re", "日", "本")) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of fewer than 64 tokens: letters, the bytes of é, ü, 日 and 本, and a
    few longer strings as single tokens."""
    alphabet = byte_letters("abcdefghijklmnopqrstuvwxyz .éà日本")
    pieces = [*dict.fromkeys(alphabet), *(byte_letters(m) for m in merges)]
    vocab: Mapping[str, int] = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    assert len(vocab) < VOCAB
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocab), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def byte_letters(text: str) -> str:
    """The letters by which byte-level tokenizers write the bytes of a text."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return "".join(piece for piece, _ in level.pre_tokenize_str(text))


class Alternating:
    """A logits processor under which odd tokens follow even ones and vice versa."""

    def __call__(self, text: Sequence[int], logits: Tensor) -> Tensor:
        masked = logits.clone()
        masked[text[-1] % 2 :: 2] = float("-inf")
        return masked

    def num_allowed(self, text: Sequence[int], num: int) -> int:
        pairs = pairwise(text[len(text) - num - 1 :])
        return next((i for i, (a, b) in enumerate(pairs) if a % 2 == b % 2), num)


class CoinMixer:
    """A mixer that draws the source of each token at random: a drafter, a match, or none."""

    def __init__(self, drafter: str, length: int, seed: int) -> None:
        self.drafter, self.length, self._rng = drafter, length, np.random.default_rng(seed)

    def pick(
        self,
        step: DraftStep,
        matches: Mapping[str, int],
        may_draft: bool = True,
        may_branch: bool = False,
    ) -> str | None:
        found = [name for name, match in matches.items() if match]
        # the choice may depend on the last kept token, which is known before the next one is drawn
        ends = 0.1 if step.max_prob > 0.4 else 0.3
        if self._rng.random() < ends:
            return None
        able = [*([self.drafter] if may_draft else []), *found]
        return str(self._rng.choice(able)) if able else None

    def num_siblings(self, step: DraftStep, room: int) -> int:
        return int(self._rng.integers(5)) if step.max_prob < 0.6 else 1

    def branch(
        self, depth: int, confidence: float, matches: Mapping[str, int], width: int, room: int
    ) -> tuple[str, int]:
        # the choice may depend on the drafted token, too, which is known by then
        return str(self._rng.choice(sorted(matches))), int(self._rng.integers(room + 1))


class Mixing(Playlist, Goodput):
    """draftwise's own policy with drafts that are always mixed, at random."""

    def __init__(self, drafter: str, length: int, num_plans: int, seed: int) -> None:
        super().__init__([1], num_plans)
        self.mixer = CoinMixer(drafter, length, seed)

    @property
    def advantage(self) -> float:
        return float("inf")  # the guard suspends no draft

    def drafters_to_probe(self, num_rows: int = 1) -> Sequence[str]:
        return ()

    def new_memory(self) -> Any:
        return None

    def recall(self, *_: Any) -> None: ...

    def read(self, *_: Any) -> None: ...


def mixing(made: Speculator, drafter: str, length: int) -> Speculator:
    """The speculator with a mixing policy in each of its requests, and without a guard."""
    seeds = iter(range(10**6))

    def policy(prompt: Sequence[int], seed: Any, *_: Any, **options: Any) -> Mixing:
        return Mixing(drafter, length, len(made.plans), next(seeds))

    made._learning._policy = policy  # type: ignore[assignment, method-assign]
    made._pool.guard.tuning = NO_GUARD
    return made
