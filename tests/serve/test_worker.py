"""The scheduler without HTTP and, except in a few tests, without its thread."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from draftwise.engine.outputs import RequestOutput
from draftwise.serve.worker import Busy, Closing, GenerationRequest, Observer, RequestHandle, Worker
from serve.fake import Fake, expected


class Reader:
    """A callback that adds up its outputs."""

    def __init__(self) -> None:
        self.whole, self.parts = RequestOutput(), 0
        self.ended = threading.Event()

    def __call__(self, delta: RequestOutput) -> None:
        assert not self.ended.is_set(), "nothing comes behind the end"
        self.whole.add(delta)
        self.parts += 1
        if delta.finish_reason:
            self.ended.set()


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Books(Observer):
    """An observer that records all events."""

    def __init__(self) -> None:
        self.ends: list[RequestHandle] = []
        self.num_tokens, self.is_over = 0, False
        self.gaps: list[tuple[float, bool]] = []

    def saw_rounds(self, rounds: Any, engine: Any) -> None:
        self.num_tokens += sum(len(round_.tokens) for round_ in rounds)

    def saw_part(self, num_tokens: int, gap_s: float, is_first: bool) -> None:
        self.gaps.append((gap_s, is_first))

    def saw_end(self, ended: RequestHandle) -> None:
        self.ends.append(ended)

    def saw_the_end(self) -> None:
        self.is_over = True


def make(fake: Fake, **options: Any) -> Worker:
    return Worker(fake.engine, fake.request, **{"max_open": 8, **options})


def ask(
    prompt: list[int], num: int = 5, deadline_s: float | None = None, **more: Any
) -> GenerationRequest:
    return GenerationRequest(prompt, {"max_new_tokens": num, **more}, deadline_s)


def submit(worker: Worker, *asks: GenerationRequest) -> tuple[list[RequestHandle], list[Reader]]:
    readers = [Reader() for _ in asks]
    return worker.submit(asks, readers), readers


def test_answers_come_in_parts_and_end() -> None:
    fake, books = Fake(), Books()
    worker = make(fake, observers=[books])
    _, readers = submit(worker, ask([1, 2, 3], 7), ask([4, 5], 2))
    assert worker.num_open == 2
    while worker.num_open:
        worker.turn()
    assert [r.whole.tokens for r in readers] == [expected([1, 2, 3], 7), expected([4, 5], 2)]
    assert [r.whole.finish_reason for r in readers] == ["length", "length"]
    assert readers[0].parts > 1
    assert readers[0].whole.text == fake.tokenizer.decode(expected([1, 2, 3], 7))
    assert len(readers[0].whole.sources) == 7
    assert sum(accepted + 1 for _, accepted in readers[0].whole.rounds) >= 7
    assert readers[0].whole.stats is fake.rows[0].stats
    assert worker.num_open == 0
    assert books.num_tokens == sum(ended.num_tokens for ended in books.ends) == 9
    assert [is_first for _, is_first in books.gaps].count(True) == 2


def test_the_queue_is_bounded_and_takes_all_or_none() -> None:
    fake = Fake()
    worker = make(fake, max_open=3)
    submit(worker, ask([1]), ask([2]))
    with pytest.raises(Busy) as busy:
        submit(worker, ask([3]), ask([4]))
    assert busy.value.retry_after_s >= 1
    assert worker.num_open == 2
    submit(worker, ask([3]))
    while fake.engine.has_work or worker.num_open:
        worker.turn()
    submit(worker, ask([4]), ask([5]), ask([6]))


def test_cancelled_rows_leave_at_once() -> None:
    fake = Fake(max_rows=1)
    worker = make(fake)
    tickets, readers = submit(worker, ask([1], 100), ask([2], 3), ask([3], 3))
    worker.turn()
    worker.cancel([tickets[0], tickets[2]])
    worker.turn()
    assert readers[0].whole.finish_reason == readers[2].whole.finish_reason == "cancelled"
    assert readers[0].whole.tokens  # earlier tokens are kept
    assert readers[2].whole.tokens == []
    while fake.engine.has_work:
        worker.turn()
    assert readers[1].whole.tokens == [2] * 3
    worker.cancel(tickets)  # all have ended: no effect
    worker.turn()
    assert worker.num_open == 0


def test_deadlines() -> None:
    fake, clock = Fake(), Clock()
    worker = make(fake, clock=clock)
    _, readers = submit(worker, ask([1], 100, deadline_s=2.0), ask([2], 100))
    worker.turn()
    clock.now = 2.5
    worker.turn()
    assert readers[0].whole.finish_reason == "late"
    assert "deadline" in str(readers[0].whole.error)
    assert readers[0].whole.stats.num_rounds == 1  # counts rounds before the deadline
    assert not readers[1].ended.is_set()


def test_what_the_engine_refuses_is_told_to_its_own_request() -> None:
    fake = Fake()
    worker = make(fake)
    _, readers = submit(worker, ask([1] * 1001), ask([2]), ask([3], preset="broken"))
    while fake.engine.has_work or worker.num_open:
        worker.turn()
    assert [r.whole.finish_reason for r in readers] == ["refused", "length", "error"]
    assert "max_bytes is 1000" in str(readers[0].whole.error)
    assert "RuntimeError: a bug" in str(readers[2].whole.error)


def test_a_round_that_fails_ends_its_rows_and_no_others() -> None:
    def fails(step: int) -> None:
        if step == 2:
            raise RuntimeError("a drafter raised")

    fake = Fake(max_rows=1, fails=fails)
    worker = make(fake)
    _, readers = submit(worker, ask([1], 50), ask([2], 4))
    while fake.engine.has_work or worker.num_open:
        worker.turn()
    assert readers[0].whole.finish_reason == "error"
    assert "a drafter raised" in str(readers[0].whole.error)
    assert readers[1].whole.tokens == [2] * 4


def test_the_thread_sleeps_while_there_is_nothing_to_do() -> None:
    fake = Fake()
    worker = make(fake)
    worker.start()
    _, readers = submit(worker, ask([1, 2], 9))
    assert readers[0].ended.wait(10)
    time.sleep(0.05)  # let the turn that ended the answer finish
    cpu = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - cpu < 0.1
    _, readers = submit(worker, ask([1, 2], 9))
    assert readers[0].ended.wait(10)
    assert worker.stop(1.0)
    assert not worker.is_alive
    assert fake.engine.is_closed


def test_stopping_lets_requests_finish_in_time_and_ends_the_others() -> None:
    fake, books = Fake(pace_s=0.005), Books()
    worker = make(fake, observers=[books])
    worker.start()
    _, (short,) = submit(worker, ask([1], 20))
    _, (long,) = submit(worker, ask([2], 100_000))
    assert not worker.stop(0.5)
    assert short.whole.finish_reason == "length"
    assert long.whole.finish_reason == "cancelled"
    assert "going down" in str(long.whole.error)
    assert books.is_over
    with pytest.raises(Closing):
        submit(worker, ask([1]))


def test_a_bug_of_ours_keeps_nobody_waiting() -> None:
    class Broken(Books):
        def saw_rounds(self, rounds: Any, engine: Any) -> None:
            raise ZeroDivisionError

    fake = Fake()
    worker = make(fake, observers=[Broken()])
    worker.start()
    _, (reader,) = submit(worker, ask([1], 20))
    assert reader.ended.wait(10)
    assert reader.whole.finish_reason == "error"
    worker._thread.join(10)
    assert not worker.is_alive
    with pytest.raises(Closing):
        submit(worker, ask([1]))
