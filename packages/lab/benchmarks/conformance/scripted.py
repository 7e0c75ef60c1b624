"""A server whose model says what a script says, for clients that need a model that calls tools.

    python scripted.py PORT

HTTP, parsing, grammars and the engine are those of ``draftwise serve``. The target is a tiny random
model; an answer that the client leaves free is constrained to one text, which depends on the last
message: a sum is asked of the tool ``add``, a tool's result is told, and a request to change a file
is answered with the file.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from draftwise import Speculator, zoo
from draftwise.serve.app import make_app
from draftwise.serve.parse import RequestParser
from draftwise.serve.run import Server, make_service
from draftwise.serve.schemas import ChatRequest, StructuredOutputs
from draftwise.serve.settings import ServerSettings, bind
from draftwise.serve.settings import listen as listen_on
from draftwise.serve.worker import GenerationRequest

TEMPLATE = """\
{% if tools %}{{ tools | tojson }} Call as <tool_call>{"name": ...}</tool_call>{% endif %}\
{% for m in messages %}{{ m.role }}: {{ m.content }}\
{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}
{% endfor %}assistant: """


def answer(last: str, role: str, tools: set[str]) -> str:
    """What the model says to the last message."""
    if role == "tool":
        return f"The tool says {last[:80]}."
    numbers = re.search(r"(\d+) plus (\d+)", last)
    if numbers and "add" in tools:
        arguments = {"a": int(numbers[1]), "b": int(numbers[2])}
        return f"<tool_call>{json.dumps({'name': 'add', 'arguments': arguments})}</tool_call>"
    if "hello.py" in last:
        return "hello.py\n```\nprint('hello, world')\n```\n"
    return "This is what I have to say about it."


class Scripted(RequestParser):
    def chat(self, body: ChatRequest) -> list[GenerationRequest]:
        if body.form is None and not body.forced:
            last = body.messages[-1]
            text = last.content if isinstance(last.content, str) else str(last.content)
            tools = {tool.function.name for tool in body.offered}
            said = answer(text, last.role, tools)
            form = StructuredOutputs.model_validate({"choice": [said]})
            body = body.model_copy(update={"structured_outputs": form})
        return super().chat(body)


def main(port: int) -> None:
    torch.manual_seed(0)
    tokenizer: Any = AutoTokenizer.from_pretrained(zoo.target_path())
    tokenizer.chat_template = TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=32_768, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    speculator = Speculator.from_pretrained(
        LlamaForCausalLM(config).eval(), ["lookup", "suffix"], tokenizer=tokenizer, dtype="float32"
    )
    settings = ServerSettings(models=("local",), max_prompt_tokens=16_000)
    service = make_service(speculator, settings)
    # frozen dataclasses; only what a free answer says is replaced
    parser = service.parser
    object.__setattr__(
        service, "parser",
        Scripted(parser.codec, parser.grammars, parser.eos, parser.limits, parser.defaults),
    )  # fmt: skip
    listener = bind("127.0.0.1", port)
    listen_on(listener)
    Server(make_app(service, settings), service, settings).run([listener])


if __name__ == "__main__":
    main(int(sys.argv[1]))
