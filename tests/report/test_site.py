"""reports/ from sealed rounds: what a page must hold, what it must not, and what it refuses to be drawn from."""

from __future__ import annotations

import html.parser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import made_rounds
import nbformat
import pytest
from made_frames import comparison

from qwen3lab.record import UnverifiedRound
from qwen3lab.report import site
from qwen3lab.report.article import article, harmless

MAX_BYTES = 5_000_000


@pytest.fixture(scope="module")
def pages(static: Path) -> dict[str, str]:
    return read(static)


def read(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


class Addresses(html.parser.HTMLParser):
    """Every address that a page could fetch or lead to, and its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]


def test_one_page_for_the_newest_round_of_each_profile(pages: dict[str, str]) -> None:
    assert set(pages) == {"index.html", "v01.html", "v01-smoke.html"}
    assert "profile full" in pages["v01.html"], "the newest round has the variant's own name"
    assert 'href="v01-smoke.html"' in pages["v01.html"]


def test_nothing_is_fetched_and_nothing_runs(pages: dict[str, str]) -> None:
    for name, text in pages.items():
        found = Addresses(text)
        assert found.scripts == 0, name
        assert all(re.fullmatch(r"#content|(index|v01(-smoke)?)\.html", a) for a in found.found), found.found
        assert not re.search(r"@import|url\((?!#q)", text), name
        assert "default-src 'none'" in text
        assert len(text.encode()) < MAX_BYTES


def test_the_verdict_comes_first_then_the_charts_then_how_then_hashes(pages: dict[str, str]) -> None:
    for name in ("v01.html", "v01-smoke.html"):
        text = pages[name]
        order = ['class="headline"', 'class="verdicts"', '<figure role="img"', 'id="provenance"', 'id="hashes"']
        places = [text.index(mark) for mark in order]
        assert places == sorted(places), name
        assert "faster in 4 of 8 workloads, same in 1, slower in 1, undecided in 2" in text
        assert "last token of the run − start of the run" in text, "the formula is beside the number"
        for word in ("Where do we start?</title>", "Skip to the content", "Imagined CPU &lt;i&gt;2000&lt;/i&gt;"):
            assert word in text or word.replace("?</title>", "? · qwen3lab</title>") in text, word
        assert "Made up &amp; &lt;b&gt;escaped&lt;/b&gt;." in text
        assert "1 rejected" not in text and "8 flagged" in text


def test_a_round_without_an_executed_notebook_is_drawn_from_its_frames(pages: dict[str, str]) -> None:
    assert "No executed notebook: no notebook was named" in pages["v01.html"]
    assert pages["v01.html"].count('<figure role="img"') == 5
    assert "We expect the thinner loop to win." in pages["v01-smoke.html"]
    assert pages["v01-smoke.html"].count('<figure role="img"') == 3
    assert "progress 100%" not in pages["v01-smoke.html"], "progress is no result"


def test_the_index_shows_the_gap_the_ladder_and_every_round(pages: dict[str, str], data: Path) -> None:
    text = pages["index.html"]
    assert text.index('class="headline"') < text.index("<figure") < text.index("The ladder") < text.index("Rounds</h2>")
    assert "1 of 16 questions have been measured" in text
    assert text.count('<span class="rung">') == 16
    for line in (data / "index.jsonl").read_text().splitlines():
        assert re.search(r'"sha256":"([0-9a-f]{64})"', line)[1] in text


def test_the_same_rounds_give_the_same_bytes(pages: dict[str, str], data: Path, tmp_path: Path) -> None:
    site.build(data, tmp_path, "static")
    assert read(tmp_path) == pages


def test_interactive_pages_have_one_script_and_allow_no_other(interactive: Path) -> None:
    for name, text in read(interactive).items():
        figures = text.count('<figure role="img"')
        assert text.count('<script type="application/json"') == figures
        assert Addresses(text).scripts == figures + 1, name
        assert len(text.encode()) < MAX_BYTES
        assert "script-src 'sha256-" in text and "<svg" in text, "without script the static drawing stays"


def test_stale_pages_go_and_strangers_stay(tmp_path: Path) -> None:
    (tmp_path / "v77.html").write_text(f"<head>{site.GENERATOR}</head>")
    (tmp_path / "mine.html").write_text("<p>not ours</p>")
    site.build(tmp_path / "data", tmp_path)
    assert set(read(tmp_path)) == {"index.html", "mine.html"}


def test_an_empty_data_folder_has_an_index_that_says_so(tmp_path: Path) -> None:
    index = site.build(tmp_path / "data", tmp_path / "reports")
    assert "Nothing has been measured yet." in index.read_text()


def test_a_round_that_does_not_verify_is_refused(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy)
    member = next(copy.glob("rounds/v01/*/samples.parquet"))
    raw = bytearray(member.read_bytes())
    raw[len(raw) // 2] ^= 1
    member.write_bytes(raw)
    with pytest.raises(UnverifiedRound, match=r"samples\.parquet: changed"):
        site.build(copy, tmp_path / "reports")
    assert not (tmp_path / "reports").exists(), "no half of a site"


def test_reports_are_drawn_without_torch(tmp_path: Path) -> None:
    data = tmp_path / "data"
    made_rounds.seal(data, figures=False)
    script = f"""
import sys
sys.modules["torch"] = None
from qwen3lab.cli import main
sys.argv = ["qwen3lab", "report", "--data", {str(data)!r}, "--out", {str(tmp_path)!r}]
main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, f"report: {tmp_path / 'index.html'}"), done.stderr


