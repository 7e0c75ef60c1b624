#!/usr/bin/env bash
# A vLLM server in which every request drafts with what pays: retrieval, and vLLM's own drafter if you give one.
#   examples/vllm_server.sh MODEL [--speculative-config '{"method": "eagle3", "model": "HEAD", "num_speculative_tokens": 16}']
# Counters of draftwise stand beside vLLM's in /metrics because of PROMETHEUS_MULTIPROC_DIR, which must be empty.
set -euo pipefail
model=${1:?MODEL: a folder or hub id}
shift
PROMETHEUS_MULTIPROC_DIR=$(mktemp -d)
export PROMETHEUS_MULTIPROC_DIR
exec python -m vllm.entrypoints.openai.api_server --model "$model" \
    --scheduler-cls draftwise.integrations.vllm.Scheduler "$@"
