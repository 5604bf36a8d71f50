"""Edits: what they change, what they are about, and what is refused."""

import re

import pytest

pytest.importorskip("fastapi")

from .conftest import TEXT, reading, send


def edit(served, place=None, *, session="edits", kind="sequence", block=0, head=0, **more):
    """As the page sends it, with the mark of the text that was read last."""
    peek = 1
    of_text = place is not None and kind == "sequence"
    mark = served.explorer.sessions[session, 0].checksums[place + peek] if of_text else None
    return {"block": block, "kind": kind, "head": head, "pair": place, "checksum": mark, **more}


def read(served, text=TEXT, edits=(), session="edits", **more):
    status, found, _ = send(served, body=reading(text, session=session, edits=list(edits), **more))
    assert status == 200, found
    return found


def places(found):
    return [edit["pair"] for edit in found["edits"]]


def test_edits_change_the_prediction_and_go_with_their_text(served):
    read(served)
    wanted = edit(served), edit(served, 2, head=1), edit(served, 10, block=1, head=1, text=" a")
    found = read(served, edits=wanted)
    assert (len(found["edits"]), found["dropped"], found["errors"]) == (3, 0, [])
    assert found["edited"]["losses"] != found["losses"]
    found = read(served, TEXT[:20] + "xx" + TEXT[22:], wanted)
    assert places(found) == [None, 2], "that whose text has changed is dropped"
    assert found["dropped"] == 1
    assert places(read(served, "On", wanted)) == [None]


def test_an_edit_knows_its_text_without_a_session(served):
    """A session that is gone, or a look that comes before the read: the pair of another text is never edited."""
    read(served)
    wanted = [edit(served, 6, head=1)]
    other = "My big dog sat. " + TEXT
    assert places(read(served, other, wanted, session="new")) == []
    body = reading(other, session="edits", edits=wanted, look={"position": 3})
    assert send(served, path="/api/look", body=body)[0] == 200
    found = read(served, other, wanted)
    assert (places(found), found["dropped"]) == ([], 1)
    assert places(read(served, TEXT, wanted, session="newer")) == [6], "and that of its own text is"


def test_an_answer_can_be_asked_for_again(served):
    """The edits come back as they are to be sent, whatever letters their tokens hold; their words name the pair."""
    read(served)
    found = read(served, edits=[edit(served, 3, token=0xE9), edit(served, 4)])
    assert re.fullmatch("<[0-9A-F]{2}>", found["edits"][0]["text"])
    words = [served.explorer.sessions["edits", 0].word(at) for at in (3, 4, 5)]
    assert [one["words"] for one in found["edits"]] == [words[:2], words[1:]]
    sent = [{name: one[name] for name in one if name != "words"} for one in found["edits"]]
    assert read(served, edits=sent)["edits"] == found["edits"]


def test_a_token_keeps_the_blank_before_it(served):
    """Whoever writes 'dog' over ' red' means ' dog'."""
    at = read(served)["tokens"].index(" red")
    found = read(served, edits=[edit(served, at - 1, text="dog")])
    assert [one["text"] for one in found["edits"]] == [" dog"]


def test_what_is_not_one_token_is_refused_and_the_text_is_read(served):
    tokens = read(served)["tokens"]
    red, lily = tokens.index(" red"), tokens.index(".")
    for place, text, values in (
        (red - 1, "dogs", "it has one token, not the 2 of “ dogs”: “ dog”, “s”."),
        (lily - 1, "", "it has one token, and none was given."),
    ):
        found = read(served, edits=[edit(served, place, text=text)])
        assert (found["edits"], found["dropped"]) == ([], 0)
        assert found["errors"] == [f"The pair was not rewritten: {values}"]


def test_edits_of_what_is_not_there(served):
    read(served)
    for wrong, found in (
        (edit(served, 10**20, kind="channel"), "there is no slot"),
        (edit(served, -1, kind="channel"), "there is no slot -1"),
        (edit(served, 3) | {"checksum": None}, "has no checksum of its text"),
        (edit(served, 3, token=10**9), "there is no token 1000000000"),
        (edit(served, token=3), "only pairs of the text"),
    ):
        status, answer, _ = send(served, body=reading(session="edits", edits=[wrong]))
        assert (status, found in answer["error"]["message"]) == (400, True), answer
    far = edit(served, 3) | {"pair": 10**20}
    assert (places(read(served, edits=[far])), places(read(served, edits=[far | {"pair": -9}]))) == ([], [])
