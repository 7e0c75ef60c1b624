"""Suites of prompts: the zoo's domains, Spec-Bench's questions, or any file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from draftwise.chat import check_unicode
from draftwise.files import prompt_lines
from draftwise.types import DraftwiseError

_MT_BENCH = {
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
}  # fmt: skip
"""Categories that Spec-Bench reports as one, ``mt_bench``."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Item:
    """A conversation of one or more user turns, each sent after the previous answer.

    id: the question's id, or its number. category: as in the file, if it has one.
    """

    id: str
    domain: str
    turns: tuple[str, ...]
    category: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """A name and its items; domains alternate, so that every part of the suite is a mixture."""

    name: str
    items: tuple[Item, ...]

    @property
    def domains(self) -> list[str]:
        return list(dict.fromkeys(item.domain for item in self.items))

    @property
    def is_spec_bench(self) -> bool:
        """Whether answers can be written in Spec-Bench's format."""
        return all(item.category for item in self.items)


def load_suite(name: str, per_domain: int | None = None, domains: Sequence[str] = ()) -> Suite:
    """Load ``zoo``, ``spec-bench:FILE``, or a file of prompts (.jsonl, or one per line).

    A jsonl file whose lines have ``turns`` and ``category`` is in Spec-Bench's format; in others
    ``prompt`` (or ``turns``) is required, ``domain`` and ``id`` are optional. per_domain: maximum
    items per domain. domains: only these; empty = all. Raises DraftwiseError.
    """
    kind, _, rest = name.partition(":")
    if name == "zoo":
        items = zoo_items()
    elif kind == "spec-bench":
        if not rest:
            why = "spec-bench is read from its question.jsonl: write --suite spec-bench:FILE"
            raise DraftwiseError(why)
        items = read_items(Path(rest))
    elif Path(name).is_file():
        items = read_items(Path(name))
    else:
        what = "zoo, spec-bench:FILE, or a file of prompts (.jsonl, .txt)"
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

    prompts = zoo.prompts()
    # copy-heavy: the code of two edits, and an instruction that changes one line
    codes = [edit.split("\n", 2)[2].rpartition("### answer")[0] for edit in prompts["edit"]]
    prompts["copy"] = [
        f"### edit\nDelete line 2.\n{code}{codes[(i + 5) % len(codes)]}### answer\n"
        for i, code in enumerate(codes)
    ]
    return [
        Item(f"{domain}-{number}", domain, (prompt,))
        for domain, found in prompts.items()
        for number, prompt in enumerate(found)
    ]


def read_items(file: Path) -> list[Item]:
    """The items of a file; DraftwiseError names the first line without one."""
    try:
        return [_item(file, number, entry) for number, entry in prompt_lines(file)]
    except OSError as error:
        why = error.strerror or error
        raise DraftwiseError(f"the suite {file} cannot be read: {why}") from error
    except ValueError as error:
        raise DraftwiseError(f"the suite cannot be read: {error}") from error


def _item(file: Path, number: int, entry: Any) -> Item:
    if isinstance(entry, str):
        entry = {"prompt": entry}
    turns = entry.get("turns", [entry.get("prompt")]) if isinstance(entry, dict) else None
    if not turns or not isinstance(turns, list) or not all(isinstance(t, str) and t for t in turns):
        raise DraftwiseError(f'{file}, line {number}: no text under "prompt" or "turns"')
    check_unicode(f"{file}, line {number}", *turns)
    category = str(entry.get("category", "")) if "turns" in entry else ""
    group = "mt_bench" if category in _MT_BENCH else category
    domain = str(entry.get("domain") or group or file.stem)
    id_ = entry.get("question_id", entry.get("id", number))
    return Item(str(id_), domain, tuple(turns), category)
