"""Options that several commands have, declared once, and their texts turned into values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import typer

from draftwise import registry
from draftwise.cli.load import DTYPES, Wanted
from draftwise.engine.options import request_params
from draftwise.errors import BadValue, shown
from draftwise.presets import PRESETS
from draftwise.specs import BUNDLED
from draftwise.types import DraftwiseError, SamplingParams

_MODELS, _LEARNING, _SAMPLING = "Models", "Learning", "Sampling"
_RUNNING, _ALIASES = "Running", "Aliases (names of vLLM and transformers)"
_COMMON = None
"""The first panel of ``--help``: what most people need."""


def _option(panel: str | None, help_: str, *names: str, **more: Any) -> Any:
    if "known" in more:  # names that the shell can complete
        known = list(more.pop("known"))
        more["autocompletion"] = lambda incomplete: [n for n in known if n.startswith(incomplete)]
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


def _names(table: Any) -> str:
    return ", ".join(table)


_TARGET = _option(
    _COMMON,
    "A model folder (of a PEFT adapter, too), a hub id, a `.gguf` file, `smollm2` or `gemma3` "
    "(pretrained, from extras of those names), or `zoo`, the bundled model.",
    "--target",
    "--model",
    "-m",
    metavar="MODEL",
    known=BUNDLED,
)
Target = Annotated[str, _TARGET]
AnyTarget = Annotated[str | None, _TARGET]
Drafters = Annotated[
    list[str] | None,
    _option(
        _COMMON,
        "`lm:PATH`, `lookup`, `suffix`, `datastore:FILE`, `zoo`, `zoo:NAME`, `smollm2:NAME` or "
        "`NAME=SPEC`; repeatable. Default: `lookup`; with the zoo also its drafters, with "
        "a pretrained target also `suffix` and its head.",
        "--drafter",
        "-d",
        metavar="SPEC",
        known=[*registry.DRAFTERS, *BUNDLED],
    ),
]
CheckTypes = Annotated[
    str | None,
    _option(
        "Checking types of models",
        "Build these types of causal LMs (by commas, `all`, or the `rest` that --write's page does "
        "not have) tiny and random, and say which can be served, how, and why not.",
        "--check",
        metavar="TYPES",
    ),
]
QuickCheck = Annotated[
    bool,
    _option(
        "Checking types of models",
        "The self-check alone, without comparing texts: minutes less.",
        "--quick",
    ),
]
WritePage = Annotated[
    Path | None,
    _option("Checking types of models", "Write what --check found as a Markdown page.", "--write"),
]
Dtype = Annotated[
    str,
    _option(
        _MODELS,
        f"{_names(DTYPES)}; int8 and int4 on CPUs only.",
        "--dtype",
        metavar="TYPE",
        known=DTYPES,
    ),
]
Device = Annotated[
    str,
    _option(
        _MODELS,
        "auto (CUDA if there is a GPU), cpu, cuda, cuda:1, mps, xpu; `map:auto`, `map:balanced`: "
        "the target over all devices (accelerate).",
        "--device",
        metavar="DEVICE",
        known=("auto", "cpu", "cuda", "map:auto"),
    ),
]
Compile = Annotated[
    bool,
    _option(_MODELS, "torch.compile the models: minutes to start, faster steps.", "--compile"),
]
PresetName = Annotated[
    str, _option(_LEARNING, f"{_names(PRESETS)}.", "--preset", metavar="NAME", known=PRESETS)
]
Lengths = Annotated[
    str | None,
    _option(
        _LEARNING, "Draft lengths to choose among: `1,2,4,8`.", "--plan-lengths", metavar="N,N"
    ),
]
PolicySpec = Annotated[
    str | None,
    _option(
        _LEARNING,
        "How to choose drafter and length: `goodput`, `ucb1:beta=0.01`, `fixed:0`, ...; `draftwise "
        f"models` lists all {len(registry.POLICIES)}.",
        "--policy",
        "-p",
        metavar="SPEC",
        known=registry.POLICIES,
    ),
]
RewardSpec = Annotated[
    str | None,
    _option(
        _LEARNING,
        f"{_names(registry.REWARDS)}.",
        "--reward",
        metavar="SPEC",
        known=registry.REWARDS,
    ),
]
FeedbackSpec = Annotated[
    str | None,
    _option(
        _LEARNING,
        f"{_names(registry.FEEDBACKS)}.",
        "--feedback",
        metavar="SPEC",
        known=registry.FEEDBACKS,
    ),
]
Rules = Annotated[
    list[str] | None,
    _option(
        _LEARNING,
        f"When to end a draft early: {_names(registry.GUIDES)}; repeatable.",
        "--rule",
        "--guide",
        metavar="SPEC",
        known=registry.GUIDES,
    ),
]
Trees = Annotated[
    list[str] | None,
    _option(
        _LEARNING,
        "Shape of drafts: TOP_KxTOTAL_TOKENS as `4x16`, or `chain`; repeatable.",
        "--tree",
        metavar="SHAPE",
    ),
]
Scope = Annotated[
    str,
    _option(
        _LEARNING,
        "auto: each learns from those before it; request: each learns by itself; session or "
        "task:LABEL: all share what they learn.",
        "--scope",
        metavar="SCOPE",
        known=("auto", "request", "session", "task:"),
    ),
]
State = Annotated[
    Path | None,
    _option(
        _LEARNING,
        "File where what requests learnt is kept from run to run.",
        "--state",
        metavar="FILE",
    ),
]
Temperature = Annotated[float, _option(_COMMON, "0 is greedy.", "--temperature", "-t", metavar="T")]
TopK = Annotated[int, _option(_SAMPLING, "0 is all tokens.", "--top-k", metavar="K")]
TopP = Annotated[float, _option(_SAMPLING, "1 is all tokens.", "--top-p", metavar="P")]
MinP = Annotated[
    float,
    _option(
        _SAMPLING,
        "Least probability, as a share of the largest; 0 is none.",
        "--min-p",
        metavar="P",
    ),
]
Penalty = Annotated[
    float,
    _option(
        _SAMPLING,
        "Divides logits of tokens in prompt and answer; 1 is none.",
        "--repetition-penalty",
        metavar="X",
    ),
]
PresencePenalty = Annotated[
    float,
    _option(
        _SAMPLING,
        "Subtracted once from logits of tokens in the answer; 0 is none.",
        "--presence-penalty",
        metavar="X",
    ),
]
FrequencyPenalty = Annotated[
    float,
    _option(
        _SAMPLING,
        "Subtracted for each time that a token is in the answer; 0 is none.",
        "--frequency-penalty",
        metavar="X",
    ),
]
LogitBias = Annotated[
    list[str] | None,
    _option(
        _SAMPLING,
        "Added to a token's logit, by its id: `50=-100`; repeatable.",
        "--logit-bias",
        metavar="ID=VALUE",
    ),
]
Seed = Annotated[
    int | None,
    _option(
        _SAMPLING,
        "Seed of the draws; default: other draws each run. Text repeats with presets that do "
        "not look at the clock (the default does).",
        "--seed",
        metavar="N",
    ),
]
FixedSeed = Annotated[int, _option(_SAMPLING, "Seed of the draws.", "--seed", metavar="N")]
MaxNewTokens = Annotated[
    int, _option(_COMMON, "Tokens of an answer, at most.", "--max-new-tokens", "-n", metavar="N")
]
Stop = Annotated[
    list[str] | None,
    _option(_SAMPLING, "A string that ends the answer; repeatable.", "--stop", metavar="TEXT"),
]
IgnoreEos = Annotated[
    bool, _option(_SAMPLING, "Go on after the end-of-text token.", "--ignore-eos")
]
Prompt = Annotated[
    str | None, typer.Argument(help="The text to continue; without it, --file or stdin.")
]
AsChat = Annotated[
    bool,
    _option(_COMMON, "The prompt is a user's message, for the model's chat template.", "--chat"),
]
System = Annotated[
    str | None,
    _option(_COMMON, "A system message before it; implies --chat.", "--system", metavar="TEXT"),
]
ChatTemplate = Annotated[
    Path | None,
    _option(
        _MODELS,
        "A Jinja file in place of the tokenizer's chat template.",
        "--chat-template",
        metavar="FILE",
    ),
]
PromptFile = Annotated[
    Path | None, _option(_COMMON, "Read the prompt from a file.", "--file", "-f", metavar="FILE")
]
BatchFile = Annotated[
    Path | None,
    _option(
        _COMMON,
        "Many prompts: one a line, or jsonl with `prompt` or `messages`.",
        "--batch",
        "-b",
        metavar="FILE",
    ),
]
BatchSize = Annotated[
    int, _option(_RUNNING, "Prompts of a batch that run together.", "--batch-size", metavar="N")
]
Trace = Annotated[
    Path | None,
    _option(_RUNNING, "Write each round as a line of jsonl.", "--trace", metavar="FILE"),
]
AsJson = Annotated[bool, _option(_COMMON, "Print one object (with --batch: one a line).", "--json")]
Speculation = Annotated[
    bool, _option(_RUNNING, "Draft, or decode plainly.", "--speculation/--no-speculation")
]
Allowed = Annotated[
    str | None,
    _option(_RUNNING, "Draft with these of the pool alone, by name.", "--drafters", metavar="N,N"),
]
MaxDraft = Annotated[
    int | None, _option(_RUNNING, "Tokens of a draft, at most.", "--max-draft", metavar="N")
]
Threads = Annotated[
    int, _option(_MODELS, "Threads for the model's arithmetic.", "--threads", metavar="N")
]
NumSpeculativeTokens = Annotated[
    int | None,
    _option(_ALIASES, "As --plan-lengths N.", "--num-speculative-tokens", metavar="N"),
]
AssistantModel = Annotated[
    str | None, _option(_ALIASES, "As --drafter lm:PATH.", "--assistant-model", metavar="PATH")
]
LookupMin = Annotated[
    int | None,
    _option(
        _ALIASES,
        "As --drafter lookup:prompt_lookup_min=N.",
        "--prompt-lookup-min",
        metavar="N",
    ),
]
LookupMax = Annotated[
    int | None,
    _option(
        _ALIASES,
        "As --drafter lookup:prompt_lookup_max=N.",
        "--prompt-lookup-max",
        metavar="N",
    ),
]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the models are computed with."""

    dtype: Dtype = "auto"
    device: Device = "auto"
    threads: Threads = 1


