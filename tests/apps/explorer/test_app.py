"""What the server answers."""

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")

from memory_mosaics import Sampler, generate, inspection
from memory_mosaics.apps.explorer import moons, page
from memory_mosaics.apps.explorer.explorer import MAX_CHARACTERS, PAGE_TOKENS, SESSIONS
from memory_mosaics.config import MAX_SEED

from .conftest import TEXT, Served, reading, send


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
    assert again["recomputed"] < again["count"] or again["count"] <= 64


def test_lambda_and_beta_are_those_of_inspect(mosaic, gated, rotary):
    """Constant ones in the description of a model, others at each token."""
    server = Served([mosaic, gated, rotary])
    try:
        for number, loaded in enumerate((mosaic, gated, rotary)):
            layers = server.explorer.description["models"][number]["layers"]
            for position in (1, 7):
                _, found, _ = send(server, body=reading(model=number, look={"position": position}))
                wanted = inspection.inspect_position(
                    loaded.model, torch.tensor(loaded.tokenizer.encode(TEXT)), position=position
                )
                open_layers = [layer for layer in layers if "closed" not in layer]
                for layer, here, each in zip(open_layers, found["look"]["overview"], wanted, strict=False):
                    shown = {name: layer.get(name) or here.get(name) for name in ("lambda", "beta")}
                    assert shown["beta"] == pytest.approx(each.sharpness.tolist(), rel=1e-3)
                    if np.isnan(each.decay).all():
                        assert shown["lambda"] is None
                    else:
                        assert shown["lambda"] == pytest.approx(each.decay.tolist(), rel=1e-3)
                changing = {name for layer in layers for name in layer["per_token"]}
                assert changing - {"contribution", "effective"} == ({"lambda", "beta"} if loaded is gated else set())
    finally:
        server.stop()


def test_a_text_is_continued_by_what_is_expected(served, mosaic):
    status, found, _ = send(served, path="/api/continue", body=reading(length=5))
    tokens = mosaic.tokenizer.encode(TEXT)
    (wanted,) = generate(mosaic.model, [torch.tensor(tokens)], 5, sampler=Sampler(temperature=0.0))
    assert (status, found["text"]) == (200, mosaic.tokenizer.decode(wanted.tolist()).rstrip("\ufffd"))
    one = mosaic.tokenizer.encode(" kite")[0]
    _, found, _ = send(served, path="/api/continue", body=reading(length=1, token=one))
    assert found["text"] == mosaic.tokenizer.decode([one])
    for wrong, message in (({"length": 0}, "from 1 to 64"), ({"text": ""}, "empty"), ({"token": 10**6}, "no token")):
        status, found, _ = send(served, path="/api/continue", body=reading(**wrong))
        assert (status, message in found["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n\n", "😀👩‍👩‍👧", "\x00\x01\x7f\u202e", "¡Hola! 你好", "a" * MAX_CHARACTERS]
)
def test_any_text_gets_an_answer(text, served):
    status, found, _ = send(served, body=reading(text, session="any"))
    if status == 200:
        assert found["count"] > 0 or text == ""
    else:
        assert (status, "tokens" in found["error"]["message"]) == (400, True)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (reading("a" * 100_000), 400, "the text has 100,000 characters; at most 20,000 are read"),
        (reading("word " * 3999), 400, "mosaic reads at most 4,096 here"),
        (reading(model=7), 400, "there is no model 7"),
        (reading(edits=[{"block": 9, "kind": "sequence", "head": 0}]), 400, "no sequence memory 0 in block 9"),
        (reading(edits=[{"block": 0, "kind": "sequence", "head": 0}] * 65), 400, "65 edits are too many"),
        (reading(edits=[{"block": 0, "kind": "channel", "head": 0, "pair": 0, "text": "a"}]), 400, "only pairs of"),
        (reading(look={"position": 0, "memory": [0, "sequence", 99]}), 400, "no sequence memory 99 in block 0"),
        (reading(edits=[{"block": 0, "kind": "both", "head": 0}]), 400, "edits.0.kind"),
        (reading(surprise=1), 400, "unknown field 'surprise'"),
        ({"model": 0}, 400, "text: Field required"),
        ([], 400, "Input should be"),
        (reading("\ud83d"), 400, "the text contains a lone surrogate, \\ud83d"),
    ],
)
def test_bad_requests_get_one_line(body, status, message, served):
    found, answer, _ = send(served, body=body)
    assert (found, message in answer["error"]["message"]) == (status, True), answer
    assert "\n" not in answer["error"]["message"]


def test_sessions_are_forgotten_and_cost_nothing_but_time(served):
    for number in range(2 * SESSIONS + 3):
        assert send(served, body=reading(session=f"page {number}"))[0] == 200
    assert len(served.explorer.sessions) <= SESSIONS * 2
    body = reading(session="never seen", look={"position": 3, "memory": [0, "sequence", 1]})
    status, found, _ = send(served, path="/api/look", body=body)
    assert status == 200
    assert found["memory"]["pairs"]


def look(served, text=TEXT, **where):
    return send(served, path="/api/look", body=reading(text, look=where))[:2]


