"""``draftwise doctor``: what is installed, what will be used, and what is missing."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from cli.conftest import run_command
from draftwise import __version__


def test_every_line_of_a_full_installation_is_good() -> None:
    ran = run_command("doctor")
    assert ran.code == 0
    assert "!!" not in ran.out
    assert __version__ in ran.out
    for name in ("torch", "transformers"):
        assert importlib.metadata.version(name) in ran.out


@pytest.mark.parametrize(
    ("package", "found", "said"),
    [
        ("transformers", "5.1.0", "5.1.0 is not supported: pip install 'transformers"),
        ("safetensors", None, "not installed: pip install 'safetensors"),
    ],
)
def test_a_missing_or_old_requirement_is_an_error(
    package: str, found: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name != package:
            return real(name)
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr("draftwise.cli.doctor.version", version)
    ran = run_command("doctor")
    assert ran.code == 2
    assert said in ran.out


def test_a_missing_extra_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "numba":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr("draftwise.cli.doctor.version", version)
    ran = run_command("doctor")
    assert ran.code == 0
    assert "numba not installed (pip install -e '.[fast]'" in " ".join(ran.out.split())


def test_a_cache_that_cannot_be_written_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("draftwise.cli.doctor.os.access", lambda *_: False)
    assert "name another folder with DRAFTWISE_CACHE" in run_command("doctor").out
