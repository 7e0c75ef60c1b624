"""``draftwise chat``: a conversation in the terminal, each token in its drafter's colour."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwise.chat import render
from draftwise.cli import options as o
from draftwise.cli.failures import graceful, quiet, refusals, refused_values, say
from draftwise.cli.load import Wanted, check, check_sampling, holding_state, keeping_memory, load
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.cli.talk import Talk
    from draftwise.speculator import Speculator
    from draftwise.train.adapt import Adapter

ChatTarget = Annotated[
    str,
    typer.Option("--target", help="A model folder or hub id, with a chat template.", metavar="M"),
]
ChatScope = Annotated[
    str, typer.Option("--scope", help="session: turns share what they learn; request; task:LABEL.")
]
Adapt = Annotated[
    bool,
    typer.Option(
        "--adapt", help="EAGLE heads go on learning from the answers while you type (experimental)."
    ),
]
HELP = """\
/stats  how fast each turn was, and tokens by drafter
/plain  the last answer again by plain decoding: the same text? how much slower?
/reset  begin a new conversation
/quit   leave (so does Ctrl-D); Ctrl-C stops an answer"""


@refusals()
def chat(
    target: ChatTarget,
    drafter: o.Drafters = None,
    system: Annotated[str | None, typer.Option(help="A system message.")] = None,
    preset: o.PresetName = "draftwise",
    scope: ChatScope = "session",
    state: o.State = None,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    repetition_penalty: o.Penalty = 1.0,
    seed: o.Seed = None,
    max_new_tokens: o.MaxNewTokens = 512,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    compile_: o.Compile = False,
    threads: o.Threads = 1,
    adapt: Adapt = False,
) -> None:
    """Talk with a model; each token in the colour of the drafter that wrote it.

    A line is a message; without a terminal, each line of stdin is one. /help lists the commands.
    """
    wanted = Wanted(
        target, drafter, preset, dtype=dtype, device=device, compile=compile_, scope=scope,
        state=state, seed=seed, threads=threads,
    )  # fmt: skip
    sampling = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
    }
    with quiet(), holding_state(state):
        with refused_values():
            check(wanted)
            check_sampling(sampling)
        speculator = load(wanted)
        opening = [] if system is None else [{"role": "system", "content": system}]
        render([*opening, {"role": "user", "content": "Hello"}], speculator.tokenizer)
        from draftwise.cli.talk import Talk

        adapters = adapters_of(speculator) if adapt else []
        talk = Talk(speculator, opening, sampling)
        with keeping_memory(speculator, state):
            converse(talk, learning(messages(), talk, adapters) if adapters else messages())


def adapters_of(speculator: Speculator) -> list[Adapter]:
    """One for each EAGLE head; DraftwiseError where there is none."""
    from draftwise.drafters.eagle import EagleDrafter
    from draftwise.nn.eagle import EagleHead
    from draftwise.train.adapt import Adapter

    heads = [d.head for d in speculator.drafters if isinstance(d, EagleDrafter)]
    found = [Adapter(speculator.target, head) for head in heads if isinstance(head, EagleHead)]
    if not found:
        raise DraftwiseError("--adapt lets EAGLE heads learn: name one, --drafter eagle:HEAD")
    return found


def learning(lines: Iterator[str], talk: Talk, adapters: Sequence[Adapter]) -> Iterator[str]:
    """The same lines; while one is waited for, heads learn from the answers before it."""
    num_heard = 0
    while True:
        new = talk.turns[num_heard:] if num_heard <= len(talk.turns) else talk.turns
        num_heard = len(talk.turns)
        with ExitStack() as idle:
            for adapter in adapters:
                for turn in new:
                    adapter.hear(turn.result.prompt_tokens, turn.result.tokens)
                idle.enter_context(adapter.idle())
            line = next(lines, None)
        if line is None:
            return
        yield line


def messages() -> Iterator[str]:
    """Lines from the terminal, with a prompt and history, or from stdin."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if is_terminal:
        with suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        say("/help lists the commands; Ctrl-D leaves", style="dim")
    while True:
        try:
            yield input("\n> ") if is_terminal else input()
        except EOFError:
            return
        except UnicodeDecodeError as error:
            raise DraftwiseError(f"this is not UTF-8 text: {error}") from error


def converse(talk: Talk, lines: Iterator[str]) -> None:
    """Answer each line, or do what its command says, until there are no more."""
    commands: Mapping[str, Callable[[], Any]] = {
        "/stats": talk.stats,
        "/plain": talk.plain,
        "/reset": talk.reset,
        "/help": lambda: sys.stdout.write(HELP + "\n"),
    }
    for line in lines:
        text = line.strip()
        if text in {"/quit", "/exit"}:
            return
        if not text:
            continue
        try:
            with graceful() as is_stopped:
                if text in commands:
                    commands[text]()
                elif text.startswith("/") and " " not in text:
                    say(f"no command {text}; there are: {', '.join(commands)}, /quit")
                else:
                    talk.answer(line, is_stopped)
        except DraftwiseError as error:  # this message cannot be answered; the next one may be
            say(str(error))
