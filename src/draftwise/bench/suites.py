"""What is compared on what: suites of prompts, one loader for all commands, and methods.

A file has a prompt per line (.txt), or a JSON object per line (.jsonl) with ``prompt`` (a text),
``messages`` (a conversation) or ``turns`` (texts of a user, each sent after the answer to the one
before), and if wanted ``id``, ``domain`` and ``category``. A method is ``plain``,
``PRESET[@LENGTHS]`` or ``fixed:DRAFTERxLENGTH[/RULE]``. Nothing here loads a model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from draftwise import registry
from draftwise.chat import Message, check_unicode, is_messages
from draftwise.checks import comma_separated
from draftwise.files import prompt_lines
from draftwise.registry import PRESETS, Preset, preset
from draftwise.types import DraftwiseError

QUESTIONS = Path(__file__).with_name("questions.jsonl")
"""Ten questions of five kinds, written for draftwise; no model was trained on them."""
_MT_BENCH = {
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
}  # fmt: skip
"""Categories that Spec-Bench reports as one, ``mt_bench``."""
_T = TypeVar("_T")
Turn = str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt, or a conversation of several turns.

    id: the question's id, or its number. turns: texts or messages, each sent after the previous
    answer. category: as in the file, if it has one. where: file and line, for errors.
    """

    id: str
    domain: str
    turns: tuple[Turn, ...]
    category: str = ""
    where: str = ""

    @property
    def text(self) -> str:
        """The first turn as text: of messages, the last one's."""
        first = self.turns[0]
        return first if isinstance(first, str) else str(first[-1]["content"])

    @property
    def first(self) -> Turn:
        """What is sent first: a text, or messages; the first of several turns is a message."""
        first = self.turns[0]
        return as_messages(first) if len(self.turns) > 1 else first


def as_messages(turn: Turn) -> list[Message]:
    return [{"role": "user", "content": turn}] if isinstance(turn, str) else list(turn)


@dataclass(frozen=True, slots=True)
class Suite:
    """A name and its items; domains alternate, so that every part of the suite is a mixture."""

    name: str
    items: tuple[Item, ...]

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(item.domain for item in self.items))


def load_suite(name: str, per_domain: int | None = None, domains: Sequence[str] = ()) -> Suite:
    """Load ``zoo``, ``questions``, ``spec-bench:FILE``, or a file of prompts.

    per_domain: maximum items per domain. domains: only these; empty = all. Raises DraftwiseError.
    """
    kind, _, rest = name.partition(":")
    if name == "zoo":
        items = zoo_items()
    elif name == "questions":
        items = read_items(QUESTIONS)
    elif kind == "spec-bench":
        if not rest:
            why = "spec-bench is read from its question.jsonl: write --suite spec-bench:FILE"
            raise DraftwiseError(why)
        items = read_items(Path(rest))
    elif Path(name).is_file():
        items = read_items(Path(name))
    else:
        what = "zoo, questions, spec-bench:FILE, or a file of prompts (.jsonl, .txt)"
        raise DraftwiseError(f"there is no file {name}; write {what}")
    known = list(dict.fromkeys(item.domain for item in items))
    for domain in domains:
        if domain not in known:
            raise DraftwiseError(f"{name} has no domain {domain!r}; it has: {', '.join(known)}")
    wanted = [domain for domain in known if domain in (domains or known)]
    chosen = [[item for item in items if item.domain == one][:per_domain] for one in wanted]
    return Suite(name, tuple(in_turn(chosen)))


def in_turn(groups: Iterable[Sequence[_T]]) -> list[_T]:
    """Interleave groups: the first of each, then the second of each, ...

    >>> in_turn(["ab", "c"])
    ['a', 'c', 'b']
    """
    return [one for row in zip_longest(*groups) for one in row if one is not None]


def zoo_items() -> list[Item]:
    """Held-out prompts of every domain, including ``mixed``, and copy-heavy ones (``copy``)."""
    from draftwise import zoo

    prompts = dict(zoo.prompts())
    # copy-heavy: the code of two edits, and an instruction that changes one line
    codes = [edit.split("\n", 2)[2].rpartition("### answer")[0] for edit in prompts["edit"]]
    prompts["copy"] = [
        f"### edit\nDelete line 2.\n{code}{codes[(i + 5) % len(codes)]}### answer\n"
        for i, code in enumerate(codes)
    ]
    return _items(prompts)


