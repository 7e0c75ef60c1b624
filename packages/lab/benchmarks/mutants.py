"""Do the tests detect a planted bug? Mutants of the code behind losslessness and pricing.

Cosmic Ray creates the mutants: each changes one operator, number, condition or decorator of a
module, as ``OPERATORS`` says; changes to annotations alone do not count. Each mutant runs in a
process forked from one that has imported torch, with the smallest set of tests that should kill it;
the file on disk does not change. A mutant is killed if a test fails or the tests take ``PATIENCE``
times their processor time. ``make mutants``; ``docs/lab/mutants.md`` lists survivors.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import functools
import gc
import importlib
import json
import multiprocessing
import os
import re
import resource
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from itertools import count
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from shared.child import child_seconds

ROOT = Path(__file__).parents[3]
EQUAL = tomllib.loads((Path(__file__).parent / "shared/equal_mutants.toml").read_text("utf-8"))
"""Equivalent mutants, by module and by the reason for their equivalence."""
MODULES: dict[str, tuple[str, ...]] = {
    "engine/verify": ("tests/test_dist.py", "tests/engine/test_lossless_exact.py"),
    "nn/verify": ("tests/nn/test_verify.py",),
    "nn/cache": (
        "tests/nn/test_storage.py", "tests/nn/test_cache.py", "tests/nn/test_trees.py",
        "tests/nn/test_longrope.py", "tests/engine/test_windows.py",
    ),
    "controller/rates": (
        "tests/controller/test_rates.py", "tests/controller/test_goodput.py",
        "tests/controller/test_writer.py", "tests/controller/test_experience.py",
    ),
    "controller/goodput": (
        "tests/controller/test_goodput.py", "tests/controller/test_looks.py",
        "tests/controller/test_pricing.py",
    ),
}  # fmt: skip
"""By module: the tests that should kill its mutants; together they run for seconds."""

PYTEST = ("-x", "-q", "-W", "ignore:Module already imported")
BLANK = re.compile(r"(?:(?<=[(\[])|(?<=\w=)|(?<=\[-)) (?=-?\d)")
"""Spaces that the operator on numbers inserts before them."""
PATIENCE, LEAST_S, MEMORY = 4, 10, 24 << 30
SWAPS = {
    "Binary": "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Pow_Mul Mod_Add BitOr_BitAnd "
    "BitAnd_BitOr LShift_RShift RShift_LShift",
    "Comparison": "Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Eq_NotEq NotEq_Eq "
    "Is_IsNot IsNot_Is",
    "Unary": "Delete_Not Delete_Invert Delete_USub",
}
OPERATORS = [
    *(f"Replace{kind}Operator_{swap}" for kind, swaps in SWAPS.items() for swap in swaps.split()),
    *("NumberReplacer", "AddNot", "ZeroIterationForLoop", "RemoveDecorator", "ExceptionReplacer"),
    *("ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak"),
]  # fmt: skip


class Mutant(NamedTuple):
    """A module's source with one change, ``was`` -> ``becomes``, on one of its lines."""

    module: str
    line: int
    was: str
    becomes: str
    source: str


def meaning(source: str) -> str:
    """A source's syntax tree without annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if isinstance(getattr(node, name, None), ast.expr):
                setattr(node, name, ast.Constant(None))
    return ast.dump(tree)


def mutants(module: str) -> Iterator[Mutant]:
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    source = (ROOT / f"src/draftwise/{module}.py").read_text("utf-8")
    original = meaning(source)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        for occurrence in count():
            mutated = mutate_code(source, operator, occurrence)
            if mutated is None:
                break
            with contextlib.suppress(SyntaxError):  # `**` of a dict display is no operator
                if meaning(mutated) != original:
                    yield Mutant(module, *change(source, mutated), mutated)


def change(source: str, mutated: str) -> tuple[int, str, str]:
    """The first line, from 1, where two sources differ, and both versions of the changed code."""
    before, after = source.splitlines(), mutated.splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    _, first, last, start, end = next(block for block in blocks if block[0] != "equal")
    parts = before[first:last], after[start:end]
    was, becomes = (" ".join(map(str.strip, part)) for part in parts)
    return first + 1, was, BLANK.sub("", becomes)


class Planted(SourceFileLoader):
    """Finds and loads one module from a source other than its file's."""

    def __init__(self, module: str, source: str) -> None:
        path = ROOT / f"src/draftwise/{module}.py"
        super().__init__("draftwise." + module.replace("/", "."), str(path))
        self._source = source

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self, origin=self.path) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self._source, self.path, "exec", dont_inherit=True)
        return code


