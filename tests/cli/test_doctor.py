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
    ("package", "found", "code", "said"),
    [
        ("transformers", "5.1.0", 2, "5.1.0 is not supported: pip install 'transformers"),
        ("safetensors", None, 2, "not installed: pip install 'safetensors"),
        ("numba", None, 0, "numba not installed (pip install -e '.[fast]'"),
    ],
)
def test_what_is_missing_or_old_is_an_error_unless_it_is_an_extra(
    package: str, found: str | None, code: int, said: str, monkeypatch: pytest.MonkeyPatch
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
    assert ran.code == code
    assert said in " ".join(ran.out.split())


def test_a_cache_that_cannot_be_written_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAFTWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("draftwise.cli.doctor.os.access", lambda *_: False)
    assert "name another folder with DRAFTWISE_CACHE" in run_command("doctor").out
