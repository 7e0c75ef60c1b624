"""openai's Python client, field by field, against a live server on a tiny model that drafts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from draftwise.serve.run import make_service
from draftwise.serve.settings import ServerSettings
from draftwise.speculator import Speculator
from engine.scripted import byte_tokenizer
from models import near_copy, tiny_model
from serve.live import Live, serving

TEMPLATE = (
    "{% for m in messages %}{{ m.role[:1] }} {{ m.content }}.{% endfor %}"
    "{% if tools %}{{ tools | length }}{% endif %}"
    "{% if add_generation_prompt %}a {% endif %}"
)
PROMPT = "the red bed"
MESSAGES: list[Any] = [{"role": "user", "content": "say the word"}]


@pytest.fixture(scope="module")
def speculator() -> Speculator:
    tokenizer = byte_tokenizer()
    alphabet = '{}":,_0123456789-'  # the characters besides letters that JSON needs
    tokenizer.add_tokens(list(alphabet))
    tokenizer.add_special_tokens({"eos_token": "<end>"})
    tokenizer.chat_template = TEMPLATE
    model = tiny_model()
    drafters = [near_copy(model, 0.1), "lookup", "suffix"]
    return Speculator.from_pretrained(
        model, drafters, tokenizer=tokenizer, scope="session", dtype="float32"
    )


@pytest.fixture(scope="module")
def live(speculator: Speculator) -> Iterator[Live]:
    settings = ServerSettings(models=("tiny",), max_rows=4)
    with serving(make_service(speculator, settings)) as made:
        yield made


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def plain(speculator: Speculator, prompt: Any, **options: Any) -> Any:
    return speculator.generate(prompt, **{"max_new_tokens": 24, **options})


def test_greedy_answers_are_those_of_generate(
    client: openai.OpenAI, speculator: Speculator
) -> None:
    prompts = [PROMPT, "a b c d", "see the sea"]
    expected = [plain(speculator, prompt).text for prompt in prompts]
    made = client.completions.create(model="tiny", prompt=prompts, max_tokens=24, temperature=0)
    assert [choice.text for choice in made.choices] == expected
    assert made.usage is not None
    assert made.usage.completion_tokens <= 72
    stream = client.completions.create(
        model="tiny", prompt=prompts, max_tokens=24, temperature=0, stream=True
    )
    texts = ["", "", ""]
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected


def test_presets_are_lossless_too(client: openai.OpenAI, speculator: Speculator) -> None:
    expected = plain(speculator, PROMPT).text
    for own in (
        {"preset": "plain"},
        {"preset": "banditspec", "plans": [1, 3]},
        {"preset": "metasd", "policy": "exp3spec"},
        {"label": "math", "tenant": "someone", "private": True, "priority": 2},
        {"drafters": ["lookup"], "max_draft": 2},
        {"speculation": False},
    ):
        made = client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=24, temperature=0, extra_body={"draftwise": own}
        )
        assert made.choices[0].text == expected
    found = made.model_dump()["metrics"]["speculative_decoding"]
    assert len(found["acceptance_histogram"]) == found["num_spec_tokens"] + 1
    assert found["num_draft_tokens"] == 0, "speculation is off in the last one"
    with pytest.raises(openai.BadRequestError, match="drafters is 'nope': it must be of"):
        client.completions.create(
            model="tiny", prompt=PROMPT, extra_body={"draftwise": {"drafters": ["nope"]}}
        )


@pytest.mark.parametrize(
    ("fields", "tenant", "is_private"),
    [
        ({}, "", False),
        ({"user": "a"}, "a", False),
        ({"user": "a", "extra_body": {"draftwise": {"tenant": "b", "private": True}}}, "b", True),
    ],
)
def test_answers_belong_to_their_tenants(
    client: openai.OpenAI,
    live: Live,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    tenant: str,
    is_private: bool,
) -> None:
    """tests/retrieval/test_suffix.py tests how the suffix drafter uses tenants."""
    worker, rows = live.service.worker, list[Any]()
    sound = worker._make
    monkeypatch.setattr(worker, "_make", lambda *a, **b: rows.append(sound(*a, **b)) or rows[-1])
    client.completions.create(model="tiny", prompt=PROMPT, max_tokens=2, **fields)
    assert [(row.context.tenant, row.context.is_private) for row in rows] == [(tenant, is_private)]


def test_seeds(client: openai.OpenAI) -> None:
    def say(seed: int | None, n: int = 3) -> list[str]:
        made = client.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=16, temperature=1.0, n=n, seed=seed,
            extra_body={"draftwise": {"preset": "plain"}},
        )  # fmt: skip
        return [choice.text for choice in made.choices]

    assert say(7) == say(7)
    assert say(7)[:1] == say(7, n=1)
    assert len(set(say(7))) == 3
    assert say(7) != say(8)
    assert say(None) != say(None)


def test_sampling_fields(client: openai.OpenAI, speculator: Speculator) -> None:
    def say(**fields: Any) -> str:
        fields = {"max_tokens": 24, "temperature": 0, **fields}
        return client.completions.create(model="tiny", prompt=PROMPT, **fields).choices[0].text

    greedy = say()
    assert say(temperature=1.5, extra_body={"top_k": 1}) == greedy
    assert say(temperature=1.5, top_p=1e-6) == greedy
    assert say(temperature=1.0, extra_body={"min_p": 1.0}) == greedy
    # both penalties count only the answer's tokens, so it must be long enough to repeat itself
    long = {"max_tokens": 90, "extra_body": {"ignore_eos": True}}
    assert say(**long, frequency_penalty=2.0) != say(**long)
    assert say(**long, presence_penalty=2.0) != say(**long)
    assert say(extra_body={"repetition_penalty": 3.0}) != greedy
    first = speculator.tokenizer(greedy)["input_ids"][0]
    assert say(logit_bias={str(first): -100})[:1] != greedy[:1]
    forced = say(logit_bias={"5": 100}, max_tokens=5)
    assert forced == speculator.tokenizer.decode([5] * 5)


def test_logprobs_and_echo(client: openai.OpenAI, speculator: Speculator) -> None:
    ids = speculator.tokenizer(PROMPT)["input_ids"]
    made = client.completions.create(
        model="tiny", prompt=[ids, ids[:4]], max_tokens=1, temperature=0, echo=True, logprobs=3
    )
    import torch

    with torch.no_grad():
        logits = speculator.target.module(torch.tensor([ids])).logits[0].float()
    expected = logits.log_softmax(-1)
    found = made.choices[0].logprobs
    assert found is not None
    assert found.token_logprobs is not None
    assert found.token_logprobs[0] is None
    assert len(found.token_logprobs) == len(ids) + 1
    for place, token in enumerate(ids[1:]):
        assert found.token_logprobs[place + 1] == pytest.approx(
            float(expected[place, token]), abs=1e-3
        )
    assert found.top_logprobs is not None
    best = float(expected[-1].max())
    assert max(found.top_logprobs[-1].values()) == pytest.approx(best, abs=1e-3)
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True,
        top_logprobs=2, extra_body={"ignore_eos": True},
    )  # fmt: skip
    content = chat.choices[0].logprobs
    assert content is not None
    assert content.content is not None
    assert len(content.content) == 6
    assert all(len(one.top_logprobs) == 2 for one in content.content)
    assert all(one.logprob == one.top_logprobs[0].logprob for one in content.content)


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "w": {"enum": ["a", "b"]},
    },
    "required": ["n", "w"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forms_are_kept(client: openai.OpenAI, temperature: float) -> None:
    chat = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=80, temperature=temperature,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
    )  # fmt: skip
    found = json.loads(chat.choices[0].message.content or "")
    assert found.keys() == {"n", "w"}
    assert found["w"] in {"a", "b"}
    assert chat.choices[0].finish_reason == "stop"
    made = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=40, temperature=temperature,
        extra_body={"structured_outputs": {"regex": "(ab|cd){2,6}e"}},
    )  # fmt: skip
    assert re.fullmatch("(ab|cd){2,6}e", made.choices[0].text)


def test_a_form_changes_no_token_that_it_allows(client: openai.OpenAI) -> None:
    """The masks are the same with and without drafts, and so is the text."""
    texts = set()
    for preset in ("plain", "draftwise", "banditspec"):
        made = client.completions.create(
            model="tiny",
            prompt=PROMPT,
            max_tokens=30,
            temperature=0,
            extra_body={
                "structured_outputs": {"regex": "[a-e ]{5,29}"},
                "draftwise": {"preset": preset},
            },
        )
        texts.add(made.choices[0].text)
    assert len(texts) == 1


@pytest.mark.parametrize("regex", [r"[^\s\S]", "a{1000000}"])
@pytest.mark.parametrize("stream", [False, True])
def test_forms_that_cannot_be_kept_are_refused(
    client: openai.OpenAI, regex: str, stream: bool
) -> None:
    """No text fits the first; the second is too large, which shows at its second token only."""
    with pytest.raises(openai.APIError, match="fits the grammar"):
        list(
            client.completions.create(
                model="tiny",
                prompt=PROMPT,
                stream=stream,
                extra_body={"structured_outputs": {"regex": regex}},
            )
        )


def test_a_trace_holds_rounds_and_no_text(speculator: Speculator, tmp_path: Path) -> None:
    """The trace is for ``draftwise advise`` and must not contain the clients' tokens."""
    trace = tmp_path / "rounds.jsonl"
    settings = ServerSettings(models=("tiny",), trace=trace)
    with (
        serving(make_service(speculator, settings)) as made,
        openai.OpenAI(base_url=made.url + "/v1", api_key="none") as client,
    ):
        more = {"ignore_eos": True}
        client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, extra_body=more)
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    assert sum(record["num_emitted"] for record in records) == 12
    assert all("tokens" not in record and record["seconds"]["verify"] > 0 for record in records)
