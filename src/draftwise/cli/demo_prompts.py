"""What ``draftwise demo`` asks: the bundled model's held-out prompts, or a chat model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from draftwise.chat import Message
from draftwise.types import DraftwiseError

_CODE = """\
```python
def mean_and_spread(values):
    total = 0.0
    for value in values:
        total += value
    mean = total / len(values)
    spread = 0.0
    for value in values:
        spread += (value - mean) ** 2
    return mean, (spread / len(values)) ** 0.5
```"""
_PASSAGE = (
    "The lighthouse on the northern cape was built in 1871 after three ships had been lost in one "
    "winter. Its lamp burned rape oil at first, paraffin from 1889, and has been electric since "
    "1936. The keeper and two assistants lived in the house below the tower with their families "
    "until the light was automated in 1982. Since then the house has been a small museum, which is "
    "open from May to September and is run by volunteers from the village."
)
CHATS: Mapping[str, Sequence[str]] = {
    "code edit": (
        f"Rename `total` to `amount` and give me the whole function again.\n{_CODE}",
        f"Add a docstring to this function and repeat all of it.\n{_CODE}",
    ),
    "passage": (
        f"{_PASSAGE}\n\nWhen was the lighthouse built, and who lived in the house below the tower?",
        f"Correct the spelling of this text, and write out all of it:\n\n{_PASSAGE}",
    ),
    "chat": (
        "What should I see in Lisbon in two days?",
        "How do I keep my houseplants alive while I am away for three weeks?",
    ),
    "arithmetic": (
        "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Explain.",
        "Six boxes hold 14 apples each, and 9 apples are bad. How many good apples are there?",
    ),
    "summary": (
        f"Summarise this in two sentences:\n\n{_PASSAGE}",
        f"List the years in this text and what happened in each of them:\n\n{_PASSAGE}",
    ),
}
"""Kind -> questions that were written for this demo; no model was trained on them."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A prompt of the demo: its kind, its text to show, and what the target is given."""

    domain: str
    text: str
    prompt: str | Sequence[Message]


def choose_prompts(num: int, tokenizer: Any = None) -> list[Asked]:
    """The first prompt of each kind, then the second: questions where there is a chat template.

    Raises DraftwiseError for a number below 1.
    """
    if num < 1:
        raise DraftwiseError(f"--prompts {num}: it must be 1 or more")
    if getattr(tokenizer, "chat_template", None):
        return [
            Asked(domain, text, [{"role": "user", "content": text}])
            for domain, text in _in_turn(CHATS)[:num]
        ]
    from draftwise import zoo

    return [Asked(domain, text, text) for domain, text in _in_turn(zoo.prompts())[:num]]


def _in_turn(found: Mapping[str, Sequence[str]]) -> list[tuple[str, str]]:
    longest = max(len(prompts) for prompts in found.values())
    return [
        (domain, prompts[i])
        for i in range(longest)
        for domain, prompts in found.items()
        if i < len(prompts)
    ]
