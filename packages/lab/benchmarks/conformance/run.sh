#!/usr/bin/env bash
# Other people's clients on a live server, each in an environment of its own: make conformance
# Needs Node 20 or newer, npm and pip. WORK (default: a temporary folder) keeps what was installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
work=${WORK:-$(mktemp -d)}
port=${PORT:-8397}
url=http://127.0.0.1:$port
export HF_HUB_OFFLINE=1

"$root/.venv/bin/python" -m draftwise serve --target "${TARGET:-zoo}" --port "$port" \
  --chat-template "$here/tools.jinja" --served-model-name local --max-new-tokens 200 2> "$work/server.log" &
server=$!
trap 'kill $server; wait $server || true' EXIT
until curl -sf "$url/health"; do sleep 0.5; kill -0 $server; done

cd "$work"
if [[ " ${ONLY:-node compatcanary schemathesis lm-eval guidellm} " == *" node "* ]]; then
  echo "== openai for JavaScript"
  [ -d node_modules/openai ] || npm install --silent --no-fund --no-audit openai
  cp "$root/examples/openai_client.mjs" "$here/fields.mjs" .
  node openai_client.mjs "$url"
  node fields.mjs "$url"
fi
if [[ " ${ONLY:-compatcanary} " == *" compatcanary "* ]]; then
  echo "== compatcanary"
  npx --yes compatcanary scan --profile chat --base-url "$url/v1" --model local
fi
if [[ " ${ONLY:-schemathesis} " == *" schemathesis "* ]]; then
  echo "== schemathesis"
  [ -d st ] || { python3 -m venv st && st/bin/pip install --quiet schemathesis; }
  st/bin/st run "$url/openapi.json" --checks not_a_server_error --max-examples "${EXAMPLES:-2500}" \
    --phases coverage,fuzzing --continue-on-failure
fi
if [[ " ${ONLY:-lm-eval} " == *" lm-eval "* ]]; then
  echo "== lm-eval"
  [ -d lm ] || { python3 -m venv lm && lm/bin/pip install --quiet 'lm-eval[api,hf]'; }
  lm/bin/python "$here/lm_eval_task.py" "$url" "$("$root/.venv/bin/python" -c \
    'from draftwise import zoo; print(zoo.target_path())')"
fi
if [[ " ${ONLY:-guidellm} " == *" guidellm "* ]]; then
  echo "== guidellm"
  [ -d gl ] || { python3 -m venv gl && gl/bin/pip install --quiet guidellm; }
  gl/bin/guidellm run --backend "kind=openai_http,target=$url,model=local,request_format=/v1/completions" \
    --profile kind=concurrent,streams=4 --constraint kind=max_requests,count=20 --output kind=console \
    --data kind=synthetic_text,prompt_tokens=64,output_tokens=32 --disable-progress \
    --tokenizer "kind=huggingface_auto,model=$("$root/.venv/bin/python" -c \
    'from draftwise import zoo; print(zoo.target_path())')"
fi
