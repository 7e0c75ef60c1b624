"""Synthetic prompts: an instruct model writes user turns, and filters drop bad ones."""

from __future__ import annotations

import json
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draftwise.files import numbered_lines
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError
from draftwise_lab.train.answers import SamplingTask, continuations, read_kept

RUN = 10  # two texts may not share this many words in a row
Runs = frozenset[tuple[str, ...]]


def runs(text: str) -> set[tuple[str, ...]]:
    """All runs of ``RUN`` consecutive words of a text, in lower case; all words if it is shorter.

    >>> runs("What's up?")
    {('what', 's', 'up')}
    """
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + RUN]) for i in range(max(1, len(words) - RUN + 1))}


def runs_of(files: Iterable[Path]) -> Runs:
    """The runs of every string in these jsonl files; DraftwiseError for an unreadable file."""
    found: set[tuple[str, ...]] = set()
    for file in files:
        try:
            values = [json.loads(line) for _, line in numbered_lines(file)]
        except (OSError, ValueError) as error:
            raise DraftwiseError(f"{file} cannot be read as jsonl: {error}") from error
        found |= {run for text in _strings(values) for run in runs(text)}
    return frozenset(run for run in found if len(run) == RUN)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


TOPICS = (
    "",
    "You help people to write: letters, stories, poems, emails and essays.",
    "You solve arithmetic and word problems in mathematics step by step.",
    "You are a programming assistant. You write and explain code.",
    "You answer questions about history, geography, science and people.",
    "You summarise news and articles that are given to you.",
    "You translate texts between languages.",
    "You extract facts from texts, and answer questions about given passages.",
    "You play roles, give advice and talk about everyday life.",
)
"""System prompts before sampled user turns; for the empty one the template's default applies."""
MIN_CHARS, MAX_PACKED = 12, 5.0
SAME = 0.7  # share of common word triples from which on two prompts count as duplicates


def user_prefix(tokenizer: Any, system: str = "") -> tuple[list[int], list[int]]:
    """The chat template's tokens before a user's text, and the tokens that end a user's turn.

    Source: Magpie (Xu et al. 2024, arXiv 2406.08464), section 2: the "pre-query template". Errors:
    DraftwiseError for a tokenizer without a chat template.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise DraftwiseError(
            "this model has no chat template, so it cannot write prompts: give --prompts FILE"
        )
    mark = "draftwisemark"
    turns = [{"role": "system", "content": system}] if system else []
    turns += [{"role": "user", "content": mark}]
    before, _, after = tokenizer.apply_chat_template(turns, tokenize=False).partition(mark)
    prefix = tokenizer(before, add_special_tokens=False)["input_ids"]
    end = tokenizer(after, add_special_tokens=False)["input_ids"][:1]
    return list(prefix), list(end)


def make_prompts(
    model: CausalModel, tokenizer: Any, num: int, path: Path, *,
    longest: int = 160, rows: int = 64, seed: int = 0, avoid: Runs = frozenset(),
    progress: Callable[[int], None] | None = None,
) -> tuple[list[str], str]:  # fmt: skip
    """At least ``num`` user turns that the model writes and ``Filter`` keeps, and a line with the
    share that was kept.

    Source: Magpie (Xu et al. 2024, arXiv 2406.08464). Differs: system prompts for variety, and
    filters that need no other model. path: stores every turn, so that an interrupted run resumes.
    longest: maximum tokens of a turn. avoid: runs of words that no turn may contain. Raises
    DraftwiseError if the model has no chat template, or hardly any turn is kept.
    """
    checked = Filter(_template_text(tokenizer), avoid)
    texts = [text for _, (text,) in read_kept(path) if checked.keeps(text)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", buffering=1) as file:
        while len(texts) < num:
            done = checked.counts.total()
            if done > 200 and len(texts) < 0.05 * done:
                raise DraftwiseError(f"this model writes no prompts: {checked.share()}")
            share = max(0.2, len(texts) / done) if done else 0.8
            more = max(rows, round((num - len(texts)) / share))
            for index, text in sample_prompts(
                model, tokenizer, more, first=done, longest=longest, rows=rows, seed=seed
            ):
                file.write(json.dumps([index, text]) + "\n")
                if checked.keeps(text):
                    assert text is not None
                    texts.append(text)
                if progress is not None:
                    progress(len(texts))
    return texts, checked.share()


def _template_text(tokenizer: Any) -> str:
    text: str = tokenizer.decode(user_prefix(tokenizer)[0])
    return text if sum(c.isalpha() for c in text) > 20 else "the template says too little itself"


def sample_prompts(
    model: CausalModel, tokenizer: Any, num: int, *, first: int, longest: int, rows: int, seed: int
) -> Iterator[tuple[int, str | None]]:
    """Yield (index, text) of ``num`` user turns from index ``first``, sampled at temperature 1 with
    the system prompts of ``TOPICS`` in turn; text: None if the turn exceeds ``longest`` tokens.
    """
    around = [user_prefix(tokenizer, topic) for topic in TOPICS]
    ends = {token for _, end in around for token in end}
    tasks = {i: SamplingTask(around[i % len(TOPICS)][0]) for i in range(first, first + num)}
    for index, tokens in continuations(
        model, tasks, max_new_tokens=longest, eos_token_ids=sorted(ends), rows=rows, seed=seed
    ):
        yield index, tokenizer.decode(tokens[:-1]).strip() if tokens[-1] in ends else None


@dataclass
class Filter:
    """Keeps a text or counts the reason for dropping it; stores a minhash of every kept text."""

    template: str
    avoid: Runs = frozenset()
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        try:
            from datasketch import MinHashLSH
        except ImportError as error:
            raise DraftwiseError(
                "prompts of the model's own need datasketch: pip install datasketch"
            ) from error
        self._scripts = _scripts(self.template)
        self._seen = MinHashLSH(threshold=SAME, num_perm=64)

    def keeps(self, text: str | None) -> bool:
        verdict = self._verdict(text)
        self.counts[verdict] += 1
        return verdict == "kept"

    def _verdict(self, text: str | None) -> str:
        if text is None:
            return "unfinished"
        if len(text) < MIN_CHARS:
            return "short"
        if len(text) / len(zlib.compress(text.encode())) > MAX_PACKED:
            return "repetitive"
        own = _scripts(text)
        known = sum(n for script, n in own.items() if script in self._scripts)
        if not own or known < 0.9 * own.total():
            return "other script"
        if not self.avoid.isdisjoint(runs(text)):
            return "of a benchmark"
        sketch = _sketch(text)
        if self._seen.query(sketch):
            return "repeated"
        self._seen.insert(str(self.counts.total()), sketch)
        return "kept"

    def share(self) -> str:
        total = self.counts.total()
        others = [f"{n} {why}" for why, n in self.counts.most_common() if why != "kept"]
        left_out = f" (left out: {', '.join(others)})" if others else ""
        return f"kept {self.counts['kept']} of {total} prompts{left_out}"


def _sketch(text: str) -> Any:
    from datasketch import MinHash

    words = text.lower().split()
    triples = {" ".join(words[i : i + 3]) for i in range(max(1, len(words) - 2))}
    sketch = MinHash(num_perm=64)
    sketch.update_batch(triple.encode() for triple in triples)
    return sketch


def _scripts(text: str) -> Counter[str]:
    """Letter counts by script: the first word of their Unicode names."""
    return Counter(unicodedata.name(c, "?").split()[0] for c in text if c.isalpha())
