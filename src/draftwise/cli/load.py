"""From options to a ``Speculator``: checked before anything is loaded, loaded without chatter."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from draftwise import presets, registry
from draftwise.cli.failures import NOT_WRITTEN, say
from draftwise.engine.memory import REQUEST, check_scope, hold
from draftwise.engine.options import request_params
from draftwise.errors import BadValue, shown
from draftwise.nn.folder import place
from draftwise.real.unpack import is_pretrained
from draftwise.specs import check_spec
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.speculator import Speculator

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options ask to be loaded; None = as the preset or the target has it."""

    target: str = "zoo"
    drafters: Sequence[str] | None = None
    preset: str = "draftwise"
    policy: str | None = None
    reward: str | None = None
    feedback: str | None = None
    lengths: Sequence[int] | None = None
    rules: Sequence[str] | None = None
    trees: Sequence[str] | None = None
    dtype: str = "auto"
    device: str = "auto"
    compile: bool = False
    scope: str = "request"
    state: Path | None = None
    seed: int | None = None
    threads: int = 1


def check(wanted: Wanted) -> None:
    """Refuse at once what needs no model to be refused: names, lengths, threads.

    Raises DraftwiseError that lists the valid names; a policy's options wait for its plans.
    """
    setting = presets.preset(wanted.preset)
    plans = setting.plans(["drafter"])
    if wanted.lengths is not None:
        presets.Preset("", "", "", tuple(wanted.lengths)).plans(["drafter"])
    policy = wanted.policy or setting.policy
    registry.lookup("policy", registry.POLICIES, policy.partition(":")[0])
    registry.make_reward(wanted.reward or setting.reward)
    registry.make_feedback(wanted.feedback or setting.feedback, plans=plans, reward=None)
    for tree in wanted.trees or ():
        presets.parse_tree(tree)
    for rule in wanted.rules or ():
        registry.make_guide(rule)
    if wanted.dtype not in DTYPES:
        raise DraftwiseError(f"unknown dtype {wanted.dtype!r}; the dtypes are: {', '.join(DTYPES)}")
    if check_scope(wanted.scope) == REQUEST and wanted.state is not None:
        raise DraftwiseError(
            f"--state keeps what requests teach each other, and with --scope {REQUEST} they do not:"
            " add --scope auto, --scope session, or --scope task:LABEL"
        )
    if wanted.state is not None:
        _check_state(wanted.state)
    check_places(wanted.target, wanted.drafters or ())
    check_threads(wanted.threads)


def _check_state(state: Path) -> None:
    """Refuse a file that could not be written at the end; what is there stays."""
    if state.is_dir() or not state.parent.is_dir():
        why = "it is a folder" if state.is_dir() else f"there is no folder {state.parent}"
        raise DraftwiseError(f"--state {state}: {why}")
    if not os.access(state.parent, os.W_OK) or (state.exists() and not os.access(state, os.R_OK)):
        raise DraftwiseError(f"--state {state}: it cannot be read and written")


@contextmanager
def holding_state(state: Path | None) -> Iterator[None]:
    """Around a whole command: no other draftwise learns in this file meanwhile.

    Raises DraftwiseError where one does, or where the file could not be written.
    """
    if state is not None:
        _check_state(state)
    with hold(state):
        yield


def check_places(target: str, drafters: Sequence[str]) -> None:
    """Refuse at once, before torch is imported, a model that is not there or a spec that is none.

    Raises DraftwiseError.
    """
    if target != "zoo" and not is_pretrained(target):
        place(target)
    for spec in drafters:
        check_spec(spec)


def check_threads(threads: int) -> None:
    """Refuse a number of threads that this machine cannot start; raises DraftwiseError."""
    most = 16 * (os.cpu_count() or 1)
    if not 1 <= threads <= most:
        raise DraftwiseError(f"--threads {threads}: it must be 1 to {most} on this machine")


def check_sampling(sampling: Mapping[str, Any]) -> None:
    """Refuse at once what no model could sample with; raises DraftwiseError."""
    try:
        request_params("generate", sampling)
    except BadValue as error:
        option = "--" + error.name.replace("_", "-")
        raise DraftwiseError(f"{option} {shown(error.value)}: it must be {error.must}") from error


def load(wanted: Wanted) -> Speculator:
    """The speculator that was asked for; raises DraftwiseError for what cannot be loaded."""
    with loading(wanted.target, wanted.threads):
        from draftwise.speculator import Speculator

        speculator = Speculator.from_pretrained(
            wanted.target,
            wanted.drafters,
            preset=wanted.preset,
            policy=wanted.policy,
            reward=wanted.reward,
            feedback=wanted.feedback,
            lengths=wanted.lengths,
            rules=wanted.rules,
            trees=wanted.trees,
            dtype=wanted.dtype,
            device=wanted.device,
            compile=wanted.compile,
            scope=wanted.scope,
            seed=wanted.seed,
        )
        if wanted.state is not None and (said := speculator.memory.take_up(wanted.state)):
            say(said, style="yellow")
    if wanted.dtype == "auto" and is_pretrained(wanted.target):
        from draftwise.nn.layout import weights_of

        say(f"--dtype auto: {weights_of(speculator.target.module)}", style="dim")
    return speculator


@contextmanager
def keeping_memory(speculator: Speculator, state: Path | None) -> Iterator[None]:
    """Whatever ends the work, what was learnt is saved.

    A disk that fails costs that alone, and the command's own end, which becomes exit code 74.
    """
    ends_well = False
    try:
        yield
        ends_well = True
    finally:
        try:
            if state is not None:
                speculator.memory.save(state)
        except OSError as error:
            why = error.strerror or error
            say(f"{state} cannot be written ({why}): what was learnt is lost", style="yellow")
            if ends_well:
                raise SystemExit(NOT_WRITTEN) from None


@contextmanager
def loading(what: str, threads: int) -> Iterator[None]:
    """Around imports and loads that take seconds: a sign of life, and no chatter of libraries."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with Console(stderr=True).status(f"loading {what}"):
        import torch
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        yield
