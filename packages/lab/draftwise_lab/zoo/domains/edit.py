"""Code edits that copy their input: an instruction, a piece of code, and the edited code."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from draftwise_lab.zoo.domains.document import ANSWER, Document
from draftwise_lab.zoo.domains.sources import functions

_SYLLABLES = (
    "ba be bo da de do fa fi ga go ka ke ki la le lo ma me mo na ne no pa pi ra re ro sa se so "
    "ta te to va ve wa za zo"
)
_FIELDS = ("size", "name", "total", "limit", "index", "value", "count", "path", "state", "text")
_NAME = re.compile(r"\b[a-z_][a-z_0-9]{2,}\b")
_KEEP = (
    "def return self for not and else elif if in is or with while try except import from raise "
    "None True False class lambda pass yield print del finally assert continue break the"
)
_RENAME = re.compile(r"Rename (\w+) to (\w+)\.")
_REPLACE = re.compile(r"Replace the number (\d+) by (\d+)\.")
_DELETE = re.compile(r"Delete line (\d+)\.")
_INSERT = re.compile(r"Insert `(.*)` after line (\d+)\.")


def _word(rng: random.Random) -> str:
    word = "".join(rng.choice(_SYLLABLES.split()) for _ in range(rng.randint(2, 3)))
    return f"{word}_{rng.choice(_FIELDS)}" if rng.random() < 0.3 else word


def _line(rng: random.Random, names: list[str]) -> str:
    a, b, number = rng.choice(names), rng.choice(names), rng.randint(2, 99)
    return rng.choice(
        (
            f"    {a} = {b} + {number}",
            f"    {a}.append({b})",
            f"    if {a} > {number}:\n        return {b}",
            f"    for {a} in {b}:\n        print({a})",
            f"    {a} = {_word(rng)}({b}, {number})",
            f"    self.{a} = {b}",
            f'    {a}["{_word(rng)}"] = {number}',
            f"    assert {a} != {b}",
        )
    )


def _synthetic(rng: random.Random, room: int) -> str:
    names = [_word(rng) for _ in range(rng.randint(3, 5))]
    text = f"def {_word(rng)}({', '.join(names[:2])}):\n"
    while len(text) < room:
        text += _line(rng, names) + "\n"
    return text + f"    return {rng.choice(names)}\n"


def _library(rng: random.Random, room: int, heldout: bool) -> str:
    lines = rng.choice(functions(heldout)).splitlines(keepends=True)
    text = ""
    for line in lines[rng.randrange(max(1, len(lines) - 8)) :]:
        if line.strip() and len(text) < room and len(line) < 100 and "`" not in line:
            text += line
    return text or _synthetic(rng, room)


def rename(code: str, old: str, new: str) -> str:
    """Every whole word `old` becomes `new`."""
    return re.sub(rf"\b{old}\b", new, code)


def delete(code: str, number: int) -> str:
    """The code without its line `number`, counted from one."""
    lines = code.splitlines(keepends=True)
    return "".join(lines[: number - 1] + lines[number:])


def insert(code: str, number: int, line: str) -> str:
    """The code with `line` after its line `number`, counted from one."""
    lines = code.splitlines(keepends=True)
    return "".join([*lines[:number], line + "\n", *lines[number:]])


def apply(instruction: str, code: str) -> str:
    """Carry out one instruction on `code`; ValueError if it is none that this domain writes."""
    if found := _RENAME.fullmatch(instruction):
        return rename(code, found[1], found[2])
    if found := _REPLACE.fullmatch(instruction):
        return rename(code, found[1], found[2])
    if found := _DELETE.fullmatch(instruction):
        return delete(code, int(found[1]))
    if found := _INSERT.fullmatch(instruction):
        return insert(code, int(found[2]), found[1])
    raise ValueError(f"unknown edit instruction {instruction!r}; see _instruction for the forms")


def _instruction(rng: random.Random, code: str) -> str:
    names = sorted(set(_NAME.findall(code)) - set(_KEEP.split()))
    numbers = sorted(set(re.findall(r"\b\d{1,2}\b", code)))
    lines = code.splitlines()
    kind = rng.random()
    if kind < 0.2 and numbers:
        return f"Replace the number {rng.choice(numbers)} by {rng.randint(100, 999)}."
    if kind < 0.3 and 3 <= len(lines) <= 9:
        return f"Delete line {rng.randint(2, len(lines))}."
    if kind < 0.45 and len(lines) <= 9:
        return f"Insert `    {_word(rng)}({_word(rng)})` after line {rng.randint(1, 3)}."
    if not names:
        return "Insert `# end` after line 1."
    return f"Rename {rng.choice(names)} to {_word(rng)}."


def sample(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """An instruction and 120 to 320 characters of code; the answer is the whole edited code."""
    room = int(rng.randint(120, 320) * size)
    make: Callable[[], str] = (
        (lambda: _synthetic(rng, room))
        if rng.random() < 0.6
        else (lambda: _library(rng, room, heldout))
    )
    code = make()
    instruction = _instruction(rng, code)
    return Document(f"### edit\n{instruction}\n{code}{ANSWER}", apply(instruction, code))
