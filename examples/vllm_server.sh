#!/usr/bin/env bash
# A vLLM server in which every request drafts with what pays: retrieval, and vLLM's own drafter if you give one.
#   examples/vllm_server.sh MODEL [--speculative-config '{"method": "eagle3", "model": "HEAD", "num_speculative_tokens": 5}']
# /metrics has draftwise's counters and its speed relative to plain decoding next to vLLM's own figures.
set -euo pipefail
model=${1:?MODEL: a folder or hub id}
shift
exec python -m vllm.entrypoints.openai.api_server --model "$model" \
    --scheduler-cls draftwise.integrations.vllm.Scheduler "$@"
