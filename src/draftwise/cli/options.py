"""Options of commands: declaration, parsing, checks, and loading of the ``Speculator``."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer

from draftwise import registry
from draftwise.checks import Option, option
from draftwise.cli.failures import VOICE, note, own_warnings, refusals, refused_values, say
from draftwise.cli.load import check_models, loading, read_template
from draftwise.engine.options import REQUEST, RequestParams, check_scope
from draftwise.errors import BadValue, DraftwiseError, shown
from draftwise.files import local_path
from draftwise.settings import RESEARCH
from draftwise.settings import Hardware as Hardware
from draftwise.settings import Models as Models
from draftwise.settings import Settings as Settings
from draftwise.types import SamplingParams
from draftwise.zoo import is_pretrained

if TYPE_CHECKING:
    from draftwise.speculator import Speculator

_QUIET = option(False, "Print results, warnings and errors only.", "--quiet", "-q")


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function into a command: ``refusals`` handles errors, ``own_warnings`` warnings.

    A parameter is an option if its default is a ``checks.option``, or if typer annotates it. A
    dataclass parameter becomes one option for each such field, and for those of nested dataclasses;
    its default is an instance with the options' defaults. Dataclasses may share an option.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    options: dict[str, inspect.Parameter] = {}
    for name, parameter in parameters.items():
        for one in _options_of(name, hints[name], parameter.default, parameter.default):
            options.setdefault(one.name, one)
    options["quiet"], *_ = _options_of("quiet", bool, _QUIET, _QUIET)

    @functools.wraps(function)
    @refusals()
    def run(quiet: bool = False, **given: Any) -> None:
        VOICE.notes = not quiet
        with refused_values():
            values = {
                name: _value(name, hints[name], parameter.default, given)
                for name, parameter in parameters.items()
            }
        with own_warnings():
            function(**values)

    ordered = sorted(options.values(), key=_is_research)
    run.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in ordered}
    return run


def _is_research(parameter: inspect.Parameter) -> bool:
    """Whether the option is for research; ``--help`` shows these last."""
    found = getattr(parameter.annotation, "__metadata__", ())
    return any(getattr(one, "rich_help_panel", None) == RESEARCH for one in found)


@contextmanager
def option_names(group: type[Any] | None = None) -> Iterator[None]:
    """Make a BadValue name the option as typed; group: the dataclass that declares it."""
    try:
        yield
    except BadValue as error:
        flags = {one.name: _name(one.name, one) for one in (fields(group) if group else ())}
        flag = "--" + flags.get(error.name, error.name).replace("_", "-")
        raise DraftwiseError(f"{flag} {shown(error.value)}: it must be {error.must}") from error


def annotated(group: type[Any], name: str) -> Any:
    """The typer option of one field, for commands that take it without its dataclass."""
    (own,) = (one.metadata["option"] for one in fields(group) if one.name == name)
    return _typer_option(name, own, get_type_hints(group)[name])


def _own(declared: Any) -> Option | None:
    """The ``Option`` of a field or of a parameter's default."""
    return declared.metadata.get("option") if isinstance(declared, Field) else None


def _name(name: str, declared: Any) -> str:
    """The parameter's name in typer: that of the first flag."""
    own = _own(declared)
    flags = own.flags if own else ()
    return flags[0].lstrip("-").partition("/")[0].replace("-", "_") if flags else name


def _value(name: str, hint: Any, declared: Any, given: Mapping[str, Any]) -> Any:
    """The value of a parameter or field; DraftwiseError names the option."""
    own = _own(declared)
    if not is_dataclass(hint):
        value = given[_name(name, declared)]
        value = local_path(value) if isinstance(value, Path) else value
        return own.read(value) if own is not None and own.read else value
    assert isinstance(hint, type)
    hints = get_type_hints(hint, include_extras=True)
    values = {
        one.name: _value(one.name, hints[one.name], one, given)
        for one in fields(hint)
        if (own := _own(one)) is None or own.help or is_dataclass(hints[one.name])
    }
    with option_names(hint):
        return hint(**values)


def _options_of(name: str, hint: Any, declared: Any, default: Any) -> Iterator[inspect.Parameter]:
    """The parameters for typer; none for a field without help."""
    empty = inspect.Parameter.empty
    if is_dataclass(hint):
        assert isinstance(hint, type)
        hints = get_type_hints(hint, include_extras=True)
        defaults = hint() if default is empty else default
        for one in fields(hint):
            yield from _options_of(one.name, hints[one.name], one, getattr(defaults, one.name))
        return
    own = _own(declared)
    if isinstance(default, Field):
        default = empty if default.default is MISSING else default.default
    if own is not None:
        if not own.help:
            return
        hint = hint if own.kind is None else own.kind
        if hint in (list[str] | None, str | None):
            default = None
        name, hint = _name(name, declared), Annotated[hint, _typer_option(name, own, hint)]
    yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _typer_option(name: str, own: Option, hint: Any) -> Any:
    def complete(incomplete: str) -> list[str]:
        return [one for one in own.known if one.startswith(incomplete)]

    kinds = {hint, *get_args(hint)}
    metavars = {int: "N", Path: "FILE", bool: ""}
    usual = next((shown for kind, shown in metavars.items() if kind in kinds), None)
    return typer.Option(
        *(own.flags or ("--" + name.replace("_", "-"),)), help=own.help, rich_help_panel=own.panel,
        metavar=usual if own.metavar is None else own.metavar,
        envvar=own.envvar, min=own.least, max=own.most,
        autocompletion=complete if own.known else None,
    )  # fmt: skip


