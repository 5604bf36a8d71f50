"""A server that is gone, busy, slow, or another."""

from contextlib import ExitStack

from .conftest import Served, Tab, memory


def test_a_lost_server_is_reported_and_found_again(browser, mosaic):
    server = Served([mosaic])
    one = Tab(browser)
    one.page.goto(server.address)
    one.page.wait_for_selector(".tile span:not(:empty)")
    port = server.port
    server.stop()
    assert one.wrong == []
    one.page.fill("#text", "The dog")
    one.page.wait_for_selector("text=The explorer does not answer")
    assert one.page.locator(".token").count() > 0, "what was read stays"
    server = Served([mosaic], port)
    one.until("document.querySelector('.pane .tokens').textContent === 'The dog'")
    one.page.wait_for_selector("#message", state="hidden")
    one.context.close()
    server.stop()


def forgiven(tab) -> None:
    """Of what went wrong, the browser's own notes of what the server refused, and what a reload interrupts."""
    own = ("the server responded with a status of 4", "ERR_ABORTED")
    tab.wrong = [wrong for wrong in tab.wrong if not any(note in wrong for note in own)]


def test_a_busy_server_is_asked_again(browser, mosaic):
    server = Served([mosaic])
    guard = server.server.guard
    with Tab(browser, server.address) as one:
        guard.active["another"] = guard.max_requests
        one.page.fill("#text", "The dog")
        one.page.wait_for_selector("text=The explorer has too many requests at once. Trying again")
        del guard.active["another"]
        one.until("document.querySelector('.pane .tokens').textContent", "The dog")
        one.page.wait_for_selector("#message", state="hidden")
        assert one.page.locator(".pane.stale").count() == 0
        one.page.click("#tab-moons")
        one.page.wait_for_selector(".curve.one[d]")
        guard.active["another"] = guard.max_requests
        one.page.locator(".sliders input").first.fill("60")
        one.page.wait_for_selector("text=The explorer has too many requests at once. Trying again")
        del guard.active["another"]
        one.page.wait_for_selector("text=the whole sky after 1,320")
        one.page.wait_for_selector("#message", state="hidden")
        forgiven(one)
    server.stop()


def test_another_model_at_the_same_address_is_not_taken_for_the_old_one(browser, mosaic, rotary):
    server = Served([mosaic])
    with Tab(browser, server.address) as one:
        port = server.port
        server.stop()
        server = Served([rotary], port)
        one.page.fill("#text", "The dog")
        one.page.wait_for_selector("#message:has-text('Another model is served here now.')")
        assert one.page.inner_text(".model strong") == "mosaic"
        one.page.click("text=Reload the page")
        one.until("document.querySelector('.model strong').textContent", "rotary")
        one.page.wait_for_selector(".tile span:not(:empty)")
        forgiven(one)
    server.stop()


def test_a_slow_read_is_seen(tab, served):
    for view in ("explore", "compare"):
        tab.page.click(f"#tab-{view}")
        tab.until("explorer.shownPanes().every(pane => pane.shownText === explorer.text)")
        with ExitStack() as busy:
            busy.enter_context(served.explorer.lock)
            tab.page.fill("#text", f"The dog in {view}")
            tab.page.wait_for_selector(".pane.stale")
            opacity = "getComputedStyle(document.querySelector('.pane .mosaics')).opacity"
            tab.until(opacity, "0.45")
            assert tab.page.inner_text("#status") == "reading …"
        tab.page.wait_for_selector(".pane.stale", state="detached")
        tab.until("document.querySelector('#status').textContent.includes(' ms')")


def test_what_the_server_refuses_is_not_kept(tab):
    """An edit that cannot be is forgotten, and the page goes on."""
    tab.page.click(memory(0, "sequence", 1))
    tab.page.wait_for_selector(".pairs li")
    tab.page.evaluate("explorer.panes[0].edit({ block: 9, kind: 'sequence', head: 0, pair: null })")
    tab.page.wait_for_selector("#message:has-text('there is no sequence memory 0 in block 9')")
    tab.page.keyboard.press("o")
    tab.page.wait_for_selector(".tile.off")
    forgiven(tab)
