import pytest

from memory_mosaics.apps.serve.answers import Answer
from memory_mosaics.apps.serve.batches import Likely
from memory_mosaics.text.tokenizer import byte_tokenizer


def told(text: bytes, *, length: int = 100, stops=(), end: bool = True, logs: bool = False):
    """The pieces of a text that comes byte by byte."""
    pieces = []
    answer = Answer(byte_tokenizer(), length, stops, pieces.append)
    for token in [*text, *([256] if end else [])]:
        if not answer.take(token, Likely(-1.0, [(token, -1.0)]) if logs else None):
            break
    return pieces


def test_each_letter_comes_when_it_is_whole():
    pieces = told("a café.".encode())
    assert [piece.text for piece in pieces] == ["a", " ", "c", "a", "f", "é", ".", ""]
    assert [piece.finish for piece in pieces] == [None] * 7 + ["stop"]


def test_the_length_ends_it_within_a_letter():
    assert [(piece.text, piece.finish) for piece in told("é".encode(), length=1)] == [("\ufffd", "length")]


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("one. two.", [". "], "one"),
        ("one.\n\nTwo", ["\n\n"], "one."),
        ("aaab", ["aab"], "a"),
        ("ab ac", ["ac", "b a"], "a"),
        ("ends with sto", ["stop"], "ends with sto"),
    ],
)
def test_stop_sequences_are_found_and_never_shown(text, stops, expected):
    pieces = told(text.encode(), stops=stops)
    assert "".join(piece.text for piece in pieces) == expected
    assert pieces[-1].finish == "stop"


def test_what_cannot_become_a_stop_sequence_does_not_wait():
    pieces = told(b"ab stx", stops=["stop"], end=False)
    assert [piece.text for piece in pieces] == ["a", "b", " ", "stx"]


def test_tokens_come_with_their_text():
    pieces = told(b"ab stop", stops=["stop"], logs=True)
    spoken = [each for piece in pieces for each in piece.spoken]
    assert "".join(each.text for each in spoken) == "ab "
    assert [each.offset for each in spoken] == [0, 1, 2]
    assert spoken[0].likely == [("a", -1.0)]
