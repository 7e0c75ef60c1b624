"""Hostile requests: none opens a file, chooses an allocation size, or stops other requests."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from draftwise.serve.calls import CallParser
from draftwise.serve.schemas import MAX_BIASES, MAX_KEYS, MAX_PLANS
from draftwise.serve.settings import ServerSettings, hosts_of
from draftwise.speculator import Learning, Speculator
from engine.scripted import byte_tokenizer
from models import tiny_model
from serve.fake import Fake
from serve.live import Live, Said, fake_service, serving

TESTS = Path(__file__).parent.parent
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(fake_service(Fake())) as made:
        yield made


@pytest.mark.parametrize(
    "policy",
    [
        "router:plan=0, examples={}",
        "delayed:base=router:examples={}",
        "ucb1:beta=0.1",
        "nope",
        "\ud800",
    ],
)
def test_policies_that_no_request_may_set(live: Live, tmp_path: Path, policy: str) -> None:
    """Options may name files, and size allocations."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # opening it blocks
    began = time.monotonic()
    said = live.complete("abc", draftwise={"policy": policy.format(pipe)})
    assert said.status == 400, said.text
    assert said.error["message"]
    assert time.monotonic() - began < 2
    harmless = {"policy": "exp3spec"}
    assert live.complete("abc", max_tokens=1, draftwise=harmless).status == 200


def test_plans_are_few_and_different(live: Live) -> None:
    for plans in ([1] * 1_000_000, [*range(1, MAX_PLANS + 1), 1], [3, 3]):
        began = time.monotonic()
        said = live.complete("abc", draftwise={"plans": plans})
        assert (said.status, time.monotonic() - began < 2) == (400, True)
        assert "plans" in said.error["message"]
    all_of_them = list(range(1, MAX_PLANS + 1))
    assert live.complete("abc", draftwise={"plans": all_of_them}).status == 200


