"""The HTTP interface, on an engine without a model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from starlette.types import Message
from tokenizers.processors import TemplateProcessing

from draftwise.serve.responses import EventStream
from draftwise.serve.settings import ServerSettings
from serve.fake import Fake, expected
from serve.live import Live, fake_service, serving


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(
        fake_service(Fake(pace_s=0.002), limits=ServerSettings(max_prompt_tokens=2000))
    ) as made:
        yield made


def raw_post(body: dict[str, object]) -> bytes:
    """The raw HTTP request of a completion."""
    raw = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


def told(live: Live, text: str, num: int) -> str:
    codec = live.service.parser.codec
    return live.service.parser.codec.tokenizer.decode(
        expected(codec.prompts([text])[0].tokens, num)
    )


def test_a_completion(live: Live) -> None:
    said = live.complete("abc", max_tokens=7, model="parrot")
    body = said.json
    assert said.status == 200
    assert body["choices"] == [
        {"index": 0, "text": told(live, "abc", 7), "logprobs": None, "finish_reason": "length"}
    ]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10}
    assert (body["object"], body["model"]) == ("text_completion", "parrot")
    found = body["metrics"]["speculative_decoding"]
    assert len(found["acceptance_histogram"]) == found["num_spec_tokens"] + 1 == 3
    assert sum(found["acceptance_histogram"]) == found["num_spec_steps"] > 0
    assert found["num_accepted_draft_tokens"] <= found["num_draft_tokens"]
    assert found["mean_acceptance_length"] > 1
    assert sum(body["draftwise"]["pulls"].values()) == body["draftwise"]["num_rounds"]


def test_a_chat_and_its_default_length(live: Live) -> None:
    said = live.chat("abc", max_completion_tokens=6)
    choice = said.json["choices"][0]
    assert choice["message"] == {
        "role": "assistant", "content": told(live, "abc", 6), "refusal": None,
    }  # fmt: skip
    assert said.json["object"] == "chat.completion"
    assert live.complete("abc").json["usage"]["completion_tokens"] == 16


def test_streams_say_what_whole_answers_say(live: Live) -> None:
    fields = {"max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    events = live.complete("abcd", **fields).events
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == told(live, "abcd", 20)
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]][-1] == "length"
    assert len(events) > 3
    assert all(e["usage"] is None for e in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 20
    assert events[-1]["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
    assert len({e["id"] for e in events}) == 1
    events = live.chat("abcd", **fields).events
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(e["choices"][0]["delta"]["content"] for e in events[:-1])
    assert text == told(live, "abcd", 20)
    assert "usage" not in live.chat("abcd", max_tokens=3, stream=True).events[0]


def test_continuous_usage(live: Live) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    events = live.complete("ab", max_tokens=9, stream=True, stream_options=options).events
    counts = [e["usage"]["completion_tokens"] for e in events]
    assert counts == sorted(counts)
    assert counts[-1] == 9


def test_several_prompts_and_samples_keep_their_order(live: Live) -> None:
    body = live.complete(["ab", "cd", "efg"], max_tokens=4, n=2).json
    texts = [choice["text"] for choice in body["choices"]]
    assert [choice["index"] for choice in body["choices"]] == list(range(6))
    assert texts == [told(live, text, 4) for text in ("ab", "ab", "cd", "cd", "efg", "efg")]
    assert body["usage"] == {"prompt_tokens": 7, "completion_tokens": 24, "total_tokens": 31}
    events = live.complete(["ab", "cd"], max_tokens=4, stream=True).events
    by_choice = {0: "", 1: ""}
    for event in events:
        by_choice[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert by_choice == {0: told(live, "ab", 4), 1: told(live, "cd", 4)}


def test_token_ids_echo_and_logprobs(live: Live) -> None:
    body = live.complete([[1, 2, 3], [4, 5]], max_tokens=1, echo=True, logprobs=1).json
    first, second = body["choices"]
    assert first["text"] == live.service.parser.codec.tokenizer.decode([1, 2, 3, 1])
    assert first["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert first["logprobs"]["top_logprobs"][0] is None
    assert len(second["logprobs"]["tokens"]) == 3
    assert first["logprobs"]["text_offset"] == [0, 1, 2, 3]
    body = live.complete([1, 2], max_tokens=0, echo=True, logprobs=0).json
    assert body["choices"][0]["text"] == live.service.parser.codec.tokenizer.decode([1, 2])
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 2
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == {"prompt_tokens": 2, "completion_tokens": 0, "total_tokens": 2}
    content = live.chat("ab", logprobs=True, top_logprobs=2, max_tokens=2).json
    (one, _) = content["choices"][0]["logprobs"]["content"]
    assert (one["token"], one["bytes"], one["logprob"]) == ("a", [97], -0.5)
    assert one["top_logprobs"][1]["logprob"] == -9999.0  # JSON has no infinity


def test_an_echo_is_the_text_that_was_given() -> None:
    """A token that the tokenizer prepends is listed but is not part of the echoed text."""
    fake = Fake()
    fake.tokenizer.add_special_tokens({"bos_token": "<s>"})
    begin = ("<s>", fake.tokenizer.bos_token_id)
    fake.tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[begin]
    )
    with serving(fake_service(fake)) as live:
        body = live.complete("abc", max_tokens=0, echo=True, logprobs=0).json
    (choice,) = body["choices"]
    assert choice["text"] == "abc"
    assert choice["logprobs"]["tokens"] == ["<s>", "a", "b", "c"]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]


def test_who_wrote_what(live: Live) -> None:
    body = live.complete("abc", max_tokens=9, draftwise={"pieces": True}).json
    pieces = body["choices"][0]["draftwise"]["pieces"]
    assert "".join(text for text, _ in pieces) == body["choices"][0]["text"]
    assert {source for _, source in pieces} == {"parrot", "target"}
    events = live.chat("abc", max_tokens=9, stream=True, draftwise={"pieces": True}).events
    text = "".join(
        t for e in events for t, _ in e["choices"][0].get("draftwise", {"pieces": []})["pieces"]
    )
    assert text == told(live, "abc", 9)


def test_stop_strings(live: Live) -> None:
    body = live.complete("abcd", max_tokens=30, stop=["da"]).json
    assert body["choices"][0]["text"] == "abc"
    assert body["choices"][0]["finish_reason"] == "stop"
    text = "".join(
        e["choices"][0]["text"]
        for e in live.complete("abcd", max_tokens=30, stop="da", stream=True).events
    )
    assert text == "abc"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 10**6}, "max_tokens"), ({"max_tokens": True}, "max_tokens"),
        ({"n": 0}, "n"), ({"n": 17}, "n"), ({"prompt": ["a"] * 9, "n": 2}, "n"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"logit_bias": {"9999": 1}}, "logit_bias"), ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"stop": [5]}, "stop.0"), ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"structured_outputs": {"regex": "(a"}}, None),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"draftwise": {"preset": "nope"}}, None), ({"draftwise": {"policy": "nope"}}, None),
        ({"draftwise": {"policy": "router:examples=/etc/passwd"}}, "policy"),
        ({"draftwise": {"plans": [0]}}, "draftwise.plans.0"),
        ({"draftwise": {"speculation": 1}}, "draftwise.speculation"),
        ({"draftwise": {"max_draft": 5000}}, "draftwise.max_draft"),
        ({"draftwise": {"max_draft": -1}}, "draftwise.max_draft"),
        ({"draftwise": {"drafters": []}}, "draftwise.drafters"),
        ({"draftwise": {"unknown": 1}}, "draftwise.unknown"),
        ({"prompt": []}, "prompt"), ({"prompt": ""}, "prompt"), ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": [1, 64]}, None), ({"prompt": "\ud800"}, None),
        ({"prompt": "a" * 2001}, None), ({"prompt": [1] * 1500}, None),
    ],
)  # fmt: skip
def test_refused_by_name(live: Live, fields: dict[str, object], named: str | None) -> None:
    said = live.complete(**{"prompt": "abc", "max_tokens": 4, **fields})
    assert said.status == 400, said.text
    assert said.error["type"] == "invalid_request_error"
    if named is not None:
        assert named.split(".")[-1] in said.error["message"] or named in str(said.error["param"])
    live.settle()


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": [[]]}, "prompt.0", "at least 1 item"),
        ({"prompt": [1, -5]}, "prompt.1", "greater than or equal to 0"),
        ({"prompt": 5}, "prompt", "write a text, a list"),
        ({"stop": ["a"] * 17}, "stop", "at most 16 items"),
        ({"stop": 5}, "stop", "write a str"),
        ({"messages": 5}, "messages", "write a list of messages"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"best_of": 2}, "best_of", "one"),
        ({"suffix": "b"}, "suffix", "text"),
        ({"maxTokens": 5}, "maxTokens", "not honoured"),
        ({"": 5}, None, "not honoured"),
    ],
)
def test_refusals_say_the_field_in_the_clients_words(
    live: Live, fields: dict[str, object], param: str | None, message: str
) -> None:
    kind = "chat/completions" if "messages" in fields else "completions"
    given = fields if "messages" in fields else {"prompt": "abc", **fields}
    said = live.ask(f"/v1/{kind}", given)
    assert said.status == 400
    assert str(said.error["param"]).startswith(str(param))
    assert message in said.error["message"]
    assert said.error["message"].startswith((str(param), "the field"))


@pytest.mark.parametrize(
    "raw",
    [
        b"{", b"null", b'"x"', b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt": NaN}',
        b'{"prompt": "a", "n": 1e400}', b"[" * 100_000,
        b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_bodies_that_are_no_request(live: Live, raw: bytes) -> None:
    said = live.ask("/v1/completions", raw)
    assert said.status == 400, said.text
    assert said.error["message"]


@pytest.mark.parametrize(
    ("raw", "kind", "words"),
    [
        (b"", "application/json", "send one, with the header Content-Type"),
        (b'{"prompt": "a"}', "", "Content-Type: application/json"),
        (b'{"prompt": "a"}', "text/plain", "Content-Type: application/json"),
        (b"[]", "application/json", "no JSON object"),
    ],
)
def test_a_refused_body_says_what_to_send(live: Live, raw: bytes, kind: str, words: str) -> None:
    said = live.ask("/v1/completions", raw, {"Content-Type": kind})
    assert said.status == 400
    assert words in said.error["message"]


def test_tools_need_a_template_that_shows_them(live: Live) -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    assert "chat template" in live.chat(tools=[tool]).error["message"]
    assert live.chat(tools=[tool], tool_choice="none", max_tokens=2).status == 200


def test_models_and_views(live: Live) -> None:
    assert [m["id"] for m in live.ask("/v1/models").json["data"]] == ["parrot", "other-name"]
    assert live.ask("/v1/models/").json == live.ask("/v1/models").json
    assert live.ask("/v1/models/parrot").json["id"] == "parrot"
    assert live.ask("/v1/models/etc/passwd").error["code"] == "model_not_found"
    assert live.complete(model="/etc/passwd").status == 404
    assert live.complete(model="other-name", max_tokens=1).json["model"] == "other-name"
    assert live.ask("/health").status == 200
    assert live.ask("/version").json["version"]
    assert live.ask("/ping").status == 200
    assert "/v1/embeddings is not served" in live.ask("/v1/embeddings", {"a": 1}).error["message"]
    assert live.ask("/v1/completions").status == 405
    page = live.ask("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http://" not in page.text.replace("http://www.w3.org", "")
    assert "https://" not in page.text


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/models/parrot", "/", "/nothing"])
def test_head_is_get_without_a_body(live: Live, path: str) -> None:
    """As load balancers and monitors ask."""
    got, head = (live.ask(path, method=method) for method in ("GET", "HEAD"))
    assert got.text
    assert not head.text
    assert (head.status, head.headers["content-type"]) == (got.status, got.headers["content-type"])


def test_numbers_of_requests(live: Live) -> None:
    assert live.ask("/health", headers={"X-Request-Id": "my-1"}).headers["x-request-id"] == "my-1"
    made = live.ask("/health", headers={"X-Request-Id": "no spaces"}).headers["x-request-id"]
    assert len(made) == 32


def test_metrics_count_what_was_done() -> None:
    with serving(fake_service(Fake())) as live:
        live.complete("abc", max_tokens=10)
        live.complete("abc", frob=1)
        live.settle()
        text = live.ask("/metrics").text
        stats = live.ask("/stats").json
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    label = '{model_name="parrot"}'
    assert float(values["vllm:generation_tokens_total" + label]) == 10
    assert float(values["vllm:prompt_tokens_total" + label]) == 3
    drafted = float(values["vllm:spec_decode_num_draft_tokens_total" + label])
    accepted = float(values["vllm:spec_decode_num_accepted_tokens_total" + label])
    assert 0 < accepted <= drafted
    assert float(
        values[
            'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="parrot",position="0"}'
        ]
    )
    assert float(values["vllm:time_to_first_token_seconds_count" + label]) == 1
    assert float(values["vllm:inter_token_latency_seconds_count" + label]) >= 6
    assert float(values['draftwise:http_requests_total{path="/v1/completions",status="400"}']) == 1
    price = 'draftwise:price_seconds{model="%s",model_name="parrot",tokens="%s"}'
    priced = {("target", "1"): 0.01, ("target", "2"): 0.012, ("parrot", "1"): 0.001}
    assert {each: float(values[price % each]) for each in priced} == priced
    assert 'tokens="4"' not in text
    label = '{drafter="parrot",length="2",model_name="parrot"}'
    assert float(values["draftwise:estimate" + label]) == 2.0
    assert sum(stats["tokens"].values()) == 10
    assert stats["totals"]["answers"] == 1
    rounds = stats["totals"]["rounds"]
    assert sum(stats["pulls"].values()) == rounds > 0
    assert stats["totals"]["busy_s"] == pytest.approx(0.003 * rounds)
    assert {name: best["value"] for name, best in stats["estimates"].items()} == {
        "parrot": 2.0,
        "none": 1.0,
    }
    assert stats["estimates"]["parrot"] == {"length": 2, "value": 2.0}


def test_the_speed_relative_to_plain_decoding_is_told_everywhere() -> None:
    """A fake round takes 3 ms, and 2.5 ms without drafts, whatever it emits."""
    with serving(fake_service(Fake())) as live:
        said = live.complete("abc", max_tokens=10, draftwise={"label": "code"}).json
        for number in range(40):
            live.complete("abc", max_tokens=1, draftwise={"label": f"task {number}"})
        live.settle()
        text, stats = live.ask("/metrics").text, live.ask("/stats").json
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    own = said["draftwise"]
    assert own["speed"] == pytest.approx(10 * 0.0025 / (own["num_rounds"] * 0.003))
    assert own["recent_speed"] == pytest.approx(own["speed"], rel=0.1)
    least = 10 * (0.0025 - 0.001) / (own["num_rounds"] * 0.003)
    assert own["speed_range"] == [pytest.approx(least), own["speed"]]
    label = 'draftwise:label_%s{label="code",model_name="parrot"%s}'
    assert float(values[label % ("emitted_tokens_total", "")]) == 10
    assert float(values[label % ("rounds_total", "")]) == own["num_rounds"]
    assert float(values[label % ("speed", ',window="start"')]) == pytest.approx(own["speed"])
    assert text.count("draftwise:label_rounds_total{") == 33
    assert 'label="other"' in text
    for window, name in (("start", "speed"), ("recent", "recent_speed")):
        speed = float(values[f'draftwise:speed{{model_name="parrot",window="{window}"}}'])
        assert speed == pytest.approx(stats[name], abs=1e-4)
    assert float(values['draftwise:drafting_allowed{model_name="parrot"}']) == 1
    assert stats["labels"]["code"][0] == pytest.approx(own["speed"])


def test_keys() -> None:
    with serving(fake_service(Fake()), ServerSettings(keys=("one", "two"))) as live:
        assert live.ask("/v1/models").status == 401
        assert live.ask("/v1/models").error["code"] == "invalid_api_key"
        for key, status in (("two", 200), ("one", 200), ("on", 401), ("onee", 401), ("é", 401)):
            raw = f"Bearer {key}".encode().decode("latin-1")
            assert live.ask("/v1/models", headers={"Authorization": raw}).status == status
        assert live.ask("/v1/models", headers={"Authorization": "Basic one"}).status == 401
        assert live.ask("/metrics").status == live.ask("/stats").status == 401
        assert {live.ask(path).status for path in ("/health", "/ping", "/")} == {200}


def test_bodies_that_are_too_large() -> None:
    with serving(fake_service(Fake()), ServerSettings(max_body=1000)) as live:
        assert live.complete("a" * 2000).status == 413
        with socket.create_connection(("127.0.0.1", live.port)) as chunked:  # no Content-Length
            chunked.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"400\r\n" + b"a" * 1024 + b"\r\n"
            )  # fmt: skip
            assert b" 413 " in chunked.recv(1000)
        assert live.complete("abc").status == 200


def test_prompts_that_cannot_fit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens of such a text would take a hundred times its memory."""
    fake = Fake()
    with serving(fake_service(fake)) as live:
        monkeypatch.setattr("draftwise.serve.parse.encode", None)
        monkeypatch.setattr("draftwise.serve.parse.render", None)
        for said in (live.complete("a" * 400_000), live.chat("a" * 400_000)):
            assert said.status == 400
            assert "400,000 characters" in said.error["message"]


