"""``draftwise serve``: an OpenAI-compatible server on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from draftwise.cli import options as o
from draftwise.cli.failures import quiet, refusals, refused_values, say
from draftwise.cli.load import Wanted, check, load, read_template
from draftwise.engine.memory import hold
from draftwise.install import hint
from draftwise.types import DraftwiseError

_LISTEN, _LIMITS = "Listening", "Limits"


def _option(panel: str, help_: str, *names: str, **more: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, **more)


Host = Annotated[str, _option(_LISTEN, "Address to listen on; others reach 0.0.0.0.")]
Port = Annotated[int, _option(_LISTEN, "Port; 0 is any free one.")]
Names = Annotated[
    list[str] | None,
    _option(_LISTEN, "What requests call the model; repeatable.", "--served-model-name"),
]
Keys = Annotated[
    list[str] | None,
    _option(_LISTEN, "Key that clients send; repeatable.", "--api-key", envvar="DRAFTWISE_API_KEY"),
]
AllowedHosts = Annotated[
    list[str] | None,
    _option(
        _LISTEN,
        "Name by which clients may address the server; repeatable, * is any. At 127.0.0.1 only "
        "localhost is, unless given.",
        "--allowed-host",
    ),
]
Origins = Annotated[
    list[str] | None,
    _option(
        _LISTEN,
        "Origin of web pages that may use the API, such as http://localhost:3000; repeatable, * "
        "is any.",
        "--cors-origin",
    ),
]
LogFormat = Annotated[str, _option(_LISTEN, "text or json, on stderr.", "--log-format")]
Trace = Annotated[
    Path | None,
    _option(
        _LISTEN,
        "Write each round as a line of jsonl, for `advise` and `replay`; without any text.",
        metavar="FILE",
    ),
]
Template = Annotated[
    Path | None,
    _option("Models", "A Jinja file in place of the tokenizer's chat template."),
]
MaxRows = Annotated[
    int, _option(_LIMITS, "Requests that run together.", "--max-rows", "--max-num-seqs")
]
MaxBytes = Annotated[int | None, _option(_LIMITS, "Bytes of keys and values, at most.")]
MaxQueue = Annotated[int, _option(_LIMITS, "Requests that wait; more get 429.")]
MaxBody = Annotated[int, _option(_LIMITS, "Bytes of a request's body.")]
MaxPrompt = Annotated[int | None, _option(_LIMITS, "Tokens of a prompt.")]
MaxNew = Annotated[int | None, _option(_LIMITS, "Tokens of an answer.", "--max-new-tokens")]
Deadline = Annotated[float | None, _option(_LIMITS, "Seconds that a request may take.")]
Patience = Annotated[float, _option(_LIMITS, "Seconds until a reader that does not read goes.")]
StateEvery = Annotated[float, _option("Learning", "Seconds between two writes of --state.")]
StuckAfter = Annotated[
    float, _option(_LIMITS, "Seconds of one step after which /health answers 503.")
]
Drain = Annotated[float, _option(_LIMITS, "Seconds for requests to finish at SIGTERM.")]


@refusals()
def serve(
    target: o.Target = "zoo",
    drafter: o.Drafters = None,
    preset: o.PresetName = "draftwise",
    plan_lengths: o.Lengths = None,
    policy: o.PolicySpec = None,
    reward: o.RewardSpec = None,
    feedback: o.FeedbackSpec = None,
    rule: o.Rules = None,
    tree: o.Trees = None,
    scope: o.Scope = "auto",
    state: o.State = None,
    state_every: StateEvery = 20.0,
    seed: o.Seed = 0,
    dtype: o.Dtype = "auto",
    device: o.Device = "auto",
    compile_: o.Compile = False,
    threads: o.Threads = 1,
    chat_template: Template = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    served_model_name: Names = None,
    api_key: Keys = None,
    allowed_host: AllowedHosts = None,
    cors_origin: Origins = None,
    log_format: LogFormat = "text",
    trace: Trace = None,
    max_rows: MaxRows = 16,
    max_bytes: MaxBytes = None,
    max_queue: MaxQueue = 64,
    max_body: MaxBody = 4 * 2**20,
    max_prompt_tokens: MaxPrompt = None,
    max_new_tokens: MaxNew = None,
    deadline: Deadline = None,
    patience: Patience = 60.0,
    stuck_after: StuckAfter = 60.0,
    drain: Drain = 30.0,
) -> None:
    """Answer OpenAI's API at http://127.0.0.1:8000/v1, faster while it runs; a live page at /."""
    _check_installed()
    wanted = Wanted(
        target, drafter, preset, policy, reward, feedback, rules=rule, trees=tree, dtype=dtype,
        lengths=o.parse_lengths(plan_lengths, None), device=device, compile=compile_, scope=scope,
        seed=seed, threads=threads,
    )  # fmt: skip
    limits = {"max_prompt_tokens": max_prompt_tokens, "max_new_tokens": max_new_tokens}
    counts = limits | {"max_rows": max_rows, "max_bytes": max_bytes, "max_body": max_body}
    _check_counts(counts, max_queue)
    _check_seconds(
        {"deadline": deadline, "patience": patience, "stuck_after": stuck_after}, least=0.001
    )
    _check_seconds({"drain": drain, "state_every": state_every}, least=0.0)
    about: dict[str, Any] = {"max_rows": max_rows, "max_bytes": max_bytes}
    about |= {"max_queue": max_queue, "max_body": max_body, "patience_s": patience}
    about |= {"drain_s": drain, "state": state, "state_every_s": state_every}
    about |= {"stuck_s": stuck_after, "origins": cors_origin or (), "trace": trace}
    with quiet(), refused_values():
        check(replace(wanted, state=state))
        if trace is not None:
            trace.open("a").close()  # refused before a model is loaded
        from draftwise.serve.listen import bind, hosts_of
        from draftwise.serve.logs import set_up

        set_up(log_format)
        template = None if chat_template is None else read_template(chat_template)
        listener = bind(host, port)
        from draftwise.serve.parse import Limits
        from draftwise.serve.run import Settings
        from draftwise.serve.run import serve as answer

        settings = Settings(
            models=tuple(served_model_name or [Path(target).name or target]),
            keys=tuple(api_key or ()),
            limits=Limits(**limits, deadline_s=deadline),
            examples=_examples(target),
            chat_template=template,
            hosts=hosts_of(host, allowed_host or []),
            **about,
        )
    with quiet(), hold(state), listener:
        speculator = load(wanted)
        if api_key is None and host not in {"127.0.0.1", "localhost", "::1"}:
            say(f"every client that reaches {host} may ask: give --api-key", style="yellow")
        answer(speculator, settings, listener)


def _examples(target: str) -> dict[str, str]:
    """A prompt of each kind that the bundled model has learnt."""
    if target != "zoo":
        return {}
    from draftwise import zoo

    return {domain: prompts[0] for domain, prompts in zoo.prompts().items()}


def _check_installed() -> None:
    needed = ("fastapi", "uvicorn", "prometheus_client", "llguidance")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise DraftwiseError(f"serve needs {', '.join(missing)}: {hint('serve')}")


def _check_seconds(given: Mapping[str, float | None], least: float) -> None:
    for name, value in given.items():
        if value is not None and not least <= value < float("inf"):
            option = f"--{name.replace('_', '-')} {value:g}"
            raise DraftwiseError(f"{option}: it must be a finite number from {least:g}")


def _check_counts(counts: Mapping[str, int | None], max_queue: int) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise DraftwiseError(f"--{name.replace('_', '-')} {value}: it must be 1 or more")
    if max_queue < 0:
        raise DraftwiseError(f"--max-queue {max_queue}: it must be 0 or more")
