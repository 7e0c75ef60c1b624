"""The bundled models: files match the manifest, and models match its numbers."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from draftwise import zoo
from draftwise.nn.model import CausalModel
from draftwise_lab.train.answers import SamplingTask, continuations
from draftwise_lab.train.data import Text
from draftwise_lab.train.drafter import measure_acceptance
from draftwise_lab.zoo.corpus import encode_prompt, load_tokenizer
from draftwise_lab.zoo.domains import SHARES

HERE = Path(__file__).parent
WEIGHTS = zoo.home() / "weights"
EQUATION = re.compile(r"^(\d+) ([-+*]) (\d+) = (\d+)$", re.MULTILINE)
needs_weights = pytest.mark.skipif(not WEIGHTS.exists(), reason="no bundled weights")
pytestmark = needs_weights


def load(folder: Path) -> PreTrainedModel:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return load(zoo.target_path())


def answers(target: PreTrainedModel, prompts: list[str], heat: float, length: int) -> list[Text]:
    tokenizer = load_tokenizer(zoo.target_path())
    given = [encode_prompt(tokenizer, prompt) for prompt in prompts]
    new = continuations(
        CausalModel(target, "target"),
        {i: SamplingTask(prompt, heat) for i, prompt in enumerate(given)},
        max_new_tokens=length,
        eos_token_ids=[tokenizer.eos_token_id],
        rows=len(given),
        seed=7,
    )
    return [Text((*given[i], *answer), len(given[i])) for i, answer in sorted(new)]


def written(texts: list[Text]) -> list[str]:
    tokenizer = load_tokenizer(zoo.target_path())
    return [tokenizer.decode(x.tokens[x.start :], skip_special_tokens=True) for x in texts]


def test_the_files_are_those_of_the_manifest() -> None:
    files = zoo.manifest()["files"]
    assert set(files) == {p.relative_to(WEIGHTS).as_posix() for p in WEIGHTS.rglob("*.safetensors")}
    for name, entry in files.items():
        data = (WEIGHTS / name).read_bytes()
        assert len(data) == entry["bytes"]
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]


def test_every_specialist_is_at_home_in_its_domain() -> None:
    matrix = zoo.manifest()["acceptance"]
    for domain in zoo.manifest()["domains"]:
        others = {name: row[domain] for name, row in matrix.items() if name != domain}
        generalist = others.pop("generalist")
        assert matrix[domain][domain] > max(others.values())
        assert matrix[domain][domain] > generalist - 0.03


def test_every_eagle_head_is_measured_and_at_home() -> None:
    """Acceptance at most halves with depth; specialists beat the generalist in their domain."""
    matrix = zoo.manifest()["acceptance_by_depth"]
    assert set(matrix) == set(zoo.eagle_paths())
    for name, row in matrix.items():
        assert set(row) == set(SHARES)
        domain = name.removeprefix("eagle-")
        if domain in row:
            first, *_, last = row[domain]
            assert first > last > 0.5 * first
            assert first > matrix["eagle-generalist"][domain][0]


def test_models_load_as_float32_with_their_tokenizer(target: PreTrainedModel) -> None:
    assert target.dtype == torch.float32
    texts = ["def f(x):\n    return  x\t# ü 🙂\n", "12345 + 678 = 13023", " a  b .c 'd' n't"]
    for folder in (zoo.target_path(), *zoo.drafter_paths().values()):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert len(tokenizer) == target.config.vocab_size
        assert tokenizer.eos_token_id == target.config.eos_token_id
        for text in texts:
            tokens = tokenizer(text)["input_ids"]
            assert tokens == encode_prompt(tokenizer, text)
            assert tokenizer.decode(tokens, skip_special_tokens=True) == text


def test_the_target_writes_what_it_wrote_when_it_was_made(target: PreTrainedModel) -> None:
    expected = json.loads((HERE / "greedy.json").read_text("utf-8"))
    assert set(expected) == set(SHARES)
    prompts = zoo.prompts()
    found = written(answers(target, [prompts[domain][0] for domain in expected], 0.0, 32))
    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.parametrize("domain", ["sql"])
def test_the_matrix_is_reproduced(target: PreTrainedModel, domain: str) -> None:
    texts = answers(target, zoo.prompts()[domain][:6], 1.0, 120)
    matrix = zoo.manifest()["acceptance"]
    drafters = {name: load(zoo.drafter_paths()[name]) for name in (domain, "prose")}
    for name, alpha in measure_acceptance(target, drafters, texts).items():
        assert alpha == pytest.approx(matrix[name][domain], abs=0.1)