def in_a_fork(work: Callable[[], int], cpu_s: float) -> int:
    """Exit status of ``work`` in a fork of this process; -SIGXCPU if it exceeds the CPU seconds."""
    gc.freeze()  # pytest collects garbage twice: exclude torch's objects
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s) + 1, int(cpu_s) + 2))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    try:
        os._exit(work())
    finally:
        os._exit(3)


def outcome(
    module: str, source: str | None = None, report: Callable[[], None] = lambda: None
) -> int:
    """Exit status of pytest with this source of the module; 0 = all passed."""
    import hypothesis
    import pytest

    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", phases=phases)
    hypothesis.settings.load_profile("mutants")  # one failure is enough: no shrinking
    here = str(Path(__file__).parent)  # its engine.py would hide the tests' engine/
    sys.path[:] = [folder for folder in sys.path if folder != here]
    if source is not None:
        sys.meta_path.insert(0, Planted(module, source))
    code = int(pytest.main([*PYTEST, *MODULES[module]]))
    report()
    return code


def warmed(module: str) -> float:
    """Run the tests once unchanged, and import the modules that they imported. Returns the
    processor seconds of a second run. Errors: SystemExit if the tests fail."""
    ours, theirs = multiprocessing.Pipe()
    report = functools.partial(_tell, theirs)
    if code := in_a_fork(lambda: outcome(module, report=report), 600):
        sys.exit(f"{module}: its tests end with {code} before anything is planted")
    for name in ours.recv():
        importlib.import_module(name)
    source = (ROOT / f"src/draftwise/{module}.py").read_text("utf-8")
    with child_seconds() as spent:
        if in_a_fork(lambda: outcome(module, source), 600):
            sys.exit(f"{module}: its tests fail where it is planted as it is")
    return spent[0]


def _tell(pipe: Any) -> None:
    heavy = (
        *("torch", "transformers", "tokenizers", "numpy", "hypothesis", "safetensors"),
        *("_pytest", "pygments", "rich", "unittest"),
    )
    names = [name for name in sys.modules if name.startswith(heavy)]
    specs = {name: getattr(sys.modules[name], "__spec__", None) for name in names}
    pipe.send([name for name, spec in specs.items() if spec and spec.name == name and spec.origin])


def squeezed(code: str) -> str:
    return "".join(code.split())


def why(module: str, becomes: str) -> str | None:
    """The reason why this mutant is equivalent; None if none is known."""
    for reason, known in EQUAL.get(module, {}).items():
        if squeezed(becomes) in map(squeezed, known):
            return str(reason)
    return None


def key(was: str, becomes: str) -> tuple[str, str]:
    """Identity of a mutant that does not depend on its line number."""
    return squeezed(was), squeezed(becomes)


def tried(module: str, only: Collection[tuple[str, str]] | None) -> dict[str, Any]:
    """Counts, seconds, and survivors of one module's mutants; only: keys of mutants to retry."""
    cpu_s = warmed(module)
    num, out_of_time, survivors = 0, 0, []
    for mutant in mutants(module):
        if only is not None and key(mutant.was, mutant.becomes) not in only:
            continue
        num += 1
        told = {"line": mutant.line, "was": mutant.was, "becomes": mutant.becomes}
        if only is not None and why(module, mutant.becomes):
            survivors.append(told)  # equivalent: not retried
            continue
        work = functools.partial(outcome, module, mutant.source)
        code = in_a_fork(work, max(LEAST_S, PATIENCE * cpu_s))
        out_of_time += code < 0
        if code == 0:
            survivors.append(told)
            print(f"{module}:{mutant.line}\n  {mutant.was}\n  {mutant.becomes}", flush=True)
    print(f"{module}: {num - len(survivors)} of {num} killed, tests {cpu_s:.1f} s", flush=True)
    seconds = round(cpu_s, 1)
    return dict(mutants=num, out_of_time=out_of_time, tests_s=seconds, survivors=survivors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", nargs="*", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--again", help="results: try what survived there and is not equal")
    parser.add_argument("--out")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plug-in imports take longer than the tests
    former = json.loads(Path(options.again).read_text())["modules"] if options.again else {}
    found = dict(former)
    for module in options.module:
        if old := former.get(module):
            only = {key(each["was"], each["becomes"]) for each in old["survivors"]}
            found[module] = {**old, "survivors": tried(module, only)["survivors"]}
        else:
            found[module] = tried(module, None)
    # late: this imports draftwise, which each fork must import itself
    from shared.results import save

    save(options.out, {"modules": found})


if __name__ == "__main__":
    main()
