"""Prompts by seed and number, the lists they draw from, and the lists that a model gives."""

import json
import os
import re
import time

import pytest

from memory_mosaics.apps.babistories.collect import MAX_FRUITLESS, Journal, read_journal, read_names, read_openings
from memory_mosaics.apps.babistories.prompts import (
    default_lists,
    names_request,
    openings_request,
    read_lists,
    read_template,
    story_request,
)
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError

LISTS = default_lists()


def test_a_prompt_follows_from_seed_and_number_alone():
    there = [story_request(index, seed=3, lists=LISTS) for index in range(200)]
    back = [story_request(index, seed=3, lists=LISTS) for index in reversed(range(200))][::-1]
    assert there == back
    assert len({request.text for request in there}) == 200
    others = [story_request(index, seed=4, lists=LISTS) for index in range(200)]
    assert not {request.text for request in there} & {request.text for request in others}
    pinned = {
        "words": {"noun": "worm", "verb": "carry", "adjective": "cool"},
        "features": ["moral", "foreshadowing"],
        "name": "Ron",
    }
    asked = story_request(17, seed=0, lists=LISTS).metadata
    assert asked == pinned | {"opening": "High up in the mountains"}, "other versions of this library ask for the same"


def test_a_prompt_names_all_that_is_asked_for():
    for index in range(100):
        request = story_request(index, seed=0, lists=LISTS)
        wanted = [word.split("/")[0] for word in request.metadata["words"].values()]
        assert all(f'"{word}"' in request.text for word in wanted)
        assert len(wanted) == 3
        assert f" {request.metadata['name']}." in request.text
        assert request.text.count(request.prefix) >= 1
        assert not re.search(r"[{}]", request.text)
        assert ("In this story, " in request.text) == bool(request.metadata["features"])


def test_a_template_of_ones_own(tmp_path):
    file = tmp_path / "template.txt"
    file.write_text("Erzähle von {name}, mit dem Wort {noun}.")
    request = story_request(5, seed=0, lists=LISTS, template=read_template(file))
    assert request.text == f"Erzähle von {request.metadata['name']}, mit dem Wort {request.metadata['words']['noun']}."
    assert (request.prefix, request.metadata["features"], "opening" in request.metadata) == ("", [], False)
    for bad, found in (("{hero}", "a slot {hero}"), ("Tell me.", "has no slot")):
        file.write_text(bad)
        with pytest.raises(UserError, match=re.escape(found)):
            read_template(file)


def test_lists_of_ones_own(tmp_path):
    words, names = tmp_path / "words.json", tmp_path / "names.txt"
    words.write_text(json.dumps({"nouns": ["Haus"], "verbs": ["gehen/ging"], "adjectives": ["rot"]}))
    names.write_text("Ute\n\nOle\nUte\n")
    lists = read_lists(words, names, None)
    assert (lists.nouns, lists.names, lists.openings) == (("Haus",), ("Ute", "Ole"), LISTS.openings)
    for bad in ("[]", "{", '{"nouns": []}', '{"nouns": [], "verbs": ["a"], "adjectives": ["b"]}'):
        words.write_text(bad)
        with pytest.raises(UserError, match=r"words\.json"):
            read_lists(words, None, None)


def test_names_and_openings_are_read_from_any_list():
    text = (
        'Here are some names:\n1. Anna\n2) Ben\n- Çelik\n* "Dora"\nEva, Finn, Gus\nnot a name at all\nHans Peter\n9\n'
    )
    assert read_names(text) == ["Anna", "Ben", "Çelik", "Dora", "Eva", "Finn", "Gus"]
    text = '1. "Once upon a time..."\n- On a snowy hill,\n\n* Word\nthe small one was\nA [place] in the sun\n2. At last'
    assert read_openings(text) == ["Once upon a time", "On a snowy hill", "At last"]


