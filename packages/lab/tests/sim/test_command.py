"""``draftwise simulate`` from outside: JSON, tables, plots, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner
from worlds import write_npz

from draftwise.types import DraftwiseError
from draftwise_lab.cli.simulate import simulate

app = typer.Typer()
app.command()(simulate)


def run(*options: str) -> Any:
    result = CliRunner().invoke(app, list(options))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_json_has_the_promised_keys() -> None:
    result = run("--preset", "geometric", "--policy", "ucbspec", "--policy", "random",
                 "--tokens", "50", "--seeds", "2", "--json")  # fmt: skip
    found = json.loads(result.stdout)
    assert found["preset"] == "geometric"
    assert {row["policy"] for row in found["results"]} >= {"ucbspec", "random", "plain"}
    row = found["results"][0]
    keys = {"domain", "policy", "mat", "rounds", "tok_per_s", "regret", "best_plan_ratio", "ci95"}
    assert keys <= set(row)
    assert set(found["average"]) >= {"ucbspec", "random"}


def test_one_text_has_no_interval() -> None:
    asked = ("--preset", "geometric", "--policy", "ucbspec", "--tokens", "20", "--seeds")
    found = json.loads(run(*asked, "1", "--json").stdout)
    assert found["average"]["ucbspec"]["ci95"] is None
    assert found["results"][0]["regret_ci95"] is None
    assert "one text in a domain has no interval" in run(*asked, "1").stdout
    found = json.loads(run(*asked, "2", "--json").stdout)
    assert found["average"]["ucbspec"]["ci95"] > 0
    assert "no interval" not in run(*asked, "2").stdout


def test_a_trace_is_replayed_with_its_costs(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "replay.npz")
    result = run("--trace", str(path), "--costs", "cpu", "--policy", "goodput", "--lengths", "0-4",
                 "--seeds", "1", "--tokens", "40", "--json")  # fmt: skip
    found = json.loads(result.stdout)
    assert found["preset"] == "replay.npz"
    assert found["domains"] == ["code@0.7", "copy@0"]
    assert found["policies"]["goodput"]["num_plans"] == 17


def test_options_for_reward_and_feedback_hold_for_all_policies() -> None:
    result = run("--preset", "geometric", "--policy", "ucb1", "--reward", "acceptance",
                 "--feedback", "panoramic", "--tokens", "20", "--seeds", "1", "--json")  # fmt: skip
    policy = json.loads(result.stdout)["policies"]["ucb1"]
    assert (policy["reward"], policy["feedback"]) == ("acceptance", "panoramic")


def test_plots_are_drawn_and_the_same_twice(tmp_path: Path) -> None:
    names = ["regret.png", "best-plan.png", "estimates.png", "drafters.png"]
    for folder in ("one", "two"):
        result = run("--policy", "ucbspec", "--policy", "exp3spec", "--policy", "goodput@0-8",
                     "--drafters", "2,3", "--tokens", "60", "--seeds", "2", "--json",
                     "--plot", str(tmp_path / folder))  # fmt: skip
        assert [one["num_drafters"] for one in json.loads(result.stdout)] == [2, 3]
    lone = tmp_path / "lone"  # without a regret bound; one panel stays empty
    run("--preset", "geometric", "--policy", "random", "--tokens", "30", "--seeds", "1",
        "--plot", str(lone))  # fmt: skip
    assert sorted(path.name for path in lone.iterdir()) == sorted(names[:3])
    for name in names:
        first, second = ((tmp_path / folder / name).read_bytes() for folder in ("one", "two"))
        assert first == second
        assert first.startswith(b"\x89PNG")
        assert len(first) > 10_000


def test_a_folder_that_cannot_be_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DraftwiseError, match="plots cannot go to"):
        run("--plot", str(tmp_path / "file" / "figures"))
