"""``draftwise chat``: a conversation in the terminal, each token in its drafter's colour."""

from __future__ import annotations

import copy
import json
import re
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.text import Text

from draftwise.chat import Message, Prompt, is_messages, render, turn_ends
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli import show
from draftwise.cli.failures import Output, graceful, note, refused_values, say
from draftwise.cli.load import check_chat, check_template, keeping_memory
from draftwise.cli.show import Pen, colours, counted, legend, percentages, summary, total
from draftwise.engine.memory import hold
from draftwise.engine.options import RequestParams
from draftwise.files import local_path, read_text, strict_json
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.engine.engine import Result
    from draftwise.speculator import Speculator

PARAMS = RequestParams(max_new_tokens=512)
SETTINGS = o.Settings(target="smollm2", scope="session")
BLOCK = '"""'
HELP = f"""\
/continue         go on with an answer that was cut off or stopped
/system [TEXT]    show or change the system message
/temperature [T]  show or change the temperature; 0 is greedy
/save FILE        write the conversation; /load FILE continues one
/stats            how fast each turn was, and tokens by drafter
/plain            the last answer again by plain decoding, and how much slower
/reset            begin a new conversation
/quit             leave (so does Ctrl-D)
A message of several lines: paste it, or put it between {BLOCK} and {BLOCK}.
A message that begins with a slash: put a space before it.
Ctrl-C stops an answer, or clears what is typed."""


@o.command
def chat(
    *,
    settings: o.Settings = SETTINGS,
    system: str | None = option(None, "System message.", metavar="TEXT"),
    params: RequestParams = PARAMS,
    chat_template: Path | None = o.CHAT_TEMPLATE,
) -> None:
    """Chat with a model in the terminal; tokens are coloured by drafter.

    Enter sends a message; without a terminal, each line of stdin is one. /help lists the commands.
    """
    with refused_values():
        o.check(settings)
        check_chat(settings.target, chat_template)
    with hold(settings.state):
        speculator = o.load(settings, chat_template)
        o.check_vocabulary(params, speculator.target.vocab_size)
        check_template(settings.target, speculator.tokenizer)
        opening = [] if system is None else [{"role": "system", "content": system}]
        render([*opening, _PROBE], speculator.tokenizer)
        talk = Conversation(speculator, opening, params)
        with keeping_memory(speculator, settings.state):
            converse(talk, messages())


def messages() -> Iterator[str]:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    ask = Keyboard().ask if is_terminal else lambda _: input()
    if is_terminal:
        say("/help lists the commands; Ctrl-D leaves", style="dim")
    while True:
        try:
            text = ask("\n> ")
            while text.lstrip().startswith(BLOCK) and not _is_closed(text):
                text += "\n" + ask("... ")
        except EOFError:
            return
        except KeyboardInterrupt:  # leave the block, which stays in the history
            continue
        except UnicodeDecodeError as error:
            raise DraftwiseError(f"this is not UTF-8 text: {error}") from error
        yield text.strip().removeprefix(BLOCK).removesuffix(BLOCK) if _is_closed(text) else text


def _is_closed(text: str) -> bool:
    bare = text.strip()
    return bare.startswith(BLOCK) and bare.endswith(BLOCK) and len(bare) >= 2 * len(BLOCK)


class Keyboard:
    """Line input from a terminal, with history; a multi-line paste is read as one message."""

    def __init__(self) -> None:
        self._readline: Any = None
        with suppress(ImportError):
            import readline

            self._readline = readline
        version = getattr(self._readline, "_READLINE_RUNTIME_VERSION", 0)
        self._knows_pastes = version >= 0x801 and "libedit" not in (self._readline.__doc__ or "")
        if self._knows_pastes:
            self._readline.parse_and_bind("set enable-bracketed-paste on")
        self._was_cleared = False

    def ask(self, prompt: str) -> str:
        """Read one line, or one paste; Ctrl-C clears the line, but keeps it in the history.

        Errors: EOFError for Ctrl-D and for a second Ctrl-C on an empty line; KeyboardInterrupt for
        Ctrl-C inside a block.
        """
        while True:
            try:
                lines = [input(prompt)]
                # without bracketed paste, all lines of a pasted text are available at once
                while not self._knows_pastes and _has_more():
                    lines.append(input())
            except KeyboardInterrupt:
                typed = "" if self._readline is None else self._readline.get_line_buffer()
                if self._was_cleared and not typed:
                    # a further press, while the process ends, is not an error
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    sys.stdout.write("\n")
                    raise EOFError from None
                self._was_cleared = True
                if typed:
                    self._readline.add_history(typed)
                say(" (Ctrl-C again, or Ctrl-D, leaves)", style="dim")
                if not prompt.startswith("\n"):
                    raise
            else:
                self._was_cleared = False
                return "\n".join(lines)


