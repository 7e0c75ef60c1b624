"""Large bodies and grammars: bounded, parsed outside the event loop, memory returned."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from draftwise.serve.app import uncollected
from draftwise.serve.constraint import Grammars, json_grammar
from draftwise.serve.schemas import MAX_GRAMMAR_CHARS, CompletionRequest
from draftwise.serve.service import LARGE_BODY
from draftwise.types import DraftwiseError
from engine.scripted import VOCAB
from serve.fake import Fake
from serve.live import Live, fake_service, serving


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    fake = Fake()
    fake.tokenizer.add_special_tokens({"eos_token": "<end>"})
    grammars = Grammars(fake.tokenizer, VOCAB, {fake.tokenizer.eos_token_id})
    service = fake_service(fake)
    with serving(replace(service, parser=replace(service.parser, grammars=grammars))) as made:
        yield made


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> Iterator[threading.Event]:
    """Block calls of ``kind.name`` inside the block; the event is set when one is reached."""
    reached, over, sound = threading.Event(), threading.Event(), getattr(kind, name)

    def waits(*given: Any, **more: Any) -> Any:
        reached.set()
        assert over.wait(20)
        return sound(*given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(kind, name, waits)
        try:
            yield reached
        finally:
            over.set()


def in_thread(live: Live, *asked: Any) -> tuple[threading.Thread, list[int]]:
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(live.ask(*asked).status))
    thread.start()
    return thread, statuses


def test_a_large_body_is_read_beside_the_event_loop(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": "a" * 400, "max_tokens": 1, "metadata": ["x"] * LARGE_BODY}
    with held(monkeypatch, CompletionRequest, "model_validate") as reached:
        thread, statuses = in_thread(live, "/v1/completions", body)
        assert reached.wait(20)
        assert live.ask("/health").status == 200, "the event loop waits for a body"
        assert live.chat("abc", max_tokens=1).status == 200
    thread.join()
    assert statuses == [200]


def test_grammars_hold_up_no_other_request(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"prompt": "a", "max_tokens": 1, "structured_outputs": {"regex": "a+"}}
    with held(monkeypatch, Grammars, "constraints") as reached:
        asking = [in_thread(live, "/v1/completions", asked) for _ in range(12)]
        assert reached.wait(20)
        assert live.complete("abc", max_tokens=1).status == 200
    for thread, statuses in asking:
        thread.join()
        assert statuses == [200]


def test_a_grammar_is_compiled_once_for_all_answers(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llguidance

    compiled: list[str] = []

    class Counted:
        @staticmethod
        def grammar_from_regex(text: str) -> str:
            return sound.grammar_from_regex(text)

        def __new__(cls, tokens: Any, grammar: str, **more: Any) -> Any:
            compiled.append(grammar)
            return sound(tokens, grammar, **more)

    sound = llguidance.LLMatcher
    monkeypatch.setattr(llguidance, "LLMatcher", Counted)
    asked = {"n": 4, "max_tokens": 3, "structured_outputs": {"regex": "ab+c"}}
    said = live.complete(["a", "b"], **asked)
    assert said.status == 200, said.text
    assert len(said.json["choices"]) == 8
    assert len(compiled) == 1


def test_schemas_have_a_largest_size(live: Live) -> None:
    schema = {"enum": list(range(MAX_GRAMMAR_CHARS))}
    with pytest.raises(DraftwiseError, match=str(MAX_GRAMMAR_CHARS)):
        json_grammar(schema)
    for fields in (
        {"structured_outputs": {"json": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    ):
        said = live.complete("a", **fields)
        assert said.status == 400
        assert str(MAX_GRAMMAR_CHARS) in said.error["message"]


class Seen(dict[str, Any]):
    """A parsed object whose deallocation can be observed."""


@pytest.mark.parametrize(
    "fields",
    [{"nope": 1}, {"max_tokens": -1}, {"prompt": ""}, {"logit_bias": {"x": 1}}, {"max_tokens": 1}],
)
def test_nothing_of_a_request_waits_for_the_collector(
    live: Live, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an error's traceback keeps the whole body until the next full collection."""
    bodies: list[weakref.ref[Seen]] = []
    loads = json.loads

    def seen(raw: Any) -> Any:
        made = Seen(loads(raw))
        bodies.append(weakref.ref(made))
        return made

    gc.disable()
    try:
        with monkeypatch.context() as patched:
            patched.setattr("draftwise.serve.app.json.loads", seen)
            live.ask("/v1/completions", {"prompt": "abc", **fields})
        live.settle()
        until = time.monotonic() + 5
        while bodies[0]() is not None and time.monotonic() < until:
            time.sleep(0.01)
        assert bodies[0]() is None
    finally:
        gc.enable()


GIVE_BACK = """
from pathlib import Path
from draftwise.serve.service import give_back

def own_kib():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

give_back()
before = own_kib()
blocks = [b"x" * (50_000 + index) for index in range(1200)]  # too small for pages of their own
last = blocks[-1]  # above them on the heap
blocks.clear()
kept = own_kib() - before
give_back()
print(kept, own_kib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc alone is told to give pages back")
def test_freed_pages_are_given_back() -> None:
    """In a separate process, since this one's heap is fragmented by other tests."""
    line = [sys.executable, "-c", GIVE_BACK]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 32 * 1024, "the heap shrinks by itself, and this shows nothing"
    assert left < 8 * 1024


def test_memory_is_given_back_once_after_many(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    monkeypatch.setattr("draftwise.serve.service.give_back", lambda: given.append(time.monotonic()))
    monkeypatch.setattr("draftwise.serve.service._QUIET_S", 0.3)
    assert live.complete("abc", max_tokens=1).status == 200
    body = {"prompt": "a", "metadata": ["x"] * LARGE_BODY, "max_tokens": 1}
    began = time.monotonic()
    for _ in range(3):
        assert live.ask("/v1/completions", body).status == 200
    took_s = time.monotonic() - began
    until = time.monotonic() + 10
    while not given and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.5)
    assert 1 <= len(given) <= 2 + took_s / 0.3


@pytest.mark.parametrize("was", [True, False])
def test_parsing_leaves_the_collector_as_it_was(was: bool) -> None:
    (gc.enable if was else gc.disable)()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() is was
    finally:
        gc.enable()