def test_requests_for_lists_differ():
    names = [names_request(index, seed=0) for index in range(48)]
    assert len({request.text for request in names}) == 24
    assert len({request.seed for request in names}) == 48
    assert names == [names_request(index, seed=0) for index in range(48)]
    assert len({openings_request(index, seed=0).text for index in range(60)}) > 20


@pytest.mark.parametrize("step", ["names", "openings"])
def test_lists_are_gathered_until_there_are_enough(step, server, tmp_path, capsys):
    def answer(prompt: str) -> str:
        letter = (re.search(r"letter (\w)", prompt) or "AB")[1]
        place = (re.search(r"that plays (.*)\. Each", prompt) or "AB")[1]
        if step == "names":
            return f"1. {letter}anna\n2. {letter}ENNO\n3. {letter}enno"
        return f"- It was {place.replace(',', '')}\n- Once upon a time"

    server.answer, server.wrong = answer, lambda prompt: time.sleep(0.02)  # so that several are under way
    words = ["babistories", step, "--out", str(tmp_path), "--server", server.address]
    assert main([*words, "--count", "9", "--concurrency", "2"]) == 0
    found = (tmp_path / f"{step}.txt").read_text().splitlines()
    assert len(found) == 9
    assert len({one.casefold() for one in found}) == 9
    asked = sum(server.asked.values())
    assert main([*words, "--count", "9"]) == 0
    assert sum(server.asked.values()) == asked, "what is there is not asked for again"
    assert main([*words, "--count", "20", "--concurrency", "5"]) == 0
    more = (tmp_path / f"{step}.txt").read_text().splitlines()
    assert more[:9] == found, "a longer list begins with the shorter"
    assert max(server.asked.values()) == 1
    capsys.readouterr()
    assert main([*words, "--count", "5000", "--concurrency", "8"]) == 0
    assert f"{step} are all it knows" in capsys.readouterr().out
    asked = sum(server.asked.values())
    assert main([*words, "--count", "5000", "--concurrency", "8"]) == 0
    assert sum(server.asked.values()) == asked, "a model that knows no more is not paid again"
    assert f"had nothing new 24 times in a row (asked {asked} times)" in capsys.readouterr().out
    assert main(["babistories", "stories", "--out", str(tmp_path), "--server", server.address, "--count", "3"]) == 0
    assert str(tmp_path / f"{step}.txt") in capsys.readouterr().out
    entries = list(read_journal(tmp_path / "stories.journal"))[1:]
    assert all(entry[step[:-1]] in (tmp_path / f"{step}.txt").read_text() for entry in entries)


