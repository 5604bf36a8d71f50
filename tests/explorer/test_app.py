"""What the server answers, and whom it refuses."""

import json
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("fastapi")

from memory_mosaics import checkpoint
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.explorer import command, moons, page, show
from memory_mosaics.explorer.app import BODY, WAITING
from memory_mosaics.explorer.sessions import CHARACTERS, PAGE, SESSIONS

TEXT = "Once there was a girl named Lily. She had a red kite."


def send(served, method="POST", path="/api/read", body=None, headers=None, raw=None):
    """One request, with exactly these headers beside the usual ones."""
    data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
    usual = {"Content-Type": "application/json"} if data is not None else {}
    with closing(HTTPConnection("127.0.0.1", served.port, timeout=60)) as line:
        line.request(method, path, data, usual | (headers or {}))
        answer = line.getresponse()
        content = answer.read()
    kind = answer.headers.get("content-type", "")
    return answer.status, json.loads(content) if "json" in kind else content.decode(), answer.headers


def reading(text=TEXT, **more):
    return {"session": "test", "model": 0, "text": text, **more}


def test_the_page_is_one_document_under_a_strict_policy(served):
    status, html, headers = send(served, "GET", "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    for foreign in ("http://", "https://", "src=", "@import", "url("):
        assert foreign not in html.replace("http://www.w3.org/", ""), foreign
    assert headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in headers


def test_a_text_is_read(served):
    status, found, _ = send(served, body=reading())
    assert status == 200
    assert "".join(found["tokens"]) == TEXT
    assert len(found["losses"]) == len(found["best"]) == found["count"]
    assert found["edited"] is None
    _, again, _ = send(served, body=reading(TEXT + "!"))
    assert again["again"] < again["count"] or again["count"] <= 64


@pytest.mark.parametrize("text", ["", " ", "\n\n\n", "😀👩‍👩‍👧", "\x00\x01\x7f\u202e", "¡Hola! 你好", "a" * CHARACTERS])
def test_any_text_gets_an_answer(text, served):
    status, found, _ = send(served, body=reading(text, session="any"))
    if status == 200:
        assert found["count"] > 0 or text == ""
    else:
        assert (status, "tokens" in found["error"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (reading("a" * 100_000), 400, "the text has 100,000 characters; at most 20,000 are read"),
        (reading("word " * 3999), 400, "mosaic reads at most 4,096 here"),
        (reading(model=7), 400, "there is no model 7"),
        (reading(edits=[{"block": 9, "kind": "sequence", "head": 0}]), 400, "no sequence memory 0 in block 9"),
        (reading(edits=[{"block": 0, "kind": "sequence", "head": 0}] * 65), 400, "65 edits are too many"),
        (reading(edits=[{"block": 0, "kind": "channel", "head": 0, "place": 0, "text": "a"}]), 400, "only pairs that"),
        (reading(edits=[{"block": 0, "kind": "both", "head": 0}]), 422, "edits.0.kind"),
        (reading(surprise=1), 422, "surprise: Extra inputs are not permitted"),
        ({"text": "a"}, 422, "session: Field required"),
        ([], 422, "Input should be"),
        (reading("\ud83d"), 400, "half a surrogate pair, \\ud83d, at character 0: not a text"),
    ],
)
def test_bad_requests_get_one_line(body, status, told, served):
    found, answer, _ = send(served, body=body)
    assert (found, told in answer["error"]) == (status, True), answer
    assert "\n" not in answer["error"]


def test_bytes_that_are_no_json_get_one_line(served):
    for raw in (b"{", b"\xff\xfe", b"[" * 5000, b""):
        status, answer, _ = send(served, raw=raw)
        assert status in (400, 411, 422), (raw[:5], answer)
        assert "error" in answer


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8642"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "https://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Length": str(BODY + 1)}, 413),
        ({"Content-Length": "many"}, 400),
    ],
    ids=str,
)
def test_others_are_refused(headers, status, served):
    found, answer, sent = send(served, body=reading(), headers=headers)
    assert found == status
    assert "tokens" not in answer
    assert "access-control-allow-origin" not in sent


