"""The page in a real browser: type, hover, click, edit, compare, export; nothing fails on the way."""

import json
import re
import shutil
import struct
import time

import pytest

from memory_mosaics.explorer import show

from .conftest import WORDS, Served

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Tab:
    """A page that remembers what went wrong on it."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(15_000)
        self.wrong: list[str] = []
        self.page.on("console", lambda said: said.type == "error" and self.wrong.append(said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("requestfailed", lambda request: self.wrong.append(f"{request.url} {request.failure}"))

    def text(self) -> str:
        shown = (
            self.page.locator(".pane").first.locator(".token").evaluate_all("all => all.map(one => one.textContent)")
        )
        return "".join(shown)

    def until(self, expression: str, wanted: object = True) -> None:
        """Wait for it. The page's own policy forbids what `wait_for_function` does, which is to evaluate a text."""
        for _ in range(150):
            found = self.page.evaluate(expression)
            if found == wanted:
                return
            time.sleep(0.1)
        raise AssertionError(f"{expression} is {found}, not {wanted}")

    def write(self, text: str) -> None:
        self.page.fill("#text", text)


@pytest.fixture
def tab(browser, served):
    one = Tab(browser)
    one.page.goto(served.address)
    one.page.wait_for_selector(".tile:not(:empty)")
    one.write(WORDS + "She saw the red")
    one.until("document.querySelector('.pane .tokens').textContent.endsWith('She saw the red')")
    yield one
    assert one.wrong == []
    one.context.close()


def memory(block: int, kind: str, head: int) -> str:
    return f""".pane[data-pane="0"] .tile[data-memory='[{block},"{kind}",{head}]']"""


def test_typing_reads_on(tab):
    tab.page.click("#text")
    tab.page.keyboard.press("Control+End")
    tab.page.keyboard.type(" kite")
    tab.until("document.querySelector('.pane .tokens').textContent.endsWith('red kite')")
    assert tab.text() == WORDS + "She saw the red kite"
    assert re.search(r"\d+ ms", tab.page.inner_text("#status"))
    assert "mean loss" in tab.page.inner_text(".pane .summary")
    assert tab.page.locator(".pane .guesses li").first.is_visible()


def test_hovering_shows_what_was_expected_there(tab):
    before = tab.page.inner_text(".prediction h2")
    tab.page.hover(".pane[data-pane='0'] .token >> nth=4")
    tab.until(f"document.querySelector('.prediction h2').innerText === {json.dumps(before)}", False)
    assert "loss" in tab.page.inner_text(".prediction .hint")
    assert tab.page.locator(".token[aria-selected=true]").first.get_attribute("data-at") == "4"


def test_a_memory_shows_its_pairs_over_the_text(tab):
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    shown = tab.page.inner_text(".detail")
    assert "Contextual memory, block 0, head 1" in shown
    assert "λ" in shown
    assert "→" in tab.page.inner_text(".pairs li >> nth=0")
    assert tab.page.locator(".says li").count() == 6
    weights = tab.page.eval_on_selector_all(
        ".token", "all => all.map(one => Number(one.style.getPropertyValue('--weight')))"
    )
    assert max(weights) > 0.5
    assert tab.page.locator(".lines path").count() > 0
    tab.page.hover(".token >> nth=0")
    tab.page.wait_for_selector("text=Nothing is stored yet")
    tab.page.click(memory(0, "channel", 1))
    tab.page.wait_for_selector("text=Slots retrieved")
    for measure in ("Pairs", "λ", "β", "Contribution"):
        tab.page.click(f".segments button:text-is('{measure}')")
        assert tab.page.locator(".tile:not(:empty)").count() >= 16


SHARES = "[...document.querySelectorAll('.pane .guesses .share')].map(one => one.textContent)"


def test_removing_a_pair_changes_the_prediction(tab):
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    first = tab.page.get_attribute(".pairs li >> nth=0", "data-place")
    before = tab.page.evaluate(SHARES)
    tab.page.click(".pairs li >> nth=0 >> [aria-label^=Remove]")
    tab.page.wait_for_selector(".chips li")
    assert f"pair {first} removed" in tab.page.inner_text(".chips")
    tab.page.wait_for_selector(f".pairs [data-place='{first}']", state="detached")
    assert tab.page.evaluate(SHARES) != before
    assert "→" in tab.page.inner_text(".pane .summary")
    tab.page.click("text=Undo all")
    tab.page.wait_for_selector(".edits", state="hidden")
    tab.until(f"[{SHARES}]", [before])


