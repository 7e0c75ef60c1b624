"""The parts of vLLM in use, looked up in its releases' sources (``make vllm-sources``)."""

from __future__ import annotations

import ast
import os
import runpy
from pathlib import Path

import pytest

from draftwise.errors import DraftwiseError
from draftwise.integrations.vllm.capabilities import check_capabilities, missing
from draftwise.integrations.vllm.plugin import LENGTHS, adapted

FOLDER = Path(os.environ.get("DRAFTWISE_VLLM_SOURCES", Path(__file__).parents[3] / ".vllm-sources"))
V2 = "v1/worker/gpu"
LACKS = [
    f"{V2}/model_runner.py: GPUModelRunner.sample_tokens(num_spec_tokens_to_schedule)",
    f"{V2}/model_runner.py: GPUModelRunner.sample_tokens(num_speculative_tokens)",
    f"{V2}/spec_decode/__init__.py: init_speculator(req_states)",
    f"{V2}/spec_decode/speculator.py: BaseSpeculator.propose(num_speculative_tokens)",
    f"{V2}/spec_decode/ngram/speculator.py: NgramGPUSpeculator.propose",
    "config/speculative.py: SpeculativeConfig(use_ngram)",
]
RELEASES: dict[str, list[str]] = {"0.30.0": LACKS, "0.31.0": LACKS, "0.32.0": [], "0.33.0": []}
"""vLLM's releases, and the names that ``Scheduler`` uses and each lacks."""


@pytest.fixture(params=RELEASES)
def root(request: pytest.FixtureRequest) -> Path:
    """The package ``vllm`` of a release."""
    found = FOLDER / request.param / "vllm"
    if not found.exists():
        pytest.skip(f"no vLLM {request.param} in {FOLDER.name} (make vllm-sources)")
    return found


def test_nothing_that_is_used_is_missing(root: Path) -> None:
    assert missing(root, asynchronous=False) == []
    lacks = RELEASES[root.parent.name]
    assert missing(root, asynchronous=True) == lacks
    if lacks:
        with pytest.raises(DraftwiseError, match=r"tokens_to_schedule.*0\.32 and 0\.33 do"):
            check_capabilities(root, asynchronous=True)


def test_the_releases_are_those_that_are_downloaded() -> None:
    makefile = Path(__file__).parents[3] / "Makefile"
    assert f"VLLM_RELEASES ?= {' '.join(RELEASES)}\n" in makefile.read_text()


def test_the_code_relied_on_is_there(root: Path) -> None:
    """Statements of vLLM that draftwise relies on; review any change before updating them."""
    scheduler = code(root / "v1/core/sched/scheduler.py")
    # vLLM cuts rejected tokens from the list that draftwise reads afterwards
    assert "del new_token_ids[num_new:]" in scheduler
    # new decode requests are padded to the longest draft only without a length lookup
    assert "self.num_spec_tokens > 0 and self.dynamic_sd_lookup is None" in scheduler
    assert "self.dynamic_sd_lookup[len(num_scheduled_tokens)]" in scheduler
    overlapping = code(root / "v1/core/sched/async_scheduler.py")
    assert "request.spec_token_ids = self._spec_token_placeholders" in overlapping
    core = code(root / "v1/engine/core.py")
    launched = core.index("self.model_executor.execute_model(scheduler_output, non_block=True)")
    masked = core.index("self.scheduler.get_grammar_bitmask(scheduler_output)")
    assert launched < masked < core.index("future.result()")


def test_the_code_relied_on_in_workers_is_there(root: Path) -> None:
    """Statements of runner V2 that mixed drafts rely on."""
    if RELEASES[root.parent.name]:
        pytest.skip("mixed drafts need 0.32")
    folder = root / "v1/worker/gpu"
    propose = function(folder / "spec_decode/speculator.py", "BaseSpeculator", "propose")
    names = [argument.arg for argument in propose.args.args]
    assert names[1] == "input_batch"
    assert names[6:8] == ["num_sampled", "num_rejected"]  # passed by position
    runner = code(folder / "model_runner.py")
    ended, begun, prepared = (
        runner.index(f"self.{name}(scheduler_output") for name in
        ("finish_requests", "add_requests", "prepare_inputs")
    )  # fmt: skip
    assert ended < begun < prepared  # texts of ended requests are read before
    sample = ast.unparse(function(folder / "model_runner.py", "GPUModelRunner", "sample_tokens"))
    new, written = sample.index("self.postprocess_sampled("), sample.index("speculator.propose(")
    assert new < written  # the texts hold the step's tokens when drafts are written
    assert "if num_spec_tokens < self.num_speculative_steps:" in runner
    assert "self.req_states.draft_tokens[input_batch.idx_mapping] = draft_tokens" in runner
    adaptive = code(folder / "spec_decode/adaptive_verification.py")
    assert (
        "num_drafts_per_req, num_non_draft_tokens_per_req, draft_budget = batch_budget" in adaptive
    )
    assert "survival = confidence_probs[idx_mapping].cumprod(dim=1)" in adaptive


@pytest.mark.parametrize("max_num_seqs", [1, 2, 5, 6, 64])
def test_graphs_are_captured_for_the_longest_draft_and_none(root: Path, max_num_seqs: int) -> None:
    """Graph lengths as vLLM derives them from the list of lengths."""
    lookup_of = runpy.run_path(str(root / "v1/spec_decode/dynamic/utils.py"))[
        "build_dynamic_sd_schedule_lookup"
    ]
    given = {"method": "eagle3", "num_speculative_tokens": 5}
    listed = adapted(given, max_num_seqs, each=True)[LENGTHS]
    captured = set(lookup_of(listed, max_num_seqs, 5)[1:])
    assert len(captured) == min(max_num_seqs, 6)
    assert captured >= ({0, 5} if max_num_seqs > 1 else {5})


def function(file: Path, owner: str, name: str) -> ast.FunctionDef:
    """A method of a class in a source file."""
    tree = ast.parse(file.read_text("utf-8"))
    (found,) = (node for node in tree.body if getattr(node, "name", None) == owner)
    (method,) = (node for node in found.body if getattr(node, "name", None) == name)
    return method


def code(file: Path) -> str:
    """Source without vLLM's line breaks and comments."""
    return ast.unparse(ast.parse(file.read_text("utf-8")))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A vLLM whose scheduler lost a method and whose request lost a field."""
    scheduler = tmp_path / "v1/core/sched/scheduler.py"
    scheduler.parent.mkdir(parents=True)
    scheduler.write_text(
        "class Scheduler:\n    def schedule(self): return self.dynamic_sd_lookup\n"
    )
    sampling = tmp_path / "sampling_params.py"
    sampling.write_text("class SamplingParams:\n    minimum_p: float\n    logit_bias: dict\n")
    request = tmp_path / "v1/request.py"
    request.write_text("class Request:\n    def __init__(self, cache_salt): self.num_tokens = 1\n")
    found = missing(tmp_path, asynchronous=False)
    assert "v1/core/sched/scheduler.py: Scheduler.update_draft_token_ids" in found
    assert "v1/request.py: Request(lora_request)" in found
    assert "v1/request.py: Request(cache_salt)" not in found
    assert "sampling_params.py: SamplingParams(min_p)" in found
    assert "sampling_params.py: SamplingParams(logit_bias)" not in found
    with pytest.raises(DraftwiseError, match=r"Scheduler\.update_draft_token_ids; "):
        check_capabilities(tmp_path, asynchronous=False)
