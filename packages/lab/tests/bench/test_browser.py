"""The report in a real browser, light and dark: no overlaps, no cut text, legible."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from benches import Bench

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium found: apt install chromium")

LOOK = """
<script>
function light(colour) {
  const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function contrast(a, b) {
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
}
const back = getComputedStyle(document.body).backgroundColor;
const found = {back, width: document.documentElement.scrollWidth, room: window.innerWidth,
  overlaps: [], cut: [], faint: [], texts: 0, figures: []};
for (const svg of document.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect();
  found.figures.push([frame.width, svg.parentElement.clientWidth]);
  const texts = [...svg.querySelectorAll("text")].filter(t => t.textContent.trim());
  const boxes = texts.map(t => t.getBoundingClientRect());
  texts.forEach((text, i) => {
    const name = text.textContent, box = boxes[i];
    found.texts += 1;
    if (box.left < frame.left - 1 || box.right > frame.right + 1 ||
        box.top < frame.top - 1 || box.bottom > frame.bottom + 1) found.cut.push(name);
    if (contrast(getComputedStyle(text).fill, back) < 4) found.faint.push(name);
    boxes.slice(i + 1).forEach((other, j) => {
      const wide = Math.min(box.right, other.right) - Math.max(box.left, other.left);
      const high = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
      if (wide > 2 && high > 0.35 * Math.min(box.height, other.height))
        found.overlaps.push(name + " / " + texts[i + 1 + j].textContent);
    });
  });
}
for (const text of document.querySelectorAll("p, td, th, h2, pre, a, summary, .head b"))
  if (contrast(getComputedStyle(text).color, back) < 4) found.faint.push(text.textContent);
document.body.setAttribute("data-found", JSON.stringify(found));
</script>
"""


def look(bench: Bench, folder: Path, scheme: str) -> dict[str, Any]:
    """The browser's findings about the report in one colour scheme."""
    file = folder / "report.html"
    file.write_text(bench.report.replace("</body>", LOOK + "</body>"), "utf-8")
    assert BROWSER is not None
    dark = {"dark": 0, "light": 1}[scheme]
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1280,900",
         f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={dark}",
         "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    text = re.search(r'data-found="([^"]*)"', done.stdout)
    assert text is not None, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(html.unescape(text[1]))
    return found


@pytest.mark.parametrize(("scheme", "back"), [("light", 255), ("dark", 18)])
def test_nothing_overlaps_and_all_is_legible(
    bench: Bench, tmp_path: Path, scheme: str, back: int
) -> None:
    found = look(bench, tmp_path, scheme)
    assert found["back"].startswith(f"rgb({back},")
    assert found["texts"] > 100
    assert found["cut"] == []
    assert found["overlaps"] == []
    assert found["faint"] == []
    assert found["width"] <= found["room"]
    assert all(figure <= frame + 1 for figure, frame in found["figures"])
