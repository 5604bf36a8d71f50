"""The page in a real browser: type, hover, click, edit; nothing fails on the way."""

import json
import re

from .conftest import WORDS, Served, Tab, memory, token


def test_typing_reads_on(tab):
    tab.page.click("#text")
    tab.page.keyboard.press("Control+End")
    tab.page.keyboard.type(" kite")
    tab.until("document.querySelector('.pane .tokens').textContent.endsWith('red kite')")
    assert tab.text() == WORDS + "She saw the red kite"
    assert re.search(r"\d+ ms", tab.page.inner_text("#status"))
    assert "mean loss" in tab.page.inner_text(".pane .summary")
    assert tab.page.locator(".pane .guesses li").first.is_visible()


def test_the_text_is_continued_from_the_page(tab):
    before = tab.page.input_value("#text")
    tab.page.click("#continue")
    tab.until(f"document.querySelector('#text').value.length > {len(before)}")
    tab.page.wait_for_selector(".pane:not(.stale) .guesses .add")
    longer = tab.page.input_value("#text")
    assert longer.startswith(before)
    tab.page.click(".guesses .add >> nth=0")
    tab.until(f"document.querySelector('#text').value.length > {len(longer)}")


def test_the_tour_shows_one_part_after_the_other(tab):
    tab.page.click("#tour")
    seen = []
    while tab.page.inner_text(".tour .primary") == "Next":
        assert tab.page.locator(".toured").count() == 1
        seen.append(tab.page.inner_text(".tour h2"))
        tab.page.click(".tour .primary")
    assert len(set(seen)) == len(seen) == 6
    assert tab.page.locator(".detail .pairs li").count() > 0, "the tour has chosen a memory"
    tab.page.click(".tour .primary")
    assert tab.page.locator(".tour").is_hidden()
    tab.page.keyboard.press("t")
    tab.page.keyboard.press("Escape")
    assert tab.page.locator(".toured").count() == 0


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
    assert tab.page.locator(".promoted li").count() == 6
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
        assert tab.page.locator(".tile span:not(:empty)").count() >= 16


def test_short_and_long_memories_are_apart(browser, gated):
    server = Served([gated])
    with Tab(browser, server.address) as tab:
        titles = tab.page.locator(".grid .kind").all_inner_texts()
        short, long, persistent = titles
        assert [title.split("\n")[0] for title in titles[:2]] == ["Short-term", "Long-term"]
        assert "the last 7 pairs" in short.lower()
        assert "pairs 3 or more steps ago" in long.lower()
        assert "persistent memory" in persistent.lower()
        assert [grid.locator(".tile").count() for grid in tab.page.locator(".grid").all()] == [4, 4, 8]
        tab.page.click(memory(1, "sequence", 2))
        tab.page.wait_for_selector(".detail .found")
        shown = tab.page.inner_text(".detail .hint")
        assert shown.startswith("sees pairs 3 or more steps ago · λ")
        assert re.search(r"β \d+(\.\d+)? at n = \d+", shown)
        assert tab.page.inner_text(".detail h2") == "Long-term memory, block 1, head 2"
        unseen = tab.page.locator(".token.unseen")
        last = tab.page.evaluate("window.explorer.panes[0].data.count - 1")
        assert [int(one.get_attribute("data-at")) for one in unseen.all()] == [last - 2, last - 1]
        tab.page.click("#tour")
        steps = tab.page.inner_text(".tour .hint")
        assert steps == "1 of 8", "one more, about short-term and long-term memories"
    server.stop()


SHARES = "[...document.querySelectorAll('.pane .guesses .share')].map(one => one.textContent)"


def test_removing_a_pair_changes_the_prediction(tab):
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    first = tab.page.get_attribute(".pairs li >> nth=0", "data-pair")
    before = tab.page.evaluate(SHARES)
    tab.page.click(".pairs li >> nth=0 >> [aria-label^=Remove]")
    tab.page.wait_for_selector(".chips li")
    assert re.fullmatch(r"block 0 head 1: .+ → .+ removed\s*✕", tab.page.inner_text(".chips li"))
    tab.page.wait_for_selector(f".pairs [data-pair='{first}']", state="detached")
    assert tab.page.evaluate(SHARES) != before
    assert "→" in tab.page.inner_text(".pane .summary")
    tab.page.click("text=Undo all")
    tab.page.wait_for_selector(".edits", state="hidden")
    tab.until(f"[{SHARES}]", [before])


def test_a_pair_can_be_rewritten(tab):
    tab.page.click(memory(0, "sequence", 2))
    tab.page.wait_for_selector(".pairs li")
    tab.page.click(".pairs li >> nth=0 >> [aria-label^=Rewrite]")
    tab.page.keyboard.type("dog")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".chips li")
    assert re.fullmatch(r"block 0 head 2: .+ → .+ rewritten as .?dog\s*✕", tab.page.inner_text(".chips li"))
    tab.page.wait_for_selector(".pairs ins")
    assert tab.page.inner_text(".pairs ins").strip("␣") == "dog"


