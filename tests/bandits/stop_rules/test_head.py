"""SpecDec++'s rule: file layout, the product of predictions, and hidden states."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwise import make_stop_rule
from draftwise.bandits.stop_rules import read_head
from draftwise.drafters.lm import LMDrafter
from draftwise.drafters.protocol import Context, DraftTask
from draftwise.nn.model import CausalModel
from draftwise.registry import preset
from draftwise.speculator import Speculator
from draftwise.types import DraftStep, DraftwiseError, SamplingParams
from draftwise_lab.train.head import AcceptanceHead, load, save
from engine.pairs import PROMPTS, lm, plain_greedy, speculator, target
from models import head_home, near_copy
from sessions import opened

SIZE = 4


def linear(folder: Path, size: int = SIZE) -> Path:
    """A head without residual layers whose log-odds are the first number of the state."""
    head = AcceptanceHead(size, 0)
    with torch.no_grad():
        for weights in head.parameters():
            weights.zero_()
        head.model[0].weight[1, 0] = 1.0
    save(head, folder)
    return folder


def state(acceptance: float, size: int = SIZE) -> Any:
    """A state for which the linear head predicts this acceptance."""
    return np.array([np.log(acceptance / (1 - acceptance)), *[9.0] * (size - 1)], np.float32)


def depth_of(spec: str, acceptances: list[float], length: int = 20) -> int:
    """Number of drafted tokens when these are the predictions of the first, second, ... token."""
    stop_rule, step = make_stop_rule(spec), DraftStep(0, length)
    while step.depth < length and stop_rule.should_continue(step):
        states = (state(acceptances[step.depth]), step.hidden)
        step = DraftStep(step.depth + 1, length, hidden=states[0], hidden_before=states[1])
    return step.depth


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # 1 - 0.8 = 0.2; 1 - 0.8 * 0.7 = 0.44; 1 - 0.56 * 0.5 = 0.72; stop above h
        ("h=0.1", 1),
        ("h=0.3", 2),
        ("h=0.5", 3),
        ("h=0.7", 3),
        ("h=0.73", 4),
        ("h=1", 5),
        # one token late: the last one is never judged
        ("h=0.1,lag=true", 2),
        ("h=0.3,lag=true", 3),
        ("h=0.7,lag=true", 4),
    ],
)
def test_the_product_of_predictions_ends_the_draft(
    options: str, expected: int, tmp_path: Path
) -> None:
    rule = f"head:{linear(tmp_path)},{options}"
    assert depth_of(rule, [0.8, 0.7, 0.5, 0.9, 0.9], length=5) == expected


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("num_layers", range(5))
def test_numpy_computes_what_torch_does(num_layers: int, tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(num_layers)
    save(AcceptanceHead(SIZE, num_layers, tied=tied), tmp_path)
    states = torch.randn(20, SIZE) * 3
    with torch.no_grad():
        expected = torch.sigmoid(load(tmp_path)(states)).tolist()
    head = read_head(tmp_path)
    assert [head.acceptance(x) for x in states.numpy()] == pytest.approx(expected, abs=1e-6)
    blocks = [weights for weights, _ in head.blocks]
    assert len(blocks) == num_layers
    assert all(np.array_equal(blocks[0], other) == tied for other in blocks[1:])


def authors_file(folder: Path, kind: str) -> AcceptanceHead:
    """Two tied layers in the released code's format: one module twice, class 1 = accept."""
    torch.manual_seed(1)
    head = AcceptanceHead(SIZE, 2, tied=True)
    config = {"hidden_size": SIZE, "num_layers": 2}
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "bin":
        torch.save(head.state_dict(), folder / "pytorch_model.bin")
    else:
        from safetensors.torch import save_model

        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
        save_model(head.to(dtype), str(folder / "model.safetensors"))  # stores shared layers once
    return head


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "bin"])
def test_the_authors_files_can_be_read(kind: str, tmp_path: Path) -> None:
    head = authors_file(tmp_path, kind)
    if kind == "bin":
        with pytest.raises(DraftwiseError, match="rewrite it once"):
            read_head(tmp_path)
        save(load(tmp_path), tmp_path)
    states = torch.randn(5, SIZE)
    with torch.no_grad():
        expected = torch.sigmoid(head.float()(states)).tolist()
    found = [read_head(tmp_path).acceptance(x) for x in states.numpy()]
    assert found == pytest.approx(expected, abs=1e-3)
    assert {key.partition(".")[0] for key in load(tmp_path).state_dict()} == {"model"}


