"""The papers' experiments as settings of the simulator."""

from __future__ import annotations

from dataclasses import dataclass

from draftwise.types import DraftwiseError
from draftwise_lab.sim import tables, worlds

_BANDITS = ("ucbspec", "exp3spec", "ucb1:beta=0.01")
_EVERYBODY = (*_BANDITS, "normalhedge", "goodput@0-8")
_METASD = ("ucb1:beta=0.01", "exp3", "sequential-halving", "draft-all", "goodput@0-8")
_CHANGING = ("ucb1:beta=0.1", "discounted-ucb", "sliding-ucb", "normalhedge", "goodput@0-8")


@dataclass(frozen=True)
class Setting:
    """An experiment: a world, the plans in it, and the policies that play by default.

    lengths: of drafts in tokens, 0 = the plan none. panel: labels of the default contestants.
    tokens: of each text. rules: stop rules, each a plan of its own.
    """

    source: str
    make: worlds.Maker
    lengths: tuple[int, ...]
    panel: tuple[str, ...] = _EVERYBODY
    tokens: int = 500
    rules: tuple[str, ...] = ("fixed",)


_LLAMA = worlds.hedgespec(tables.HEDGESPEC_LLAMA, "llama", 5.69, 74.34)
_QWEN8B = worlds.hedgespec(tables.HEDGESPEC_QWEN8B, "qwen8b", 4.23, 47.53)
_QWEN32B = worlds.hedgespec(tables.HEDGESPEC_QWEN32B, "qwen32b", 2.88, 20.76)
_CENSORED = "normalhedge/expected-length/panoramic:delay=0"
_DELAYED = "normalhedge/expected-length/panoramic:per_token=true"
_RULES = ("fixed", "max-confidence:0.8", "max-confidence:0.5")
_MORE_RULES = ("fixed", *(f"max-confidence:0.{tenth}" for tenth in range(2, 10)))
_TAPOUT = ("ucb1:beta=1/blend", "ucb-tuned/blend", "ucb1:beta=1/simple")

SETTINGS: dict[str, Setting] = {
    "hedgespec-llama": Setting("HedgeSpec, table 1", _LLAMA, (8,)),
    "hedgespec-qwen8b": Setting("HedgeSpec, table 6", _QWEN8B, (8,)),
    "hedgespec-qwen32b": Setting("HedgeSpec, table 7", _QWEN32B, (8,)),
    "metasd-multilingual": Setting(
        "MetaSD, tables 2 and 9", worlds.fixed_pool(worlds.multilingual), (5,), _METASD, 200
    ),
    "metasd-black-box": Setting(
        "MetaSD, table 3", worlds.fixed_pool(worlds.black_box), (5,), _METASD, 200
    ),
    "metasd-eagle": Setting(
        "MetaSD, table 4", worlds.fixed_pool(worlds.metasd_eagle), (5,), _METASD, 200
    ),
    "banditspec-load": Setting(
        "BanditSpec, section 6.2",
        worlds.fixed_pool(worlds.load),
        (0, 1, 2, 3, 4),
        ("ucbspec/throughput", "ucb1:beta=0.1/throughput", "goodput"),
        tokens=200,
    ),
    "nonstationary": Setting(
        "MetaSD, table 19",
        worlds.fixed_pool(worlds.two_languages),
        (5,),
        _CHANGING,
        tokens=400,
    ),
    "geometric": Setting(
        "BanditSpec, eq. (4)",
        worlds.fixed_pool(worlds.geometric),
        (4,),
        ("ucbspec", "exp3spec"),
        tokens=5000,
    ),
    "drifting": Setting(
        "wandering alphas, drafters of unequal cost", worlds.fixed_pool(worlds.drifting), (4,)
    ),
    "adversarial": Setting(
        "BanditSpec, assumption 5.1", worlds.fixed_pool(worlds.adversarial), (4,), tokens=2000
    ),
    "censoring": Setting(
        "HedgeSpec, example 7", worlds.fixed_pool(worlds.censoring), (8,), (_CENSORED, _DELAYED)
    ),
    "stop-rules": Setting(
        "TapOut, table 1",
        worlds.fixed_pool(worlds.stop_rules),
        (16,),
        _TAPOUT,
        rules=_RULES,
    ),
    "stop-rules-many": Setting(
        "TapOut, appendix A.2",
        worlds.fixed_pool(worlds.stop_rules),
        (16,),
        _TAPOUT,
        rules=_MORE_RULES,
    ),
}
"""``draftwise simulate --preset`` NAME."""


def setting(name: str) -> Setting:
    """The experiment of this name; DraftwiseError lists the valid ones."""
    if name not in SETTINGS:
        raise DraftwiseError(f"unknown preset {name!r}; the presets are: {', '.join(SETTINGS)}")
    return SETTINGS[name]
