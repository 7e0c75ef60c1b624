"""A server on a tiny model that speaks ChatML with tools, and answers with any text on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from draftwise.serve.run import make_service
from draftwise.serve.settings import ServerSettings
from draftwise.speculator import Speculator
from models import byte_level, tiny_model
from serve.live import Live, Said, serving

TEMPLATE = """\
{%- if tools %}<|im_start|>tools
{{ tools | tojson }} Answer as <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}{{ m.content }}
{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {# -#}
{{ c.function.arguments | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{%- if reasoning_effort %}effort {{ reasoning_effort }}: {% endif %}{% endif %}"""
SPECIAL = ("<eos>", "<|im_start|>", "<|im_end|>")
POSITIONS = 4096


def tokenizer(
    template: str = TEMPLATE, special: Sequence[str] = SPECIAL, added: Sequence[str] = ()
) -> PreTrainedTokenizerFast:
    """A tokenizer of single bytes. special, added: further tokens, special ones and others."""
    inner = byte_level(special)
    inner.add_tokens([AddedToken(one, special=False, normalized=False) for one in added])
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="<eos>", clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made


def speculator(template: str = TEMPLATE, added: Sequence[str] = ()) -> Speculator:
    made = tokenizer(template, added=added)
    model = tiny_model(vocab_size=len(made), max_position_embeddings=POSITIONS)
    return Speculator.from_pretrained(model, ["lookup"], tokenizer=made, dtype="float32")


class Chat:
    """A client of one server."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.tokenizer = live.service.parser.codec.tokenizer

    def ask(self, messages: Any = "Hi", **fields: Any) -> Said:
        """Send a chat of few tokens; messages: a list of them, or the text of one."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"messages": messages, "max_tokens": 2, "temperature": 0, **fields}
        return self.live.ask("/v1/chat/completions", body)

    def told(self, text: str, **fields: Any) -> dict[str, Any]:
        """The choice of an answer whose text is given."""
        said = self.ask(structured_outputs={"choice": [text]}, **{"max_tokens": 999, **fields})
        assert said.status == 200, said.text
        choice: dict[str, Any] = said.json["choices"][0]
        return choice

    def streamed(self, text: str, **fields: Any) -> dict[str, Any]:
        """The same choice, put together from a stream's chunks as clients do."""
        fields = {"max_tokens": 999, "structured_outputs": {"choice": [text]}, **fields}
        said = self.ask(stream=True, **fields)
        assert said.status == 200, said.text
        return collected(event["choices"][0] for event in said.events if event["choices"])

    def prompt(self, messages: Any = "Hi", **fields: Any) -> str:
        """The prompt that the model reads, as text."""
        parser = self.live.service.parser
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        from draftwise.serve.schemas import ChatRequest

        body = ChatRequest.model_validate({"messages": messages, **fields})
        (asked,) = parser.chat(body)
        return str(self.tokenizer.decode(asked.prompt))


def collected(choices: Iterator[Mapping[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"content": None}
    reason, calls = None, dict[int, dict[str, Any]]()
    for choice in choices:
        delta = choice["delta"]
        message["content"] = (message["content"] or "") + (delta.get("content") or "")
        for call in delta.get("tool_calls", ()):
            assert call["index"] not in calls, "a call comes in one piece"
            calls[call["index"]] = {key: call[key] for key in ("id", "type", "function")}
        if "function_call" in delta:
            message["function_call"] = delta["function_call"]
        reason = choice["finish_reason"] or reason
    assert list(calls) == list(range(len(calls)))
    if calls:
        message["tool_calls"] = list(calls.values())
    return {"message": message, "finish_reason": reason}


@contextmanager
def chatting(made: Speculator, **settings: Any) -> Iterator[Chat]:
    wanted = ServerSettings(models=("tiny",), max_rows=4, **settings)
    with serving(make_service(made, wanted)) as live:
        yield Chat(live)
