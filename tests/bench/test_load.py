"""Load on a server: what is asked, when, and what is made of the answers."""

from __future__ import annotations

import io
import json
import socket
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from cli.conftest import run_command
from draftwise.bench.load.client import CHAT, Server, Shot
from draftwise.bench.load.drive import Load, Volley, arrivals, drive, drive_all
from draftwise.bench.load.numbers import cautions, summary
from draftwise.cli.bench_load import loads_table
from draftwise.types import DraftwiseError
from serve.fake import Fake
from serve.live import Live, fake_service, serving


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(fake_service(Fake(max_rows=4, pace_s=0.004))) as made:
        yield made


@pytest.mark.parametrize("endpoint", ["completions", CHAT])
@pytest.mark.parametrize("stream", [True, False])
def test_all_requests_are_answered(live: Live, endpoint: str, stream: bool) -> None:
    server = Server(live.url, "parrot", endpoint=endpoint)
    options = {"max_tokens": 12, "stream": stream}
    volley = drive(server, ["abc", "de"], 6, Load(3), options)
    assert [shot.text for shot in volley.shots] == ["abcabcabcabc", "dededededede"] * 3
    row = summary(volley)
    assert (row["num_errors"], row["num_tokens"], row["num_prompt_tokens"]) == (0, 72, 15)
    assert row["tok_per_s"] == pytest.approx(72 / volley.took_s)
    assert row["mean_acceptance_length"] > 1
    assert ("ttft_s" in row) == stream
    if stream:
        assert 0 < row["ttft_s"]["p50"] < row["e2e_s"]["p50"]
        assert row["tpot_s"]["p50"] > 0


def test_no_more_at_a_time_than_asked(live: Live) -> None:
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.001):
            most = max(most, live.service.worker.num_open)

    watcher = threading.Thread(target=watch)
    watcher.start()
    drive(Server(live.url, "parrot"), ["abc"], 10, Load(2), {"max_tokens": 30})
    done.set()
    watcher.join()
    assert most == 2


def test_arrivals() -> None:
    times = arrivals(4000, Load(rate=50.0), seed=1)
    gaps = [b - a for a, b in pairwise(times)]
    assert min(gaps) >= 0
    assert sum(gaps) / len(gaps) == pytest.approx(1 / 50, rel=0.05)
    assert times == arrivals(4000, Load(rate=50.0), seed=1)
    bursty = arrivals(4000, Load(rate=50.0, burstiness=0.2), seed=1)
    assert bursty[-1] == pytest.approx(times[-1], rel=0.2)
    assert sorted(bursty)[2000] != sorted(times)[2000]


def test_errors_are_counted_and_their_tokens_are_not(live: Live) -> None:
    server = Server(live.url, "another-model")
    row = summary(drive(server, ["abc"], 3, Load(1), {"max_tokens": 4}))
    assert (row["num_errors"], row["num_tokens"], row["e2e_s"]) == (3, 0, None)
    assert "404" in row["errors"][0]


def test_a_stream_that_breaks_off_is_an_error() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def half() -> None:
        client, _ = listener.accept()
        client.recv(10_000)
        chunk = json.dumps({"choices": [{"index": 0, "text": "a"}]})
        client.sendall(
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: " + chunk.encode() + b"\n\n"
        )
        client.shutdown(socket.SHUT_WR)
        while client.recv(10_000):  # what is left unread would make of the end a reset
            pass
        client.close()

    thread = threading.Thread(target=half)
    thread.start()
    server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", "x")
    (shot,) = drive(server, ["a"], 1, Load(1), {"stream": True}).shots
    thread.join()
    listener.close()
    assert shot.error == "the stream ended early"
    assert shot.text == "a"


