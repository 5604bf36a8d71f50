"""Servers that answer badly: asked again, then one line, and the journal keeps every answer."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import aclosing
from types import SimpleNamespace

import openai
import pytest

from memory_mosaics.apps.babistories import clients
from memory_mosaics.apps.babistories.clients import (
    MAX_BACKOFF,
    ModelOptions,
    RetriesExhausted,
    ServerClient,
    TransientError,
    _retry_after,
)
from memory_mosaics.apps.babistories.collect import read_journal
from memory_mosaics.apps.babistories.prompts import default_lists, story_request
from memory_mosaics.cli import main
from waiting import HANG, until

PASSING = ["429", "500", "503", "garbage", "no text", "half", "nothing", "silence"]


def command(server, out, *more: str, count: int = 6) -> list[str]:
    asked = ["babistories", "stories", "--out", str(out), "--server", server.address, "--count", str(count)]
    return [*asked, "--timeout", str(HANG), "--backoff", "0.05", *more]


def indices(out) -> list[int]:
    return [entry["index"] for entry in itertools.islice(read_journal(out / "stories.journal"), 1, None)]


@pytest.mark.parametrize("what", PASSING)
def test_what_passes_is_asked_again(what, server, tmp_path, capsys, monkeypatch):
    send = openai.DefaultAsyncHttpxClient.send

    async def impatient(client, request, **more):
        """Time runs out as soon as the server is silent about a request, and never for another."""
        key = request.headers.get("Idempotency-Key")
        answer = asyncio.ensure_future(send(client, request, **more))
        while not answer.done() and key not in server.silent:
            await asyncio.sleep(0.01)
        if not answer.done():
            server.silent.discard(key)  # what is lost is asked again with the same key
            answer.cancel()
            raise TimeoutError
        return await answer

    monkeypatch.setattr(openai.DefaultAsyncHttpxClient, "send", impatient)
    server.script = [what, what]
    assert main(command(server, tmp_path, "--concurrency", "2")) == 0
    assert sorted(indices(tmp_path)) == list(range(6))
    assert sum(server.asked.values()) == 8
    assert "2 retries" in capsys.readouterr().out


@pytest.mark.parametrize("what", PASSING)
def test_what_does_not_pass_is_one_line_and_the_journal_is_whole(what, server, tmp_path, capsys, monkeypatch):
    assert main(command(server, tmp_path, count=3)) == 0
    capsys.readouterr()
    server.always = what
    with monkeypatch.context() as silent:
        if what == "silence":  # all that is asked is in vain, so that no answer can be too slow
            silent.setattr(ServerClient, "_list_models", lambda server: asyncio.sleep(0, ["teller"]))
        waiting = ["--timeout", "0.2"] if what == "silence" else []
        assert main(command(server, tmp_path, "--retries", "2", *waiting)) == 2
    line = capsys.readouterr().err
    assert line.startswith("mosaics: the server gave up: ")
    assert line.count("\n") == 1
    assert "(3 tries); 3 of 6 stories are in " in line
    assert "the same command resumes" in line
    server.always = None
    before = Counter(server.asked)
    assert main(command(server, tmp_path)) == 0
    assert sorted(indices(tmp_path)) == list(range(6))
    assert sum((server.asked - before).values()) == 3, "only what was missing is asked"


def test_half_a_stream_is_asked_again(server, tmp_path):
    server.script = ["half a stream", "half a stream"]
    assert main(command(server, tmp_path, "--stream", "--concurrency", "2")) == 0
    assert sorted(indices(tmp_path)) == list(range(6))
    assert sum(server.asked.values()) == 8
    entries = list(read_journal(tmp_path / "stories.journal"))[1:]
    assert all(entry["finish"] == "stop" and len(entry["text"].split()) > 50 for entry in entries)
    assert all(sum(entry["tokens"]) > 50 for entry in entries), "estimated where the server does not say"


@pytest.mark.parametrize(
    ("what", "streamed", "message"),
    [
        ("long", False, "an answer of 54,000 characters where --length 600 was asked for (64 per token are read)"),
        ("endless", False, "an answer of more than 679,936 bytes where --length 600 was asked for (1024 per token and"),
        ("endless", True, "an answer of more than 679,936 bytes where --length 600 was asked for (1024 per token and"),
        ("bomb", False, "an answer of more than 679,936 bytes where --length 600 was asked for (1024 per token and"),
        ("endless error", False, "status 500: data: aaa"),
    ],
)
def test_an_answer_much_longer_than_asked_for_is_asked_again_and_not_kept(
    what, streamed, message, server, tmp_path, capsys
):
    more = ["--timeout", "300", *(["--stream"] if streamed else [])]
    server.script = [what]
    assert main(command(server, tmp_path, *more, count=2)) == 0
    assert sorted(indices(tmp_path)) == [0, 1]
    assert sum(server.asked.values()) == 3
    server.always = what
    assert main(command(server, tmp_path, "--retries", "0", *more)) == 2
    assert message in capsys.readouterr().err
    assert sorted(indices(tmp_path)) == [0, 1]


@pytest.mark.parametrize("streamed", [False, True])
def test_half_a_stream_for_ever_is_one_line(streamed, server, tmp_path, capsys):
    server.always = "half a stream"
    more = ["--stream"] if streamed else []
    assert main(command(server, tmp_path, "--retries", "1", *more)) == 2
    found = "half an answer" if streamed else "garbage in place of an answer"
    assert found in capsys.readouterr().err
    assert not (tmp_path / "stories.journal").exists(), "without an answer there is nothing to go on with"


def test_no_server_is_one_line(server, tmp_path, capsys):
    server.shutdown()
    server.server_close()
    assert main(command(server, tmp_path)) == 2
    line = capsys.readouterr().err
    assert "connection failed: All connection attempts failed" in line
    assert "(3 tries)" in line
    assert line.count("\n") == 1


def test_a_wrong_request_is_not_asked_again(server, tmp_path, capsys):
    server.always = "400"
    assert main(command(server, tmp_path, "--concurrency", "1")) == 2
    assert "status 400: told to say 400; nothing was answered" in capsys.readouterr().err
    assert list(server.asked.values()) == [1, 1, 1], "three different ones, before it is the server's fault"


def test_a_wrong_key_is_not_asked_again(server, tmp_path, capsys):
    server.always = "401"
    assert main(command(server, tmp_path, "--concurrency", "1")) == 2
    assert "status 401" in capsys.readouterr().err
    assert sum(server.asked.values()) == 1


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """How long the client meant to sleep each time. It does not, but its clock goes on by as much."""
    slept: list[float] = []

    async def sleep(server, seconds):
        slept.append(max(0.0, seconds))

    monkeypatch.setattr(ServerClient, "_sleep", sleep)
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: sum(slept)))
    return slept


def test_the_server_is_left_alone_as_long_as_it_asks(server, tmp_path, slept):
    server.script, server.retry_after = ["429"], "7"
    assert main(command(server, tmp_path, "--concurrency", "1", count=2)) == 0
    assert sum(server.asked.values()) == 3
    longest = [seconds for seconds in slept if seconds >= 7]
    assert len(longest) == 1, "after the one that was refused"
    assert longest[0] <= 7.7


def test_a_wait_may_be_a_date(monkeypatch):
    assert _retry_after("7") == 7.0
    assert _retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert _retry_after("soon") == _retry_after(None) == 0.0
    ahead = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(1_000_000_030))
    monkeypatch.setattr("memory_mosaics.apps.babistories.clients.time", SimpleNamespace(time=lambda: 1e9))
    assert _retry_after(ahead) == 30


def test_a_server_that_asks_for_hours_is_not_waited_for(server, tmp_path, capsys):
    server.always, server.retry_after = "429", "86400"
    assert main(command(server, tmp_path)) == 2
    assert "it asks to wait 86400 seconds" in capsys.readouterr().err


def test_limits_of_a_minute_are_kept(server, tmp_path, slept):
    assert main(command(server, tmp_path, "--requests-per-minute", "600", "--concurrency", "1", count=8)) == 0
    assert sum(slept) == pytest.approx(0.7)
    tokens = sum(sum(entry["tokens"]) for entry in list(read_journal(tmp_path / "stories.journal"))[1:])
    slept.clear()
    more = command(server, tmp_path / "tokens", "--tokens-per-minute", str(tokens * 40), "--concurrency", "1", count=8)
    assert main(more) == 0
    assert 1.0 <= sum(slept) <= 4.0, "all of them take a minute and a half of 40"


def test_so_many_are_waited_for_and_no_more(server, tmp_path):
    server.gather, server.wrong = 4, lambda prompt: time.sleep(0.05)  # in which a fifth would come
    assert main(command(server, tmp_path, "--concurrency", "4", count=12)) == 0
    assert server.most_at_once == 4


def test_prompts_do_not_depend_on_the_order(server, tmp_path):
    for out, concurrency in (("one", "1"), ("many", "12")):
        assert main(command(server, tmp_path / out, "--concurrency", concurrency, count=12)) == 0
    one, many = (
        {e["index"]: e for e in list(read_journal(tmp_path / out / "stories.journal"))[1:]} for out in ("one", "many")
    )
    assert one == many
    assert main(command(server, tmp_path / "late", "--first", "8", count=4)) == 0
    late = {entry["index"]: entry for entry in list(read_journal(tmp_path / "late" / "stories.journal"))[1:]}
    assert late == {index: one[index] for index in range(8, 12)}


def test_completions_go_on_from_the_opening(server, tmp_path):
    server.answer = lambda prompt: " went home."
    assert main(command(server, tmp_path, "--ask", "opening", count=2)) == 0
    entries = list(read_journal(tmp_path / "stories.journal"))[1:]
    assert [entry["text"] for entry in entries] == [entry["opening"] + " went home." for entry in entries]
    assert {body["prompt"] for body in server.bodies} == {entry["opening"] for entry in entries}
    assert "words" not in entries[0], "what was not asked for is not missed"
    assert main(command(server, tmp_path / "more", "--ask", "completion", count=2)) == 0
    assert server.bodies[-1]["prompt"].startswith("Write a story")


def test_the_key_is_sent(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("A_KEY", "secret")
    assert main(command(server, tmp_path, "--key-variable", "A_KEY", count=1)) == 0
    assert server.headers_seen[0]["Authorization"] == "Bearer secret"
    assert "secret" not in (tmp_path / "stories.journal").read_text() + "".join(capsys.readouterr())


def test_no_key_is_sent_unless_it_is_named(server, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert main(command(server, tmp_path, count=1)) == 0
    assert "Authorization" not in server.headers_seen[0]


@pytest.mark.parametrize(
    ("address", "key", "message"),
    [
        ("http://localhost:99999", "key", "cannot use --server http://localhost:99999: Port out of range 0-65535"),
        ("http://[::1", "key", "cannot use --server http://[::1: Invalid IPv6 URL"),
        (
            "http://localhost:1",
            "Schlüssel",
            "the environment variable A_KEY is not an API key: it has characters beyond",
        ),
        ("http://localhost:1", "", "the environment variable A_KEY, named by --key_variable, is not set"),
    ],
)
def test_an_address_or_a_key_that_cannot_be_used_is_one_line(address, key, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("A_KEY", key)
    words = ["babistories", "stories", "--out", str(tmp_path / "out"), "--server", address, "--key-variable", "A_KEY"]
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"mosaics: {message}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ('data: {"error": {"message": "out of tokens"}}', "an error in place of an answer: out of tokens"),
        ("data: <html>", "garbage in place of an answer: <html>"),
        ("data: 7", "garbage in place of an answer: 7"),
    ],
)
def test_a_stream_that_is_no_answer_is_asked_again(what, message, server, tmp_path, capsys):
    server.script = [what]
    assert main(command(server, tmp_path, "--stream", count=2)) == 0
    assert sum(server.asked.values()) == len(server.asked) == 3, "with another key: the first was answered"
    server.always = what
    assert main(command(server, tmp_path, "--stream", "--retries", "0", count=3)) == 2
    assert message in capsys.readouterr().err


def start(words: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = [sys.executable, "-m", "memory_mosaics.cli", *words]
    return subprocess.Popen(process, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def interrupt(process: subprocess.Popen[str]) -> str:
    """Ctrl-C; what the process says when it has noticed."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    return process.stderr.readline()


