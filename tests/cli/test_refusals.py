"""Bad input gives exit code 2, one line that says what to do, and nothing on stdout."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run, run_command
from cli.models_on_disk import POSITIONS, make_target, save_model
from draftwise import DraftwiseError, registry, zoo
from draftwise.cli.load import check_models
from draftwise.install import ZOO_HINT
from draftwise.registry import PRESETS


@pytest.mark.parametrize(
    ("option", "valid"),
    [
        ("--policy", registry.POLICIES),
        ("--reward", registry.REWARDS),
        ("--feedback", registry.FEEDBACKS),
        ("--rule", registry.STOP_RULES),
        ("--preset", PRESETS),
        ("--drafter", registry.DRAFTERS),
        ("--scope", ["request", "session", "task:LABEL"]),
    ],
)
def test_unknown_names_list_the_valid_ones(generate: Run, option: str, valid: list[str]) -> None:
    refusal = generate("Hello", option, "nonesuch").refusal
    assert "nonesuch" in refusal
    assert all(name in refusal for name in valid)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reward", "length:x=1"], "no option 'x'"),
        (["--plan-lengths", "0"], "plan length 0"),
        (["--plan-lengths", "4,five"], "1,2,4,8"),
        (["--tree", "wide"], "such as 4x16"),
        (["--temperature", "-1"], "--temperature -1.0: it must be"),
        (["--top-p", "0"], "--top-p 0.0: it must be"),
        (["--max-new-tokens", "0"], "--max-new-tokens 0"),
        (["--threads", "0"], "--threads 0"),
        (["--file", "also.txt"], "not both"),
        (["--batch", "also.txt"], "not both"),
        (["--scope", "task:"], "task:LABEL"),
        (["--trace", "/nonexistent/trace.jsonl"], "/nonexistent/trace.jsonl"),
        (["--seed", "-1"], "--seed -1"),
        (["--stop", ""], "--stop ''"),
        (["--threads", "100000"], "--threads 100000"),
        (["--drafter", ""], "names nothing"),
        (["--drafter", "x="], "names nothing"),
    ],
)
def test_options_that_make_no_sense(generate: Run, arguments: list[str], said: str) -> None:
    assert said in generate("Hello", *arguments).refusal


def test_prompts_that_cannot_be_answered(generate: Run, tmp_path: Path) -> None:
    assert "empty" in generate("").refusal
    assert "empty" in generate(input_="\n").refusal
    assert "empty" in run_command("generate", "").refusal  # here the tokenizer adds a first token
    assert f"{POSITIONS} positions" in generate("x" * POSITIONS).refusal
    assert "gone.txt" in generate("--file", tmp_path / "gone.txt").refusal
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "fine"}\n{"text": "not here"}\n')
    assert "line 2" in generate("--batch", file).refusal
    file.write_text("\n")
    assert "no prompts" in generate("--batch", file).refusal
    file.write_bytes(b'"\xff\xfe"')
    assert "UTF-8" in generate("--batch", file).refusal


def test_a_late_layer_without_numbers_is_refused_at_load(tmp_path: Path) -> None:
    model = make_target()
    model.model.layers[-1].mlp.down_proj.weight.data.fill_(float("nan"))
    folder = save_model(tmp_path / "nan", model)
    assert "nan" in run_command("generate", "Hello", "--target", folder).refusal


def test_an_installation_without_the_bundled_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(zoo, "home", lambda: tmp_path)
    assert "draftwise zoo build" in run_command("generate", "Hello").refusal
    assert "draftwise zoo build" in run_command("demo").refusal


def test_an_installation_without_the_package_of_the_models(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(zoo, "_BESIDE", tmp_path / "gone")
    monkeypatch.setattr(zoo, "find_spec", lambda name: None)
    for line in (
        ("generate", "Hello"), ("demo",), ("chat", "--target", "smollm2"),
        ("generate", "Hello", "--drafter", "gemma3:eagle"),
        ("generate", "Hello", "--target", tmp_path / "model.gguf"),
    ):  # fmt: skip
        refusal = run_command(*line).refusal
        assert f"need the package draftwise-zoo: {ZOO_HINT}" in refusal


def test_a_drafter_that_the_hub_cannot_give_now_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def model_info(*_: object, **__: object) -> None:
        raise ConnectionError

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    for spec in ("lm:nothere", "named=lm:nothere", "eagle:org/nothere"):
        with pytest.raises(DraftwiseError, match=f"{spec}: there is no folder .* reached now"):
            check_models("zoo", [spec])
