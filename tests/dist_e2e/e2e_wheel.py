"""``make dist``: the wheels in an environment of exactly their required dependencies."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import zipfile
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, files, requires
from pathlib import Path

import pytest

from draftwise import install

DIST = Path(__file__).parents[2] / "dist"
MAX_BYTES = 5_000_000


def _wheel(name: str) -> Path:
    (found,) = DIST.glob(f"{name}-*.whl")
    return found


def _needed(wheel: Path) -> set[str]:
    """The packages that a wheel requires, directly or indirectly, without any extra."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        lines = re.findall(r"^Requires-Dist: (.*)$", opened.read(name).decode(), re.MULTILINE)
    found = set[str]()
    while lines:
        line, *lines = lines
        name = re.split(r"[^\w.-]", line, maxsplit=1)[0]
        if "extra ==" not in line and name not in found:
            with suppress(PackageNotFoundError):  # for another platform or Python
                lines += requires(name) or []
                found.add(name)
    return found


def _lend(name: str, place: Path) -> None:
    """Link an installed package into another environment."""
    home = Path(sysconfig.get_path("purelib"))
    for top in {file.parts[0] for file in files(name) or ()} - {"..", "__pycache__"}:
        if not (place / top).exists():
            (place / top).symlink_to(home / top)


def _run(python: Path, *line: str) -> subprocess.CompletedProcess[str]:
    home = python.parent
    return subprocess.run([python, *line], capture_output=True, text=True, cwd=home, env={})


def _install(python: Path, wheel: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with draftwise and its requirements, without weights."""
    home = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    python = home / "bin" / "python"
    place = _run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout
    for name in _needed(_wheel("draftwise")):
        _lend(name, Path(place.strip()))
    _install(python, _wheel("draftwise"))
    return python


def test_the_wheel_is_small_and_typed() -> None:
    wheel = _wheel("draftwise")
    assert wheel.stat().st_size < MAX_BYTES
    names = zipfile.ZipFile(wheel).namelist()
    assert {
        "draftwise/py.typed",
        "draftwise/serve/page.html",
    } <= set(names)
    assert not any(name.endswith(".safetensors") for name in names)


def test_without_weights_it_says_what_to_install(python: Path) -> None:
    ran = _run(python, "-m", "draftwise", "demo")
    assert ran.returncode == 2
    assert install.ZOO_HINT in " ".join(ran.stderr.split())


def test_the_demo_runs(python: Path) -> None:
    _install(python, _wheel("draftwise_zoo"))
    ran = _run(python.parent / "draftwise", "demo", "--prompts", "1", "--max-new-tokens", "24")
    assert ran.returncode == 0, ran.stderr
    assert "draftwise" in ran.stdout
    where = _run(python, "-c", "import draftwise; print(draftwise.__file__)").stdout
    assert where.startswith(str(python.parents[1]))


def test_heads_of_pretrained_targets_come_with_the_weights(python: Path) -> None:
    show = "from draftwise_zoo import own_folders; print(own_folders('smollm2'))"
    assert "draftwise_zoo/real/smollm2/eagle" in _run(python, "-c", show).stdout
