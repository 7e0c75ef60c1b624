"""Sampling a target's answers to many prompts, in batches, with results on disk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from draftwise.nn.model import CausalModel, cache_argument
from draftwise_lab.train.columns import Columns, columnwise
from draftwise_lab.train.data import Text, TextOutputs

Keep = Callable[[int, list[int], TextOutputs], None]
BLOCK = 256  # tokens of the vocabulary: a draw reads the sums of all blocks, and one block


@dataclass(frozen=True, slots=True)
class SamplingTask:
    """A prompt of at least one token, and its temperature; 0 is greedy."""

    prompt: Sequence[int]
    temperature: float = 1.0


@torch.inference_mode()
def continuations(
    model: CausalModel,
    tasks: Mapping[int, SamplingTask],
    *,
    max_new_tokens: int,
    eos_token_ids: Sequence[int],
    rows: int,
    seed: int,
    taps: Sequence[int] = (),
    keep: Keep | None = None,
) -> Generator[tuple[int, list[int]]]:
    """Yield (index, new tokens) of every prompt in order of completion, including end tokens.

    Prompts of similar length run together, ``rows`` at a time. Each prompt draws from a generator
    seeded by ``seed`` and its index, so other prompts affect its answer only through rounding.
    keep: gets each answer's index, its tokens and the model's outputs over prompt and answer, with
    the hidden states ``taps``. Errors: ValueError for a prompt that leaves no room within the
    model's positions.
    """
    longest = max((len(task.prompt) for task in tasks.values()), default=1)
    if longest + max_new_tokens > model.max_positions:
        raise ValueError(f"prompts of {longest} tokens leave no room for {max_new_tokens} more")
    waiting = sorted(tasks.items(), key=lambda pair: len(pair[1].prompt))
    with columnwise(model.module):
        while waiting:
            width = len(waiting[0][1].prompt)
            # recurrent layers would read the pads, so their prompts must be of one length
            most = sum(len(task.prompt) == width or not model.has_states for _, task in waiting)
            num = min(rows, most)
            batch = _Batch(model, waiting[:num], seed, taps if keep else None)
            for index, tokens in batch.run(max_new_tokens, eos_token_ids):
                if keep:
                    keep(index, tokens, batch.outputs(index))
                yield index, tokens
            del waiting[:num]


class _Batch:
    """Prompts that run together, padded on the left; a prefix that all share is fed once."""

    def __init__(
        self, model: CausalModel, tasks: Sequence[tuple[int, SamplingTask]], seed: int,
        taps: Sequence[int] | None,
    ) -> None:  # fmt: skip
        self._module, device = model.module, model.device
        self._cache_name, _ = cache_argument(self._module)
        self._cache = DynamicCache(config=self._module.config)
        prompts, shared = [list(task.prompt) for _, task in tasks], 0
        if not model.has_states:
            self._cache.layers = [Columns() for _ in self._cache.layers]
            columns = zip(*(own[:-1] for own in prompts), strict=False)
            shared = sum(1 for _ in takewhile(lambda own: len(set(own)) == 1, columns))
        width = max(map(len, prompts))
        pads = [width - len(own) for own in prompts]
        tokens = [[0] * num + own for num, own in zip(pads, prompts, strict=True)]
        real = [[0] * num + [1] * (width - num) for num in pads]
        self._mask = torch.tensor(real, device=device)
        self._fed = torch.tensor(tokens, device=device)[:, shared:]
        self._taps, self._states = taps, list[Tensor]()
        if shared:
            whole = torch.tensor([prompts[0][:shared]], device=device)
            self._forward(whole, torch.ones_like(whole))
            for layer in self._cache.layers:
                layer.shift(torch.tensor(pads, device=device))
        self._heats = torch.tensor([task.temperature for _, task in tasks], device=device)
        self._rows = [index for index, _ in tasks]
        self._rngs = [torch.Generator().manual_seed(seed * 1_000_003 + i) for i in self._rows]
        # of each row, the states of the tokens that have been fed, and the likeliest next tokens
        first = [state[0] for state in self._states]
        self._seen = {
            index: ([state[: max(0, shared - num)] for state in first], list[Tensor]())
            for index, num in zip(self._rows, pads, strict=True)
        }

    def run(self, most: int, ends: Collection[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield each answer when it ends; the rows of an eighth that has ended leave the batch."""
        running: dict[int, list[int]] = {index: [] for index in self._rows}
        for num in range(1, most + 1):
            for index, token in zip(self._rows, self._step(), strict=True):
                if index in running:
                    running[index].append(token)
                    if token in ends or num == most:
                        yield index, running.pop(index)
            if not running:
                return
            if 8 * len(running) <= 7 * len(self._rows):
                self._keep([row for row, index in enumerate(self._rows) if index in running])

    def outputs(self, index: int) -> TextOutputs:
        """What was kept of a row that has ended; the states of its last token are unknown."""
        states, best = self._seen.pop(index)
        joined, num = torch.cat(states), len(best)
        size = int(self._module.config.get_text_config().hidden_size)
        tapped = nn.functional.pad(joined[:, :-size], (0, 0, 0, 1))
        return TextOutputs(tapped, joined[-num:, -size:], torch.stack(best))

    def _step(self) -> list[int]:
        logits = self._forward(self._fed, self._mask)
        if self._taps is not None:
            best, states = logits.max(-1).indices.cpu(), self._states.pop()
            real = self._mask[:, -states.shape[1] :].bool().cpu()
            for row, index in enumerate(self._rows):
                if index in self._seen:
                    self._seen[index][0].append(states[row][real[row]])
                    self._seen[index][1].append(best[row])
        uniforms = torch.cat([torch.rand(1, generator=rng) for rng in self._rngs])
        drawn = sampled(logits, self._heats, uniforms.to(logits.device))
        self._fed, self._mask = drawn[:, None], nn.functional.pad(self._mask, (0, 1), value=1)
        return list(drawn.tolist())

    def _forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """[R, V] logits after the tokens [R, T]; mask: [R, S], 1 for all tokens up to them."""
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        output = self._module(
            input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True,
            logits_to_keep=1, output_hidden_states=self._taps is not None,
            **{self._cache_name: self._cache},
        )  # fmt: skip
        if self._taps is not None:
            hidden = output.hidden_states
            wanted = [hidden[tap] for tap in self._taps] + [hidden[-1]]
            self._states.append(torch.cat(wanted, dim=-1).cpu())
        logits: Tensor = output.logits[:, -1]
        return logits

    def _keep(self, rows: Sequence[int]) -> None:
        index = torch.tensor(rows, device=self._fed.device)
        self._cache.batch_select_indices(index)
        self._fed, self._mask, self._heats = self._fed[index], self._mask[index], self._heats[index]
        self._rows, self._rngs = [self._rows[i] for i in rows], [self._rngs[i] for i in rows]


