"""``python -m benchmarks`` from the root of the repository: the scripts are the lab's."""

from pathlib import Path

__path__ = [str(Path(__file__).parents[1] / "packages" / "lab" / "benchmarks")]
