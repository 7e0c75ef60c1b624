"""The bench itself: every method answers every item in turn, and each turn is kept at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from draftwise.bench.methods import Ours, parse_method
from draftwise.bench.ours import Asked, OurContestant, Reply, counts, course
from draftwise.bench.paired import turns
from draftwise.bench.peers import PeerContestant
from draftwise.bench.runs import Run, Store
from draftwise.bench.suites import Item
from draftwise.drafters.lm import LMDrafter
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError

GoesOn = Callable[[], bool]
"""Asked between answers: False ends the bench."""


class Contestant(Protocol):
    """What answers prompts."""

    name: str

    def begin(self) -> None:
        """A repeat begins."""
        ...

    def answer(self, prompt: Sequence[int], seed: int) -> Reply:
        """Answer a prompt, and say how long it took."""
        ...


class Encoder:
    """Items to token ids: a chat template where there is one and the item is a conversation.

    What is longer than the target's positions allow loses its beginning; num_cut counts these.
    """

    def __init__(self, base: Speculator, asked: Asked) -> None:
        self._tokenizer = base.tokenizer
        self._room = base.target.max_positions - asked.max_new_tokens
        self._cut: set[str] = set()
        if self._tokenizer is None:
            raise DraftwiseError("the target has no tokenizer: a bench needs one for its prompts")
        if self._room < 1:
            raise DraftwiseError(
                f"--tokens {asked.max_new_tokens}: the target has {base.target.max_positions} "
                "positions, and a prompt needs some of them"
            )

    @property
    def num_cut(self) -> int:
        """Items that lost their beginning."""
        return len(self._cut)

    def prompt(self, item: Item, answers: Sequence[Sequence[int]]) -> list[int]:
        """Ids of the next turn, behind the turns and answers before it."""
        said = [self._tokenizer.decode(list(ids), skip_special_tokens=True) for ids in answers]
        asked = item.turns[: len(answers) + 1]
        if item.category and getattr(self._tokenizer, "chat_template", None):
            messages = [{"role": "user", "content": asked[0]}]
            for answer, turn in zip(said, asked[1:], strict=True):
                messages.append({"role": "assistant", "content": answer})
                messages.append({"role": "user", "content": turn})
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            between = [part for pair in zip(asked, said, strict=False) for part in pair]
            text = "\n\n".join([*between, asked[-1]]) if answers else asked[0]
            ids = self._tokenizer(text)["input_ids"]
        if not ids:
            raise DraftwiseError(f"item {item.id} of {item.domain} is empty: nothing to continue")
        if len(ids) > self._room:
            self._cut.add(item.id)
        return list(ids[-self._room :])


def make_contestants(
    methods: Sequence[str], base: Speculator, asked: Asked, wanted: Sequence[str]
) -> tuple[list[Contestant], dict[str, str]]:
    """The methods that can take part, and those that cannot, with the reason.

    Raises DraftwiseError for one that was asked for by name (``wanted``) and cannot.
    """
    drafters = {d.name: isinstance(d, LMDrafter) for d in base.drafters}
    made: list[Contestant] = []
    left_out: dict[str, str] = {}
    for method in methods:
        try:
            spec = parse_method(method, drafters)
            kind = OurContestant if isinstance(spec, Ours) else PeerContestant
            made.append(kind(spec, base, asked))  # type: ignore[arg-type]
        except DraftwiseError as error:
            if method in wanted:
                raise
            left_out[method] = str(error)
    return made, left_out


class Contest:
    """All contestants on all items. State: none; what was done is in the store."""

    def __init__(
        self, contestants: Sequence[Contestant], items: Sequence[Item], encoder: Encoder,
        store: Store, seed: int,
    ) -> None:  # fmt: skip
        self._contestants = {c.name: c for c in contestants}
        self._items, self._encoder, self._store, self._seed = items, encoder, store, seed
        self._with_course = _first_of_each_domain(items)

    def run(
        self, repeats: int, done: Sequence[Run], goes_on: GoesOn, progress: Callable[[], None]
    ) -> None:
        """Every turn that is not done yet; warm-up first. ``goes_on`` is asked between answers."""
        finished = {(run.repeat, run.item) for run in done}
        plan = turns(list(self._contestants), len(self._items), repeats, self._seed)
        todo = [turn for turn in plan if turn[:2] not in finished]
        if not todo or not self._warm_up(todo[0][1], goes_on):
            return
        repeat_now = todo[0][0]
        for repeat, index, order in todo:
            if repeat != repeat_now:
                repeat_now = repeat
                for contestant in self._contestants.values():
                    contestant.begin()
            runs = []
            for name in order:
                if not goes_on():
                    return
                runs.append(self._answer(self._contestants[name], repeat, index))
                progress()
            self._store.add(runs)

    def _warm_up(self, index: int, goes_on: GoesOn) -> bool:
        """An answer of each that is not counted: allocators, lazy imports, first costs."""
        for contestant in self._contestants.values():
            if not goes_on():
                return False
            contestant.answer(self._encoder.prompt(self._items[index], []), self._seed)
            contestant.begin()
        return True

    def _answer(self, contestant: Contestant, repeat: int, index: int) -> Run:
        item, replies = self._items[index], list[Reply]()
        for _ in item.turns:
            prompt = self._encoder.prompt(item, [reply.tokens for reply in replies])
            replies.append(contestant.answer(prompt, self._seed + repeat))
        more = counts(replies)
        if repeat == 0 and index in self._with_course and isinstance(contestant, OurContestant):
            more["course"] = course(replies, contestant.plans)
        return Run(
            method=contestant.name,
            repeat=repeat,
            item=index,
            domain=item.domain,
            tokens=[reply.tokens for reply in replies],
            seconds=[reply.seconds for reply in replies],
            cpu_s=[reply.cpu_s for reply in replies],
            num_rounds=[len(reply.emitted) for reply in replies],
            emitted=[num for reply in replies for num in reply.emitted],
            **more,
        )


def _first_of_each_domain(items: Sequence[Item]) -> set[int]:
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        first.setdefault(item.domain, index)
    return set(first.values())
