"""``draftwise demo``: plain decoding beside draftwise, on prompts of every domain."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.text import Text

from draftwise.cli import options as o
from draftwise.cli.command import command
from draftwise.cli.demo_prompts import Asked, choose_prompts
from draftwise.cli.failures import (
    INTERRUPTED,
    Output,
    graceful,
    quiet,
    refused_values,
    say,
)
from draftwise.cli.load import check, load
from draftwise.cli.race import Lane, race
from draftwise.cli.report import Pair, report
from draftwise.cli.show import colours, legend, painted
from draftwise.cli.stage import Stage

if TYPE_CHECKING:
    from draftwise.speculator import Speculator

NumPrompts = Annotated[int, typer.Option("--prompts", help="How many prompts, of all domains.")]
Picture = Annotated[
    Path | None, typer.Option("--svg", metavar="FILE", help="Also save all of it as a picture.")
]

_PROMPT_LINES = 4
_WARM_UP_TOKENS = 24
_PICTURE_SIZE = (110, 40)


@command
def demo(
    *,
    target: o.Target = "zoo",
    drafter: o.Drafters = None,
    prompts: NumPrompts = 7,
    max_new_tokens: o.MaxNewTokens = 160,
    temperature: o.Temperature = 0.0,
    seed: o.FixedSeed = 0,
    preset: o.PresetName = "draftwise",
    policy: o.PolicySpec = None,
    svg: Picture = None,
    hardware: o.Hardware,
    compile_: o.Compile = False,
) -> None:
    """Watch plain decoding and draftwise answer the same prompts; tokens coloured by drafter."""
    learning = o.Learning(preset=preset, policy=policy)
    wanted = o.wanted(target, drafter, hardware, learning, compile=compile_, seed=seed)
    sampling = o.Sampling(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    with quiet():
        with refused_values():
            sampling.check()
            choose_prompts(prompts)
            check(wanted)
            if svg is not None:
                svg.touch()  # what cannot be written is refused before anything runs
            fast = load(wanted)
            chosen = choose_prompts(prompts, fast.tokenizer)
        with graceful() as is_stopped:
            show = Show(fast, preset, sampling)
            show.conclude(show.run(chosen, is_stopped))
            if svg is not None:
                show.save(svg)
        if is_stopped():
            say("interrupted", style="yellow")
            raise SystemExit(INTERRUPTED)


def plain_like(fast: Speculator) -> Speculator:
    """Plain decoding in the same loop, with the very same target in memory."""
    from draftwise.presets import preset
    from draftwise.speculator import Speculator

    return Speculator(fast.target, fast.tokenizer, [], preset("plain"))


class Show:
    """Both decoders on one prompt after another, live on a terminal and as plain text elsewhere."""

    def __init__(self, fast: Speculator, title: str, sampling: o.Sampling) -> None:
        self._fast, self._plain, self._title = fast, plain_like(fast), title
        self._sampling, self._console = sampling, Output()
        width, height = _PICTURE_SIZE
        self._film = Console(
            record=True, file=io.StringIO(), force_terminal=True, width=width, height=height
        )
        self._styles = colours([drafter.name for drafter in fast.drafters])

    def run(self, prompts: Sequence[Asked], is_stopped: Callable[[], bool]) -> list[Pair]:
        """Race on each prompt; returns what was finished."""
        self._print(Text("Each token in the colour of the drafter that wrote it:", "bold"))
        self._print(legend(self._styles))
        self._warm_up(prompts[0])
        pairs: list[Pair] = []
        for number, asked in enumerate(prompts, 1):
            self._introduce(f"{number}/{len(prompts)} {asked.domain}", asked.text)
            plain, fast = (
                self._lane(self._plain, "plain decoding", asked),
                self._lane(self._fast, self._title, asked),
            )
            # the first to move alternates; on the screen plain decoding stays on the left
            self._race([plain, fast], number % 2 == 0, is_stopped)
            if is_stopped():
                break
            pairs.append(Pair(asked.domain, plain.result(), fast.result()))
        return pairs

    def conclude(self, pairs: Sequence[Pair]) -> None:
        """The tables over all prompts."""
        if pairs:
            is_greedy = self._sampling.temperature == 0
            self._print(report(pairs, self._styles, self._title, is_greedy))

    def save(self, path: Path) -> None:
        """Write what was shown as one picture; OSError."""
        self._film.save_svg(str(path), title="draftwise demo")

    def _print(self, shown: RenderableType) -> None:
        self._console.print(shown)
        self._film.print(shown)

    def _warm_up(self, asked: Asked) -> None:
        """The first calls pay for the allocator and lazy imports: neither lane should."""
        for speculator in (self._plain, self._fast):
            short = replace(self._sampling, max_new_tokens=_WARM_UP_TOKENS)
            speculator.generate(asked.prompt, **short.request())

    def _lane(self, speculator: Speculator, title: str, asked: Asked) -> Lane:
        generation = speculator.start(asked.prompt, **self._sampling.request())
        return Lane(title, generation, speculator.tokenizer)

    def _introduce(self, title: str, prompt: str) -> None:
        """Which prompt it is, by its last lines."""
        self._print("")
        self._print(Rule(Text(title, "bold"), align="left", style="bright_black"))
        for line in prompt.rstrip("\n").split("\n")[-_PROMPT_LINES:]:
            self._print(Text(line, "dim", no_wrap=True, overflow="ellipsis"))

    def _race(
        self, lanes: Sequence[Lane], is_reversed: bool, is_stopped: Callable[[], bool]
    ) -> None:
        order = list(reversed(lanes)) if is_reversed else list(lanes)
        if self._console.is_terminal:
            with Stage(self._console, lanes, self._styles) as stage:
                for _ in race(order, is_stopped):
                    stage.draw()
        else:
            for _ in race(order, is_stopped):
                pass
            for lane in lanes:
                self._console.print(Text(f"--- {lane.title}: {lane.tok_per_s:.1f} tok/s"))
            self._console.print(painted(lanes[-1].pieces, {}), soft_wrap=True)
        self._film.print(Stage(self._film, lanes, self._styles).picture(is_last=True))
