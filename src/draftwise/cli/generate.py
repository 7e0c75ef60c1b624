"""``draftwise generate``: one prompt or many, text as it comes or as json."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from draftwise.cli import options as o
from draftwise.cli.failures import quiet, refusals, refused_values
from draftwise.cli.load import Wanted, check, check_sampling, holding_state, keeping_memory, load
from draftwise.cli.prompts import Given, as_chat, read_batch, read_prompt
from draftwise.types import DraftwiseError

if TYPE_CHECKING:
    from draftwise.chat import Prompt
    from draftwise.engine.records import TraceWriter
    from draftwise.speculator import Speculator


@refusals()
def generate(
    prompt: o.Prompt = None,
    file: o.PromptFile = None,
    is_chat: o.AsChat = False,
    system: o.System = None,
    target: o.Target = "zoo",
    drafter: o.Drafters = None,
    preset: o.PresetName = "draftwise",
    plan_lengths: o.Lengths = None,
    policy: o.PolicySpec = None,
    reward: o.RewardSpec = None,
    feedback: o.FeedbackSpec = None,
    rule: o.Rules = None,
    tree: o.Trees = None,
    scope: o.Scope = "request",
    state: o.State = None,
    temperature: o.Temperature = 0.0,
    top_k: o.TopK = 0,
    top_p: o.TopP = 1.0,
    repetition_penalty: o.Penalty = 1.0,
    seed: o.Seed = None,
    max_new_tokens: o.MaxNewTokens = 256,
    stop: o.Stop = None,
    ignore_eos: o.IgnoreEos = False,
    batch: o.BatchFile = None,
    batch_size: o.BatchSize = 8,
    trace: o.Trace = None,
    as_json: o.AsJson = False,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    compile_: o.Compile = False,
    threads: o.Threads = 1,
    num_speculative_tokens: o.NumSpeculativeTokens = None,
    assistant_model: o.AssistantModel = None,
    prompt_lookup_min: o.LookupMin = None,
    prompt_lookup_max: o.LookupMax = None,
) -> None:
    """Complete a prompt with speculative decoding."""
    wanted = Wanted(
        target=target,
        drafters=o.parse_drafters(drafter, assistant_model, prompt_lookup_min, prompt_lookup_max),
        preset=preset,
        policy=policy,
        reward=reward,
        feedback=feedback,
        lengths=o.parse_lengths(plan_lengths, num_speculative_tokens),
        rules=rule,
        trees=tree,
        dtype=dtype,
        device=device,
        compile=compile_,
        scope=scope,
        state=state,
        seed=seed,
        threads=threads,
    )
    sampling = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_new_tokens": max_new_tokens,
        "stop": tuple(stop or ()),
        "ignore_eos": ignore_eos,
    }
    with quiet(), holding_state(state):
        with refused_values():
            prompts = _prompts(prompt, file, batch, batch_size)
            if is_chat or system is not None:
                prompts = [as_chat(given, system) for given in prompts]
            check(wanted)
            check_sampling(sampling)
            _check_writable(trace)
        speculator = load(wanted)
        from draftwise.cli.answer import Job, run_batch, run_single
        from draftwise.engine.records import TraceWriter

        # all prompts before any answer, and before an earlier trace is overwritten
        texts = [_encoded(given, speculator) for given in prompts]
        with refused_values():
            writer = None if trace is None else TraceWriter(trace)
        job = Job(speculator, sampling, writer, as_json)
        with keeping_memory(speculator, state), _closing(writer):
            code = run_single(job, texts[0]) if batch is None else run_batch(job, texts, batch_size)
    raise SystemExit(code)


def _prompts(
    prompt: str | None, file: Path | None, batch: Path | None, batch_size: int
) -> list[Given]:
    """The prompts, wherever they come from."""
    if batch is None:
        prompts = [Given(read_prompt(prompt, file))]
    elif prompt is not None or file is not None:
        raise DraftwiseError("give one prompt, or many with --batch, not both")
    else:
        prompts = read_batch(batch)
    if batch_size < 1:
        raise DraftwiseError(f"--batch-size {batch_size}: it must be 1 or more")
    return prompts


def _encoded(given: Given, speculator: Speculator) -> Prompt:
    """One prompt as token ids; DraftwiseError names the line of a file."""
    from draftwise.engine.prompts import encode_all

    try:
        return encode_all(given.prompt, speculator.tokenizer, speculator.target)[0]
    except DraftwiseError as error:
        if given.where:
            raise DraftwiseError(f"{given.where}: {error}") from error
        raise


@contextmanager
def _closing(writer: TraceWriter | None) -> Iterator[None]:
    """Whatever ends the work, the trace is closed."""
    try:
        yield
    finally:
        if writer is not None:
            writer.close()


def _check_writable(trace: Path | None) -> None:
    """Refuse a trace that cannot be written before any work; what is there stays for now."""
    if trace is not None:
        trace.open("a").close()
