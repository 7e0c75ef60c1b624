"""The Python blocks of the tutorial, in a real vLLM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "vllm.md"


def test_the_tutorial_runs(tmp_path: Path) -> None:
    """As one program in a separate process, which vLLM needs in order to start another."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    assert len(blocks) == 2
    lines = "\n".join(blocks).splitlines()
    program = tmp_path / "tutorial.py"
    program.write_text("\n".join(["if __name__ == '__main__':", *(f"    {x}" for x in lines)]))
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-4000:]
    counted = re.findall(r"^vllm:spec_decode_num_accepted_tokens ([\d.]+)$", ran.stdout, re.M)
    assert float(counted[0]) > 0, ran.stdout
