"""What LM drafters have read of the text, and what reading costs: drafts, catching up, looks."""

from __future__ import annotations

from collections.abc import Mapping

GLANCE = 32
"""Tokens at the end of a text from which the engine makes a first impression, or takes a look."""

LEAST_PIECE = 32
"""Missed tokens up to which a drafter reads them with its draft; more have a forward before it."""

GLANCE_WEIGHT = 0.25
"""What the engine counts alphas for that come from so short a text."""


class Reading:
    """The caches of all LM drafters of one request, as positions of the text.

    A forward over n tokens takes a drafter's step and its reading seconds for each of the n - 1
    others. The last token of a text is always fed again, as the engine does.
    State: by drafter, the position up to which its cache holds the text; prompts are below 0.
    """

    def __init__(
        self, prompt_length: int, step_s: Mapping[str, float], read_s: Mapping[str, float]
    ) -> None:
        self._step_s, self._read_s = step_s, read_s
        self._ends = dict.fromkeys(step_s, -prompt_length)

    def __contains__(self, name: str) -> bool:
        return name in self._ends

    def draft_s(self, name: str, position: int, own: int, copied: int = 0) -> float:
        """Seconds of a draft behind ``position`` tokens: ``own`` steps, the first of them over what
        was missed unless that is much, and ``copied`` tokens of others read on the way."""
        missed = position - self._ends[name] - 1
        seconds = own * self._step_s[name] + (missed + copied) * self._read_s[name]
        if missed > LEAST_PIECE:
            seconds += self._step_s[name] - self._read_s[name]
        return seconds

    def keep(self, name: str, start: int, fed: int, accepted: int, position: int) -> None:
        """A draft that fed so many of its tokens was verified; the text has ``position`` now."""
        self._ends[name] = min(start + min(fed, accepted), position - 1)

    def catch_up(self, name: str, position: int) -> float:
        """Seconds of reading all that was missed, for a score; 0 where nothing was."""
        missed = position - self._ends[name] - 1
        self._ends[name] = max(self._ends[name], position - 1)
        return self._step_s[name] + (missed - 1) * self._read_s[name] if missed > 0 else 0.0

    def glance(self, name: str, position: int) -> tuple[float, int, float]:
        """Seconds of a look at the text's end, the positions it scores, and what they count for.

        Where more was missed than a look reads, the cache stays as it was.

        >>> reading = Reading(100, {"a": 1.0}, {"a": 0.1})
        >>> reading.glance("a", 0), reading.glance("a", 10)
        ((4.1, 32, 0.25), (4.1, 32, 0.25))
        """
        missed = position - self._ends[name] - 1
        if missed > GLANCE:
            return self._step_s[name] + (GLANCE - 1) * self._read_s[name], GLANCE, GLANCE_WEIGHT
        return self.catch_up(name, position), max(missed, 0), 1.0
