"""Texts of tokens over HTTP: streamed and whole, with the prompt and alone, by every decoder.

The answers repeat their prompts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from engine.vocabularies import KINDS, added, decoded, made
from serve.fake import Fake
from serve.live import Live, fake_service, serving

WORDS = {
    "byte fallback": ["▁hello", "▁world", "<0xE4>", "<0xBD>", "<0xA0>", "▁is", "!", "▁", "a"],
    "byte fallback, unstripped": ["▁hello", "<0xE4>", "<0xBD>", "<0xA0>", "▁world", "!"],
    "metaspace": ["▁hello", "▁world", "lo", "▁is", "!"],
    "byte level": ["Ġhello", "lo", "a", "Ġhello", "b"],
    "word piece": ["hello", "##lo", "a", "do", "n't", "."],
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def live(kind: str) -> Iterator[Live]:
    with serving(fake_service(Fake(made(kind)))) as running:
        yield running


def prompt_of(kind: str) -> list[int]:
    return list(made(kind).convert_tokens_to_ids(WORDS[kind]))


def whole(live: Live, **fields: Any) -> Any:
    return live.complete(**fields).json["choices"][0]


def streamed(live: Live, **fields: Any) -> Any:
    """The chunks of a stream, put together as those who read it do."""
    found: dict[str, Any] = {"text": "", "logprobs": None}
    for event in live.complete(stream=True, **fields).events:
        (choice,) = event["choices"]
        found["text"] += choice["text"]
        if choice["logprobs"]:
            found["logprobs"] = found["logprobs"] or {name: [] for name in choice["logprobs"]}
            for name, values in choice["logprobs"].items():
                found["logprobs"][name] += values
    return found


@pytest.mark.parametrize("ask", [whole, streamed])
@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("num", [1, 3, 7])
def test_tokens_make_up_the_text_and_offsets_point_into_it(
    live: Live, kind: str, num: int, echo: bool, ask: Any
) -> None:
    prompt = prompt_of(kind)
    tokens = (prompt * 2)[:num]
    found = ask(live, prompt=prompt, max_tokens=num, logprobs=1, echo=echo)
    assert found["text"] == decoded(kind, prompt) * echo + added(kind, prompt, tokens)
    said = found["logprobs"]
    assert "".join(said["tokens"]) == found["text"]
    starts = ["".join(said["tokens"][:i]) for i in range(len(said["tokens"]))]
    assert said["text_offset"] == list(map(len, starts))
    assert len(starts) == len(tokens) + len(prompt) * echo
    for token, top in zip(said["tokens"], said["top_logprobs"], strict=True):
        assert top is None or token in top


def test_bytes_of_log_probabilities_are_those_of_the_text() -> None:
    with serving(fake_service(Fake())) as live:
        for text in ("é日本à", "a日b"):
            for num in range(1, 14):
                said = live.chat(text, max_tokens=num, logprobs=True, top_logprobs=1).json
                choice = said["choices"][0]
                raw = b"".join(bytes(one["bytes"]) for one in choice["logprobs"]["content"])
                assert raw.decode(errors="replace") == choice["message"]["content"]
                names = [one["token"] for one in choice["logprobs"]["content"]]
                assert "".join(names) == choice["message"]["content"]
