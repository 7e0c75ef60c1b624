"""The live page in a real browser: typing, clicking, layout; on an engine that repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from draftwise.serve.app import PAGE
from draftwise.serve.settings import ServerSettings
from serve.browser import CHROMIUM, DRIVER, Browser, browsing
from serve.fake import Fake
from serve.live import fake_service, serving

SHIFT, ENTER = "\ue008", "\ue007"
"""Keys as WebDriver names them; a second SHIFT releases the key."""
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
const shade = document.querySelector("#log i") || document.querySelector(".keys i");
for (const one of document.querySelectorAll("input, select, textarea, button:not(.main)")) {
  if (!one.getClientRects().length || one.disabled) continue;
  const border = getComputedStyle(one).borderTopColor;
  if (contrast(border, back) < 3 || contrast(border, getComputedStyle(one).backgroundColor) < 3)
    faint.push("border of " + one.id);
}
for (const one of document.querySelectorAll("svg rect, svg circle, .keys i, #log i")) {
  const style = getComputedStyle(one);
  const drawn = one instanceof SVGElement ? [style.fill, style.stroke]
    : [style.borderBottomColor, style.backgroundColor];
  if (!drawn.some(colour => /\\d/.test(colour) && contrast(colour, back) >= 3))
    faint.push("a mark of " + style.getPropertyValue("--c") + style.fill);
}
const collisions = [];
for (const chart of document.querySelectorAll("svg")) {
  const texts = [...chart.querySelectorAll("text")];
  texts.forEach((text, i) => texts.slice(i + 1).forEach(other => {
    const [a, b] = [text.getBoundingClientRect(), other.getBoundingClientRect()];
    if (Math.min(a.right, b.right) > Math.max(a.left, b.left) &&
        Math.min(a.bottom, b.bottom) > Math.max(a.top, b.top))
      collisions.push(text.textContent + " / " + other.textContent);
  }));
}
const small = [...document.querySelectorAll("svg text")]
  .filter(one => one.getBoundingClientRect().height < 10).map(one => one.textContent);
return {small, collisions, back: getComputedStyle(document.body).backgroundColor, faint,
  width: document.documentElement.scrollWidth, room: innerWidth};
"""


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Browser]]:
    with browsing(tmp_path_factory.mktemp("browser")) as opens:
        yield opens


def limit(browser: Browser, tokens: str) -> None:
    """Type the most tokens of an answer, which is one of the folded options."""
    browser.run("document.querySelector('details').open = true")
    browser.type("#tokens", tokens)


def ask(browser: Browser, url: str, tokens: str) -> None:
    """Open the page, send a question with the options folded, and wait for the whole answer."""
    browser.go(url + "/")
    browser.wait("return document.getElementById('model').textContent === 'parrot'")
    browser.type("#text", "abcde")
    limit(browser, tokens)
    browser.run("document.querySelector('details').open = false")
    browser.click("#send")
    browser.wait("return document.querySelector('.plainly')")


def test_an_answer_is_painted_and_compared(window: Callable[..., Browser]) -> None:
    with serving(
        fake_service(Fake(pace_s=0.002), chat_template="{{ messages[0].content }}")
    ) as live:
        browser = window()
        ask(browser, live.url, "20")
        pieces = browser.run(
            "return [...document.querySelectorAll('.answer i')].map(i => [i.textContent, "
            "i.dataset.source, getComputedStyle(i).backgroundColor])"
        )
        assert "".join(text for text, _, _ in pieces) == "abcde" * 4
        assert {source for _, source, _ in pieces} == {"parrot", "target"}
        assert len({shade for _, source, shade in pieces if source == "parrot"}) == 1
        assert len({shade for _, _, shade in pieces}) == 2
        legend = browser.run(
            "return [...document.querySelectorAll('#keys > span')].map(s => [s.textContent, "
            "getComputedStyle(s.querySelector('i')).backgroundColor])"
        )
        lines = browser.run(
            "return [...document.querySelectorAll('.answer i')].map(i => [i.title, "
            "getComputedStyle(i).borderBottomColor])"
        )
        assert sorted(map(tuple, legend)) == sorted({tuple(line) for line in lines})
        said = "return document.getElementById('said').textContent"
        assert browser.run(said).startswith("abcde" * 4), "read aloud once, as a whole"
        assert browser.run("return document.querySelectorAll('[aria-live] .answer').length") == 0
        browser.click(".plainly")
        browser.wait("return document.body.innerText.includes('the same text')")
        browser.wait("return document.querySelectorAll('#speed rect').length")
        browser.wait("return document.querySelectorAll('#cost circle').length")
        browser.wait("return document.querySelectorAll('#expected circle').length")
        gain = "return document.getElementById('gain').textContent"
        browser.wait(f"{gain}.includes('–') && {gain}.endsWith('×')".replace("&& return", "&&"))
        rows = browser.run("return document.getElementById('drafters').innerText")
        assert "parrot" in rows
        browser.click("#clear")
        assert browser.run("return document.getElementById('log').textContent") == ""
        assert browser.complaints() == []


TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def facts(browser: Browser, word: str) -> None:
    browser.wait(f"return document.getElementById('log').innerText.includes({word!r})")


