"""Messages as token ids, in the form that the tokenizer gives a conversation.

A message is a mapping with a ``role`` and a ``content``, as in transformers and OpenAI's API.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from draftwise.types import DraftwiseError

Message = Mapping[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields that hold an answer's reasoning."""
_PROBES = "Certainly", "Hello"
"""Answers that end in different tokens: what follows both is how an assistant's turn ends."""


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
    options: arguments of the template (``tools``, ``enable_thinking``, ...); with
    ``continue_final_message`` the prompt ends inside the last message, the assistant's. Source:
    ``apply_chat_template`` of transformers, with its token ids: some tokenizers write control
    tokens as ids only, which no text spells.

    Every message has to be in the prompt: its text, or else its tool calls. A template may strip,
    merge and move text. It may leave out the text beside a call, as Llama 3's does, and reasoning,
    as Qwen3's does, unless it knows no such field. ``developer`` is ``system`` where the template
    does not know that role.
    Raises DraftwiseError for a tokenizer without a template, a message without role or text, a last
    message by the assistant that is not to be continued or that the tokenizer ends all the same, an
    order of roles that the template rejects, and a message that the template leaves out.
    """
    if not has_template(tokenizer):
        raise DraftwiseError(
            "the tokenizer has no chat template: this may be a base model, which continues text; "
            "give the prompt as text, or set tokenizer.chat_template"
        )
    turns = [_turn(number, message, tokenizer) for number, message in enumerate(messages)]
    is_answer = turns[-1]["role"] == "assistant"
    continues = bool(options.get("continue_final_message"))
    if is_answer != continues and not (is_answer and after_answer):
        last = f"message {len(turns) - 1} is the last and the {turns[-1]['role']}'s"
        raise DraftwiseError(
            f"{last}: continue_final_message continues an answer of the assistant"
            if continues
            else f"{last}: there is nothing to answer (continue_final_message=True continues it)"
        )
    options = {"add_generation_prompt": not continues, **options}
    turns = _in_known_roles(turns, tokenizer, options)
    return Prompt(_template_ids(tokenizer, turns, **options), turn_ends(tokenizer))


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


def has_template(tokenizer: Any) -> bool:
    """Whether the tokenizer formats conversations, by a template or in code of its own."""
    if getattr(tokenizer, "chat_template", None) is not None:
        return True
    own = getattr(type(tokenizer), "apply_chat_template", None)
    # by name, since this module loads no transformers
    return own is not None and own.__qualname__ != "PreTrainedTokenizerBase.apply_chat_template"


def turn_ends(tokenizer: Any) -> frozenset[int]:
    """The added token that the tokenizer writes after an assistant's turn, or none.

    Special or not: many fine-tunes add the end of a turn as an ordinary token. Blank ones are
    skipped, since they stand in texts, too.
    """
    asked = {"role": "user", "content": "Hello"}
    answers = [{"role": "assistant", "content": probe} for probe in _PROBES]
    for after in ([], [asked]):  # some tokenizers take an answer only before another question
        try:
            one, other = (_template_ids(tokenizer, [asked, said, *after]) for said in answers)
        except DraftwiseError:
            continue
        pairs = zip(reversed(one), reversed(other), strict=False)
        num = next((n for n, (a, b) in enumerate(pairs) if a != b), 0)
        known = added_tokens(tokenizer).texts
        found = [i for i in one[len(one) - num :] if known.get(i, "").strip()]
        return frozenset(found[:1])
    return frozenset()


class AddedTokens(NamedTuple):
    """Tokens that were added to a vocabulary: their texts by id, and which ones are special."""

    texts: Mapping[int, str]
    special: frozenset[int]


def added_tokens(tokenizer: Any) -> AddedTokens:
    """The tokenizer's added tokens. They are listed again when one is added or becomes special."""
    special = getattr(tokenizer, "all_special_ids", ())
    state = (len(tokenizer) if hasattr(tokenizer, "__len__") else 0, tuple(special))
    if (known := _ADDED.get(tokenizer)) is not None and known[0] == state:
        return known[1]
    texts = {i: str(tokenizer.convert_ids_to_tokens(i)) for i in special}
    added = getattr(tokenizer, "added_tokens_decoder", None)
    if not isinstance(added, Mapping):  # MistralCommonBackend has none
        added = {}
    found = AddedTokens(
        texts | {i: str(token) for i, token in added.items()},
        frozenset([*special, *(i for i, token in added.items() if token.special)]),
    )
    _ADDED[tokenizer] = state, found
    return found


