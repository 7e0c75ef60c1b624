"""draftwise with and without torch.compile on larger targets: tokens a second, and phases.

    python -m benchmarks large --size 59M --dtype bfloat16
    python -m benchmarks large --inflate 48              # the zoo's target, made dearer
    python -m benchmarks large --size 170M --device cuda

The pair is random and made to agree: the drafter is the target's first layers, and the branches of
all layers behind them are scaled down. All methods answer the same prompts, in turns, greedily;
ratios have bootstrap intervals over prompts. Compiling is done before, and its seconds are told.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import logging
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shared.paired import Method, measure, report
from shared.results import COMMIT, save
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwise import Speculator, zoo
from draftwise.bench.contestants import Asked, PeerContestant
from draftwise.bench.environment import environment
from draftwise.bench.methods import Peer, parse_method
from draftwise.drafters import model_session
from draftwise.engine import verification
from draftwise.nn.attention import attend_raggedly
from draftwise.nn.cpu.compiled import WIDTHS
from draftwise.nn.load import load_model
from draftwise.pool import models_of
from draftwise.presets import preset

BASE = "model.generate"
SIZES = {"59M": (16, 512, 1536, 8, 4), "170M": (13, 1024, 2816, 16, 8)}
"""Layers, width, width within, heads, heads of keys and values."""
VOCAB, DRAFTER_LAYERS = 8192, 2
LONGEST = 230
"""Tokens of a zoo prompt with its answer: all fit one size of compiled forwards."""


def random_pair(size: str, epsilon: float) -> tuple[Any, Any]:
    """A target and its first layers. Wide q and k keep the text from cycling."""
    layers, width, inner, heads, groups = SIZES[size]
    torch.manual_seed(0)

    def build(num_layers: int) -> Any:
        config = LlamaConfig(
            vocab_size=VOCAB, hidden_size=width, intermediate_size=inner,
            num_hidden_layers=num_layers, num_attention_heads=heads, num_key_value_heads=groups,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()

    target, drafter = build(layers), build(DRAFTER_LAYERS)
    with torch.no_grad():
        for index, layer in enumerate(target.model.layers):
            for weights in (layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight):
                weights.normal_(0, 0.12)
            if index >= DRAFTER_LAYERS:
                layer.self_attn.o_proj.weight.mul_(epsilon)
                layer.mlp.down_proj.weight.mul_(epsilon)
        target.lm_head.weight.mul_(8)
    drafter.load_state_dict(target.state_dict(), strict=False)
    return target, drafter


def inflated(module: Any, num: int) -> Any:
    """The same text at a larger cost: ``num`` layers more, copies whose outputs are zero."""
    module = copy.deepcopy(module)
    layers = module.model.layers
    with torch.no_grad():
        for index in range(num):
            extra = copy.deepcopy(layers[index % module.config.num_hidden_layers])
            extra.self_attn.layer_idx = len(layers)
            extra.self_attn.o_proj.weight.zero_()
            extra.mlp.down_proj.weight.zero_()
            layers.append(extra)
    module.config.num_hidden_layers = len(layers)
    return module


def models(args: argparse.Namespace) -> tuple[Any, list[Any], list[list[int]]]:
    """Target, drafters and prompts."""
    dtype = getattr(torch, args.dtype)
    if args.inflate is not None:
        path = zoo.target_path()
        target = inflated(load_model(str(path), device=args.device).module, args.inflate)
        home = Speculator.from_pretrained("zoo", [])
        texts = [text for found in zoo.prompts().values() for text in found[: args.prompts]]
        prompts = [home.tokenizer(text)["input_ids"] for text in texts]
        prompts = [prompt for prompt in prompts if len(prompt) + args.tokens <= LONGEST]
        drafters = ["zoo:generalist", "lookup"]
        return target.to(args.device, dtype), drafters, prompts
    target, drafter = (m.to(args.device, dtype) for m in random_pair(args.size, args.epsilon))
    attend_raggedly(target)
    attend_raggedly(drafter)
    random = np.random.default_rng(0)
    prompts = random.integers(0, VOCAB, (args.prompts, args.context)).tolist()
    return target, [drafter], prompts


def speculators(
    target: Any, drafters: list[Any], args: argparse.Namespace
) -> dict[str, Speculator]:
    """draftwise as it comes and plain decoding, each as it is and compiled, on the same weights."""
    found = {}
    suffixes = {"": False} if args.no_compile else {"": False, ", compiled": True}
    for suffix, is_compiled in suffixes.items():
        made = Speculator.from_pretrained(target, drafters, device=args.device, compile=is_compiled)
        found["draftwise plain" + suffix] = Speculator(made.target, None, [], preset("plain"))
        found["draftwise" + suffix] = made
    return found


def answer(spec: Speculator, prompt: list[int], num_tokens: int) -> list[int]:
    """draftwise's own."""
    return list(spec.generate(prompt, max_new_tokens=num_tokens, ignore_eos=True).tokens)


def peer(base: Speculator, way: str, num_tokens: int) -> Method:
    """One of transformers' ways."""
    parsed = parse_method(way)
    assert isinstance(parsed, Peer)
    contestant = PeerContestant(parsed, base, Asked(num_tokens))
    return lambda prompt: contestant.answer(prompt, 0).tokens


