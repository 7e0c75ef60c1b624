"""Answers from a speculator to the screen: one that streams, or a batch in order."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from draftwise.chat import Prompt
from draftwise.cli.failures import BROKEN, INTERRUPTED, Output, graceful, note, say
from draftwise.cli.progress import TokenProgress
from draftwise.cli.show import Wrap, colours, painted, summary, total
from draftwise.engine.attribution import Piece, SourceAttribution
from draftwise.engine.options import RequestParams

if TYPE_CHECKING:
    from draftwise.engine.generation import Generation, Result
    from draftwise.engine.records import Round, TraceWriter
    from draftwise.engine.request import Stats
    from draftwise.speculator import Speculator


@dataclass(frozen=True, slots=True)
class Job:
    """How to answer: the parameters of all prompts, the trace, and whether json is wanted."""

    speculator: Speculator
    params: RequestParams
    trace: TraceWriter | None
    as_json: bool

    def start(self, prompts: Sequence[Prompt], first: int) -> Generation:
        """Begin with these prompts, of which the first is number ``first`` of all."""
        params = self.params
        if params.seed is not None:  # else every chunk of a batch would draw the same
            params = replace(params, seed=params.seed + first)
        return self.speculator.start(list(prompts), params)

    def rounds(
        self, generation: Generation, first: int, is_stopped: Callable[[], bool]
    ) -> Iterator[Round]:
        """Whole rounds until all answers are finished or Ctrl-C was pressed, traced."""
        num_seen = 0
        for round_ in generation:
            if self.trace is not None:
                self.trace.write(replace(round_, request=first + round_.request))
            yield round_
            num_seen += 1
            if num_seen == round_.batch_size:
                num_seen = 0
                if is_stopped():
                    return


def run_single(job: Job, prompt: Prompt) -> int:
    """Answer one prompt, live unless json is wanted; return the exit code."""
    generation = job.start([prompt], 0)
    painter = SourceAttribution(job.speculator.tokenizer, job.params.stop)
    pen = Pen([drafter.name for drafter in job.speculator.drafters])
    with graceful() as is_stopped:
        for round_ in job.rounds(generation, 0, is_stopped):
            pieces = painter.grow(round_, generation.text(0))
            if not job.as_json:
                pen.write(pieces)
    result = generation.results()[0]
    if job.as_json:
        print(json.dumps(result.as_json()), flush=True)
    else:
        pen.write(painter.finish(result.text))
        pen.end(result.text)
        note(summary(result.stats))
    return verdict([result])


def run_batch(job: Job, prompts: Sequence[Prompt], batch_size: int) -> int:
    """Answer prompts in chunks, printing each in the order of the prompts; return the exit code."""
    results: list[Result] = []
    chunks: list[Stats] = []
    with graceful() as is_stopped, TokenProgress(len(prompts)) as progress:
        for first in range(0, len(prompts), batch_size):
            generation = job.start(prompts[first : first + batch_size], first)
            for round_ in job.rounds(generation, first, is_stopped):
                progress.saw(round_)
            chunk = generation.results()
            with progress.paused(len(chunk)):
                for result in chunk:
                    shown = json.dumps(result.as_json()) if job.as_json else result.text
                    print(shown, flush=True)
            results += chunk
            chunks.append(total([result.stats for result in chunk], are_together=True))
            if is_stopped():
                break
    if not job.as_json:
        note(summary(total(chunks)))
    return verdict(results)


def verdict(results: Sequence[Result]) -> int:
    reasons = [result.finish_reason for result in results]
    if "interrupted" in reasons:
        say("interrupted: the text so far was kept", style="yellow")
        return INTERRUPTED
    broken = [str(i) for i, reason in enumerate(reasons) if reason == "non-finite logits"]
    if broken:
        where = f" (prompts {', '.join(broken)})" if len(reasons) > 1 else ""
        say(f"stopped: the target's logits are not finite{where}; the tokens so far were kept")
        return BROKEN
    return 0


class Pen:
    """Text to stdout as it comes: in colours on a terminal, else as it is.

    wraps: on a terminal, lines end between words.
    """

    def __init__(self, drafters: Sequence[str], wraps: bool = False) -> None:
        self._console, self._styles = Output(), colours(drafters)
        self._wrap = Wrap(self._console.width) if wraps and self._console.is_terminal else None

    def write(self, pieces: Sequence[Piece]) -> None:
        self._show(pieces if self._wrap is None else self._wrap.feed(pieces))

    def end(self, text: str, always: bool = False) -> None:
        """A terminal goes on in a new line; a file gets the answer alone, unless ``always``."""
        if self._wrap is not None:
            self._show(self._wrap.finish())
        if (always or self._console.is_terminal) and not text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()

    def _show(self, pieces: Sequence[Piece]) -> None:
        if self._console.is_terminal:
            self._console.print(painted(pieces, self._styles), end="", soft_wrap=True)
        else:
            sys.stdout.write("".join(text for text, _ in pieces))
        sys.stdout.flush()
