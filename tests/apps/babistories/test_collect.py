"""Answers that are paid for stay, whatever comes of the others; one bad request does not hold up the rest."""

import asyncio
import json
import signal
import time
from collections import Counter

import pytest

from memory_mosaics.apps.babistories.clients import Answer, LocalModel, ServerClient
from memory_mosaics.apps.babistories.collect import read_journal
from memory_mosaics.apps.babistories.prompts import default_lists, story_request
from memory_mosaics.cli import main

from .test_clients import command, indices

LISTS = default_lists()
SAID = {"role": "assistant", "content": "Once."}
FILTERED = {"role": "assistant", "content": None, "refusal": "I cannot."}


def prompt_of(index: int) -> str:
    return story_request(index, seed=0, lists=LISTS).text


def reply(message: dict, usage: object = None, finish: str = "stop") -> str:
    return json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": usage})


@pytest.mark.parametrize("usage", [{"prompt_tokens": 1, "completion_tokens": float("inf")}, "many", [7], {}, 3, None])
def test_usage_that_cannot_be_read_rejects_no_text(usage, server, tmp_path):
    server.always = reply(SAID, usage)
    assert main(command(server, tmp_path)) == 0
    assert sum(server.asked.values()) == 6
    assert all(sum(entry["tokens"]) > 1 for entry in list(read_journal(tmp_path / "stories.journal"))[1:]), "estimated"


def test_what_nobody_foresaw_is_one_line_and_loses_no_answer(server, tmp_path, capsys, monkeypatch):
    once, server.through = ServerClient._attempt, 0

    async def defect(self, request, *more):
        if request.index == 3:
            while sum(server.asked.values()) < 7:
                await asyncio.sleep(0.01)
            server.release.set()
            raise ZeroDivisionError("nobody sorted this")
        return await once(self, request, *more)

    monkeypatch.setattr(ServerClient, "_attempt", defect)
    assert main(command(server, tmp_path, "--concurrency", "8", count=20)) == 2
    line = capsys.readouterr().err
    assert "the server gave up: ZeroDivisionError: nobody sorted this; " in line
    assert line.count("\n") == 1
    assert len(indices(tmp_path)) == sum(server.asked.values()) == 7, "every answer that was asked for is there"


def test_an_answer_without_a_text_is_an_answer(server, tmp_path):
    server.script = [reply(FILTERED, finish="content_filter"), reply({"refusal": "No."})]
    assert main(command(server, tmp_path, count=3)) == 0
    assert sum(server.asked.values()) == 3, "it is not asked for again"
    found = list(read_journal(tmp_path / "stories.journal"))[1:]
    assert sorted(entry["text"] == "" for entry in found) == [False, True, True]
    assert main(["babistories", "clean", "--out", str(tmp_path), "--allow", "missing words"]) == 0
    assert json.loads((tmp_path / "clean.json").read_text())["dropped"]["no answer"] == 2


@pytest.mark.parametrize("what", ["400", "422", "500", "garbage"])
@pytest.mark.parametrize("concurrency", ["1", "8"])
def test_one_bad_request_does_not_hold_up_the_others(what, concurrency, server, tmp_path, capsys):
    server.wrong = lambda prompt: what if prompt in (prompt_of(0), prompt_of(3)) else None
    words = ["--concurrency", concurrency, "--retries", "1"]
    assert main(command(server, tmp_path, *words)) == 2, "it is not complete"
    errors = capsys.readouterr()
    assert sorted(indices(tmp_path)) == [1, 2, 4, 5]
    assert errors.err.startswith("mosaics: 4 of 6 stories are in ")
    assert "2 requests were not answered, the last with " in errors.err
    assert errors.err.count("\n") == 1
    assert main(command(server, tmp_path, *words, count=12)) == 2
    assert sorted(indices(tmp_path)) == [1, 2, *range(4, 12)]
    if concurrency == "1":
        asked = [body["messages"][0]["content"] for body in server.bodies]
        assert set(asked[-2:]) <= {prompt_of(0), prompt_of(3)}, "they are asked last"
    server.wrong = lambda prompt: None
    assert main(command(server, tmp_path, *words, count=12)) == 0
    assert sorted(indices(tmp_path)) == list(range(12))


def test_ten_refused_in_a_row_end_the_run(server, tmp_path, capsys):
    assert main(command(server, tmp_path, count=1)) == 0
    server.always = "422"
    assert main(command(server, tmp_path, "--concurrency", "1", count=40)) == 2
    assert "the server gave up: status 422" in capsys.readouterr().err
    assert sum(server.asked.values()) == 11


def test_a_server_that_takes_fewer_at_once_is_asked_for_fewer(server, tmp_path, capsys):
    server.capacity, server.retry_after = 4, "0.01"
    server.wrong = lambda prompt: time.sleep(0.05)
    assert main(command(server, tmp_path, "--concurrency", "24", "--retries", "1", count=60)) == 0
    assert sorted(indices(tmp_path)) == list(range(60))
    assert sum(server.asked.values()) < 200, "it is not battered"


def test_a_lost_request_keeps_its_key_and_an_answered_one_gets_another(server, tmp_path):
    for what, different in (("nothing", 1), ("409", 1), ("500", 2), ("garbage", 2)):
        server.asked, server.script, out = Counter(), [what], tmp_path / what
        assert main(command(server, out, count=1)) == 0
        assert (len(server.asked), sum(server.asked.values())) == (different, 2), what
    server.asked = Counter()
    for more in ([], ["--length", "50"], ["--temperature", "0.5"], ["--seed", "2"], ["--ask", "completion"]):
        assert main(command(server, tmp_path / f"other{len(more) and more[0] + more[1]}", *more, count=2)) == 0
    assert len(server.asked) == 10, "what is asked otherwise is another request"


def test_a_key_is_the_same_after_a_restart(server, tmp_path):
    for out in ("one", "two"):
        assert main(command(server, tmp_path / out, count=2)) == 0
    assert list(server.asked.values()) == [2, 2]


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_a_model_on_this_machine_after_its_batch(presses, tmp_path, monkeypatch, capsys):
    batches = []

    def generate(self, requests):
        batches.append(requests)
        for _ in range(presses if len(batches) == 2 else 0):
            signal.raise_signal(signal.SIGINT)
        return [Answer("Once.", "stop", (1, 2)) for _ in requests]

    def build(self, options):
        self.batch, self.answers = [], {}

    monkeypatch.setattr(LocalModel, "__init__", build)
    monkeypatch.setattr(LocalModel, "generate", generate)
    words = ["babistories", "stories", "--out", str(tmp_path / "out"), "--model", str(tmp_path), "--count", "20"]
    assert main([*words, "--concurrency", "4"]) == 130
    errors = capsys.readouterr()
    assert "stopping after the 4 answers in flight" in errors.err
    assert "stopped: " in errors.out
    assert indices(tmp_path / "out") == list(range(8 if presses == 1 else 4))
    assert main([*words, "--concurrency", "4"]) == 0
    assert sorted(indices(tmp_path / "out")) == list(range(20))


@pytest.mark.parametrize("flag", ["--stream true", "--retries 1", "--timeout 5", "--key_variable KEY"])
def test_flags_without_effect_are_refused(flag, tmp_path, capsys):
    assert (
        main(["babistories", "stories", "--out", str(tmp_path / "out"), "--model", str(tmp_path), *flag.split()]) == 2
    )
    assert capsys.readouterr().err == f"mosaics: {flag.split()[0]} has no effect without --server\n"
    assert not (tmp_path / "out").exists()
