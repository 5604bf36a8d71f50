import importlib.util

import pytest

from memory_mosaics.errors import UserError
from memory_mosaics.experiments import figures
from memory_mosaics.experiments.figures import language
from memory_mosaics.models import ARCHITECTURES

LABELS = {
    "memory": "contextual memory, 1 block",
    "transformer-1": "transformer, 1 block",
    "transformer-1-shifted": "transformer, 1 block, shifted keys",
    "transformer-2": "transformer, 2 blocks",
}


def results(**accuracy: float | None):
    """What a study of induction writes, with these final accuracies; None where it was stopped."""
    models = {}
    for name, final in accuracy.items():
        name = name.replace("_", "-")
        models[name] = {
            "label": LABELS[name],
            "blocks": 1,
            "parameters": 66_000,
            "curve": [[0, 4.2, 0.01], [1, 4.0, 0.02]],
        }
        if final is not None:
            models[name]["curve"].append([100, 2.0, final])
            models[name]["final"] = {"accuracy": final}
    rules = {"token-memory": {"final": {"accuracy": 1.0}}, "bigram": {"final": {"accuracy": 0.04}}}
    return {"study": "induction", "settings": {"fixed_triggers": True, "seed": 0}, "models": models, "rules": rules}


WHOLE = {"memory": 1.0, "transformer_1": 0.6, "transformer_1_shifted": 1.0, "transformer_2": 0.98}


def draw(results, folder, name):
    (file,) = figures.draw(results, folder)
    file.rename(folder / f"{name}.png")


def image(file):
    from matplotlib.image import imread

    return imread(file)


@pytest.mark.usefixtures("every_format")
def test_a_figure_is_a_picture_readable_in_a_readme(tmp_path):
    figures.draw(results(**WHOLE), tmp_path)
    assert (tmp_path / "induction.png").read_bytes().startswith(b"\x89PNG")
    pixels = image(tmp_path / "induction.png")
    assert 1700 <= pixels.shape[1] <= 2000
    assert (pixels[:4, :4, :3] == 1).all()  # white paper
    assert pixels[..., :3].std() > 0.05
    assert {file.name for file in tmp_path.iterdir()} == {"induction.png", "induction.pdf", "induction.svg"}


@pytest.mark.usefixtures("every_format")
def test_a_pdf_and_an_svg_are_beside_each_picture_and_depend_on_the_results_alone(tmp_path):
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        figures.draw(results(**WHOLE), folder)
        contents.append([(folder / f"induction{suffix}").read_bytes() for suffix in (".pdf", ".svg")])
    assert contents[0] == contents[1]
    pdf, svg = contents[0]
    assert pdf.startswith(b"%PDF")
    assert b"/FontFile2" in pdf
    assert b"<svg" in svg


