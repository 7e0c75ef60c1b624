"""The drafters' sessions: all asked together, and none that raises is asked again."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar, cast

from torch import Tensor

from draftwise.drafters.protocol import (
    CatchingUp,
    Context,
    Drafter,
    DraftSession,
    Retrieving,
)
from draftwise.engine.costs import Meter
from draftwise.nn.model import CausalModel
from draftwise.nn.transfer import Ask, fetch
from draftwise.types import Floats

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pool:
    """What an engine drafts with, and what its costs are."""

    target: CausalModel
    drafters: Sequence[Drafter]
    meter: Meter
    clock: Callable[[], float] = time.perf_counter


class Sessions:
    """One session a drafter, each with the rows that are open.

    A drafter that raises is left out from then on, with one warning: its rows go on without it.
    """

    def __init__(self, pool: Pool) -> None:
        self._clock = pool.clock
        self._hosts = {drafter.name for drafter in pool.drafters if drafter.can_mix}
        self._sessions: dict[str, DraftSession] = {
            drafter.name: drafter.start() for drafter in pool.drafters
        }
        self._retrieving = {
            drafter.name: cast(Retrieving, self._sessions[drafter.name])
            for drafter in pool.drafters
            if drafter.retrieves
        }
        self._catching_up = {
            name: session
            for name, session in self._sessions.items()
            if isinstance(session, CatchingUp)
        }

    @property
    def names(self) -> list[str]:
        """Drafters that work."""
        return list(self._sessions)

    def behind(self, name: str, context: Context) -> int:
        """Tokens of the text that a drafter must read before it drafts; 0 if it was left out."""
        session = self._catching_up.get(name)
        return 0 if session is None else session.behind(context)

    def read_on(
        self, name: str, contexts: Sequence[Context], most: int
    ) -> tuple[dict[str, None], dict[str, float]]:
        """Let a drafter read the next tokens of each text, at most so many; as ``ask``."""
        session = self._catching_up[name]
        return self.ask({name: lambda _: session.read_on(contexts, most)})

    def mixes(self, name: str) -> bool:
        """Whether others may write at this drafter's chains."""
        return name in self._hosts

    def open(self, context: Context, expected: int) -> None:
        """A request begins in its row."""
        self.tell(lambda name, session: session.open(context, expected))

    def close(self, row: int) -> None:
        """Free what all drafters keep of a row."""
        self.tell(lambda name, session: session.close(row))

    def crop(self, context: Context, length: int) -> None:
        """Another request goes on in an open row."""
        self.tell(lambda name, session: session.crop(context, length))

    def copy(self, source: int, row: int, length: int) -> None:
        """Let an open row begin like another one."""
        self.tell(lambda name, session: session.copy(source, row, length))

    def tell(self, what: Callable[[str, DraftSession], None]) -> None:
        """Call something of every session."""
        for name, session in list(self._sessions.items()):
            try:
                what(name, session)
            except Exception as error:
                self._leave_out(name, error)

    def ask(
        self, questions: Mapping[str, Callable[[DraftSession], Ask[T]]]
    ) -> tuple[dict[str, T], dict[str, float]]:
        """Answers by drafter, and the seconds that each took; one that raises gives none.

        What the questions look at in the same turn travels in one transfer, whose seconds they
        share.
        """
        asked = [name for name in questions if name in self._sessions]
        sent: dict[str, Sequence[Floats] | None] = dict.fromkeys(asked)
        asks: dict[str, Ask[T]] = {}
        answers: dict[str, T] = {}
        seconds = dict.fromkeys(asked, 0.0)
        while sent:
            wanted: dict[str, Sequence[Tensor]] = {}
            for name, values in sent.items():
                start = self._clock()
                try:
                    if values is None:
                        asks[name] = questions[name](self._sessions[name])
                        wanted[name] = next(asks[name])
                    else:
                        wanted[name] = asks[name].send(values)
                except StopIteration as done:
                    answers[name] = done.value
                except Exception as error:
                    self._leave_out(name, error)
                seconds[name] += self._clock() - start
            start = self._clock()
            arrays = iter(fetch([tensor for tensors in wanted.values() for tensor in tensors]))
            sent = {name: list(islice(arrays, len(own))) for name, own in wanted.items()}
            for name in wanted:
                seconds[name] += (self._clock() - start) / len(wanted)
        return answers, seconds

    def matches(self, context: Context) -> dict[str, int]:
        """The match length of each retrieval drafter at the end of the text."""
        return self._look_up(lambda session: session.match_length(context))

    def peek(self, context: Context, drafted: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Each retrieval drafter's match behind the draft, and what follows it."""
        return self._look_up(lambda session: session.peek(context, drafted))

    def _look_up(self, what: Callable[[Retrieving], T]) -> dict[str, T]:
        """What every retrieval drafter says; one that raises says nothing."""
        found: dict[str, T] = {}
        for name, session in list(self._retrieving.items()):
            try:
                found[name] = what(session)
            except Exception as error:
                self._leave_out(name, error)
        return found

    def _leave_out(self, name: str, error: Exception) -> None:
        self._sessions.pop(name, None)
        self._retrieving.pop(name, None)
        self._catching_up.pop(name, None)
        self._hosts.discard(name)
        warnings.warn(f"drafter {name} raised {error!r}: it is left out from now on", stacklevel=3)
