"""The official client against a server in a process of its own: what it is promised, it gets."""

import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from apps.conftest import Process
from waiting import HANG

openai = pytest.importorskip("openai", reason="the official client is not installed: pip install openai")
pytest.importorskip("fastapi", reason="pip install 'memory-mosaics[serve]'")
pytest.importorskip("uvicorn", reason="pip install 'memory-mosaics[serve]'")


@pytest.fixture(scope="module")
def server(story_run):
    flags = ("--max_tokens", "300", "--context", "400")
    with Process(story_run, *flags, MOSAICS_API_KEY=" secret ") as server:
        yield server


@pytest.fixture(scope="module")
def address(server):
    return server.address


@pytest.fixture
def client(address):
    with openai.OpenAI(base_url=address, api_key="secret", max_retries=0) as client:
        yield client


def test_completion(client):
    answer = client.completions.create(model="teller", prompt="Once there was", max_tokens=20, seed=1)
    (choice,) = answer.choices
    assert choice.text
    assert choice.finish_reason in ("length", "stop")
    assert answer.usage.completion_tokens <= 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    again = client.completions.create(model="teller", prompt="Once there was", max_tokens=20, seed=1)
    assert again.choices[0].text == choice.text


def test_many_prompts_and_texts(client):
    answer = client.completions.create(model="teller", prompt=["Once", "The dog"], n=3, max_tokens=5, seed=2)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert len({choice.text for choice in answer.choices}) > 1


def test_streaming(client):
    asked = {"model": "teller", "prompt": "Once there was", "max_tokens": 30, "seed": 3}
    whole = client.completions.create(**asked)
    events = list(client.completions.create(stream=True, stream_options={"include_usage": True}, **asked))
    assert "".join(choice.text for event in events for choice in event.choices) == whole.choices[0].text
    assert events[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert events[-1].usage == whole.usage
    assert len(events) > 10


def test_chat(client):
    messages = [{"role": "user", "content": "Once there was a dog."}, {"role": "user", "content": "He"}]
    asked = {"model": "teller", "messages": messages, "max_completion_tokens": 12, "temperature": 0}
    answer = client.chat.completions.create(logprobs=True, top_logprobs=2, **asked)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    assert all(token.logprob == max(top.logprob for top in token.top_logprobs) for token in tokens)  # greedy
    plain = client.completions.create(
        model="teller", prompt="Once there was a dog.\n\nHe", max_tokens=12, temperature=0
    )
    assert plain.choices[0].text == choice.message.content
    pieces = [event.choices[0].delta.content or "" for event in client.chat.completions.create(stream=True, **asked)]
    assert "".join(pieces) == choice.message.content


def test_models_and_health(client):
    assert [model.id for model in client.models.list()] == ["teller"]
    assert client.models.retrieve("teller").owned_by == "memory-mosaics"
    assert client.with_options(api_key="none").get("../health", cast_to=dict)["status"] == "ok"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt-4'; this server has 'teller'"):
        client.completions.create(model="gpt-4", prompt="Once")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"temperature": -1}, "temperature: Input should be greater than or equal to 0"),
        ({"max_tokens": "ten"}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 301}, "max_tokens must be at most 300, not 301"),
        ({"prompt": [1, 999]}, "token 999 is not in the vocabulary of 300 tokens"),
        ({"prompt": {"text": "Once"}}, "prompt: must be a string, a list of token ids, or a list of these"),
        ({"stop": [""]}, "stop: must be a string or a list of at most 16 strings, none of them empty"),
        ({"suffix": "end"}, "suffix is not supported by this server"),
        ({"max_tokens": 0}, "max_tokens may be 0 only with echo"),
        ({"logit_bias": {"the": 1}}, "logit_bias: must have token ids as names and values from -100 to 100"),
        ({"logit_bias": {"999": 1}}, "logit_bias: token 999 is not in the vocabulary of 300 tokens"),
        ({"presence_penalty": 3}, "presence_penalty: Input should be less than or equal to 2, not 3"),
        ({"extra_body": {"speed": 3}}, "unknown field 'speed'"),
    ],
)
def test_bad_request(client, asked, message):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**{"model": "teller", "prompt": "Once"} | asked)
    assert message in refused.value.body["message"]
    assert refused.value.body["type"] == "invalid_request_error"


def test_an_over_long_prompt(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="teller", prompt=[1] * 400)
    assert refused.value.code == "context_length_exceeded"
    message = "the context is 400 tokens; your prompt has 400. Shorten one of them"
    assert refused.value.body["message"] == message
    with pytest.raises(openai.BadRequestError, match="your prompt has 390 and you asked for 20 more"):
        client.completions.create(model="teller", prompt=[1] * 390, max_tokens=20)
    assert client.completions.create(model="teller", prompt=[1] * 390, max_tokens=10).usage.total_tokens <= 400


def test_32_requests_at_once(client):
    """Each gets the text that it gets alone, whatever is decoded beside it."""

    def ask(number: int) -> str:
        prompt, length = "Once there was a dog. " * (1 + number % 5), 5 + 3 * (number % 7)
        asked = {"model": "teller", "prompt": prompt, "max_tokens": length, "seed": number}
        if number % 4:
            return client.completions.create(**asked).choices[0].text
        return "".join(event.choices[0].text for event in client.completions.create(stream=True, **asked))

    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(ask, range(32)))
    assert together == [ask(number) for number in range(32)]


def test_a_wrong_key_is_refused(client):
    for key in ("wrong", "secret2"):
        with pytest.raises(openai.AuthenticationError) as refused:
            client.with_options(api_key=key).completions.create(model="teller", prompt="Once")
        assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_the_examples_of_the_guide_run(address, capsys):
    """The example of docs/serve.md, at the address of this server, prints a text."""
    guide = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", guide, flags=re.DOTALL)
    for theirs, ours in (("http://127.0.0.1:8000/v1", address), ('"any"', '"secret"'), ('"mosaic"', '"teller"')):
        assert theirs in example
        example = example.replace(theirs, ours)
    exec(example)
    assert capsys.readouterr().out


def test_ctrl_c_finishes_what_is_on_its_way_first(server, client):
    """The last test of this server."""
    stream = client.completions.create(model="teller", prompt="Once", max_tokens=150, stream=True, temperature=0)
    events = [next(stream)]
    server.process.send_signal(signal.SIGINT)
    events += list(stream)
    assert events[-1].choices[0].finish_reason in ("length", "stop")
    out, err = server.process.communicate(timeout=HANG)
    assert (server.process.returncode, err) == (0, "")
    assert re.fullmatch("stopped; requests answered: [1-9][0-9]*", out.splitlines()[-1])


def test_a_second_ctrl_c_does_not_wait(story_run):
    with Process(story_run) as server, openai.OpenAI(base_url=server.address, api_key="any") as client:
        stream = client.completions.create(model="teller", prompt="Once", max_tokens=2000, n=64, stream=True)
        next(stream)
        server.process.send_signal(signal.SIGINT)
        assert server.process.stdout is not None
        assert "finishing 1 requests" in "".join(server.process.stdout.readline() for _ in range(2))
        server.process.send_signal(signal.SIGINT)
        with pytest.raises(openai.APIError, match="the server is being stopped"):
            list(stream)
        out, err = server.process.communicate(timeout=HANG)
    assert (server.process.returncode, err) == (0, "")
    assert "stopped; requests answered: 0" in out
