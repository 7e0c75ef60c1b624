"""Recurrent and hybrid models: long texts, what taking back costs, what `lookup` gains.

    python -m benchmarks hybrid texts                  # greedy, against `generate`; minutes a type
    python -m benchmarks hybrid tape                   # a rejection against none
    python -m benchmarks hybrid gain ./hybrid-zoo   # made by benchmarks/hybrid_zoo.py
    python -m benchmarks hybrid law                    # chi-square at T = 1, a type of each family

Clock: CPU time of the process, so that others on the machine do not count.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from pathlib import Path
from typing import Any

import torch
import transformers
from shared.results import save
from transformers import CONFIG_MAPPING

from draftwise.nn.check import check_model
from draftwise.nn.model import CausalModel
from draftwise.nn.tiny import ROPE_SWITCH, tiny_config, tiny_module
from draftwise.speculator import Speculator
from draftwise_lab.cli.survey import chi_square

FAMILIES = {
    "gated delta": "qwen3_next",
    "KDA": "kimi_linear",
    "Mamba 1": "jamba",
    "Mamba 2": "granitemoehybrid",
    "convolutions": "lfm2",
    "windows": "gpt_oss",
    "chunks": "llama4_text",
    "longrope": "phi3",
    "tokens read again": "zaya",
}
PROMPTS = [[5, 6, 7, 8] * 4 + [9, 3, 2], [11, 12, 13, 11, 12], [*range(20, 50)]]


def tiny(kind: str, num_positions: int = 0, switch: int = ROPE_SWITCH) -> Any:
    """A tiny random module of a type, of so many positions.

    Phi-3 with longrope, whose second table begins behind ``switch`` tokens.
    """
    config = CONFIG_MAPPING[kind]()
    if kind == "phi3":
        factors = {"short_factor": [1.0, 1.1], "long_factor": [2.0, 4.0]}
        sizes = {"original_max_position_embeddings": 4096, "rope_theta": 1e4}
        config.rope_parameters = {"rope_type": "longrope", **factors, **sizes}
    config = tiny_config(config)
    if kind == "phi3":
        config.original_max_position_embeddings = switch
        config.rope_parameters["original_max_position_embeddings"] = switch
    if num_positions:
        config.get_text_config().max_position_embeddings = num_positions
    return tiny_module(config)


@torch.no_grad()
def widen(module: Any) -> None:
    """Wider projections: for types that say one token for ever otherwise."""
    generator = torch.Generator().manual_seed(4)
    for name, weights in module.named_parameters():
        kept = any(part in name for part in ("q_proj", "k_proj", "dt_proj", "x_proj"))
        if weights.dim() == 2 and "proj" in name and not kept:
            weights.normal_(0, 0.3, generator=generator)


def near(module: Any, noise: float = 0.05) -> Any:
    """A drafter that is often right: the module, disturbed."""
    import copy

    twin = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in twin.parameters():
            spread = noise * float(weights.std()) if weights.numel() > 1 else 0.0
            weights.add_(torch.randn(weights.shape, generator=generator) * spread)
    return twin


def texts(kinds: list[str], num_tokens: int, is_wide: bool) -> None:
    """Greedy text of single and ragged rows, token by token that of ``generate``.

    The library's ``generate`` cannot be asked for some types: each token has to be the likeliest
    one of a forward over all that stands before it, then.
    """
    for kind in kinds:
        module = tiny(kind, num_tokens + 64)
        if is_wide:
            widen(module)
        made = Speculator.from_pretrained(module, [near(module)], policy="fixed:1", lengths=(4,))
        options: dict[str, Any] = {"max_new_tokens": num_tokens, "ignore_eos": True}
        ragged = made.generate(PROMPTS, **options)
        alone = made.generate(PROMPTS[0], **options)
        try:
            expected, by = [_generate(module, prompt, num_tokens) for prompt in PROMPTS], "generate"
        except (ValueError, TypeError, AttributeError):
            pairs = zip(PROMPTS, ragged, strict=True)
            expected, by = [_likeliest(module, p, r.tokens) for p, r in pairs], "forwards"
        accepted = sum(r.stats.num_accepted for r in ragged)
        share = accepted / max(1, sum(r.stats.num_drafted for r in ragged))
        same = [r.tokens == e for r, e in zip(ragged, expected, strict=True)]
        print(
            f"{kind:20} alone {alone.tokens == expected[0]}, ragged {sum(same)} of {len(same)}, "
            f"{len(alone.tokens)} tokens by {by}, {share:.2f} accepted, "
            f"{len(set(expected[0]))} different tokens",
            flush=True,
        )


def _likeliest(module: Any, prompt: list[int], text: list[int]) -> list[int]:
    """The likeliest token at each place of a text."""
    with torch.inference_mode():
        logits = module(input_ids=torch.tensor([[*prompt, *text[:-1]]]), use_cache=False).logits[0]
    return [int(token) for token in logits[len(prompt) - 1 :].argmax(-1)]


def _generate(module: Any, prompt: list[int], num_tokens: int) -> list[int]:
    output = module.generate(
        torch.tensor([prompt]),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return [int(token) for token in output[0, len(prompt) :]]


@torch.inference_mode()
def tape(kinds: list[str], rounds: int = 60) -> None:
    """A verification of 5 tokens after one of which 3 were kept, over one after which all were.

    What taking back costs falls to the next forward, which makes the state that it starts from.
    """
    for kind in kinds:
        model = CausalModel(tiny(kind), kind)
        check_model(model)
        ratios = []
        caches = [model.new_cache(1) for _ in range(2)]
        for cache in caches:
            model.extend(cache, [0], [list(range(1, 21))], keep=1)
        for _ in range(rounds):
            spent = []
            for cache, kept in zip(caches, (3, 5), strict=True):
                start = time.process_time()
                model.extend(cache, [0], [[3, 4, 5, 6, 7]], keep=5)
                length = cache.lengths[0] - 5 + kept
                cache.settle([0], [length])
                spent.append(time.process_time() - start)
            ratios.append(spent[0] / spent[1])
        print(f"{kind:20} {statistics.median(ratios):.3f} of one without a rejection", flush=True)


def gain(folder: str, out: Path | None, num_texts: int = 6, num_tokens: int = 64) -> None:
    """Tokens a CPU second with `lookup` over plain decoding, on texts that are copied.

    Each prompt is a document of the zoo's corpus and its first tokens again.
    """
    from draftwise.nn.load import load_tokenizer
    from draftwise_lab.zoo.corpus import batches

    tokenizer = load_tokenizer(folder)
    documents = batches(tokenizer, seed=7, rows=num_texts, context=96)(0).tolist()
    prompts = [[*document, *document[:24]] for document in documents]
    made: dict[str, Speculator] = {
        "plain": Speculator.from_pretrained(folder, [], preset="plain"),
        "lookup": Speculator.from_pretrained(folder, ["lookup"]),
    }
    spent: dict[str, list[float]] = {name: [] for name in made}
    same = 0
    for prompt in [prompts[0], *prompts]:  # the first is for warmth alone
        found = {}
        for name, speculator in made.items():
            start = time.process_time()
            found[name] = speculator.generate(
                prompt, max_new_tokens=num_tokens, ignore_eos=True
            ).tokens
            spent[name].append(time.process_time() - start)
        same += found["plain"] == found["lookup"]
    ratios = [a / b for a, b in zip(spent["plain"][1:], spent["lookup"][1:], strict=True)]
    total = sum(spent["plain"][1:]) / sum(spent["lookup"][1:])
    shown = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"{total:.2f}x plain ({shown}); {same} of {len(prompts) + 1} texts equal")
    texts = len(prompts) + 1
    save(out, {"times_plain": total, "by_text": ratios, "equal": same, "texts": texts})


@torch.inference_mode()
def law(kinds: list[str], is_wide: bool, num: int = 2000, rows: int = 50) -> None:
    """The first two tokens of answers at T = 1, after a prompt of two in ragged rows; drafts of 4.

    The second one is drawn from a state that was taken back wherever the first was rejected.
    """
    for kind in kinds:
        module = tiny(kind, switch=len(PROMPTS[1]))
        if is_wide:
            widen(module)
        drafter = near(module, 0.15)
        made = Speculator.from_pretrained(module, [drafter], policy="fixed:1", lengths=(4,))
        size, accepted, drafted = made.target.vocab_size, 0, 0
        counts = torch.zeros(size, size)
        first_seed = zlib.crc32(kind.encode())
        for start in range(0, 2 * num, rows):
            prompts = [PROMPTS[i % 2] for i in range(rows)]
            seeds = list(range(first_seed + start, first_seed + start + rows))
            results = made.generate(
                prompts, max_new_tokens=5, ignore_eos=True, temperature=1.0, seed=seeds
            )
            for result in results[1::2]:
                counts[result.tokens[0], result.tokens[1]] += 1
                accepted += result.stats.num_accepted
                drafted += result.stats.num_drafted
        texts = [PROMPTS[1], *([*PROMPTS[1], token] for token in range(size))]
        last = [
            module(input_ids=torch.tensor([text]), use_cache=False).logits[0, -1] for text in texts
        ]
        laws = torch.softmax(torch.stack(last).double(), -1)
        expected = laws[0][:, None] * laws[1:] * counts.sum()
        p = chi_square(counts.flatten().numpy(), expected.flatten().numpy())
        print(f"{kind:20} p = {p:.3f} over {int(counts.sum())} answers, ", end="")
        print(f"{accepted / drafted:.2f} of the drafts accepted", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["texts", "tape", "gain", "law"])
    parser.add_argument("names", nargs="*", help="types, or for gain the model's folder")
    parser.add_argument("--wide", action="store_true", help="wider projections")
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--out", type=Path, help="where gain writes its numbers")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    kinds = args.names or list(FAMILIES.values())
    if args.what == "texts":
        texts(kinds, args.tokens, args.wide)
    elif args.what == "tape":
        tape(kinds[:4] if not args.names else kinds)
    elif args.what == "law":
        law(kinds, args.wide)
    else:
        gain(args.names[0], args.out)


if __name__ == "__main__":
    main()
