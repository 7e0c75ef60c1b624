"""llama.cpp's side of ``precision.py``, for an environment with xllamacpp alone.

    python llama_engine.py FILE.gguf THREADS plain|lookup

Reads JSON lines with prompt (token ids), num and temperature; writes lines with num and cpu_s.
"""

import json
import os
import sys
import time

import xllamacpp


def main() -> None:
    gguf, threads, kind = sys.argv[1:]
    answers = os.dup(1)
    os.dup2(2, 1)  # the library prints to stdout
    params = xllamacpp.CommonParams()
    params.model.path = gguf
    params.n_ctx, params.n_parallel = 8192, 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    if kind == "lookup":
        types = xllamacpp.common_speculative_type
        params.speculative.types = [types.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    server = xllamacpp.Server(params)
    for line in sys.stdin:
        ask = json.loads(line)
        start = time.process_time()
        options = {"n_predict": ask["num"], "cache_prompt": False, "seed": 0}
        options |= {key: ask[key] for key in ("prompt", "temperature")}
        said = server.handle_completions(options)
        spent = time.process_time() - start
        usage = (said if isinstance(said, dict) else json.loads(said))["usage"]
        found = {"num": usage["completion_tokens"], "cpu_s": spent}
        os.write(answers, (json.dumps(found) + "\n").encode())


if __name__ == "__main__":
    main()
