"""How plots are written: draws, conditions, blocks."""

from random import Random

import pytest

from memory_mosaics.apps.story_world.plots import _condition, _play, _read
from memory_mosaics.apps.story_world.world import World


def played(*lines: str) -> World:
    world = World(Random(0))
    world.hero.trait = "brave"
    _play(_read(list(lines)), world)
    return world


def test_a_role_is_drawn_copied_or_the_truth_of_a_condition():
    world = played("o = thing v b; b = e; has = pick W; p = place $has", "wise = hero shy brave and not o can e or 0%")
    roles = world.roles
    assert {"v", "b"} <= set(roles["o"].can)
    assert roles["b"] is world.elder
    assert "W" in roles["p"].has
    assert roles["wise"] is True


def test_the_first_branch_whose_condition_holds_is_played():
    lines = ["way = pick left", "if way is right: days_pass", "elif hero brave:", "  if 0%: count", "  else: listen",
             "  home p=h", "else: sound_pet", "laugh_at_fear_$way"]  # fmt: skip
    world = played(*lines)
    assert [kind for kind, _ in world.trace] == ["listen", "home", "laugh_at_fear_left"]
    assert world.trace[1][1]["p"] is world.home


def test_conditions_stop_at_the_first_that_decides():
    world = World(Random(0))
    world.hero.trait = "brave"
    world.random = iter([0.5]).__next__  # for one draw
    assert _condition("hero shy and 50% or hero brave or 50%")(world)
    assert not _condition("hero shy or 50%")(world)
    with pytest.raises(StopIteration):
        _condition("50%")(world)


def test_what_is_no_condition_is_refused():
    with pytest.raises(ValueError, match="not a condition of a plot: o may break"):
        _condition("o may break")
