"""Two ways of decoding on one clock: at any moment both have had the same seconds of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwise.engine.generation import Generation, Result
    from draftwise.engine.paint import Piece


class Lane:
    """One decoder's answer while it grows, and the engine's seconds it has used."""

    def __init__(self, title: str, generation: Generation, tokenizer: Any) -> None:
        self.title, self._generation = title, generation
        self._rounds = iter(generation)
        from draftwise.engine.paint import Painter  # torch, which a refusal does not wait for

        self._painter = Painter(tokenizer)
        self.pieces: list[Piece] = []
        self.seconds, self.num_tokens, self.num_rounds = 0.0, 0, 0
        self.is_running = True

    @property
    def tok_per_s(self) -> float:
        """Tokens so far over seconds of the engine, prefill included."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    def step(self) -> None:
        """One more round, or the end."""
        round_ = next(self._rounds, None)
        text = self._generation.text(0)
        if round_ is None:
            self.pieces += self._painter.finish(text)
            self.is_running = False
            return
        self.pieces += self._painter.grow(round_, text)
        self.seconds += sum(round_.seconds.values())
        self.num_tokens += round_.num_emitted
        self.num_rounds += 1

    def result(self) -> Result:
        """The answer so far."""
        return self._generation.results()[0]


def race(lanes: Sequence[Lane], is_stopped: Callable[[], bool]) -> Iterator[Lane]:
    """Step the lane that has used less time, the earlier at first; yields the one that moved.

    Rounds alternate within milliseconds, so whatever else the machine does slows both alike.
    """
    while not is_stopped() and (running := [lane for lane in lanes if lane.is_running]):
        lane = min(running, key=lambda lane: lane.seconds)
        lane.step()
        yield lane
