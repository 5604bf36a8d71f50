"""The command, and `show` for notebooks."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("fastapi")

from memory_mosaics import checkpoint
from memory_mosaics.apps import explorer
from memory_mosaics.apps.explorer import show
from memory_mosaics.apps.explorer.explorer import PAGE_TOKENS
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from waiting import HANG

from .conftest import TEXT


def saved(trained, folder: Path) -> Path:
    run = checkpoint.save(trained.model, folder)
    trained.tokenizer.save(run)
    return run


@contextmanager
def served_by_the_command(run: Path, *python: str):
    """The process and its port."""
    python = python or ("-m", "memory_mosaics.cli")
    words = [sys.executable, *python, "explore", str(run), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = None
            while not found:
                line = server.stdout.readline()
                assert line, "it has ended"
                found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            yield server, int(found[1])
        finally:
            server.kill()


def test_the_command_names_the_mistake(mosaic, capsys, tmp_path, monkeypatch):
    run = saved(mosaic, tmp_path / "run")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert main(["explore", str(run), "--port", str(port)]) == 2
        message = "Address already in use; choose another --port, or 0 for a free one"
        assert f"cannot listen at 127.0.0.1, port {port}: {message}" in capsys.readouterr().err
    monkeypatch.setattr(explorer, "find_spec", lambda name: None)
    assert main(["explore", str(run)]) == 2
    assert "pip install 'memory-mosaics[explore]'" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(mosaic, tmp_path):
    run = saved(mosaic, tmp_path / "run")
    with served_by_the_command(run) as (server, port):
        with closing(HTTPConnection("127.0.0.1", port, timeout=HANG)) as line:
            line.request("GET", "/")
            assert line.getresponse().status == 200
        server.send_signal(signal.SIGINT)
        _, wrong = server.communicate(timeout=HANG)
    assert (server.returncode, wrong) == (0, "")


# Says when it has read one chunk of tokens, and reads the next when the explorer has been told to stop.
ONE_CHUNK = """
import sys, time
from memory_mosaics.cli import main
from memory_mosaics.apps.explorer.reading import InstrumentedModel
from memory_mosaics.apps.server import Server
read = InstrumentedModel.read
def reported(engine, tokens, state, changes):
    while state is not None and not engine.stopped:
        time.sleep(0.01)
    answer = read(engine, tokens, state, changes)
    print("read", len(tokens), flush=True)
    return answer
run = Server.run_until_interrupted
def run_reported(server):  # what is read before is the explorer's own
    InstrumentedModel.read = reported
    run(server)
Server.run_until_interrupted = run_reported
sys.exit(main(sys.argv[1:]))
"""


def test_an_interrupted_command_does_not_read_to_the_end(mosaic, tmp_path):
    """Of 4,000 tokens it has read 64."""
    run = saved(mosaic, tmp_path / "run")
    answers = []

    def ask(port: int) -> None:
        body = json.dumps({"session": "a", "model": 0, "text": "qx" * 2000})
        with closing(HTTPConnection("127.0.0.1", port, timeout=HANG)) as line:
            line.request("POST", "/api/read", body, {"Content-Type": "application/json"})
            answers.append(line.getresponse().read())

    with served_by_the_command(run, "-c", ONE_CHUNK) as (server, port):
        asking = Thread(target=ask, args=[port])
        asking.start()
        assert server.stdout is not None
        assert server.stdout.readline() == "read 64\n"
        assert not answers, "it is at work"
        server.send_signal(signal.SIGINT)
        errors, wrong = server.communicate(timeout=HANG)
        asking.join()
    assert (server.returncode, errors.strip(), wrong) == (0, "", "")
    assert b"the explorer has been stopped" in answers[0]


def test_a_folder_of_runs_is_distinguished_from_a_run(mosaic, capsys, tmp_path):
    for name in ("mosaic", "twin"):
        saved(mosaic, tmp_path / "demo" / "language" / "runs" / name / "step-00000010")
    runs = tmp_path / "demo" / "language" / "runs"
    for folder in (tmp_path / "demo", runs):
        assert main(["explore", str(folder)]) == 2
        message = f"{folder} is a folder of runs; name one of them, such as {runs / 'mosaic'} or {runs / 'twin'}\n"
        assert capsys.readouterr().err == f"mosaics: {message}"
    (tmp_path / "empty").mkdir()
    assert main(["explore", str(tmp_path / "empty")]) == 2
    assert "is not a checkpoint folder" in capsys.readouterr().err


def test_the_speed_in_the_guide_is_the_one_measured():
    docs = Path(__file__).parents[3] / "docs"
    guide, measured = (docs / "explorer.md").read_text(), json.loads((docs / "explorer_speed.json").read_text())
    for row in measured["typed"].values():
        assert re.search(rf"\| {row['read_again']}(, all)? \| {row['milliseconds']} \| {row['worst']} \|", guide)
    assert f"one token: {measured['hover']} milliseconds" in guide


def test_show_takes_models_in_many_forms_and_names_what_is_wrong(mosaic, rotary):
    view = show(mosaic.model, TEXT, tokenizer=mosaic.tokenizer, position=-1)
    assert f'"look":{{"position":{len(mosaic.tokenizer.encode(TEXT)) - 1},' in view.html
    assert show([mosaic, rotary], TEXT, memory=(0, "channel", 1)).html, "the twin has none there"
    long = show([mosaic, rotary], TEXT * 30, memory=(0, "channel", 1)).html
    assert '"0.channel.1"' in long
    assert '"1.channel.1"' not in long, "too many to hold"
    for wrong in (
        lambda: show(mosaic.model, TEXT),
        lambda: show([mosaic] * 3, TEXT),
        lambda: show(mosaic, ""),
        lambda: show(mosaic, TEXT, memory=(9, "sequence", 0)),
        lambda: show("nowhere", TEXT),
        lambda: show(mosaic, TEXT, position=1000),
        lambda: show(mosaic, TEXT, position=-1000),
    ):
        with pytest.raises(UserError):
            wrong()


def test_show_counts_positions_in_the_whole_text(mosaic, of_bytes):
    """Not in a page; and the second model looks at the same letters, whatever its tokens."""
    text = TEXT * 30
    count = len(mosaic.tokenizer.encode(text))
    assert count > PAGE_TOKENS
    view = show([mosaic, of_bytes], text, position=-1)
    last, letters = (f'"look":{{"position":{at},' for at in (count - 1, len(text) - 1))
    assert last in view.html
    assert letters in view.html
    assert f'"look":{{"position":{PAGE_TOKENS + 1},' in show(mosaic, text, position=PAGE_TOKENS + 1).html