def test_a_pair_can_be_written_anew(tab):
    tab.page.click(memory(0, "sequence", 2))
    tab.page.wait_for_selector(".pairs li")
    tab.page.click(".pairs li >> nth=0 >> [aria-label^=Write]")
    tab.page.keyboard.type("dog")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".chips li")
    assert "says" in tab.page.inner_text(".chips")
    tab.page.wait_for_selector(".pairs ins")
    assert "d" in tab.page.inner_text(".pairs ins")


def test_a_memory_can_be_switched_off_by_its_key(tab):
    tab.page.click(memory(1, "sequence", 0))
    tab.page.wait_for_selector(".pairs li")
    tab.page.keyboard.press("o")
    tab.page.wait_for_selector(memory(1, "sequence", 0) + ".off")
    assert tab.page.get_attribute(".switch", "aria-checked") == "false"
    assert "Switched off, it says nothing" in tab.page.inner_text(".detail")
    tab.page.keyboard.press("o")
    tab.page.wait_for_selector(".tile.off", state="detached")


def test_the_keyboard_goes_everywhere(tab):
    tab.page.focus(".token[tabindex='0']")
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")
    tab.until("document.activeElement.dataset.at === '2'")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("Enter")
    assert tab.page.locator(".pane.held").count() == 1
    tab.page.focus(".tile[tabindex='0']")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".detail:has-text('block 1, head 0')")
    tab.page.keyboard.press("Escape")
    tab.page.wait_for_selector(".detail", state="hidden")
    tab.page.keyboard.press("/")
    assert tab.page.evaluate("document.activeElement.id") == "text"
    tab.page.keyboard.press("Escape")
    tab.page.keyboard.press("?")
    assert tab.page.is_visible("dialog")
    tab.page.keyboard.press("Escape")


def test_two_models_side_by_side_look_at_the_same_place(tab):
    tab.page.click("#tab-compare")
    tab.page.wait_for_selector(".pane[data-pane='1'] .token")
    tab.page.hover(".pane[data-pane='0'] .token >> nth=6")
    tab.page.wait_for_selector(".pane[data-pane='1'] .token[data-at='6'][aria-selected=true]")
    tab.page.click(".pane[data-pane='1'] .tile >> nth=0")
    tab.page.wait_for_selector(".pane[data-pane='1'] .detail:has-text('Attention, block 0, head 0')")
    tab.page.wait_for_selector(".pane[data-pane='1'] .pairs li")
    names = tab.page.eval_on_selector_all(".pane select", "all => all.map(one => one.selectedOptions[0].textContent)")
    assert names == ["mosaic", "rotary"]


def test_the_moons_are_watched(tab):
    tab.page.click("#tab-moons")
    tab.page.wait_for_selector(".curve.one[d]")
    tab.until("document.querySelector('.transport output').textContent.startsWith('3') ")
    tab.page.click("text=Pause")
    slider = tab.page.locator(".sliders input").first
    slider.focus()
    tab.page.keyboard.press("ArrowRight")
    tab.until("document.querySelector('.hint').textContent !== null")
    assert tab.page.inner_text(".sliders output >> nth=0") == "45"
    tab.page.wait_for_selector("text=the whole sky after 3,960")
    tab.page.locator(".transport input").fill("400")
    assert tab.page.inner_text(".transport output") == "401 seen"


def test_light_and_dark(browser, served):
    for scheme, paper in (("light", "rgb(250, 248, 244)"), ("dark", "rgb(20, 22, 26)")):
        one = Tab(browser, color_scheme=scheme)
        one.page.goto(served.address)
        colour = "getComputedStyle(document.body).backgroundColor"
        assert one.page.evaluate(colour) == paper
        one.page.click("#theme")
        assert one.page.evaluate(colour) != paper
        one.page.wait_for_load_state("networkidle")  # or leaving the page fails what it has asked
        one.page.reload()
        assert one.page.evaluate(colour) != paper, "the choice is remembered"
        assert one.wrong == []
        one.context.close()


@pytest.mark.parametrize("width", [360, 768, 1366])
def test_nothing_sticks_out(browser, served, width):
    one = Tab(browser, viewport={"width": width, "height": 800}, has_touch=width < 500)
    one.page.goto(served.address)
    one.page.wait_for_selector(".tile:not(:empty)")
    one.page.click(memory(0, "sequence", 1))
    one.page.wait_for_selector(".pairs li")
    for view in ("explore", "compare", "moons"):
        one.page.click(f"#tab-{view}")
        one.page.wait_for_timeout(150)
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width, view
    assert one.wrong == []
    one.context.close()


