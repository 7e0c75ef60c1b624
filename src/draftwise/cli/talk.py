"""A conversation: its messages so far, its turns and how fast they were."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from draftwise.chat import Message
from draftwise.cli.answer import Pen
from draftwise.cli.demo import plain_like
from draftwise.cli.failures import Output, say
from draftwise.cli.show import colours, legend, percentages, summary, total
from draftwise.engine.generation import Result
from draftwise.engine.paint import Painter
from draftwise.speculator import Speculator


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: what was asked, what was said, and the seconds until its first token."""

    asked: Sequence[Message]
    result: Result
    first_token_s: float


class Talk:
    """A conversation with one model.

    opening: the messages that every conversation begins with. State: the messages so far, and the
    turns since the last reset. Keys and values that turns share are kept by the engine.
    """

    def __init__(
        self, speculator: Speculator, opening: Sequence[Message], sampling: Mapping[str, Any]
    ) -> None:
        self._speculator, self._opening, self._sampling = speculator, list(opening), sampling
        self._names = [drafter.name for drafter in speculator.drafters]
        self._console = Output()
        self.messages = list(self._opening)
        self.turns: list[Turn] = []

    def answer(self, text: str, is_stopped: Callable[[], bool]) -> None:
        """Say the model's answer to a message as it comes; both then belong to the conversation.

        Raises DraftwiseError where the conversation has become too long for the model, which then
        goes on without this message.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        turn = self._say(self._speculator, asked, is_stopped)
        self.messages = [*asked, {"role": "assistant", "content": turn.result.text}]
        self.turns.append(turn)
        say(f"first token {turn.first_token_s:.2f} s · {summary(turn.result.stats)}", style="dim")

    def plain(self) -> None:
        """The last answer again, by plain decoding with the same target."""
        if not self.turns:
            say("there is no answer to compare with yet")
            return
        last = self.turns[-1]
        again = self._say(plain_like(self._speculator), last.asked, lambda: False)
        fast, plain = last.result.stats.tok_per_s, again.result.stats.tok_per_s
        same = "yes" if again.result.tokens == last.result.tokens else "no"
        if self._sampling["temperature"] > 0:
            same += " (sampled: two draws of one distribution)"
        say(
            f"plain decoding {plain:.1f} tok/s, here {fast:.1f} tok/s = {fast / plain:.2f}x · "
            f"same tokens: {same}",
            style="dim",
        )

    def reset(self) -> None:
        """Forget the conversation, not what was learnt about drafters."""
        self.messages, self.turns = list(self._opening), []
        say("a new conversation", style="dim")

    def stats(self) -> None:
        """A line a turn, and tokens by drafter."""
        if not self.turns:
            say("no turns yet")
            return
        table = Table(box=box.SIMPLE, show_footer=False)
        for name in ("turn", "prompt", "tokens", "first token", "tok/s", "MAT", "accepted"):
            table.add_column(name, justify="right")
        for number, turn in enumerate(self.turns, 1):
            stats = turn.result.stats
            table.add_row(
                str(number),
                str(len(turn.result.prompt_tokens)),
                str(stats.num_emitted),
                f"{turn.first_token_s:.2f} s",
                f"{stats.tok_per_s:.1f}",
                f"{stats.mean_accepted_tokens:.2f}",
                f"{stats.draft_acceptance_rate:.2f}",
            )
        self._console.print(table)
        self._console.print(legend(colours(self._names)))
        writers = Counter(name for turn in self.turns for name in turn.result.sources)
        self._console.print(Text(f"tokens written: {percentages(writers)}"))
        self._console.print(Text(summary(total([turn.result.stats for turn in self.turns]))))

    def _say(
        self, speculator: Speculator, asked: Sequence[Message], is_stopped: Callable[[], bool]
    ) -> Turn:
        seed = self._sampling["seed"]
        if seed is not None:
            seed += len(self.turns)
        start = time.perf_counter()
        generation = speculator.start(list(asked), **{**self._sampling, "seed": seed})
        painter, pen = Painter(speculator.tokenizer), Pen(self._names)
        first_token_s = 0.0
        for round_ in generation:
            first_token_s = first_token_s or time.perf_counter() - start
            pen.write(painter.grow(round_, generation.text(0)))
            if is_stopped():
                break
        (result,) = generation.results()
        pen.write(painter.finish(result.text))
        if not result.text.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()
        return Turn(asked, result, first_token_s)
