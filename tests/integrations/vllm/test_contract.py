"""The parts of vLLM in use, looked up in its releases' sources (``make vllm-sources``)."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from draftwise.errors import DraftwiseError
from draftwise.integrations.vllm.capabilities import check_capabilities, missing

FOLDER = Path(os.environ.get("DRAFTWISE_VLLM_SOURCES", Path(__file__).parents[3] / ".vllm-sources"))
RELEASES = sorted(FOLDER.glob("*/vllm"))

here = pytest.mark.skipif(not RELEASES, reason="make vllm-sources downloads vLLM's releases")


@here
@pytest.mark.parametrize("root", RELEASES, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_that_is_used_is_missing(root: Path, asynchronous: bool) -> None:
    assert missing(root, asynchronous=asynchronous) == []


@here
@pytest.mark.parametrize("root", RELEASES, ids=lambda path: path.parent.name)
def test_the_code_relied_on_is_there(root: Path) -> None:
    """By statement, as vLLM writes it; a change here has to be read before it is believed."""
    scheduler = code(root / "v1/core/sched/scheduler.py")
    # what vLLM does not keep of a step is cut from the list that draftwise reads afterwards
    assert "del new_token_ids[num_new:]" in scheduler
    # new decode requests are padded to the longest draft only where no length is looked up
    assert "self.num_spec_tokens > 0 and self.dynamic_sd_lookup is None" in scheduler
    assert "self.dynamic_sd_lookup[len(num_scheduled_tokens)]" in scheduler
    overlapping = code(root / "v1/core/sched/async_scheduler.py")
    assert "request.spec_token_ids = self._spec_token_placeholders" in overlapping
    core = code(root / "v1/engine/core.py")
    launched = core.index("self.model_executor.execute_model(scheduler_output, non_block=True)")
    masked = core.index("self.scheduler.get_grammar_bitmask(scheduler_output)")
    assert launched < masked < core.index("future.result()")


def code(file: Path) -> str:
    """Source with vLLM's line breaks and comments taken out."""
    return ast.unparse(ast.parse(file.read_text("utf-8")))


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A vLLM whose scheduler lost a method and whose request lost a field."""
    scheduler = tmp_path / "v1/core/sched/scheduler.py"
    scheduler.parent.mkdir(parents=True)
    scheduler.write_text(
        "class Scheduler:\n    def schedule(self): return self.dynamic_sd_lookup\n"
    )
    request = tmp_path / "v1/request.py"
    request.write_text("class Request:\n    def __init__(self, cache_salt): self.num_tokens = 1\n")
    found = missing(tmp_path, asynchronous=False)
    assert "v1/core/sched/scheduler.py: Scheduler.update_draft_token_ids" in found
    assert "v1/request.py: Request(lora_request)" in found
    assert "v1/request.py: Request(cache_salt)" not in found
    with pytest.raises(DraftwiseError, match=r"Scheduler\.update_draft_token_ids; "):
        check_capabilities(tmp_path, asynchronous=False)
