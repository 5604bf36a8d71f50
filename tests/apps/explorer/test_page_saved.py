"""Views that are saved, and shown again without a server."""

import struct

import pytest

from memory_mosaics.apps.explorer import show

from .conftest import TEXT, WORDS, Served, Tab, memory, token


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


def reopened(tab, browser, tmp_path) -> Tab:
    file = tab.download("#save-html", tmp_path / "view.html")
    saved = Tab(browser, offline=True)
    saved.page.goto(file.as_uri())
    return saved


STATE = """explorer.panes.map(({ position, target, pinned, memory, mosaic, found }) => (
  { position, target, pinned, memory, measure: mosaic.measure, overview: found?.overview }))"""


def test_a_saved_view_is_as_it_was(browser, mosaic, of_bytes, tmp_path):
    server = Served([mosaic, of_bytes])
    with Tab(browser, server.address) as one:
        one.write(TEXT)
        one.page.click("#guesses")
        one.page.click("#tab-compare")
        one.page.wait_for_selector(".pane[data-pane='1'] .pager", state="attached")
        one.page.click(token(5))
        one.until("explorer.panes[1].characters() === explorer.panes[0].characters()")
        one.page.click(memory(1, "sequence", 2, 1))
        one.page.wait_for_selector(".pane[data-pane='1'] .pairs li")
        one.page.click(".pane[data-pane='0'] .guess >> nth=2")
        one.page.click(".pane[data-pane='1'] .segments [data-measure=effective]")
        one.until("explorer.panes.every(pane => pane.target !== null && pane.found.target)")
        one.settle()
        before = one.page.evaluate(STATE)
        before[1]["target"] = one.page.evaluate("explorer.panes[1].found.target[1]")
        with reopened(one, browser, tmp_path) as saved:
            saved.page.wait_for_selector(".pane[data-pane='1'] .pairs li")
            assert saved.page.evaluate(STATE) == before
            assert saved.page.locator(".pane.pinned").count() == 2
            assert saved.page.evaluate("document.documentElement.classList.contains('guessing')")
    server.stop()


def test_saved_moons_have_their_own_periods(tab, browser, tmp_path):
    tab.page.click("#tab-moons")
    tab.page.wait_for_selector(".curve.one[d]")
    tab.page.locator(".sliders input").first.fill("60")
    tab.page.wait_for_selector("text=the whole sky after 1,320")
    with reopened(tab, browser, tmp_path) as saved:
        saved.page.wait_for_selector("text=the whole sky after 1,320")
        assert saved.page.locator(".sliders output").all_inner_texts()[0] == "60"
        assert saved.page.locator(".sliders input").first.input_value() == "60"


def test_a_file_names_what_it_does_not_hold(tab, browser, tmp_path):
    tab.write(WORDS * 15)
    tab.page.click(".pager [aria-label='Page before']")
    tab.page.wait_for_selector(".pager >> text=page 1 of 2")
    tab.page.click(memory(1, "channel", 2))
    tab.page.wait_for_selector(".pairs li")
    with reopened(tab, browser, tmp_path) as saved:
        saved.page.wait_for_selector(".pairs li")
        assert saved.page.locator(".pager button:enabled").count() == 0
        assert saved.page.locator(".tile:enabled").count() == 1
        assert "not in this file" in saved.page.get_attribute(memory(0, "sequence", 0), "title")
        saved.page.keyboard.press("Escape")
        held = "Of this long text the file has the pairs of one memory: persistent memory 2 of block 1."
        saved.page.wait_for_selector(f".invite:has-text({held!r})")


@pytest.mark.parametrize("text", ["a\x01\x0b\x1f b", "a \ud83d b"], ids=["controls", "half a letter"])
def test_any_text_can_be_a_picture(tab, text, tmp_path):
    tab.page.evaluate("(text) => { explorer.box.value = text; }", text)
    assert tab.download("#save-png", tmp_path / "view.png").stat().st_size > 30_000
    assert tab.page.is_hidden("#message")
