"""``python -m benchmarks`` lists the benchmarks; ``python -m benchmarks NAME ...`` runs one.

The list shows the first line of each script's docstring, and the processor time from its results.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))  # as for a script: its folder, with shared/

from shared.listing import names, rows_of_the_list

HERE = Path(__file__).parent


def listing() -> Table:
    table = Table("name", "what it shows", "took", box=None, pad_edge=False)
    for row in rows_of_the_list():
        table.add_row(*row)
    return table


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] in {"-h", "--help"}:
        Console(width=max(80, Console().width)).print(listing())
        return
    _, name, *options = sys.argv
    if name not in names():
        sys.exit(f"unknown benchmark {name!r}; the names are: {', '.join(names())}")
    script = str(HERE / f"{name}.py")
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
