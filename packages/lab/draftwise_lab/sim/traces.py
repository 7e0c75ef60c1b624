"""A recorded trace as a setting of the simulator, like a paper's table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from draftwise.types import DraftwiseError
from draftwise_lab.sim.costs import load_costs
from draftwise_lab.sim.environments import Environment
from draftwise_lab.sim.environments.recorded import Recorded
from draftwise_lab.sim.environments.rounds import RoundTrace
from draftwise_lab.sim.presets import Setting

_LONGEST = 16
_PANEL = ("ucbspec@4", "exp3spec@4", "ucb1:beta=0.1@4", "normalhedge@4", "goodput")
_TEXT_TOKENS = 300


def trace_setting(path: Path, costs: str | None) -> Setting:
    """The trace at ``path``: arrays (``.npz``) or Round records (``.jsonl``).

    costs: ``gpu``, ``cpu``, ``loaded`` or a JSON file; None = ``gpu`` for arrays, which hold no
    seconds, and the measured ones for records. Raises DraftwiseError.
    """
    table = None if costs is None else load_costs(costs)
    environment: Recorded | RoundTrace
    if path.suffix == ".npz":
        environment = Recorded(path, table or load_costs("gpu"))
    elif path.suffix == ".jsonl":
        environment = RoundTrace(path, table)
    else:
        raise DraftwiseError(f"{path} is no trace: it ends in .jsonl (rounds) or .npz (arrays)")
    tokens = min(_TEXT_TOKENS, environment.num_tokens)
    return Setting(str(path), _only(environment), tuple(range(_LONGEST + 1)), _PANEL, tokens=tokens)


def _only(environment: Environment) -> Callable[[int | None], Environment]:
    def make(num_drafters: int | None) -> Environment:
        if num_drafters is not None:
            raise DraftwiseError("--drafters does not go with --trace: a trace has its own")
        return environment

    return make