@pytest.mark.parametrize("view", ["explore", "compare", "moons"])
def test_views_are_saved_as_pages_and_pictures(tab, browser, tmp_path, view):
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    tab.page.click(f"#tab-{view}")
    tab.page.wait_for_selector(".curve.one[d]" if view == "moons" else ".pane .token >> visible=true")
    with tab.page.expect_download() as coming:
        tab.page.click("#save-png")
    picture = tmp_path / "view.png"
    coming.value.save_as(picture)
    assert coming.value.suggested_filename == f"memory-mosaic-{view}.png"
    width, height = struct.unpack(">II", picture.read_bytes()[16:24])
    assert width > 1500
    assert height > 500
    assert picture.stat().st_size > 30_000, "not an empty sheet"
    with tab.page.expect_download() as coming:
        tab.page.click("#save-html")
    file = tmp_path / "view.html"
    coming.value.save_as(file)
    saved = Tab(browser, offline=True)
    saved.page.goto(file.as_uri())
    if view == "moons":
        saved.page.wait_for_selector(".curve.three[d]")
        saved.page.locator(".transport input").fill("300")
    else:
        saved.page.wait_for_selector(".pairs li")
        assert saved.text() == tab.text()
        saved.page.hover(".pane[data-pane='0'] .token >> nth=5")
        saved.page.wait_for_selector(".pane[data-pane='0'] .token[data-at='5'][aria-selected=true]")
        assert saved.page.locator(".pane").count() == (2 if view == "compare" else 1)
        saved.page.click(memory(1, "sequence", 1))
        saved.page.wait_for_selector(".detail:has-text('block 1, head 1') .pairs li")
    assert saved.wrong == []
    saved.context.close()


def test_the_notebook_shows_the_same_view(browser, mosaic, rotary, tmp_path):
    view = show([mosaic, rotary], WORDS, memory=(0, "sequence", 1), position=12)
    frame = tmp_path / "notebook.html"
    frame.write_text(f"<!doctype html><body>{view._repr_html_()}</body>", encoding="utf-8")
    one = Tab(browser, offline=True)
    one.page.goto(frame.as_uri())
    inside = one.page.frame_locator("iframe")
    inside.locator(".pane[data-pane='0'] .pairs li").first.wait_for()
    assert inside.locator(".pane").count() == 2
    assert inside.locator(".pane[data-pane='0'] .token[aria-selected=true]").get_attribute("data-at") == "12"
    assert one.wrong == []
    one.context.close()
    assert view.save(tmp_path / "saved.html").read_text(encoding="utf-8") == view.html


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "Nothing to read yet"),
        ("a" * 100_000, "The text has 100,000 characters; at most 20,000 are read."),
        ("word " * 3999, "mosaic reads at most 4,096 here"),
    ],
    ids=["empty", "far too long", "too many tokens"],
)
def test_bad_texts_are_told_and_the_page_goes_on(tab, text, told):
    tab.write(text)
    tab.page.wait_for_selector(f"text={told}")
    tab.wrong = [wrong for wrong in tab.wrong if "400 (Bad Request)" not in wrong]  # the browser's own note
    tab.write("The dog saw")
    tab.until("document.querySelector('.pane .tokens').textContent === 'The dog saw'")
    tab.page.wait_for_selector("#message", state="hidden")
    assert tab.page.locator(".pane.stale").count() == 0


def test_odd_characters_are_shown(tab):
    tab.write('a😀\x01\u202e<b>\n\tc & "d"')
    tab.until("document.querySelector('.pane .tokens').textContent.includes('😀')")
    shown = tab.text()
    assert "␁" in shown
    assert "◌" in shown
    assert "⏎" in shown
    assert "<b>" in shown.replace(" ", "")


def test_long_texts_are_turned_by_pages(tab):
    tab.write(WORDS * 12)
    tab.page.wait_for_selector(".pager >> text=of 2")
    tab.page.click(".pager [aria-label='Page before']")
    tab.page.wait_for_selector("text=page 1 of 2")
    assert tab.page.locator(".token").first.get_attribute("data-at") == "0"


def test_a_lost_server_is_told_and_found_again(browser, mosaic):
    server = Served([mosaic])
    one = Tab(browser)
    one.page.goto(server.address)
    one.page.wait_for_selector(".tile:not(:empty)")
    port = server.port
    server.stop()
    assert one.wrong == []
    one.write("The dog")
    one.page.wait_for_selector("text=The explorer does not answer")
    assert one.page.locator(".token").count() > 0, "what was read stays"
    for _ in range(50):
        try:
            server = Served([mosaic], port)
            break
        except OSError:
            time.sleep(0.2)
    one.until("document.querySelector('.pane .tokens').textContent === 'The dog'")
    one.page.wait_for_selector("#message", state="hidden")
    one.context.close()
    server.stop()
