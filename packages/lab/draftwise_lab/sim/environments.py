"""Sources of text: the protocol, random streams, and the synthetic environments.

An environment names its drafters, domains and costs, and draws texts. It never sees a policy, so
all policies get the same texts.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from draftwise.types import Floats
from draftwise_lab.sim.costs import CostTable
from draftwise_lab.sim.text import PROMPT_TOKENS, Text, bernoulli_track


class Environment(Protocol):
    """A family of texts by domain, with the acceptance of each drafter along them."""

    @property
    def drafters(self) -> Sequence[str]: ...

    @property
    def domains(self) -> Sequence[str]: ...

    @property
    def costs(self) -> CostTable: ...

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        """The domain's texts for this seed; repeated calls return the same texts. num_tokens: the
        engine's limit; longest: the longest draft that may start at a text's end."""
        ...


Means = Mapping[str, Mapping[str, float]]
"""Mean acceptance probability by domain and drafter."""


def stream(seed: int, *names: str) -> np.random.Generator:
    """An independent random stream for the seed and these names.

    >>> bool(stream(0, "a").random() == stream(0, "a").random() != stream(0, "b").random())
    True
    """
    key = tuple(zlib.crc32(name.encode()) for name in names)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def num_positions(num_tokens: int, longest: int) -> int:
    """Positions that need alphas: the prompt's, the text's, and those of a draft past its end."""
    return PROMPT_TOKENS + num_tokens + longest + 1


def text_of(
    alphas: Mapping[str, Floats], seed: int, domain: str, num_tokens: int,
    eos_rate: float = 0.0, batch_size: int = 1,
) -> Text:  # fmt: skip
    """Draw a text's coins from each drafter's alphas [``num_positions``]. eos_rate: probability
    that a token is the last one; the target draws it, so it does not depend on the policy."""
    length = num_tokens
    if eos_rate > 0.0:
        length = min(num_tokens, int(stream(seed, domain, "", "end").geometric(eos_rate)))
    tracks = {
        name: bernoulli_track(
            values[PROMPT_TOKENS:], stream(seed, domain, name, "coins"), values[:PROMPT_TOKENS]
        )
        for name, values in alphas.items()
    }
    return Text(f"{domain}-{seed}", num_tokens, length, tracks, batch_size)


class Drawn:
    """One text per seed, from each drafter's ``alphas``. ``table`` is by domain and drafter."""

    costs: CostTable
    eos_rate: float = 0.0

    @property
    def table(self) -> Mapping[str, Mapping[str, Any]]:
        raise NotImplementedError

    @property
    def domains(self) -> list[str]:
        return list(self.table)

    @property
    def drafters(self) -> list[str]:
        return list(self.table[self.domains[0]])

    def alphas(self, domain: str, seed: int, num: int, num_tokens: int) -> dict[str, Floats]:
        """[num] by drafter, the prompt's positions first; num_tokens: length of the whole text."""
        raise NotImplementedError

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        alphas = self.alphas(domain, seed, num_positions(num_tokens, longest), num_tokens)
        return [text_of(alphas, seed, domain, num_tokens, self.eos_rate)]


@dataclass(frozen=True)
class FromMeans(Drawn):
    means: Means
    costs: CostTable

    @property
    def table(self) -> Means:
        return self.means


@dataclass(frozen=True)
class TruncatedGeometric(FromMeans):
    """Emitted tokens per round follow ``p^(x-1) (1-p)`` for x <= L and ``p^L`` for x = L + 1.

    Source: BanditSpec, eq. (4). Differs: none, except that the end of the text truncates drafts.
    means: p by domain and drafter. eos_rate: as in ``text_of``.
    """

    eos_rate: float = 0.0

    def alphas(self, domain: str, seed: int, num: int, num_tokens: int) -> dict[str, Floats]:
        return {name: np.full(num, alpha) for name, alpha in self.means[domain].items()}


@dataclass(frozen=True)
class IndependentAlphas(FromMeans):
    """The alpha at each position is drawn i.i.d. from the drafter's distribution.

    Source: MetaSD, Assumption 1 (eq. 3). Differs: the paper leaves the distribution open; here it
    is a Beta with that mean. concentration: its a + b; small values push alpha to 0 or 1.
    """

    concentration: float = 2.0
    eos_rate: float = 0.0

    def alphas(self, domain: str, seed: int, num: int, num_tokens: int) -> dict[str, Floats]:
        size = self.concentration
        return {
            name: stream(seed, domain, name, "alphas").beta(mean * size, (1.0 - mean) * size, num)
            for name, mean in self.means[domain].items()
        }