def test_foreign_names_see_not_even_the_page(served):
    assert send(served, "GET", "/", headers={"Host": "evil.example"})[0] == 403
    assert send(served, "GET", "/", headers={"Host": f"localhost:{served.port}"})[0] == 200


def test_a_preflight_from_elsewhere_is_refused(served):
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    status, _, sent = send(served, "OPTIONS", headers=headers)
    assert status == 403
    assert "access-control-allow-origin" not in sent


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/assets/style.css", "/../../etc/passwd", "/api", "/%2e%2e/"]
)
def test_nothing_else_is_served(path, served):
    assert send(served, "GET", path)[0] == 404


def test_no_more_than_a_few_wait(served):
    """While the models are busy, some requests wait and the others are told so."""
    with served.explorer.lock:
        answers: list[int] = []
        ask = lambda: answers.append(send(served, body=reading())[0])  # noqa: E731
        waiting = [Thread(target=ask) for _ in range(WAITING + 3)]
        for thread in waiting:
            thread.start()
        for _ in range(100):
            if len(answers) >= 3:
                break
            waiting[0].join(timeout=0.1)
        assert answers == [503] * 3
    for thread in waiting:
        thread.join()
    assert sorted(answers) == [200] * WAITING + [503] * 3


def test_sessions_are_forgotten_and_cost_nothing_but_time(served):
    for number in range(2 * SESSIONS + 3):
        assert send(served, body=reading(session=f"page {number}"))[0] == 200
    assert len(served.explorer.sessions) <= SESSIONS * 2
    body = reading(session="never seen", position=3, memory=[0, "sequence", 1])
    status, found, _ = send(served, path="/api/look", body=body)
    assert status == 200
    assert found["memory"]["pairs"]


def test_looking_outside_the_text_is_told(served):
    for position in (-1, 10_000):
        status, answer, _ = send(served, path="/api/look", body=reading(position=position))
        assert (status, "is outside a text of" in answer["error"]) == (400, True)
    assert send(served, path="/api/look", body=reading(position=0, target=10**6))[0] == 400


def test_long_texts_come_in_pages(served):
    text = "Once there was a girl named Lily. " * 80
    _, first, _ = send(served, body=reading(text, page=0))
    _, last, _ = send(served, body=reading(text, page=99))
    assert first["pages"] > 1
    assert (first["first"], first["last"]) == (0, PAGE)
    assert (last["page"], last["last"]) == (first["pages"] - 1, first["count"])
    assert last["again"] == 0
    assert last["offset"] == len(text) - len("".join(last["tokens"]))
    assert None not in last["losses"]


def test_edits_change_the_prediction_and_go_with_their_text(served):
    edits = [
        {"block": 0, "kind": "sequence", "head": 0, "place": None, "text": None},
        {"block": 0, "kind": "sequence", "head": 1, "place": 2, "text": None},
        {"block": 1, "kind": "sequence", "head": 1, "place": 10, "text": "kite"},
    ]
    send(served, body=reading(TEXT, session="edits"))
    _, found, _ = send(served, body=reading(TEXT, session="edits", edits=edits))
    assert (len(found["edits"]), found["dropped"]) == (3, 0)
    assert found["edited"]["losses"] != found["losses"]
    _, found, _ = send(served, body=reading(TEXT[:20] + "xx" + TEXT[22:], session="edits", edits=edits))
    assert [edit["place"] for edit in found["edits"]] == [None, 2], "that whose text has changed is undone"
    assert found["dropped"] == 1
    _, found, _ = send(served, body=reading("On", session="edits", edits=edits))
    assert [edit["place"] for edit in found["edits"]] == [None]


def test_a_token_keeps_the_blank_before_it(served):
    """Whoever writes 'dog' over ' red' means ' dog'."""
    _, found, _ = send(served, body=reading())
    at = found["tokens"].index(" red")
    edits = [{"block": 0, "kind": "sequence", "head": 0, "place": at - 1, "text": "dog"}]
    _, found, _ = send(served, body=reading(edits=edits))
    assert found["edits"][0]["text"].startswith(" d")


