"""Record generations of the zoo for the simulator: every drafter's predictions along the answers.

Held-out prompts of every domain (from ``--skip`` on) are answered; with ``--stream``, any number of
others from the same held-out sources, drawn under that name. Then each drafter processes prompt and
answer once, which gives its alpha, ratio and confidence at each position, its scores on the last
prompt tokens, as in the engine, and the tokens that retrieval would have copied. The arrays are
those of docs/lab/simulator.md, plus the prompts' lengths and last tokens, and the answers' tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from shared.script import options, quiet, track

from draftwise import SamplingParams, Speculator, zoo
from draftwise.bandits.stop_rules import Fixed
from draftwise.controller.rates import WINDOW
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.engine.verify import overlap, ratio
from draftwise.nn.sampling import SampledSpan, answered, warped
from draftwise_lab.zoo.corpus import heldout_stream

DEPTH, PROMPT, PROBE_TOKENS = 16, 16, 32
"""Tokens of a copied draft, scored prompt tokens, and tokens that prompt scoring processes."""


@torch.inference_mode()
def along(model: Any, text: Sequence[int], sampling: SamplingParams) -> tuple[list[Any], Any]:
    """q at positions 1 .. of a text, and [T - 1, 3] its two largest probabilities and entropy."""
    cache = model.new_cache(1, len(text))
    logits = model.extend(cache, [0], [list(text[:-1])], keep=len(text))
    block = logits.last(0, len(text) - 1)
    found = warped(block, [SampledSpan(sampling, len(block), text[:1], 1, text[1:-1])])
    is_greedy = sampling.temperature == 0
    dists = found.tokens.tolist() if is_greedy else list(found.probs.cpu().numpy())
    probs = (block.float() / (sampling.temperature or 1.0)).softmax(-1)
    entropy = torch.special.entr(probs).sum(-1, keepdim=True)
    return dists, torch.cat([probs.topk(2).values, entropy], 1).numpy()


def judged(
    p: Sequence[Any], q: Sequence[Any], text: Sequence[int]
) -> tuple[list[float], list[float]]:
    """alpha and min(1, q/p) at positions 1 .. of the text."""
    pairs = list(zip(p, q, text[1:], strict=False))
    return [min(1.0, overlap(a, b)) for a, b, _ in pairs], [ratio(a, b, t) for a, b, t in pairs]


def copied(
    drafter: Any, text: Sequence[int], start: int, p: Sequence[Any], sampling: SamplingParams
) -> dict[str, Any]:
    """A retrieval drafter's proposals from each position on, and along the end of the prompt."""
    session, num = drafter.start(), len(text) - start
    found = {
        "avail": np.zeros(num, int), "mlen": np.zeros(num, int),
        "propP": np.zeros((num, DEPTH)), "match": np.zeros((num, DEPTH), int),
        "pprop": np.zeros(PROMPT), "pmlen": np.zeros(PROMPT, int),
    }  # fmt: skip
    context = Context(0, list(text[: start - PROMPT]), sampling, np.random.default_rng(0))
    session.open(context, len(text))
    for place in range(start - PROMPT, len(text)):
        context.tokens[:] = text[:place]
        [draft] = answered(session.propose([DraftTask(context, DEPTH, Fixed())]))
        length = session.match_length(context)
        tokens = draft.tokens.tolist()
        probs = [_prob(p, place + d, token) for d, token in enumerate(tokens)]
        if place < start:
            found["pmlen"][place - start] = length
            found["pprop"][place - start] = probs[0] if probs else 0.0
            continue
        row = place - start
        found["avail"][row], found["mlen"][row] = len(tokens), length
        found["propP"][row, : len(tokens)] = probs
        hits = [place + d < len(text) and text[place + d] == t for d, t in enumerate(tokens)]
        found["match"][row, : len(tokens)] = hits
    return found


