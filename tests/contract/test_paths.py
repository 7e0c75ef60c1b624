"""A path is a path, whatever its name: in specs of drafters, policies and rules, and in options."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import run_command
from cli.models_on_disk import make_target, save_model, save_pair
from draftwise import DraftwiseError, Speculator
from draftwise.drafters.lm import LMDrafter
from draftwise.files import local_path
from draftwise.nn.load import load_model
from draftwise.registry import make_policy, parse_options
from draftwise.settings import check_drafter, lm_options, name_and_spec

NAMES = [
    "lr=1e-4,bs=8", "a,b", "step=10", "epoch:3", "two words", " led", "größe-ü", "100%", "x;y&z",
    "window", "lm", "lookup", "zoo", "it's", "a,window", ",", "=", "c:d=e,f", "-d", "$HOME",
]  # fmt: skip
"""Names of folders."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return save_pair(tmp_path_factory.mktemp("pair"))


def spellings(name: str, root: Path) -> tuple[list[str], list[str]]:
    """Absolute and relative spellings of a folder in ``runs``, which is the current folder."""
    return (
        [f"lm:{root}/runs/{name}", f"lm:{root}/runs/{name}/", f"mine=lm:{root}/runs/{name}"],
        [f"lm:./{name}", f"lm:~/runs/{name}", f"lm:../runs/{name}"],
    )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, below the home folder."""
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path / "runs")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "runs"


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_any_name_can_be_named(name: str, pair: tuple[Path, Path], runs: Path) -> None:
    (runs / name).symlink_to(pair[1], target_is_directory=True)
    for spec in itertools.chain(*spellings(name, runs.parent)):
        check_drafter(spec)
        found = lm_options(name_and_spec(spec)[1])
        assert local_path(found["path"]).resolve() == pair[1]
    assert name_and_spec(Path(name)) == (name, Path(name))


@pytest.mark.parametrize("name", ["lr=1e-4,bs=8", "c:d=e,f"])
def test_a_drafter_is_loaded_from_a_folder_of_any_name(
    name: str, pair: tuple[Path, Path], runs: Path
) -> None:
    (runs / name).symlink_to(pair[1], target_is_directory=True)
    (first, *_), (_, second, _) = spellings(name, runs.parent)
    specs = [first, second, Path(name)]
    drafters = Speculator.from_pretrained(load_model(pair[0]).module, specs).drafters
    for drafter in drafters:
        assert isinstance(drafter, LMDrafter)
        assert drafter.home is not None
        assert drafter.home.resolve() == pair[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/model,window=8", {"path": "org/model", "window": 8}),
        ("/gone/lr=1,bs=2,window=8", {"path": "/gone/lr=1,bs=2", "window": 8}),
        ("/gone/lr=1,bs=2", {"path": "/gone/lr=1,bs=2"}),
        ("C:\\models\\a,b", {"path": "C:\\models\\a,b"}),
        ("window=8", {"window": 8}),
        ("org/model", {"path": "org/model"}),
        ("", {}),
    ],
)
def test_a_path_ends_at_an_option(text: str, expected: dict[str, Any]) -> None:
    assert parse_options("it", text, {"path": Path | str, "window": int}) == expected


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("lm:/gone/lr=1,bs=2", r"no model folder /gone/lr=1,bs=2"),
        ("lm:C:\\models\\gone", r"no model folder C:\\models\\gone"),
        ("lm:org/model,windw=8", r"no model folder org/model,windw=8"),
        ("lm:org/model,window=8", r"option window of drafter 'lm' has been removed: leave it out"),
        ("lookup:nope=8", r"has no option 'nope'; its options are: prompt_lookup_min"),
        ("eagle:/gone/a,b", r"there is no model folder /gone/a,b:"),
        ("eagle:/gone/a,depth=2", r"there is no model folder /gone/a:"),
        ("datastore:~/gone,x", r"there is no ~/gone,x"),
        ("lm:", r"names nothing|no model folder"),
        ("lm:.", r"\. has no config\.json"),
    ],
)
def test_refusals_name_the_path_as_it_was_read(spec: str, said: str) -> None:
    with pytest.raises(DraftwiseError, match=said):
        check_drafter(spec)


def test_names_of_drafters_are_those_of_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lr=1,bs=8").mkdir()
    monkeypatch.chdir(tmp_path / "lr=1,bs=8")
    for spec in (f"lm:{tmp_path}/lr=1,bs=8", "lm:.", Path.cwd()):
        assert name_and_spec(spec)[0] == "lr=1,bs=8"
    assert name_and_spec("mine=lm:a=b,c") == ("mine", "lm:a=b,c")


def test_heads_and_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_target()
    monkeypatch.setenv("HOME", str(tmp_path))
    file = tmp_path / "a,b=c.jsonl"
    file.write_text('{"text": "x", "plan": 1}\n')
    for spelling in (file, "~/a,b=c.jsonl"):
        make_policy(f"router:examples={spelling},plan=1", 2)
        make_policy(f"router:plan=1,examples={spelling}", 2)
    for spec in ("datastore:~/a,b=c.jsonl", f"mine=datastore:file={file},num_matches=3"):
        check_drafter(spec)
        with pytest.raises(DraftwiseError, match=r"a,b=c\.jsonl is no datastore"):
            Speculator.from_pretrained(target, [spec])


def test_commands_expand_the_home_folder_in_every_option(
    pair: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell leaves ``--file=~/x`` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ask").write_text("hi")
    (tmp_path / "t,x=1").symlink_to(pair[0], target_is_directory=True)
    (tmp_path / "d,x=1").symlink_to(pair[1], target_is_directory=True)
    ran = run_command(
        "generate", "--target=~/t,x=1", "--drafter=lm:~/d,x=1", "--file=~/ask", "--trace=~/trace",
        "--scope=auto", "--state=~/state", "-n", 2,
    )  # fmt: skip
    assert ran.code == 0
    assert (tmp_path / "trace").is_file()
    assert (tmp_path / "state").is_file()
    assert run_command("generate", "hi", "-n", 2, "--drafter=lm:~/d,x=1").code in {0, 2}


def test_a_library_call_expands_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    save_model(tmp_path / "a,b", make_target())
    made = Speculator.from_pretrained("~/a,b", [])
    made.generate("x", max_new_tokens=1, trace="~/trace")
    assert (tmp_path / "trace").is_file()
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # no home, no name of the user
    with pytest.raises(DraftwiseError, match="there is no model folder ~/a,b"):
        Speculator.from_pretrained("~/a,b")