def test_an_export_holds_everything_and_asks_nobody(served):
    pane = reading(session="export", page=0, memory=[0, "sequence", 1])
    status, html, _ = send(
        served, path="/api/export", body={"panes": [pane], "sky": None, "start": {"view": "explore"}}
    )
    assert status == 200
    assert "Content-Security-Policy" in html
    assert '"overview"' in html
    assert send(served, path="/api/export", body={"panes": [pane | {"text": ""}]})[0] == 400


def test_the_moons(served):
    status, found, _ = send(served, path="/api/moons", body={"periods": [44, 66, 88]})
    assert status == 200
    one, three = (found["astronomers"][heads]["error"] for heads in ("1", "3"))
    assert (found["slowest"], found["together"]) == (88, 264)
    assert max(three[100:240]) < 0.15, "a memory a moon is right once the slowest has returned"
    assert min(one[100:240]) > 0.5, "one memory has to wait for all"
    assert max(one[280:]) < 0.3
    for periods in ([1, 2, 3], [44, 66], [44, 66, 9999], []):
        status, answer, _ = send(served, path="/api/moons", body={"periods": periods})
        assert (status, "error" in answer) == (400, True)


def test_the_astronomers_are_those_of_the_study():
    assert set(moons.astronomers()) == {1, 3}
    assert all(sum(weight.numel() for weight in net.parameters()) == 54 for net in moons.astronomers().values())


def test_scripts_hold_no_markup_of_their_own():
    """What would end the script or be taken for a place to fill."""
    frame, style, script = page._assets()
    assert "</script" not in script
    assert "</style" not in style
    assert "innerHTML" not in script
    assert all(f"<!--{name}-->" in frame for name in ("POLICY", "STYLE", "SCRIPT", "DATA"))
    assert "\\u003c/script>" in page.build({"record": {"panes": [], "text": "</script>"}})


def test_the_command_says_what_is_wrong(mosaic, capsys, tmp_path, monkeypatch):
    run = checkpoint.save(mosaic.model, tmp_path / "run")
    mosaic.tokenizer.save(run)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        assert main(["explore", str(run), "--port", str(port)]) == 2
        assert f"port {port} cannot be used" in capsys.readouterr().err
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["explore", str(run)]) == 2
    assert "pip install 'memory-mosaics[explore]'" in capsys.readouterr().err


def test_the_command_serves_until_it_is_interrupted(mosaic, tmp_path):
    run = checkpoint.save(mosaic.model, tmp_path / "run")
    mosaic.tokenizer.save(run)
    words = [sys.executable, "-m", "memory_mosaics.cli", "explore", str(run), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            port = int(re.search(r"http://127\.0\.0\.1:(\d+)", said)[1])
            with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as line:
                line.request("GET", "/")
                assert line.getresponse().status == 200
            server.send_signal(signal.SIGINT)
            _, wrong = server.communicate(timeout=60)
        finally:
            server.kill()
    assert (server.returncode, wrong) == (0, "")


def test_the_speed_in_the_guide_is_the_one_measured():
    docs = Path(__file__).parents[2] / "docs"
    guide, measured = (docs / "explorer.md").read_text(), json.loads((docs / "explorer_speed.json").read_text())
    for row in measured["typed"].values():
        assert re.search(rf"\| {row['read_again']}(, all)? \| {row['milliseconds']} \| {row['worst']} \|", guide)
    assert f"one token: {measured['hover']} milliseconds" in guide


def test_show_takes_models_in_many_forms_and_names_what_is_wrong(mosaic, rotary):
    view = show(mosaic.model, TEXT, tokenizer=mosaic.tokenizer, position=-1)
    assert f'"position":{len(mosaic.tokenizer.encode(TEXT)) - 1}' in view.html
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
    ):
        with pytest.raises(UserError):
            wrong()