@pytest.mark.parametrize("how", ["written over", "another folder of that name"])
def test_another_head_of_the_same_name_size_and_time_is_read(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``cp -p`` and ``rsync -t`` leave them."""
    folders = [tmp_path / "one", tmp_path / "other"]
    for seed, folder in enumerate(folders):
        torch.manual_seed(seed)
        save(AcceptanceHead(SIZE, 1), folder / "head")
        for file in (folder / "head").iterdir():
            os.utime(file, ns=(10**18, 10**18))
    files = [folder / "head" / "model.safetensors" for folder in folders]
    assert files[0].stat().st_size == files[1].stat().st_size
    wanted = [read_head(folder / "head").blocks[0][0] for folder in folders]
    monkeypatch.chdir(folders[0])
    assert np.array_equal(read_head(Path("head")).blocks[0][0], wanted[0])
    if how == "written over":
        files[0].write_bytes(files[1].read_bytes())
        os.utime(files[0], ns=(10**18, 10**18))
    else:
        monkeypatch.chdir(folders[1])
    assert np.array_equal(read_head(Path("head")).blocks[0][0], wanted[1])
    (Path("head") / "config.json").write_text("{}")
    with pytest.raises(DraftwiseError, match="hidden_size"):
        read_head(Path("head"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "there is no acceptance head in"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be read"),
        (lambda folder: (folder / "config.json").write_text("{}"), "cannot be read"),
        (lambda folder: (folder / "config.json").write_text('{"hidden_size": 8}'), "shape"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"nonsense"), "cannot be read"),
    ],
)
def test_a_damaged_head_is_refused(damage: Any, message: str, tmp_path: Path) -> None:
    damage(linear(tmp_path))
    with pytest.raises(DraftwiseError, match=message):
        make_stop_rule(f"head:{tmp_path}")


@pytest.mark.parametrize("rule", ["head:{},h=2", "head:{},h=nan"])
def test_a_threshold_that_is_none_is_refused(rule: str, tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match=r"h is .*: it must be a finite number from 0 to 1"):
        make_stop_rule(rule.format(linear(tmp_path)))


@pytest.mark.parametrize(
    "rule", ["head:{}", "any-of:rules=svip+head:{}", "tapout-token:rules=head:{}"]
)
def test_a_head_for_another_size_is_refused_at_load(rule: str, tmp_path: Path) -> None:
    with pytest.raises(DraftwiseError, match="size 4, and drafter good has hidden size 32"):
        speculator(["good"], rules=(rule.format(linear(tmp_path)),))


def test_two_sizes_in_one_rule_are_refused(tmp_path: Path) -> None:
    heads = [linear(tmp_path / str(size), size) for size in (4, 32)]
    with pytest.raises(DraftwiseError, match=r"sizes \[4, 32\]"):
        speculator(["good"], rules=(f"any-of:rules=head:{heads[0]}+head:{heads[1]}",))


def test_a_drafter_without_a_head_is_told_how_to_get_one(tmp_path: Path) -> None:
    model = target()
    for home, message in ((tmp_path, "draftwise train head"), (None, "has no weights")):
        drafter = LMDrafter("small", lm("good").model, model, home)
        with pytest.raises(DraftwiseError, match=message):
            Speculator(model, None, [drafter], preset("specdecpp"))


def fresh(home: Path | None = None) -> LMDrafter:
    """A drafter that does not expose hidden states yet."""
    model = CausalModel(near_copy(target().module, noise=0.04), "good")
    return LMDrafter("good", model, target(), home or head_home())


def test_hidden_states_are_shown_only_where_a_rule_reads_them() -> None:
    for rule, is_tapped in (("svip", False), ("head", True), ("any-of:rules=svip+head", True)):
        drafter = fresh()
        setting = replace(preset("specdecpp"), rules=(rule,))
        Speculator(target(), None, [drafter], setting)
        assert bool(drafter.model.taps) is is_tapped


class Spy:
    """A rule that always continues, up to five tokens, and records each step."""

    needs_probs = never_stops = False
    needs_hidden = 0

    def __init__(self, waits: bool) -> None:
        self.waits_for_hidden, self.steps = waits, []

    def should_continue(self, step: DraftStep) -> bool:
        self.steps.append(step)  # type: ignore[attr-defined]
        return step.depth < 5

    def learn(self, num_drafted: int, num_accepted: int) -> None:
        raise AssertionError("nobody verified")


def expected_states(drafter: LMDrafter, tokens: list[int]) -> Any:
    """[T, D] the last hidden states of the whole text, from one forward of the module itself."""
    ids = torch.tensor([tokens])
    return drafter.model.module.model(input_ids=ids).last_hidden_state[0].numpy()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("waits", [True, False])
def test_a_step_shows_the_state_of_the_very_token(waits: bool, temperature: float) -> None:
    """A rule that does not wait is asked before the token is read: one forward less."""
    drafter = fresh()
    drafter.show_hidden()
    num_calls, extend = 0, drafter.model.extend

    def counted(*args: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        return extend(*args)

    drafter.model.extend = lambda *args, **more: counted(*args, *more.values())  # type: ignore[method-assign]
    spy, text = Spy(waits), [5, 9, 33, 5]
    context = Context(0, text, SamplingParams(temperature), np.random.default_rng(0))
    with torch.inference_mode():
        (draft,) = opened(drafter, [context]).propose([DraftTask(context, 8, spy)])
        states = expected_states(drafter, [*text, *draft.tokens.tolist()])
    assert len(draft) == 5
    assert num_calls == (6 if waits else 5)
    for step in spy.steps[1:]:  # type: ignore[attr-defined]
        at = len(text) - 1 + step.depth
        assert np.allclose(step.hidden_before, states[at - 1], atol=1e-4)
        if waits:
            assert np.allclose(step.hidden, states[at], atol=1e-4)
        else:
            assert step.hidden is None


def test_retrieval_shows_no_states_and_is_never_ended() -> None:
    stop_rule = make_stop_rule("head", home=head_home())
    assert all(
        stop_rule.should_continue(DraftStep(depth, 8, 1.0, 1.0, 0.0, 1.0)) for depth in range(8)
    )


@pytest.mark.parametrize("options", ["", "h=0.2,lag=true"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_draft_that_stopped_late_scores_its_last_q(options: str, temperature: float) -> None:
    """The token read for the head alone also gives q at the bonus token's position."""
    rule = f"head:{head_home() / 'head'},{options}" if options else "head"
    made = speculator(["good"], "fixed:0", rules=(rule,), lengths=(8,), with_none=False,
                      feedback="bandit")  # fmt: skip
    prompt = PROMPTS[2]
    rounds = list(made.start(prompt, max_new_tokens=40, temperature=temperature))
    scores = [round_.scores["good"] for round_ in rounds if "good" in round_.scores]
    seen = {at for found in scores for at in range(found.start, found.start + len(found.alphas))}
    assert len(seen & set(range(len(prompt), len(prompt) + 40))) >= 38
    if not temperature:
        tokens = [token for r in rounds for token in r.tokens]
        assert tokens == plain_greedy(prompt, 40)


def test_the_preset_of_the_paper() -> None:
    """One drafter with an acceptance head and at most 20 tokens; the text is the target's."""
    setting = preset("specdecpp")
    assert [(p.length, p.rule) for p in setting.plans(["good"])] == [(20, "head")]
    made = Speculator(target(), None, [fresh()], setting)
    for prompt in PROMPTS:
        assert made.generate(prompt, max_new_tokens=30).tokens == plain_greedy(prompt, 30)