def test_without_a_server_the_text_stays_and_can_be_sent_again(
    window: Callable[..., Browser],
) -> None:
    service = fake_service(Fake(), chat_template=TEMPLATE)
    service.about["has_template"] = True
    browser = window()
    with serving(service) as live:
        browser.go(live.url + "/")
        browser.wait("return document.getElementById('title').textContent === 'Chat'")
    browser.type("#text", "a long question" + ENTER)
    facts(browser, "cannot be reached")
    assert browser.run("return document.getElementById('text').value") == "a long question"
    browser.wait("return document.getElementById('state').className === 'bad'")
    fake = Fake()
    service = fake_service(fake, chat_template=TEMPLATE)
    service.about["has_template"] = True
    with serving(service, port=live.port):
        browser.wait("return document.getElementById('state').className === ''")
        browser.click(".facts button")
        browser.wait("return document.querySelector('.plainly')")
        assert browser.run("return document.getElementById('text').value") == ""
        assert browser.run("return document.querySelectorAll('.you').length") == 1
        browser.type("#text", "b" + ENTER)
        browser.wait("return document.querySelectorAll('.plainly').length === 2")
    sent = fake.tokenizer.decode(fake.rows[1].prompt)
    assert sent.startswith("a long question a long")
    assert sent.endswith(" b ")


def test_stopping_an_answer_frees_its_row(window: Callable[..., Browser]) -> None:
    fake, browser = Fake(pace_s=0.01), window()
    with serving(fake_service(fake)) as live:
        browser.go(live.url + "/")
        browser.type("#text", "abc")
        limit(browser, "4000")
        browser.click("#send")
        browser.wait("return document.querySelectorAll('.answer i').length > 3")
        assert fake.engine.has_work
        browser.click("#stop")
        facts(browser, "Stopped")
        live.settle()
        assert not fake.engine.has_work
        assert browser.run("return document.querySelectorAll('.answer i').length") < 4000


def test_shift_enter_makes_a_new_line_and_enter_sends(window: Callable[..., Browser]) -> None:
    fake, browser = Fake(), window()
    service = fake_service(fake, chat_template=TEMPLATE)
    service.about["has_template"] = True
    with serving(service) as live:
        browser.go(live.url + "/")
        browser.wait("return document.getElementById('title').textContent === 'Chat'")
        browser.type("#text", "ab" + SHIFT + ENTER + SHIFT + "cd" + ENTER)
        browser.wait("return document.querySelector('.plainly')")
        assert browser.run("return document.querySelector('.you').textContent") == "ab\ncd"
    assert len(fake.rows) == 1


def test_an_answer_that_was_cut_goes_on_where_it_ended(window: Callable[..., Browser]) -> None:
    fake, browser = Fake(), window()
    with serving(fake_service(fake)) as live:
        browser.go(live.url + "/")
        browser.type("#text", "abc")
        limit(browser, "5")
        browser.click("#send")
        facts(browser, "Cut off")
        browser.click(".facts button")
        browser.wait("return document.querySelectorAll('.plainly').length === 2")
    assert [fake.tokenizer.decode(row.prompt) for row in fake.rows] == ["abc", "abcabcab"]


def test_a_key_is_asked_for(window: Callable[..., Browser]) -> None:
    fake = Fake()
    with serving(fake_service(fake), ServerSettings(keys=("secret",))) as live:
        browser = window()
        browser.go(live.url + "/")
        browser.wait("return !document.getElementById('door').hidden")
        browser.type("#key", "secret")
        browser.click("#door button")
        browser.wait("return document.getElementById('door').hidden")
        browser.type("#text", "abc")
        browser.click("#send")
        browser.wait("return document.querySelector('.plainly')")
    assert fake.rows  # the answer required the key


@pytest.mark.parametrize(
    ("scheme", "back", "width"),
    [("light", 255, 1280), ("dark", 18, 1280), ("light", 255, 375), ("dark", 18, 375)],
)
def test_all_is_legible_and_nothing_is_cut(
    window: Callable[..., Browser], tmp_path: Path, scheme: str, back: int, width: int
) -> None:
    with serving(fake_service(Fake(pace_s=0.002))) as live:
        browser = window(width, 900, scheme)
        browser.go(live.url + "/")
        browser.type("#text", "abcde")
        browser.click("#send")
        browser.wait("return document.querySelector('.plainly')")
        browser.wait("return document.querySelectorAll('#speed rect').length")
        browser.wait("return document.querySelectorAll('#expected circle').length")
        found = browser.run(LOOK)
        browser.picture(tmp_path / "page.png")
    assert found["back"].startswith(f"rgb({back},")
    assert found["faint"] == []
    assert found["small"] == []
    assert found["collisions"] == []
    assert found["width"] <= found["room"]


@pytest.mark.parametrize("width", [1280, 390])
def test_the_end_of_a_long_answer_and_its_facts_are_in_sight(
    window: Callable[..., Browser], width: int
) -> None:
    below = """
        const log = document.getElementById('log').getBoundingClientRect();
        const last = [...document.querySelectorAll('#log .facts')].at(-1);
        return Math.max(...[last, ...last.querySelectorAll('button')]
            .map(one => one.getBoundingClientRect().bottom)) - log.bottom;
    """
    with serving(fake_service(Fake(pace_s=0.0001))) as live:
        browser = window(width, 844)
        ask(browser, live.url, "900")
        assert browser.run(below) <= 0
        browser.click(".plainly")
        facts(browser, "the same text")
        assert browser.run(below) <= 0


def test_the_page_loads_nothing_from_elsewhere() -> None:
    assert " src=" not in PAGE.text
    assert " href=" not in PAGE.text
    assert "import(" not in PAGE.text
    assert PAGE.policy.count("sha256-") == 2