def test_settings_of_requests_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each setting takes up to 200 KB, and every request may name a new one."""
    speculator = Speculator.from_pretrained(
        tiny_model(), ["lookup"], tokenizer=byte_tokenizer(), dtype="float32", scope="auto"
    )
    made: list[Learning] = []
    build = Learning.__init__

    def note(self: Learning, *args: Any, **options: Any) -> None:
        made.append(self)
        build(self, *args, **options)

    monkeypatch.setattr(Learning, "__init__", note)
    for index in range(60):
        speculator.request([1, 2], policy=f"ucb1:beta=0.{index + 1:03}")
    assert len(made) == 60
    held = [sys.getrefcount(learning) for learning in made]
    freed = min(held)  # references held by this list itself
    assert sum(count > freed for count in held) <= 16
    speculator.request([1, 2], policy="ucb1:beta=0.060")
    assert len(made) == 60, "the last ones are still there"


def lists_of(schema: Any) -> Iterator[dict[str, Any]]:
    """Every list of a JSON schema, at any depth."""
    if isinstance(schema, dict):
        if schema.get("type") == "array":
            yield schema
        for value in schema.values():
            yield from lists_of(value)
    if isinstance(schema, list):
        for value in schema:
            yield from lists_of(value)


def test_every_list_of_the_api_has_a_largest_length(live: Live) -> None:
    schemas = live.ask("/openapi.json").json["components"]["schemas"]
    own = {name: schema for name, schema in schemas.items() if "Error" not in name}
    found = list(lists_of(own))
    assert len(found) > 10
    assert [one for one in found if "maxItems" not in one] == []


MANY = 600_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": [-1] * MANY}),
        ("/v1/completions", {"prompt": [["a"]] * MANY}),
        ("/v1/completions", {"prompt": [1, "a"] * MANY}),
        ("/v1/completions", {"prompt": "a", "stop": [5] * MANY}),
        ("/v1/completions", {"prompt": "a", "stop_token_ids": ["x"] * MANY}),
        ("/v1/completions", {"prompt": "a", "draftwise": {"plans": ["x"] * MANY}}),
        ("/v1/completions", {"prompt": "a", "structured_outputs": {"choice": [1] * MANY}}),
        (
            "/v1/completions",
            {"prompt": "a", "logit_bias": {f"x{i}": 999 for i in range(MANY // 3)}},
        ),
        ("/v1/completions", {"prompt": "a", **{f"f{i}": 1 for i in range(MANY // 3)}}),
        ("/v1/completions", {"prompt": "a", "draftwise": {f"f{i}": 1 for i in range(MANY // 3)}}),
        (CHAT, {"messages": [1] * MANY}),
        (CHAT, {"messages": [{}] * 9000}),
        (CHAT, {"messages": [{"role": "user", "content": [1] * MANY}]}),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [{}] * MANY}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [[]] * MANY}),
        ("/v1/responses", {"input": [1] * MANY}),
        ("/v1/responses", {"input": [{"type": "function_call"}] * 9000}),
        ("/v1/responses", {"input": "a", "tools": [{"type": "function"}] * (MANY // 3)}),
        ("/tokenize", {"messages": [1] * MANY}),
        ("/detokenize", {"tokens": ["x"] * MANY}),
    ],
)
def test_large_bodies_of_nonsense_are_refused_soon(
    live: Live, path: str, body: dict[str, Any]
) -> None:
    raw = json.dumps(body).encode()
    began = time.process_time()
    said = live.ask(path, raw)
    assert said.status in {400, 413}
    assert time.process_time() - began < 2, "all errors of all items were collected"


def test_few_biases_and_fields(live: Live) -> None:
    biases = {str(index): 1.0 for index in range(MAX_BIASES + 1)}
    assert str(MAX_BIASES) in live.complete("a", logit_bias=biases).error["message"]
    fields = {f"f{index}": 1 for index in range(MAX_KEYS)}
    assert str(MAX_KEYS) in live.complete("a", **fields).error["message"]


@pytest.mark.parametrize("key", ["01", "+1", " 1", "1 ", "٣", "-0", "9" * 30, "1e0"])
def test_biases_name_each_token_in_one_way(live: Live, key: str) -> None:
    error = live.complete("abc", logit_bias={"1": 5, key: -5}).error
    assert "logit_bias" in error["message"]
    assert live.complete("abc", logit_bias={"0": 5, "1": -5}, max_tokens=1).status == 200


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("end", [True, False])
def test_nesting_is_a_clients_error(depth: int, end: bool) -> None:
    fake = Fake()
    fake.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson }}{% endfor %}"
        "{{ tools | tojson }}"
    )
    arguments = nested(depth) if end else "[" * depth
    call = {"id": "a", "function": {"name": "f", "arguments": arguments}}
    asked = [{"role": "user", "content": "hi"}]
    called = [*asked, {"role": "assistant", "content": None, "tool_calls": [call]}, *asked]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": "DEEP"}}}
    bodies: list[dict[str, Any]] = [
        {"messages": called},
        {"messages": asked, "tools": [tool]},
        {"messages": asked, "metadata": {"a": "DEEP"}},
        {"messages": asked, "structured_outputs": {"json": {"a": "DEEP"}}},
    ]
    with serving(fake_service(fake)) as live:
        for body in bodies:
            text = json.dumps(body | {"max_tokens": 1}).replace('"DEEP"', nested(depth))
            said = live.ask(CHAT, text.encode())
            assert said.status in ({400} if depth > 1000 else {200, 400}), said.text
            assert said.status == 200 or said.error["message"]
        assert live.complete("abc").status == 200


def test_a_models_own_nesting_is_content() -> None:
    for text in ("[" * 100_000, nested(100_000), '{"name": "f", "arguments": ' + nested(50_000)):
        for given in (text, f"<tool_call>{text}</tool_call>"):
            assert CallParser({"f": None}).push(given, is_last=True) == (given, [])


def test_tokens_of_a_text_and_back(live: Live) -> None:
    said = live.ask("/tokenize", {"prompt": "abc", "return_token_strs": True}).json
    tokens = live.service.parser.codec.tokenizer("abc")["input_ids"]
    assert said == {
        "count": 3, "max_model_len": 4096, "tokens": tokens, "token_strs": ["a", "b", "c"],
    }  # fmt: skip
    assert live.ask("/detokenize", {"tokens": tokens}).json == {"prompt": "abc"}
    chat = {"messages": [{"role": "user", "content": "abc"}]}
    assert live.ask("/tokenize", chat).json["tokens"] == tokens
    assert live.ask("/tokenize", chat | {"prompt": "a"}).status == 400
    assert live.ask("/tokenize", {"prompt": "a", "model": "nope"}).status == 404
    assert "vocabulary" in live.ask("/detokenize", {"tokens": [10**6]}).error["message"]
    assert "characters" in live.ask("/tokenize", {"prompt": "a" * 400_000}).error["message"]


def test_hosts() -> None:
    assert hosts_of("0.0.0.0", []) == []
    assert hosts_of("0.0.0.0", ["api.example"]) == ["api.example"]
    hosts = hosts_of("127.0.0.1", ["Mine.example"])
    with serving(fake_service(Fake()), ServerSettings(hosts=hosts)) as live:
        for host in ("localhost", "127.0.0.1:80", "[::1]:8000", "LOCALHOST:1", "mine.example"):
            assert live.ask("/v1/models", headers={"Host": host}).status == 200, host
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "[::2]", "a b"):
            said = live.ask("/v1/models", headers={"Host": host})
            assert said.status == 403, host
            assert "--allowed-host" in said.error["message"]
            assert live.ask("/", headers={"Host": host}).status == 403
    with serving(fake_service(Fake()), ServerSettings(hosts=hosts_of("::1", ["*"]))) as live:
        assert live.ask("/v1/models", headers={"Host": "evil.example"}).status == 200


def test_pages_of_other_origins() -> None:
    page = {"Origin": "http://localhost:3000"}
    asks = page | {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serving(fake_service(Fake())) as live:
        assert live.ask("/v1/completions", headers=asks, method="OPTIONS").status == 405
        assert "access-control-allow-origin" not in live.ask("/v1/models", headers=page).headers
    gate = ServerSettings(keys=("k",), origins=("http://localhost:3000",))
    with serving(fake_service(Fake()), gate) as live:
        said = live.ask("/v1/completions", headers=asks, method="OPTIONS")
        assert (said.status, said.headers["access-control-allow-origin"]) == (200, page["Origin"])
        assert "authorization" in said.headers["access-control-allow-headers"]
        refused = live.ask("/v1/models", headers=page)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == page["Origin"]
        key = {"Authorization": "Bearer k"}
        assert live.ask("/v1/models", headers=page | key).status == 200
        evil = live.ask("/v1/models", headers=key | {"Origin": "http://evil.example"})
        assert "access-control-allow-origin" not in evil.headers


def test_polling_leaves_no_lines(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    paths = ("/stats", "/metrics", "/health")

    def lines() -> list[tuple[str, int]]:
        facts = [record.__dict__.get("facts", {}) for record in caplog.records]
        return [(f["path"], f["status"]) for f in facts if f.get("path") in paths]

    with caplog.at_level(logging.INFO, logger="draftwise"):
        for path in paths:
            live.ask(path)
        live.ask("/stats", method="POST")
        until = time.monotonic() + 5
        while not lines() and time.monotonic() < until:  # a line is logged after its response
            time.sleep(0.01)
    assert lines() == [("/stats", 405)], "what is refused is told"


class Stuck:
    """An engine whose steps from the second on wait until ``released``."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.fake = Fake(fails=self._wait)

    def _wait(self, step: int) -> None:
        if step > 1:
            self.released.wait()


