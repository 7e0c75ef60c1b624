"""Chat messages as prompts: the template's text, no doubled special tokens, clear refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken

from chatting import TEMPLATE, VOCAB, chat_tokenizer
from draftwise import DraftwiseError, Speculator, chat
from models import tiny_model

ASKED = [{"role": "user", "content": "Hello there"}]
LONGER = [
    {"role": "system", "content": "Be short."},
    *ASKED,
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Again"},
]
MANY = {"max_new_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def speculator() -> Speculator:
    target = tiny_model(vocab_size=VOCAB)
    return Speculator.from_pretrained(target, ["lookup"], tokenizer=chat_tokenizer())


@pytest.mark.parametrize("messages", [ASKED, LONGER])
def test_messages_become_what_transformers_makes_of_them(messages: list[Any]) -> None:
    tokenizer = chat_tokenizer()
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    found = chat.render(messages, tokenizer)
    assert list(found.tokens) == theirs
    assert found.turn_ends == {tokenizer.convert_tokens_to_ids("<|end|>")}


def test_special_tokens_of_a_rendered_text_stand_once() -> None:
    tokenizer = chat_tokenizer()
    text = tokenizer.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True)
    assert tokenizer(text)["input_ids"].count(tokenizer.bos_token_id) == 2  # before the change
    assert chat.encode(text, tokenizer).tokens == chat.render(ASKED, tokenizer).tokens
    plain = chat.encode("Hello", tokenizer).tokens
    assert list(plain) == tokenizer("Hello")["input_ids"]
    # a special token that the tokenizer does not add by itself stays in the text
    turn = chat.encode("<|turn|>user", tokenizer).tokens
    assert list(turn) == tokenizer("<|turn|>user")["input_ids"]


def test_content_in_parts_and_tools_reach_the_template() -> None:
    tokenizer = chat_tokenizer(TEMPLATE + "{% if tools %}{{ tools[0].name }}{% endif %}")
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello "}, {"text": "there"}]}]
    assert chat.render(parts, tokenizer) == chat.render(ASKED, tokenizer)
    tooled = chat.render(ASKED, tokenizer, tools=[{"name": "find"}])
    assert tokenizer.decode(tooled.tokens).endswith("find")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "user"}], "no text under 'content'"),
        ([{"content": "Hello"}], "has no role"),
        ([{"role": "usr", "content": "Hello"}], "the roles are: system, developer, user"),
        ([*ASKED, {"role": "assistant", "content": "Hi"}], "nothing to answer"),
        ([*ASKED, {"role": "system", "content": "Be short"}], "system comes first"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "images and sound"),
        ([{"role": "user", "content": "\ud800"}], "surrogate"),
    ],
)
def test_conversations_that_make_no_sense(messages: list[Any], said: str) -> None:
    with pytest.raises(DraftwiseError, match=said):
        chat.render(messages, chat_tokenizer())


def test_templates_that_are_missing() -> None:
    with pytest.raises(DraftwiseError, match="no chat template"):
        chat.render(ASKED, chat_tokenizer(None))


def say(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}


TURN = "<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n"
EACH = "{% for m in messages %}" + TURN + "{% endfor %}<|turn|>assistant\n"
KNOWN = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant') %}"
    + TURN
    + "{% endif %}{% endfor %}<|turn|>assistant\n"
)
FIRST = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    + TURN
    + "{% endif %}{% endfor %}<|turn|>assistant\n"
)
LAST = "{% for m in messages[-1:] %}" + TURN + "{% endfor %}<|turn|>assistant\n"
ONCE = (
    "{% set ns = namespace(seen=[]) %}{% for m in messages %}{% if m.role not in ns.seen %}"
    "{% set ns.seen = ns.seen + [m.role] %}" + TURN + "{% endif %}{% endfor %}"
)
CALLS = (
    "{% for m in messages %}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "<|turn|>call\n{{ c.function.name }} {{ c.function.arguments | tojson }}<|end|>\n"
    "{% endfor %}{% else %}" + TURN + "{% endif %}{% endfor %}"
)
NAMES = CALLS.replace(" {{ c.function.arguments | tojson }}", "")
FIRST_CALL = CALLS.replace("in m.tool_calls %}", "in m.tool_calls[:1] %}")
BRIEF = "Be brief."
CALLED = [say("user", "z"), say("assistant", "", tool_calls=[call("find", {"a": 1})])]
BOTH = [say("user", "z"), say("assistant", "", tool_calls=[call("f", {}), call("g", {})])]


@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        (KNOWN, [say("system", BRIEF), say("user", BRIEF)], r"message 0 \(system\)"),
        (
            FIRST,
            [say("system", BRIEF), say("user", "x"), say("system", BRIEF), say("user", "z")],
            r"message 2 \(system\)",
        ),
        (LAST, [say("user", "z"), say("assistant", "y"), say("user", "z")], "message 0"),
        (ONCE, [say("user", "z"), say("assistant", "y"), say("user", "z")], "message 2"),
        (KNOWN, [say("user", "z"), say("assistant", "y"), say("tool", "y z")], r"2 \(tool\)"),
        (KNOWN, [say("developer", BRIEF), say("user", BRIEF)], r"message 0 \(system\)"),
        (EACH, [*CALLED, say("tool", "1")], r"1 \(assistant\), its call of find"),
        (NAMES, [*CALLED, say("tool", "1 a")], "the arguments of its call of find"),
        (FIRST_CALL, [*BOTH, say("tool", "g")], "its call of g"),
        (
            EACH,
            [say("user", "z"), say("assistant", "y", reasoning_content="why"), say("user", "why")],
            "reasoning_content of message 1",
        ),
    ],
)
def test_a_message_that_is_not_in_the_prompt_is_refused(
    template: str, messages: list[Any], said: str
) -> None:
    """The same words stand elsewhere in each prompt."""
    with pytest.raises(DraftwiseError, match=f"leaves out .*{said}"):
        chat.render(messages, chat_tokenizer(template))


QWEN3 = (
    "{% for m in messages %}{% set text = m.content %}{% if m.role == 'assistant' %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}"
    "{% if m.reasoning_content and loop.last %}{{ m.reasoning_content }}{% endif %}{% endif %}"
    "<|turn|>{{ m.role }}\n{{ text }}<|end|>\n{% endfor %}<|turn|>assistant\n"
)
MERGED = (
    "{% for m in messages if m.role != 'system' %}<|turn|>{{ m.role }}\n{% if loop.first %}"
    "{% for s in messages if s.role == 'system' %}{{ s.content | trim }}\n{% endfor %}{% endif %}"
    "{{ m.content | trim }}<|end|>\n{% endfor %}"
)
CHATTED = [say("user", " z "), say("assistant", "y"), say("user", "z\n")]


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        (QWEN3, [say("user", "z"), say("assistant", "<think>why</think>\n\ny"), say("user", "x")]),
        (QWEN3, [say("user", "z"), say("assistant", "y", reasoning_content="w"), say("user", "x")]),
        (MERGED, [say("system", BRIEF), *CHATTED, say("system", BRIEF), say("user", "more")]),
        (CALLS, [*CALLED, say("tool", "42")]),
        (CALLS, [say("user", "z"), say("assistant", "I look.", tool_calls=[call("f", {"a": 1})])]),
        (CALLS, [say("user", "z"), say("assistant", "", tool_calls=[call("f", '{"a": 1}')])]),
        (CALLS, [say("user", "z"), say("assistant", "", tool_calls=[call("f", "not JSON")])]),
        (EACH, [say("user", "z"), say("assistant", "y", reasoning_content=""), say("user", "")]),
        (EACH, [say("user", "z"), say("assistant", "y", name="n", refusal=None), say("user", "")]),
    ],
)
def test_what_templates_do_with_messages_is_theirs(template: str, messages: list[Any]) -> None:
    tokenizer = chat_tokenizer(template)
    messages = [*messages, say("user", "last")]
    theirs = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert list(chat.render(messages, tokenizer).tokens) == theirs


def test_developer_is_system_where_the_template_has_no_place_for_it() -> None:
    asked = [say("developer", BRIEF), *ASKED]
    as_system = [say("system", BRIEF), *ASKED]
    has_system = KNOWN.replace("('user',", "('system', 'user',")
    raising = has_system.replace(
        "{% if", "{% if m.role == 'developer' %}{{ raise_exception('unknown') }}{% endif %}{% if", 1
    )
    for template in (has_system, raising):
        tokenizer = chat_tokenizer(template)
        assert chat.render(asked, tokenizer) == chat.render(as_system, tokenizer)
    for template, role in ((EACH, "system"), (EACH + "{# developer #}", "developer")):
        told = chat_tokenizer(EACH).decode(chat.render(asked, chat_tokenizer(template)).tokens)
        assert f"<|turn|>{role}\n{BRIEF}" in told


def in_code(tokenizer: Any) -> Any:
    """As MistralCommonBackend: no template, and control tokens that text cannot spell."""

    class InCode(type(tokenizer)):  # type: ignore[misc]
        def apply_chat_template(self, turns: Any, tokenize: bool = True, **options: Any) -> Any:
            assert tokenize, "its text is not for models"
            if turns[-1]["role"] == "assistant" and not options.get("continue_final_message"):
                raise ValueError("an assistant's message is last")
            ids = []
            for turn in turns:
                begin, end = (258, 259) if turn["role"] == "user" else ([], 257)
                ids += [*([begin] if begin else []), *self(turn["content"])["input_ids"][1:], end]
            ids = ids[:-1] if options.get("continue_final_message") else ids
            return {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}

    return InCode(tokenizer_object=tokenizer._tokenizer, bos_token="<bos>", eos_token="<eos>")


def test_ids_are_those_of_the_tokenizer_even_if_no_text_spells_them() -> None:
    tokenizer = in_code(chat_tokenizer(None))
    assert tokenizer.chat_template is None
    letters = tokenizer("Hello there")["input_ids"][1:]
    found = chat.render(ASKED, tokenizer)
    assert (list(found.tokens), found.turn_ends) == ([258, *letters, 259], {257})
    begun = [*ASKED, say("assistant", "Hel")]
    found = chat.render(begun, tokenizer, continue_final_message=True)
    assert list(found.tokens) == [258, *letters, 259, *tokenizer("Hel")["input_ids"][1:]]
    made = Speculator.from_pretrained(tiny_model(vocab_size=VOCAB), ["lookup"], tokenizer=tokenizer)
    assert made.generate(ASKED, max_new_tokens=2).prompt_tokens == [258, *letters, 259]


def test_an_answer_can_be_continued() -> None:
    tokenizer = chat_tokenizer()
    begun = [*ASKED, say("assistant", "Hel")]
    found = tokenizer.decode(chat.render(begun, tokenizer, continue_final_message=True).tokens)
    assert found.endswith("<|turn|>assistant\nHel")
    with pytest.raises(DraftwiseError, match="continues an answer of the assistant"):
        chat.render(ASKED, tokenizer, continue_final_message=True)


@pytest.mark.parametrize("end", [[257], [257, 258], [100]])
def test_a_tokenizer_that_ends_the_message_to_be_continued_is_refused(end: list[int]) -> None:
    """As mistral-common did, which took the option and wrote the end of the turn."""

    class Ending(type(in_code(chat_tokenizer(None)))):  # type: ignore[misc]
        def apply_chat_template(self, turns: Any, tokenize: bool = True, **options: Any) -> Any:
            found = super().apply_chat_template(turns, tokenize, **options)
            if options.get("continue_final_message"):
                found["input_ids"][0] += end
            return found

    tokenizer = in_code(chat_tokenizer(None))
    ending = Ending(tokenizer_object=tokenizer._tokenizer, bos_token="<bos>", eos_token="<eos>")
    assert chat.render(ASKED, ending) == chat.render(ASKED, tokenizer)
    for said in ("Hel", "Hello ", "two\nlines"):
        begun = [*ASKED, say("assistant", said)]
        chat.render(begun, tokenizer, continue_final_message=True)
        with pytest.raises(DraftwiseError, match="ends the last message"):
            chat.render(begun, ending, continue_final_message=True)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(
    ("tail", "end"),
    [("<|x|>\n", "<|x|>"), ("  <|x|>\n", "<|x|>"), ("\n\n", None), ("", None), ("</s>", None)],
)
def test_a_turn_ends_with_an_added_token_special_or_not(
    special: bool, tail: str, end: str | None
) -> None:
    tokenizer = chat_tokenizer("{% for m in messages %}{{ m.content }}" + tail + "{% endfor %}")
    added = [
        AddedToken(text, special=special, normalized=False) for text in ("<|x|>", "\n\n", "  ")
    ]
    tokenizer.add_tokens(added, special_tokens=special)
    ends = {tokenizer.convert_tokens_to_ids(end)} if end else set()
    assert chat.render(ASKED, tokenizer).turn_ends == ends


def test_every_form_of_one_prompt_is_the_same_prompt(speculator: Speculator) -> None:
    tokenizer = speculator.tokenizer
    ids = list(chat.render(ASKED, tokenizer).tokens)
    forms: list[Any] = [
        ASKED,
        tuple(ASKED),
        ids,
        torch.tensor(ids),
        np.array(ids),
        [torch.tensor(i) for i in ids],
        tokenizer.apply_chat_template(ASKED, add_generation_prompt=True),
        tokenizer.apply_chat_template(ASKED, tokenize=False, add_generation_prompt=True),
        chat.render(ASKED, tokenizer),
    ]
    answers = {tuple(speculator.generate(form, **MANY).tokens) for form in forms}
    assert len(answers) == 1
    rows: Any = tokenizer.apply_chat_template(
        ASKED, add_generation_prompt=True, return_tensors="pt"
    )
    (result,) = speculator.generate(rows, **MANY)  # a two-dimensional array is a batch
    assert {tuple(result.tokens)} == answers
    assert "".join(piece for piece, _ in speculator.stream(rows, **MANY)) == result.text


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out_and_never_read(speculator: Speculator, side: str) -> None:
    tokenizer = speculator.tokenizer
    texts = ["Hello", "Hello there, all of you"]
    alone = [speculator.generate(text, **MANY).tokens for text in texts]
    padded: Any = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
    lists: Any = tokenizer(texts, padding=True, padding_side=side)
    ids, mask = padded["input_ids"], padded["attention_mask"]
    for given in (padded, lists):
        assert [r.tokens for r in speculator.generate(given, **MANY)] == alone
    found = speculator.generate(ids, attention_mask=mask, **MANY)
    assert [r.tokens for r in found] == alone
    with pytest.raises(DraftwiseError, match="pass attention_mask"):
        speculator.generate(ids, **MANY)
    with pytest.raises(DraftwiseError, match="pass attention_mask"):
        speculator.generate(lists["input_ids"], **MANY)
    broken = mask.clone()
    broken[:, 3] = 0
    with pytest.raises(DraftwiseError, match="has gaps"):
        speculator.generate(ids, attention_mask=broken, **MANY)


def test_conversations_in_a_batch_end_with_their_turn(speculator: Speculator) -> None:
    both = speculator.generate([ASKED, LONGER, "Hello", [1, 2, 3]], **MANY)
    alone = [speculator.generate(one, **MANY) for one in (ASKED, LONGER, "Hello", [1, 2, 3])]
    assert [r.tokens for r in both] == [r.tokens for r in alone]
    said = alone[0].tokens[4]  # this token ends a turn of the chat prompt only
    prompt = chat.render(ASKED, speculator.tokenizer)
    ended = chat.Prompt(prompt.tokens, frozenset({said}))
    result = speculator.generate(ended, max_new_tokens=8)
    first = alone[0].tokens.index(said)
    assert (result.tokens, result.finish_reason) == (alone[0].tokens[: first + 1], "eos")
    assert speculator.generate(ended, **MANY).tokens == alone[0].tokens


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([1.5, 2.5], "has 1.5 among its token ids"),
        (torch.tensor([1.5, 2.5]), "1.5"),
        (np.array([1.0, 2.0]), "1.0"),
        ([True, False], "True"),
        (b"hello", "decode them"),
        ([b"hello"], "decode them"),
        (None, "NoneType"),
        (7, "single number 7"),
        (torch.tensor(7), "the prompt is the single number 7: token ids are a list"),
        (torch.zeros(1, 2, 3).long(), r"prompt 0 has \[0, 0, 0\] among its token ids"),
        ([[1, 2], torch.tensor(7)], "prompt 1 is the single number 7"),
        (np.array(["a"]), "the prompt has 'a' among its token ids"),
        ({"text": "hello"}, "without input_ids"),
        ([[1, 2], None], "prompt 1 is of the type NoneType"),
        ([1, -100], "token ids are 0 or more"),
        ([1, VOCAB], "outside the vocabulary"),
        ("", "the prompt: it is empty"),
        ([], "no prompt"),
        ([[1], []], "prompt 1 is empty"),
        ("\ud800", "surrogate"),
    ],
)
def test_nothing_is_misread_in_silence(speculator: Speculator, prompt: Any, said: str) -> None:
    with pytest.raises(DraftwiseError, match=said):
        speculator.generate(prompt, **MANY)


def test_reprs_say_what_it_is(speculator: Speculator) -> None:
    pieces = list(speculator.stream(ASKED, **MANY))
    assert repr(pieces[-1][1]).startswith("Round(")
    result = speculator.generate(ASKED, **MANY)
    assert "8 tokens" in repr(result)
    assert len(repr(result)) < 200
    assert "lookup" in repr(speculator)


def test_without_a_seed_calls_differ_and_with_one_they_repeat() -> None:
    def draws(seed: int | None, own: int | None) -> list[str]:
        target = tiny_model(vocab_size=VOCAB)
        speculator = Speculator.from_pretrained(target, [], preset="plain", seed=seed)
        options: Any = {"max_new_tokens": 12, "temperature": 1.0, "seed": own}
        return [str(speculator.generate([1, 2, 3], **options).tokens) for _ in range(3)]

    assert len(set(draws(None, None))) == 3
    assert len(set(draws(0, None))) == 3
    assert draws(0, None) == draws(0, None)
    assert len(set(draws(None, 7) + draws(3, 7))) == 1
    with pytest.raises(DraftwiseError, match="seed is -1: it must be a whole number"):
        draws(None, -1)


def test_one_drafter_needs_no_list() -> None:
    target = tiny_model(vocab_size=VOCAB)
    assert [d.name for d in Speculator.from_pretrained(target, "lookup").drafters] == ["lookup"]