def test_percentiles_are_those_of_the_shots() -> None:
    shots = [
        Shot(0, 0.0, sent_s=1.0, done_s=1.0 + k, chunks_s=[1.0 + k / 2, 1.0 + k], num_tokens=3)
        for k in range(1, 102)
    ]
    row = summary(Volley(Load(1), shots, 10.0))
    assert row["e2e_s"]["p50"] == pytest.approx(51)
    assert row["e2e_s"]["p99"] == pytest.approx(100)
    assert row["ttft_s"]["p50"] == pytest.approx(25.5)
    assert row["tpot_s"]["p50"] == pytest.approx(51 / 4)


def test_loads_take_turns(live: Live) -> None:
    server = Server(live.url, "parrot")
    one, two = drive_all(server, ["abc", "de"], 9, [Load(1), Load(2)], {"max_tokens": 2})
    assert [shot.prompt for shot in one.shots] == [0, 1] * 4 + [0] == [s.prompt for s in two.shots]
    in_time = sorted([(s.sent_s, 1) for s in one.shots] + [(s.sent_s, 2) for s in two.shots])
    switches = sum(a[1] != b[1] for a, b in pairwise(in_time))
    assert switches == 4  # four parts each, the order of the two reversed in every other
    assert 0 < one.took_s < in_time[-1][0] - in_time[0][0]


def test_tables_of_loads_have_plain_numbers_and_say_what_is_too_little() -> None:
    row = {
        "load": "16 at once", "concurrency": 16, "num_errors": 0, "num_requests": 159,
        "tok_per_s": 12345.6, "requests_per_s": 1.5, "ttft_s": {"p50": 1.38, "p99": 21.23},
        "tpot_s": {"p50": 0.0042, "p99": 0.0331}, "e2e_s": {"p50": 3.01, "p99": 50.14},
    }  # fmt: skip
    console = Console(width=80, file=io.StringIO())
    console.print(loads_table({"settings": {"url": "http://127.0.0.1:8000"}, "loads": [row]}))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    for word in ("1380 / 21230", "4.2 / 33", "3010 / 50140", "0 of 159", "milliseconds"):
        assert word in out
    assert "…" not in out
    assert "--requests 160 or more" in cautions([row])[0]
    assert cautions([row | {"num_requests": 160}]) == []


def test_a_key_is_not_in_the_report(live: Live, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["draftwise", "bench", "--api-key=sk-one", "--tokens", "4"])
        ran = run_command(
            "bench", "--url", live.url, "--out", tmp_path, "--tokens", "4", "--api-key", "sk-one",
            "--requests", "2",
        )  # fmt: skip
    assert "2 is too small a number of requests" in ran.err
    for name in ("load.json", "load.html"):
        text = (tmp_path / name).read_text()
        assert "--api-key=***" in text
        assert "sk-one" not in text
    assert "too small a number" in (tmp_path / "load.html").read_text()


def test_the_command_prints_and_writes(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("abc\nde\n")
    asked = ("bench", "--url", live.url + "/v1", "--suite", file, "--out", tmp_path / "out")
    ran = run_command(*asked, "--concurrency", "1,2", "--tokens", "8", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert [row["concurrency"] for row in found["loads"]] == [1, 2]
    assert found["settings"]["model"] == "parrot"
    assert json.loads((tmp_path / "out" / "load.json").read_text()) == found
    report = (tmp_path / "out" / "load.html").read_text()
    assert report.count("<svg") == 4
    assert "1 at once" in report
    ran = run_command(*asked, "--rate", "40", "--requests", "3", "--no-report", "--no-stream")
    assert "40/s" in ran.out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--concurrency", "1", "--rate", "2"), "not both"),
        (("--concurrency", "0"), "above 0"),
        (("--concurrency", "x"), "numbers with commas"),
        (("--endpoint", "poems"), "completions or chat"),
        (("--extra", "{"), "not JSON"),
        (("--model", "nope"), "does not answer"),
    ],
)
def test_refusals(live: Live, tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    ran = run_command("bench", "--url", live.url, "--out", tmp_path, "--tokens", "2", *more)
    assert words in ran.refusal


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(DraftwiseError, match="is it there"):
        Server("http://127.0.0.1:9").models()
    with pytest.raises(DraftwiseError, match="write http"):
        Server("ftp://x").models()