def test_ctrl_c_takes_in_what_is_under_way(server, tmp_path):
    server.through = 3
    process = start(command(server, tmp_path, "--concurrency", "3", count=60))
    until(lambda: sum(server.asked.values()) == 6)
    assert "stopping after the 3 answers in flight" in interrupt(process)
    server.release.set()
    errors, error = process.communicate(timeout=HANG)
    assert process.returncode == 130
    assert "Traceback" not in error
    assert "stopped: " in errors
    assert "the same command resumes" in errors
    assert len(indices(tmp_path)) == sum(server.asked.values()) == 6, "every answer that was asked for is there"


def test_the_second_ctrl_c_drops_it(server, tmp_path):
    server.through = 0
    process = start(command(server, tmp_path, count=60))
    until(lambda: sum(server.asked.values()) == 8)
    assert "stopping after the 8 answers in flight" in interrupt(process)
    process.send_signal(signal.SIGINT)
    errors, error = process.communicate(timeout=HANG)
    assert process.returncode == 130, error
    assert "stopped: 0 of 60 stories" in errors


def test_killed_it_neither_loses_nor_repeats_an_answer(server, tmp_path):
    count, concurrency = 40, 4
    words = command(server, tmp_path, "--concurrency", str(concurrency), count=count)
    kept: list[int] = []
    for _ in range(2):
        already = sum(server.asked.values())
        server.through, server.release = already + 10, threading.Event()
        process = start(words)
        until(lambda already=already: sum(server.asked.values()) == already + 10 + concurrency)
        process.kill()
        process.communicate()
        server.release.set()
        until(lambda: server.at_once == 0)
        with (tmp_path / "stories.journal").open("ab") as journal:
            journal.write(b'{"index": 39, "text": "Once up')  # as a kill in the middle of a line leaves it
        now = indices(tmp_path)
        assert now[: len(kept)] == kept, "nothing that was there is lost"
        assert len(now) == len(kept) + 10, "all that was answered is there"
        kept = now
        asked_before = Counter(server.asked)
    assert main(words) == 0
    found = indices(tmp_path)
    assert sorted(found) == list(range(count))
    assert len(found) == len(set(found))
    again = server.asked - asked_before
    assert sum(again.values()) == count - len(kept), "what is on the disk is not asked again"
    assert sum(server.asked.values()) == count + 2 * concurrency, "only what was under way is asked once more"