def test_a_full_queue_says_when_to_come_again() -> None:
    with serving(fake_service(Fake(max_rows=1, pace_s=0.01), max_open=2)) as live:
        slow = [
            threading.Thread(target=live.complete, args=("abc",), kwargs={"max_tokens": 60})
        ] * 1
        slow += [threading.Thread(target=live.complete, args=("abc",), kwargs={"max_tokens": 60})]
        for thread in slow:
            thread.start()
        while live.service.worker.num_open < 2:
            time.sleep(0.005)
        said = live.complete("abc")
        assert said.status == 429
        assert int(said.headers["retry-after"]) >= 1
        assert said.error["type"] == "rate_limit_error"
        for thread in slow:
            thread.join()
        live.settle()
        assert live.complete("abc").status == 200


def test_a_reader_that_does_not_read_holds_no_row() -> None:
    fake = Fake()
    with serving(fake_service(fake)) as live:
        body = {"prompt": "abc", "max_tokens": 500, "stream": True, "n": 4}
        with socket.create_connection(("127.0.0.1", live.port)) as client:
            client.sendall(raw_post(body))
            while len(fake.rows) < 4:
                time.sleep(0.005)
            live.settle()  # although the client has read nothing
            assert [len(row.tokens) for row in fake.rows] == [500] * 4
            got = b""
            while b"[DONE]" not in got:
                got += client.recv(1 << 20)
        assert got.count(b'"finish_reason":"length"') == 4


