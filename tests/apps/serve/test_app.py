"""What comes over the wire, well formed or not, and what a server answers."""

import json
import socket
import threading
from functools import partial

import pytest
import torch

from apps.conftest import asked_by_hand, in_a_thread, send
from memory_mosaics.cli import main
from memory_mosaics.text.tokenizer import byte_tokenizer
from waiting import HANG, until

pytest.importorskip("fastapi", reason="pip install 'memory-mosaics[serve]'")
pytest.importorskip("uvicorn", reason="pip install 'memory-mosaics[serve]'")

from memory_mosaics.apps.serve.app import TextStream
from memory_mosaics.apps.serve.engine import TokenLogprobs


def test_the_same_seed_as_mosaics_generate(ask, story_run, capsys):
    assert (
        main(["generate", str(story_run), "--prompt", "Once", "--length", "20", "--seed", "5", "--device", "cpu"]) == 0
    )
    _, _, answer = ask("/v1/completions", {"prompt": "Once", "max_tokens": 20, "seed": 5, "temperature": 0.8})
    assert capsys.readouterr().out.endswith("Once" + answer["choices"][0]["text"] + "\n")


def test_an_empty_prompt_starts_a_text(ask, server):
    end = server[0].loaded.tokenizer.end_of_text
    texts = [
        ask("/v1/completions", {"temperature": 0, **prompt})[2]["choices"][0]["text"]
        for prompt in ({"prompt": ""}, {"prompt": [end]}, {})
    ]
    assert texts[0] == texts[1] == texts[2]
    assert ask("/health")[0] == 200, "and the engine runs on"


def test_log_probabilities(ask):
    asked = {"prompt": "Once there", "max_tokens": 6, "logprobs": 2, "temperature": 0, "stop": ["zz"]}
    _, _, answer = ask("/v1/completions", asked)
    text, logs = answer["choices"][0]["text"], answer["choices"][0]["logprobs"]
    assert "".join(logs["tokens"]) == text
    assert [text[at:][: len(token)] for at, token in zip(logs["text_offset"], logs["tokens"], strict=True)] == logs[
        "tokens"
    ]
    assert all(log <= 0 for log in logs["token_logprobs"])


