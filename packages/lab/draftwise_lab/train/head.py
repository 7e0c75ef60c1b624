"""SpecDec++'s acceptance head: module, files, labels, training and calibration."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwise.files import replacing, write_text
from draftwise.install import hint
from draftwise.nn.eagle_files import read_settings, read_weights
from draftwise.nn.model import CausalModel
from draftwise.types import DraftwiseError, Floats
from draftwise_lab.train.answers import SamplingTask, continuations
from draftwise_lab.train.data import Text, answer_hidden, answer_logits, groups, pad
from draftwise_lab.train.loop import Progress, TrainingSettings, fit
from draftwise_lab.train.options import HeadOptions as HeadOptions

NUM_BINS, HELD_OUT = 10, 10  # bins of predictions; every tenth text is held out
_TEXTS_A_CHUNK, _TOKENS_A_BATCH, _MOST_LOGITS = 64, 4096, 1 << 26


class ResBlock(nn.Module):
    """x + SiLU(Wx + b)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, states: Tensor) -> Tensor:
        added: Tensor = states + nn.functional.silu(self.linear(states))
        return added


class AcceptanceHead(nn.Module):
    """Maps the hidden state of a drafted token to the log-odds of its acceptance.

    Source: SpecDec++, section 5.1: a ResNet of ``num_layers`` + 1 layers with SiLU. Differs: the
    residual layers are independent, while the authors' code repeats one (``tied=True``).
    """

    def __init__(self, hidden_size: int, num_layers: int, *, tied: bool = False) -> None:
        super().__init__()
        if hidden_size < 1 or num_layers < 0:
            raise ValueError(f"hidden_size {hidden_size} and num_layers {num_layers} make no head")
        self.hidden_size, self.num_layers = hidden_size, num_layers
        blocks = [ResBlock(hidden_size) for _ in range(1 if tied else num_layers)]
        if tied:
            blocks *= num_layers
        self.model = nn.Sequential(*blocks, nn.Linear(hidden_size, 2))

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, D] -> [N], in float32."""
        logits: Tensor = self.model(hidden).float()
        return logits[:, 1] - logits[:, 0]


def save(head: AcceptanceHead, folder: str | Path, about: Mapping[str, Any] | None = None) -> None:
    """Write the head in the authors' layout, in half precision; ``about`` extends the config."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"hidden_size": head.hidden_size, "num_layers": head.num_layers, **(about or {})}
    # tied layers are stored one by one, as in the authors' checkpoints
    tensors = {k: v.detach().cpu().half().clone() for k, v in head.state_dict().items()}
    write_text(folder / "config.json", json.dumps(config, indent=1) + "\n")
    with replacing(folder / "model.safetensors") as unfinished:  # another process may read it
        save_file(tensors, unfinished, {"format": "pt"})


def load(folder: str | Path) -> AcceptanceHead:
    """Load this project's or the authors' head (``model.safetensors``, ``pytorch_model.bin``).

    Errors: DraftwiseError if there is none.
    """
    folder = Path(folder)
    safe, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    if not (folder / "config.json").exists() or not (safe.exists() or pickled.exists()):
        raise DraftwiseError(f"there is no acceptance head in {folder}: it needs config.json")
    config = read_settings(folder, "acceptance head")
    config = config.get("config", config)
    head = AcceptanceHead(int(config["hidden_size"]), int(config.get("num_layers", 0)))
    stored = read_weights([safe if safe.exists() else pickled])
    for name in [name for name in stored if name.startswith("model.0.linear")]:
        for index in range(head.num_layers):  # a file of tied layers may hold them once
            stored.setdefault(name.replace("model.0", f"model.{index}"), stored[name])
    head.load_state_dict({name: value.float() for name, value in stored.items()})
    return head


def binary_kl(truth: Floats, predicted: Floats) -> float:
    """Mean divergence of predicted from true acceptance probabilities, in nats.

    Source: SpecDec++, appendix D.3. Predictions are clamped to at least 1e-6 from 0 and 1.

    >>> binary_kl(np.array([0.0, 1.0]), np.array([0.5, 0.5])).__round__(4)
    0.6931
    """
    p = torch.from_numpy(truth).clamp(0, 1)
    q = torch.from_numpy(predicted).clamp(1e-6, 1 - 1e-6)
    entropy = nn.functional.binary_cross_entropy(p, p)
    return float(nn.functional.binary_cross_entropy(q, p) - entropy)


@dataclass(frozen=True)
class Reliability:
    """Predictions in bins of equal width: mean predicted, mean true, and counts. [NUM_BINS]"""

    predicted: Floats
    truth: Floats
    counts: Floats

    @property
    def ece(self) -> float:
        """Expected calibration error: the mean gap of predicted and true, weighted by tokens."""
        gaps = np.abs(self.predicted - self.truth)
        return float((gaps * self.counts).sum() / self.counts.sum())


