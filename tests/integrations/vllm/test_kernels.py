"""The kernels of runner V2 draft what their specification drafts, on random texts.

Triton's interpreter runs them without a GPU. PyPI's triton has 190 MB and is not among the test
dependencies: ``pip install triton==3.8.0``, or ``make test-vllm``.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftwise.controller.acceptance import new_tables
from draftwise.controller.mixing import MODEL as BY_MODEL
from draftwise.controller.mixing import NOTHING as BY_NOBODY
from draftwise.controller.mixing import Hazards, hazards_of
from integrations.vllm.plain_mixing import History, Row, mix

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
triton = pytest.importorskip("triton", reason="the kernels need triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM, WIDTH, RING = 6, 2500, 1100


@pytest.fixture(scope="module", autouse=True)
def interpreter() -> None:
    """Triton's interpreter as the driver of a machine without a GPU."""
    if DEVICE == "cpu":
        from triton import backends

        driver = SimpleNamespace(is_active=lambda: True)
        backends.backends["cpu"] = SimpleNamespace(compiler=None, driver=driver)


def tables(rng: np.random.Generator) -> Hazards:
    """Random hazards that respect neither order nor bounds."""
    made = new_tables(NUM)
    for table in (made.model, made.matches):
        table[..., 0] = rng.random(table.shape[:-1]) * table[..., 1] * 1.1
    return hazards_of(made)


class Batch:
    """Texts in shuffled slots. Rows that sampled nothing are parts of prompts."""

    def __init__(
        self, rng: np.random.Generator, num_rows: int, num_head: int, num_answers: int | None = None
    ) -> None:
        self.rng, self.num_head = rng, num_head
        alphabet = int(rng.choice([2, 3, 8, 200]))
        lengths = [int(n) for n in rng.choice([1, 2, 3, 30, 70, 1023, 1024, 1025, 2400], num_rows)]
        self.texts = [rng.integers(0, alphabet, n).astype(np.int32) for n in lengths]
        self.heads = [rng.integers(0, alphabet, num_head).astype(np.int32) for _ in self.texts]
        for text, head in zip(self.texts, self.heads, strict=True):
            if len(text) > 100 and rng.random() < 0.7:  # a long match, of the text or of both
                num, at = int(rng.integers(5, 45)), int(rng.integers(0, len(text) - 60))
                copied = text[at : at + num].copy()
                after = min(num_head, num) * int(rng.random() < 0.5)
                text[len(text) - num + after :] = copied[: num - after]
                head[:after] = copied[num - after :]
        self.slots = rng.permutation(num_rows + 2)[:num_rows]
        self.sampled = rng.integers(0, 4, num_rows)
        self.outcomes = rng.integers(0, 4, num_rows)
        self.tenants = rng.integers(-1, 2, num_rows)
        self.answers = [] if num_answers is None else self.history(num_answers, alphabet)
        self.rows = [
            Row(
                int(self.outcomes[i]), (float(rng.choice([0.5, 1.7])), float(rng.random() + 0.3)),
                bool(rng.random() < 0.8), bool(rng.random() < 0.8), int(rng.integers(0, NUM + 3)),
                int(self.tenants[i]),
            )
            for i in range(num_rows)
        ]  # fmt: skip

    def history(self, num: int, alphabet: int) -> list[tuple[np.ndarray, int]]:
        """Answers that repeat parts of the texts and heads, with their tenants."""
        rng, found = self.rng, []
        for i in rng.integers(0, len(self.texts), num):
            end = np.concatenate([self.texts[i][-40:], self.heads[i]])
            end = end[: len(end) - int(rng.integers(0, 2)) * self.num_head]
            more = rng.integers(0, alphabet, int(rng.integers(0, 12)))
            found.append((np.concatenate([end, more]).astype(np.int32), int(rng.integers(0, 2))))
        return found

    def draft(self, hazards: Hazards, price: float, told: np.ndarray | None = None) -> Any:
        from draftwise.integrations.vllm.kernels import ROW, Drafting

        num_slots = len(self.texts) + 2
        drafting = Drafting(num_slots, WIDTH, NUM, torch.device(DEVICE), RING * bool(self.answers))
        for answer, tenant in self.answers:
            drafting.remember(torch.from_numpy(answer).to(DEVICE), tenant)
        text = np.full((num_slots, WIDTH), 7, np.int32)
        lengths = np.zeros(num_slots, np.int32)
        given = np.zeros((len(self.texts), ROW), np.int32)
        for i, (slot, row) in enumerate(zip(self.slots, self.rows, strict=True)):
            text[slot, : len(self.texts[i])] = self.texts[i]
            lengths[slot] = len(self.texts[i])
            given[i, :4] = row.may_use_model, row.may_use_retrieval, row.room, 0
            given[i, 4:6] = np.array(row.factors, np.float32).view(np.int32)
            given[i, 6] = row.tenant
            drafting.memory[slot, 0] = row.outcome
        head = np.full((len(self.texts), NUM), 9, np.int64)
        for i, own in enumerate(self.heads):
            head[i, : self.num_head] = own
        flat = np.concatenate([hazards.model.ravel(), hazards.matches.ravel()])
        arrays = text, lengths, self.slots, self.sampled, 0 * self.sampled, head
        text, lengths, slots, sampled, rejected, head = (
            torch.from_numpy(array).to(DEVICE) for array in arrays
        )
        drafting(
            text, lengths, slots, sampled.int(), rejected.int(), head, self.num_head,
            torch.from_numpy(flat).to(DEVICE), torch.from_numpy(given).to(DEVICE), price,
            int(lengths.max()), None if told is None else torch.from_numpy(told).to(DEVICE),
        )  # fmt: skip
        return drafting


