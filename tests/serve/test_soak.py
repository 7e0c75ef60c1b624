"""500 requests by many clients: none lost, duplicated or wrong, and nothing leaks."""

from __future__ import annotations

import threading
from collections import Counter

from serve.fake import Fake, expected
from serve.live import fake_service, serving
from serve.soak import KINDS, Soak


def test_a_crowd_of_500() -> None:
    fake, max_open, most = Fake(max_rows=8, pace_s=0.001), 24, 0
    before = set(threading.enumerate())
    with serving(fake_service(fake, max_open=max_open)) as live:
        tokenizer = live.service.parser.codec.tokenizer

        def right(prompt: str, num: int) -> str:
            text: str = tokenizer.decode(expected(tokenizer(prompt)["input_ids"], num))
            return text

        def watch(number: int) -> None:
            nonlocal most
            most = max(most, live.service.worker.num_open)

        soak = Soak(live.port, ["abc", "de", "fghij", "k"], right, max_tokens=300)
        soak.run(500, num_clients=16, tell=watch)
        live.settle()
        assert soak.wrong == []
        assert sum(soak.done[kind] for kind in KINDS) == 500
        assert min(soak.done[kind] for kind in KINDS) > 0
        assert 1 < most <= max_open
        assert not fake.engine.has_work
        assert all(row.answer.finish_reason for row in fake.rows)
        ended = Counter(row.answer.finish_reason for row in fake.rows)
        assert set(ended) == {"length", "cancelled"}
        text = live.ask("/metrics").text
        assert 'status="500"' not in text
    started = set(threading.enumerate()) - before
    for thread in started:  # on a loaded machine a worker thread may still be ending
        thread.join(10)
    assert not [thread for thread in started if thread.is_alive()]