def test_a_reader_that_takes_nothing_for_long_is_let_go() -> None:
    closed: list[bool] = []
    sent: list[Message] = []

    async def parts() -> AsyncIterator[bytes]:
        while True:
            yield b"more"

    async def send(message: Message) -> None:
        sent.append(message)
        if len(sent) > 3:
            await asyncio.Event().wait()  # its buffers are full

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    stream = EventStream(b"first", parts(), 0.05, lambda: closed.append(True))
    asyncio.run(asyncio.wait_for(stream({"type": "http"}, receive, send), 5))
    assert closed == [True]
    assert [message.get("body") for message in sent] == [None, b"first", b"more", b"more"]


def test_deadlines() -> None:
    with serving(fake_service(Fake(pace_s=0.01))) as live:
        said = live.complete("abc", max_tokens=4000, draftwise={"deadline_s": 0.1})
        assert said.status == 408
        assert said.headers["x-should-retry"] == "false"
        assert "deadline" in said.error["message"]
        said = live.complete("abc", max_tokens=4000, stream=True, draftwise={"deadline_s": 0.2})
        assert said.status == 200
        assert said.events[-1]["error"]["code"] == "late"


def test_errors_of_the_engine_are_told() -> None:
    def fails(step: int) -> None:
        if step == 3:
            raise RuntimeError("a drafter raised")

    with serving(fake_service(Fake(fails=fails))) as live:
        said = live.complete("abc", max_tokens=100)
        assert said.status == 500
        assert "a drafter raised" in said.error["message"]
        assert live.complete("abc", draftwise={"preset": "plain"}).status == 200
        assert live.complete([1] * 1001, max_tokens=5).status == 400
        said = live.complete([1] * 1001, max_tokens=5, stream=True)
        assert said.status == 400, "refused before the stream began"


