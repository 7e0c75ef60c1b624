"""Options that several commands have, declared once, and their texts turned into values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Annotated, Any

from draftwise.checks import option
from draftwise.cli.command import annotated, option_names
from draftwise.engine.options import RequestParams
from draftwise.sampling import SamplingParams
from draftwise.settings import Hardware as Hardware
from draftwise.settings import Settings
from draftwise.types import DraftwiseError

_TARGET = annotated(Settings, "target")
Target = Annotated[str, _TARGET]
AnyTarget = Annotated[str | None, _TARGET]
Drafters = Annotated[list[str] | None, annotated(Settings, "drafters")]
Compile = Annotated[bool, annotated(Settings, "compile")]
PresetName = Annotated[str, annotated(Settings, "preset")]
PolicySpec = Annotated[str | None, annotated(Settings, "policy")]
Temperature = Annotated[float, annotated(SamplingParams, "temperature")]
MaxNewTokens = Annotated[int, annotated(RequestParams, "max_new_tokens")]
SEED = option(0, "Seed of the draws.", "--seed", panel="Sampling", metavar="N")
AS_CHAT = option(False, "The prompt is a user's message, for the model's chat template.", "--chat")
CHAT_TEMPLATE = option(
    None,
    "A Jinja file in place of the tokenizer's chat template.",
    "--chat-template",
    panel="Models",
    metavar="FILE",
)
AS_JSON = option(False, "Print one object (with --batch: one a line).", "--json")

_alias = partial(option, None, panel="Aliases (names of vLLM and transformers)")


@dataclass(frozen=True, slots=True)
class Aliases:
    """Options that other programs have for what has a name here already."""

    num_speculative_tokens: int | None = _alias("As --plan-lengths N.", metavar="N")
    assistant_model: str | None = _alias("As --drafter lm:PATH.", metavar="PATH")
    prompt_lookup_min: int | None = _alias("As --drafter lookup:prompt_lookup_min=N.", metavar="N")
    prompt_lookup_max: int | None = _alias("As --drafter lookup:prompt_lookup_max=N.", metavar="N")

    def applied(self, settings: Settings) -> Settings:
        """The settings with what the aliases stand for; raises DraftwiseError for both."""
        if self.num_speculative_tokens is not None:
            if settings.lengths is not None:
                raise DraftwiseError("give --plan-lengths or --num-speculative-tokens, not both")
            settings = replace(settings, lengths=[self.num_speculative_tokens])
        found = list(settings.drafters or [])
        if self.assistant_model is not None:
            found.append(f"lm:{self.assistant_model}")
        sizes = {name: getattr(self, name) for name in ("prompt_lookup_min", "prompt_lookup_max")}
        if given := ",".join(f"{name}={n}" for name, n in sizes.items() if n is not None):
            found = [*(spec for spec in found if spec != "lookup"), f"lookup:{given}"]
        return replace(settings, drafters=found or None)


def wanted(
    target: str, drafters: list[str] | None, hardware: Hardware, seed: int | None = None
) -> Settings:
    """The settings of commands that take these options alone."""
    return Settings(**asdict(hardware), target=target, drafters=drafters, seed=seed)


def request(sampling: dict[str, Any], **params: Any) -> RequestParams:
    """A request's parameters; raises DraftwiseError that names the option."""
    with option_names():
        return RequestParams(sampling=SamplingParams(**sampling), **params)


def check_vocabulary(params: RequestParams, vocab_size: int) -> None:
    """Raise DraftwiseError for a bias of a token that the target does not have."""
    bias = params.sampling.logit_bias
    if (largest := max(bias, default=0)) >= vocab_size:
        raise DraftwiseError(
            f"--logit-bias {largest}={bias[largest]:g}: the target's token ids are 0 to "
            f"{vocab_size - 1}"
        )
