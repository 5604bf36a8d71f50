"""experiments/stores/bounded.py: every part on an untrained model, and what is left after an interruption."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import figures

STUDY = Path(__file__).parents[2] / "experiments" / "stores" / "bounded.py"
SIZES = {"capacity": 64, "length": 2048, "exact_length": 1024, "rows": 2, "needle_distance": 256}
SIZES |= {"slot_tokens": 600, "slot_length": 32, "slot_windows": 3, "device": "cpu"}
STORES = ["window:64", "merge:64", "kmeans:64"]


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("bounded", STUDY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.REPEATS, module.PIECE = 1, 16
    return module


@pytest.fixture(scope="module")
def books(tmp_path_factory):
    folder = tmp_path_factory.mktemp("books")
    (folder / "text.txt").write_text("A cat sat on a mat. The cat saw a bird. " * 60)
    (folder / "valid.txt").write_text("The bird had a red ball, and a cat saw it. " * 60)
    command = ["prepare", str(folder / "text.txt"), "--valid", str(folder / "valid.txt")]
    assert main([*command, "--out", str(folder / "corpus"), "--tokenizer", "bytes"]) == 0
    return folder / "corpus"


def test_every_part_is_measured_once(study, books, mosaic, tmp_path, monkeypatch, undrawn):
    options = SIZES | {"stores": ["window", "merge", "kmeans"], "work": tmp_path / "work", "out": tmp_path / "out"}
    results = study.main([str(mosaic)], data=books, **options)
    [model] = results["models"].values()
    assert [len(one["losses"]) for one in model["losses"].values()] == [1, 2, 2, 2]
    assert list(model["needles"]) == ["exact", *STORES]
    for found in model["needles"].values():
        assert [one[0] for one in found] == [64, 128, 256]
        assert all(math.isfinite(x) and 0 <= one[2] <= 1 for one in found for x in one)
    assert model["losses"]["exact"]["losses"][0] != model["losses"]["kmeans:64"]["losses"][0]
    assert set(model["cost"]) == {*STORES, *(f"exact, {n:,} pairs" for n in (64, 128, 256, 512, 1024))}
    assert model["cost"]["window:64"]["bytes"] < model["cost"]["exact, 1,024 pairs"]["bytes"]
    assert [len(heads) for heads in model["sparsity"].values()] == [8, 8, 8]
    assert all(head["above"] / 100 <= head["weight"] <= 1 for heads in model["sparsity"].values() for head in heads)
    assert any(head["weight"] > 0 for head in model["sparsity"]["1024"])
    assert len(model["slots"]) == 2 + 2 * 3
    assert len({str(one["windows"]) for one in model["slots"].values()}) == 8
    assert [span[:2] for span in model["slots"]["none"]["spans"]] == [[0, 8], [8, 16], [16, 32]]

    del model["losses"]["merge:64"], model["slots"]["kmeans:16"]
    (tmp_path / "out" / "results.json").write_text(json.dumps(results))
    measured = []
    for name, part in study.PARTS.items():
        watch = lambda *given, name=name, part=part: ((measured.append((name, one[0])), one)[1] for one in part(*given))  # noqa: E731
        monkeypatch.setitem(study.PARTS, name, watch)
    again = study.main([str(mosaic)], data=books, **options)
    assert measured == [("losses", "merge:64"), ("slots", "kmeans:16")]
    assert sum(map(len, again["models"]["mosaic"]["slots"].values())) == 2 * 8
    with pytest.raises(UserError, match="was measured with capacity 64, not 32"):
        study.main([str(mosaic)], data=books, **options | {"capacity": 32})


def test_figures_and_tables(study, tmp_path):
    """From results alone, of parts that are there."""
    losses = {"exact": {"losses": [5.0, 4.0]}, "window:64": {"losses": [5.0, 4.5, 4.0, 4.0]}}
    losses |= {"kmeans:64": {"losses": [5.0, 4.25, 4.0, 4.5]}}
    needles = {name: [[64, 3.0, 0.5, 5.0, 0.25], [128, 4.0, 0.25, 4.0, 0.25]] for name in losses}
    heads = [{"block": 0, "head": head, "window": None, "beta": 9.0, "above": 7.0, "weight": 0.5} for head in (0, 1)]
    slots = {
        name: {"spans": [[0, 8, loss], [8, 16, 4.0]], "windows": [loss, 4.0]}
        for name, loss in [("none", 5.0), ("exact", 4.0)]
    }
    record = {
        "losses": losses,
        "needles": needles,
        "sparsity": {"256": heads, "512": heads},
        "slots": slots,
        "cost": {},
    }
    results = {
        "study": "stores",
        "stores": ["window:64"],
        "capacity": 64,
        "models": {"mosaic": record, "other": {"losses": losses}},
    }
    assert {file.name for file in figures.draw(results, tmp_path)} == {
        "losses.png",
        "needles.png",
        "sparsity.png",
        "slots.png",
    }
    text = study.tables(results)
    assert "| mosaic | kmeans:64 | -0.250 | +0.250 ± 0.490 |" in text
    assert "| mosaic | exact | 5.00 ± 0.25 | 4.00 ± 0.25 |" in text
    assert {file.name for file in figures.draw({"study": "stores", "models": {}}, tmp_path)} == set()


def test_what_cannot_be_measured(study, books, twin, mosaic, tmp_path):
    with pytest.raises(UserError, match="attention takes no store"):
        study.main([str(twin)], data=books, **SIZES, out=tmp_path)
    with pytest.raises(UserError, match="did you mean losses"):
        study.main([str(mosaic)], data=books, **SIZES, parts=["loss"], out=tmp_path)
    with pytest.raises(UserError, match="a window of 9000"):
        study.main([str(mosaic)], data=books, **SIZES | {"length": 9000}, out=tmp_path / "out")