def asking(live: Live, said: list[Said]) -> threading.Thread:
    made = threading.Thread(target=lambda: said.append(live.complete("abc", max_tokens=100)))
    made.start()
    return made


def test_health_tells_of_a_step_that_does_not_end() -> None:
    stuck, said = Stuck(), list[Said]()
    with serving(fake_service(stuck.fake, stuck_s=0.3)) as live:
        healthy = live.ask("/health")
        assert (healthy.status, healthy.json["status"], healthy.json["step_s"]) == (200, "ok", 0)
        waiting = asking(live, said)
        while live.ask("/health").status == 200:
            time.sleep(0.02)
        told = live.ask("/health").json
        assert "0.3 s" in told["status"]
        assert told["step_s"] > 0.3
        assert told["running"] == 1
        stuck.released.set()
        waiting.join(20)
        assert said[0].status == 200
        live.settle()
        assert live.ask("/health").status == 200


def test_health_tells_of_a_thread_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(fake_service(Fake())) as live:
        monkeypatch.setattr(live.service.worker, "turn", None)
        assert live.complete("abc").status == 500
        live.service.worker.stop(0)
        said = live.ask("/health")
        assert (said.status, said.json["status"]) == (503, "the engine's thread has ended")


STUCK_SERVER = """
import sys, threading
from draftwise.serve import run, worker
from draftwise.serve.settings import bind
from serve.fake import Fake
from serve.live import fake_service
worker.LAST_STEP_S = 0.5
fake = Fake(fails=lambda step: threading.Event().wait())
run.make_service = lambda speculator, settings: fake_service(fake)
listener = bind("127.0.0.1", int(sys.argv[1]))
run.serve(None, run.ServerSettings(drain_s=0.2), listener)
"""


def test_sigterm_ends_a_process_whose_engine_is_stuck() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", STUCK_SERVER, str(port)]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    try:
        live, said = Live(port, None), list[Said]()  # type: ignore[arg-type]
        for _ in range(1200):
            assert process.poll() is None
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        waiting = asking(live, said)
        while live.ask("/health").json["running"] == 0:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 70
        waiting.join(5)
        assert said[0].status == 503, "and its client was told"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(20)
