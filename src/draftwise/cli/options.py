"""Options that several commands have, declared once, and their texts turned into values."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from draftwise.cli.command import annotated, option_names
from draftwise.engine.options import RequestParams
from draftwise.sampling import SamplingParams
from draftwise.settings import Hardware as Hardware
from draftwise.settings import Settings
from draftwise.types import DraftwiseError


def _option(panel: str | None, help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


_TARGET = annotated(Settings, "target")
Target = Annotated[str, _TARGET]
AnyTarget = Annotated[str | None, _TARGET]
Drafters = Annotated[list[str] | None, annotated(Settings, "drafters")]
Compile = Annotated[bool, annotated(Settings, "compile")]
PresetName = Annotated[str, annotated(Settings, "preset")]
PolicySpec = Annotated[str | None, annotated(Settings, "policy")]
Temperature = Annotated[float, annotated(SamplingParams, "temperature")]
MaxNewTokens = Annotated[int, annotated(RequestParams, "max_new_tokens")]
CheckTypes = Annotated[
    str | None,
    _option(
        "Checking types of models",
        "Build these model types (comma-separated, `all`, or `rest`: those missing from --write's "
        "page) tiny, with random weights, and report how each is served, or why not.",
        "--check",
        metavar="TYPES",
    ),
]
QuickCheck = Annotated[
    bool,
    _option(
        "Checking types of models",
        "Run the self-check only, without comparing texts.",
        "--quick",
    ),
]
WritePage = Annotated[
    Path | None,
    _option("Checking types of models", "Write the results of --check as Markdown.", "--write"),
]
FixedSeed = Annotated[int, _option("Sampling", "Random seed.", "--seed", metavar="N")]
Prompt = Annotated[str | None, typer.Argument(help="Text to continue. Default: --file or stdin.")]
AsChat = Annotated[
    bool,
    _option(None, "Send the prompt as a user message through the model's chat template.", "--chat"),
]
System = Annotated[
    str | None,
    _option(None, "System message; implies --chat.", "--system", metavar="TEXT"),
]
ChatTemplate = Annotated[
    Path | None,
    _option(
        "Models",
        "Jinja file that replaces the tokenizer's chat template.",
        "--chat-template",
        metavar="FILE",
    ),
]
PromptFile = Annotated[
    Path | None, _option(None, "Read the prompt from a file.", "--file", "-f", metavar="FILE")
]
BatchFile = Annotated[
    Path | None,
    _option(
        None,
        "File with one prompt per line, or jsonl with `prompt` or `messages`.",
        "--batch",
        "-b",
        metavar="FILE",
    ),
]
BatchSize = Annotated[
    int, _option("Running", "Prompts of --batch that run together.", "--batch-size", metavar="N")
]
Trace = Annotated[
    Path | None,
    _option("Running", "Write one jsonl line per round to this file.", "--trace", metavar="FILE"),
]
AsJson = Annotated[bool, _option(None, "Print JSON (with --batch one object per line).", "--json")]
Speculation = Annotated[
    bool, _option("Running", "Draft, or use plain decoding.", "--speculation/--no-speculation")
]


def _alias(help_: str, name: str, metavar: str) -> Any:
    panel = "Aliases (names of vLLM and transformers)"
    return _option(panel, f"Same as {help_}.", name, metavar=metavar)


@dataclass(frozen=True, slots=True)
class Aliases:
    """Options that other programs have for what has a name here already."""

    num_speculative_tokens: Annotated[
        int | None, _alias("--plan-lengths N", "--num-speculative-tokens", "N")
    ] = None
    assistant_model: Annotated[
        str | None, _alias("--drafter lm:PATH", "--assistant-model", "PATH")
    ] = None
    prompt_lookup_min: Annotated[
        int | None, _alias("--drafter lookup:prompt_lookup_min=N", "--prompt-lookup-min", "N")
    ] = None
    prompt_lookup_max: Annotated[
        int | None, _alias("--drafter lookup:prompt_lookup_max=N", "--prompt-lookup-max", "N")
    ] = None

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
