"""The demo, short: its moons are those of experiments/, its models learn for a moment."""

import json
import shutil
from pathlib import Path

import pytest

from memory_mosaics import checkpoint
from memory_mosaics.apps import demo
from memory_mosaics.cli import main
from memory_mosaics.experiments import moons

MOONS = Path(__file__).parents[2] / "experiments" / "three_moons"


@pytest.mark.slow
def test_the_demo_ends_in_a_report_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    out = tmp_path / "demo"
    shutil.copytree(MOONS, out / "moons")
    monkeypatch.setattr(moons, "run", lambda out: json.loads((out / "results.json").read_text()))
    monkeypatch.setattr(demo, "PROBED", 3)
    monkeypatch.setattr(demo, "LENGTH", 12)
    assert main(["demo", "--out", str(out), "--steps", "6", "--story_count", "250"]) == 0
    output = capsys.readouterr().out
    page = (out / "report.html").read_text()
    assert page.count("data:image/png") == 4
    results = json.loads((out / "results.json").read_text())
    assert len(results["stories"]) == 3
    for name in ("Memory Mosaic", "Llama-like transformer"):
        assert name in output
        assert page.count(f"<strong>{name}</strong>") == 3
    for texts in results["stories"]:
        assert texts["opening"] in output
    runs = [str(out / "language" / "trials" / f"{kind}-2-0.005") for kind in ("memory-mosaic", "llama")]
    models = [checkpoint.load(run) for run in runs]
    counts = [sum(weight.numel() for weight in model.parameters()) for model in models]
    assert abs(counts[0] / counts[1] - 1) < 0.01
    assert f"{counts[0]:,}" in page
    assert f"to open in a browser: {out / 'report.html'}" in output
    losses = {
        record["architecture"]: record["valid_loss"]
        for record in json.loads((out / "language" / "results.json").read_text())["runs"]
    }
    best = min(losses, key=losses.__getitem__)
    assert f"The lower validation loss is that of the {demo.curves.LABELS[best]}" in page  # whichever it is
    assert f"mosaics explore {' '.join(runs)}" in output.splitlines()[-1]
    assert (out / "memories.png").exists()
    assert main(["demo", "--out", str(out), "--steps", "6", "--story_count", "250"]) == 0
    assert "holds this corpus already" in capsys.readouterr().out


def test_ctrl_c_during_the_moons_stops_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(moons, "train", lambda *arguments, **options: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 130
    assert not (tmp_path / "demo" / "corpus").exists()
