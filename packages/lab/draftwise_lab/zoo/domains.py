"""The zoo's six domains, documents that mix domains, and the stream of training documents."""

from __future__ import annotations

import ast
import contextlib
import functools
import itertools
import random
import re
import sysconfig
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_WORDS_OF = tomllib.loads(Path(__file__).with_name("words.toml").read_text("utf-8"))
ANSWER = "### answer\n"


@dataclass(frozen=True)
class Document:
    """A training document: the prompt, and the answer that the model should write."""

    prompt: str
    answer: str

    @property
    def text(self) -> str:
        return self.prompt + self.answer


Domain = Callable[..., Document]
"""A seeded generator of documents: the same `rng` state always gives the same document.

Arguments: rng; size, which scales the document; heldout: use sources that training never sees.
"""


def scaled(rng: random.Random, low: int, high: int, size: float) -> int:
    """A random count between `low` and `high`, scaled by `size` and at least one."""
    return max(1, round(rng.randint(low, high) * size))


HELDOUT_MODULES = (
    "textwrap heapq shlex fractions statistics csv zipfile configparser bisect calendar "
    "difflib fnmatch gettext mailbox netrc optparse pprint sched string tabnanny"
)
_SKIP = frozenset({"test", "tests", "site-packages", "idlelib", "lib2to3", "__pycache__"})


@functools.cache
def modules(heldout: bool) -> tuple[str, ...]:
    """Sources of the standard library's modules by path, without tests and generated tables."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _SKIP & set(parts) or "encodings" in parts or parts[0].startswith("_sysconfig"):
            continue
        if (parts[0].removesuffix(".py") in HELDOUT_MODULES.split()) == heldout:
            found.append(path.read_text("utf-8", errors="replace"))
    return tuple(found)


def _nodes(heldout: bool) -> Iterator[tuple[list[str], ast.AST]]:
    """Each module's lines with each of its syntax nodes; modules that do not parse are skipped."""
    for source in modules(heldout):
        with contextlib.suppress(SyntaxError):
            yield from zip(itertools.repeat(source.splitlines()), ast.walk(ast.parse(source)))


@functools.cache
def functions(heldout: bool) -> tuple[str, ...]:
    """Sources of all functions of 4 to 60 lines, dedented."""
    found = []
    for lines, node in _nodes(heldout):
        if isinstance(node, ast.FunctionDef) and node.end_lineno is not None:
            chunk = lines[node.lineno - 1 : node.end_lineno]
            if 4 <= len(chunk) <= 60:
                found.append(textwrap.dedent("\n".join(chunk)) + "\n")
    return tuple(found)


@functools.cache
def passages(heldout: bool) -> tuple[str, ...]:
    """Passages of English prose of at least 200 characters: help topics and long docstrings."""
    from pydoc_data.topics import topics

    texts = [topics[key] for key in sorted(topics)] if not heldout else []
    for _, node in _nodes(heldout):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            texts.append(ast.get_docstring(node) or "")
    long = (text for text in texts if len(text) >= 200)
    return tuple(t for t in long if sum(c.isalpha() or c == " " for c in t) / len(t) > 0.75)


