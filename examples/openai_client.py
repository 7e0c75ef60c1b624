"""openai's client with a draftwise server: completions, a stream, a schema, drafting statistics.

python examples/openai_client.py          # starts a server with the bundled toy
python examples/openai_client.py URL      # uses the one at URL, such as http://127.0.0.1:8000
"""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

from openai import OpenAI

PROMPT = "### math\n1. 31 * 7\n2. 205 - 106\n### answer\n"


def main(url: str) -> None:
    """Send a few requests."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id

    whole = client.completions.create(model=model, prompt=PROMPT, max_tokens=40, temperature=0)
    print(whole.choices[0].text)
    print(whole.model_dump()["metrics"]["speculative_decoding"])

    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=40,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        else:
            print(f"\n{chunk.usage}")

    form = {"structured_outputs": {"regex": "[0-9]{1,3}"}, "draftwise": {"tenant": "example"}}
    made = client.completions.create(model=model, prompt=PROMPT, max_tokens=8, extra_body=form)
    print("a number:", made.choices[0].text)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers, or has ended."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=1).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the server did not start")


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("http"):
        main(sys.argv[1].rstrip("/"))
    else:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        command = [sys.executable, "-m", "draftwise", "serve", "--target", "zoo", "--port", port]
        server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_for(f"http://127.0.0.1:{port}", server)
            main(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()
            server.wait()
