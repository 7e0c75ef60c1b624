"""``draftwise train drafter``: any target, resumable, with a report of acceptance."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cli.conftest import Ran, run_command
from cli.models_on_disk import make_target, save_model
from draftwise.drafters import LMDrafter
from draftwise.nn import load_borrower, load_model, save_borrower
from draftwise.pool import load_drafters
from draftwise.train import (
    LOSSES,
    MAX_LENGTH,
    DrafterOptions,
    Text,
    answer_logits,
    break_even,
    drafter_batches,
    drafter_settings,
    first_layers,
    fit,
    measure_acceptance,
    measure_costs,
    narrow,
    speedups,
)
from draftwise.types import DraftwiseError
from engine.pairs import PROMPTS as PROMPTS_READ
from engine.pairs import plain_greedy, reader
from models import CONFIGS, tiny_model
from modules import module_of

PROMPTS = [f"say {word} and more" for word in ("one", "two", "three", "four", "five", "six")] * 4


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    file.write_text("\n".join(PROMPTS))
    return file


def train(pair: tuple[Path, Path], prompts: Path, out: Path, *more: object) -> Ran:
    return run_command(
        "train", "drafter", "--target", pair[0], "--prompts", prompts, "--out", out,
        "--max-new-tokens", 12, "--lr", 0.005, *more,
    )  # fmt: skip


def test_a_drafter_is_trained_and_drafts(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    start = save_model(tmp_path / "start", make_target(seed=3))
    ran = train(pair, prompts, tmp_path / "new", "--init", start, "--epochs", 40)
    assert ran.code == 0, ran.err
    looks = json.loads((tmp_path / "new" / "report.json").read_text())
    assert [look["when"].split()[0] for look in looks] == ["before", "after", "after"]
    assert looks[-1]["acceptance"] > looks[0]["acceptance"] + 0.05
    said = ran.err.replace("\n", " ")
    assert said.index("before training: acceptance") < said.index("after 2 of 40 steps")
    models = ("--preset", "plain"), ("--drafter", f"lm:{tmp_path / 'new'}")
    answers = [
        run_command(
            "generate", "say one", "--target", pair[0], *model, "--max-new-tokens", 20, "--json"
        ).objects[0]["tokens"]
        for model in models
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("tied", [True, False])
def test_a_drafter_of_the_target_s_layers_borrows_its_embeddings(
    prompts: Path, tmp_path: Path, tied: bool
) -> None:
    """The drafter learns, stores no embeddings or ``lm_head``, and loads as it was trained."""
    home = save_model(tmp_path / "target", make_target(seed=1, tie_word_embeddings=tied))
    out = tmp_path / "new"
    ran = train((home, home), prompts, out, "--layers", 1, "--lend", "--epochs", 20)
    assert ran.code == 0, ran.err
    looks = json.loads((out / "report.json").read_text())
    assert 1 - looks[-1]["acceptance"] < 0.8 * (1 - looks[0]["acceptance"])
    with safe_open(out / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert names
    assert not [name for name in names if "embed_tokens" in name or "lm_head" in name]
    target = load_model(str(home))
    (drafter,) = load_drafters([f"lm:{out}"], target, str(home), dtype="auto", device="cpu")
    assert isinstance(drafter, LMDrafter)
    assert drafter.model.module.get_input_embeddings() is target.module.get_input_embeddings()
    text = ("say one", "--target", home, "--max-new-tokens", 20, "--json")
    plain, ours = (
        run_command("generate", *text, *extra).objects[0]["tokens"]
        for extra in (("--preset", "plain"), ("--drafter", f"lm:{out}"))
    )
    assert plain == ours


def test_what_borrows_is_bound_to_its_target(tmp_path: Path) -> None:
    module = first_layers(make_target(seed=1), 1, lends=True)
    save_borrower(module, tmp_path, torch.float32)
    with pytest.raises(DraftwiseError, match=r"no embeddings of its own: .*--drafter lm:"):
        load_model(str(tmp_path))
    other = load_model(make_target(seed=1, hidden_size=48))
    with pytest.raises(DraftwiseError, match=r"target of hidden size 32, and .* has 48"):
        load_borrower(tmp_path, other)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(weights | {"model.extra.weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(DraftwiseError, match=r"has 'model\.extra\.weight', which has no place"):
        load_borrower(tmp_path, load_model(make_target(seed=1)))


def test_a_narrow_drafter_learns(tmp_path: Path) -> None:
    """The loss falls, and acceptance nears the maximum for a vocabulary of these tokens."""
    target = reader()
    texts = [Text((*prompt, *plain_greedy(prompt, 40)), len(prompt)) for prompt in PROMPTS_READ]
    drafter, options = first_layers(target, 1, lends=True), DrafterOptions(lr=5e-3, epochs=60)
    ids = narrow(drafter, texts, 24)
    assert ids is not None
    held = {"drafter": drafter}
    before = measure_acceptance(target, held, texts)["drafter"]
    read = drafter_batches(target, texts, options, tmp_path, ids)
    said = read(0)
    assert said.logits.shape == (len(said.positions), 24)
    with torch.inference_mode():
        whole = answer_logits(target, said.tokens, said.positions)
    assert torch.allclose(said.logits, whole[:, ids], atol=2e-2)
    most = float(whole.softmax(-1)[:, ids].sum(-1).mean())
    settings = drafter_settings(texts, options)
    losses = fit(drafter, LOSSES["logits"], read, settings, checkpoint=tmp_path / "run.pt")
    assert losses[-1] < 0.7 * losses[0]
    after = measure_acceptance(target, held, texts)["drafter"]
    assert before < 0.75 * most < 0.9 * most < after <= most + 1e-4


def test_a_drafter_learns_to_draft_the_frequent_tokens_alone(prompts: Path, tmp_path: Path) -> None:
    """The saved drafter proposes only the frequent tokens and is lossless."""
    home, out = save_model(tmp_path / "target", make_target(seed=1)), tmp_path / "new"
    ran = train(
        (home, home), prompts, out, "--layers", 1, "--lend", "--draft-vocab", 20, "--epochs", 20
    )
    assert ran.code == 0, ran.err
    ids = load_file(out / "model.safetensors")["draft_ids"].tolist()
    kept = (out / "work" / "answers.jsonl").read_text().splitlines()
    counts = Counter(token for line in kept for token in json.loads(line)[1:])
    assert sorted(ids) == ids
    assert min(counts[i] for i in ids) >= max(counts[i] for i in counts if i not in ids)
    target = load_model(str(home))
    drafter = load_borrower(out, target)
    tokens = torch.tensor([[3, 5, 9]])
    with torch.inference_mode():
        logits = drafter.module(tokens).logits
        states = drafter.module.base_model(tokens).last_hidden_state
        full = states @ target.module.get_output_embeddings().weight.T
    assert torch.allclose(logits[..., ids], full[..., ids], atol=1e-5)
    others = [i for i in range(target.vocab_size) if i not in ids]
    assert logits[..., others].isneginf().all()
    layer = drafter.module.base_model.layers[0]
    norms_and_rows = 32 + 20 * 32
    assert drafter.num_parameters == sum(p.numel() for p in layer.parameters()) + norms_and_rows
    text = ("say one", "--target", home, "--max-new-tokens", 20, "--json")
    plain, ours = (
        run_command("generate", *text, *extra).objects[0]["tokens"]
        for extra in (("--preset", "plain"), ("--drafter", f"lm:{out}"))
    )
    assert plain == ours


def test_tokens_that_the_target_does_not_have_are_refused(tmp_path: Path) -> None:
    module = first_layers(make_target(seed=1), 1, lends=True)
    narrow(module, [Text((1, 3, 3, 4), 1)], 2)
    save_borrower(module, tmp_path, torch.float32)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    assert weights["draft_ids"].tolist() == [3, 4]
    assert weights["model.norm.weight"].dtype == torch.float32
    save_file(weights | {"draft_ids": torch.tensor([3, 4000])}, file)
    with pytest.raises(DraftwiseError, match=r"draft_ids has tokens beyond the target's"):
        load_borrower(tmp_path, load_model(make_target(seed=1)))


@pytest.mark.parametrize("loss", ["logits", "sequence"])
def test_interrupted_and_resumed_gives_the_same_weights(
    pair: tuple[Path, Path], prompts: Path, tmp_path: Path, loss: str
) -> None:
    """The second drafter's first run ends at its probe; the full command resumes from there."""
    more = ("--init", pair[1], "--loss", loss, "--epochs", 3)
    assert train(pair, prompts, tmp_path / "a", *more).code == 0
    first = train(pair, prompts, tmp_path / "b", *more, "--probe-only", "--probe", 0.4)
    assert first.code == 0
    assert not (tmp_path / "b" / "model.safetensors").exists()
    assert train(pair, prompts, tmp_path / "b", *more).code == 0
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "say where to start"),
        (("--layers", 1, "--init", "x"), "say where to start"),
        (("--layers", 9), "the target has 2"),
        (("--init", "x", "--lend"), "--lend is for a start from the target's own"),
        (("--layers", 1, "--draft-vocab", 9), "--draft-vocab is for --lend"),
        (("--layers", 1, "--lend", "--loss", "sequence", "--draft-vocab", 9), "the loss logits"),
        (("--layers", 1, "--loss", "x"), "logits, sequence"),
        (("--layers", 1, "--temperatures", "0,a"), "numbers of 0 or more"),
        (("--layers", 1, "--lr", -1), "above 0"),
    ],
)
def test_options_that_make_no_sense(
    pair: tuple[Path, Path],
    prompts: Path,
    tmp_path: Path,
    options: tuple[object, ...],
    message: str,
) -> None:
    assert message in train(pair, prompts, tmp_path / "out", *options).refusal


