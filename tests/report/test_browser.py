"""The pages as a browser shows them, with the network off: at a desk and on a phone, by day and by night."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium found; apt-get install chromium"),
]
PAGES = ("index.html", "v01.html", "v01-smoke.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


@pytest.mark.parametrize("width", [1280, 390, 320])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_and_its_charts_are_there(browser: Browser, static: Path, page: str, width: int) -> None:
    path = static / page
    browser.open(path, width)
    assert browser.requests == [path.as_uri()], "a page asks for nothing but itself"
    assert browser.complaints == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width, "no sideways scrolling"
    shown = browser.evaluate(
        "[...document.querySelectorAll('.q-figure svg')].filter(s => s.getBoundingClientRect().width > 200).length"
    )
    figures = browser.evaluate("document.querySelectorAll('figure[role=img][aria-label]').length")
    assert shown == figures > 0, "each figure shows one of its two drawings"


@pytest.mark.parametrize("width", [1280, 390])
def test_text_in_charts_can_be_read(browser: Browser, static: Path, width: int) -> None:
    browser.open(static / "v01.html", width)
    smallest = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('.q-figure svg text')].filter(t => t.getClientRects().length)"
        ".map(t => parseFloat(getComputedStyle(t).fontSize) * Math.hypot(t.getScreenCTM().a, t.getScreenCTM().b)))"
    )
    assert smallest >= 11, "px on the screen"


def test_tables_open_and_wide_ones_scroll_by_themselves(browser: Browser, static: Path) -> None:
    browser.open(static / "v01.html", 390)
    browser.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser.evaluate("document.querySelectorAll('.q-figure table tbody tr').length") > 100


def test_every_link_leads_somewhere(browser: Browser, static: Path) -> None:
    for page in PAGES:
        browser.open(static / page)
        for name in browser.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))"):
            target = page if name.startswith("#") else name
            assert (static / target).is_file(), f"{page} leads to {name}"


def test_the_keyboard_reaches_the_skip_link_first(browser: Browser, static: Path) -> None:
    browser.open(static / "index.html")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    assert browser.evaluate("document.activeElement.getBoundingClientRect().left") >= 0, "and shows it"


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_the_page_by_day_and_by_night(browser: Browser, static: Path, dark: bool) -> None:
    browser.open(static / "v01.html", dark=dark)
    assert browser.evaluate(CONTRAST) >= 4.5


def test_interactive_charts_come_alive_offline(browser: Browser, interactive: Path) -> None:
    path = interactive / "v01.html"
    browser.open(path)
    browser.evaluate(
        "new Promise(done => { const look = () => document.querySelectorAll('.q-wide .vega-embed, .q-wide.vega-embed')"
        ".length >= document.querySelectorAll('.q-figure').length ? done(1) : setTimeout(look, 50); look(); })"
    )
    assert browser.requests == [path.as_uri()]
    assert browser.complaints == []
    assert browser.evaluate("document.querySelectorAll('.q-wide svg').length") == 5


# The smallest WCAG contrast between a text and the nearest background behind it, over all text of the page and charts.
CONTRAST = """
(() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => rgb(c).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (rgb(c)[3] !== 0) return c;
    }
    return 'rgb(255, 255, 255)';
  };
  const texts = [...document.querySelectorAll('main *, header *, footer *')].filter(e =>
    e.getClientRects().length && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()));
  return Math.min(...texts.map(e => {
    const style = getComputedStyle(e), a = light(e.closest('svg') ? style.fill : style.color), b = light(behind(e));
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }));
})()
"""