def _python(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """One or more functions, about 300 to 800 characters; held-out ones are from unseen modules."""
    room = rng.randint(300, 800) * size
    text = rng.choice(functions(heldout))
    while len(text) < room:
        text += "\n" + rng.choice(functions(heldout))
    lines = text.splitlines(keepends=True)
    given = rng.randint(1, 3)
    end = given + 1
    while end < len(lines) and sum(map(len, lines[:end])) < room:
        end += 1
    return Document("### python\n" + "".join(lines[:given]) + ANSWER, "".join(lines[given:end]))


def _prose(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """A passage of about 300 to 800 characters; its first one or two lines are the prompt."""
    room = int(rng.randint(300, 800) * size)
    choices = passages(heldout)
    # Long help topics hold many passages; weighting by length samples passages about equally.
    text = rng.choices(choices, weights=[len(text) for text in choices])[0]
    lines = text.splitlines(keepends=True)
    total = 0
    start = rng.randrange(max(1, len(lines) - 6))
    while start and not lines[start - 1].isspace():
        start -= 1  # begin where a paragraph begins
    end = start
    while end < len(lines) and (total < room or end < start + 2):
        total += len(lines[end])
        end += 1
    given = 2 if end - start > 3 else 1
    answer = "".join(lines[start + given : end]).rstrip() + "\n"
    return Document("### prose\n" + "".join(lines[start : start + given]) + ANSWER, answer)


_PEOPLE, _THINGS = _WORDS_OF["math"]["people"], _WORDS_OF["math"]["things"]


def _places(number: int) -> list[int]:
    """The non-zero decimal components of `number`: 347 gives 300, 40, 7."""
    places = [int(digit) * 10**i for i, digit in enumerate(str(number)[::-1])]
    return [part for part in places[::-1] if part] or [0]


def _running(first: int, parts: list[int], sign: str) -> list[str]:
    lines = []
    for part in parts:
        after = first + part if sign == "+" else first - part
        lines.append(f"{first} {sign} {part} = {after}")
        first = after
    return lines


def _numbers(rng: random.Random) -> tuple[str, int, int]:
    sign = rng.choice("+-*")
    if sign == "*":
        return sign, rng.randint(11, 99), rng.randint(2, 9)
    a, b = rng.randint(12, 499), rng.randint(12, 399)
    return (sign, max(a, b), min(a, b)) if sign == "-" else (sign, a, b)


def _question(rng: random.Random, sign: str, a: int, b: int) -> str:
    if rng.random() < 0.5:
        return f"{a} {sign} {b}"
    name, thing = rng.choice(_PEOPLE), rng.choice(_THINGS)
    if sign == "+":
        return f"{name} has {a} {thing} and gets {b} more. How many {thing}?"
    if sign == "-":
        return f"{name} has {a} {thing} and gives away {b}. How many {thing}?"
    return f"{name} fills {b} boxes with {a} {thing} each. How many {thing}?"


def _work(sign: str, a: int, b: int) -> list[str]:
    if sign != "*":
        return _running(a, _places(b), sign)
    products = [part * b for part in _places(a)]
    lines = [f"{part} * {b} = {part * b}" for part in _places(a)]
    return lines + _running(products[0], products[1:], "+")


def _math(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """Two to four problems with worked answers; held-out ones differ only by seed."""
    asked = answer = ""
    for number in range(1, scaled(rng, 2, 4, size) + 1):
        sign, a, b = _numbers(rng)
        lines = _work(sign, a, b)
        asked += f"{number}. {_question(rng, sign, a, b)}\n"
        work, result = "\n".join(lines), lines[-1].rsplit("= ", 1)[1]
        answer += f"{number}. {a} {sign} {b}\n{work}\nanswer: {result}\n"
    return Document(f"### math\n{asked}{ANSWER}", answer)


_TABLES, _NUMBERS, _WORDS, _VALUES = (
    _WORDS_OF["sql"][name] for name in ("tables", "numbers", "texts", "values")
)
_AGGREGATES = (("average", "AVG"), ("highest", "MAX"), ("lowest", "MIN"), ("total", "SUM"))
_COMPARE = (("above", ">"), ("below", "<"), ("equal to", "="))


def _filter(rng: random.Random, nums: list[str], words: list[str]) -> tuple[str, str]:
    if rng.random() < 0.5:
        column, (text, sign) = rng.choice(nums), rng.choice(_COMPARE)
        value = rng.randint(2, 99)
        return f"with {column} {text} {value}", f"WHERE {column} {sign} {value}"
    column, value_text = rng.choice(words), rng.choice(_VALUES)
    return f"where the {column} is {value_text}", f"WHERE {column} = '{value_text}'"


def _query(rng: random.Random, table: str, nums: list[str], words: list[str]) -> tuple[str, str]:
    where, condition = _filter(rng, nums, words)
    num, word = rng.choice(nums), rng.choice(words)
    shape = rng.randrange(5)
    if shape == 0:
        return f"List the {word} of all {table} {where}", f"SELECT {word} FROM {table} {condition};"
    if shape == 1:
        return f"How many {table} {where}", f"SELECT COUNT(*) FROM {table} {condition};"
    if shape == 4:
        limit = rng.randint(2, 20)
        return (
            f"The {limit} {table} with the most {num} {where}, by {word}",
            f"SELECT {word}, {num} FROM {table} {condition} ORDER BY {num} DESC LIMIT {limit};",
        )
    text, function = rng.choice(_AGGREGATES)
    asked, value = f"The {text} {num} of {table}", f"{function}({num}) FROM {table}"
    if shape == 2:
        return f"{asked} {where}", f"SELECT {value} {condition};"
    return f"{asked} for each {word}", f"SELECT {word}, {value} GROUP BY {word};"


def _sql(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """One table and three to five questions; the answer repeats each question as a comment."""
    table = rng.choice(_TABLES)
    nums, words = rng.sample(_NUMBERS, rng.randint(1, 3)), rng.sample(_WORDS, rng.randint(1, 3))
    columns = [f"{name} INTEGER" for name in nums] + [f"{name} TEXT" for name in words]
    rng.shuffle(columns)
    schema = f"CREATE TABLE {table} (id INTEGER, {', '.join(columns)});\n"
    asked = answer = ""
    for number in range(1, scaled(rng, 3, 5, size) + 1):
        question, query = _query(rng, table, nums, words)
        asked += f"{number}. {question}?\n"
        answer += f"-- {number}. {question}?\n{query}\n"
    return Document(f"### sql\n{schema}{asked}{ANSWER}", answer)


NOUNS: dict[str, str] = _WORDS_OF["velish"]["nouns"]
ADJECTIVES: dict[str, str] = _WORDS_OF["velish"]["adjectives"]
VERBS: dict[str, list[str]] = _WORDS_OF["velish"]["verbs"]
TIMES: dict[str, str] = _WORDS_OF["velish"]["times"]


def _phrase(rng: random.Random) -> tuple[str, str, bool]:
    noun, plural = rng.choice(sorted(NOUNS)), rng.random() < 0.35
    english, velish = noun, NOUNS[noun]
    if plural:
        english = {"child": "children", "wolf": "wolves", "knife": "knives"}.get(noun, noun + "s")
        velish += "n" if velish[-1] in "aeiou" else "en"
    if rng.random() < 0.5:
        adjective = rng.choice(sorted(ADJECTIVES))
        english, velish = f"{adjective} {english}", f"{velish} {ADJECTIVES[adjective]}"
    return f"the {english}", f"le {velish}", plural


def _sentence(rng: random.Random) -> tuple[str, str]:
    subject, subject_v, plural = _phrase(rng)
    thing, thing_v, _ = _phrase(rng)
    base = rng.choice(sorted(VERBS))
    third, past, stem = VERBS[base]
    tense, negated = rng.choice(("now", "past")), rng.random() < 0.25
    verb_v = stem + ("ta" if tense == "past" else "a") + ("n" if plural else "")
    if negated:
        helper = "did" if tense == "past" else "do" if plural else "does"
        verb, verb_v = f"{helper} not {base}", f"nai {verb_v}"
    else:
        verb = past if tense == "past" else base if plural else third
    english, velish = f"{subject} {verb} {thing}", f"{subject_v} {thing_v} {verb_v}"
    if rng.random() < 0.4:
        time = rng.choice(sorted(TIMES))
        english, velish = f"{english} {time}", f"{TIMES[time]} {velish}"
    return english[0].upper() + english[1:] + ".", velish[0].upper() + velish[1:] + "."


def _translate(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """Five to eight sentences; in the answer each sentence precedes its translation, because
    without the repeated sentence a small model loses its place among the lines."""
    pairs = [_sentence(rng) for _ in range(scaled(rng, 5, 8, size))]
    english = "".join(f"{source}\n" for source, _ in pairs)
    both = "".join(f"{source}\n= {target}\n" for source, target in pairs)
    return Document("### translate\n" + english + ANSWER, both)


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


def apply(instruction: str, code: str) -> str:
    """Apply one instruction to `code`; ValueError if this domain has no such instruction."""
    if found := _RENAME.fullmatch(instruction) or _REPLACE.fullmatch(instruction):
        return re.sub(rf"\b{found[1]}\b", found[2], code)
    lines = code.splitlines(keepends=True)
    if found := _DELETE.fullmatch(instruction):
        del lines[int(found[1]) - 1 : int(found[1])]
    elif found := _INSERT.fullmatch(instruction):
        lines.insert(int(found[2]), found[1] + "\n")
    else:
        raise ValueError(
            f"unknown edit instruction {instruction!r}; see _instruction for the forms"
        )
    return "".join(lines)


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


def _edit(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """An instruction and 120 to 320 characters of code; the answer is the whole edited code."""
    room = int(rng.randint(120, 320) * size)
    is_made_up = rng.random() < 0.6
    code = _synthetic(rng, room) if is_made_up else _library(rng, room, heldout)
    instruction = _instruction(rng, code)
    return Document(f"### edit\n{instruction}\n{code}{ANSWER}", apply(instruction, code))


def _mixed(rng: random.Random, *, size: float = 0.6, heldout: bool = False) -> Document:
    """Two or three sections of different domains; all but the first section's prompt is answer."""
    names = rng.sample(sorted(DOMAINS), rng.randint(2, 3))
    sections = [DOMAINS[name](rng, size=size, heldout=heldout) for name in names]
    answer = sections[0].answer + "".join(section.text for section in sections[1:])
    return Document(f"### mixed: {', '.join(names)}\n{sections[0].prompt}", answer)


DOMAINS: dict[str, Domain] = {
    "python": _python,
    "math": _math,
    "sql": _sql,
    "prose": _prose,
    "translate": _translate,
    "edit": _edit,
}
# Copying is the hardest skill for a model of this size, and prose the least learnable domain.
SHARES = {
    "python": 0.16, "math": 0.14, "sql": 0.10, "prose": 0.13, "translate": 0.10, "edit": 0.22,
    "mixed": 0.15,
}  # fmt: skip


def sample(name: str, rng: random.Random, *, heldout: bool = False) -> Document:
    """Draw one document of the domain `name` (a key of `SHARES`, including `mixed`)."""
    if name not in SHARES:
        raise KeyError(f"unknown domain {name!r}; valid are {sorted(SHARES)}")
    return DOMAINS.get(name, _mixed)(rng, heldout=heldout)


def documents(rng: random.Random) -> Iterator[Document]:
    """Yield training documents without end, with domains drawn by `SHARES`."""
    names, weights = list(SHARES), list(SHARES.values())
    while True:
        yield sample(rng.choices(names, weights)[0], rng)