@dataclass(frozen=True)
class Drifting(FromMeans):
    """The log-odds of alpha follow a first-order autoregressive process around the drafter's mean.

    Source: this project; MetaSD appendix H.2 mentions the case. step: standard deviation of the
    process's innovation per token; memory: share of a deviation that the next token keeps, below 1.
    """

    step: float = 0.2
    memory: float = 0.99

    def alphas(self, domain: str, seed: int, num: int, num_tokens: int) -> dict[str, Floats]:
        """Start the process in its stationary distribution."""
        found, spread = {}, self.step / np.sqrt(1.0 - self.memory**2)
        for name, mean in self.means[domain].items():
            steps = stream(seed, domain, name, "walk").normal(0.0, self.step, num)
            steps[0] *= spread / self.step
            walk, deviation = np.zeros(num), 0.0
            for place, drawn in enumerate(steps.tolist()):
                walk[place] = deviation = self.memory * deviation + drawn
            found[name] = 1.0 / (1.0 + np.exp(-walk) * (1.0 - mean) / mean)
        return found


@dataclass(frozen=True)
class Cycles(Drawn):
    """Each drafter repeats a pattern of alphas along the text; alphas of 0 and 1 are deterministic.

    Source: BanditSpec, Assumption 5.1 (values fixed before the algorithm starts). Differs: values
    are fixed by position instead of by round. patterns: by domain and drafter.
    """

    patterns: Mapping[str, Mapping[str, Sequence[float]]]
    costs: CostTable

    @property
    def table(self) -> Mapping[str, Mapping[str, Sequence[float]]]:
        return self.patterns

    def alphas(self, domain: str, seed: int, num: int, num_tokens: int) -> dict[str, Floats]:
        places = np.arange(num) - PROMPT_TOKENS
        return {
            name: np.array(pattern, dtype=np.float64)[places % len(pattern)]
            for name, pattern in self.patterns[domain].items()
        }


@dataclass(frozen=True)
class Piecewise(Drawn):
    """Alphas are constant within a segment; the prompt belongs to the first segment.

    Source: MetaSD, appendix H.2 (queries that hold two tasks). Differs: none. queries: the kinds of
    the segments, in order, by query; each segment takes an equal share of the token limit. means:
    alpha by segment kind and drafter.
    """

    queries: dict[str, Sequence[str]]
    means: Means
    costs: CostTable

    @property
    def table(self) -> Means:
        return {query: self.means[kinds[0]] for query, kinds in self.queries.items()}

    def alphas(self, domain: str, seed: int, num: int, num_tokens: int) -> dict[str, Floats]:
        kinds = self.queries[domain]
        places = np.arange(num) - PROMPT_TOKENS
        segments = np.clip(places * len(kinds) // num_tokens, 0, len(kinds) - 1)
        return {
            name: np.array([self.means[kind][name] for kind in kinds])[segments]
            for name in self.drafters
        }


@dataclass(frozen=True)
class Load(Drawn):
    """Requests of different difficulty, the same ones at every batch size.

    Source: BanditSpec, section 6.2. Differs: one row of the batch is simulated and is charged the
    whole batch's forwards. alphas_from: range of a request's acceptance probability.
    """

    batch_sizes: Sequence[int]
    alphas_from: tuple[float, float]
    costs: CostTable
    drafter: str = "eagle"

    @property
    def table(self) -> Mapping[str, Mapping[str, int]]:
        return {f"batch {size}": {self.drafter: size} for size in self.batch_sizes}

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        alpha = stream(seed, "difficulty").uniform(*self.alphas_from)
        values = {self.drafter: np.full(num_positions(num_tokens, longest), alpha)}
        size = self.table[domain][self.drafter]
        return [text_of(values, seed, "load", num_tokens, batch_size=size)]


@dataclass(frozen=True)
class Confident(Drawn):
    """alphas are i.i.d. from a Beta distribution, and the top probability tracks them with noise.

    Source: this project, for TapOut's rules (table 1). The rest of q is spread evenly over
    ``others`` tokens, which determines its entropy and the margin of its two largest probabilities.
    means: alpha by domain. noise: standard deviation of the top probability around alpha.
    """

    means: Mapping[str, float]
    costs: CostTable
    concentration: float = 1.5
    noise: float = 0.15
    others: int = 8
    drafter: str = "small"

    @property
    def table(self) -> Means:
        return {domain: {self.drafter: mean} for domain, mean in self.means.items()}

    def texts(self, domain: str, seed: int, num_tokens: int, longest: int) -> list[Text]:
        num, mean, size = num_positions(num_tokens, longest), self.means[domain], self.concentration
        rng, others = stream(seed, domain, "alphas"), self.others
        alphas = rng.beta(mean * size, (1.0 - mean) * size, num)
        noisy = alphas + rng.normal(0.0, self.noise, num)
        tops = np.clip(noisy, 1.0 / (others + 1), 0.999)[PROMPT_TOKENS:]
        text = text_of({self.drafter: alphas}, seed, domain, num_tokens)
        rest = (1.0 - tops) / others
        entropies = -(tops * np.log(tops) + others * rest * np.log(rest))
        beliefs: Any = {"max_probs": tops, "entropies": entropies}
        beliefs["margins"] = np.maximum(tops - rest, 0.0)
        return [replace(text, tracks={self.drafter: replace(text.tracks[self.drafter], **beliefs)})]
