"""``draftwise demo``: plain decoding and draftwise side by side on the same prompts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from draftwise.bench.suites import Item, usual_items
from draftwise.chat import has_template
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli.failures import INTERRUPTED, Output, graceful, refused_values, say
from draftwise.cli.show import colours, legend, make_table, painted, percentages, total, yes_or_no
from draftwise.engine.options import RequestParams

if TYPE_CHECKING:
    from draftwise.engine.engine import Generation
    from draftwise.engine.outputs import Piece, Result
    from draftwise.speculator import Speculator

Pair = tuple[str, "Result", "Result"]  # kind of prompt; answers of plain decoding and of draftwise
_FRAME_S = 1 / 12
_MOST_LINES, _PROMPT_LINES, _WARM_UP_TOKENS = 16, 4, 24


@o.command
def demo(
    *,
    models: o.Models,
    prompts: int = option(5, "How many prompts, of different kinds.", least=1),
    max_new_tokens: o.MaxNewTokens = 64,
    temperature: o.Temperature = 0.0,
    seed: int = o.SEED,
    preset: o.PresetName = "draftwise",
    policy: o.PolicySpec = None,
    svg: Path | None = option(None, "Save all of it as a picture, too."),
) -> None:
    """Compare plain decoding and draftwise on the same prompts; tokens are coloured by drafter."""
    wanted = models.settings(seed=seed, preset=preset, policy=policy)
    params = o.request({"temperature": temperature}, max_new_tokens=max_new_tokens, seed=seed)
    with refused_values():
        o.check(wanted)
        if svg is not None:
            svg.open("a").close()  # refuse an unwritable output before anything runs
    fast = o.load(wanted)
    names = [drafter.name for drafter in fast.drafters]
    console = Output() if svg is None else Output(record=True, force_terminal=True, width=110)
    decoders = {"plain decoding": plain_like(fast), preset: fast}
    stage = Stage(console, colours(names), is_live=svg is None and console.is_terminal)
    console.print(Text("Each token in the colour of the drafter that wrote it:", "bold"))
    console.print(legend(stage.styles))
    chosen = usual_items(has_template(fast.tokenizer))[:prompts]
    with graceful() as is_stopped:
        show(decoders, chosen, replace(params, token_texts=True), stage, is_stopped)
        if svg is not None:
            console.save_svg(str(svg), title="draftwise demo")
    if is_stopped():
        say("interrupted", style="yellow")
        raise SystemExit(INTERRUPTED)


def plain_like(fast: Speculator) -> Speculator:
    """Plain decoding in the same engine, with the same target in memory."""
    from draftwise.registry import preset
    from draftwise.speculator import Speculator

    return Speculator(fast.target, fast.tokenizer, [], preset("plain"))


class Lane:
    """One decoder's growing answer, and the engine's seconds spent on it."""

    def __init__(self, title: str, generation: Generation) -> None:
        from draftwise.engine.outputs import SourceAttribution, Stats

        self.title, self.generation, self.stats = title, generation, Stats()
        self._outputs, self._text = generation.outputs(), ""
        self._attribution = SourceAttribution()
        self.pieces: list[Piece] = []
        self.is_running = True

    @property
    def seconds(self) -> float:
        return sum(self.stats.seconds_by_phase.values())

    def step(self) -> None:
        if (output := next(self._outputs, None)) is None:
            self.is_running = False
            return
        self._text += output.text
        self.pieces += self._attribution.grow(output, self._text)
        self.stats = output.stats


def race(lanes: Sequence[Lane], is_stopped: Callable[[], bool]) -> Iterator[Lane]:
    """Step the lane that has used less time, so that other load slows both equally."""
    while not is_stopped() and (running := [lane for lane in lanes if lane.is_running]):
        lane = min(running, key=lambda lane: lane.seconds)
        lane.step()
        yield lane


def show(
    decoders: Mapping[str, Speculator], prompts: Sequence[Item], params: RequestParams,
    stage: Stage, is_stopped: Callable[[], bool],
) -> None:  # fmt: skip
    """Let both decoders answer each prompt; print the answers and a table."""
    # warm up, so that neither decoder is charged for the allocator and lazy imports
    for speculator in decoders.values():
        short = replace(params, max_new_tokens=_WARM_UP_TOKENS)
        speculator.generate(_asked(speculator, prompts[0]), short)
    pairs: list[Pair] = []
    for number, item in enumerate(prompts, 1):
        heading = Text(f"{number}/{len(prompts)} {item.domain}", "bold")
        stage.console.print("", Rule(heading, align="left", style="bright_black"))
        lines = item.text.rstrip("\n").split("\n")
        stage.console.print(Text("\n".join(lines[-_PROMPT_LINES:]), "dim"))
        lanes = [
            Lane(title, one.start(_asked(one, item), params)) for title, one in decoders.items()
        ]
        # the first decoder to step alternates; plain decoding is always shown on the left
        stage.play(lanes, race(lanes[::-1] if number % 2 == 0 else lanes, is_stopped))
        if is_stopped():
            break
        plain, fast = (lane.generation.results()[0] for lane in lanes)
        pairs.append((item.domain, plain, fast))
    if pairs:
        stage.console.print(report(pairs, is_greedy=params.sampling.temperature == 0))


@dataclass(frozen=True, slots=True)
class Stage:
    """Shows lanes side by side: as they grow on a terminal, at their end in a picture or file."""

    console: Console
    styles: Mapping[str, str]
    is_live: bool

    def play(self, lanes: Sequence[Lane], rounds: Iterator[object]) -> None:
        if not self.is_live:
            list(rounds)
            self.console.print(self.picture(lanes))
            return
        # drawn between rounds: a thread that draws would disturb the timing
        with Live(console=self.console, auto_refresh=False) as live:
            drawn_s = 0.0
            for _ in rounds:
                if (now_s := time.perf_counter()) - drawn_s >= _FRAME_S:
                    live.update(self.picture(lanes), refresh=True)
                    drawn_s = now_s
            live.update(self.picture(lanes), refresh=True)

    def picture(self, lanes: Sequence[Lane]) -> Table:
        """Panels with the last lines of each answer."""
        width, height = self.console.size
        grid = Table.grid(*(Column(ratio=1) for _ in lanes), expand=True)
        panels = []
        for lane in lanes:
            lines = painted(lane.pieces, self.styles).wrap(self.console, width // len(lanes) - 4)
            text = Text("\n").join(lines[-min(_MOST_LINES, height - 6) :])
            panels.append(_panel(lane, text, lanes[0].stats.tok_per_s))
        grid.add_row(*panels)
        return grid


def _asked(speculator: Speculator, item: Item) -> Any:
    """The prompt as a message where the model has a chat template."""
    asked = [{"role": "user", "content": item.text}]
    return asked if has_template(speculator.tokenizer) else item.text


def _panel(lane: Lane, text: Text, plain_tok_per_s: float) -> Panel:
    stats = lane.stats
    rate = f"{stats.tok_per_s:.0f} tok/s"
    if stats.num_drafted and plain_tok_per_s:
        rate += f" = {stats.tok_per_s / plain_tok_per_s:.1f}x"
    detail = f" · {stats.mean_accepted_tokens:.1f} tok/round"
    return Panel(
        text, title=Text(lane.title, "bold"), title_align="left",
        subtitle=Text.assemble((rate, "bold"), (detail, "dim")), subtitle_align="right",
    )  # fmt: skip


def report(pairs: Sequence[Pair], *, is_greedy: bool) -> Table:
    """A row for each prompt and one for all; below, who wrote the tokens."""
    written = percentages(Counter(source for *_, fast in pairs for source in fast.sources))
    is_same = [plain.tokens == fast.tokens for _, plain, fast in pairs]
    verdict = Text.assemble("output identical: ", yes_or_no(all(is_same)))
    table = make_table(
        "prompt",
        right=("tokens", "plain\ntok/s", "drafts\ntok/s", "ratio", "MAT", "accepted\n/drafted"),
        caption=Text("\n").join(
            [Text(f"written by: {written}"), verdict if is_greedy else Text("same distribution")]
        ),
    )
    for name, plain, fast in pairs:
        table.add_row(name, *_cells([plain], [fast]))
    table.add_section()
    _, plains, fasts = zip(*pairs, strict=True)
    table.add_row("all", *_cells(plains, fasts), style="bold")
    return table


def _cells(plains: Sequence[Result], fasts: Sequence[Result]) -> list[str]:
    plain, fast = (total([one.stats for one in results]) for results in (plains, fasts))
    ratio = fast.tok_per_s / plain.tok_per_s if plain.tok_per_s else 0.0
    speeds = f"{plain.tok_per_s:.1f}", f"{fast.tok_per_s:.1f}", f"{ratio:.2f}x"
    rates = f"{fast.mean_accepted_tokens:.2f}", f"{fast.draft_acceptance_rate:.2f}"
    return [str(fast.num_emitted), *speeds, *rates]