def usual_items(is_chat: bool) -> list[Item]:
    """The prompts of ``demo``, ``try`` and ``check``, kinds in turn: questions, or the zoo's texts,
    which models without a chat template continue."""
    from draftwise import zoo

    found = read_items(QUESTIONS) if is_chat else _items(zoo.prompts())
    kinds = dict.fromkeys(item.domain for item in found)
    return in_turn([[item for item in found if item.domain == kind] for kind in kinds])


def _items(prompts: Mapping[str, Sequence[str]]) -> list[Item]:
    return [
        Item(f"{domain}-{number}", domain, (prompt,))
        for domain, found in prompts.items()
        for number, prompt in enumerate(found)
    ]


def read_items(file: Path) -> list[Item]:
    """The items of a file; DraftwiseError names the first line without one."""
    try:
        return [_item(file, number, entry) for number, entry in prompt_lines(file)]
    except FileNotFoundError as error:
        raise DraftwiseError(f"there is no file {file}") from error
    except OSError as error:
        raise DraftwiseError(f"{file}: {error.strerror or error}") from error
    except ValueError as error:
        raise DraftwiseError(f"{file} cannot be read: {error}") from error


def _item(file: Path, number: int, entry: Any) -> Item:
    where = f"{file}, line {number}"
    found = {"prompt": entry} if isinstance(entry, str) else entry
    turns = _turns(where, found) if isinstance(found, dict) else ()
    if not turns:
        raise DraftwiseError(f'{where}: no text under "prompt", "messages" or "turns"')
    for turn in turns:
        if isinstance(turn, str):
            check_unicode(where, turn)
    category = str(found.get("category", "")) if "turns" in found else ""
    group = "mt_bench" if category in _MT_BENCH else category
    domain = str(found.get("domain") or group or file.stem)
    id_ = found.get("question_id", found.get("id", number))
    return Item(str(id_), domain, turns, category, where)


def _turns(where: str, found: dict[str, Any]) -> tuple[Turn, ...]:
    """The turns of an entry; none if it has no text."""
    if "messages" in found:
        if is_messages(messages := found["messages"]):
            return (messages,)
        raise DraftwiseError(f'{where}: "messages" is no list of messages with role and content')
    turns = found.get("turns", [found.get("prompt")])
    if isinstance(turns, list) and all(isinstance(turn, str) and turn for turn in turns):
        return tuple(turns)
    return ()


PLAIN, DEFAULT = "plain", "draftwise"
GRAMMAR = "write plain, a preset (metasd, metasd@4) or fixed:DRAFTERxLENGTH[/RULE]"


@dataclass(frozen=True, slots=True)
class Method:
    """draftwise with one preset. drafter: its only drafter; None = the whole pool."""

    name: str
    setting: Preset
    drafter: str | None = None


def with_plain(specs: Sequence[str]) -> list[str]:
    """The methods without repetitions, ``plain`` first: every ratio is relative to it.

    >>> with_plain(["metasd", "plain", "metasd"])
    ['plain', 'metasd']
    """
    return list(dict.fromkeys([PLAIN, *specs]))


def parse_method(
    spec: str, drafters: Collection[str] | None = None, grammar: str = GRAMMAR
) -> Method:
    """Parse a method. drafters: the names of the pool; None = any. Raises DraftwiseError."""
    kind, _, rest = spec.partition(":")
    if kind == "fixed":
        plan, _, rule = rest.partition("/")
        drafter, length = drafter_and_length(spec, plan, drafters, grammar)
        if rule:
            registry.make_stop_rule(rule)
        setting = Preset("fixed:0", "length", "bandit", (length,), rules=(rule or "fixed",))
        setting.plans([drafter])
        return Method(spec, setting, drafter)
    name, at, lengths = spec.partition("@")
    if name not in PRESETS:
        raise DraftwiseError(f"unknown method {spec!r}; {grammar}")
    setting = preset(name)
    if at:
        said = f"method {spec!r}: write lengths as metasd@4 or metasd@2,4"
        setting = replace(setting, lengths=tuple(comma_separated(lengths, int, -inf, said)))
        setting.plans(["drafter"])
    return Method(spec, setting)


def drafter_and_length(
    spec: str, plan: str, drafters: Collection[str] | None, grammar: str = GRAMMAR
) -> tuple[str, int]:
    drafter, _, length = plan.rpartition("x")
    if not drafter or not length.isdigit():
        raise DraftwiseError(f"method {spec!r} names no plan; {grammar}")
    if drafters is not None and drafter not in drafters:
        names = ", ".join(drafters)
        raise DraftwiseError(f"method {spec!r}: no drafter {drafter!r}; there are: {names}")
    return drafter, int(length)
