"""Options that several commands have, declared once, and their texts turned into values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from draftwise import registry
from draftwise.presets import PRESETS
from draftwise.types import DraftwiseError

_MODELS, _LEARNING, _SAMPLING = "Models", "Learning", "Sampling"
_RUNNING, _ALIASES = "Running", "Aliases (names of vLLM and transformers)"


def _option(panel: str, help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


def _names(table: Any) -> str:
    return ", ".join(table)


Target = Annotated[
    str,
    _option(
        _MODELS,
        "A model folder (of a PEFT adapter, too), a hub id, a `.gguf` file, `smollm2` or `gemma3` "
        "(pretrained, from extras of those names), or `zoo`, the bundled model.",
        "--target",
    ),
]
Drafters = Annotated[
    list[str] | None,
    _option(
        _MODELS,
        "`lm:PATH`, `lookup`, `suffix`, `datastore:FILE`, `zoo`, `zoo:NAME`, `smollm2:NAME` or "
        "`NAME=SPEC`; repeatable. Default: `lookup`; with the zoo also its drafters, with "
        "a pretrained target also `suffix` and its head.",
        "--drafter",
        metavar="SPEC",
    ),
]
CheckTypes = Annotated[
    str | None,
    _option(
        _MODELS,
        "Build these types of causal LMs (by commas, `all`, or the `rest` that --write's page does "
        "not have) tiny and random, and say which can be served, how, and why not.",
        "--check",
        metavar="TYPES",
    ),
]
QuickCheck = Annotated[
    bool,
    _option(_MODELS, "The self-check alone, without comparing texts: minutes less.", "--quick"),
]
WritePage = Annotated[
    Path | None, _option(_MODELS, "Write what --check found as a Markdown page.", "--write")
]
Dtype = Annotated[
    str, _option(_MODELS, "auto, float32, bfloat16, float16; on CPUs also int8, int4.", "--dtype")
]
Device = Annotated[
    str,
    _option(
        _MODELS,
        "auto, cpu, cuda, cuda:1, ...; `map:auto`, `map:balanced`: the target over all devices "
        "(accelerate).",
        "--device",
    ),
]
Compile = Annotated[
    bool,
    _option(_MODELS, "torch.compile the models: minutes to start, faster steps.", "--compile"),
]
PresetName = Annotated[str, _option(_LEARNING, f"{_names(PRESETS)}.", "--preset")]
Lengths = Annotated[
    str | None,
    _option(_LEARNING, "Draft lengths to choose among: `1,2,4,8`.", "--plan-lengths"),
]
PolicySpec = Annotated[
    str | None,
    _option(_LEARNING, f"{_names(registry.POLICIES)}; options as `ucb1:beta=0.01`.", "--policy"),
]
RewardSpec = Annotated[str | None, _option(_LEARNING, f"{_names(registry.REWARDS)}.", "--reward")]
FeedbackSpec = Annotated[
    str | None, _option(_LEARNING, f"{_names(registry.FEEDBACKS)}.", "--feedback")
]
Rules = Annotated[
    list[str] | None,
    _option(_LEARNING, f"Stop rule: {_names(registry.GUIDES)}; repeatable.", "--rule", "--guide"),
]
Trees = Annotated[
    list[str] | None,
    _option(
        _LEARNING,
        "Shape of drafts: TOP_KxTOTAL_TOKENS as `4x16`, or `chain`; repeatable.",
        "--tree",
    ),
]
Scope = Annotated[
    str,
    _option(
        _LEARNING,
        "auto = each learns from those before it; request = each learns anew; session or "
        "task:LABEL = all share what they learn.",
        "--scope",
    ),
]
State = Annotated[
    Path | None,
    _option(_LEARNING, "File where a shared policy's memory is kept from run to run.", "--state"),
]
Temperature = Annotated[float, _option(_SAMPLING, "0 is greedy.", "--temperature")]
TopK = Annotated[int, _option(_SAMPLING, "0 is all tokens.", "--top-k")]
TopP = Annotated[float, _option(_SAMPLING, "1 is all tokens.", "--top-p")]
Penalty = Annotated[float, _option(_SAMPLING, "1 is none.", "--repetition-penalty")]
Seed = Annotated[
    int | None,
    _option(
        _SAMPLING,
        "Seed of the draws; default: other draws each run. Text repeats with presets that do "
        "not look at the clock (the default does).",
        "--seed",
    ),
]
FixedSeed = Annotated[int, _option(_SAMPLING, "Seed of the draws.", "--seed")]
MaxNewTokens = Annotated[int, _option(_SAMPLING, "Tokens of an answer, at most.")]
Stop = Annotated[
    list[str] | None, _option(_SAMPLING, "A string that ends the answer; repeatable.", "--stop")
]
IgnoreEos = Annotated[
    bool, _option(_SAMPLING, "Go on behind the end-of-text token.", "--ignore-eos")
]
Prompt = Annotated[
    str | None, typer.Argument(help="The text to continue; without it, --file or stdin.")
]
AsChat = Annotated[
    bool,
    _option(_RUNNING, "The prompt is a user's message, for the model's chat template.", "--chat"),
]
System = Annotated[
    str | None, _option(_RUNNING, "A system message before it; implies --chat.", "--system")
]
PromptFile = Annotated[Path | None, _option(_RUNNING, "Read the prompt from a file.", "--file")]
BatchFile = Annotated[
    Path | None,
    _option(_RUNNING, "Many prompts: one a line, or jsonl with `prompt` or `messages`.", "--batch"),
]
BatchSize = Annotated[int, _option(_RUNNING, "Prompts of a batch that run together.")]
Trace = Annotated[Path | None, _option(_RUNNING, "Write each round as a line of jsonl.", "--trace")]
AsJson = Annotated[
    bool, _option(_RUNNING, "Print one object (with --batch: one a line).", "--json")
]
Threads = Annotated[int, _option(_RUNNING, "Threads for the model's arithmetic.")]
NumSpeculativeTokens = Annotated[
    int | None, _option(_ALIASES, "As --plan-lengths N.", "--num-speculative-tokens")
]
AssistantModel = Annotated[
    str | None, _option(_ALIASES, "As --drafter lm:PATH.", "--assistant-model", metavar="PATH")
]
LookupMin = Annotated[
    int | None,
    _option(_ALIASES, "As --drafter lookup:prompt_lookup_min=N.", "--prompt-lookup-min"),
]
LookupMax = Annotated[
    int | None,
    _option(_ALIASES, "As --drafter lookup:prompt_lookup_max=N.", "--prompt-lookup-max"),
]


def parse_lengths(text: str | None, num_speculative_tokens: int | None) -> list[int] | None:
    """``"1,2,4"`` to lengths; the alias gives one. Raises DraftwiseError for anything else."""
    if num_speculative_tokens is not None:
        if text is not None:
            raise DraftwiseError("give --plan-lengths or --num-speculative-tokens, not both")
        return [num_speculative_tokens]
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise DraftwiseError(
            f"--plan-lengths {text!r}: write whole numbers with commas, such as 1,2,4,8"
        ) from None


def parse_drafters(
    specs: list[str] | None,
    assistant_model: str | None,
    lookup_min: int | None,
    lookup_max: int | None,
) -> list[str] | None:
    """The drafters' specs with what the aliases stand for; None where nothing was said."""
    found = list(specs or [])
    if assistant_model is not None:
        found.append(f"lm:{assistant_model}")
    sizes = {"prompt_lookup_min": lookup_min, "prompt_lookup_max": lookup_max}
    options = ",".join(f"{name}={size}" for name, size in sizes.items() if size is not None)
    if options:
        found = [spec for spec in found if spec != "lookup"]
        found.append(f"lookup:{options}")
    return found or None
