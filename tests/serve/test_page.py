"""The live page in a real browser: typed into, clicked, and measured; on an engine that repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftwise.serve import PAGE, Gate
from serve.browser import CHROMIUM, DRIVER, Browser, browsing
from serve.fake import Fake
from serve.live import fake_service, serving

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium found: apt install chromium chromium-driver"
)
LOOK = """
const light = colour => {
  const found = colour.match(/[0-9.]+/g).map(Number);
  const [r, g, b] = found.slice(0, 3).map(v => colour.startsWith("color(") ? v : v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
};
const back = getComputedStyle(document.querySelector(".card")).backgroundColor;
const faint = [];
for (const one of document.querySelectorAll("p, td, th, h2, label, span, svg text, .tile b")) {
  if (!one.textContent.trim() || !one.getClientRects().length) continue;
  const style = getComputedStyle(one);
  const ink = one instanceof SVGElement ? style.fill : style.color;
  if (contrast(ink, back) < 4.5) faint.push(one.textContent.slice(0, 30));
}
const small = [...document.querySelectorAll("svg text")]
  .filter(one => one.getBoundingClientRect().height < 10).map(one => one.textContent);
return {small, back: getComputedStyle(document.body).backgroundColor, faint,
  width: document.documentElement.scrollWidth, room: innerWidth};
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Browser]]:
    with browsing(tmp_path_factory.mktemp("browser")) as opens:
        yield opens


def test_an_answer_is_painted_and_compared(window: Callable[..., Browser]) -> None:
    with serving(
        fake_service(Fake(pace_s=0.002), chat_template="{{ messages[0].content }}")
    ) as live:
        browser = window()
        browser.go(live.url + "/")
        browser.wait("return document.getElementById('model').textContent === 'parrot'")
        browser.type("#text", "abcde")
        browser.type("#tokens", "20")
        browser.click("#send")
        browser.wait("return document.querySelector('.plainly')")
        pieces = browser.run(
            "return [...document.querySelectorAll('.answer i')].map(i => [i.textContent, "
            "i.dataset.source, getComputedStyle(i).backgroundColor])"
        )
        assert "".join(text for text, _, _ in pieces) == "abcde" * 4
        assert {source for _, source, _ in pieces} == {"parrot", "target"}
        assert len({shade for _, source, shade in pieces if source == "parrot"}) == 1
        assert len({shade for _, _, shade in pieces}) == 2, "the target's own stand on nothing"
        browser.click(".plainly")
        browser.wait("return document.body.innerText.includes('the same text')")
        browser.wait("return document.querySelectorAll('#speed rect').length")
        browser.wait("return document.querySelectorAll('#cost circle').length")
        browser.wait("return document.querySelectorAll('#expected circle').length")
        rows = browser.run("return document.getElementById('drafters').innerText")
        assert "parrot" in rows
        browser.click("#clear")
        assert browser.run("return document.getElementById('log').textContent") == ""
        assert browser.complaints() == []


def test_stopping_an_answer_frees_its_row(window: Callable[..., Browser]) -> None:
    fake = Fake(pace_s=0.01)
    with serving(fake_service(fake)) as live:
        browser = window()
        browser.go(live.url + "/")
        browser.wait("return document.getElementById('title').textContent === 'Continue a text'")
        browser.type("#text", "abc")
        browser.type("#tokens", "4000")
        browser.click("#send")
        browser.wait("return document.querySelectorAll('.answer i').length > 3")
        browser.click("#stop")
        browser.wait("return document.querySelector('.facts').textContent.includes('stopped')")
        live.settle()
    assert not fake.engine.has_work


def test_a_key_is_asked_for(window: Callable[..., Browser]) -> None:
    fake = Fake()
    with serving(fake_service(fake), Gate(keys=("secret",))) as live:
        browser = window()
        browser.go(live.url + "/")
        browser.wait("return !document.getElementById('door').hidden")
        browser.type("#key", "secret")
        browser.click("#door button")
        browser.wait("return document.getElementById('door').hidden")
        browser.type("#text", "abc")
        browser.click("#send")
        browser.wait("return document.querySelector('.plainly')")
    assert fake.rows  # the answer came with the key


@pytest.mark.parametrize(
    ("scheme", "back", "width"), [("light", 255, 1280), ("dark", 18, 1280), ("light", 255, 380)]
)
def test_all_is_legible_and_nothing_is_cut(
    window: Callable[..., Browser], tmp_path: Path, scheme: str, back: int, width: int
) -> None:
    with serving(fake_service(Fake(pace_s=0.002))) as live:
        live.complete("abc", max_tokens=40)
        browser = window(width, 900, scheme)
        browser.go(live.url + "/")
        browser.wait("return document.querySelectorAll('#speed rect').length")
        found = browser.run(LOOK)
        browser.picture(tmp_path / "page.png")
    assert found["back"].startswith(f"rgb({back},")
    assert found["faint"] == []
    assert found["small"] == []
    assert found["width"] <= found["room"]


def test_the_page_loads_nothing_from_elsewhere() -> None:
    assert " src=" not in PAGE.text
    assert " href=" not in PAGE.text
    assert "import(" not in PAGE.text
    assert PAGE.policy.count("sha256-") == 2