def test_a_position_outside_the_text_is_an_error(served):
    for position in (-1, 10_000):
        status, answer = look(served, position=position)
        assert (status, "is outside a text of" in answer["error"]["message"]) == (400, True)
    assert look(served, position=0, target=10**6)[0] == 400
    assert look(served, characters=len(TEXT))[1] == look(served)[1], "the last token"
    assert look(served, characters=1)[1]["position"] == 0


def test_contributions_are_to_the_token_expected_most_or_another(served):
    _, found, _ = send(served, body=reading())
    text, _, best = found["best"][3][0]
    _, plain = look(served, position=3)
    assert plain["target"] == [text, best]
    assert look(served, position=3, target=best)[1] == plain
    _, other = look(served, position=3, target=" kite!")
    assert other["target"][0] == " kite", "of a text its first token"
    assert other["overview"][0]["effective"] == plain["overview"][0]["effective"]
    assert other["overview"] != plain["overview"]
    assert look(served, position=3, target="\ud83d")[0] == 400


def test_the_same_letters_are_found_in_any_tokens(mosaic, of_bytes):
    server = Served([mosaic, of_bytes])
    text = TEXT * 30 + "😀."
    _, found, _ = send(server, body=reading(text, characters=1500, look={"characters": 1500}))
    _, other, _ = send(server, body=reading(text, model=1, characters=1500, look={"characters": 1500}))
    server.stop()
    ends = [found["offset"] + len("".join(found["tokens"][: i + 1])) for i in range(len(found["tokens"]))]
    at = found["look"]["position"] - found["first"]
    assert ends[at - 1] < 1500 <= ends[at]
    assert (other["look"]["position"], other["page"]) == (1499, 1499 // PAGE_TOKENS)


def test_parts_of_letters_have_names_of_their_own(of_bytes):
    server = Served([of_bytes])
    _, found, _ = send(server, body=reading("aש"))
    server.stop()
    assert (found["tokens"], found["ids"], found["names"]) == (["a", "", "ש"], [0x61, 0xD7, 0xA9], {"1": "<D7>"})
    halves = [one for row in found["best"] for one in row if 128 <= one[2] < 256]
    assert halves
    assert all(text == f"<{index:02X}>" for text, _, index in halves)


def test_a_page_of_other_models_must_be_reloaded(served, mosaic, rotary):
    status, answer, _ = send(served, body=reading(), headers={"X-Identity": "another"})
    assert (status, answer["error"]["message"]) == (409, "other models are served here now; reload the page")
    own = served.explorer.description["identity"]
    assert send(served, body=reading(), headers={"X-Identity": own})[0] == 200
    again, fewer = Served([mosaic, rotary]), Served([mosaic])
    assert again.explorer.description["identity"] == own
    assert fewer.explorer.description["identity"] != own
    again.stop()
    fewer.stop()


def test_long_texts_come_in_pages(served):
    text = "Once there was a girl named Lily. " * 80
    _, first, _ = send(served, body=reading(text, page=0))
    _, last, _ = send(served, body=reading(text, page=99))
    assert first["pages"] > 1
    assert (first["first"], first["last"]) == (0, PAGE_TOKENS)
    assert (last["page"], last["last"]) == (first["pages"] - 1, first["count"])
    assert last["recomputed"] == 0
    assert last["offset"] == len(text) - len("".join(last["tokens"]))
    assert None not in last["losses"]


def test_an_export_holds_everything_and_asks_nobody(served):
    pane = reading(session="export", page=0, look={"memory": [0, "sequence", 1]})
    status, html, _ = send(
        served, path="/api/export", body={"panes": [pane], "moons": None, "start": {"view": "explore"}}
    )
    assert status == 200
    assert "Content-Security-Policy" in html
    assert '"overview"' in html
    assert send(served, path="/api/export", body={"panes": [pane | {"text": ""}]})[0] == 400
    assert send(served, path="/api/export", body={"panes": [], "start": {"view": "\ud83d"}})[0] == 400


def test_the_moons(served):
    status, found, _ = send(served, path="/api/moons", body={"periods": [44, 66, 88]})
    assert status == 200
    one, three = (found["astronomers"][heads]["error"] for heads in ("1", "3"))
    assert (found["slowest"], found["together"]) == (88, 264)
    assert max(three[100:240]) < 0.15, "a memory a moon is right once the slowest has returned"
    assert min(one[100:240]) > 0.5, "one memory has to wait for all"
    assert max(one[280:]) < 0.3
    wrong = [{"periods": periods} for periods in ([1, 2, 3], [44, 66], [44, 66, 9999], [])]
    for body in (*wrong, {"periods": [44, 66, 88], "seed": -1}, {"periods": [44, 66, 88], "seed": 10**20}):
        status, answer, _ = send(served, path="/api/moons", body=body)
        assert (status, answer["error"]["param"].split(".")[0]) == (400, "seed" if "seed" in body else "periods")
    assert answer["error"]["message"] == f"seed: Input should be less than or equal to {MAX_SEED}, not {10**20}"


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