def _has_more() -> bool:
    try:
        return bool(select.select([sys.stdin], [], [], 0.02)[0])
    except (OSError, ValueError):  # on Windows, select works for sockets only
        return False


def converse(talk: Conversation, messages: Iterator[str]) -> None:
    for text in messages:
        named = re.fullmatch(r"/([A-Za-z]+)(?:\s+(.*))?", text.rstrip(), re.DOTALL)
        if named and named[1].lower() in {"quit", "exit", "bye"}:
            return
        if not text.strip():
            continue
        try:
            with graceful() as is_stopped:
                if named:
                    obey(talk, named[1].lower(), named[2] or "", is_stopped)
                else:
                    talk.answer(text, is_stopped)
        except (DraftwiseError, OSError) as error:  # the conversation continues
            if isinstance(error, BrokenPipeError):
                raise
            say(str(error))


def obey(talk: Conversation, name: str, rest: str, is_stopped: Callable[[], bool]) -> None:
    alone: dict[str, Callable[[], None]] = {
        "continue": partial(talk.go_on, is_stopped), "stats": talk.stats, "plain": talk.plain,
        "reset": talk.reset, "help": talk.help,
    }  # fmt: skip
    with_text = {
        "system": talk.system, "temperature": talk.temperature, "save": talk.save,
        "load": talk.load,
    }  # fmt: skip
    if name in with_text:
        return with_text[name](rest)
    why = f"/{name} takes nothing after it. To send this"
    if name not in alone:
        known = ", ".join(f"/{one}" for one in [*alone, *with_text, "quit"])
        why = f"no command /{name}; there are: {known}. To send it"
    elif not rest:
        return alone[name]()
    raise DraftwiseError(f"{why} as a message, put a space before it")


