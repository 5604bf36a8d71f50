import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from memory_mosaics.cli import main
from memory_mosaics.experiments import prompts
from waiting import HANG


@pytest.fixture(scope="module")
def out(mosaic, twin, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    assert main(["prompts", str(mosaic), str(twin), "--length", "6", "--out", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def results(out):
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_every_model_continues_every_prompt(results):
    assert list(results["models"]) == ["mosaic", "twin"]
    for found in results["models"].values():
        assert len(found["texts"]) == len(found["by_rule"]) == len(results["prompts"]) == 24
    assert results["beams"] == 2
    assert "not a verdict" in results["rules"]


def test_the_page_refers_to_nothing_outside(out):
    text = (out / "prompts.html").read_text(encoding="utf-8")
    assert all(link.startswith("data:") for link in re.findall(r'(?:src|href)="([^"]*)"', text))
    assert "//" not in text.replace("<!doctype", "").split("<script>")[1]
    assert text.count('class="text"') == 48


def test_no_text_ends_the_script(results, tmp_path):
    evil = '</script><script>alert(1)</script> & "quotes"'
    results = results | {"prompts": [{"prompt": evil}], "models": {evil: {"texts": [evil], "by_rule": [None]}}}
    prompts.write_judging_page(results, tmp_path)
    text = (tmp_path / "prompts.html").read_text(encoding="utf-8")
    assert text.count("<script") == 2
    assert "alert(1)</script>" not in text


def test_the_page_marks_verdicts_of_rules(results, tmp_path):
    models = {"one": {"texts": [" a cat."], "by_rule": [True]}, "two": {"texts": [" a dog."], "by_rule": [False]}}
    prompts.write_judging_page(results | {"prompts": [{"prompt": "See"}], "models": models}, tmp_path)
    text = (tmp_path / "prompts.html").read_text()
    assert "by rule: looks right" in text
    assert "by rule: looks wrong" in text


def test_one_wording_for_texts_that_no_rule_judges(out, results):
    looks = results["models"]["mosaic"]["by_rule"]
    message = f"{looks.count(True)} of {24 - looks.count(None)} judged look right, {looks.count(None)} undecided"
    assert prompts.score(looks) == message
    page = (out / "prompts.html").read_text(encoding="utf-8")
    assert "by rule: undecided" in page
    assert "<th>right of judged</th><th>undecided</th>" in page
    assert "no say" not in page


def interrupted(*_):
    raise KeyboardInterrupt


def test_ctrl_c_keeps_the_models_that_are_finished(mosaic, twin, tmp_path, monkeypatch, capsys):
    whole = prompts.continuations

    def stopped(trained, *words):
        if trained.name == "twin":
            found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
            assert found["interrupted"], "what would be there after kill -9"
            assert list(found["models"]) == ["mosaic"]
            assert "mosaic" in (tmp_path / "prompts.html").read_text(encoding="utf-8")
            raise KeyboardInterrupt
        return whole(trained, *words)

    monkeypatch.setattr(prompts, "continuations", stopped)
    monkeypatch.setattr(prompts, "default_prompts", lambda read=prompts.default_prompts: read()[:2])
    assert main(["prompts", str(mosaic), str(twin), "--length", "2", "--out", str(tmp_path)]) == 130
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert found["interrupted"]
    assert list(found["models"]) == ["mosaic"]
    assert "Stopped: these are the models that were finished." in capsys.readouterr().out
    monkeypatch.setattr(prompts, "continuations", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prompts.run([str(twin)], length=2, device="cpu", out=tmp_path)
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8")) == found, "it and its page stay"


def test_progress_is_shown(mosaic, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    (tmp_path / "mine.txt").write_text("Once\nTwice\n")
    flags = ["--prompts", str(tmp_path / "mine.txt"), "--length", "2", "--out", str(tmp_path / "out")]
    assert main(["prompts", str(mosaic), *flags]) == 0
    assert "2/2" in capsys.readouterr().err


def test_prompts_of_your_own(mosaic, tmp_path):
    (tmp_path / "mine.txt").write_text("Once\nTwice\n")
    assert main(["prompts", str(mosaic), "--prompts", str(tmp_path / "mine.txt"), "--length", "2",
                 "--beams", "1", "--out", str(tmp_path / "out")]) == 0  # fmt: skip
    found = json.loads((tmp_path / "out" / "results.json").read_text(encoding="utf-8"))
    assert found["prompts"] == [{"prompt": "Once"}, {"prompt": "Twice"}]
    assert found["models"]["mosaic"]["by_rule"] == [None, None]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no chromium here")
def test_verdicts_survive_a_reload(out, results):
    """In a thread of its own: the browser of the explorer's tests may have an event loop running in this one."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(judge_and_reload, sync_api, out, results).result()


def judge_and_reload(sync_api, out, results):
    complaints = []
    with sync_api.sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=1000 * HANG)
        page = browser.new_page()
        page.set_default_timeout(1000 * HANG)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((out / "prompts.html").as_uri())
        for button in (0, 4, 8, 8):
            page.locator(".choices button").nth(button).click()
        page.reload()
        pressed = page.locator(".choices button[aria-pressed=true]").evaluate_all("all => all.map(one => one.value)")
        assert pressed == ["right", "partly"]
        assert "2 of 48 judged, kept in this browser" in page.content()
        found = page.evaluate("judged()")
        browser.close()
    assert not complaints
    assert found["report"] == results["id"]
    assert [(each["model"], each["verdict"]) for each in found["verdicts"]] == [("mosaic", "right"), ("twin", "partly")]