def test_all_requests_respect_retry_after(server):
    """A request that comes while the server asks another one to wait is not sent before that time."""
    times: list[float] = []

    def refuse_the_first(prompt: str) -> str | None:
        times.append(time.monotonic())
        return "429" if len(times) == 1 else None

    async def ask_two() -> None:
        options = ModelOptions(server=server.address, model="teller", concurrency=2, backoff=0.01)
        async with aclosing(ServerClient(options, asyncio.Event())) as client:
            requests = [story_request(index, seed=0, lists=default_lists()) for index in range(2)]
            first = asyncio.create_task(client.ask(requests[0]))
            while not client.paused_until:
                await asyncio.sleep(0.001)
            await asyncio.gather(first, client.ask(requests[1]))

    server.wrong = refuse_the_first
    asyncio.run(ask_two())
    assert len(times) == 3
    assert times[1] - times[0] >= float(server.retry_after)


def test_a_request_is_postponed_while_the_server_serves_others(server, tmp_path, monkeypatch, capsys):
    """It is not a failed attempt, even without retries; fewer are in flight then, and more again with each answer."""
    limits: list[float] = []
    keys: list[str] = []
    once = ServerClient._attempt

    async def attempt(client, *given):
        keys.append(given[-1])
        try:
            return await once(client, *given)
        finally:
            limits.append(client.limit)

    monkeypatch.setattr(ServerClient, "_attempt", attempt)
    server.capacity, server.retry_after, server.gather = 3, "0.01", 2
    server.wrong = lambda prompt: time.sleep(0.05)
    assert main(command(server, tmp_path, "--concurrency", "8", "--retries", "0", count=20)) == 0
    assert sorted(indices(tmp_path)) == list(range(20))
    assert min(limits) <= 4
    assert limits[-1] > min(limits)
    assert len(keys) > 20
    assert len({*keys}) == len(keys), "a server that keeps answers by their key would repeat its 429"
    assert "retries" in capsys.readouterr().out


def test_backoff_stays_finite_after_a_thousand_failures(slept):
    async def fail() -> None:
        raise TransientError("busy")

    async def retry() -> None:
        options = ModelOptions(server="http://localhost:1", model="teller")
        async with aclosing(ServerClient(options, asyncio.Event())) as client:
            await client.with_retries(fail, 1100)

    with pytest.raises(RetriesExhausted, match=r"busy \(1101 tries\)"):
        asyncio.run(retry())
    assert max(slept) <= MAX_BACKOFF


def test_a_list_of_models_without_end_is_one_line(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(clients, "LIST_LIMIT", 10)
    assert main(command(server, tmp_path)) == 2
    assert "/models: a list of models of more than 10 bytes (3 tries)\n" in capsys.readouterr().err
