"""What a study leaves in its folder: results of this run alone, and pages that are complete and safe for any text."""

import json
import re
import shutil
import subprocess

import pytest

from experiments.test_figures import WHOLE, results
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import attention, evaluate, figures
from memory_mosaics.experiments.report import collect_records, text_table, write_page
from waiting import HANG


@pytest.fixture
def page(tmp_path):
    (figure,) = figures.draw(results(**WHOLE), tmp_path)
    (tmp_path / "own.html").write_text(
        '{% extends "page.html" %}{% from "parts.html" import columns, figure, table %}'
        "{% block body %}<h2>{{ heading }}</h2><p>{{ text }}</p>{{ table(header, rows) }}"
        "{{ columns(texts, notes) }}{{ figure(picture, caption) }}{% endblock %}"
    )
    values = {"title": "A <title> & more", "heading": "Ünïcode ✓", "text": 'He said "<script>alert(1)</script>".'}
    values |= {"header": ["model", "loss"], "rows": [["a < b", "1.234"], ["c", "2.345"]]}
    values |= {"texts": {"one": "Once\nupon", "two": "a time"}, "notes": {"two": "noted"}}
    return write_page(tmp_path / "report.html", tmp_path / "own.html", picture=figure, caption='A "figure"', **values)


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
    (rule,) = re.findall(r"\.columns > div \{([^}]*)\}", page.read_text(encoding="utf-8"))
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


def found(folder):
    return json.loads((folder / "results.json").read_text())


def stopping(error: BaseException, *records: dict):
    yield from records
    raise error


def test_a_killed_command_does_not_look_finished(tmp_path):
    seen = []

    def records():
        for number in range(2):
            seen.append(found(tmp_path))
            yield {"number": number}

    collect_records([{"of": "an earlier command"}], {"study": "evaluate", "models": []}, tmp_path)
    results = {"study": "evaluate", "models": []}
    collect_records(records(), results, tmp_path)
    assert [(at["interrupted"], len(at["models"])) for at in seen] == [(False, 1), (True, 1)]
    assert found(tmp_path) == results == {"study": "evaluate", "models": [{"number": 0}, {"number": 1}],
                                          "interrupted": False}  # fmt: skip


def test_results_of_another_experiment_are_left_alone(tmp_path):
    (tmp_path / "results.json").write_text('{"study": "moons"}')
    with pytest.raises(UserError, match=r"results.json is of an experiment 'moons', not 'evaluate'; name another"):
        collect_records([{"a": 1}], {"study": "evaluate", "models": []}, tmp_path)
    assert found(tmp_path) == {"study": "moons"}


@pytest.mark.parametrize("error", [UserError("no"), RuntimeError("no"), KeyboardInterrupt()])
def test_an_error_before_the_first_loses_nothing(error, tmp_path):
    collect_records([{"a": 1}], {"study": "evaluate", "models": []}, tmp_path)
    for name in ("loss_by_position.png", "page.html", "mine.png"):
        (tmp_path / name).write_bytes(b"drawn")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(type(error)):
        collect_records(stopping(error), {"study": "evaluate", "models": []}, tmp_path, page="page.html")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    with pytest.raises(UserError):
        collect_records(
            stopping(UserError("no"), {"b": 2}), {"study": "evaluate", "models": []}, tmp_path, page="page.html"
        )
    assert found(tmp_path) == {"study": "evaluate", "models": [{"b": 2}], "interrupted": True}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.png", "results.json"]


def test_old_figures_do_not_stay_beside_new_results(place, tmp_path):
    options = {"data": place / "corpus", "device": "cpu", "out": tmp_path}
    evaluate.run([str(place / "mosaic")], length=24, windows=3, by_position=True, **options)
    (tmp_path / "mine.png").write_bytes(b"of the user")
    evaluate.run([str(place / "mosaic")], length=24, windows=3, **options)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.png", "results.json"]
    options["out"] = out = tmp_path / "attention"
    attention.run([str(place / "mosaic")], length=[24], sequences=3, **options)
    assert (out / "width.png").exists()
    attention.run([str(place / "alibi")], length=[24], sequences=3, **options)
    assert (out / "heads.png").exists()
    assert not (out / "width.png").exists()


def test_drawing_again_takes_away_what_is_not_drawn(place, tmp_path):
    attention.run([str(place / "alibi")], data=place / "corpus", length=[24], sequences=3, device="cpu", out=tmp_path)
    for name in ("width.png", "mine.png"):
        (tmp_path / name).write_bytes(b"old")
    assert main(["draw", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["attention.png", "heads.png", "mine.png"]


def test_a_text_table_is_aligned():
    table = text_table(["model", "loss", "b"], [["a", "1.25", ""], ["longer name", "10.5", "2"]])
    assert table.splitlines() == ["model        loss  b", "a            1.25", "longer name  10.5  2"]