def test_what_a_notebook_holds_is_not_trusted() -> None:
    evil = "<script>alert(1)</script><img src=http://e/x onerror=alert(1)><style>@import 'http://e'</style>"
    links = "[out](https://e/x) [in](v02.html) [js](javascript:alert(1)) <a href='//e/x' onclick=alert(1)>p</a>"
    outputs = [
        nbformat.v4.new_output("display_data", data={"text/html": f"{evil}<table><tr><td>kept</td></tr></table>"}),
        nbformat.v4.new_output("display_data", data={"text/markdown": evil}),
        nbformat.v4.new_output("display_data", data={"application/javascript": "alert(1)"}),
        nbformat.v4.new_output("display_data", data={"image/svg+xml": "<svg onload='alert(1)'/>"}),
        nbformat.v4.new_output("stream", name="stdout", text=evil),
        nbformat.v4.new_output("error", ename=evil, evalue=evil, traceback=[evil]),
    ]
    cells = [nbformat.v4.new_markdown_cell(f"# Title\n\n{evil}\n\n{links}"), nbformat.v4.new_code_cell(evil)]
    cells[1].outputs = outputs
    text = article(nbformat.v4.new_notebook(cells=cells))
    found = Addresses(text)
    assert found.found == ["v02.html"]
    assert found.scripts == 0
    assert not re.search(r"<(script|style|img|svg|iframe)|<[^>]*\son\w+=", text)
    assert "<td>kept</td>" in text


@pytest.mark.parametrize(
    "text", ["<script>a", "<sCript >a</scRipt >b", "<style>a</style", "<scr<script></script>ipt>a", "<svg><script>a"]
)
def test_broken_markup_is_no_way_around(text: str) -> None:
    assert not re.search(r"<\s*(script|style|svg)", harmless(text), flags=re.IGNORECASE)


def test_a_hundred_trials_of_eight_workloads_stay_a_small_page(tmp_path: Path) -> None:
    trials, *_ = comparison(25)
    assert len(trials) == 800
    made_rounds.seal(tmp_path / "data", blocks=25, notebook=False)
    site.build(tmp_path / "data", tmp_path / "reports", "interactive")
    assert (tmp_path / "reports/v01.html").stat().st_size < MAX_BYTES
