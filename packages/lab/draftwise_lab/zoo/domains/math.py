"""Arithmetic worked step by step; every line of an answer is a chain of true equalities."""

from __future__ import annotations

import random

from draftwise_lab.zoo.domains.document import ANSWER, Document, scaled

_NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gita", "Hugo", "Iris", "Jon", "Kim", "Leo")
_THINGS = ("apples", "books", "coins", "cards", "shells", "stamps", "pens", "cups", "keys", "nuts")


def _places(number: int) -> list[int]:
    """The decimal places of `number` that are not zero: 347 gives 300, 40, 7."""
    digits = str(number)
    parts = [int(d) * 10 ** (len(digits) - i - 1) for i, d in enumerate(digits)]
    return [part for part in parts if part] or [0]


def _running(first: int, parts: list[int], sign: str) -> list[str]:
    lines = []
    for part in parts:
        after = first + part if sign == "+" else first - part
        lines.append(f"{first} {sign} {part} = {after}")
        first = after
    return lines


def _add(a: int, b: int) -> list[str]:
    return _running(a, _places(b), "+")


def _subtract(a: int, b: int) -> list[str]:
    return _running(max(a, b), _places(min(a, b)), "-")


def _multiply(a: int, b: int) -> list[str]:
    products = [part * b for part in _places(a)]
    lines = [f"{part} * {b} = {part * b}" for part in _places(a)]
    return lines + _running(products[0], products[1:], "+")


def _numbers(rng: random.Random) -> tuple[str, int, int]:
    sign = rng.choice("+-*")
    if sign == "*":
        return sign, rng.randint(11, 99), rng.randint(2, 9)
    a, b = rng.randint(12, 499), rng.randint(12, 399)
    return (sign, max(a, b), min(a, b)) if sign == "-" else (sign, a, b)


def _question(rng: random.Random, sign: str, a: int, b: int) -> str:
    if rng.random() < 0.5:
        return f"{a} {sign} {b}"
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    if sign == "+":
        return f"{name} has {a} {thing} and gets {b} more. How many {thing}?"
    if sign == "-":
        return f"{name} has {a} {thing} and gives away {b}. How many {thing}?"
    return f"{name} fills {b} boxes with {a} {thing} each. How many {thing}?"


def _work(sign: str, a: int, b: int) -> list[str]:
    return {"+": _add, "-": _subtract, "*": _multiply}[sign](a, b)


def sample(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """Two to four problems and their worked answers; held-out ones differ by seed only."""
    questions, answers = [], []
    for number in range(1, scaled(rng, 2, 4, size) + 1):
        sign, a, b = _numbers(rng)
        lines = _work(sign, a, b)
        result = lines[-1].rsplit("= ", 1)[1]
        questions.append(f"{number}. {_question(rng, sign, a, b)}\n")
        answers.append(f"{number}. {a} {sign} {b}\n" + "\n".join(lines) + f"\nanswer: {result}\n")
    return Document("### math\n" + "".join(questions) + ANSWER, "".join(answers))
