"""Bodies generated from the published schema never cause a server error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwise.serve.items import ResponsesRequest
from draftwise.serve.schemas import ChatRequest, CompletionRequest
from serve.fake import Fake
from serve.live import Live, fake_service, serving

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
LIKELY: dict[str, Any] = {
    "prompt": st.text(max_size=12) | st.lists(st.integers(-2, 70), max_size=6)
    | st.lists(st.text(max_size=4), max_size=3),
    "messages": st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "tool", "x"]),
                               "content": st.text(max_size=8) | JSON}), max_size=3),
    "input": st.text(max_size=8) | st.lists(
        JSON | st.dictionaries(
            st.sampled_from(["type", "role", "content", "call_id", "name", "arguments", "output"]),
            st.sampled_from(["function_call", "function_call_output", "message", "user"]) | JSON),
        max_size=3),
    "max_output_tokens": st.integers(-1, 40),
    "max_tokens": st.integers(-1, 40), "n": st.integers(-1, 5), "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1), "seed": st.integers(), "stream": st.booleans(), "echo": st.booleans(),
    "logprobs": st.integers(-1, 22) | st.booleans(), "top_logprobs": st.integers(-1, 22),
    "stop": st.text(max_size=4) | st.lists(st.text(max_size=4), max_size=3),
    "logit_bias": st.dictionaries(st.integers(-3, 70).map(str), st.floats(-120, 120), max_size=3),
    "model": st.sampled_from(["parrot", "other-name", "nope"]),
    "structured_outputs": st.fixed_dictionaries({"regex": st.text("ab[]()*+?{}1,", max_size=8)}),
    "draftwise": st.fixed_dictionaries({}, optional={
        "preset": st.sampled_from(["plain", "draftwise", "nope"]), "policy": st.text(max_size=8),
        "plans": st.lists(st.integers(-1, 20), max_size=3), "pieces": st.booleans(),
        "speculation": st.booleans(), "max_draft": st.integers(-1, 5),
        "drafters": st.lists(st.sampled_from(["lookup", "nope", ""]), max_size=3)}),
}  # fmt: skip


def bodies(model: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Random subsets of the fields, with plausible values or arbitrary JSON."""
    names = [field.alias or name for name, field in model.model_fields.items()]
    fields = {name: LIKELY.get(name, JSON) | JSON for name in names}
    needed = {"prompt", "messages", "input"} & fields.keys()
    return st.fixed_dictionaries(
        {name: LIKELY[name] for name in needed},
        optional={name: value for name, value in fields.items() if name not in needed},
    )


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with serving(fake_service(Fake(max_rows=8), max_open=64)) as made:
        yield made


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(CompletionRequest))
def test_completions(live: Live, body: dict[str, Any]) -> None:
    check(live, "/v1/completions", body)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(ChatRequest))
def test_chats(live: Live, body: dict[str, Any]) -> None:
    check(live, "/v1/chat/completions", body)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(body=bodies(ResponsesRequest))
def test_responses(live: Live, body: dict[str, Any]) -> None:
    check(live, "/v1/responses", body)


def check(live: Live, path: str, body: dict[str, Any]) -> None:
    said = live.ask(path, body)
    assert said.status in {200, 400, 404}, said.text
    if said.status != 200:
        assert said.error["message"]
    elif body.get("stream") is True:
        assert '"error":{' not in said.text
    else:
        assert said.json["output" if path == "/v1/responses" else "choices"]
    live.settle()
