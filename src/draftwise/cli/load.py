"""Checks settings before anything is loaded, and loads the ``Speculator``."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwise import registry, zoo
from draftwise.cli.failures import NOT_WRITTEN, note, say, waiting
from draftwise.engine.memory import REQUEST, check_scope
from draftwise.files import holding, read_text
from draftwise.nn.folder import config_of, has_template, place
from draftwise.real.unpack import check_pieces, is_pretrained
from draftwise.settings import Settings
from draftwise.specs import ZOO, check_spec
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.speculator import Speculator

_TEMPLATE_BYTES = 1 << 20
PATIENCE_S = 2.0
"""Timeout of connecting to the hub, and of its answer."""


def check(wanted: Settings) -> None:
    """Refuse invalid settings without loading a model: names, options, files, devices."""
    setting = wanted.learning
    plans = setting.plans(["drafter"])
    _check_policy(setting)
    registry.make_reward(setting.reward)
    registry.make_feedback(setting.feedback, plans=plans, reward=None)
    for rule in wanted.rules or ():
        registry.make_guide(rule)
    if check_scope(wanted.scope) == REQUEST and wanted.state is not None:
        raise DraftwiseError(
            f"--state keeps what requests teach each other, and with --scope {REQUEST} they do not:"
            " add --scope auto, --scope session, or --scope task:LABEL"
        )
    check_models(wanted.target, wanted.drafters or ())
    if wanted.state is not None:
        _check_state(wanted.state)


def _check_policy(setting: registry.Preset) -> None:
    """Refuse a policy that fails for one drafter and for many, as their number is still unknown."""
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
    """Refuse a state file that cannot be read now, or written at the end."""
    if state.is_dir() or not state.parent.is_dir():
        why = "it is a folder" if state.is_dir() else f"there is no folder {state.parent}"
        raise DraftwiseError(f"--state {state}: {why}")
    real = Path(os.path.realpath(state))  # a link may point to a file that does not exist yet
    if os.path.lexists(real) and not real.is_file():
        raise DraftwiseError(f"--state {state}: it is no plain file")
    if not os.access(state.parent, os.W_OK) or (state.exists() and not os.access(state, os.R_OK)):
        raise DraftwiseError(f"--state {state}: it cannot be read and written")


def check_models(target: str, drafters: Sequence[str]) -> None:
    """Refuse missing models, without torch."""
    check_target(target)
    for spec in drafters:
        check_spec(spec)


def check_target(target: str) -> None:
    if target == ZOO:
        zoo.target_path()
    elif is_pretrained(target):
        try:
            check_pieces(target)
        except DraftwiseError as error:
            raise DraftwiseError(f"{error}. Or name another model: --target MODEL") from error
    elif Path(found := place(target)).is_dir():
        config_of(Path(found))
    else:
        check_hub(found)


def check_chat(target: str, template: Path | None = None) -> None:
    """Refuse an invalid template, or a target without one, if its files are local."""
    if template is not None:
        read_template(template)
    elif not is_pretrained(target):
        found = Path(zoo.target_path() if target == ZOO else place(target))
        folder = found if found.is_dir() else cached(target)
        if folder is None or has_template(folder):
            return
        if "base_model_name_or_path" not in config_of(folder):  # an adapter's base may have one
            check_template(target)


def check_template(target: str, tokenizer: Any = None) -> None:
    if getattr(tokenizer, "chat_template", None) is None:
        raise DraftwiseError(
            f"{target} has no chat template: it may be a base model, which continues text. Give "
            "the prompt as text (draftwise generate without --chat), name an instruct model such "
            "as --target smollm2, or give a template with --chat-template FILE"
        )


def read_template(file: Path) -> str:
    """The text of a chat template; DraftwiseError if it cannot be read or parsed."""
    from jinja2 import Environment, TemplateError
    from jinja2.ext import Extension

    class GenerationTag(Extension):
        """The tag that marks the assistant's text for training."""

        tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    try:
        text = read_text(file, _TEMPLATE_BYTES)
        Environment(extensions=[GenerationTag, "jinja2.ext.loopcontrols"]).from_string(text)
    except TemplateError as error:
        line = getattr(error, "lineno", None)
        where = "" if line is None else f", line {line}"
        raise DraftwiseError(f"--chat-template {file}{where}: {error}") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DraftwiseError(f"--chat-template {file}: {why}") from None
    return text


def cached(model: str) -> Path | None:
    """The folder of a hub model in the local cache, or None."""
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "adapter_config.json"):
        if isinstance(found := try_to_load_from_cache(model, name), str):
            return Path(found).parent
    return None


def check_hub(model: str) -> None:
    """Refuse an invalid hub id, and a model neither in the cache nor on the hub."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        if cached(model) is not None:
            return
    except HFValidationError:
        raise DraftwiseError(f"there is no model folder {model}, and it is no hub id") from None
    said = f"there is no folder {model}, and no model of that name was fetched from the hub before"
    if constants.HF_HUB_OFFLINE:
        raise DraftwiseError(f"{said}; HF_HUB_OFFLINE forbids to fetch one")
    answer: Exception | None = ConnectionError()

    def ask() -> None:
        from huggingface_hub import HfApi

        nonlocal answer
        try:
            HfApi(endpoint=constants.ENDPOINT).model_info(model, timeout=PATIENCE_S)
            answer = None
        except Exception as error:
            answer = error

    # in a thread, because a DNS lookup has no timeout
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(3 * PATIENCE_S)
    # by name, because the hub's client changed its HTTP library, and with it the classes
    if type(answer).__name__.startswith("Connect"):
        raise DraftwiseError(
            f"{said}; {constants.ENDPOINT} cannot be reached now. Name a folder or a .gguf file, "
            "or go online"
        )
    # for other errors, loading has the better message
    if isinstance(answer, RepositoryNotFoundError) and answer.response.status_code in {401, 404}:
        raise DraftwiseError(
            f"there is no folder {model}, and {constants.ENDPOINT} has no public model {model}: "
            "check the name; for a private one, log in (hf auth login)"
        )


def load(wanted: Settings, chat_template: Path | None = None) -> Speculator:
    """Load the speculator; chat_template: a Jinja file in place of the tokenizer's."""
    with loading(wanted.target, wanted.threads):
        from draftwise.speculator import Speculator

        names = {one.name for one in fields(wanted)} - {"state", "threads"}
        speculator = Speculator.from_pretrained(**{name: getattr(wanted, name) for name in names})
        if wanted.state is not None and (said := speculator.memory.load_or_set_aside(wanted.state)):
            say(said, style="yellow")
        if chat_template is not None:
            speculator.tokenizer.chat_template = read_template(chat_template)
    if wanted.dtype == "auto" and is_pretrained(wanted.target):
        from draftwise.nn.cpu.layout import weights_of

        note(f"--dtype auto: {weights_of(speculator.target.module)}")
    return speculator


@contextmanager
def keeping_memory(speculator: Speculator, state: Path | None) -> Iterator[None]:
    """Save the learnt state, however the block ends; exit code 74 if only saving fails."""
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


def alone_in(folder: Path) -> AbstractContextManager[None]:
    """Lock a folder for this process; DraftwiseError if another process holds it."""
    taken = f"another draftwise is at work in {folder}: wait for it, or give another folder"
    return holding(folder / ".lock", taken)


@contextmanager
def loading(what: str, threads: int) -> Iterator[None]:
    """Import torch and load something, with a spinner and without the libraries' own output."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with waiting(f"loading {what}", is_load=True):
        import torch
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        torch.set_num_threads(threads)
        yield
