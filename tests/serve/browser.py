"""A headless Chromium driven by the WebDriver protocol, with chromedriver alone."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
DRIVER = shutil.which("chromedriver")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """A browser window."""

    def __init__(self, port: int) -> None:
        self._port, self._session = port, ""

    def open(self, width: int, height: int, scheme: str, profile: Path) -> None:
        dark = {"dark": 0, "light": 1}[scheme]
        options = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={profile}", f"--blink-settings=preferredColorScheme={dark}",
        ]  # fmt: skip
        chrome = {"binary": CHROMIUM, "args": options}
        logs = {"browser": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": logs}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"
        # windows have a minimum width above a phone's: set the page's size instead
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", metrics)

    def devtools(self, command: str, params: dict[str, Any]) -> Any:
        body = {"cmd": command, "params": params}
        return self._call("POST", f"{self._session}/goog/cdp/execute", body)

    def go(self, url: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": url})

    def click(self, selector: str) -> None:
        self._call("POST", f"{self._find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._call("POST", f"{self._find(selector)}/clear", {})
        self._call("POST", f"{self._find(selector)}/value", {"text": text})

    def run(self, script: str) -> Any:
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def wait(self, script: str, timeout_s: float = 60) -> Any:
        """Wait until a script returns something true, and return that."""
        until = time.monotonic() + timeout_s
        while not (found := self.run(script)):
            assert time.monotonic() < until, f"never: {script}"
            time.sleep(0.1)
        return found

    def complaints(self) -> list[str]:
        """Errors and warnings in the browser's console."""
        found = self._call("POST", f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in found if entry["level"] in {"SEVERE", "WARNING"}]

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", f"{self._session}/screenshot")))

    def close(self) -> None:
        if self._session:
            self._call("DELETE", self._session)

    def _find(self, selector: str) -> str:
        body = {"using": "css selector", "value": selector}
        found = self._call("POST", f"{self._session}/element", body)
        return f"{self._session}/element/{found[_ELEMENT]}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=120)
        raw = None if body is None else json.dumps(body).encode()
        connection.request(method, path, raw, {"Content-Type": "application/json"})
        value = json.loads(connection.getresponse().read())["value"]
        connection.close()
        if isinstance(value, dict) and "error" in value:
            raise AssertionError(f"{path}: {value['error']}: {value['message'][:300]}")
        return value


@contextmanager
def browsing(folder: Path) -> Iterator[Callable[..., Browser]]:
    """A function that opens windows; closes all of them at the end."""
    assert DRIVER is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    opened: list[Browser] = []

    def window(width: int = 1280, height: int = 1000, scheme: str = "light") -> Browser:
        browser = Browser(port)
        opened.append(browser)
        browser.open(width, height, scheme, folder / f"profile-{len(opened)}")
        return browser

    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield window
    finally:
        for browser in opened:
            browser.close()
        driver.terminate()
        driver.wait(20)
