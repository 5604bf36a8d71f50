"""Phrases: what they stand for, and that there is one for every event."""

import pytest

from memory_mosaics.apps.story_world.narration import PHRASES, compile_phrase, phrases
from memory_mosaics.apps.story_world.world import words


def test_a_phrase_has_texts_slots_and_alternatives():
    parts = compile_phrase("{a.obj} [ran|{b} [hid|sat]|] to {P*}.")
    assert parts == (
        ("a", "obj", False, False), " ", ["ran", (("b", "", False, False), " ", ["hid", "sat"]), ()], " to ",
        ("p", "", True, True), ".",
    )  # fmt: skip
    assert compile_phrase("{a} smiled")[2] == ["smiled", "grinned", "beamed"]


def test_every_event_can_be_narrated_without_dialogue():
    for kind in PHRASES:
        assert phrases(kind, dialogue=False)
    with pytest.raises(AssertionError, match="unbalanced"):
        compile_phrase("{a} [ran] away]")


def test_a_section_of_two_lists_has_every_pair():
    assert len(words("food")) == 16 * 8
    assert words("food")[:9] == [*(f"plum {dish}" for dish in
        ("soup", "pie", "bread", "stew", "cake", "pudding", "porridge", "salad")), "carrot soup"]  # fmt: skip
