"""Trained models behind OpenAI's API: `mosaics serve`."""

import os
import re
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memory_mosaics import pretrained
from memory_mosaics.checkpoint import iter_models, unique_names
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.memory_files import start_state
from memory_mosaics.runtime import find_device

API_KEY = "MOSAICS_API_KEY"
GRACE_SECONDS = 10.0  # for unfinished requests when the server is stopped


def serve(
    runs: list[str] | None = None,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    api_key: str | None = None,
    name: list[str] | None = None,
    log: Path | None = None,
    max_tokens: int = 2048,
    context: int | None = None,
    requests: int = 64,
    rows: int = 16,
    max_body: int = 1_000_000,
    memory: list[Path] | None = None,
    store: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Serve trained models to every client of OpenAI's API, until Ctrl-C.

    It has /v1/completions and /v1/chat/completions, both with streaming, /v1/models, /health, /metrics and /docs.
    Concurrent requests to a model are decoded together.

    Args:
        runs: the folders of training runs, checkpoint folders, or models that come with the package:
            memory-mosaic-stories or llama-stories; null is the first of these
        port: the port to listen on; 0 picks a free one
        host: the address to listen on; only this machine can reach the default, all machines 0.0.0.0
        api_key: the key that clients must send; better set by the environment variable MOSAICS_API_KEY, which other
            users of the machine cannot see
        name: the names of the models for clients; by default those of the folders
        log: a file to which one line of JSON per request is added: time, path, status, seconds and numbers of tokens
        max_tokens: the maximum length of an answer
        context: the maximum tokens of prompt and answer together; by default the model's positions, or 8192
        requests: the maximum number of unfinished requests per model; more are answered with status 429
        rows: the maximum number of texts per model that are decoded together
        max_body: the maximum bytes of a request
        memory: one or several files of `mosaics read`: answers continue as if the model had just read what they hold
        store: which pairs contextual memories keep, such as lru:4096 (`mosaics read --help` has all). null is exact, or
            as in the memory files; exact after a file with another store keeps its pairs and all new ones
        device: cuda, mps or cpu; auto takes the first that is available
    """
    runs = [pretrained.MOSAIC] if runs is None else runs
    check_range(0, 65535, port=port)
    key = _check_key(os.environ.get(API_KEY) if api_key is None else api_key)
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError("this needs FastAPI and uvicorn: pip install 'memory-mosaics[serve]'")
    from memory_mosaics.apps.serve.app import RequestLog, Service, build_app
    from memory_mosaics.apps.server import Server, is_local, listen

    if memory and len(runs) > 1:
        raise UserError("--memory holds what one model has read; serve that model alone")
    limits: Any = {
        "max_tokens": max_tokens,
        "context": context,
        "requests": requests,
        "rows": rows,
        "max_body": max_body,
    }
    services: list[Service] = []
    with ExitStack() as stack:
        for trained in iter_models(_names(runs, name), device=find_device(device)):
            trained.tokenizer.encode("a")  # a tokenizer that cannot be built fails here, not in the first request
            services.append(Service(trained, state=start_state(trained, memory or [], store), **limits))
            stack.callback(services[-1].engine.stop)
        listening = stack.enter_context(listen(host, port))
        app: Any = build_app(*services)
        if log is not None:
            app = RequestLog(app, stack.enter_context(_open_log(log)))
        if key is None and not is_local(listening):
            print("mosaics: no API key: whoever reaches this address can use the model", file=sys.stderr)
        shown = " and ".join(service.loaded.name for service in services)
        verb = "is" if len(services) == 1 else "are"

        def halt() -> None:
            for service in services:
                service.engine.halt()

        server = Server(
            app,
            listening,
            max_requests=sum(service.max_concurrent for service in services),
            max_body=max_body,
            api_key=key,
            on_ready=lambda url: print(f"{shown} {verb} served at {url}/v1; press Ctrl-C to stop", flush=True),
            halt=halt,
            unfinished=lambda: sum(service.engine.unfinished for service in services),
            grace=GRACE_SECONDS,
        )
        server.run_until_interrupted()
    answered = sum(service.answered for service in services)
    print(f"\nstopped; requests answered: {answered}", flush=True)
    return {"answered": answered}


def _names(runs: list[str], names: list[str] | None) -> dict[str, Path]:
    """Return the folder of each model by its name for clients."""
    if names is None:
        return unique_names(runs)
    if len(names) != len(runs) or len(set(names)) < len(names):
        raise UserError(
            f"--name must have a name of its own for each of the {len(runs)} models, not {len(names)} names"
        )
    return {name: Path(run) for name, run in zip(names, runs, strict=True)}


def _open_log(file: Path) -> Any:
    try:
        return file.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the log {file}: {one_line(error)}") from error


def _check_key(key: str | None) -> str | None:
    """Return the key without surrounding spaces, which headers do not keep, or raise an error if it cannot be sent."""
    key = None if key is None else key.strip()
    if key == "":
        raise UserError(f"the API key is empty; set one with --api_key or {API_KEY}, or leave it out")
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise UserError("the API key has characters that clients cannot send; use printable ASCII without spaces")
    return key