@pytest.mark.parametrize("num_head", [0, 1, 3, NUM])
@pytest.mark.parametrize(("num_answers", "is_given"), [(None, False), (3, True), (60, False)])
def test_drafts_are_those_of_the_specification(
    num_answers: int | None, is_given: bool, num_head: int
) -> None:
    """60 answers fill the ring more than once. is_given: whether vLLM tells confidence."""
    rng = np.random.default_rng(10 * (num_answers or 0) + num_head)
    batch, hazards, price = (
        Batch(rng, 10, num_head, num_answers),
        tables(rng),
        float(rng.choice([0.0, 0.3])),
    )
    told = rng.random((10, NUM)).astype(np.float32) if is_given else None
    done = batch.draft(hazards, price, told)
    history = History(done.ring.cpu().numpy(), done.owners.cpu().numpy(), done.newest)
    for i, (text, head, row) in enumerate(zip(batch.texts, batch.heads, batch.rows, strict=True)):
        facts = done.facts[i].tolist()
        drafter, num_written = facts[-2:]
        if not batch.sampled[i]:
            assert (drafter, num_written) == (BY_NOBODY, -1)
            continue
        wanted = mix(
            text,
            head,
            hazards,
            row,
            price,
            history if batch.answers else None,
            told[i, :num_head] if told is not None else None,
        )
        own, after = wanted.matches
        assert facts[:NUM] == wanted.own.tolist()
        assert facts[NUM : 2 * NUM] == wanted.after.tolist()
        assert facts[2 * NUM : 3 * NUM] == head.tolist() + [-1] * (NUM - num_head)
        found = [own.length, own.hits, own.agree, after.length, after.hits, after.agree]
        assert facts[4 * NUM : -2] == found
        seen = [1e-6 * num for num in facts[3 * NUM : 4 * NUM]]
        assert seen == pytest.approx(wanted.confidence.tolist(), abs=2e-5)
        assert (drafter, num_written) == (wanted.drafter, num_head)
        assert done.drafts[i].tolist() == wanted.draft.tolist()
        assert done.confidence[i].tolist() == pytest.approx(wanted.confidence.tolist(), abs=1e-5)
        assert done.memory[batch.slots[i]].tolist() == [
            row.outcome, num_head * (drafter == BY_MODEL)
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("played", "sampled", "rejected", "is_new", "outcome"),
    [
        (3, 1, 4, 0, 1), (3, 2, 2, 0, 2), (3, 4, 2, 0, 3), (3, 3, 0, 0, 3), (3, 1, 0, 0, 2),
        (0, 3, 1, 0, 2), (3, 0, 0, 0, 2), (3, 2, 2, 1, 0),
    ],
)  # fmt: skip
def test_the_outcome_of_the_model_s_last_draft(
    played: int, sampled: int, rejected: int, is_new: int, outcome: int
) -> None:
    """The first outcome is 2; drafts without the model's tokens, and prompts, leave it."""
    from draftwise.integrations.vllm.kernels import ROW, Drafting

    drafting = Drafting(1, 64, NUM, torch.device(DEVICE))
    drafting.memory[0] = torch.tensor([2, played])
    rng = np.random.default_rng(0)
    one, row = torch.zeros(1, dtype=torch.int32, device=DEVICE), torch.zeros((1, ROW))
    row = torch.tensor([[1, 1, NUM, is_new, 0, 0, 0]], dtype=torch.int32, device=DEVICE)
    flat = np.concatenate([array.ravel() for array in tables(rng)])
    drafting(
        torch.ones((1, 64), dtype=torch.int32, device=DEVICE), one + 9, one, one + sampled,
        one + rejected, torch.ones((1, NUM), dtype=torch.int64, device=DEVICE), 2,
        torch.from_numpy(flat).to(DEVICE), row, 0.1, 9,
    )  # fmt: skip
    assert drafting.memory[0, 0] == outcome