def test_no_more_is_asked_than_may_be_fruitless(server, tmp_path):
    server.answer, server.wrong = lambda prompt: "Anna", lambda prompt: time.sleep(0.02)
    words = ["babistories", "names", "--out", str(tmp_path), "--server", server.address, "--concurrency", "64"]
    assert main(words) == 0
    assert sum(server.asked.values()) == MAX_FRUITLESS + 1, "the first one brings a name"
    server.answer = lambda prompt: "\n".join(f"A{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(200))
    words[words.index(str(tmp_path))] = str(tmp_path / "more")
    server.asked.clear()
    assert main([*words, "--count", "100"]) == 0
    assert sum(server.asked.values()) <= MAX_FRUITLESS


def test_a_list_that_was_edited_stays(server, tmp_path, capsys):
    server.answer = lambda prompt: "\n".join((re.search(r"letter (\w)", prompt) or "AB")[1] + end for end in ("a", "b"))
    file, words = tmp_path / "names.txt", ["babistories", "names", "--out", str(tmp_path), "--server", server.address]
    assert main([*words, "--count", "4"]) == 0
    assert main([*words, "--count", "6"]) == 0
    given = file.read_text().splitlines()
    assert len(given) == 6, "what was not edited is written anew"
    for edited in ("\n".join(given[:-1]) + "\n", "Ute\n", ""):
        file.write_text(edited)
        capsys.readouterr()
        assert main([*words, "--count", "8"]) == 0
        assert file.read_text() == edited
        assert f"{file} is not overwritten" in capsys.readouterr().out
    file.unlink()
    assert main([*words, "--count", "8"]) == 0
    assert len(file.read_text().splitlines()) == 8


def test_other_lists_are_named_by_their_files(server, tmp_path, capsys):
    words = ["babistories", "stories", "--out", str(tmp_path / "out"), "--server", server.address, "--count", "2"]
    names = tmp_path / "names.txt"
    names.write_text("Ute\nOle\nIda\n")
    assert main(words) == 0
    assert main([*words, "--names", str(names)]) == 2
    errors = capsys.readouterr().err
    assert (
        f"was started with 207 names of the package, now 3 of {names}: resume without that file, or name another --out"
        in errors
    )
    words[words.index(str(tmp_path / "out"))] = str(tmp_path / "more")
    assert main([*words, "--names", str(names)]) == 0
    assert main(words) == 2
    assert (
        f"started with 3 names of {names}, now 207 of the package: give --names {names}, or" in capsys.readouterr().err
    )
    names.write_text("Ute\n")
    assert main([*words, "--names", str(names)]) == 2
    assert "now 1 of" in (errors := capsys.readouterr().err)
    assert "restore the file" in errors
    assert "remove" not in errors


def test_a_journal_is_resumed_only_with_the_same_settings(tmp_path):
    file = tmp_path / "stories.journal"
    entry = {"index": 0, "text": "Once.", "tokens": [1, 2]}
    with Journal.open(file, {"step": "stories", "seed": 0}) as journal:
        journal.append([entry, entry | {"index": 5}])
        with (
            pytest.raises(UserError, match="being written by another process"),
            Journal.open(file, {"step": "stories"}),
        ):
            pass
    with (
        pytest.raises(UserError, match="started with seed 0, not 1: give --seed 0, or name another"),
        Journal.open(file, {"step": "stories", "seed": 1}),
    ):
        pass
    whole = file.read_bytes()
    for cut in range(len(whole) - len(json.dumps(entry)), len(whole)):
        file.write_bytes(whole[:cut])
        with Journal.open(file, {"step": "stories", "seed": 0}) as journal:
            assert journal.done == {0}
            journal.append([entry | {"index": 5}])
        assert file.read_bytes() == whole, "half a line is dropped, and written anew"
    with Journal.open(file, {"step": "stories", "seed": 0}) as journal:
        assert (journal.done, journal.tokens) == ({0, 5}, [2, 4])
    file.write_bytes(whole.replace(b'"Once."', b"Once", 1))
    with (
        pytest.raises(UserError, match="line 2 is not of a journal"),
        Journal.open(file, {"step": "stories", "seed": 0}),
    ):
        pass
    fields = (b'"words": [0.5]', b'"words": {"noun": null}', b'"name": {}', b'"opening": null')
    for damaged in (b'"tokens": [1, "2"]', *(b'"tokens": [1, 2], ' + field for field in fields)):
        file.write_bytes(whole.replace(b'"tokens": [1, 2]', damaged))
        with (
            pytest.raises(UserError, match="line 2 is not of a journal"),
            Journal.open(file, {"step": "stories", "seed": 0}),
        ):
            pass
    file.write_bytes(whole)
    os.truncate(file, 1 << 40)  # a hole, as a crash of some file systems leaves one
    with pytest.raises(UserError, match="line 4 is longer than"), Journal.open(file, {"step": "stories", "seed": 0}):
        pass
    file.write_bytes(b'{"ste')
    with Journal.open(file, {"step": "stories", "seed": 0}) as journal:
        assert journal.done == set()


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    file = tmp_path / "stories.journal"
    with Journal.open(file, {"step": "stories"}) as journal:
        before = file.read_bytes()

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(UserError, match="No space left on device"):
            journal.append([{"index": 0, "text": "Once.", "tokens": [1, 2]}])
        assert file.read_bytes() == before
        assert journal.done == set()