def reliability(truth: Floats, predicted: Floats) -> Reliability:
    """Sort predictions into bins.

    >>> reliability(np.array([1.0, 0.0]), np.array([0.85, 0.05])).ece.__round__(3)
    0.1
    """
    bins = np.minimum((predicted * NUM_BINS).astype(int), NUM_BINS - 1)
    counts = np.bincount(bins, minlength=NUM_BINS).astype(float)
    sums = [np.bincount(bins, weights=x, minlength=NUM_BINS) for x in (predicted, truth)]
    means = [s / np.maximum(counts, 1) for s in sums]
    return Reliability(means[0], means[1], counts)


def unweighted(odds: Floats, w_rej: float) -> Floats:
    """Acceptance probabilities from log-odds trained with rejections weighted by ``w_rej``: that
    loss is minimal at the true odds divided by the weight.
    """
    probs: Floats = 0.5 + 0.5 * np.tanh(0.5 * (odds + math.log(w_rej)))
    return probs


def plot_reliability(curves: dict[str, Reliability], path: Path) -> None:
    """Plot true against predicted acceptance as PNG; DraftwiseError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DraftwiseError(f"plots need matplotlib: {hint('bench')}") from error
    figure = Figure(figsize=(5.2, 4.8), layout="constrained")
    axes: Any = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="#999999", linewidth=1, label="calibrated")
    for (name, curve), colour in zip(curves.items(), ("#0072b2", "#d55e00"), strict=False):
        seen = curve.counts > 0
        sizes = 12 + 300 * curve.counts[seen] / curve.counts.sum()
        label = f"{name}, ECE {curve.ece:.3f}"
        axes.plot(curve.predicted[seen], curve.truth[seen], color=colour, label=label)
        axes.scatter(curve.predicted[seen], curve.truth[seen], s=sizes, color=colour, alpha=0.5)
    axes.set(xlabel="predicted acceptance", ylabel="true acceptance", xlim=(0, 1), ylim=(0, 1))
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(path, dpi=150)


@dataclass(frozen=True)
class Judgements:
    """Drafted tokens: hidden [N, D] float16, and two labels [N] float32. sampled: min(1, p/q) of
    the token (the paper's label). analytic: its expectation before the draw, sum_v min(p, q).
    """

    hidden: Tensor
    sampled: Tensor
    analytic: Tensor

    def __len__(self) -> int:
        return len(self.sampled)


def distributions_of(logits: Tensor, temperature: float) -> Tensor:
    """[A, V] probabilities at a temperature; at 0 the most likely token has all of the mass."""
    if temperature == 0:
        return nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    return (logits.float() / temperature).softmax(-1)


def _distributions(setting: Setting, tokens: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """p and q [A, V] on the host, at flat positions [A] of tokens [B, T]."""
    p, q = (
        distributions_of(answer_logits(model, tokens, positions), setting.temperature).cpu()
        for model in (setting.target, setting.drafter)
    )
    return p, q


@torch.inference_mode()
def judge(setting: Setting, texts: Sequence[Text], generator: torch.Generator) -> Judgements:
    """Sample the drafter's token at every answer position, and mix these samples with the text.

    Source: SpecDec++, section 4.4. At each position a token Y is sampled from q, given the target's
    text; the drafter's input then has Y, or the original token at a share ``mixing`` of the
    positions. Only samples are labelled.
    """
    tokens, positions = pad(texts)
    p, q = _distributions(setting, tokens, positions)
    drawn = torch.multinomial(q, 1, generator=generator)[:, 0]
    is_drawn = torch.rand(len(drawn), generator=generator) >= setting.mixing
    mixed, at = tokens.clone().flatten(), positions + 1
    mixed[at[is_drawn]] = drawn[is_drawn]
    hidden = answer_hidden(setting.drafter, mixed.view_as(tokens), at).cpu()[is_drawn]
    rows = torch.arange(len(drawn))
    sampled = (p[rows, drawn] / q[rows, drawn]).clamp(max=1.0)
    analytic = torch.minimum(p, q).sum(-1).clamp(max=1.0)
    return Judgements(hidden.half(), sampled[is_drawn], analytic[is_drawn])


def label_all(
    setting: Setting, texts: Sequence[Text], folder: Path,
    progress: Callable[[int], None] | None = None,
) -> Judgements:  # fmt: skip
    """Label all texts, in chunks cached in ``folder``. Errors: OSError if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    size = min(_TOKENS_A_BATCH, max(256, _MOST_LOGITS // int(setting.target.config.vocab_size)))
    chunks = []
    for number, start in enumerate(range(0, len(texts), _TEXTS_A_CHUNK)):
        path = folder / f"{number:05}.npz"
        if not path.exists():
            generator = torch.Generator().manual_seed(setting.seed + number)
            chunk = texts[start : start + _TEXTS_A_CHUNK]
            batches = [[chunk[i] for i in group] for group in groups(chunk, size)]
            parts = [judge(setting, batch, generator) for batch in batches]
            with replacing(path) as unfinished, unfinished.open("wb") as file:
                np.savez(file, **{k: v.numpy() for k, v in vars(_joined(parts)).items()})
        with np.load(path) as kept:
            chunks.append(Judgements(**{name: torch.from_numpy(kept[name]) for name in kept}))
        if progress is not None:
            progress(min(start + _TEXTS_A_CHUNK, len(texts)))
    return _joined(chunks)


def _joined(parts: Sequence[Judgements]) -> Judgements:
    names = vars(parts[0])
    return Judgements(**{n: torch.cat([getattr(part, n) for part in parts]) for n in names})


@dataclass(frozen=True)
class LabelledChains:
    """Drafts of equal length: hidden [n, L, D] of every token, truth [n, L] = min(1, p/q)."""

    hidden: Tensor
    truth: Tensor


@torch.inference_mode()
def draft_chains(
    setting: Setting, texts: Sequence[Text], *, length: int = 8, num_chains: int = 256
) -> LabelledChains:
    """Draft from random positions of the texts, and label each drafted token."""
    rng, drafter = np.random.default_rng(setting.seed), setting.drafter
    picks = [texts[int(i)] for i in rng.integers(0, len(texts), num_chains)]
    model = CausalModel(drafter, "drafter")
    room = model.max_positions - length
    prefixes = [t.tokens[: min(room, int(rng.integers(t.start, len(t.tokens))))] for t in picks]
    tasks = {i: SamplingTask(prefix, setting.temperature) for i, prefix in enumerate(prefixes)}
    drafts = continuations(
        model, tasks, max_new_tokens=length, eos_token_ids=(), rows=num_chains, seed=setting.seed
    )
    chains = [Text((*prefixes[i], *drawn), len(prefixes[i])) for i, drawn in sorted(drafts)]
    hidden = torch.zeros(num_chains, length, drafter.config.get_text_config().hidden_size)
    truth = torch.zeros(num_chains, length)
    for group in groups(chains, 4096):
        tokens, at = pad([chains[i] for i in group])
        drawn = tokens.flatten()[at + 1][:, None]
        p, q = (probs.gather(1, drawn)[:, 0] for probs in _distributions(setting, tokens, at))
        states = answer_hidden(drafter, tokens, at + 1).cpu().float()
        hidden[group] = states.view(len(group), length, -1)
        truth[group] = (p / q.clamp(min=1e-12)).clamp(max=1.0).view(len(group), length)
    return LabelledChains(hidden, truth)


@dataclass(frozen=True)
class Setting:
    """The models whose drafts are labelled. mixing: share of original tokens in the input."""

    target: PreTrainedModel
    drafter: PreTrainedModel
    temperature: float = 1.0
    mixing: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.mixing < 1:
            raise ValueError(f"mixing is {self.mixing}: at least 0 and below 1")
        if not self.temperature >= 0:
            raise ValueError(f"temperature is {self.temperature}: it must be 0 or more")


@dataclass(frozen=True)
class Judged:
    """Labelled tokens for training and evaluation, and drafts along held-out texts."""

    taught: Judgements
    held_out: Judgements
    chains: LabelledChains


def judge_texts(
    setting: Setting, texts: Sequence[Text], folder: Path,
    progress: Callable[[int], None] | None = None,
) -> Judged:  # fmt: skip
    """Label drafts along all texts, every tenth held out; DraftwiseError for fewer than two."""
    held_out = list(texts[::HELD_OUT])
    taught = [text for number, text in enumerate(texts) if number % HELD_OUT]
    if not taught:
        raise DraftwiseError(f"{len(texts)} answers are too few to learn from: give more prompts")
    after = None if progress is None else lambda done: progress(len(taught) + done)
    return Judged(
        label_all(setting, taught, folder / "taught", progress),
        label_all(setting, held_out, folder / "held-out", after),
        draft_chains(setting, held_out),
    )


@dataclass(frozen=True)
class Measured:
    """A head's metrics on held-out drafts, with curves before and after removing the weight."""

    numbers: dict[str, Any]
    curves: dict[str, Reliability]


def measure_head(judged: Judged, head: AcceptanceHead, w_rej: float) -> Measured:
    """Divergence, calibration and the bias of products on held-out texts; truth is min(1, p/q)."""
    chains, truth = judged.chains, judged.held_out.sampled.double().numpy()
    with torch.inference_mode():
        odds = head(judged.held_out.hidden.float()).double().numpy()
        chain_odds = head(chains.hidden.flatten(0, 1)).view_as(chains.truth).double().numpy()
    # probability that the first 1, 2, ... tokens are all accepted
    products = chains.truth.double().numpy().cumprod(axis=1).mean(axis=0)
    numbers: dict[str, Any] = {
        "kl_of_the_mean": binary_kl(truth, np.full_like(truth, truth.mean())),
        "mean_acceptance": float(truth.mean()),
        "num_taught": len(judged.taught),
        "num_held_out": len(judged.held_out),
        "product_truth": products.tolist(),
    }
    curves = {}
    kinds = (("as trained", "", 1.0), ("without the weight", "_without_weight", w_rej))
    for name, key, weight in kinds:
        probs = unweighted(odds, weight)
        curves[name] = reliability(truth, probs)
        numbers["kl" + key], numbers["ece" + key] = binary_kl(truth, probs), curves[name].ece
        bias = unweighted(chain_odds, weight).cumprod(axis=1).mean(axis=0) - products
        numbers["product_bias" + key] = bias.tolist()
    return Measured(numbers, curves if w_rej != 1 else {"as trained": curves["as trained"]})


def make_head(
    setting: Setting, judged: Judged, options: HeadOptions, out: Path, *,
    checkpoint: Path | None = None, progress: Progress | None = None,
) -> Measured:  # fmt: skip
    head = train_head(judged.taught, options, checkpoint=checkpoint, progress=progress)
    measured = measure_head(judged, head, options.w_rej)
    shown = ("kl", "kl_of_the_mean", "ece", "mean_acceptance")
    about = {name: getattr(options, name) for name in ("w_rej", "label", "tied")}
    about |= {"temperature": setting.temperature, "mixing": setting.mixing}
    about["held_out"] = {name: round(measured.numbers[name], 4) for name in shown}
    save(head, out, about)
    return measured


def weighted_bce(head: nn.Module, batch: tuple[Tensor, Tensor], w_rej: float) -> Tensor:
    """The loss of log-odds against acceptance probabilities, with rejections weighted.

    batch: hidden states [N, D] and labels [N]. Source: SpecDec++, section 4.4, with w_acc = 1,
    divided by the sum of the weights as in the authors' code (the paper prints the sum).
    """
    hidden, accepted = batch
    odds, rejected = head(hidden), w_rej * (1 - accepted)
    missed = accepted * nn.functional.softplus(-odds) + rejected * nn.functional.softplus(odds)
    return missed.sum() / (accepted + rejected).sum()


def train_head(
    data: Judgements, options: HeadOptions, *, checkpoint: Path | None = None,
    progress: Progress | None = None, stop_at: int | None = None,
) -> AcceptanceHead:  # fmt: skip
    """Train a head on ``data``; with a ``checkpoint`` the run can resume, bit by bit.

    Source: SpecDec++, section 4.4 and appendix D.1. Differs: 12 epochs at 2e-3, with linear decay
    to zero over the second half, instead of 3 epochs at 5e-5 with a cosine; AdamW, and batches of
    1,024 tokens instead of 32 answers. Raises ValueError for no data, and the errors of ``fit``.
    """
    if not len(data):
        raise ValueError("there are no judged tokens to learn from: give more prompts")
    size = min(options.tokens_per_batch, len(data))
    labels = getattr(data, options.label)

    def batch(step: int) -> tuple[Tensor, Tensor]:
        epoch, place = divmod(step, len(data) // size)
        generator = torch.Generator().manual_seed(options.seed + 1000 * epoch)
        rows = torch.randperm(len(data), generator=generator)[place * size : (place + 1) * size]
        return data.hidden[rows].float(), labels[rows]

    torch.manual_seed(options.seed)
    head = AcceptanceHead(data.hidden.shape[1], options.num_layers, tied=options.tied)
    fit(
        head, partial(weighted_bce, w_rej=options.w_rej), batch, head_settings(data, options),
        checkpoint=checkpoint, progress=progress, stop_at=stop_at,
    )  # fmt: skip
    return head.eval()


def head_settings(data: Judgements, options: HeadOptions) -> TrainingSettings:
    """The schedule: steps for the requested epochs, with decay over the second half."""
    steps = max(20, round(options.epochs * max(1, len(data) // options.tokens_per_batch)))
    return TrainingSettings(steps, options.lr, warmup_steps=steps // 30 + 1, decay_steps=steps // 2)
