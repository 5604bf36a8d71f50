"""Two models side by side, also of other tokens."""

import pytest

from .conftest import TEXT, WORDS, Served, Tab, memory, token


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


@pytest.fixture
def other(browser, mosaic, of_bytes):
    """A model of words beside one of bytes."""
    server = Served([mosaic, of_bytes])
    with Tab(browser, server.address) as one:
        one.write(TEXT)
        yield one
    server.stop()


def chosen(tab, pane: int) -> str:
    """The text up to the chosen token."""
    return tab.page.evaluate(
        f"(({{data, position}}) => data.tokens.slice(0, position - data.first + 1).join(''))(explorer.panes[{pane}])"
    )


def test_a_held_token_is_held_on_both_sides(other):
    other.page.click(token(6))
    other.page.wait_for_selector(".pane.pinned")
    other.page.click("#tab-compare")
    other.page.wait_for_selector(".pane[data-pane='1'].pinned .token[aria-selected=true]")
    other.until("explorer.panes[1].characters() === explorer.panes[0].characters()")
    other.page.hover(token(20, 1))
    other.settle()
    assert chosen(other, 0) == chosen(other, 1)
    assert other.at(0) == 6
    other.page.click(token(len(TEXT) - 8, 1))
    other.until("explorer.panes[0].position > 6")
    assert chosen(other, 0).startswith(chosen(other, 1))
    other.page.keyboard.press("Escape")
    other.page.wait_for_selector(".pane.pinned", state="detached")


def test_a_token_chosen_while_the_other_model_reads_is_chosen_there_too(other):
    other.page.evaluate("""() => { // holds the second model's answers back
        const read = SERVED.read.bind(SERVED), released = new Promise((go) => { window.release = go; });
        SERVED.read = async (asked) => {
            if (asked.model === 1) await (window.held = released);
            return read(asked);
        };
    }""")
    other.page.click("#tab-compare")
    other.page.click(token(6))
    other.until("window.held !== undefined")
    assert other.page.evaluate("explorer.panes[1].data.count") == 0
    other.page.evaluate("window.release()")
    other.until("explorer.panes[1].data.count > 0")
    other.until("explorer.panes[1].characters() === explorer.panes[0].characters()")
    assert other.at(0) == 6


def test_a_guess_is_measured_on_both_sides(other):
    """By a model of bytes, the first byte of it."""
    other.page.click("#tab-compare")
    other.page.wait_for_selector(".pane[data-pane='1'] .guesses li")
    other.page.hover(token(8))
    other.until("explorer.panes[1].characters() === explorer.panes[0].characters()")
    index, text = next(
        (index, text)
        for index, text in enumerate(other.page.locator(GUESSES).all_inner_texts())
        if text[0] != "<" and index > 0
    )
    message = "document.querySelectorAll('.mosaics > .hint')[{}].textContent"
    wanted = [f"What each memory adds to the logit of {one}, above the average token." for one in (text, text[0])]
    assert other.page.evaluate(message.format(1)) != wanted[1]
    other.page.locator(GUESSES).nth(index).click()
    for pane in (0, 1):
        other.until(message.format(pane), wanted[pane])


GUESSES = ".pane[data-pane='0'] .guess"


def test_pages_are_turned_to_the_same_place(other):
    """One page of words is many of bytes."""
    text = TEXT * 12
    other.write(text)
    other.page.click("#tab-compare")
    other.page.wait_for_selector(".pane[data-pane='1'] .pager >> text=of 2")
    assert other.page.evaluate("explorer.panes[0].data.pages") == 1
    for position in (5, 150):
        other.page.hover(token(position))
        other.until("explorer.panes[1].characters() >= explorer.panes[0].characters()")
        other.until("explorer.panes[1].characters() - explorer.panes[0].characters() < 1")
    other.page.hover(token(5))
    other.page.wait_for_selector(".pane[data-pane='1'] .pager >> text=page 1 of 2")
    other.page.click(".pane[data-pane='1'] .pager [aria-label='Page after']")
    other.until("explorer.panes[1].data.page === 1 && explorer.panes[0].characters() >= explorer.panes[1].characters()")
    assert other.at(0) > 5


def test_a_model_that_reads_less_is_named_once(browser, mosaic, twin):
    server = Served([mosaic, twin])
    with Tab(browser, server.address) as one:
        one.page.click("#tab-compare")
        one.page.wait_for_selector(".pane[data-pane='1'] .token")
        one.page.fill("#text", WORDS * 30)
        one.page.wait_for_selector("#message:has-text('twin reads at most 512 here')")
        assert one.page.inner_text("#message").count("twin") == 1
        one.wrong = [wrong for wrong in one.wrong if "400 (Bad Request)" not in wrong]  # the browser's own note
        one.page.hover(token(3, 1))
        one.until("explorer.panes[1].position", 3)
        one.page.click(memory(0, "sequence", 1, 1))
        one.page.wait_for_selector(".pane[data-pane='1'] .detail .promoted li")
    server.stop()
