"""``draftwise advise``: output that can be pasted, and numbers that can be recomputed."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    PromptLookupCandidateGenerator,
)

from cli.conftest import run_command
from draftwise import Speculator
from draftwise.types import PLAIN, Plan
from draftwise_lab.bench.advice import Source, advise, batch_table, choose
from draftwise_lab.bench.scout import sources_of
from draftwise_lab.sim.traces import costs_by_batch

VLLM_VERSIONS = "0.30.0 to 0.33.0"
VLLM_FIELDS = {
    "attention_backend", "code_revision", "disable_eagle_block_drop",
    "disable_padded_drafter_batch", "draft_load_config", "draft_sample_method",
    "draft_tensor_parallel_size", "enable_adaptive_verification", "enforce_eager",
    "kv_cache_dtype", "max_model_len", "method", "model", "moe_backend", "num_speculative_tokens",
    "num_speculative_tokens_per_batch_size", "parallel_drafting", "prompt_lookup_max",
    "prompt_lookup_min", "quantization", "rejection_sample_method", "revision",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_max_tree_depth", "suffix_decoding_min_token_prob",
    "tensor_parallel_size", "use_heterogeneous_vocab",
}  # fmt: skip
"""Fields of vLLM's ``SpeculativeConfig`` that a user may set, in all of ``VLLM_VERSIONS``."""
VLLM_METHODS = {"ngram", "suffix", "draft_model", "eagle", "eagle3"}
LENGTHS = (0, 1, 2, 4, 8)
STEP_S, TOKEN_S, DRAFT_S = 0.010, 0.001, 0.0005


def verify_s(width: int, batch: int) -> float:
    """Seconds of a forward of ``width`` tokens for each of ``batch`` requests."""
    return STEP_S + TOKEN_S * width * batch


def write_log(path: Path, accepted: Sequence[float], drafter: str, sizes: Sequence[int]) -> Path:
    """A request of 60 tokens for each acceptance rate, alone; and timed steps of batches."""
    rng, lines = np.random.default_rng(0), []
    for request, rate in enumerate(accepted):
        hits = (rng.random(60) < rate).astype(int).tolist()
        for number in range(60):
            length = LENGTHS[number % len(LENGTHS)]
            scores = {"start": 5 + number, "alphas": [hits[number]], "ratios": [hits[number]]}
            lines.append(one_round(request, number, drafter, length, 1, {drafter: scores}))
    for size in sizes:
        for number, length in enumerate(LENGTHS):
            request = f"timed {size}"
            lines += [one_round(request, number, drafter, length, size, {}) for _ in range(size)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def one_round(
    request: Any, number: int, drafter: str, length: int, batch: int, scores: Any
) -> dict[str, Any]:
    seconds = {"verify": verify_s(length + 1, batch), "draft": DRAFT_S * length}
    seconds["learn"] = 1e-9 * number  # no two steps have the same seconds
    return {
        "request": request, "round": number + 1, "position": 5 + number, "num_drafted": length,
        "drafter": drafter if length else "none", "num_emitted": 1, "batch_size": batch,
        "scores": scores, "matches": {}, "seconds": seconds,
    }  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "log.jsonl", [0.9, 0.8, 0.85, 0.95], "eagle3", [16, 64])


def test_vllm_gets_a_config_that_it_has(log: Path) -> None:
    out = run_command("advise", log, "--for", "vllm").out
    words = shlex.split(next(line for line in out.splitlines() if line.startswith("vllm: ")))
    assert words[:2] == ["vllm:", "--speculative-config"]
    config = json.loads(words[2])
    assert set(config) <= VLLM_FIELDS
    assert config["method"] in VLLM_METHODS
    table = config["num_speculative_tokens_per_batch_size"]
    assert table[0][0] == 1
    for (_, end, _), (start, _, _) in itertools.pairwise(table):
        assert start == end + 1
    assert config["num_speculative_tokens"] == max(length for _, _, length in table) > 0


