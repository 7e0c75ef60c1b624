"""``draftwise demo``: plain decoding and draftwise side by side on the same prompts."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Column, Table
from rich.text import Text

from draftwise.bench.suites import Item, as_messages, usual_items
from draftwise.chat import has_template
from draftwise.checks import option
from draftwise.cli import options as o
from draftwise.cli.failures import INTERRUPTED, Output, graceful, refused_values, say
from draftwise.cli.show import (
    colours,
    counted,
    legend,
    make_table,
    painted,
    shares,
    total,
    yes_or_no,
)
from draftwise.engine.options import RequestParams
from draftwise.types import NONE, DraftwiseError

if TYPE_CHECKING:
    from draftwise.engine.answer import Piece
    from draftwise.engine.generation import Generation, Result
    from draftwise.speculator import Speculator


def choose_prompts(num: int, is_chat: bool) -> list[Item]:
    """The first prompt of each kind, then the second; questions for a chat model."""
    if num < 1:
        raise DraftwiseError(f"--prompts {num}: it must be 1 or more")
    return usual_items(is_chat)[:num]


WIDE = 100  # minimum number of columns for panels side by side
_FRAME_S = 1 / 12
_MOST_LINES, _FEWEST_LINES = 16, 4


class Stage(Live):
    """Live panels, redrawn between rounds: a refresh thread would disturb the timing."""

    def __init__(self, console: Console, lanes: Sequence[Lane], styles: Mapping[str, str]) -> None:
        super().__init__(console=console, auto_refresh=False)
        self._lanes, self._styles, self._drawn_at = lanes, styles, 0.0

    def __exit__(self, *error: Any) -> None:
        self.draw(is_last=True)
        super().__exit__(*error)

    def draw(self, is_last: bool = False) -> None:
        if is_last or time.perf_counter() - self._drawn_at >= _FRAME_S:
            self.update(self.picture(is_last), refresh=True)
            self._drawn_at = time.perf_counter()

    def picture(self, is_last: bool) -> RenderableType:
        """The panels; the last picture is only as high as its text."""
        width, height = self.console.size
        is_wide = width >= WIDE
        room = height - 6 if is_wide else height // len(self._lanes) - 4
        room = max(_FEWEST_LINES, min(_MOST_LINES, room))
        inside = (width // len(self._lanes) if is_wide else width) - 4
        texts = [painted(lane.pieces, self._styles) for lane in self._lanes]
        wrapped = [text.wrap(self.console, inside)[-room:] for text in texts]
        lines = max(1, *map(len, wrapped)) if is_last else room
        panels = [
            self._panel(lane, Text("\n").join(text), lines)
            for lane, text in zip(self._lanes, wrapped, strict=True)
        ]
        if not is_wide:
            return Group(*panels)
        grid = Table.grid(*(Column(ratio=1) for _ in panels), expand=True)
        grid.add_row(*panels)
        return grid

    def _panel(self, lane: Lane, text: Text, lines: int) -> Panel:
        plain = self._lanes[0]
        stats, base = lane.stats, plain.stats.tok_per_s
        rate = f"{stats.tok_per_s:.0f} tok/s" if stats.num_emitted else "..."
        detail = f"{stats.num_emitted} tokens"
        if lane is not plain and stats.num_rounds and base:
            rate += f" = {stats.tok_per_s / base:.1f}x"
            detail += f", {stats.mean_accepted_tokens:.1f} a round"
        return Panel(
            text, title=Text(lane.title, "bold"), title_align="left",
            subtitle=Text.assemble((rate, "bold"), (f" · {detail}", "dim")), subtitle_align="right",
            border_style="bright_black" if lane is plain else "green", height=lines + 2,
        )  # fmt: skip


class Lane:
    """One decoder's growing answer, and the engine's seconds spent on it."""

    def __init__(self, title: str, generation: Generation) -> None:
        from draftwise.engine.answer import SourceAttribution
        from draftwise.engine.outputs import Stats

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


_BAR = 24


@dataclass(frozen=True, slots=True)
class Pair:
    domain: str
    plain: Result
    fast: Result


def report(
    pairs: Sequence[Pair], styles: Mapping[str, str], title: str, is_greedy: bool
) -> RenderableType:
    identical = Text.assemble((" output identical: ", "bold"), _same(pairs))
    same = identical if is_greedy else Text(" output: same distribution (sampled)", "bold")
    return Group(_speeds(pairs, title, is_greedy), "", _writers(pairs, styles), "", same)


def _speeds(pairs: Sequence[Pair], title: str, is_greedy: bool) -> Table:
    rates = "plain\ntok/s", f"{title}\ntok/s", "ratio", "MAT", "accepted\n/drafted"
    table = make_table("prompt", right=("tokens", *rates), padding=(0, 1))
    if is_greedy:
        table.add_column("same\ntext", no_wrap=True)
    for pair in pairs:
        table.add_row(*_cells(pair.domain, [pair], is_greedy))
    table.add_section()
    table.add_row(*_cells("all", pairs, is_greedy), style="bold")
    return table


def _cells(name: str, pairs: Sequence[Pair], is_greedy: bool) -> list[str | Text]:
    plain = total([pair.plain.stats for pair in pairs])
    fast = total([pair.fast.stats for pair in pairs])
    ratio = fast.tok_per_s / plain.tok_per_s if plain.tok_per_s else 0.0
    speeds = f"{plain.tok_per_s:.1f}", f"{fast.tok_per_s:.1f}", f"{ratio:.2f}x"
    rates = f"{fast.mean_accepted_tokens:.2f}", f"{fast.draft_acceptance_rate:.2f}"
    return [name, str(fast.num_emitted), *speeds, *rates, *([_same(pairs)] if is_greedy else [])]


def _same(pairs: Sequence[Pair]) -> Text:
    return yes_or_no(all(pair.plain.tokens == pair.fast.tokens for pair in pairs))


def _writers(pairs: Sequence[Pair], styles: Mapping[str, str]) -> Table:
    pulls = shares(total([pair.fast.stats for pair in pairs]).pulls)
    written = shares(Counter(source for pair in pairs for source in pair.fast.sources))
    table = make_table("drafter", "pulls (rounds)", "tokens written", box=None, padding=(0, 1))
    names = [name for name in pulls | written if name not in {NONE, "target"}]
    rows = [(name, name, name, styles.get(name, "")) for name in names]
    rows.append(("none / target", NONE, "target", styles["target"]))
    for shown, pulled, writer, style in rows:
        bars = (_bar(part, style) for part in (pulls.get(pulled, 0.0), written.get(writer, 0.0)))
        table.add_row(Text(f"■ {shown}", style), *bars)
    return table


def _bar(part: float, style: str) -> Text:
    eighths = round(part * _BAR * 8)
    blocks = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text.assemble((blocks, style), " " if blocks else "", f"{part:.0%}")


_PROMPT_LINES = 4
_WARM_UP_TOKENS = 24


def shown_prompt(text: str) -> Text:
    """The end of a prompt, and how much of it is left out.

    >>> print(shown_prompt("1\\n2\\n3\\n4\\n5\\n6\\n"))
    [2 lines before]
    3
    4
    5
    6
    """
    lines = text.rstrip("\n").split("\n")
    left_out = len(lines) - _PROMPT_LINES
    said = [f"[{counted(left_out, 'line')} before]"] if left_out > 0 else []
    return Text("\n".join([*said, *lines[-_PROMPT_LINES:]]), "dim")


@o.command
def demo(
    *,
    models: o.Models,
    prompts: int = option(5, "How many prompts, of different kinds."),
    max_new_tokens: o.MaxNewTokens = 64,
    temperature: o.Temperature = 0.0,
    seed: int = o.SEED,
    preset: o.PresetName = "draftwise",
    policy: o.PolicySpec = None,
    svg: Path | None = option(None, "Also save all of it as a picture."),
) -> None:
    """Compare plain decoding and draftwise on the same prompts; tokens are coloured by drafter."""
    wanted = models.settings(seed=seed, preset=preset, policy=policy)
    params = o.request({"temperature": temperature}, max_new_tokens=max_new_tokens, seed=seed)
    with refused_values():
        choose_prompts(prompts, is_chat=False)
        o.check(wanted)
        if svg is not None:
            svg.open("a").close()  # refuse an unwritable output before anything runs
        fast = o.load(wanted)
        is_chat = has_template(fast.tokenizer)
        chosen = choose_prompts(prompts, is_chat)
    show = Show(fast, preset, params, is_chat)
    with graceful() as is_stopped:
        show.run(chosen, is_stopped)
        if svg is not None:
            show.film.save_svg(str(svg), title="draftwise demo")
    if is_stopped():
        say("interrupted", style="yellow")
        raise SystemExit(INTERRUPTED)


def plain_like(fast: Speculator) -> Speculator:
    """Plain decoding in the same engine, with the same target in memory."""
    from draftwise.registry import preset
    from draftwise.speculator import Speculator

    return Speculator(fast.target, fast.tokenizer, [], preset("plain"))


class Show:
    """Runs both decoders on each prompt: live on a terminal, else as plain text."""

    def __init__(self, fast: Speculator, title: str, params: RequestParams, is_chat: bool) -> None:
        self._is_chat = is_chat
        self._fast, self._plain, self._title = fast, plain_like(fast), title
        self._params, self._console = replace(params, token_texts=True), Output()
        # a second console, which records the picture
        self.film = Console(
            record=True, file=io.StringIO(), force_terminal=True, width=110, height=40
        )
        self._styles = colours([drafter.name for drafter in fast.drafters])

    def run(self, prompts: Sequence[Item], is_stopped: Callable[[], bool]) -> None:
        self._print(Text("Each token in the colour of the drafter that wrote it:", "bold"))
        self._print(legend(self._styles))
        # warm up, so that neither decoder is charged for the allocator and lazy imports
        for speculator in (self._plain, self._fast):
            short = replace(self._params, max_new_tokens=_WARM_UP_TOKENS)
            speculator.generate(self._prompt(prompts[0]), short)
        pairs: list[Pair] = []
        for number, asked in enumerate(prompts, 1):
            heading = Text(f"{number}/{len(prompts)} {asked.domain}", "bold")
            self._print(Group("", Rule(heading, align="left", style="bright_black")))
            self._print(shown_prompt(asked.text))
            lanes = [
                Lane(title, one.start(self._prompt(asked), self._params))
                for title, one in (("plain decoding", self._plain), (self._title, self._fast))
            ]
            # the first decoder to step alternates; plain decoding is always shown on the left
            self._race(lanes, lanes[::-1] if number % 2 == 0 else lanes, is_stopped)
            if is_stopped():
                break
            plain, fast = (lane.generation.results()[0] for lane in lanes)
            pairs.append(Pair(asked.domain, plain, fast))
        if pairs:
            is_greedy = self._params.sampling.temperature == 0
            self._print(report(pairs, self._styles, self._title, is_greedy))

    def _prompt(self, item: Item) -> Any:
        return as_messages(item.turns[0]) if self._is_chat else item.turns[0]

    def _print(self, shown: RenderableType) -> None:
        self._console.print(shown)
        self.film.print(shown)

    def _race(
        self, lanes: Sequence[Lane], order: Sequence[Lane], is_stopped: Callable[[], bool]
    ) -> None:
        if self._console.is_terminal:
            with Stage(self._console, lanes, self._styles) as stage:
                for _ in race(order, is_stopped):
                    stage.draw()
        else:
            list(race(order, is_stopped))
            for lane in lanes:
                self._console.print(Text(f"--- {lane.title}: {lane.stats.tok_per_s:.1f} tok/s"))
            self._console.print(painted(lanes[-1].pieces, {}), soft_wrap=True)
        self.film.print(Stage(self.film, lanes, self._styles).picture(is_last=True))
