"""The library never loads pickles, evaluates text, or trusts a model's code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import draftwise

FILES = sorted(Path(draftwise.__file__).parent.rglob("*.py"))
MODULES = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "tarfile", "yaml"}
CALLS = {"eval", "exec", "os.system", "os.popen", "shutil.unpack_archive"}


def told(call: ast.Call, keyword: str) -> object:
    """The literal value of a keyword; None if absent, ... if not a literal."""
    for each in call.keywords:
        if each.arg == keyword:
            return each.value.value if isinstance(each.value, ast.Constant) else ...
    return None


def offences(tree: ast.AST) -> Iterator[str]:
    """Every forbidden import or call."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            yield from (f"import {x}" for x in names if x.partition(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        if name in CALLS or name.endswith((".extractall", ".extract")):
            yield name
        if name.endswith("torch.load") and told(node, "weights_only") is not True:
            yield name
        if name == "np.load" and told(node, "allow_pickle") not in {None, False}:
            yield name
        if told(node, "shell") or told(node, "trust_remote_code"):
            yield f"{name}: shell or trust_remote_code"
        is_free = name.startswith("Auto") and name.endswith(".from_pretrained")
        starred = any(each.arg is None for each in node.keywords)
        if is_free and not starred and told(node, "trust_remote_code") is not False:
            yield f"{name} may ask whether to trust"


def test_nothing_loads_or_runs_what_it_was_given() -> None:
    found = {str(file): list(offences(ast.parse(file.read_text("utf-8")))) for file in FILES}
    assert {file: some for file, some in found.items() if some} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "archive.extractall(folder)",
        "run(line, shell=True)",
        "AutoTokenizer.from_pretrained(path)",
        "AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)",
    ],
)
def test_the_search_finds_it(line: str) -> None:
    assert list(offences(ast.parse(line)))