def test_every_engine_has_only_fields_that_vllm_has(tmp_path: Path) -> None:
    for drafter in ("eagle3", "small", "lookup", "suffix"):
        path = write_log(tmp_path / f"{drafter}.jsonl", [0.9, 0.9], drafter, [])
        if drafter in {"lookup", "suffix"}:
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for line in lines:
                for scores in line["scores"].values():
                    scores["matches"] = [3]
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        setting = advise(path)["engines"]["vllm"]["setting"]
        assert set(setting) <= VLLM_FIELDS
        assert setting["method"] in VLLM_METHODS


def test_sglang_gets_its_adaptive_config(log: Path) -> None:
    found = advise(log, engines=["sglang"])["engines"]["sglang"]
    assert all(key.isdigit() for key in found["setting"]["config"])
    for entry in found["setting"]["config"].values():
        assert len(entry["candidate_steps"]) == 1
        assert entry["candidate_steps"][0] >= 0
    assert found["setting"]["config"]["1"]["candidate_steps"][0] > 0
    flags, file = found["paste"].split("\n")
    assert "--speculative-algorithm EAGLE3" in flags
    assert json.loads(file.partition(": ")[2]) == found["setting"]["config"]


def pasted(out: str, engine: str) -> str:
    """The text printed for an engine, up to the expected gain."""
    return out.partition(f"{engine}:")[2].partition("\n  expected")[0].strip()


def test_what_transformers_gets_runs(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The assistant model and prompt lookup both draft the advised number of tokens."""
    model = AutoModelForCausalLM.from_pretrained(pair[0])
    model.generation_config.eos_token_id = None  # a draft ends with the assistant's EOS
    ids = torch.tensor([list(b"abcabcabcabc")])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    inputs |= {"max_new_tokens": 48, "do_sample": False, "return_dict_in_generate": True}
    plain = model.generate(**inputs).sequences
    drafted: list[int] = []
    for kind in (AssistedCandidateGenerator, PromptLookupCandidateGenerator):

        def counting(self: Any, given: Any, *more: Any, old: Any = kind.get_candidates) -> Any:
            found = old(self, given, *more)
            drafted.append(found[0].shape[1] - given.shape[1])
            return found

        monkeypatch.setattr(kind, "get_candidates", counting)
    for name in ("small", "lookup"):
        log = write_log(tmp_path / f"{name}.jsonl", [0.6, 0.7], name, [])
        log.write_text(log.read_text().replace('"alphas"', '"matches": [3], "alphas"'))
        if name == "small":
            log.write_text(log.read_text().replace('"matches": [3], ', ""))
        options = ("--for", "transformers", "--weights", f"{name}={pair[1]}")
        text = pasted(run_command("advise", log, *options).out, "transformers")
        known = {"model": model, "inputs": inputs, "AutoModelForCausalLM": AutoModelForCausalLM}
        *before, last = text.splitlines()
        exec("\n".join(before), known)
        drafted.clear()
        assert eval(last, known).sequences.tolist() == plain.tolist()
        length = json.loads(run_command("advise", log, *options, "--json").out)
        wanted = length["engines"]["transformers"]["length"]
        assert 1 < wanted < 20
        assert max(drafted) == wanted
        if name == "small":
            assert set(drafted[:-wanted]) == {wanted}  # the last drafts are cut by the answer's end


def test_a_trace_does_not_know_where_weights_lie(tmp_path: Path) -> None:
    """Without the path of the weights the advice has a placeholder and explains it."""
    log = write_log(tmp_path / "log.jsonl", [0.9, 0.8], "sql", [])
    out = run_command("advise", log).out
    for engine, mark in (
        ("vllm", "PATH-OF-sql"), ("transformers", "PATH-OF-sql"), ("llama.cpp", "GGUF-OF-sql")
    ):  # fmt: skip
        assert mark in pasted(out, engine)
        assert re.search(
            rf"not in it: .*the weights of sql: write .* for {mark}, or give --weights sql=",
            out.partition(f"{engine}:")[2],
        )
    folder, file = "/models/my sql", "/models/it's.gguf"
    weights = ("--weights", f"sql={folder}", "--weights", f"sql={file}")
    out = run_command("advise", log, *weights).out
    assert "weights of" not in out
    config = json.loads(shlex.split(pasted(out, "vllm"))[1])
    assert config["model"] == folder
    words = shlex.split(pasted(out, "llama.cpp"))
    assert words[words.index("--model-draft") + 1] == file
    assert f"from_pretrained({folder!r})" in pasted(out, "transformers")
    for wrong in ("sql", "sql=", "gone=/models/sql"):
        said = run_command("advise", log, "--weights", wrong).refusal
        assert f"--weights {wrong}: write NAME=PATH for one of sql" in said


def counted(log: Path, length: int, batch: int) -> np.ndarray:
    """Seconds of each request at a fixed length, replayed by hand; plain decoding for 0."""
    by_request: dict[Any, list[int]] = {}
    for line in map(json.loads, log.read_text().splitlines()):
        for scores in line["scores"].values():
            by_request.setdefault(line["request"], []).append(scores["alphas"][0])
    seconds = []
    for hits in by_request.values():
        total, place = 0.0, 0
        while place < len(hits):
            num = min(length, len(hits) - place - 1)
            run = 0
            while run < num and hits[place + run]:
                run += 1
            total += verify_s(num + 1, batch) + DRAFT_S * num
            place += run + 1
        seconds.append(total)
    return np.array(seconds)


def test_numbers_are_those_of_a_recount(log: Path) -> None:
    """The length is the fastest by hand; a request's gain is of the length best on the others."""
    found = advise(log, engines=["vllm"])["engines"]["vllm"]
    assert [row["batch_size"] for row in found["by_batch"]] == [1, 16, 64]
    for row in found["by_batch"]:
        table = np.array([counted(log, length, row["batch_size"]) for length in range(17)])
        assert row["length"] == int(table.sum(axis=1).argmin())
        others = table.sum(axis=1, keepdims=True) - table
        played = table[others.argmin(axis=0), range(table.shape[1])]
        if row["length"]:
            assert row["speedup"]["median"] == pytest.approx(table[0].sum() / played.sum())
            low, high = row["speedup"]["ci95"]
            assert low <= row["speedup"]["median"] <= high
    lengths = [row["length"] for row in found["by_batch"]]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]