def _prob(p: Sequence[Any], place: int, token: int) -> float:
    """The target's probability of a token at a position of the text; 0 after the text's end."""
    if place - 1 >= len(p):
        return 0.0
    dist = p[place - 1]
    return float(dist == token) if isinstance(dist, int) else float(dist[token])


def record(spec: Speculator, prompt: str, tokens: int, temperature: float, seed: int) -> Any:
    """One answer's columns; None if its prompt is too short to be scored."""
    head = list(spec.tokenizer(prompt)["input_ids"])
    if len(head) <= PROMPT:
        return None
    result = spec.generate(
        prompt, temperature=temperature, seed=seed, ignore_eos=True,
        max_new_tokens=tokens + DEPTH + 1,
    )  # fmt: skip
    text, start = [*head, *result.tokens], len(head)
    sampling = SamplingParams(temperature)
    p, _ = along(spec.target, text, sampling)
    columns: dict[str, Any] = {"plen": start, "models": {}, "first": {}, "copies": {}}
    before = [-1] * (WINDOW - start) + text[max(0, start - WINDOW) : start]
    columns["tokens"] = np.array([*before, *result.tokens])
    for drafter in spec.drafters:
        own: Any = drafter
        if drafter.retrieves:
            columns["copies"][drafter.name] = copied(own, text, start, p, sampling)
            continue
        q, beliefs = along(own.model, text, sampling)
        alphas, ratios = judged(p, q, text)
        columns["models"][drafter.name] = np.column_stack([alphas, ratios, beliefs])
        head = text[max(0, start - PROBE_TOKENS - 1) : start]
        impression, _ = along(own.model, head, sampling)
        alphas, _ = judged(p[start - len(head) :], impression, head)
        columns["first"][drafter.name] = alphas[-PROMPT:]
    return columns


def arrays(
    found: Sequence[dict[str, Any]], domains: Sequence[str], temperatures: Sequence[float]
) -> Any:
    """All answers' columns as the arrays of a replay file, and tokens [n, WINDOW + P], where short
    prompts are padded in front with -1."""
    models, copies = list(found[0]["models"]), list(found[0]["copies"])
    kept = [
        np.stack([one["models"][name] for name in models], axis=1)[one["plen"] - 1 :]
        for one in found
    ]
    own = np.stack(kept).astype(np.float32)  # [n, P, M, 5]
    result = {
        "fam": np.array(domains), "temp": np.array(temperatures, float),
        "tokens": np.stack([one["tokens"] for one in found]),
        "drafters": np.array([*models, *copies]), "plen": np.array([one["plen"] for one in found]),
        "pgam": np.stack([[one["first"][name] for name in models] for one in found]).swapaxes(1, 2),
    }  # fmt: skip
    for index, key in enumerate(("gam", "r", "conf", "conf2", "ent")):
        result[key] = own[..., index]
    for key in ("avail", "mlen", "propP", "match", "pprop", "pmlen"):
        result[key] = np.stack([[one["copies"][name][key] for name in copies] for one in found])
    return result


def main() -> None:
    args = options(
        __doc__, domains=5, tokens=160, temperature=[0.0],
        skip={"type": int, "default": 0, "help": "held-out prompts left out first"},
        stream={"help": "not the zoo's prompts, but those drawn under this name"},
    )  # fmt: skip
    if args.out is None:
        raise SystemExit("--out FILE.npz: where the recorded arrays go")
    quiet()
    spec = Speculator.from_pretrained("zoo")
    found = []
    for domain in zoo.prompts():
        own = heldout_stream(domain, args.stream) if args.stream else zoo.prompts()[domain]
        chosen = list(islice(own, args.skip, args.skip + args.domains))
        for seed, prompt in enumerate(track(chosen, domain), args.skip):
            for temperature in args.temperature:
                one = record(spec, prompt, args.tokens, temperature, seed)
                if one is not None:
                    found.append((one, domain, temperature))
    np.savez_compressed(args.out, **arrays(*zip(*found, strict=True)))
    print(f"{len(found)} answers of {args.tokens} tokens in {args.out}")


if __name__ == "__main__":
    main()
