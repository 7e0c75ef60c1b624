"""``draftwise models --check``: build every causal-LM type with tiny random weights, and test it.

The list is split into pieces, each of which runs in a process that writes one line of JSON per
type, so a crash costs one type. ``python -m draftwise_lab.cli.survey TYPE ...`` runs one piece.
"""

from __future__ import annotations

import copy
import difflib
import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from draftwise.bench.results import command, environment
from draftwise.cli.failures import Output
from draftwise.nn.attention import attend_raggedly
from draftwise.nn.model import CausalModel
from draftwise.nn.tiny import tiny_config, tiny_module
from draftwise.speculator import Speculator
from draftwise.types import DraftwiseError
from draftwise_lab.bench.commit import commit

PIECE = 64
"""Types per process."""
NUM_TOKENS = 300
"""Tokens of each answer that is compared."""
_LENGTH = 3
_SAMPLES, _ROWS = 192, 48
_FALSE_ALARM = 1e-4
_LARGEST_GAP = 1e-4
"""Logit gap that rounding may reverse, relative to the largest logit."""
_PROMPTS = ([5, 6, 7, 8, 5, 6, 7], [11], [*range(20, 90)])  # the last is prefilled in one forward
_QUICK = "--quick"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one type; ``reason`` is empty if the type is supported. rows: how a batch of
    several rows runs. law: the p-value of one token's sampled distribution; None = texts were not
    compared."""

    type: str
    reason: str = ""
    has_states: bool = False
    rows: str = ""
    has_trees: bool = False
    kinds: tuple[str, ...] = ()
    law: float | None = None

    @property
    def is_served(self) -> bool:
        return not self.reason


def all_types() -> list[str]:
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def survey(types: Sequence[str], seen: Callable[[Finding], None], is_quick: bool) -> list[Finding]:
    """Check each type, in order, and call ``seen`` with each finding. is_quick: the self-check
    alone, without texts."""
    found: dict[str, Finding] = {}
    left = list(types)
    while left:
        piece = left[:PIECE]
        for finding in _piece(piece, is_quick):
            found[finding.type] = finding
            seen(finding)
        left = [one for one in left if one not in found]
        if left and left[0] == piece[0]:  # the process ended before its first line of output
            found[left[0]] = Finding(left[0], "the process that tried it crashed")
            seen(found[left.pop(0)])
    return [found[one] for one in types]


def _piece(types: Sequence[str], is_quick: bool) -> Iterator[Finding]:
    """Yield the findings of one process, until it ends or crashes."""
    options = [_QUICK] if is_quick else []
    command = [sys.executable, "-W", "ignore", "-m", "draftwise_lab.cli.survey", *options, *types]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b"{"):
                told = json.loads(line)
                yield Finding(**told | {"kinds": tuple(told["kinds"])})


def check_type(name: str, is_quick: bool = False, num_tokens: int = NUM_TOKENS) -> Finding:
    """Build a type with tiny random weights, run the self-check, and compare its speculative text
    with plain forwards. num_tokens: tokens of each compared answer."""
    try:
        module = tiny_module(tiny_config(transformers.CONFIG_MAPPING[name]()))
    except Exception as error:
        return Finding(name, f"not built tiny: {_short(error)}")
    _sharpen(module)
    try:
        return _try(name, module, 0 if is_quick else num_tokens)
    except DraftwiseError as error:
        said = _short(error).partition(". docs/")[0]
        return Finding(name, said.partition(": ")[2] if said.startswith("cannot") else said)
    except Exception as error:
        return Finding(name, f"{type(error).__name__}: {_short(error)}")


def _try(name: str, module: Any, num_tokens: int) -> Finding:
    """Run the self-check and compare greedy text, single and ragged, and one token's distribution.
    num_tokens: 0 = the self-check alone."""
    drafter = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weights in drafter.parameters():
            spread = 0.05 * float(weights.std()) if weights.numel() > 1 else 0.0
            weights.add_(torch.randn(weights.shape, generator=generator) * spread)
    if module.config._attn_implementation == "sdpa":
        attend_raggedly(module)
    made = Speculator.from_pretrained(
        module, [drafter], policy="fixed:1", lengths=(_LENGTH,), feedback="bandit"
    )
    model, reason, law = made.target, "", None
    if num_tokens:
        reason = _greedy_differs(made, module, num_tokens)
        law = None if reason else _law(made, module, zlib.crc32(name.encode()))
    if law is not None and law <= _FALSE_ALARM:
        reason = f"the law of a sampled token differs: p = {law:.1g}"
    rows = "packed" if model.packs else "alone" if model.is_alone else "padded"
    return Finding(name, reason, model.has_states, rows, model.serves_trees, _kinds(model), law)


def _greedy_differs(made: Any, module: Any, num_tokens: int) -> str:
    """Describe the first text that is not the argmax of plain forwards; empty if there is none."""
    options: dict[str, Any] = {"max_new_tokens": num_tokens, "ignore_eos": True}
    alone = [made.generate(_PROMPTS[0], **options)]
    ragged = made.generate(list(_PROMPTS), **options)
    for who, results in (("one row", alone), ("ragged rows", ragged)):
        for prompt, result in zip(_PROMPTS, results, strict=False):
            if not result.stats.num_drafted:
                return "nothing was drafted"
            if len(result.tokens) < num_tokens:
                return f"greedy text of {who} ended after {len(result.tokens)} tokens"
            gap = _largest_gap(module, prompt, result.tokens)
            if gap > _LARGEST_GAP:
                return f"greedy text of {who} is not the target's: a logit {gap:.2g} below the best"
    return ""


def _largest_gap(module: Any, prompt: Sequence[int], text: Sequence[int]) -> float:
    """The largest gap between the best and the chosen logit, relative to the largest logit."""
    logits = _plain(module, [*prompt, *text[:-1]])[len(prompt) - 1 :]
    chosen = logits.gather(1, logits.new_tensor(text).long()[:, None])[:, 0]
    return float(((logits.amax(1) - chosen) / logits.abs().amax().clamp_min(1e-6)).max())


def _law(made: Any, module: Any, first_seed: int) -> float:
    """The p-value at T = 1 of an answer's first drafted token against plain forwards. first_seed:
    differs by type, or all types' p-values would be equal."""
    prompt = _PROMPTS[0]
    first = torch.softmax(_plain(module, prompt)[-1].double(), -1).numpy()
    counts = np.zeros(len(first))
    for start in range(0, _SAMPLES, _ROWS):
        seeds = list(range(first_seed + start, first_seed + start + _ROWS))
        options = {"max_new_tokens": 2, "ignore_eos": True, "temperature": 1.0, "seed": seeds}
        for result in made.generate([prompt] * _ROWS, **options):
            counts[result.tokens[0]] += 1
    return chi_square(counts, first * counts.sum())