def test_where_no_draft_pays_none_is_advised(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", [0.0, 0.05, 0.0], "eagle3", [16])
    for name, advice in advise(path)["engines"].items():
        assert advice["setting"] is None
        assert advice["speedup"] is None, name
    assert run_command("advise", path, "--for", "vllm").out.count("vllm: do not speculate") == 1


def test_one_request_has_no_interval(tmp_path: Path) -> None:
    path = write_log(tmp_path / "log.jsonl", [0.9], "eagle3", [])
    ran = run_command("advise", path, "--for", "vllm")
    assert re.search(r"expected: \d+ tokens, [\d.]+ x plain\n", ran.out)
    found = json.loads(run_command("advise", path, "--json").out)
    assert found["engines"]["vllm"]["speedup"]["ci95"] is None
    assert "num_speculative_tokens_per_batch_size" not in found["engines"]["vllm"]["setting"]
    assert any("batch" in text for text in found["engines"]["vllm"]["excludes"])


def test_intervals_cover_the_gain_of_new_requests() -> None:
    """At least 88% of 200 intervals from 24 requests each contain the gain on 20,000 requests.

    A bootstrap over 24 requests covers a little less than 95%; 88% is four deviations below 95%.
    """
    rng = np.random.default_rng(1)
    plans = [PLAIN, *(Plan("small", length) for length in (1, 2, 4, 8))]

    def requests(num: int) -> tuple[np.ndarray, np.ndarray]:
        rates = rng.beta(8, 4, num)
        tokens = np.full(num, 60.0)
        rows = [tokens]
        for length in (1, 2, 4, 8):
            emitted = sum(rates**k for k in range(length + 1))
            rows.append(tokens / emitted * (1 + 0.05 * length) * rng.normal(1, 0.05, num))
        return np.array(rows), tokens

    many, tokens = requests(20_000)
    truth = choose(plans, many, many[0], tokens, {"small"}).speedup.value
    inside = 0
    for _ in range(200):
        seconds, tokens = requests(24)
        found = choose(plans, seconds, seconds[0], tokens, {"small"}).speedup
        inside += found.low <= truth <= found.high
    assert inside >= 176


def test_choosing_on_noise_promises_nothing() -> None:
    """The best of equally fast lengths looks faster by chance; no gain may be promised."""
    rng = np.random.default_rng(2)
    plans = [PLAIN, *(Plan("small", length) for length in range(1, 17))]
    promised = []
    for _ in range(100):
        seconds = np.vstack([np.ones(8), rng.normal(1, 0.2, (16, 8))])
        promised.append(choose(plans, seconds, seconds[0], np.ones(8), {"small"}).speedup.value)
    assert np.mean(promised) < 1.02


def test_steps_of_batches_are_priced_once(log: Path) -> None:
    records = [json.loads(line) for line in log.read_text().splitlines()]
    tables = costs_by_batch(records, need_plain=True)
    assert sorted(tables) == [1, 16, 64]
    for size, table in tables.items():
        for length in LENGTHS:
            assert table.target_s[size][length] == pytest.approx(verify_s(length + 1, size))
        assert table.draft_s["eagle3"] == pytest.approx(DRAFT_S)
    drafting = [one for one in records if one["batch_size"] != 16 or one["num_drafted"]]
    assert sorted(costs_by_batch(drafting, need_plain=True)) == [1, 64]


def test_ranges_of_batch_sizes() -> None:
    assert batch_table([(1, 5)]) == [[1, 1, 5]]
    assert batch_table([(1, 5), (4, 3), (16, 3), (64, 0)]) == [[1, 1, 5], [2, 16, 3], [17, 64, 0]]


def test_a_short_run_on_the_users_prompts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abcabcabcabcabc\none two one two one two\nThe tide, the tide, the\n")
    options = ("--target", pair[0], "-d", f"lm:{pair[1]}", "--prompts", prompts, "-n", 16, "-q")
    found = json.loads(run_command("advise", *options, "--batch-sizes", "1,2", "--json").out)
    assert (found["num_requests"], found["trace"]) == (3, str(prompts))
    advice = found["engines"]["vllm"]
    if advice["drafter"] != "none":
        assert [row["batch_size"] for row in advice["by_batch"]] == [1, 2]
        if advice["setting"] is not None:
            assert advice["setting"]["model"] == str(pair[1])
    said = run_command("advise", *options, "--weights", "gone=x").refusal
    assert "write NAME=PATH for one of drafter" in said
    found["engines"].pop("sglang")
    for engine, advice in found["engines"].items():
        if advice["setting"] is not None:
            told = [text for text in advice["excludes"] if "weights of drafter" in text]
            assert len(told) == (engine == "llama.cpp")


def test_drafters_know_what_they_were_loaded_from(pair: tuple[Path, Path]) -> None:
    """Models keep their folder and any GGUF file; heads keep the path from their spec."""
    made = Speculator.from_pretrained(str(pair[0]), [f"a=lm:{pair[1]}", "lookup"])
    assert sources_of(made, [f"a=lm:{pair[1]}", "lookup"]) == {
        "a": Source("model", str(pair[1])), "lookup": Source("lookup"),
    }  # fmt: skip
    found = sources_of(made, ["a=lm:/models/small.GGUF", "lookup"])
    assert found["a"] == Source("model", str(pair[1]), "/models/small.GGUF")
    head = SimpleNamespace(name="head", retrieves=False)
    other = SimpleNamespace(drafters=[head])
    for spec in ("eagle:org/head", "head=eagle:path=org/head,depth=3"):
        assert sources_of(other, [spec])["head"].path == "org/head"