def test_a_memory_can_be_switched_off_by_its_key(tab):
    tab.page.click(memory(1, "sequence", 0))
    tab.page.wait_for_selector(".pairs li")
    tab.page.keyboard.press("o")
    tab.page.wait_for_selector(memory(1, "sequence", 0) + ".off")
    assert tab.page.get_attribute(".switch", "aria-checked") == "false"
    assert "Switched off: it adds nothing" in tab.page.inner_text(".detail")
    tab.page.keyboard.press("o")
    tab.page.wait_for_selector(".tile.off", state="detached")


def test_a_mouse_that_rests_takes_nothing_from_who_types(tab):
    tab.page.hover(token(4))
    tab.until("window.explorer.panes[0].position", 4)
    tab.page.focus("#text")
    tab.page.keyboard.press("Control+End")
    for letter in " kite and a":
        tab.page.keyboard.type(letter)
        tab.settle()
    tab.until("window.explorer.panes[0].shownText.endsWith('kite and a')")
    last = "window.explorer.panes[0].position === window.explorer.panes[0].data.count - 1"
    tab.until(last)
    tab.settle()
    assert tab.page.evaluate(last)
    tab.page.mouse.move(0, 0)
    tab.page.hover(token(5))
    tab.until("window.explorer.panes[0].position", 5)


def open_form(tab, text: str) -> None:
    tab.page.click(memory(0, "sequence", 2))
    tab.page.wait_for_selector(".pairs li")
    tab.page.click(".pairs li >> nth=0 >> [aria-label^=Rewrite]")
    tab.page.keyboard.type(text)


def test_several_tokens_are_refused_by_name(tab):
    open_form(tab, "dogs")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector("#message:has-text('The pair was not rewritten: it has one token, not the ')")
    assert "dog”, “s”" in tab.page.inner_text("#message")
    assert tab.page.locator(".chips li").count() == 0
    tab.page.click(".pairs li >> nth=0 >> [aria-label^=Rewrite]")
    tab.page.keyboard.type("dog")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".pairs ins")
    assert tab.page.is_hidden("#message")


def test_the_form_stays_while_the_mouse_crosses_the_text(tab):
    open_form(tab, "do")
    at = tab.at()
    for position in (1, 5, 9):
        tab.page.hover(token(position))
        tab.settle()
    assert tab.at() == at
    tab.page.evaluate("window.explorer.panes[0].show()")  # as any answer that comes does
    assert tab.page.input_value(".rewrite input") == "do"
    tab.page.keyboard.type("g")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".pairs ins")
    assert tab.page.inner_text(".pairs ins").strip("␣") == "dog"
    assert tab.page.locator(".pane.pinned").count() == 0
    tab.page.hover(token(5))
    tab.until("window.explorer.panes[0].position", 5)


def test_edits_that_lose_their_text_are_reported(tab):
    tab.page.click(memory(0, "sequence", 1))
    for wanted in (1, 2):
        tab.page.wait_for_selector(".pairs li")
        tab.page.click(".pairs li >> nth=0 >> [aria-label^=Remove]")
        tab.until("document.querySelectorAll('.pane .chips li').length", wanted)
    edits = tab.page.evaluate("window.explorer.panes[0].edits")
    tab.page.click(".chips li >> nth=0 >> button")
    tab.until("window.explorer.panes[0].data.edits.length", 1)
    tab.write("Other words")
    assert tab.page.inner_text("#message") == "1 edit was dropped: the text of the pair has changed."
    tab.write(WORDS + "She saw the red")
    tab.page.evaluate("(edits) => { explorer.panes[0].edits = edits; explorer.panes[0].read(); }", edits)
    tab.until("window.explorer.panes[0].data.edits.length", 2)
    tab.write("Other words")
    assert tab.page.inner_text("#message") == "2 edits were dropped: the text of the pair has changed."


def test_parts_of_a_letter_are_distinguished(browser, of_bytes):
    """All of them look alike as text: what is marked goes by the token."""
    server = Served([of_bytes])
    with Tab(browser, server.address) as one:
        one.write("aשלש b")
        one.page.hover(token(1))
        one.until("document.querySelector('.prediction h2').innerText", "After <D7> it expects")
        assert one.page.get_attribute(token(1), "title") == "<D7>"
        guesses = one.page.locator(".guess")
        guesses.nth(2).click()
        pressed = "[...document.querySelectorAll('.guess')].map(one => one.getAttribute('aria-pressed'))"
        one.until(pressed, ["false", "false", "true", "false", "false"])
        assert len({*guesses.all_inner_texts()}) == 5
    server.stop()
