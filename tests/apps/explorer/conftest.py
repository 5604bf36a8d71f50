"""Small models with their tokenizers, a server with them on a port of its own, and a browser to open it in."""

import json
import shutil
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread

import pytest
import torch

from memory_mosaics import LanguageModel, llama, memory_mosaic, transformer
from memory_mosaics.apps.explorer import Explorer
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.extractors import GatedAverageConfig
from memory_mosaics.memory import OutputGateConfig
from memory_mosaics.scales import AdaptiveSharpnessConfig
from memory_mosaics.stores import Visibility
from memory_mosaics.text.tokenizer import Tokenizer, byte_tokenizer, train_bpe
from waiting import HANG, until

WORDS = "Once there was a girl named Lily. She had a red kite and a small dog. The dog saw the red kite. "


TEXT = "Once there was a girl named Lily. She had a red kite."
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def small(name: str, kind, tokenizer: Tokenizer | None = None, **options) -> LoadedModel:
    """An untrained model far from uniform, so that what it expects is clear."""
    tokenizer = tokenizer or train_bpe([WORDS], 300, name="words")
    torch.manual_seed(1)
    options = {"width": 32, "blocks": 2, "heads": 4, "context": 512} | options
    model = LanguageModel(kind(vocabulary=tokenizer.vocabulary, **options))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3) if weight.dim() > 1 else None
    return LoadedModel(name, Path(), model, tokenizer)


@pytest.fixture(scope="session")
def mosaic() -> LoadedModel:
    return small("mosaic", memory_mosaic)


@pytest.fixture(scope="session")
def gated() -> LoadedModel:
    """A Memory Mosaic whose lambda and beta change from token to token, with short and long memories and a gate."""

    def config(**options):
        made = memory_mosaic(**options)
        parts = {"key": GatedAverageConfig(), "sharpness": AdaptiveSharpnessConfig(), "gate": OutputGateConfig()}
        parts["visibility"] = (Visibility(window=7), Visibility(delay=3))
        return replace(made, sequence_mixer=replace(made.sequence_mixer, **parts))

    return small("gated", config)


@pytest.fixture(scope="session")
def twin() -> LoadedModel:
    return small("twin", transformer)


@pytest.fixture(scope="session")
def rotary() -> LoadedModel:
    return small("rotary", transformer, position="rotary")


@pytest.fixture(scope="session")
def grouped() -> LoadedModel:
    """Two heads share their keys and values."""
    return small("grouped", llama, key_value_heads=2)


@pytest.fixture(scope="session")
def of_bytes() -> LoadedModel:
    return small("of bytes", memory_mosaic, byte_tokenizer())


class Served:
    """The page, served from a thread until it is stopped."""

    def __init__(self, models: list[LoadedModel], port: int = 0, **options):
        from memory_mosaics.apps.explorer.app import MAX_BODY, MAX_WAITING, build_app
        from memory_mosaics.apps.server import Server, listen

        self.listening = listen("127.0.0.1", port)
        self.port = self.listening.getsockname()[1]
        self.explorer = Explorer(models, **options)
        limits = {"max_requests": 1 + MAX_WAITING, "max_body": MAX_BODY}
        self.server = Server(build_app(self.explorer), self.listening, halt=self.explorer.halt, **limits)
        self.address = self.server.address
        self.server.config.timeout_graceful_shutdown = 1
        self.thread = Thread(target=self.server.run_until_interrupted, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(HANG)
        self.listening.close()


@pytest.fixture(scope="session")
def served(mosaic, rotary):
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    server = Served([mosaic, rotary])
    yield server
    server.stop()


def send(served, method="POST", path="/api/read", body=None, headers=None, raw=None):
    """One request, with exactly these headers beside the usual ones."""
    data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
    usual = {"Content-Type": "application/json"} if data is not None else {}
    with closing(HTTPConnection("127.0.0.1", served.port, timeout=HANG)) as line:
        line.request(method, path, data, usual | (headers or {}))
        answer = line.getresponse()
        content = answer.read()
    kind = answer.headers.get("content-type", "")
    return answer.status, json.loads(content) if "json" in kind and content else content.decode(), answer.headers


def reading(text=TEXT, **more):
    return {"session": "test", "model": 0, "text": text, **more}


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium here")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=1000 * HANG)
        yield chromium
        chromium.close()


FRAMES = """() => new Promise((done) => {
    let left = 12;
    const frame = () => (left-- ? requestAnimationFrame(frame) : done());
    frame();
})"""


class Tab:
    """A page that remembers what went wrong on it."""

    def __init__(self, browser, address: str | None = None, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 860}} | options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(1000 * HANG)
        self.wrong: list[str] = []
        self.page.on("console", lambda found: found.type == "error" and self.wrong.append(found.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("requestfailed", lambda request: self.wrong.append(f"{request.url} {request.failure}"))
        if address:
            self.page.goto(address)
            self.page.wait_for_selector(".tile span:not(:empty)", state="attached")

    def __enter__(self) -> "Tab":
        return self

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            assert self.wrong == []
        self.context.close()

    def text(self, pane: int = 0) -> str:
        tokens = self.page.locator(f".pane[data-pane='{pane}'] .token")
        return "".join(tokens.evaluate_all("all => all.map(one => one.textContent)"))

    def until(self, expression: str, wanted: object = True) -> None:
        """Wait for it. The page's own policy forbids what `wait_for_function` does, which is to evaluate a text."""
        until(lambda: self.page.evaluate(expression) == wanted, step=0.05)

    def settle(self) -> None:
        """Let the page handle what has happened and draw it, so that what should not follow would show."""
        self.page.evaluate(FRAMES)

    def write(self, text: str) -> None:
        """Instead of what is there, and wait until it is read."""
        self.page.fill("#text", text)
        self.until(f"window.explorer.panes[0].shownText === {json.dumps(text)}")

    def at(self, pane: int = 0) -> int:
        """The token that is chosen."""
        return self.page.evaluate(f"window.explorer.panes[{pane}].position")

    def download(self, button: str, file: Path) -> Path:
        with self.page.expect_download() as coming:
            self.page.click(button)
        coming.value.save_as(file)
        return file


@pytest.fixture
def tab(browser, served):
    with Tab(browser, served.address) as one:
        one.write(WORDS + "She saw the red")
        yield one


def memory(block: int, kind: str, head: int, pane: int = 0) -> str:
    return f""".pane[data-pane="{pane}"] .tile[data-memory='[{block},"{kind}",{head}]']"""


def token(position: int, pane: int = 0) -> str:
    return f".pane[data-pane='{pane}'] .token[data-at='{position}']"