def test_bars_are_as_long_as_the_accuracy(tmp_path):
    """Seen from the pixels: the colour of a model, on the right side of the figure."""
    grey = [int(figures.GREY[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    areas = []
    for accuracy in (0.3, 0.6):
        draw(results(**WHOLE | {"transformer_1": accuracy}), tmp_path, "induction")
        pixels = image(tmp_path / "induction.png")
        right = pixels[:, int(0.63 * pixels.shape[1]) :, :3]
        areas.append((abs(right - grey).max(axis=-1) < 0.01).sum())
    assert areas[1] / areas[0] == pytest.approx(2, abs=0.25)


def test_curves_follow_the_results(tmp_path):
    whole = results(**WHOLE)
    draw(whole, tmp_path, "one")
    whole["models"]["memory"]["curve"][1][2] = 0.9
    draw(whole, tmp_path, "other")
    left, right = (image(tmp_path / name)[:, :1000] for name in ("one.png", "other.png"))
    assert (left != right).any()


def test_an_interrupted_study_is_drawn_too(tmp_path):
    draw(results(memory=1.0, transformer_1=None), tmp_path, "some")
    draw(results(), tmp_path, "none")
    assert image(tmp_path / "some.png").std() > image(tmp_path / "none.png").std() > 0


def test_missing_matplotlib_names_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'memory-mosaics\[plot\]'"):
        figures.draw(results(**WHOLE), tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"cannot write .*missing"):
        figures.draw(results(**WHOLE), tmp_path / "missing")


def test_weights_by_distance_keep_their_sum_and_near_ones_as_they_are():
    weights = [0.4, *[0.001] * 500, 0.05, 0.03, 0.02]  # of positions 0 to 503 of 505: the last pair is not there yet
    distances, means = language._by_distance({"length": 505, "weights": weights})
    assert distances[:3] == [1, 2, 3]
    assert means[:3] == [0.02, 0.03, 0.05]
    assert len(distances) < 100
    assert distances == sorted(distances)
    assert means[-1] > means[-2] == pytest.approx(0.001)  # the first position is the farthest


def test_a_curve_that_ends_early_is_labelled():
    curve = {"smoothed_within": None, "context": 200, "architecture": "transformer", "loss": 2.0}
    models = [curve | {"name": str(n), "by_position": [], "smoothed": [1 + n / 200] * n} for n in (200, 400)]
    figure = language.loss_by_position({"corpus": "it", "windows": 3, "length": 400, "models": models})
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "200 (transformer, learned positions): 2.000 up to 200",
        "400 (transformer, learned positions): 2.000",
    ]
    lines = [line.get_xdata()[-1] for line in figure.axes[0].lines[:2]]
    assert lines == [195, 395]


def test_anchors_are_drawn_beside_the_models_and_far_ones_named_only():
    model = {"smoothed_within": None, "context": 400, "architecture": "memory-mosaic", "loss": 2.0, "name": "m"}
    model |= {"by_position": [], "smoothed": [3 - n / 400 for n in range(400)]}
    anchors = [
        {"label": name, "loss": loss, "spans": [[0, 100, loss], [100, 400, loss]]}
        for name, loss in (("near", 1.5), ("far", 6.0))
    ]
    found = {"corpus": "it", "windows": 3, "length": 400, "models": [model]}
    figure = language.loss_by_position(found | {"anchors": anchors})
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["m (Memory Mosaic): 2.000", "near: 1.500", "far: 6.000, outside"]
    bottom, top = figure.axes[0].get_ylim()
    assert bottom < 1.5
    assert top < 6
    assert "one training each" in figure.axes[0].get_xlabel()
    alone = language.loss_by_position(found)
    assert len(alone.legends[0].get_texts()) == 1


def test_every_architecture_has_a_colour_of_its_own_and_so_has_your_own():
    names = [*ARCHITECTURES, "mine.OneConfig", "mine.OtherConfig"]
    assert len(set(figures.colours_of(names).values())) == len(names)


def test_the_curves_of_any_architecture_are_drawn():
    run = {"blocks": 1, "learning_rate": 1e-3, "seed": 0, "train_loss": 2.0, "valid_loss": 2.1}
    run |= {"curve": [[1, 3.0], [2, 2.0]], "measured": [[2, 2.0, 2.1]]}
    found = {"runs": [run | {"architecture": name} for name in ("memory-mosaic", "mamba")]}
    for figure in (language.training_curves(found), language.step_sizes(found)):
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["Memory Mosaic", "Mamba"]
        assert len({line.get_color() for line in figure.axes[0].lines}) == 2


def test_bounds_against_errors_are_drawn_for_every_kind_of_keys(tmp_path):
    found = {str(beta): {"points": [[1e-9, 1e-3], [0.1, 1e9]]} for beta in (10, 50)} | {"lists": 3}
    results = {"study": "indexed", "pairs": 1000, "kinds": {"1.0": found, "uniform": found}}
    assert [file.name for file in figures.draw(results, tmp_path)] == ["indexed.png"]
    assert figures.draw(results | {"kinds": {}}, tmp_path) == []
    assert [*tmp_path.iterdir()] == []  # what an earlier run left
