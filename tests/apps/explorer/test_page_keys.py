"""The page by keyboard alone."""

from .conftest import memory, token


def test_the_keyboard_goes_everywhere(tab):
    tab.page.focus(".token[tabindex='0']")
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("ArrowRight")
    tab.page.keyboard.press("ArrowRight")
    tab.until("document.activeElement.dataset.at === '2'")
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("Enter")
    assert tab.page.locator(".pane.pinned").count() == 1
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


FOCUS = "document.activeElement.dataset.key || document.activeElement.className || document.activeElement.tagName"


def remove(tab, row: int) -> None:
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    tab.page.focus(f".pairs li >> nth={row} >> [aria-label^=Remove]")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".chips li")


def test_a_removed_pair_leaves_the_focus_in_its_place(tab):
    remove(tab, 1)
    tab.until("document.activeElement.dataset.key?.startsWith('remove-')")
    there = tab.page.get_attribute(".pairs li >> nth=1", "data-pair")
    tab.until(FOCUS, f"remove-{there}")
    tab.page.keyboard.press("Enter")
    tab.until("document.querySelectorAll('.chips li').length", 2)
    assert tab.page.evaluate(FOCUS).startswith("remove-")
    tab.page.focus(".chips li >> nth=1 >> button")
    tab.page.keyboard.press("Enter")
    tab.until(FOCUS, "undo-0")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".edits", state="hidden")
    tab.until("document.activeElement.classList.contains('token')")


def test_escape_in_the_form_goes_back_to_its_button(tab):
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    place = tab.page.get_attribute(".pairs li >> nth=2", "data-pair")
    tab.page.focus(f"[data-key=write-{place}]")
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.type("dog")
    tab.page.keyboard.press("Escape")
    tab.until(FOCUS, f"write-{place}")
    assert tab.page.is_visible(".detail"), "the memory stays chosen"
    assert tab.page.locator(".pane.pinned").count() == 0


def test_from_a_memory_one_goes_on_to_what_it_holds(tab):
    tab.page.focus(memory(0, "sequence", 1))
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".pairs li")
    tab.page.keyboard.press("Tab")
    tab.until(FOCUS, "switch")


def test_measures_are_chosen_by_their_arrows(tab):
    tab.page.focus(".segments [aria-checked=true]")
    for measure in ("effective", "lambda", "beta"):
        tab.page.keyboard.press("ArrowRight")
        checked = "document.activeElement.matches('[aria-checked=true]') && document.activeElement.dataset.measure"
        tab.until(checked, measure)
    assert "tells keys apart" in tab.page.inner_text(".mosaics .hint")


def test_the_keys_are_for_the_pane_that_has_the_focus(tab):
    tab.page.click("#tab-compare")
    tab.page.wait_for_selector(".pane[data-pane='1'] .token")
    for pane in (0, 1):
        tab.page.click(memory(0, "sequence", 1, pane))
        tab.page.wait_for_selector(f".pane[data-pane='{pane}'] .pairs li")
    tab.page.keyboard.press("o")
    tab.page.wait_for_selector(memory(0, "sequence", 1, 1) + ".off")
    assert tab.page.locator(".tile.off").count() == 1
    tab.page.focus(token(0))
    tab.page.keyboard.press("u")
    tab.settle()
    assert tab.page.locator(".tile.off").count() == 1
    tab.page.focus(memory(0, "sequence", 1, 1))
    tab.page.keyboard.press("u")
    tab.page.wait_for_selector(".tile.off", state="detached")