def sampled(logits: Tensor, heats: Tensor, uniforms: Tensor) -> Tensor:
    """[R] tokens from logits [R, V] at temperatures [R] (0 = the likeliest), by uniforms [R].

    The inverse of the distribution function, in two steps: first the block, then the token in it.
    """
    warm, cold = heats.nonzero()[:, 0], (heats == 0).nonzero()[:, 0]
    tokens = torch.empty(len(logits), dtype=torch.long, device=logits.device)
    tokens[cold] = logits[cold].max(-1).indices  # ``argmax`` takes five times as long on CPUs
    probs = (logits[warm].float() / heats[warm, None]).softmax(-1)
    num_blocks = -(-probs.shape[1] // BLOCK)
    blocks = nn.functional.pad(probs, (0, -probs.shape[1] % BLOCK))
    blocks = blocks.view(-1, num_blocks, BLOCK)
    sums = blocks.sum(-1)
    block, rest = _inverse(sums, uniforms[warm] * sums.sum(-1))
    place, _ = _inverse(blocks[torch.arange(len(warm)), block], rest)
    tokens[warm] = block * BLOCK + place
    return tokens


def _inverse(masses: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """[n] indices at which the sums of masses [n, m] exceed ``wanted`` [n], and what is left."""
    ends = masses.double().cumsum(-1)
    index = torch.searchsorted(ends, wanted.double()[:, None], right=True)
    last = masses.shape[1] - 1 - (masses > 0).flip(-1).int().argmax(-1, keepdim=True)
    index = index.minimum(last)  # rounding may leave a little beyond the last
    before = (ends - masses).gather(-1, index)
    return index[:, 0], wanted - before[:, 0]


def answers(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    path: Path,
    *,
    max_new_tokens: int,
    eos_token_id: int,
    seed: int,
    rows: int,
    progress: Callable[[int], None] | None = None,
    taps: Sequence[int] = (),
    states: Path | None = None,
    deadline: float = math.inf,
) -> list[Text]:
    """Sample the target's answers to `prompts`, each at its temperature, `rows` at a time.

    Source: MetaSD, appendix F.1 (self-distilled data). Each answer is written to `path` when it is
    complete and sampled with `seed` and its index, so an interrupted run resumes. states: the
    folder in which ``observed_batches`` finds the target's hidden states ``taps``. deadline: of
    ``time.monotonic``, after which only the prompts that have an answer are returned. Errors:
    OSError if a file cannot be written.
    """
    found = dict(read_kept(path))
    every = enumerate(zip(prompts, temperatures, strict=True))
    tasks = {index: SamplingTask(*pair) for index, pair in every if index not in found}
    path.parent.mkdir(parents=True, exist_ok=True)

    def text(index: int, answer: Sequence[int]) -> Text:
        return Text((*prompts[index], *answer), len(prompts[index]))

    def keep(index: int, answer: Sequence[int], outputs: TextOutputs) -> None:
        assert states is not None
        outputs.save(states, text(index, answer), target.dtype)

    said = continuations(
        CausalModel(target, "target"), tasks, max_new_tokens=max_new_tokens,
        eos_token_ids=[eos_token_id], rows=rows, seed=seed, taps=taps,
        keep=None if states is None else keep,
    )  # fmt: skip
    with path.open("a", encoding="utf-8", buffering=1) as file, closing(said):
        while time.monotonic() < deadline and (pair := next(said, None)):
            index, answer = pair
            found[index] = answer
            file.write(json.dumps([index, *answer]) + "\n")
            if progress is not None:
                progress(len(found))
    return [text(index, found[index]) for index in range(len(prompts)) if index in found]


def read_kept(path: Path) -> list[tuple[int, list[Any]]]:
    """(index, tokens or text) of each complete line; a truncated last line is removed."""
    if not path.exists():
        return []
    text = path.read_text("utf-8")
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, "utf-8")
    return [(row[0], row[1:]) for row in map(json.loads, text.splitlines())]