@pytest.mark.parametrize("kind", CONFIGS)
def test_first_layers_are_the_target_s(kind: str) -> None:
    target = tiny_model(kind)
    drafter = first_layers(target, 1)
    ours, theirs = drafter.state_dict(), target.state_dict()
    assert set(ours) < set(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    tokens = torch.tensor([[3, 5, 9]])
    with torch.inference_mode():
        assert drafter(tokens).logits.shape == target(tokens).logits.shape
    with pytest.raises(DraftwiseError, match="fewer than those"):
        first_layers(target, target.config.num_hidden_layers)


def test_states_that_do_not_fit_are_computed_as_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, options = tiny_model(), DrafterOptions(batch_tokens=64)
    texts = [Text(tuple((7 * i + 3 * j) % 60 + 1 for j in range(16)), 4) for i in range(12)]
    kept = drafter_batches(target, texts, options, tmp_path)
    monkeypatch.setattr(module_of(drafter_batches), "MOST_KEPT_BYTES", 0)
    live = drafter_batches(target, texts, options, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    for step in range(4):
        a, b = kept(step), live(step)
        assert torch.equal(a.tokens, b.tokens)
        assert torch.allclose(a.logits.float(), b.logits, atol=1e-2)


def test_expected_speed_by_hand() -> None:
    """alpha 0.5, a draft step costs 0.2: 1.5 / 1.2 and 1.75 / 1.4 tokens per target forward."""
    assert speedups(0.5, np.ones(3), 0.2).tolist() == pytest.approx([1.5 / 1.2, 1.75 / 1.4])
    assert break_even(np.array([1.0, 1.5]), 0.5) == 1.0
    assert break_even(np.ones(9), 0.3) == pytest.approx(0.3, abs=2e-3)


def test_costs_are_measured(pair: tuple[Path, Path]) -> None:
    target, drafter = (load_model(path) for path in pair)
    costs = measure_costs(target, drafter)
    assert len(costs.target_s) == MAX_LENGTH + 1
    assert (costs.target_s[1:] >= costs.target_s[:-1]).all()
    assert costs.draft_s[drafter.name] > 0