def test_echo_scores_the_prompt_as_the_model_does(ask, server):
    """What lm-evaluation-harness asks of local-completions, and with no token to generate."""
    loaded = server[0].loaded
    prompt = loaded.tokenizer.encode("Once there was a kite.")
    asked = {"prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0}
    wanted = loaded.model(torch.tensor([prompt]))[0][0].log_softmax(-1)[range(len(prompt) - 1), prompt[1:]].tolist()
    for length in (0, 1):
        _, _, answer = ask("/v1/completions", asked | {"max_tokens": length})
        (choice,), logs = answer["choices"], answer["choices"][0]["logprobs"]
        assert choice["text"].startswith("Once there was a kite.")
        assert (logs["token_logprobs"][0], logs["top_logprobs"][0]) == (None, None)
        assert logs["token_logprobs"][1 : len(prompt)] == pytest.approx(wanted, abs=1e-4)
        assert len(logs["tokens"]) == len(prompt) + length
        assert all(
            choice["text"][at:].startswith(token) for at, token in zip(logs["text_offset"], logs["tokens"], strict=True)
        )
        assert answer["usage"]["completion_tokens"] == length
    _, _, stream = ask("/v1/completions", asked | {"max_tokens": 2, "stream": True})
    assert json.loads(stream.split("\n\n")[0].removeprefix("data: "))["choices"][0]["text"] == "Once there was a kite."
    assert ask("/v1/completions", asked | {"prompt": "a", "max_tokens": 0})[2]["choices"][0]["text"] == "a"


def test_bias_penalties_and_min_p_decide_what_is_sampled(ask, server):
    first, second = (str(server[0].loaded.tokenizer.encode(letter)[0]) for letter in "AB")

    def tokens(**fields):
        _, _, answer = ask("/v1/completions", {"prompt": "Once", "max_tokens": 8, "logprobs": 0, "seed": 1} | fields)
        return answer["choices"][0]["logprobs"]["tokens"]

    assert set(tokens(logit_bias={first: 100})) == {"A"}
    banned = {str(token): -100 for token in range(300) if str(token) != second}
    assert set(tokens(logit_bias=banned)) == {"B"}
    biases = {"logit_bias": {first: 100, second: 90}, "temperature": 0}
    assert set(tokens(**biases)) == {"A"}
    assert set(tokens(**biases, presence_penalty=2)) == {"A"}, "once, and not enough"
    assert set(tokens(**biases, frequency_penalty=2)) == {"A", "B"}, "each time"
    assert tokens(min_p=1.0) == tokens(temperature=0), "only the most probable"


def test_several_models_metrics_log_and_docs(story_run, tmp_path, monkeypatch, capsys):
    def visit(server):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [server.listening]})
        thread.start()
        until(lambda: server.started)
        ask = partial(send, server.listening.getsockname())
        for name, status in (("one", 200), ("two", 200), ("teller", 404), (None, 200)):
            body = {"prompt": "Once", "max_tokens": 3, "temperature": 0, "model": name, "logit_bias": {"65": 100}}
            assert ask("/v1/completions", body)[0] == status
        assert [model["id"] for model in ask("/v1/models")[2]["data"]] == ["one", "two"]
        assert ask("/health")[2]["models"] == ["one", "two"]
        assert 'mosaics_requests_total{model="one"} 2\n' in ask("/metrics")[2]
        assert 'mosaics_completion_tokens_total{model="two"} 3\n' in ask("/metrics")[2]
        page = ask("/docs")[2]
        assert all(word in page for word in ("/v1/chat/completions", "min_p", "from -2 to 2", "<code>two</code>"))
        assert "curl -s http://127.0.0.1:" in page, "a command that works as it is"
        assert "src=" not in page, "nothing from other hosts"
        assert [ask(path)[0] for path in ("/", "/v1")] == [307, 307], "the address in a browser leads to the page"
        server.should_exit = True
        thread.join()

    monkeypatch.setattr("memory_mosaics.apps.server.Server.run_until_interrupted", visit)
    log, twice = tmp_path / "requests.jsonl", [str(story_run)] * 2
    assert main(["serve", *twice, "--name", "one", "two", "--port", "0", "--log", str(log)]) == 0
    assert "requests answered: 3" in capsys.readouterr().out
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["status"] for line in lines[:4]] == [200, 200, 404, 200]
    assert lines[1].items() >= {"path": "/v1/completions", "model": "two", "completion_tokens": 3}.items()
    assert main(["serve", *twice, "--name", "one"]) == 2
    assert "a name of its own for each of the 2 models, not 1 name" in capsys.readouterr().err
    assert main(["serve", *twice, "--port", "0"]) == 2
    assert "is named twice" in capsys.readouterr().err


def test_a_stream_ends_with_done(ask):
    status, _, text = ask("/v1/completions", {"prompt": "Once", "stream": True, "n": 2, "max_tokens": 4})
    assert status == 200
    events = [line.removeprefix("data: ") for line in text.strip().split("\n\n")]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert {choice["index"] for choice in choices if choice["finish_reason"]} == {0, 1}