def gauges(live: Live) -> list[str]:
    lines = live.ask("/metrics").text.splitlines()
    return [line.rpartition(" ")[2] for line in lines if line.startswith("vllm:num_requests_")]


@pytest.mark.parametrize("stream", [True, False])
def test_clients_that_leave_free_their_rows(stream: bool) -> None:
    fake = Fake(max_rows=2, pace_s=0.005)
    with serving(fake_service(fake)) as live:
        body = {"prompt": "abc", "max_tokens": 4000, "stream": stream, "n": 3}
        with socket.create_connection(("127.0.0.1", live.port)) as client:
            client.sendall(raw_post(body))
            while not fake.engine.running:
                time.sleep(0.005)
            if stream:
                assert client.recv(100)
            assert gauges(live) == ["2.0", "1.0"]
        live.settle()
        assert fake.rows[0].answer.finish_reason == "cancelled"
        assert len(fake.rows[0].tokens) < 4000
        assert not fake.engine.has_work
        assert gauges(live) == ["0.0", "0.0"]


def test_a_crowd_gets_its_answers() -> None:
    """12 clients read whole answers, read streams, leave, and send nonsense, 20 times each."""
    fake, wrong = Fake(max_rows=4, pace_s=0.001), list[str]()
    with serving(fake_service(fake, max_open=8)) as live:

        def client(seed: int) -> None:
            for number in range(seed, seed + 20):
                text, num = "abcdefg"[number % 5 :], 1 + number * 7 % 60
                if number % 4 == 0:
                    with socket.create_connection(("127.0.0.1", live.port)) as leaving:
                        leaving.sendall(raw_post({"prompt": text, "max_tokens": 400}))
                    continue
                if number % 4 == 1:
                    wrong.extend([] if live.complete(frob=1).status == 400 else ["taken"])
                    continue
                fields = {"max_tokens": num, "stream": number % 4 == 3}
                while (said := live.complete(text, **fields)).status == 429:
                    time.sleep(0.01)
                parts = said.events if fields["stream"] else [said.json]
                found = "".join(part["choices"][0]["text"] for part in parts)
                wrong.extend([] if found == told(live, text, num) else [f"{number}: {found}"])

        clients = [threading.Thread(target=client, args=(100 * n + n,)) for n in range(12)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        live.settle()
        assert 'status="500"' not in live.ask("/metrics").text
    assert wrong == []
    assert not fake.engine.has_work
    assert {row.answer.finish_reason for row in fake.rows} <= {"length", "cancelled"}