@dataclass(frozen=True, slots=True)
class Learning:
    """What is learnt, how, and from which requests."""

    preset: PresetName = "draftwise"
    policy: PolicySpec = None
    plan_lengths: Lengths = None
    reward: RewardSpec = None
    feedback: FeedbackSpec = None
    rule: Rules = None
    tree: Trees = None
    scope: Scope = "request"
    state: State = None


@dataclass(frozen=True, slots=True)
class Aliases:
    """Options that other programs have for what has a name here already."""

    num_speculative_tokens: NumSpeculativeTokens = None
    assistant_model: AssistantModel = None
    prompt_lookup_min: LookupMin = None
    prompt_lookup_max: LookupMax = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn, and where an answer ends."""

    max_new_tokens: MaxNewTokens = 256
    temperature: Temperature = 0.0
    top_k: TopK = 0
    top_p: TopP = 1.0
    min_p: MinP = 0.0
    repetition_penalty: Penalty = 1.0
    presence_penalty: PresencePenalty = 0.0
    frequency_penalty: FrequencyPenalty = 0.0
    logit_bias: LogitBias = None
    seed: Seed = None
    stop: Stop = None
    ignore_eos: IgnoreEos = False
    speculation: Speculation = True
    drafters: Allowed = None
    max_draft: MaxDraft = None

    def params(self) -> SamplingParams:
        """How tokens are drawn; raises DraftwiseError for what no model could draw from."""
        own = {field.name for field in fields(SamplingParams)}
        given = {name: getattr(self, name) for name in self.__slots__ if name in own}
        with _option_names():
            return SamplingParams(**given | {"logit_bias": parse_biases(self.logit_bias or ())})

    def check(self, vocab_size: int | None = None) -> None:
        """Raise DraftwiseError for what no model, or none of so many tokens, could answer with."""
        sampling = self.params()
        with _option_names():
            request_params("generate", self.request() | {"sampling": sampling})
        largest = max(sampling.logit_bias, default=0)
        if vocab_size is not None and largest >= vocab_size:
            raise DraftwiseError(
                f"--logit-bias {largest}={sampling.logit_bias[largest]:g}: the target's token ids "
                f"are 0 to {vocab_size - 1}"
            )

    def request(self) -> dict[str, Any]:
        """The options of ``Speculator.start`` for one prompt."""
        return {
            "sampling": [self.params()],
            "max_new_tokens": self.max_new_tokens,
            "stop": tuple(self.stop or ()),
            "ignore_eos": self.ignore_eos,
            "seed": self.seed,
            "speculation": self.speculation,
            "drafters": self.drafters.split(",") if self.drafters is not None else None,
            "max_draft": self.max_draft,
        }


def wanted(
    target: str,
    drafters: list[str] | None,
    hardware: Hardware,
    learning: Learning | None = None,
    aliases: Aliases | None = None,
    *,
    compile: bool = False,
    seed: int | None = None,
) -> Wanted:
    """What these options ask to be loaded; raises DraftwiseError for text that is no value."""
    how, other = learning or Learning(), aliases or Aliases()
    return Wanted(
        target,
        parse_drafters(
            drafters, other.assistant_model, other.prompt_lookup_min, other.prompt_lookup_max
        ),
        how.preset,
        how.policy,
        how.reward,
        how.feedback,
        lengths=parse_lengths(how.plan_lengths, other.num_speculative_tokens),
        rules=how.rule,
        trees=how.tree,
        scope=how.scope,
        state=how.state,
        dtype=hardware.dtype,
        device=hardware.device,
        threads=hardware.threads,
        compile=compile,
        seed=seed,
    )


@contextmanager
def _option_names() -> Iterator[None]:
    """Around checks of values: an error names the option as it is typed."""
    try:
        yield
    except BadValue as error:
        option = "--" + error.name.replace("_", "-")
        raise DraftwiseError(f"{option} {shown(error.value)}: it must be {error.must}") from error


def parse_biases(texts: tuple[str, ...] | list[str]) -> dict[int, float]:
    """``"50=-100"`` to a token and what is added to its logit; raises DraftwiseError."""
    found: dict[int, float] = {}
    for text in texts:
        token, equals, value = text.partition("=")
        try:
            if not equals or int(token) in found:
                raise ValueError
            found |= SamplingParams(logit_bias={int(token): float(value)}).logit_bias
        except ValueError:
            raise DraftwiseError(
                f"--logit-bias {text!r}: write ID=VALUE such as 50=-100, each token id once, and a "
                "finite VALUE"
            ) from None
    return found


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