def test_a_stream_has_no_usage_unless_requested(ask):
    assert "usage" not in ask("/v1/completions", {"prompt": "Once", "stream": True, "max_tokens": 2})[2]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{broken", "the body is not JSON: Expecting property name enclosed in double quotes"),
        (b"", "the body is empty; it must be a JSON object"),
        (b"[]", "the body must be a JSON object"),
        (b'"\xff"', "There was an error parsing the body"),
        (b"[" * 10_000, "There was an error parsing the body"),
        ({"prompt": "a\ud83d"}, "the text contains a lone surrogate, \\ud83d"),
        (b'{"prompt": "a", "temperature": NaN}', "temperature: Input should be a finite number"),
        ({"prompt": []}, "prompt: must be a string, a list of token ids, or a list of these"),
        ({"prompt": [True]}, "prompt: must be a string, a list of token ids, or a list of these"),
        ({"prompt": "a", "n": 129}, "n: Input should be less than or equal to 128, not 129"),
        ({"prompt": ["a"] * 20, "n": 10}, "a request may ask for at most 128 texts, not 200; send several requests"),
        ({"prompt": "a", "stream": "yes"}, "stream: Input should be a valid boolean"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options needs stream: true"),
        ({"prompt": "a", "stream_options": {"x": 1}}, "unknown field 'stream_options.x'"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not supported by this server"),
    ],
)
def test_a_malformed_completion(ask, body, message):
    status, _, answer = ask("/v1/completions", body)
    assert status == 400
    assert answer["error"]["message"] == message
    assert answer["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages: List should have at least 1 item after validation, not 0"),
        ([3], "messages.0: Input should be a valid dictionary or object to extract fields from"),
        ([{"content": "a"}], "messages.0.role: Field required"),
        ([{"role": "user", "content": [{"type": "image_url"}]}],
         "messages.0.content: must be a string or a list of text parts"),
    ],
)  # fmt: skip
def test_a_malformed_chat(ask, messages, message):
    status, _, answer = ask("/v1/chat/completions", {"messages": messages})
    assert (status, answer["error"]["message"]) == (400, message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_logprobs": 2}, "top_logprobs needs logprobs: true"),
        ({"max_tokens": 2, "max_completion_tokens": 3},
         "max_tokens and max_completion_tokens are the same; send one of them"),
    ],
)  # fmt: skip
def test_fields_of_a_chat_that_would_be_ignored(ask, fields, message):
    status, _, answer = ask("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]} | fields)
    assert (status, answer["error"]["message"]) == (400, message)


def test_fields_that_ask_for_nothing_are_no_mistake(ask):
    asked = {"prompt": "a", "echo": False, "best_of": 1, "presence_penalty": 0.0, "user": "me", "top_p": None}
    assert ask("/v1/completions", asked)[0] == 200


def test_parts_of_a_message(ask):
    whole = {"messages": [{"role": "user", "content": "Once there"}], "temperature": 0, "max_tokens": 5}
    parts = [{"type": "text", "text": "Once "}, {"type": "text", "text": "there"}]
    texts = [
        ask("/v1/chat/completions", whole | {"messages": [{"role": "user", "content": content}]})[2]["choices"][0]
        for content in ("Once there", parts)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("path", "status"), [("/nowhere", 404), ("/v1/models/other", 404), ("/v1/completions", 405), ("/health", 200)]
)
def test_other_ways(ask, path, status):
    found, _, answer = ask(path)
    assert found == status
    assert status == 200 or answer["error"]["message"]


def test_too_many_texts_are_not_read(server, ask, monkeypatch):
    monkeypatch.setattr(server[0], "encode", None)
    assert ask("/v1/completions", {"prompt": ["a"] * 20, "n": 10})[0] == 400


def test_who_goes_away_is_not_waited_for(server, endless, monkeypatch):
    monkeypatch.setattr("memory_mosaics.apps.serve.app.DISCONNECT_POLL_SECONDS", 0.1)
    service, ask = server
    for stream in (True, False):
        with asked_by_hand(ask.address, {"prompt": "a", "max_tokens": 390, "stream": stream, "n": 32}):
            until(lambda: service.engine.unfinished == 1)
            (rows,) = service.engine.requests
        until(lambda: service.engine.unfinished == 0)
        assert sum(row.on_token.__self__.count for row in rows) < 32 * 390


def test_nothing_is_decoded_for_a_client_that_left_while_its_prompt_was_read(story_run, monkeypatch):
    with in_a_thread(story_run) as (service, ask):
        encode, reading, submitted = service.encode, threading.Event(), []

        def slow_encode(body):
            reading.set()
            until(lambda: not ask.server.server_state.connections)
            return encode(body)

        monkeypatch.setattr(service, "encode", slow_encode)
        monkeypatch.setattr(service.engine, "submit", submitted.append)
        for stream in (True, False):
            reading.clear()
            with asked_by_hand(ask.address, {"prompt": "a", "stream": stream}):
                assert reading.wait(HANG)
            until(lambda: not ask.server.guard.active)
        assert not submitted


def test_a_defect_is_a_server_error(story_run):
    with in_a_thread(story_run) as (service, ask):
        service.engine.vocabulary = "none"  # no number, as if somebody had written it so
        status, _, answer = ask("/v1/completions", {"prompt": "a"})
        assert (status, answer["error"]["type"]) == (500, "server_error")
        assert "the server failed" in ask("/v1/completions", {"prompt": "a", "stream": True})[2]


def test_a_template_of_the_model(story_run, tmp_path):
    from memory_mosaics.apps.serve.app import load_chat_template, render_chat
    from memory_mosaics.apps.serve.schemas import ChatMessage
    from memory_mosaics.errors import UserError

    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    )
    template = load_chat_template(tmp_path)
    assert render_chat(template, [ChatMessage(role="user", content="Hello")]) == "user: Hello\nassistant:"
    with pytest.raises(UserError, match="no tools"):
        render_chat(template, [ChatMessage(role="tool", content="4")])
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(UserError, match="is not a valid chat template"):
        load_chat_template(tmp_path)


