"""Renders messages to token ids with the chat template, without duplicating special tokens.

A message is a mapping with a ``role`` and a ``content``, as in transformers and OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.types import DraftwiseError

Message = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
_PROBE = "Certainly"  # an answer whose end shows how a template ends the assistant's turn


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt: [T] token ids, and tokens that end a turn in addition to the model's."""

    tokens: Sequence[int]
    turn_ends: frozenset[int] = frozenset()


def is_messages(given: Any) -> bool:
    """Whether ``given`` is one conversation: a sequence of messages.

    >>> is_messages([{"role": "user", "content": "Hello"}]), is_messages(["Hello"])
    (True, False)
    """
    first = given[0] if isinstance(given, Sequence) and len(given) > 0 else None
    return isinstance(first, Mapping) and "input_ids" not in first


def render(
    messages: Sequence[Message], tokenizer: Any, *, after_answer: bool = False, **options: Any
) -> Prompt:
    """Render a conversation as the prompt of the assistant's next turn.

    after_answer: whether that turn may follow another of the assistant's, as in OpenAI's API.
    options: arguments of the template (``tools``, ``enable_thinking``, ...). Source:
    ``apply_chat_template`` of transformers with its generation prompt; the text is encoded without
    adding special tokens, since the template wrote them.
    Raises DraftwiseError for a tokenizer without a template, a message without role or text, a last
    message by the assistant, an order of roles that the template rejects, and a message that the
    template omits.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise DraftwiseError(
            "the tokenizer has no chat template: this may be a base model, which continues text; "
            "give the prompt as text, or set tokenizer.chat_template"
        )
    turns = [_turn(number, message, tokenizer) for number, message in enumerate(messages)]
    if turns[-1]["role"] == "assistant" and not after_answer:
        raise DraftwiseError(
            f"message {len(turns) - 1} is the assistant's and the last: there is nothing to answer"
        )
    text = _apply(tokenizer, turns, add_generation_prompt=True, **options)
    for number, turn in enumerate(turns):
        if turn["role"] in {"system", "user"} and turn["content"].strip() not in text:
            raise DraftwiseError(
                f"the chat template leaves out message {number} ({turn['role']}): this model does "
                "not take it there; put what it says into the first user message"
            )
    return Prompt(_ids(tokenizer, text, add_special_tokens=False), turn_ends(tokenizer))


def encode(prompt: str | Sequence[Message], tokenizer: Any) -> Prompt:
    """Encode text or a conversation; special tokens at the start of the text are not duplicated.

    Raises DraftwiseError for what ``render`` rejects, and for text that is empty or invalid
    Unicode.
    """
    if tokenizer is None:
        what = "a text prompt needs" if isinstance(prompt, str) else "messages need"
        raise DraftwiseError(f"{what} a tokenizer: pass token ids, or tokenizer=...")
    if not isinstance(prompt, str):
        return render(prompt, tokenizer)
    if not prompt:  # a tokenizer that prepends a token would hide it
        raise DraftwiseError(
            "it is empty: there is nothing to continue (to begin with nothing, give the ids of the "
            "tokens that a text begins with)"
        )
    ids = _ids(tokenizer, prompt)
    if not prompt.startswith(tuple(getattr(tokenizer, "all_special_tokens", ()))):
        return Prompt(ids)
    bare = _ids(tokenizer, prompt, add_special_tokens=False)
    added = next((n for n in range(len(ids)) if ids[n : n + len(bare)] == bare), 0)
    return Prompt(bare if bare[:added] == ids[:added] else ids)


def check_size(prompt: str | Sequence[Message], tokenizer: Any, max_positions: int) -> None:
    """Raise DraftwiseError for text that cannot fit, since encoding takes seconds per 10 MB."""
    turns = [{"content": prompt}] if isinstance(prompt, str) else prompt
    num = sum(len(str(turn.get("content", ""))) for turn in turns if isinstance(turn, Mapping))
    if num <= 16 * max_positions or tokenizer is None:  # scanning a vocabulary takes time, too
        return
    most = max_positions * max(map(len, tokenizer.get_vocab()))
    if num > most:
        raise DraftwiseError(
            f"the text has {num:,} characters, and no text of more than {most:,} fits the model's "
            f"{max_positions:,} positions: shorten it"
        )


def check_unicode(what: str, *texts: str) -> None:
    """Raise DraftwiseError for a text that no tokenizer can encode."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise DraftwiseError(
            f"{what} is no valid Unicode: a lone surrogate at character {error.start}"
        ) from None


def turn_ends(tokenizer: Any) -> frozenset[int]:
    """The special token that the template writes after an assistant's turn, or none."""
    asked, answered = {"role": "user", "content": "Hello"}, {"role": "assistant", "content": _PROBE}
    try:
        text = _apply(tokenizer, [asked, answered])
    except DraftwiseError:
        return frozenset()
    _, is_there, tail = text.rpartition(_PROBE)
    added = getattr(tokenizer, "added_tokens_decoder", {})
    known = {i for i, token in added.items() if token.special}
    known.update(getattr(tokenizer, "all_special_ids", ()))
    found = [i for i in _ids(tokenizer, tail, add_special_tokens=False) if i in known]
    return frozenset(found[:1] if is_there else ())


def _turn(number: int, message: Message, tokenizer: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str):
        raise DraftwiseError(
            f'message {number} has no role: write {{"role": "user", "content": "..."}}'
        )
    if role not in ROLES and f"{role!r}" not in str(tokenizer.chat_template).replace('"', "'"):
        raise DraftwiseError(
            f"message {number} has the unknown role {role!r}; the roles are: {', '.join(ROLES)}"
        )
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):  # parts, as in OpenAI's API
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if not all(isinstance(text, str) for text in texts):
            raise DraftwiseError(
                f"message {number} has a part that is no text: images and sound are not served"
            )
        content = "".join(map(str, texts))
    if content is None and role == "assistant":  # a message with tool calls only
        content = ""
    if not isinstance(content, str):
        raise DraftwiseError(f"message {number} ({role}) has no text under 'content'")
    return {**message, "content": content}


def _apply(tokenizer: Any, turns: Sequence[Message], **options: Any) -> str:
    try:
        return str(tokenizer.apply_chat_template(turns, tokenize=False, **options))
    except Exception as error:  # templates are programs, and may raise any exception
        raise DraftwiseError(f"the chat template refuses these messages: {error}") from error


def _ids(tokenizer: Any, text: str, **options: Any) -> list[int]:
    check_unicode("the text", text)
    return list(tokenizer(text, **options)["input_ids"])
