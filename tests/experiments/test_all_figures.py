"""`mosaics figures`: all parts on one page, and none of them computed twice."""

import json
import shutil

import pytest

import memory_mosaics.apps.story_world  # noqa: F401 - registers stories:COUNT
from memory_mosaics.experiments import all_figures, figures, prompts
from memory_mosaics.text import corpus as corpora

MODELS = ("mosaic", "rotary")


def everything(place, out, *, length=(24, 40)):
    runs = [str(place / name) for name in MODELS]
    options = {"windows": 5, "sequences": 4, "device": "cpu"}
    return all_figures.run(runs, data=[str(place / "corpus")], length=list(length), out=out, **options)


@pytest.fixture(autouse=True)
def _coarse(monkeypatch):
    """The page has pictures of few pixels: most of their time goes into these."""
    monkeypatch.setitem(figures.STYLE["settings"], "savefig.dpi", 30)


@pytest.fixture
def undrawn(monkeypatch):
    """In place of pictures, a file that the page can hold."""

    def draw(results, out):
        (out / "loss_by_position.png").touch()
        return "No figures."

    monkeypatch.setattr(figures, "draw_if_possible", draw)


@pytest.fixture
def few_prompts(monkeypatch):
    monkeypatch.setattr(prompts, "default_prompts", lambda read=prompts.default_prompts: read()[:2])


def test_one_page_has_every_part(place, tmp_path, few_prompts, capsys):
    everything(place, tmp_path)
    page = (tmp_path / "report.html").read_text()
    drawn = [*tmp_path.glob("corpus-*/*.png"), *tmp_path.glob("attention/*.png")]
    assert page.count("<img") == len(drawn) == 5
    for words in ("windows of 24 tokens", "windows of 40 tokens", "Longer than what was trained on: mosaic, rotary"):
        assert words in page
    for prompt in prompts.default_prompts():
        assert prompt.prompt.split('"')[0] in page
    assert page.count("By rule: ") == 4
    assert "judged look right" in page
    assert "http" not in page
    assert str(tmp_path / "report.html") in capsys.readouterr().out


def test_what_is_finished_is_not_computed_again(place, tmp_path, few_prompts, undrawn, monkeypatch):
    everything(place, tmp_path)
    first = (tmp_path / "report.html").read_text()
    for study in (all_figures.evaluate, all_figures.attention, all_figures.prompts):
        monkeypatch.setattr(study, "run", lambda *_, **__: pytest.fail("computed again"))
    everything(place, tmp_path)
    assert (tmp_path / "report.html").read_text() == first


def test_another_wish_is_computed(place, tmp_path, few_prompts, undrawn):
    everything(place, tmp_path, length=(24,))
    everything(place, tmp_path, length=(16,))
    lengths = {model["length"] for model in json.loads((tmp_path / "attention" / "results.json").read_text())["models"]}
    assert lengths == {16}


def test_a_training_run_has_its_curves(place, tmp_path, few_prompts):
    run = tmp_path / "run"
    shutil.copytree(place / "mosaic", run / "step-00000002")
    lines = [{"step": step, "loss": 3.0 - step} for step in (1, 2)] + [{"step": 2, "valid_loss": 1.5}]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"length": [16], "windows": 2, "sequences": 2, "device": "cpu", "out": tmp_path / "out"}
    all_figures.run([str(run)], data=[str(place / "corpus")], **options)
    assert (tmp_path / "out" / "training" / "runs.png").exists()


def test_another_text_of_the_same_name_is_another_text(place, tmp_path, few_prompts, undrawn):
    everything(place, tmp_path / "out", length=(16,))
    first = json.loads((tmp_path / "out" / "corpus-16" / "results.json").read_text())
    corpora.prepare(["stories:70"], out=tmp_path / "corpus", tokenizer="bytes", valid_share=0.2)
    runs = [str(place / name) for name in MODELS]
    options = {"windows": 5, "sequences": 4, "device": "cpu", "length": [16], "out": tmp_path / "out"}
    all_figures.run(runs, data=[str(tmp_path / "corpus")], **options)
    second = json.loads((tmp_path / "out" / "corpus-16" / "results.json").read_text())
    assert first["models"][0]["loss"] != second["models"][0]["loss"]


