"""Bad input gives exit code 2, one line that says what to do, and nothing on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Run, run_command
from cli.models_on_disk import POSITIONS, make_target, save_model
from draftwise import registry, zoo
from draftwise.install import zoo_hint
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
        (["--policy", "ucb1:gamma=1"], "beta"),
        (["--reward", "length:x=1"], "no option 'x'"),
        (["--plan-lengths", "0"], "plan length 0"),
        (["--plan-lengths", "4,-2"], "plan length -2"),
        (["--plan-lengths", "4,five"], "1,2,4,8"),
        (["--num-speculative-tokens", "0"], "plan length 0"),
        (["--num-speculative-tokens", "2", "--plan-lengths", "2"], "not both"),
        (["--tree", "wide"], "such as 4x16"),
        (["--tree", "0x4"], "such as 4x16"),
        (["--temperature", "-1"], "--temperature -1.0: it must be"),
        (["--top-p", "0"], "--top-p 0.0: it must be"),
        (["--max-new-tokens", "0"], "--max-new-tokens 0"),
        (["--threads", "0"], "--threads 0"),
        (["--dtype", "int3"], "float32, bfloat16"),
        (
            ["--prompt-lookup-min", "5", "--prompt-lookup-max", "2"],
            "at most prompt_lookup_max, which is 2",
        ),
        (["--file", "also.txt"], "not both"),
        (["--batch", "also.txt"], "not both"),
        (["--scope", "task:"], "task:LABEL"),
        (["--state", "state.json"], "--scope session"),
        (["--trace", "/nonexistent/trace.jsonl"], "/nonexistent/trace.jsonl"),
        (["--seed", "-1"], "--seed -1"),
        (["--stop", ""], "--stop ''"),
        (["--threads", "100000"], "--threads 100000"),
        (["--drafter", ""], "names nothing"),
        (["--drafter", "x="], "names nothing"),
        (["--scope", "session", "--state", "/nonexistent/state.json"], "no folder /nonexistent"),
        (["--scope", "session", "--state", "/tmp"], "it is a folder"),
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


def test_a_refused_run_leaves_an_earlier_trace_alone(generate: Run, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("precious\n")
    assert generate("", "--trace", trace).refusal
    assert trace.read_text() == "precious\n"


def test_folders_without_a_model(tmp_path: Path) -> None:
    def refusal(folder: Path) -> str:
        return run_command("generate", "Hello", "--target", folder).refusal

    assert "no model folder" in refusal(tmp_path / "gone")
    assert "config.json" in refusal(tmp_path)
    folder = save_model(tmp_path / "model", make_target())
    weights, config = folder / "model.safetensors", folder / "config.json"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    assert "cut off or damaged" in refusal(folder)
    weights.write_bytes(whole)
    config.write_text("{")
    assert "is no model's config" in refusal(folder)
    config.write_text(json.dumps({"model_type": "nonesuch"}))
    assert "cannot load a causal LM" in refusal(folder)


def test_a_late_layer_without_numbers_is_refused_at_load(tmp_path: Path) -> None:
    model = make_target()
    model.model.layers[-1].mlp.down_proj.weight.data.fill_(float("nan"))
    folder = save_model(tmp_path / "nan", model)
    assert "nan" in run_command("generate", "Hello", "--target", folder).refusal


def test_a_drafter_with_another_vocabulary(generate: Run, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", make_target(vocab_size=300))
    for file in other.glob("tokenizer*"):  # else the extra rows would be padding
        file.unlink()
    refusal = generate("Hello", "--assistant-model", other).refusal
    assert "300" in refusal
    assert "tokenizer" in refusal


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
        assert f"need the package draftwise-zoo: {zoo_hint()}" in refusal