def test_a_port_that_is_taken(story_run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", str(story_run), "--port", str(port), "--device", "cpu"]) == 2
    message = (
        f"mosaics: cannot listen at 127.0.0.1, port {port}: Address already in use; choose another --port or --host\n"
    )
    assert capsys.readouterr().err == message


def test_missing_libraries_are_named(story_run, monkeypatch, capsys):
    monkeypatch.setattr("memory_mosaics.apps.serve.find_spec", lambda name: None)
    assert main(["serve", str(story_run), "--device", "cpu"]) == 2
    assert "pip install 'memory-mosaics[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a..b", "a" * 70, "."])
def test_a_host_that_cannot_be(story_run, capsys, host):
    assert main(["serve", str(story_run), "--host", host, "--device", "cpu"]) == 2
    message = f"mosaics: cannot listen at {host[:60]!r}: not a host name; choose another --host\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("key", ["two words", "a\tb", "a\x7fb", "clé"])
def test_a_key_that_nobody_can_send(story_run, monkeypatch, capsys, key):
    monkeypatch.setenv("MOSAICS_API_KEY", key)
    assert main(["serve", str(story_run), "--device", "cpu"]) == 2
    message = "mosaics: the API key has characters that clients cannot send; use printable ASCII without spaces\n"
    assert capsys.readouterr().err == message


def stream_text(text: bytes, *, length: int = 100, stops=(), end: bool = True, logs: bool = False):
    """The chunks of a text that arrives byte by byte."""
    chunks = []
    stream = TextStream(byte_tokenizer(), length, stops, chunks.append)
    for token in [*text, *([256] if end else [])]:
        if not stream.on_token(token, TokenLogprobs(-1.0, [(token, -1.0)]) if logs else None):
            break
    return chunks


def test_each_character_is_emitted_when_it_is_complete():
    chunks = stream_text("a café.".encode())
    assert [chunk.text for chunk in chunks] == ["a", " ", "c", "a", "f", "é", ".", ""]
    assert [chunk.finish_reason for chunk in chunks] == [None] * 7 + ["stop"]


def test_the_length_may_end_within_a_character():
    assert [(chunk.text, chunk.finish_reason) for chunk in stream_text("é".encode(), length=1)] == [
        ("\ufffd", "length")
    ]


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
    chunks = stream_text(text.encode(), stops=stops)
    assert "".join(chunk.text for chunk in chunks) == expected
    assert chunks[-1].finish_reason == "stop"


def test_what_cannot_become_a_stop_sequence_does_not_wait():
    chunks = stream_text(b"ab stx", stops=["stop"], end=False)
    assert [chunk.text for chunk in chunks] == ["a", "b", " ", "stx"]


def test_tokens_are_emitted_with_their_text():
    chunks = stream_text(b"ab stop", stops=["stop"], logs=True)
    tokens = [token for chunk in chunks for token in chunk.tokens]
    assert "".join(token.text for token in tokens) == "ab "
    assert [token.offset for token in tokens] == [0, 1, 2]
    assert tokens[0].top == [("a", -1.0)]
