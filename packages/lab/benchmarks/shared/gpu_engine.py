"""A vLLM engine timed step by step from outside: the child process of ``gpu_check.py``.

vLLM is neither changed nor inspected: a step lasts from one batch of outputs to the next, as a
client sees it, so default flags (asynchronous scheduling, CUDA graphs, processes) stay on.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any


def run_block(
    engine: Any, prompts: Sequence[Any], params: Sequence[Any], at_once: int,
    clock: Callable[[], float], name: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Answer prompts with ``at_once`` concurrent requests; return tokens, seconds, steps, answers.
    engine: vLLM's ``LLMEngine``; params: one per prompt. Steps are those in which ``at_once``
    requests decoded: (seconds, tokens emitted, mean tokens before the step)."""
    ids = [f"{name}{number}" for number in range(len(prompts))]
    waiting = iter(zip(ids, prompts, params, strict=True))
    begin = clock()
    for one in islice(waiting, at_once):
        engine.add_request(*one)
    lengths: dict[str, int] = {}
    answers, steps, last = dict[str, list[int]](), list[tuple[float, int, float]](), begin
    while engine.has_unfinished_requests():
        outputs = engine.step()
        if not outputs:
            continue
        now, emitted, context = clock(), 0, 0
        is_full = all(one.request_id.partition("-")[0] in lengths for one in outputs)
        num_new = []
        for output in outputs:
            key = output.request_id.partition("-")[0]
            tokens = list(output.outputs[0].token_ids)
            num = len(tokens) - lengths.get(key, 0)
            num_new.append(num)
            emitted += num
            context += len(output.prompt_token_ids or ()) + lengths.get(key, 0)
            lengths[key], answers[key] = len(tokens), tokens
            if output.finished and (following := next(waiting, None)):
                engine.add_request(*following)
        if is_full and len(outputs) == at_once and min(num_new) > 0:
            steps.append((now - last, emitted, context / at_once))
        last = now
    return {
        "tokens": sum(lengths.values()),
        "seconds": last - begin,
        "steps": steps,
        "answers": [answers[key] for key in ids],
    }


def main() -> None:
    """Start the engine described by the first line of stdin, then answer each further line."""
    pipe = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # vLLM prints to stdout, which carries the answers
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    llm = LLM(**json.loads(sys.stdin.readline()))
    tokenizer = llm.get_tokenizer()
    print(json.dumps({"ready": True}), file=pipe)
    for number, line in enumerate(sys.stdin):
        task = json.loads(line)
        prompts = [with_template(tokenizer, prompt) for prompt in task["prompts"]]
        params = [
            SamplingParams(
                temperature=0.0, max_tokens=num, ignore_eos=True,
                output_kind=RequestOutputKind.CUMULATIVE,
            )
            for num in task["max_tokens"]
        ]  # fmt: skip
        clock = time.perf_counter
        done = run_block(llm.llm_engine, prompts, params, task["at_once"], clock, f"b{number}r")
        print(json.dumps(done), file=pipe)


def with_template(tokenizer: Any, prompt: str) -> str:
    """Format a user's message with the chat template, if the tokenizer has one."""
    if not getattr(tokenizer, "chat_template", None):
        return prompt
    messages = [{"role": "user", "content": prompt}]
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text


if __name__ == "__main__":
    main()
