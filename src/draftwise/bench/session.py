"""Times methods side by side: every method answers every prompt in turn, in one process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
from typing import Protocol

from draftwise.bench.results import Run
from draftwise.bench.suites import Item, Method, as_messages
from draftwise.chat import Message, Prompt, has_template, render
from draftwise.drafters.retrieval import SuffixDrafter
from draftwise.engine.outputs import Round
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Asked:
    """The sampling parameters of all methods."""

    max_new_tokens: int
    temperature: float = 0.0


@dataclass(slots=True)
class TimedReply:
    """One turn's answer. seconds: wall time; cpu_s: CPU time of this process. emitted: by round."""

    tokens: list[int]
    seconds: float
    cpu_s: float
    emitted: list[int]
    rounds: list[Round] = field(default_factory=list)


class Contestant(Protocol):
    """A method that answers prompts one at a time."""

    name: str

    def begin(self) -> None:
        """Begin a repeat, with no memory of the answers of the previous one."""

    def warm_up(self, prompt: Prompt, seed: int) -> object:
        """Give a short answer that is not counted: allocators, lazy imports, first-time costs."""

    def answer(self, prompt: Prompt, seed: int) -> TimedReply: ...


class OurContestant:
    """draftwise with one preset or plan."""

    def __init__(self, method: Method, base: Speculator, asked: Asked) -> None:
        self.name, self._method, self._base, self._asked = method.name, method, base, asked
        self.speculator = self._make()

    def begin(self) -> None:
        if any(isinstance(drafter, SuffixDrafter) for drafter in self._base.drafters):
            self.speculator = self._make()

    def warm_up(self, prompt: Prompt, seed: int) -> None:
        num = min(_WARM_UP_TOKENS, self._asked.max_new_tokens)
        self.speculator.generate(prompt, max_new_tokens=num, seed=seed)

    def answer(self, prompt: Prompt, seed: int) -> TimedReply:
        start, cpu = time.perf_counter(), time.process_time()
        generation = self.speculator.start(prompt, seed=seed, **asdict(self._asked))
        rounds = list(generation)
        tokens = generation.results()[0].tokens
        seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        return TimedReply(tokens, seconds, cpu_s, [r.num_emitted for r in rounds], rounds)

    def _make(self) -> Speculator:
        base, method = self._base, self._method
        # contestants share models and datastores, but no memory of past answers
        own = [
            d.forgetful() if isinstance(d, SuffixDrafter) else d
            for d in base.drafters
            if method.setting.lengths and method.drafter in {None, d.name}
        ]
        return Speculator(base.target, base.tokenizer, own, method.setting)


class Encoder:
    """Encodes turns with earlier answers; ``cut``: ids of items whose beginning was dropped.

    as_chat: through the chat template (True), as text (False), or as chat where there is a
    template (None). Raises DraftwiseError if the template or room for a prompt is missing.
    """

    def __init__(self, base: Speculator, asked: Asked, as_chat: bool | None = None) -> None:
        self.base, self.asked, self._tokenizer = base, asked, base.tokenizer
        self.is_chat = has_template(base.tokenizer) if as_chat is None else as_chat
        self._room = base.target.max_positions - asked.max_new_tokens
        self.cut: set[str] = set()
        if self._room < 1:
            most = base.target.max_positions
            why = f"the context of the target is {most} tokens, and a prompt needs some"
            raise DraftwiseError(f"--tokens {asked.max_new_tokens}: {why}")

    def prompt(self, item: Item, answers: Sequence[Sequence[int]]) -> Prompt:
        """The prompt of the turn after ``answers``; text is joined with blank lines."""
        said = [self._tokenizer.decode(ids, skip_special_tokens=True) for ids in answers]
        asked = item.turns[: len(answers) + 1]
        if self.is_chat:
            messages: list[Message] = []
            for turn, answer in zip_longest(asked, said):
                messages += as_messages(turn)
                messages += [] if answer is None else [{"role": "assistant", "content": answer}]
            prompt = render(messages, self._tokenizer)
        else:
            if not all(isinstance(turn, str) for turn in asked):
                raise DraftwiseError(
                    f"{item.where} has messages, which need a chat template: name an instruct model"
                    ", and leave out --raw"
                )
            pairs = zip_longest(asked, said)
            text = "\n\n".join(str(part) for pair in pairs for part in pair if part is not None)
            prompt = Prompt(self._tokenizer(text)["input_ids"])
        if not prompt.tokens:
            raise DraftwiseError(f"item {item.id} of {item.domain} is empty: nothing to continue")
        if len(prompt.tokens) > self._room:
            self.cut.add(item.id)
        return replace(prompt, tokens=list(prompt.tokens[-self._room :]))


def as_run(name: str, repeat: int, index: int, domain: str, replies: Sequence[TimedReply]) -> Run:
    """One method's answer to all turns of one item."""
    rounds = [round_ for reply in replies for round_ in reply.rounds]
    return Run(
        method=name,
        repeat=repeat,
        item=index,
        domain=domain,
        tokens=[reply.tokens for reply in replies],
        seconds=[reply.seconds for reply in replies],
        cpu_s=[reply.cpu_s for reply in replies],
        num_rounds=[len(reply.emitted) for reply in replies],
        emitted=[num for reply in replies for num in reply.emitted],
        num_drafted=sum(r.num_drafted for r in rounds) if rounds else None,
        num_accepted=sum(r.num_accepted for r in rounds) if rounds else None,
        written=dict(Counter(source for r in rounds for source in r.sources)),
    )


Record = Callable[[Contestant, int, int, str, Sequence[TimedReply]], Run]


def contest(
    contestants: Sequence[Contestant], items: Sequence[Item], encoder: Encoder,
    plan: Iterable[tuple[int, int, Sequence[str]]], seed: int, goes_on: Callable[[], bool],
    record: Record = lambda contestant, *of: as_run(contestant.name, *of),
) -> Iterator[list[Run]]:  # fmt: skip
    """Yield the runs of each turn of the plan, while ``goes_on`` returns True before every answer.

    plan: repeat, index of the item, and order of the methods, as ``turns`` yields them.
    """
    by_name = {contestant.name: contestant for contestant in contestants}
    repeat_now = None
    for repeat, index, order in plan:
        item = items[index]
        if repeat_now is None:
            for contestant in contestants:
                if not goes_on():
                    return
                contestant.warm_up(encoder.prompt(item, []), seed)
        if repeat != repeat_now:
            repeat_now = repeat
            for contestant in contestants:
                contestant.begin()
        runs = []
        for name in order:
            if not goes_on():
                return
            replies = list[TimedReply]()
            for _ in item.turns:
                prompt = encoder.prompt(item, [reply.tokens for reply in replies])
                replies.append(by_name[name].answer(prompt, seed + repeat))
            runs.append(record(by_name[name], repeat, index, item.domain, replies))
        yield runs
