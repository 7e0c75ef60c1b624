"""lm-eval on a generated task: the server's score and transformers' own on the same model.

python lm_eval_task.py URL FOLDER    # in an environment that has lm-eval
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path


def write_task(folder: Path) -> None:
    """Write a task of sums with four choices each, one of them correct."""
    rng, lines = random.Random(0), []
    for _ in range(24):
        a, b = rng.randint(10, 400), rng.randint(10, 400)
        wrong = [a + b + d for d in rng.sample([-10, -1, 1, 10, 100], 3)]
        query = f"### math\n1. {a} + {b}\n### answer\n1. {a} + {b}\n"
        choices = [str(n) for n in [a + b, *wrong]]
        lines.append(json.dumps({"query": query, "choices": choices, "gold": 0}))
    (folder / "sums.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "sums.yaml").write_text(
        f"""task: sums
dataset_path: json
dataset_kwargs:
  data_files: {{test: {folder / "sums.jsonl"}}}
test_split: test
output_type: multiple_choice
doc_to_text: query
doc_to_choice: choices
doc_to_target: gold
metric_list: [{{metric: acc}}]
"""
    )


def main(url: str, model: str) -> None:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name))
        tasks = TaskManager(include_path=name, include_defaults=False)
        server = f"model=local,base_url={url}/v1/completions,tokenizer={model},num_concurrent=4"
        server += ",add_bos_token=True"  # the other backend does so if the tokenizer has one
        common = {"tasks": ["sums"], "task_manager": tasks, "bootstrap_iters": 0}
        ours = simple_evaluate(model="local-completions", model_args=server, **common)
        theirs = simple_evaluate(
            model="hf", model_args=f"pretrained={model},dtype=float32", device="cpu", **common
        )
    scores = [found["results"]["sums"]["acc,none"] for found in (ours, theirs)]
    said = [[each["resps"] for each in found["samples"]["sums"]] for found in (ours, theirs)]
    flat = [[float(resp[0][0]) for each in side for resp in each] for side in said]
    pairs = list(zip(*flat, strict=True))
    apart = max(abs(a - b) for a, b in pairs)
    print(f"server {scores[0]:.4f}, transformers {scores[1]:.4f}; {len(pairs)} log-likelihoods "
          f"at most {apart:.1e} apart")  # fmt: skip
    assert scores[0] == scores[1]
    assert apart < 1e-2


if __name__ == "__main__":
    main(*sys.argv[1:])