Target = Annotated[str, annotated(Models, "target")]
PresetName = Annotated[str, annotated(Settings, "preset")]
PolicySpec = Annotated[str | None, annotated(Settings, "policy")]
Temperature = Annotated[float, annotated(SamplingParams, "temperature")]
MaxNewTokens = Annotated[int, annotated(RequestParams, "max_new_tokens")]
SEED = option(0, "Random seed.", "--seed", panel="Sampling")
AS_CHAT = option(
    False, "Send the prompt as a user message through the model's chat template.", "--chat"
)
CHAT_OR_RAW = option(
    None,
    "Send prompts through the model's chat template, or as text to continue. Default: chat where "
    "the model has a template.",
    "--chat/--raw",
)
CHAT_TEMPLATE = option(
    None, "Jinja file that replaces the tokenizer's chat template.", panel="Models"
)
AS_JSON = option(False, "Print JSON (with --batch one object per line).", "--json")


def request(sampling: dict[str, Any], **params: Any) -> RequestParams:
    """A request's parameters; raises DraftwiseError that names the option."""
    with option_names():
        return RequestParams(sampling=SamplingParams(**sampling), **params)


def check_vocabulary(params: RequestParams, vocab_size: int) -> None:
    bias = params.sampling.logit_bias
    if (largest := max(bias, default=0)) >= vocab_size:
        said = f"the target's token ids are 0 to {vocab_size - 1}"
        raise DraftwiseError(f"--logit-bias {largest}={bias[largest]:g}: {said}")


def check(wanted: Settings) -> None:
    """Reject invalid settings without loading a model: names, options, files, devices."""
    with option_names(Settings):
        setting = wanted.learning
    plans = setting.plans(["drafter"])
    _check_policy(setting)
    reward = registry.make_reward(setting.reward)
    registry.make_feedback(setting.feedback, plans=plans, reward=reward)
    for rule in wanted.rules or ():
        registry.make_stop_rule(rule)
    if check_scope(wanted.scope) == REQUEST and wanted.state is not None:
        raise DraftwiseError(
            f"--state keeps what requests teach each other, and with --scope {REQUEST} they do not:"
            " add --scope auto, --scope session, or --scope task:LABEL"
        )
    if wanted.state is not None and setting.policy.partition(":")[0] != "goodput":
        raise DraftwiseError(
            f"--state keeps what the policy goodput learns: with --policy {setting.policy} leave "
            "it out"
        )
    check_models(wanted.target, wanted.drafters or ())
    if wanted.state is not None:
        _check_state(wanted.state)


def _check_policy(setting: registry.Preset) -> None:
    """Reject a policy that fails for one drafter and for many; their number is still unknown."""
    refusals = []
    for num in (1, 8):
        plans = setting.plans([f"drafter{n}" for n in range(num)])
        try:
            registry.make_policy(setting.policy, len(plans), plans=plans)
            return
        except DraftwiseError as error:
            refusals.append(error)
    raise refusals[0]


def _check_state(state: Path) -> None:
    """Reject a state file that cannot be read now, or written at the end."""
    if state.is_dir() or not state.parent.is_dir():
        why = "it is a folder" if state.is_dir() else f"there is no folder {state.parent}"
        raise DraftwiseError(f"--state {state}: {why}")
    real = Path(os.path.realpath(state))  # a link may point to a file that does not exist yet
    if os.path.lexists(real) and not real.is_file():
        raise DraftwiseError(f"--state {state}: it is no plain file")
    if not os.access(state.parent, os.W_OK) or (state.exists() and not os.access(state, os.R_OK)):
        raise DraftwiseError(f"--state {state}: it cannot be read and written")


def load(wanted: Settings, chat_template: Path | None = None) -> Speculator:
    """Load the speculator; chat_template: a Jinja file instead of the tokenizer's."""
    with loading(wanted.target, wanted.threads):
        from draftwise.speculator import Speculator

        names = {one.name for one in fields(wanted)} - {"state", "threads"}
        speculator = Speculator.from_pretrained(**{name: getattr(wanted, name) for name in names})
        if wanted.state is not None and (said := speculator.memory.load_or_set_aside(wanted.state)):
            say(said, style="yellow")
        if chat_template is not None:
            speculator.tokenizer.chat_template = read_template(chat_template)
    from draftwise.nn.layout import weights_of

    if wanted.dtype == "auto" and is_pretrained(wanted.target):
        note(f"--dtype auto: {weights_of(speculator.target.module)}")
    return speculator
