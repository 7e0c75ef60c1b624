"""A conversation: its messages so far, its turns and how fast they were."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from draftwise.chat import Message, Prompt, is_messages, render, turn_ends
from draftwise.cli.answer import Pen
from draftwise.cli.demo import plain_like
from draftwise.cli.failures import Output, note, say
from draftwise.cli.options import request
from draftwise.cli.show import colours, counted, legend, percentages, summary, total
from draftwise.engine.attribution import SourceAttribution
from draftwise.engine.generation import Result
from draftwise.engine.options import RequestParams
from draftwise.engine.text import Answer, Ending
from draftwise.lines import read_text, strict_json
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError

_PROBE = {"role": "user", "content": "Hello"}


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: what was asked, what was said, and the seconds until its first token."""

    asked: Sequence[Message]
    result: Result
    first_token_s: float


class Talk:
    """A conversation with one model.

    opening: the messages that every conversation begins with. State: the messages so far, the turns
    since the last reset, and the sampling. Keys and values that turns share are kept by the engine.
    """

    def __init__(
        self, speculator: Speculator, opening: Sequence[Message], params: RequestParams
    ) -> None:
        self._speculator, self._opening, self._params = speculator, list(opening), params
        self._names = [drafter.name for drafter in speculator.drafters]
        self._console = Output()
        self.messages: list[Message] = list(self._opening)
        self.turns: list[Turn] = []

    def answer(self, text: str, is_stopped: Callable[[], bool]) -> None:
        """Say the model's answer to a message as it comes; both then belong to the conversation.

        Raises DraftwiseError where the conversation has become too long for the model, which then
        goes on without this message.
        """
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt = render(asked, self._speculator.tokenizer)
        positions = self._speculator.target.max_positions
        if len(prompt.tokens) >= positions:
            raise DraftwiseError(
                f"the conversation would have {len(prompt.tokens)} tokens, and the model has "
                f"{positions} positions: shorten the message, or /reset; it was not sent"
            )
        self.turns.append(self._say(self._speculator, asked, prompt, is_stopped))
        self._close()

    def go_on(self, is_stopped: Callable[[], bool]) -> None:
        """Say more of the last answer; DraftwiseError where it was complete, or nothing fits."""
        if not self.turns:
            raise DraftwiseError("there is no answer to continue yet")
        turn = self.turns[-1]
        before = turn.result
        if before.finish_reason not in {"length", "interrupted"}:
            raise DraftwiseError("the last answer is complete: there is nothing to continue")
        tokens = [*before.prompt_tokens, *before.tokens]
        if len(tokens) >= self._speculator.target.max_positions:
            raise DraftwiseError(self._full())
        prompt = Prompt(tokens, turn_ends(self._speculator.tokenizer))
        self.turns[-1] = self._say(self._speculator, turn.asked, prompt, is_stopped, before)
        self._close()

    def plain(self) -> None:
        """The last answer again, by plain decoding with the same target."""
        if not self.turns:
            raise DraftwiseError("there is no answer to compare with yet")
        last = self.turns[-1]
        prompt = Prompt(last.result.prompt_tokens, turn_ends(self._speculator.tokenizer))
        chosen, num = self._params, len(last.result.tokens)
        self._params = replace(chosen, max_new_tokens=max(num, 1), drafters=None)
        try:
            again = self._say(plain_like(self._speculator), last.asked, prompt, lambda: False)
        finally:
            self._params = chosen
        fast, plain = last.result.stats.tok_per_s, again.result.stats.tok_per_s
        same = "yes" if again.result.tokens == last.result.tokens else "no"
        if chosen.sampling.temperature > 0:
            same += " (sampled: two draws of one distribution)"
        say(
            f"plain decoding {plain:.1f} tok/s, here {fast:.1f} tok/s = {fast / plain:.2f}x · "
            f"same tokens: {same}",
            style="dim",
        )

    def reset(self) -> None:
        self.messages, self.turns = list(self._opening), []
        say("a new conversation", style="dim")

    def system(self, text: str) -> None:
        """Show the system message, or put another in its place, from the next answer on.

        Raises DraftwiseError where the model's template takes none.
        """
        if text:
            opening = [{"role": "system", "content": text}]
            render([*opening, _PROBE], self._speculator.tokenizer)
            rest = [one for one in self.messages if one["role"] != "system"]
            self._opening, self.messages = list(opening), [*opening, *rest]
        found = [str(one["content"]) for one in self.messages if one["role"] == "system"]
        say(f"system message: {found[0]}" if found else "no system message", style="dim")

    def temperature(self, text: str) -> None:
        """Show the temperature, or set it; DraftwiseError for what is none."""
        if text:
            try:
                value = float(text)
            except ValueError:
                raise DraftwiseError(f"/temperature {text}: write a number, 0 is greedy") from None
            request({"temperature": value})
            sampling = replace(self._params.sampling, temperature=value)
            self._params = replace(self._params, sampling=sampling)
        say(f"temperature: {self._params.sampling.temperature:g}", style="dim")

    def save(self, text: str) -> None:
        """Write the conversation as one line of jsonl, as ``generate --batch`` reads it.

        Raises DraftwiseError without a name, and where the file holds something else; OSError.
        """
        file = _file("save", text)
        if file.exists():
            _read(file)
        file.write_text(json.dumps({"messages": self.messages}) + "\n", "utf-8")
        say(f"wrote {file}: {counted(len(self.messages), 'message')}", style="dim")

    def load(self, text: str) -> None:
        """Go on with a conversation from a file; DraftwiseError for what is none, OSError."""
        file = _file("load", text)
        messages = _read(file)
        render([*messages, _PROBE], self._speculator.tokenizer)
        self.messages, self.turns = messages, []
        say(f"read {file}: {counted(len(messages), 'message')}", style="dim")

    def help(self, text: str) -> None:
        self._console.print(Text(text))
        self._console.print(Text("drafters: ").append(legend(colours(self._names))))

    def stats(self) -> None:
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

    def _close(self) -> None:
        turn = self.turns[-1]
        result = turn.result
        self.messages = [*turn.asked, {"role": "assistant", "content": result.text}]
        note(f"first token {turn.first_token_s:.2f} s · {summary(result.stats)}")
        if result.finish_reason not in {"length", "interrupted"}:
            return
        num = len(result.tokens)
        if len(result.prompt_tokens) + num >= self._speculator.target.max_positions:
            say(self._full(), style="yellow")
        elif result.finish_reason == "length":
            say(
                f"cut off after {counted(num, 'token')} (--max-new-tokens): /continue goes on",
                style="yellow",
            )
        else:
            say("stopped: /continue goes on", style="yellow")

    def _full(self) -> str:
        positions = self._speculator.target.max_positions
        return f"the model's context of {positions} tokens is full: /reset begins a new one"

    def _say(
        self,
        speculator: Speculator,
        asked: Sequence[Message],
        prompt: Prompt,
        is_stopped: Callable[[], bool],
        before: Result | None = None,
    ) -> Turn:
        """Show an answer as it comes; before: what was said of it already."""
        params, stops = self._params, self._params.stop
        if params.seed is not None:
            later = len(self.turns) + (0 if before is None else len(before.tokens))
            params = replace(params, seed=params.seed + later)
        start = time.perf_counter()
        generation = speculator.start(prompt, params)
        painter, pen = SourceAttribution(speculator.tokenizer, stops), Pen(self._names, wraps=True)
        # text goes on where it was: tokens decode otherwise at the beginning of a text
        whole = Answer(Ending(speculator.target.max_positions, stop=stops), speculator.tokenizer)
        if before is not None:
            whole.push(before.tokens)
            painter.grow(before, before.text)  # it stands on the screen already
            painter.finish(before.text)
        first_token_s = 0.0
        for round_ in generation:
            first_token_s = first_token_s or time.perf_counter() - start
            whole.push(round_.tokens)
            pen.write(painter.grow(round_, whole.text))
            if is_stopped() or whole.finish_reason is not None:
                break
        (result,) = generation.results()
        if before is not None:
            if whole.finish_reason is None:  # else a stop string that began before the cut
                whole.finish(result.finish_reason)
            result = replace(
                result,
                finish_reason=whole.finish_reason or result.finish_reason,
                text=whole.text,
                tokens=[*before.tokens, *result.tokens],
                sources=[*before.sources, *result.sources],
                prompt_tokens=before.prompt_tokens,
                stats=total([before.stats, result.stats]),
            )
        pen.write(painter.finish(result.text))
        pen.end(result.text, always=True)
        return Turn(asked, result, first_token_s)


def _file(command: str, text: str) -> Path:
    if not text:
        raise DraftwiseError(f"/{command} needs the name of a file")
    return Path(text).expanduser()


def _read(file: Path) -> list[Message]:
    """The conversation in a file; DraftwiseError for what is none, OSError."""
    messages: Any = None
    with suppress(ValueError):
        found = strict_json(read_text(file))
        messages = found.get("messages") if isinstance(found, dict) else None
    if not is_messages(messages) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise DraftwiseError(f"{file} is no conversation that /save wrote: name another file")
    return list(messages)