_PROBE = {"role": "user", "content": "Hello"}


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One answer. asked: all messages before it; first_token_s: seconds to the first token."""

    asked: Sequence[Message]
    result: Result
    first_token_s: float


class Conversation:
    """A conversation that begins with the messages ``opening``."""

    def __init__(
        self, speculator: Speculator, opening: Sequence[Message], params: RequestParams
    ) -> None:
        self._speculator, self._opening, self._params = speculator, list(opening), params
        self._names = [drafter.name for drafter in speculator.drafters]
        self._console = Output()
        self.messages: list[Message] = list(self._opening)
        self.turns: list[ChatTurn] = []

    def answer(self, text: str, is_stopped: Callable[[], bool]) -> None:
        asked = [*self.messages, {"role": "user", "content": text}]
        prompt = render(asked, self._speculator.tokenizer)
        positions = self._speculator.target.max_positions
        if len(prompt.tokens) >= positions:
            raise DraftwiseError(
                f"the conversation would have {len(prompt.tokens)} tokens, and the model has "
                f"{positions} positions: shorten the message, or /reset; it was not sent"
            )
        self.turns.append(self._say(asked, prompt, is_stopped))
        self._close()

    def go_on(self, is_stopped: Callable[[], bool]) -> None:
        turn = self._last("continue")
        before = turn.result
        if before.finish_reason not in {"length", "interrupted"}:
            raise DraftwiseError("the last answer is complete: there is nothing to continue")
        tokens = [*before.prompt_tokens, *before.tokens]
        if len(tokens) >= self._speculator.target.max_positions:
            raise DraftwiseError(self._full())
        prompt = Prompt(tokens, turn_ends(self._speculator.tokenizer))
        self.turns[-1] = self._say(turn.asked, prompt, is_stopped, before)
        self._close()

    def _last(self, purpose: str) -> ChatTurn:
        if not self.turns:
            raise DraftwiseError(f"there is no answer to {purpose} yet")
        return self.turns[-1]

    def plain(self) -> None:
        from draftwise.cli.demo import plain_like

        last = self._last("compare with")
        prompt = Prompt(last.result.prompt_tokens, turn_ends(self._speculator.tokenizer))
        twin = copy.copy(self)
        twin._speculator = plain_like(self._speculator)
        num = max(len(last.result.tokens), 1)
        twin._params = replace(self._params, max_new_tokens=num, drafters=None)
        again = twin._say(last.asked, prompt, lambda: False)
        fast, plain = last.result.stats.tok_per_s, again.result.stats.tok_per_s
        same = "yes" if again.result.tokens == last.result.tokens else "no"
        if self._params.sampling.temperature > 0:
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
        """Show or replace the system message, unless the template rejects it."""
        if text:
            opening = [{"role": "system", "content": text}]
            render([*opening, _PROBE], self._speculator.tokenizer)
            rest = [one for one in self.messages if one["role"] != "system"]
            self._opening, self.messages = list(opening), [*opening, *rest]
        found = [str(one["content"]) for one in self.messages if one["role"] == "system"]
        say(f"system message: {found[0]}" if found else "no system message", style="dim")

    def temperature(self, text: str) -> None:
        if text:
            try:
                value = float(text)
            except ValueError:
                raise DraftwiseError(f"/temperature {text}: write a number, 0 is greedy") from None
            with o.option_names():
                sampling = replace(self._params.sampling, temperature=value)
            self._params = replace(self._params, sampling=sampling)
        say(f"temperature: {self._params.sampling.temperature:g}", style="dim")

    def save(self, text: str) -> None:
        """Write the messages as one jsonl line, which ``generate --batch`` can also read."""
        file = _file("save", text)
        if file.exists():
            _read(file)
        file.write_text(json.dumps({"messages": self.messages}) + "\n", "utf-8")
        say(f"wrote {file}: {counted(len(self.messages), 'message')}", style="dim")

    def load(self, text: str) -> None:
        file = _file("load", text)
        messages = _read(file)
        render([*messages, _PROBE], self._speculator.tokenizer)
        self.messages, self.turns = messages, []
        say(f"read {file}: {counted(len(messages), 'message')}", style="dim")

    def help(self) -> None:
        self._console.print(Text(HELP))
        self._console.print(Text("drafters: ").append(legend(colours(self._names))))

    def stats(self) -> None:
        if not self.turns:
            say("no turns yet")
            return
        headings = ("turn", "prompt", "tokens", "first token", "tok/s", "MAT", "accepted")
        table = show.make_table(right=headings, box=box.SIMPLE)
        for number, turn in enumerate(self.turns, 1):
            stats = turn.result.stats
            table.add_row(
                f"{number}", f"{len(turn.result.prompt_tokens)}", f"{stats.num_emitted}",
                f"{turn.first_token_s:.2f} s", f"{stats.tok_per_s:.1f}",
                f"{stats.mean_accepted_tokens:.2f}", f"{stats.draft_acceptance_rate:.2f}",
            )  # fmt: skip
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
        why = "stopped: /continue resumes it"
        if len(result.prompt_tokens) + num >= self._speculator.target.max_positions:
            why = self._full()
        elif result.finish_reason == "length":
            why = f"cut off after {counted(num, 'token')} (--max-new-tokens): /continue resumes it"
        say(why, style="yellow")

    def _full(self) -> str:
        positions = self._speculator.target.max_positions
        return f"the model's context of {positions} tokens is full: /reset begins a new one"

    def _say(
        self, asked: Sequence[Message], prompt: Prompt, is_stopped: Callable[[], bool],
        before: Result | None = None,
    ) -> ChatTurn:  # fmt: skip
        """Stream an answer; before: its first part, which is continued."""
        from draftwise.engine.answer import Answer, Ending
        from draftwise.engine.attribution import SourceAttribution

        speculator, params, stops = self._speculator, self._params, self._params.stop
        if params.seed is not None:
            later = len(self.turns) + (0 if before is None else len(before.tokens))
            params = replace(params, seed=params.seed + later)
        start = time.perf_counter()
        generation = speculator.start(prompt, params)
        attribution, pen = SourceAttribution(speculator.tokenizer), Pen(self._names, is_chat=True)
        # the text is continued, not decoded alone: tokens decode differently at the start of a text
        whole = Answer(Ending(speculator.target.max_positions, stop=stops), speculator.tokenizer)
        if before is not None:
            whole.push(before.tokens)
            attribution.grow(before, before.text)  # it is already on the screen
        first_token_s = 0.0
        for output in generation.outputs():
            first_token_s = first_token_s or time.perf_counter() - start
            whole.push(output.tokens)
            pen.write(attribution.grow(output, whole.text))
            if is_stopped() or whole.finish_reason is not None:
                break
        (result,) = generation.results()
        if before is not None:
            if whole.finish_reason is None:  # else a stop string that began before the cut
                whole.finish(result.finish_reason)
            result = replace(
                before,
                finish_reason=whole.finish_reason or result.finish_reason,
                text=whole.text,
                tokens=[*before.tokens, *result.tokens],
                sources=[*before.sources, *result.sources],
                stats=total([before.stats, result.stats]),
            )
        pen.write(attribution.finish(result.text))
        pen.end(result.text)
        return ChatTurn(asked, result, first_token_s)


def _file(command: str, text: str) -> Path:
    if not text:
        raise DraftwiseError(f"/{command} needs the name of a file")
    return local_path(text)


def _read(file: Path) -> list[Message]:
    messages: Any = None
    with suppress(ValueError):
        found = strict_json(read_text(file))
        messages = found.get("messages") if isinstance(found, dict) else None
    if not is_messages(messages) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise DraftwiseError(f"{file} is no conversation that /save wrote: name another file")
    return list(messages)
