"""Texts that are too long, odd, or of several pages."""

import pytest

from .conftest import WORDS, memory, token


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Nothing to read yet"),
        ("a" * 100_000, "The text has 100,000 characters; at most 20,000 are read."),
        ("word " * 3999, "mosaic reads at most 4,096 here"),
    ],
    ids=["empty", "far too long", "too many tokens"],
)
def test_bad_texts_are_reported_and_the_page_goes_on(tab, text, message):
    tab.page.fill("#text", text)
    tab.page.wait_for_selector(f"text={message}")
    tab.wrong = [wrong for wrong in tab.wrong if "400 (Bad Request)" not in wrong]  # the browser's own note
    tab.write("The dog saw")
    tab.until("document.querySelector('.pane .tokens').textContent === 'The dog saw'")
    tab.page.wait_for_selector("#message", state="hidden")
    assert tab.page.locator(".pane.stale").count() == 0


def test_odd_characters_are_shown(tab):
    tab.write('a😀\x01\u202e<b>\n\tc & "d"')
    shown = tab.text()
    assert "😀" in shown
    assert "␁" in shown
    assert "◌" in shown
    assert "⏎" in shown
    assert "<b>" in shown.replace(" ", "")
    for unseen in "\u00ad\u2028\u2029\u2060\u200b\u200d\ufeff\u3164":
        tab.write(f"a{unseen}b")
        assert tab.text().replace("·", "") == "a◌b", f"U+{ord(unseen):04X}"
    tab.write("a❤\ufe0fb")
    assert tab.text().replace("·", "") == "a❤\ufe0fb", "a heart in its colour"


def test_long_texts_are_turned_by_pages(tab):
    tab.write(WORDS * 12)
    tab.page.wait_for_selector(".pager >> text=of 2")
    tab.page.click(".pager [aria-label='Page before']")
    tab.page.wait_for_selector("text=page 1 of 2")
    assert tab.page.locator(".token").first.get_attribute("data-at") == "0"


def test_the_page_works_on_what_was_read_when_a_text_is_too_long(tab, tmp_path):
    """Hover, click, a memory, its switch, saving, comparing: all of the text that is shown."""
    shown = tab.text()
    tab.page.fill("#text", "a" * 100_000)
    tab.page.wait_for_selector("text=What is below was read before.")
    tab.page.hover(token(3))
    tab.until("window.explorer.panes[0].found?.position", 3)
    tab.page.click(token(5))
    tab.page.wait_for_selector(".pane.pinned")
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    tab.page.keyboard.press("o")
    tab.page.wait_for_selector(".tile.off")
    assert tab.text() == shown
    assert tab.page.locator(".pane.stale").count() == 1, "it is not of what is in the box"
    assert '"count":' in tab.download("#save-html", tmp_path / "view.html").read_text(encoding="utf-8")
    tab.page.click("#tab-compare")
    tab.page.wait_for_selector(".pane[data-pane='1'] .token[data-at='5'][aria-selected=true]")
    assert tab.text(1) == shown
    tab.page.wait_for_selector("text=What is below was read before.")


def test_the_page_that_is_edited_stays(tab):
    tab.write(WORDS * 12)
    tab.page.wait_for_selector("text=page 2 of 2")
    assert "on this page" in tab.page.inner_text(".summary")
    tab.page.evaluate("explorer.box.focus(); explorer.box.setSelectionRange(40, 40)")
    tab.page.keyboard.type(" big")
    tab.page.wait_for_selector("text=page 1 of 2")
    tab.page.evaluate("explorer.box.setSelectionRange(1e6, 1e6)")
    tab.page.keyboard.type(" dog")
    tab.page.wait_for_selector("text=page 2 of 2")
    tab.until("explorer.panes[0].position === explorer.panes[0].data.count - 1")


WORD = "explorer.panes[0].word(explorer.panes[0].position)"


def test_a_held_token_goes_where_its_letters_go(tab):
    tab.write("The dog saw the red kite. The dog saw")
    at = tab.page.evaluate("explorer.panes[0].data.tokens.indexOf(' red')")
    tab.page.click(token(at))
    tab.page.evaluate("explorer.box.focus(); explorer.box.setSelectionRange(7, 7)")
    tab.page.keyboard.type(" and a girl")
    tab.until("explorer.panes[0].shownText.startsWith('The dog and a girl saw')")
    assert tab.at() > at
    assert tab.page.evaluate(WORD) == " red"
    tab.page.evaluate("explorer.box.setSelectionRange(1e6, 1e6)")
    tab.page.keyboard.type(" it")
    tab.until("explorer.panes[0].shownText.endsWith('saw it')")
    assert tab.page.evaluate(WORD) == " red"
    assert tab.page.locator(".pane.pinned").count() == 1
    tab.write("Another text")
    assert tab.page.locator(".pane.pinned").count() == 0, "it is gone"
    tab.until("explorer.panes[0].position === explorer.panes[0].data.count - 1")


def test_a_turned_page_lets_go_of_the_token(tab):
    tab.write(WORDS * 12)
    tab.page.click(".token >> nth=3")
    tab.page.wait_for_selector(".pane.pinned")
    tab.page.click(".pager [aria-label='Page before']")
    tab.page.wait_for_selector("text=page 1 of 2")
    assert tab.page.locator(".pane.pinned").count() == 0
    tab.page.hover(token(7))
    tab.until("explorer.panes[0].position", 7)


def test_pairs_of_another_page_have_names(tab):
    tab.write("dog kite red " * 140)
    tab.page.wait_for_selector(".pager >> text=of 2")
    tab.page.evaluate("explorer.panes[0].go(explorer.panes[0].data.first)")
    for head in range(4):
        tab.page.click(memory(1, "sequence", head))
        tab.page.wait_for_selector(f".detail:has-text('head {head}') .pairs li")
        far = tab.page.evaluate("explorer.panes[0].found.memory.distant_words")
        assert far
        assert "token" not in tab.page.inner_text(".pairs")
        assert {*far.values()} <= {*tab.page.evaluate("explorer.panes[0].data.tokens")}


def test_both_directions_of_writing(tab):
    assert tab.page.get_attribute("#text", "dir") == "auto"
    assert tab.page.get_attribute(".tokens", "dir") == "auto"
