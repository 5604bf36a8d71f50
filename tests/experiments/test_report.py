"""The page: whole in itself, safe for any text, and without a complaint in a real browser."""

import re
import shutil
import subprocess

import pytest

from experiments.test_figures import WHOLE, results
from memory_mosaics.experiments import figures
from memory_mosaics.experiments.report import Page
from waiting import HANG


@pytest.fixture
def page(tmp_path):
    (figure,) = figures.draw(results(**WHOLE), tmp_path)
    page = Page("A <title> & more")
    page.heading("Ünïcode ✓")
    page.text('He said "<script>alert(1)</script>".', "A second paragraph.")
    page.table(["model", "loss"], [["a < b", "1.234"], ["c", "2.345"]])
    page.beside({"one": "Once\nupon", "two": "a time"}, {"two": "noted"})
    page.code("mosaics --help")
    page.figure(figure, 'A "figure"')
    return page.write(tmp_path / "report.html")


def test_it_refers_to_nothing_outside(page):
    text = page.read_text(encoding="utf-8")
    assert all(link.startswith("data:") for link in re.findall(r'(?:src|href)="([^"]*)"', text))
    assert "url(" not in text
    assert "@import" not in text


def test_text_stays_text(page):
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "<title>A &lt;title&gt; &amp; more</title>" in text


def test_a_note_stands_apart_from_its_text(page):
    assert "a time<small>noted</small></div>" in page.read_text(encoding="utf-8")


def test_a_long_word_breaks_within_its_column(page):
    (rule,) = re.findall(r"\.beside > div \{([^}]*)\}", page.read_text(encoding="utf-8"))
    assert "overflow-wrap: anywhere" in rule


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium here")
def test_a_browser_shows_it_without_complaint(page, tmp_path):
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}"]
    options += ["--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=2000", "--dump-dom"]
    shown = subprocess.run(["chromium", *options, page.as_uri()], capture_output=True, text=True, timeout=HANG)
    assert "<h2>Ünïcode ✓</h2>" in shown.stdout
    assert "CONSOLE" not in shown.stderr
    picture = tmp_path / "page.png"
    subprocess.run(["chromium", *options[:4], f"--screenshot={picture}", page.as_uri()], timeout=HANG, check=True)
    assert picture.stat().st_size > 10_000
