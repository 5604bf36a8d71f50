"""Three moons: the curves of the paper, asserted on the numbers, and the one-pass measure against a plain loop."""

import json
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import moons
from memory_mosaics.experiments.moons import (
    disentanglement,
    error_curve,
    errors_ahead,
    measure_seeds,
    pick,
    train,
    weights,
)
from memory_mosaics.tasks.moons import MoonNetworkConfig, MoonsData

TASK = MoonsData()
PERIODS, LCM = TASK.validation.periods, TASK.validation.lcm


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Both networks of the paper, trained as the command does, for half as long."""
    folder = tmp_path_factory.mktemp("moons")
    configs = {heads: MoonNetworkConfig(heads=heads) for heads in (1, 3)}
    return {heads: train(TASK, config, folder / str(heads), steps=250)[0] for heads, config in configs.items()}


@pytest.fixture(scope="module")
def curves(trained):
    return {heads: error_curve(pick(net, 0), TASK, TASK.validation, 16, LCM + 20) for heads, net in trained.items()}


def mean(curve, first, last):
    """Of the error after `first` to `last` observations."""
    return sum(curve[first - 1 : last]) / (last - first + 1)


def test_one_memory_is_right_once_the_system_has_returned(curves):
    before, after = mean(curves[1], 5, LCM - 1), mean(curves[1], LCM + 1, LCM + 20)
    assert before > 0.8
    assert after < 0.15
    assert max(curves[1][4 : LCM - 1]) - min(curves[1][4 : LCM - 1]) < 0.1  # flat until then: no moon helps alone


def test_three_memories_learn_moon_by_moon(curves):
    levels = [mean(curves[3], a, b) for a, b in ((5, 43), (46, 65), (68, 87), (93, LCM - 5))]
    assert levels[0] > 0.8
    assert all(later < 0.7 * earlier for earlier, later in pairwise(levels)), levels
    assert levels[3] < 0.15
    for period in PERIODS:  # and the drop comes with the return of each, not before
        assert curves[3][period - 3] - curves[3][period + 1] > 0.15, period


def test_training_gives_each_memory_one_moon(trained):
    (seed,) = measure_seeds(trained[3], TASK, sequences=4)
    assert seed["converged"]
    assert seed["error_1"] < 0.05
    assert seed["error_25"] < 0.15
    assert seed["score"] > 0.99


@pytest.mark.parametrize(("count", "heads"), [(3, 1), (3, 3), (4, 2), (1, 1)])
def test_networks_of_any_size(count, heads):
    net = MoonNetworkConfig(moons=count, heads=heads).build()
    assert sum(weight.numel() for weight in net.parameters()) == 3 * 2 * count**2
    y, _ = net(torch.randn(2, 7, 2 * count))
    assert y.shape == (2, 7, 2 * count)
    assert (y[:, 0] == 0).all()


def test_moons_that_do_not_split_are_refused():
    with pytest.raises(UserError, match="3 moons do not split over 2 heads"):
        MoonNetworkConfig(moons=3, heads=2)


def test_copies_are_networks_of_their_own():
    net = MoonNetworkConfig(copies=4).build()
    x = torch.randn(8, 9, 6)
    together = net(x)[0]
    for copy in range(4):
        alone = pick(net, copy)(x[2 * copy : 2 * copy + 2])[0]
        assert_close(together[2 * copy : 2 * copy + 2], alone)


@pytest.mark.parametrize("heads", [1, 3])
def test_all_contexts_in_one_pass_are_each_context_alone(heads):
    """Against the streaming state: read the context, then feed every prediction back."""
    net = MoonNetworkConfig(heads=heads).build().requires_grad_(False)
    x = TASK.sequences(TASK.validation, 2, seed=3)[:, :40]
    errors, predicted = errors_ahead(net, x, ahead=6)
    for context in (0, 1, 7, 33):
        z, state = net(x[:, : context + 1])
        z = z[:, -1:]
        for step in range(6):
            assert_close(predicted[step, :, context], z[:, 0], rtol=1e-4, atol=1e-4)
            truth = x[:, context + 1 + step]
            distance = torch.view_as_complex((z[:, 0] - truth).view(2, 3, 2)).abs().mean(dim=-1)
            assert_close(errors[step, :, context], distance, rtol=1e-4, atol=1e-4)
            z, state = net(z, state)


def test_the_score_is_one_for_one_memory_one_moon_in_any_order():
    net = MoonNetworkConfig(copies=3).build().requires_grad_(False)
    order = torch.tensor([2, 0, 1])
    for name, weight in weights(net).items():
        weight[0] = torch.eye(3)[..., None]
        weight[1] = (torch.eye(3)[order] if name != "z" else torch.eye(3)[order].T)[..., None] * 2.5
        weight[2] = 1.0
    assert_close(torch.tensor(disentanglement(net)), torch.tensor([1.0, 1.0, 1 / 3]))
    weights(net)["z"][1] = torch.eye(3)[..., None]  # an order of its own: no memory is one moon's
    assert disentanglement(net)[1] < 0.7


def test_the_command_leaves_results_and_figures(tmp_path, capsys):
    flags = ["--heads", "1", "3", "--steps", "4", "--sequences", "2", "--seeds", "2"]
    assert main(["moons", *flags, "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert [len(record["seeds"]) for record in results["networks"].values()] == [2, 2]
    assert all(record["parameters"] == 54 for record in results["networks"].values())
    for name in ("error", "weights", "attention", "training", "astronomers"):
        assert (tmp_path / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert "3 memories" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "kinds"), [(1, ["1"]), (5, ["1", "5"])])
def test_any_number_of_moons(count, kinds, tmp_path):
    assert main(["moons", "--moons", str(count), "--out", str(tmp_path), "--steps", "2", "--sequences", "1"]) == 0
    assert list(json.loads((tmp_path / "results.json").read_text())["networks"]) == kinds


@pytest.mark.usefixtures("undrawn")
def test_ctrl_c_keeps_what_is_finished(tmp_path, monkeypatch, capsys):
    finished = moons.train

    def interrupted(task, config, out, **options):
        if config.heads == 3:
            raise KeyboardInterrupt
        return finished(task, config, out, **options)

    monkeypatch.setattr(moons, "train", interrupted)
    assert main(["moons", "--out", str(tmp_path), "--steps", "3", "--sequences", "1"]) == 130
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["interrupted"]
    assert list(results["networks"]) == ["1"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [(["--seeds", "0"], "seeds"), (["--heads", "2"], "do not split"), (["--moons", "9"], "1 to 6")],
)
def test_a_wrong_size_is_one_line(flags, message, tmp_path, capsys):
    assert main(["moons", "--out", str(tmp_path), *flags]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1
