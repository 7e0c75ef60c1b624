"""The drafters' sessions: all asked together, and none that raises is asked again."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, cast

from torch import Tensor

from draftwise.drafters.protocol import (
    CatchingUp,
    Context,
    Drafter,
    DraftSession,
    Retrieving,
)
from draftwise.engine.costs import Meter
from draftwise.engine.draft_checks import Nonsense, checked_match, tensors_of
from draftwise.nn.model import CausalModel
from draftwise.nn.transfer import Ask, fetch
from draftwise.types import Floats

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Pool:
    """What an engine drafts with, and what its costs are.

    lock: held while anything here is used, since neither models nor drafters can be shared by two
    threads at once.
    """

    target: CausalModel
    drafters: Sequence[Drafter]
    meter: Meter
    clock: Callable[[], float] = time.perf_counter
    lock: threading.RLock = field(default_factory=threading.RLock, compare=False)


class Sessions:
    """One session a drafter, each with the rows that are open.

    A drafter that raises or returns nonsense is left out from then on, with one warning: its rows
    go on without it.
    """

    def __init__(self, pool: Pool) -> None:
        self._clock, self._vocab_size = pool.clock, pool.target.vocab_size
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
        if (session := self._catching_up.get(name)) is None:
            return 0
        try:
            return int(session.behind(context))
        except Exception as error:
            self.leave_out(name, error)
            return 0

    def read_on(
        self, name: str, contexts: Sequence[Context], most: int
    ) -> tuple[dict[str, None], dict[str, float]]:
        """Let a drafter read the next tokens of each text, at most so many; as ``ask``."""
        if (session := self._catching_up.get(name)) is None:
            return {}, {name: 0.0}
        return self.ask({name: lambda _: session.read_on(contexts, most)}, lambda _, answer: answer)

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
                self.leave_out(name, error)

    def ask(
        self,
        questions: Mapping[str, Callable[[DraftSession], Ask[T]]],
        check: Callable[[str, Any], T],
    ) -> tuple[dict[str, T], dict[str, float]]:
        """Answers by drafter, and the seconds that each took; one that raises gives none.

        check: given a drafter and its answer, returns what is used of it, or raises where it is
        nonsense. What the questions look at in the same turn travels in one transfer, whose seconds
        they share.
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
                        wanted[name] = tensors_of(next(asks[name]))
                    else:
                        wanted[name] = tensors_of(asks[name].send(values))
                except StopIteration as done:
                    try:
                        answers[name] = check(name, done.value)
                    except Exception as error:
                        self.leave_out(name, error)
                except Exception as error:
                    self.leave_out(name, error)
                seconds[name] += self._clock() - start
            start = self._clock()
            arrays = iter(fetch([tensor for tensors in wanted.values() for tensor in tensors]))
            sent = {name: list(islice(arrays, len(own))) for name, own in wanted.items()}
            for name in wanted:
                seconds[name] += (self._clock() - start) / len(wanted)
        return answers, seconds

    def matches(self, context: Context) -> dict[str, int]:
        """The match length of each retrieval drafter at the end of the text."""
        return self._look_up(lambda session: int(session.match_length(context)))

    def peek(self, context: Context, drafted: Sequence[int]) -> dict[str, tuple[int, int]]:
        """Each retrieval drafter's match behind the draft, and what follows it."""
        size = self._vocab_size
        return self._look_up(lambda session: checked_match(session.peek(context, drafted), size))

    def _look_up(self, what: Callable[[Retrieving], T]) -> dict[str, T]:
        """What every retrieval drafter says; one that raises says nothing."""
        found: dict[str, T] = {}
        for name, session in list(self._retrieving.items()):
            try:
                found[name] = what(session)
            except Exception as error:
                self.leave_out(name, error)
        return found

    def leave_out(self, name: str, error: Exception) -> None:
        """Ask this drafter for nothing more, in any row, with a warning that says why."""
        self._sessions.pop(name, None)
        self._retrieving.pop(name, None)
        self._catching_up.pop(name, None)
        self._hosts.discard(name)
        why = f"returned nonsense ({error})" if isinstance(error, Nonsense) else f"raised {error!r}"
        warnings.warn(f"drafter {name} {why}: it is left out from now on", stacklevel=3)
