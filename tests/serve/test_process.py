"""The server as a process: output, shutdown, and the state after a kill."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import run_command
from draftwise.cli.load import read_template
from draftwise.serve.app import make_app
from draftwise.serve.run import Server
from draftwise.serve.settings import ServerSettings, bind, listen
from draftwise.serve.worker import Closing
from draftwise.types import DraftwiseError
from serve.fake import Fake
from serve.live import Live, Said, fake_service


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Served:
    """A server in a process of its own."""

    def __init__(self, port: int, process: subprocess.Popen[str], log: Path) -> None:
        self.port, self.process, self._log = port, process, log

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def begin(self, **body: Any) -> http.client.HTTPConnection:
        body = {"prompt": "Hello", "max_tokens": 8, "temperature": 0, **body}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection

    def ask(self, **body: Any) -> Any:
        with closing(self.begin(**body)) as connection:
            return json.loads(connection.getresponse().read())


@contextmanager
def served(pair: tuple[Path, Path], folder: Path, *more: object) -> Iterator[Served]:
    port, log = free_port(), folder / "log.jsonl"
    command = [
        sys.executable, "-m", "draftwise", "serve", "--port", port, "--target", pair[0],
        "--drafter", f"lm:{pair[1]}", "--drafter", "suffix", "--log-format", "json", *more,
    ]  # fmt: skip
    with log.open("a") as err:
        process = subprocess.Popen([str(c) for c in command], stderr=err, text=True)
    try:
        for _ in range(1200):
            assert process.poll() is None, log.read_text()
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield Served(port, process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(20)


def test_killed_and_begun_again_and_drained(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """A damaged state file, a kill in mid-answer, and a proper shutdown, in two slow processes."""
    state = tmp_path / "state.json"
    state.write_text("{half")
    with served(pair, tmp_path, "--state", state, "--state-every", "0.05") as server:
        assert any("learning starts from scratch" in line["event"] for line in server.log)
        assert not state.exists()
        while not state.exists():
            server.ask(max_tokens=20)
        with closing(server.begin(max_tokens=150, stream=True)) as running:
            response = running.getresponse()
            response.readline()
            server.process.kill()
            with pytest.raises((http.client.HTTPException, OSError)):
                response.read()
    assert "draftwise" in json.loads(state.read_text()), "the file is whole"
    with served(pair, tmp_path, "--state", state) as server:
        num = len(server.log)
        server.ask()
        with closing(server.begin(max_tokens=150, stream=True)) as running:
            response = running.getresponse()
            first = response.readline()
            server.process.send_signal(signal.SIGTERM)
            text = first + response.read()
        assert text.rstrip().endswith(b"data: [DONE]"), "what ran was finished"
        assert server.process.wait(60) == 0
        lines = server.log[num:]
        assert not any("from scratch" in line["event"] for line in lines)
        requests = [line for line in lines if line["event"] == "request"]
        assert [line["status"] for line in requests] == [200, 200]
        assert len({line["request_id"] for line in requests}) == 2
        assert requests[0]["tokens"] == 8


def test_a_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    service = fake_service(Fake())
    server = Server(lambda *_: None, service, ServerSettings())
    server.handle_exit(signal.SIGTERM, None)
    assert ended == []
    with pytest.raises(Closing):
        service.worker.submit([], [])
    server.handle_exit(signal.SIGTERM, None)
    assert ended == [128 + signal.SIGTERM]


def test_answers_that_take_longer_than_the_drain_end_properly() -> None:
    service = fake_service(Fake(pace_s=0.01))
    listener = bind("127.0.0.1", 0)
    port = int(listener.getsockname()[1])
    server = Server(make_app(service, ServerSettings()), service, ServerSettings(drain_s=1.0))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    live, said = Live(port, service), dict[bool, Said]()

    def ask(stream: bool) -> None:
        said[stream] = live.complete("abc", max_tokens=4000, stream=stream)

    asking = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
    for each in asking:
        each.start()
    while service.worker.num_open < 2:
        time.sleep(0.005)
    time.sleep(0.1)  # the stream has begun
    server.handle_exit(signal.SIGTERM, None)
    for _ in range(3):  # while the answers go on, the server listens, and refuses
        time.sleep(0.05)
        for refused in (live.complete("abc"), live.chat("abc"), live.ask("/health")):
            assert refused.status == 503
            assert int(refused.headers["retry-after"]) > 0
            assert "going down" in refused.text
    for each in [*asking, thread]:
        each.join(10)
        assert not each.is_alive()
    assert said[False].status == 503
    assert said[False].headers["retry-after"] == "5"
    assert len(said[True].events) > 1
    assert said[True].events[-1]["error"]["code"] == "cancelled"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--max-rows", "0"), "1 or more"),
        (("--max-queue", "-1"), "0 or more"),
        (("--log-format", "poem"), "text, json"),
        (("--preset", "nope"), "the presets are"),
        (("--drain", "-1"), "--drain -1.0: it must be"),
        (("--deadline", "nan"), "--deadline nan"),
        (("--max-bytes", "0"), "1 or more"),
        (("--chat-template", "/nowhere/x.jinja"), "No such file"),
        (("--chat-template", "/dev/zero"), "--chat-template /dev/zero: it is no plain file"),
        (("--state", "/nowhere/x.json"), "no folder /nowhere"),
        (("--state", "x.json", "--scope", "request"), "add --scope auto"),
        (("--port", "99999"), "0 to 65535"),
        (("--port", "-1"), "0 to 65535"),
        (("--host", "192.0.2.1"), "--host 192.0.2.1: this machine does not have that address"),
        (("--host", "no host"), "--host no host: "),
    ],
)
def test_refusals(more: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.cli.options.load", None)  # refused before loading
    assert words in run_command("serve", *more).refusal


def test_a_port_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwise.cli.options.load", None)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = run_command("serve", "--port", port).refusal
        assert f"--port {port}: another program listens there" in said
        assert "--port 0" in said


def test_two_that_start_at_once_do_not_share_a_port() -> None:
    first = bind("127.0.0.1", 0)
    port = first.getsockname()[1]
    with closing(first), closing(bind("127.0.0.1", port)) as second:
        listen(first)
        with pytest.raises(DraftwiseError, match="another program listens there"):
            listen(second)


def test_broken_templates(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    file = tmp_path / "chat.jinja"
    for text in ("{% if %}", "{{ messages | nosuchfilter }}", "{% for m in messages %}"):
        file.write_text(text)
        said = run_command("serve", "--chat-template", file).refusal
        assert f"--chat-template {file}, line 1: " in said
    file.write_text("{{ messages[0].content.no.such.thing }}")  # parses, but fails to render
    said = run_command("serve", "--target", pair[0], "--port", 0, "--chat-template", file).refusal
    assert said.startswith("--chat-template: ")
    file.write_text("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}"
                    "{% break %}{% endfor %}")  # fmt: skip
    assert read_template(file) == file.read_text()
