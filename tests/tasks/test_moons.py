import math

import pytest
import torch
from torch.testing import assert_close

from memory_mosaics.errors import UserError
from memory_mosaics.tasks.moons import ComplexMap, MoonsData


@pytest.mark.parametrize("moons", [1, 2, 3, 4])
def test_systems_return_and_fit(moons):
    task = MoonsData(moons=moons)
    assert len(task.systems) == max(2, math.ceil(math.comb(7, moons) / 4))
    for system in task.systems:
        assert len(system.periods) == moons
        assert 3 * system.lcm <= task.length
        assert all(system.lcm % period == 0 for period in system.periods)
        assert system.lcm == math.lcm(*system.periods)


def test_no_other_set_of_three_repeats_sooner():
    """In halves: the nine smallest common multiples of three different numbers from 1 to 7 are at most 12."""
    ratios = [system.lcm // math.gcd(*system.periods) for system in MoonsData().systems]
    assert max(ratios) <= 12
    assert len(ratios) == 9


def test_validation_is_never_trained_on():
    task = MoonsData()
    assert (task.validation.periods, task.validation.lcm) == ((44, 66, 88), 264)
    assert task.validation not in task.training
    seen = {
        tuple(sorted(periods_of(task.batch(8, seed=0, step=step).inputs[i]))) for step in range(30) for i in range(8)
    }
    assert (44, 66, 88) not in seen
    assert len(seen) == 8


def periods_of(x):
    """From the turn of the first step."""
    angle = torch.atan2(x[:2, 1::2].double(), x[:2, ::2].double()).diff(dim=0)[0] % (2 * math.pi)
    return [round(2 * math.pi / float(a)) for a in angle]


def test_every_moon_turns_evenly_on_its_circle_and_returns():
    task = MoonsData()
    x = task.sequences(task.validation, 5, seed=0)
    assert x.shape == (5, 800, 6)
    assert_close(x.unflatten(-1, (3, 2)).norm(dim=-1), torch.ones(5, 800, 3))
    for moon, period in enumerate(task.validation.periods):
        position = x[..., 2 * moon : 2 * moon + 2]
        assert_close(position[:, period:], position[:, :-period], rtol=1e-4, atol=1e-4)
        assert (position[:, period // 2] - position[:, 0]).norm(dim=-1).min() > 1.9
    assert (x[0, 0] - x[1, 0]).norm() > 0.1


def test_any_moon_may_be_the_slowest():
    task = MoonsData()
    slowest = {
        max(range(3), key=periods_of(task.batch(1, seed=0, step=step).inputs[0]).__getitem__) for step in range(40)
    }
    assert slowest == {0, 1, 2}


def test_a_batch_is_a_function_of_seed_and_step():
    task = MoonsData()
    one, same, other = (task.batch(3, seed=1, step=step) for step in (5, 5, 6))
    assert_close(one.inputs, same.inputs)
    assert not torch.allclose(one.inputs, other.inputs)
    assert_close(one.inputs[:, 1:], one.targets[:, :-1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"moons": 0}, "moons must be 1 to 6"), ({"moons": 7}, "moons must be 1 to 6"), ({"length": 10}, "at least 36")],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        MoonsData(**arguments)


def test_the_authors_periods_are_the_same_ratios_without_rounding():
    ours, theirs = MoonsData(), MoonsData(integer_periods=False)
    assert theirs.validation.periods == pytest.approx((44.444, 66.667, 88.889), abs=1e-3)
    assert theirs.validation.lcm == pytest.approx(800 / 3)
    assert len(theirs.training) == len(ours.training)
    trained = {period for system in ours.training for period in system.periods}
    assert set(ours.validation.periods) <= trained  # only the combination is new
    assert periods_of(theirs.batch(1, seed=0, step=0).inputs[0]) == pytest.approx(
        [period * 400 / 396 for period in periods_of(ours.batch(1, seed=0, step=0).inputs[0])], rel=0.05
    )


def test_a_complex_map_is_a_product_of_complex_numbers():
    one, two = ComplexMap(6, 4), ComplexMap(6, 4, copies=2)
    x = torch.randn(2, 5, 6)
    z = torch.view_as_complex(x.view(2, 5, 3, 2))
    assert_close(one(x), torch.view_as_real(z @ torch.view_as_complex(one.weight.detach())[0].T).flatten(-2))
    each = [torch.view_as_real(z[i] @ torch.view_as_complex(two.weight.detach())[i].T).flatten(-2) for i in range(2)]
    assert_close(two(x), torch.stack(each))
