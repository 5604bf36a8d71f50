"""What is seen at any width, by day and by night; the moons."""

import pytest

from memory_mosaics import memory_mosaic

from .conftest import Served, Tab, memory, small


def test_the_moons_are_watched(tab):
    tab.page.click("#tab-moons")
    tab.page.wait_for_selector(".curve.one[d]")
    tab.until("document.querySelector('.transport output').textContent.startsWith('3') ")
    tab.page.click("text=Pause")
    slider = tab.page.locator(".sliders input").first
    slider.focus()
    tab.page.keyboard.press("ArrowRight")
    tab.page.wait_for_selector("text=the whole sky after 3,960")
    assert tab.page.inner_text(".sliders output >> nth=0") == "45"
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
        one.page.wait_for_selector(".tile span:not(:empty)")
        one.page.reload()
        assert one.page.evaluate(colour) != paper, "the choice is remembered"
        assert [wrong for wrong in one.wrong if "ERR_ABORTED" not in wrong] == [], "but for what a reload interrupts"
        one.context.close()


@pytest.mark.parametrize("width", [360, 768, 1366])
def test_nothing_sticks_out(browser, served, width):
    one = Tab(browser, viewport={"width": width, "height": 800}, has_touch=width < 500)
    one.page.goto(served.address)
    one.page.wait_for_selector(".tile span:not(:empty)")
    one.page.click(memory(0, "sequence", 1))
    one.page.wait_for_selector(".pairs li")
    for view in ("explore", "compare", "moons"):
        one.page.click(f"#tab-{view}")
        there = {"explore": ".pane .token", "compare": ".pane[data-pane='1'] .token", "moons": ".curve.one[d]"}[view]
        one.page.wait_for_selector(there)
        one.settle()
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width, view
    assert one.wrong == []
    one.context.close()


TOPS = "[...document.querySelectorAll('.pane .grid')].slice(0, 2).map((one) => one.getBoundingClientRect().top)"
CUT = """[...document.querySelectorAll('.tile span')].filter((one) => (
  one.getBoundingClientRect().width > one.parentElement.getBoundingClientRect().width)).length"""


@pytest.mark.parametrize("width", [360, 1024, 1280, 1920])
def test_numbers_of_many_heads_are_whole_or_not_there(browser, many_heads, width):
    with Tab(browser, many_heads.address, viewport={"width": width, "height": 860}) as one:
        for measure in ("contribution", "effective", "lambda", "beta"):
            one.page.click(f".segments [data-measure={measure}]")
            assert one.page.evaluate(CUT) == 0, measure
        one.page.click(".segments [data-measure=contribution]")
        title = one.page.get_attribute(memory(3, "sequence", 11), "title")
        assert title.startswith("block 3, memory 11: Contribution ")
        first, second = one.page.evaluate(TOPS)
        assert first < second, "one below the other"
        tile = one.page.evaluate("document.querySelector('.tile').getBoundingClientRect().width")
        assert tile > (18 if width < 500 else 24)


def test_few_heads_are_side_by_side(browser):
    server = Served([small("six heads", memory_mosaic, width=48, blocks=6, heads=6)])
    with Tab(browser, server.address) as one:
        first, second = one.page.evaluate(TOPS)
        assert first == second
        assert one.page.evaluate(CUT) == 0
        size = "getComputedStyle(document.querySelector('.tile span')).fontSize"
        assert one.page.evaluate(size) != "0px", "whole numbers"
    server.stop()


@pytest.fixture(scope="module")
def many_heads():
    server = Served([small("many heads", memory_mosaic, width=48, blocks=12, heads=12)])
    yield server
    server.stop()


def test_fingers_find_the_buttons_and_the_marks_are_apart(browser, served):
    with Tab(browser, served.address, viewport={"width": 360, "height": 800}, has_touch=True, is_mobile=True) as one:
        one.page.click(memory(0, "sequence", 1))
        one.page.wait_for_selector(".pairs li")
        for button in one.page.locator(".pairs button").all():
            box = button.bounding_box()
            assert min(box["width"], box["height"]) >= 40
        one.page.click("#tab-moons")
        one.page.wait_for_selector(".curve.one[d]")
        for periods in ((44, 66, 88), (90, 45, 30), (96, 96, 96), (60, 40, 80)):
            for slider, period in zip(one.page.locator(".sliders input").all(), periods, strict=True):
                slider.fill(str(period))
            one.page.wait_for_selector(f"text=returns after {max(periods)} observations")
            one.settle()
            chart = one.page.evaluate("document.querySelector('.chart').getBoundingClientRect().toJSON()")
            boxes = one.page.evaluate(MARKS)
            assert all(chart["left"] <= box["left"] <= box["right"] <= chart["right"] for box in boxes)
            if len(boxes) == 2:
                high, low = sorted(boxes, key=lambda box: box["top"])
                beside = high["right"] <= low["left"] or low["right"] <= high["left"]
                assert high["bottom"] <= low["top"] + 1 or beside


MARKS = """[...document.querySelectorAll('.chart text')].filter((one) => one.textContent.endsWith('back'))
  .map((one) => one.getBoundingClientRect().toJSON())"""