_ADDED: WeakKeyDictionary[Any, tuple[Any, AddedTokens]] = WeakKeyDictionary()
"""Of each tokenizer: listing the thousands of Gemma's takes milliseconds."""


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


def _in_known_roles(
    turns: list[dict[str, Any]], tokenizer: Any, options: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """The turns after ``_check_presence``; ``developer`` is ``system`` unless the template names
    that role and takes it."""
    as_system = [
        {**turn, "role": "system"} if turn["role"] == "developer" else turn for turn in turns
    ]
    if as_system != turns and "developer" in str(getattr(tokenizer, "chat_template", None)):
        try:
            _check_presence(turns, tokenizer, options)
        except DraftwiseError:
            pass
        else:
            return turns
    _check_presence(as_system, tokenizer, options)
    return as_system


_Marks = dict[str, str]
"""Digits that no text contains, in order, and what they stand for in a conversation."""


def _new_mark(marks: _Marks, name: str) -> str:
    marks[mark := f"{secrets.randbelow(10**19):019}"] = name
    return mark


def _check_presence(turns: Sequence[Message], tokenizer: Any, options: Mapping[str, Any]) -> None:
    """Render the turns with a mark in each; raise DraftwiseError if a mark is not in the prompt.

    The same words elsewhere in the prompt cannot stand for a message that is missing.
    """
    marks, template = _Marks(), getattr(tokenizer, "chat_template", None)
    marked = [_marked(number, turn, marks, str(template)) for number, turn in enumerate(turns)]
    if template is None:  # code of its own, which may warn that its text is not for models
        text = tokenizer.decode(_template_ids(tokenizer, marked, **options))
    else:
        text = str(_apply(tokenizer, marked, tokenize=False, **options))
    check_unicode("the text", text)
    if (lost := next((what for mark, what in marks.items() if mark not in text), None)) is not None:
        raise DraftwiseError(
            f"the chat template leaves out {lost}: this model does not take it there; put what it "
            "says into a user message"
        )
    is_said = turns[-1]["content"].strip() and not turns[-1].get("tool_calls")
    is_ended = is_said and not text.rstrip().endswith(next(reversed(marks)))
    if options.get("continue_final_message") and is_ended:
        raise DraftwiseError(
            "continue_final_message: this tokenizer ends the last message, so that nothing could "
            "continue it"
        )


def _marked(number: int, turn: Message, marks: _Marks, template: str) -> dict[str, Any]:
    what, found = f"message {number} ({turn['role']})", dict(turn)
    for name in REASONING:
        if isinstance(given := turn.get(name), str) and given.strip() and name not in template:
            found[name] = given + _new_mark(marks, f"{name} of {what}")
    if calls := turn.get("tool_calls"):
        found["tool_calls"] = [_marked_call(call, what, marks) for call in calls]
    elif turn["content"].strip():
        found["content"] = turn["content"] + _new_mark(marks, what)
    return found


def _marked_call(call: Any, what: str, marks: _Marks) -> Any:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name := function.get("name"), str):
        return call
    arguments, called = function.get("arguments"), f"{what}, its call of {name}"
    found = {**function, "name": "f" + _new_mark(marks, called)}
    of_call = f"{what}, the arguments of its call of {name}"
    if isinstance(arguments, str) and arguments.strip():
        try:
            given = json.loads(arguments)
        except ValueError:
            given = None
        if isinstance(given, dict):
            found["arguments"] = json.dumps({**given, _new_mark(marks, of_call): ""})
    elif isinstance(arguments, Mapping) and arguments:
        found["arguments"] = {**arguments, _new_mark(marks, of_call): ""}
    return {**call, "function": found} if "function" in call else found


def _template_ids(tokenizer: Any, turns: Sequence[Message], **options: Any) -> list[int]:
    found = _apply(tokenizer, turns, tokenize=True, **options)
    ids = found["input_ids"] if isinstance(found, Mapping) else found
    ids = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return list(ids[0]) if ids and isinstance(ids[0], list) else ids


def _apply(tokenizer: Any, turns: Sequence[Message], **options: Any) -> Any:
    try:
        return tokenizer.apply_chat_template(turns, **options)
    except Exception as error:  # templates are programs, and may raise any exception
        raise DraftwiseError(f"the chat template refuses these messages: {error}") from error


def _ids(tokenizer: Any, text: str, **options: Any) -> list[int]:
    check_unicode("the text", text)
    return list(tokenizer(text, **options)["input_ids"])
