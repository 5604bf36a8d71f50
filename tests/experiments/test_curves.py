"""The curves of both architectures: on the same batches, resumable, and honest about runs that fail."""

import json
from dataclasses import replace

import numpy as np
import pytest

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import curves, figures
from memory_mosaics.language_model import weight_count
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus as corpora
from memory_mosaics.training.config import ModelArgs, Training

MODEL = ModelArgs(width=16, heads=2, context=16)
TRAINING = Training(
    steps=6, batch=4, learning_rate=1e-3, final_learning_rate=1e-4, warm_up=2, evaluate_every=3, evaluate_windows=4
)
RUNTIME = RuntimeConfig(device="cpu", samples=0, log_every=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text") / "corpus"
    corpora.prepare(["stories:30"], out=folder, tokenizer="bytes", valid_share=0.1)
    return folder


def train_curves(corpus, out, **options):
    return curves.run(corpus, out, **{"model": MODEL, "training": TRAINING, "runtime": RUNTIME} | options)


def test_every_pair_is_trained_and_drawn(corpus, tmp_path):
    results = train_curves(corpus, tmp_path, blocks=[1, 2], learning_rates=[1e-3, 1e-2])
    labels = [(run["architecture"], run["blocks"], run["learning_rate"]) for run in results["runs"]]
    assert len(set(labels)) == 8
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(results))
    for name in ("curves.png", "step_sizes.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    for run in results["runs"]:
        assert [point[0] for point in run["measured"]] == [3, 6]
        assert len(run["curve"]) == 6
    final = json.loads((tmp_path / "trials" / "transformer-2-0.01" / "results.json").read_text())
    assert final["training"]["final_learning_rate"] == pytest.approx(1e-3), "the same share of the largest"


@pytest.mark.parametrize("twin", ["transformer", "transformer-rotary", "transformer-none"])
@pytest.mark.parametrize("position", [None, "learned", "rotary"])
def test_a_memory_mosaic_is_as_large_as_its_transformer(corpus, tmp_path, twin, position):
    base = curves.Run(data=corpus, out=tmp_path, model=replace(MODEL, position=position), training=TRAINING)
    planned = curves.CommonSettings(base, curves.Corpus.open(corpus).vocabulary, twin)
    for depth in (1, 3):
        sizes = [weight_count(planned.model(kind, depth).build(260)) for kind in ("memory-mosaic", twin)]
        assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    given = replace(planned, base=replace(base, model=replace(base.model, slots=5)))
    assert given.model("memory-mosaic", 1).slots == 5


@pytest.mark.usefixtures("undrawn")
def test_a_transformer_with_other_positions_is_named_by_them(corpus, tmp_path):
    runs = train_curves(corpus, tmp_path, model=replace(MODEL, position="rotary"), blocks=[1], learning_rates=[1e-3])[
        "runs"
    ]
    assert [run["architecture"] for run in runs] == ["memory-mosaic", "transformer-rotary"]


@pytest.mark.usefixtures("undrawn")
def test_finished_runs_are_not_repeated(corpus, tmp_path):
    first = train_curves(corpus, tmp_path, blocks=[1], learning_rates=[1e-3])
    stamps = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")}
    assert len(stamps) == 2
    again = train_curves(corpus, tmp_path, blocks=[1], learning_rates=[1e-3])
    assert again["runs"] == first["runs"]
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")} == stamps


def test_a_run_that_diverges_is_a_fail_and_the_others_go_on(corpus, tmp_path, capsys):
    results = train_curves(corpus, tmp_path, blocks=[1], learning_rates=[1e30, 1e-3])
    assert [run["valid_loss"] is None for run in results["runs"]] == [True, True, False, False]
    assert "fail" in capsys.readouterr().out
    assert (tmp_path / "curves.png").exists()


def test_nothing_is_drawn_where_all_fail(corpus, tmp_path, capsys):
    with pytest.raises(UserError, match="none of 2 runs finished"):
        train_curves(corpus, tmp_path, blocks=[1], learning_rates=[1e30])
    assert "No figures: no run has finished." in capsys.readouterr().out
    assert main(["draw", str(tmp_path)]) == 2
    assert "there is nothing to draw" in capsys.readouterr().err


def test_figures_can_be_drawn_elsewhere(corpus, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as without_matplotlib:
        without_matplotlib.setattr(figures, "available", lambda: False)
        train_curves(corpus, tmp_path, blocks=[1], learning_rates=[1e-3])
    assert "mosaics draw makes them" in capsys.readouterr().out
    assert not (tmp_path / "curves.png").exists()
    assert main(["draw", str(tmp_path)]) == 0
    assert (tmp_path / "curves.png").exists()


@pytest.mark.usefixtures("undrawn")
def test_seeds_are_trained_at_the_best_rate_of_a_search_that_goes_beyond_its_edge(corpus, tmp_path, capsys):
    results = train_curves(
        corpus,
        tmp_path,
        architectures=["memory-mosaic", "transformer-rotary"],
        blocks=[1],
        learning_rates=[1e-3, 2e-3],
        seeds=3,
    )
    for row in results["summary"]:
        own = [run for run in results["runs"] if run["architecture"] == row["architecture"]]
        search = {run["learning_rate"]: run["valid_loss"] for run in own if run["seed"] == 0}
        assert search[row["learning_rate"]] == min(search.values())
        assert len(search) > 2, "these rates are too small: the search goes on to larger ones"
        assert row["at_edge"] == (row["learning_rate"] in (min(search), max(search)))
        chosen = [run["valid_loss"] for run in own if run["learning_rate"] == row["learning_rate"]]
        assert [run["seed"] for run in own if run["learning_rate"] == row["learning_rate"]] == [0, 1, 2]
        assert row["valid_loss"] == pytest.approx(sum(chosen) / 3, abs=1e-5)
        assert row["valid_loss_within"] == pytest.approx(4.303 * np.std(chosen, ddof=1) / 3**0.5, rel=1e-2)
    lines = capsys.readouterr().out.partition("mean and 95 % interval over seeds:\n")[2].splitlines()
    assert lines[0].split()[-4:] == ["seeds", "failed", "at", "edge"]
    at_edge = ["yes" if row["at_edge"] else "no" for row in results["summary"]]
    assert [line.split()[-3:] for line in lines[1:3]] == [["3", "0", each] for each in at_edge]


@pytest.mark.usefixtures("undrawn")
def test_what_is_named_twice_counts_once(corpus, tmp_path):
    kinds = ["memory-mosaic", "transformer", "transformer"]
    results = train_curves(corpus, tmp_path, architectures=kinds, blocks=[1, 1], learning_rates=[1e-3, 1e-3])
    assert [run["architecture"] for run in results["runs"]] == ["memory-mosaic", "transformer"]
    assert [row["seeds"] for row in results["summary"]] == [1, 1]


@pytest.mark.usefixtures("undrawn")
def test_several_at_once_train_the_same(corpus, tmp_path):
    alone = train_curves(corpus, tmp_path / "alone", blocks=[1], learning_rates=[1e-3, 1e30])
    beside = train_curves(corpus, tmp_path / "beside", blocks=[1], learning_rates=[1e-3, 1e30], jobs=2)
    for one, other in zip(alone["runs"], beside["runs"], strict=True):
        assert one["valid_loss"] == other["valid_loss"]
        assert one["curve"] == other["curve"]


@pytest.mark.usefixtures("undrawn")
def test_another_recipe_is_refused_in_the_same_folder(corpus, tmp_path):
    train_curves(corpus, tmp_path, blocks=[1], learning_rates=[1e-3])
    with pytest.raises(UserError, match=r"holds runs with training\.batch 4, not 2"):
        train_curves(corpus, tmp_path, blocks=[1], learning_rates=[1e-3], training=replace(TRAINING, batch=2))


@pytest.mark.parametrize(
    "options",
    [
        {"architectures": ["transformer-rope"]},
        {"seeds": 0},
        {"jobs": 0},
        {"learning_rates": [0.0]},
        {"model": replace(MODEL, name="transformer-12")},
        {"model": replace(MODEL, blocks=5)},
    ],
)
def test_what_cannot_be_is_refused(corpus, tmp_path, options):
    with pytest.raises(UserError):
        train_curves(corpus, tmp_path, **options)
    assert not list(tmp_path.iterdir())