@torch.inference_mode()
def warm_up(ours: dict[str, Speculator], prompts: list[list[int]], num_tokens: int) -> float:
    """Compile every width that these prompts can need, and answer once; the seconds it took."""
    made = list(ours.values())[-1]
    for model in (made.target, *models_of(made.drafters)):
        for prompt in prompts:
            cache = model.new_cache(1, len(prompt) + num_tokens + 18)
            model.extend(cache, [0], [prompt], keep=1)
            for width in WIDTHS:
                cache.lengths[0] = len(prompt)
                model.extend(cache, [0], [[5] * width], keep=1)
    for spec in ours.values():
        answer(spec, prompts[0], num_tokens)
    return made.compiling()[0]


def by_phase(spec: Speculator, prompts: list[list[int]], num_tokens: int) -> dict[str, float]:
    """Milliseconds of a round: forwards of target and drafters, distributions, and the rest."""
    seconds: Counter[str] = Counter()

    def timed(label: str, function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            output = function(*args, **kwargs)
            seconds[label] += time.perf_counter() - start
            return output

        return run

    with ExitStack() as stack:
        wrapped = [("target forward", spec.target, "_forward")]
        wrapped += [("draft forward", m, "_forward") for m in models_of(spec.drafters)]
        wrapped += [("distributions", room, "warped") for room in (verification, model_session)]
        for label, owner, name in wrapped:
            usual = getattr(owner, name)
            stack.enter_context(patch.object(owner, name, timed(label, usual)))
        emitted, wall = [], 0.0
        for prompt in prompts:
            generation = iter(spec.start([prompt], max_new_tokens=num_tokens, ignore_eos=True))
            before = seconds.copy()
            next(generation)  # with the prompt
            seconds.update({key: before[key] - seconds[key] for key in seconds})
            start = time.perf_counter()
            emitted += [round_.num_emitted for round_ in generation]
            wall += time.perf_counter() - start
    seconds["rest"] = wall - sum(seconds.values())
    ms = {key: round(1e3 * s / len(emitted), 2) for key, s in seconds.items()}
    return ms | {"tokens a round": round(float(np.mean(emitted)), 2)}


def ties(module: Any, prompt: list[int], found: list[int]) -> tuple[int, float]:
    """Answered tokens that a forward of the whole text ranks second or worse; their largest gap."""
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *found]], device=module.device)
        logits = module(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    said = logits.gather(1, ids[0, len(prompt) :, None])[:, 0]
    gaps = logits.max(-1).values - said
    return int((gaps > 0).sum()), float(gaps.max())


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one pair."""
    target, drafters, prompts = models(args)
    ours = speculators(target, drafters, args)
    base = ours["draftwise"]
    compile_s = warm_up(ours, prompts, args.tokens)
    name = base.drafters[0].name
    ways = [f"transformers:{name}x{n}{w}" for n in (4, 8) for w in ("", "/confidence")]
    methods: dict[str, Method] = {BASE: peer(base, "transformers", args.tokens)}
    methods |= {way: peer(base, way, args.tokens) for way in ways}
    methods |= {n: functools.partial(_said, spec, args.tokens) for n, spec in ours.items()}
    timing = measure(methods, prompts, args.repeats, BASE)
    phases = {n: by_phase(spec, prompts, args.tokens) for n, spec in ours.items()}
    table = Table("ms a round", *next(reversed(phases.values())))
    for n, row in phases.items():
        table.add_row(n, *(str(row.get(key, "")) for key in next(reversed(phases.values()))))
    checked = {n: method for n, method in methods.items() if n not in ways}
    found = {n: [ties(target, p, method(p)) for p in prompts] for n, method in checked.items()}
    result = {
        "methods": report(timing, BASE, f"{args.name}, {args.dtype}, {args.device}"),
        "ms_per_round": phases,
        "compile_s": round(compile_s, 1),
        "tokens": len(prompts) * args.tokens,
        "not_the_argmax": {n: sum(num for num, _ in rows) for n, rows in found.items()},
        "largest_gap": {n: round(max(gap for _, gap in rows), 4) for n, rows in found.items()},
    }
    Console().print(table)
    return result


def _said(spec: Speculator, num_tokens: int, prompt: list[int]) -> list[int]:
    return answer(spec, prompt, num_tokens)


def main() -> None:
    """Measure one pair; a file that is there keeps its other pairs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="59M", help="of a random pair")
    parser.add_argument("--epsilon", type=float, default=0.05, help="of the layers behind")
    parser.add_argument("--inflate", type=int, help="the zoo's target with so many layers more")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--no-compile", action="store_true", help="leave compiled models out")
    parser.add_argument("--context", type=int, default=24, help="tokens of a random prompt")
    parser.add_argument("--prompts", type=int, default=5, help="or, of the zoo's, a domain")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", help="JSON file for the results")
    args = parser.parse_args()
    random, inflated_ = f"{args.size}, prompts of {args.context}", f"zoo + {args.inflate} layers"
    args.name = random if args.inflate is None else inflated_
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    earlier = {}
    if args.out and Path(args.out).exists():
        earlier = json.loads(Path(args.out).read_text())["runs"]
    made = run(args) | {
        "command": " ".join(sys.argv),
        "cpu": environment(1)["cpu"],
        "commit": COMMIT,
    }
    save(args.out, {"runs": earlier | {f"{args.name} {args.dtype} {args.device}": made}})


if __name__ == "__main__":
    main()
