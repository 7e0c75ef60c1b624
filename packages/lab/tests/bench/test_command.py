"""``draftwise contest`` from outside: results.json, answers, the report, and resuming."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from benches import Bench

from cli.conftest import run_command
from draftwise.colours import drafter_colours
from draftwise_lab.bench.report import SECTIONS
from draftwise_lab.bench.studio import file_name

ROW = {"tok_per_s", "mat", "speedup", "lossless"}


def test_results_have_the_promised_schema(bench: Bench) -> None:
    found = bench.results
    assert {"methods", "domains", "comparisons", "environment", "command", "settings"} <= set(found)
    assert set(found["domains"]) == {"mt_bench", "translation"}
    assert {"plain", "metasd", "hedgespec", "draftwise", "transformers"} <= set(found["methods"])
    assert any(name.startswith("fixed:lookupx") for name in found["methods"])
    assert found["is_complete"] is True
    assert found["drafters"] == ["small", "lookup"]
    for domain, rows in {"": found["methods"], **found["domains"]}.items():
        for row in rows.values():
            assert set(row) >= ROW
            assert set(row["speedup"]) == {"median", "ci95"}
            if domain == "translation":  # one prompt
                assert row["speedup"]["ci95"] is None
            else:
                low, high = row["speedup"]["ci95"]
                assert 0 < low <= row["speedup"]["median"] * 1.0001
                assert row["speedup"]["median"] <= high * 1.0001
            assert row["tok_per_s"] > 0
            assert row["mat"] >= 1.0
            assert row["lossless"] is True
    assert found["methods"]["plain"]["speedup"] == {"median": 1.0, "ci95": [1.0, 1.0]}
    environment = found["environment"]
    assert environment["threads"] == 1
    assert environment["dtype"] == "float32"
    assert {"torch", "transformers"} <= set(environment["versions"])
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", environment["date"])


def test_answers_are_in_spec_benchs_format(bench: Bench) -> None:
    for method in bench.results["methods"]:
        lines = (bench.folder / "answers" / f"{file_name(method)}.jsonl").read_text().splitlines()
        answers = [json.loads(line) for line in lines]
        assert [answer["question_id"] for answer in answers] == [81, 241, 82]
        for answer in answers:
            assert set(answer) == {"question_id", "category", "choices"}
            assert len(answer["choices"]) == 2
            for choice in answer["choices"]:
                keys = {"index", "turns", "decoding_steps", "new_tokens", "wall_time"}
                assert set(choice) == {*keys, "accept_lengths"}
                num_turns = 2 if answer["question_id"] == 81 else 1
                assert {len(choice[key]) for key in keys - {"index"}} == {num_turns}
                assert sum(choice["accept_lengths"]) == sum(choice["new_tokens"])
                assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])


def test_the_report_stands_alone_and_has_every_section(bench: Bench) -> None:
    report = bench.report
    for anchor, title in SECTIONS.items():
        assert f'<section id="{anchor}"><h2>{title}</h2>' in report
        assert f'href="#{anchor}"' in report
    assert report.count("<svg") == 7
    assert "prefers-color-scheme: dark" in report
    assert not re.search(r"https?:|//[a-z]|<script|<link|@import|src=", report)
    for method in bench.results["methods"]:
        assert f"<td>{method}</td>" in report
    ids = re.findall(r'\sid="([^"]+)"', report)
    assert len(ids) == len(set(ids))
    for link in set(re.findall(r'(?:url\(#|href="#)([^)"]+)', report)):
        assert link in ids
    assert "&lt;two&gt; &amp; three" in report
    assert "With 3 prompts the intervals are rough" in report
    assert "prompts: 3, tokens: at most 20, repeats: 2" in report
    legend = re.findall(r'<i style="background:(#[0-9a-f]+)"></i>(small|lookup) ', report)
    expected = drafter_colours(["small", "lookup"])
    assert legend
    assert all(expected[name] == colour for colour, name in legend)


def test_the_same_command_measures_nothing_again(bench: Bench) -> None:
    before = (bench.folder / "runs.jsonl").read_bytes()
    ran = run_command("contest", *bench.arguments, "--json")
    assert ran.code == 0
    assert (bench.folder / "runs.jsonl").read_bytes() == before
    assert json.loads(ran.out)["methods"] == bench.results["methods"]


def test_the_trace_is_one_to_replay(bench: Bench) -> None:
    trace = bench.folder / "trace.jsonl"
    found = json.loads(run_command("replay", trace, "--seeds", 1, "--json").out)
    assert found["domains"] == ["mt_bench", "translation"]
    assert found["coverage"]["small"] > 0.9
    assert json.loads(run_command("advise", trace, "--json").out)["num_requests"] == 3


def test_the_table_has_every_method(bench: Bench) -> None:
    ran = run_command("contest", *bench.arguments, "--no-report")
    assert ran.code == 0
    assert "x plain" in ran.out
    assert "draftwise, times as fast as" in ran.out
    assert ran.err.count("wrote") == 3
    assert "With 3 prompts the intervals are rough" in ran.err
    assert "prefill" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_ctrl_c_keeps_what_was_measured(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from draftwise_lab.cli.options import StageBars

    def update(self: StageBars, stage: str, done: int, total: int) -> None:
        if stage == "measuring" and done == total // 2:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(StageBars, "show", update)
    arguments = [*bench.arguments, "--method", "plain", "--repeats", "1"]
    arguments[arguments.index("--out") + 1] = str(tmp_path)
    ran = run_command("contest", *arguments)
    assert ran.code == 130
    assert "the same command resumes it" in ran.err
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["is_complete"] is False
    assert 1 <= found["settings"]["num_items_measured"] < 3
    assert (tmp_path / "report.html").exists()
