"""How draftwise is installed: the one place to edit when its wheels are published.

With ``IS_PUBLISHED = True``, messages name the published package and ``make bench-docs`` rewrites
the lines of the README and the docs; ``tests/test_install.py`` finds lines that say otherwise.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

IS_PUBLISHED = False


def command(*extras: str) -> str:
    """The ``pip install`` command for these extras; until a release, for a checkout.

    A checkout contains the bundled models, so only wheels need the extra ``zoo``.

    >>> command("serve", "zoo")
    "pip install -e '.[serve]'"
    """
    wanted = sorted(set(extras) if IS_PUBLISHED else set(extras) - {"zoo"})
    what = "draftwise" if IS_PUBLISHED else "."
    named = f"'{what}[{','.join(wanted)}]'" if wanted else what
    return f"pip install {named}" if IS_PUBLISHED else f"pip install -e {named}"


def hint(*extras: str) -> str:
    """The command for these extras in an error message, with the folder to run it in."""
    return command(*extras) + ("" if IS_PUBLISHED else " in your checkout of draftwise")


def lab_command() -> str:
    """The install command of the lab: simulator, replay, reports and studies.

    >>> lab_command()
    'pip install -e packages/lab'
    """
    return "pip install draftwise-lab" if IS_PUBLISHED else "pip install -e packages/lab"


def lab_hint() -> str:
    """The install command of the lab in an error message, with the folder to run it in."""
    return lab_command() + ("" if IS_PUBLISHED else " in your checkout of draftwise")


def find_weights(here: Path, name: str) -> Path:
    """``here`` in a source tree, else the folder ``name`` of the package draftwise-zoo."""
    package = find_spec("draftwise_zoo")
    if here.exists() or package is None or package.origin is None:
        return here
    return Path(package.origin).parent / name