def test_without_retrieval_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What occurred before conditions no hazard of the head then, as on the host."""
    from draftwise.integrations.vllm import kernels

    monkeypatch.delattr(kernels, "_scan_kernel")
    drafting = kernels.Drafting(1, 64, NUM, torch.device(DEVICE), searches=False)
    one = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    row = torch.tensor([[1, 0, NUM, 0, 0, 0, 0]], dtype=torch.int32, device=DEVICE)
    row.view(torch.float32)[0, 4:6] = 1.0
    flat = np.concatenate([array.ravel() for array in tables(np.random.default_rng(0))])
    drafting(
        torch.ones((1, 64), dtype=torch.int32, device=DEVICE), one + 9, one, one + 1, one,
        torch.full((1, NUM), 5, device=DEVICE), 2, torch.from_numpy(flat).to(DEVICE), row, 0.0, 9,
    )  # fmt: skip
    assert drafting.facts[0, 4 * NUM :].tolist() == [0, 0, 0, 0, 0, 0, BY_MODEL, 2]
    assert drafting.drafts[0].tolist() == [5] * NUM


def test_the_warm_up_runs_every_kernel_and_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    from draftwise.integrations.vllm import kernels

    ran = set()
    for name in ("_scan_kernel", "_recall_kernel", "_mix_kernel"):
        kernel = getattr(kernels, name)

        class Noted:
            def __init__(self, name: str, kernel: Any) -> None:
                self.name, self.kernel = name, kernel

            def __getitem__(self, grid: Any) -> Any:
                ran.add(self.name)
                return self.kernel[grid]

        monkeypatch.setattr(kernels, name, Noted(name, kernel))
    drafting = kernels.Drafting(2, 64, NUM, torch.device(DEVICE), 64)
    drafting.remember(torch.arange(5, dtype=torch.int32, device=DEVICE), 3)
    drafting.memory[:] = torch.tensor([2, 4])
    before = drafting.ring.clone(), drafting._filled, drafting.newest
    text = torch.ones((2, 64), dtype=torch.int32, device=DEVICE)
    drafting.warm_up(text, torch.zeros(2, dtype=torch.int32, device=DEVICE))
    assert ran == {"_scan_kernel", "_recall_kernel", "_mix_kernel"}
    assert torch.equal(drafting.ring, before[0])
    assert (drafting._filled, drafting.newest) == before[1:]
    assert drafting.memory[:, 0].tolist() == [2, 2]
    assert drafting.memory[1].tolist() == [2, 4]


def test_no_argument_that_varies_compiles_a_kernel_again() -> None:
    """Triton specialises on integers that are 1 or multiples of 16, and on aligned pointers."""
    from draftwise.integrations.vllm import kernels

    of_a_server = {
        "text_ptr", "text_stride", "lengths_ptr", "found_ptr", "recalled_ptr", "ring_ptr",
        "owners_ptr", "memory_ptr", "drafts_ptr", "confidence_ptr", "facts_ptr", "price",
    }  # fmt: skip
    for kernel in (kernels._scan_kernel, kernels._recall_kernel, kernels._mix_kernel):
        names = {name for name in kernel.arg_names if not name.isupper()}
        assert names - of_a_server <= set(kernels.VARYING)
