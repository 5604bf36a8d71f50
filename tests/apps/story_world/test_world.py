"""The state of a story, and the events that need and change it."""

from random import Random

import pytest

from memory_mosaics.apps.story_world.world import Person, Place, Thing, World


def test_an_event_needs_its_conditions_and_has_its_effects():
    world = World(Random(0))
    a, b = Person("Ann", he=False, kind="girl"), Person("Bob", he=True, kind="boy")
    o, p = Thing("ball", "red", "r"), Place("the park", "at", "T")
    world.bind(a=a, b=b, o=o, p=p)
    with pytest.raises(AssertionError, match="find_there needs a at p"):
        world.play("find_there")
    world.play("set a has o & a at p; want a has o")
    assert world.ends_well()
    world.play("set_down")
    assert o.where is p
    assert not world.ends_well()
    world.play("find_there")
    assert o.where is a
    assert a.mood == "happy"
    assert world.holds("not b has o & not a owes b", world.roles)


def test_a_step_may_give_a_role_to_somebody_else():
    world = World(Random(0))
    a, b = Person("Ann", he=False, kind="girl"), Person("Bob", he=True, kind="boy")
    o, p = Thing("ball", "red", "r"), Place("the park", "at", "T")
    world.bind(a=a, b=b, o=o)
    world.play("set b has o & b at p; set_down a=b; lesson careful; lesson kind", p=p)
    assert (o.where, a.where) == (p, None)
    assert [(kind, roles["a"]) for kind, roles in world.trace] == [("set_down", b)]
    assert world.lesson == "careful"
    assert "p" not in world.roles


def test_what_is_planted_well_before_is_foreshadowing():
    world = World(Random(0))
    world.play("plant stick; pay stick; pay clouds")
    assert not world.features
    world.play("paragraph; paragraph; paragraph; pay stick; feature Twist")
    assert world.features == {"Foreshadowing", "Twist"}
