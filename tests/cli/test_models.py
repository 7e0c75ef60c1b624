"""``draftwise models``: the list of models, and their memory."""

from __future__ import annotations

from pathlib import Path

from cli.conftest import run_command
from cli.models_on_disk import make_target, save_model
from draftwise import registry
from draftwise.registry import PRESETS


def test_the_listing_has_every_name_of_every_table() -> None:
    ran = run_command("models")
    tables = (
        registry.POLICIES,
        registry.REWARDS,
        registry.FEEDBACKS,
        registry.STOP_RULES,
        registry.DRAFTERS,
        PRESETS,
    )
    assert ran.code == 0
    for table in tables:
        for name in table:
            assert name in ran.out
    assert "prompt_lookup_max=8" in ran.out
    assert "num_plans" not in ran.out  # internal to the engine


def test_a_pair_that_fits_is_described(pair: tuple[Path, Path]) -> None:
    ran = run_command(
        "models", "--target", pair[0], "--drafter", f"small=lm:{pair[1]}", "--drafter", "lookup"
    )
    assert ran.code == 0
    for fact in ("LlamaForCausalLM", "257", "400", "float32", "sdpa", "passed", "LookupDrafter"):
        assert fact in ran.out
    assert ran.out.index("small") < ran.out.index("lookup")


def test_a_pair_that_does_not_fit_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", make_target(vocab_size=300))
    ask = ("models", "--target", pair[0], "--drafter", f"lm:{other}")
    assert run_command(*ask).code == 0  # with the same tokenizer the extra rows are padding
    for file in other.glob("tokenizer*"):
        file.unlink()
    assert "no two tokenizers" in run_command(*ask).refusal
    assert "no model folder" in run_command("models", "--target", "./gone").refusal