def test_a_part_that_cannot_be_done_is_named_and_the_page_is_there(place, tmp_path, few_prompts, undrawn, capsys):
    options = {"windows": 5, "sequences": 4, "device": "cpu", "length": [40], "out": tmp_path}
    all_figures.run([str(place / "learned")], data=[str(place / "corpus")], **options)
    assert "attention is left out: there is nothing to measure" in capsys.readouterr().out
    assert "attention is left out: there is nothing to measure" in (tmp_path / "report.html").read_text()


def test_a_text_without_a_validation_split_is_read_too(place, tmp_path, few_prompts, undrawn, capsys):
    corpora.prepare(["stories:20:7"], out=tmp_path / "wikipedia", tokenizer="bytes", valid_share=0.0)
    options = {"windows": 2, "sequences": 2, "device": "cpu", "length": [16, 24], "out": tmp_path / "out"}
    all_figures.run([str(place / "mosaic")], data=[str(place / "corpus"), str(tmp_path / "wikipedia")], **options)
    found = {file.parent.name: json.loads(file.read_text()) for file in (tmp_path / "out").glob("*-*/results.json")}
    splits = {"corpus-16": "valid", "corpus-24": "valid", "wikipedia-16": "train", "wikipedia-24": "train"}
    assert {name: part["split"] for name, part in found.items()} == splits
    message = "wikipedia: its valid split has no window of 16 or 24 tokens, so its train split is read there."
    printed = capsys.readouterr().out
    assert printed.splitlines().count(message) == 1
    assert "left out" not in printed
    page = (tmp_path / "out" / "report.html").read_text()
    assert message in page
    assert "corpus (valid), windows of 16" in page
    assert "wikipedia (train), windows of 16" in page


def test_a_split_that_is_named_is_the_one(place, tmp_path, few_prompts, undrawn, capsys):
    corpora.prepare(["stories:20:7"], out=tmp_path / "wikipedia", tokenizer="bytes", valid_share=0.0)
    options = {"windows": 2, "sequences": 2, "device": "cpu", "length": [16], "out": tmp_path / "out"}
    all_figures.run([str(place / "mosaic")], data=[str(tmp_path / "wikipedia")], split="valid", **options)
    assert capsys.readouterr().out.count("is left out: the valid split") == 2


def test_attention_of_a_text_without_a_validation_split(place, tmp_path, few_prompts, undrawn):
    corpora.prepare(["stories:20:7"], out=tmp_path / "wikipedia", tokenizer="bytes", valid_share=0.0)
    options = {"windows": 2, "sequences": 2, "device": "cpu", "length": [16], "out": tmp_path / "out"}
    all_figures.run([str(place / "mosaic")], data=[str(tmp_path / "wikipedia")], **options)
    assert json.loads((tmp_path / "out" / "attention" / "results.json").read_text())["split"] == "train"


def test_windows_begin_at_documents_on_request(place, tmp_path, few_prompts, undrawn):
    options = {"windows": 2, "sequences": 2, "device": "cpu", "length": [16], "out": tmp_path}
    for asked in (False, True):
        all_figures.run([str(place / "mosaic")], data=[str(place / "corpus")], at_documents=asked, **options)
        assert json.loads((tmp_path / "corpus-16" / "results.json").read_text())["at_documents"] is asked


def test_a_part_keeps_what_is_the_users(place, tmp_path, few_prompts, undrawn):
    everything(place, tmp_path, length=(24,))
    (tmp_path / "attention" / "mine.png").write_bytes(b"of the user")
    everything(place, tmp_path, length=(16,))
    assert (tmp_path / "attention" / "mine.png").exists()