def chi_square(counts: Any, expected: Any) -> float:
    """The p-value of Pearson's test; adjacent classes are merged until each expects 8 samples."""
    classes = np.minimum(np.cumsum(expected) // 8.0, expected.sum() // 8.0 - 1).astype(int)
    seen, wanted = np.bincount(classes, counts), np.bincount(classes, expected)
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    if len(wanted) < 2:
        return 1.0
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    halves = torch.tensor([(len(wanted) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def _plain(module: Any, text: Sequence[int]) -> Any:
    """[T, V] logits by a forward without a cache."""
    with torch.inference_mode():
        return module(input_ids=torch.tensor([list(text)]), use_cache=False).logits[0].float()


def _sharpen(module: Any) -> None:
    """Scale queries, keys and embeddings, so that random weights attend and argmaxes are clear."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, weights in module.named_parameters():
            if weights.dim() == 2 and any(part in name for part in ("q_proj", "k_proj", "c_attn")):
                weights.normal_(0, 0.12, generator=generator)
            elif weights.dim() == 2 and any(part in name for part in ("lm_head", "embed", "wte")):
                weights.normal_(0, 0.3, generator=generator)


def _kinds(model: CausalModel) -> tuple[str, ...]:
    """The kinds of the model's layers, in order; without a list, the kind of all layers."""
    config = model.module.config.get_text_config()
    names = ("layer_types", "layers_block_type", "attention_layers")
    kinds = next((found for name in names if (found := getattr(config, name, None))), None)
    if kinds is None:
        window = getattr(config, "sliding_window", None)
        kinds = ["recurrent" if model.has_states else "sliding" if window else "full"]
    return tuple(dict.fromkeys(kind.removesuffix("_attention") for kind in kinds))


def _short(error: BaseException) -> str:
    """The first informative line of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines and "Error" in lines[-1] else " ".join(lines) or repr(error)
    return text[:160]


def record(findings: Sequence[Finding]) -> dict[str, Any]:
    """The contents of a results file: how it was made, and the finding of each type."""
    return {
        "command": command(),
        "environment": environment(torch.get_num_threads(), commit=commit()),
        "tokens": NUM_TOKENS,
        "types": [asdict(finding) for finding in findings],
    }


def findings_of(text: str) -> dict[str, Finding]:
    """The findings of a results file; empty for another transformers version or fewer tokens."""
    found = json.loads(text)
    made_with = found["environment"]["versions"]["transformers"], found["tokens"]
    if made_with != (version("transformers"), NUM_TOKENS):
        return {}
    return {one["type"]: Finding(**one | {"kinds": tuple(one["kinds"])}) for one in found["types"]}


def check_types(console: Output, wanted: str, is_quick: bool, write: Path | None) -> None:
    """Check one type, several (by commas), ``all`` or ``rest``; print a line each; write a file.

    The file is written after each type and keeps the findings of unchecked types: ``rest`` resumes
    with the types without one. Errors: DraftwiseError for a type that the installed transformers
    lacks.
    """
    known = all_types()
    written = {} if write is None or not write.is_file() else findings_of(write.read_text("utf-8"))
    left = {"all": known, "rest": [name for name in known if name not in written]}
    types = left.get(wanted, wanted.split(","))
    for name in types:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known)) or "see --check all"
            raise DraftwiseError(f"no causal-LM type {name!r} in this transformers; near: {near}")

    def show(finding: Finding) -> None:
        if write is not None:
            written[finding.type] = finding
            found = record([written[name] for name in known if name in written])
            write.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
        if not finding.is_served:
            console.print(f"{finding.type:24} refused: {finding.reason}", markup=False)
            return
        trees = "trees" if finding.has_trees else "chains"
        states = ", states" if finding.has_states else ""
        texts = "" if finding.law is None else f", texts equal, p = {finding.law:.2g}"
        console.print(f"{finding.type:24} {finding.rows}, {trees}{states}{texts}", markup=False)

    findings = survey(types, show, is_quick)
    served = sum(finding.is_served for finding in findings)
    console.print(f"{served} of {len(findings)} are served", style="bold")


def main() -> None:
    """Print one line of JSON for each named type."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in [word for word in sys.argv[1:] if word != _QUICK]:
        print(json.dumps(asdict(check_type(name, _QUICK in sys.argv))), flush=True)


if __name__ == "__main__":
    main()
