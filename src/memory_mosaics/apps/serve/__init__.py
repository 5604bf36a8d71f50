"""A trained model behind OpenAI's API: `mosaics serve`."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.memory_files import start_state
from memory_mosaics.runtime import find_device

API_KEY = "MOSAICS_API_KEY"
GRACE_SECONDS = 10.0  # for unfinished requests when the server is stopped


def serve(
    run: Path,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    api_key: str | None = None,
    name: str | None = None,
    max_tokens: int = 2048,
    context: int | None = None,
    requests: int = 64,
    rows: int = 16,
    max_body: int = 1_000_000,
    memory: list[Path] | None = None,
    store: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """Serve a trained model to every client of OpenAI's API, until Ctrl-C.

    It has /v1/completions and /v1/chat/completions, both with streaming, /v1/models and /health. Concurrent requests
    are decoded together.

    Args:
        run: the folder of a training run, or a checkpoint folder
        port: the port to listen on; 0 picks a free one
        host: the address to listen on; only this machine can reach the default, all machines 0.0.0.0
        api_key: the key that clients must send; better set by the environment variable MOSAICS_API_KEY, which other
            users of the machine cannot see
        name: the name of the model for clients; by default that of the folder
        max_tokens: the maximum length of an answer
        context: the maximum tokens of prompt and answer together; by default the model's positions, or 8192
        requests: the maximum number of unfinished requests; more are answered with status 429
        rows: the maximum number of texts that are decoded together
        max_body: the maximum bytes of a request
        memory: one or several files of `mosaics read`: answers continue as if the model had just read what they hold
        store: what contextual memories keep: exact, or window, sinks, lru, merge or reservoir with a number of pairs,
            such as lru:4096. null is exact, or as in the memory files
        device: cuda, mps or cpu; auto takes the first that is available
    """
    check_range(0, 65535, port=port)
    key = _check_key(os.environ.get(API_KEY) if api_key is None else api_key)
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError("this needs FastAPI and uvicorn: pip install 'memory-mosaics[serve]'")
    from memory_mosaics.apps.serve.app import Service, build_app
    from memory_mosaics.apps.server import Server, is_local, listen

    loaded = LoadedModel.open(run, name=name or run.resolve().name, device=find_device(device))
    loaded.tokenizer.encode("a")  # a tokenizer that cannot be built fails here, not in the first request
    state = start_state(loaded, memory or [], store)
    with listen(host, port) as listening:
        if key is None and not is_local(listening):
            print("mosaics: no API key: whoever reaches this address can use the model", file=sys.stderr)
        limits = {"max_tokens": max_tokens, "context": context, "requests": requests, "rows": rows}
        service = Service(loaded, max_body=max_body, state=state, **limits)
        server = Server(
            build_app(service),
            listening,
            max_requests=service.max_concurrent,
            max_body=max_body,
            api_key=key,
            on_ready=lambda url: print(f"{loaded.name} is served at {url}/v1; press Ctrl-C to stop", flush=True),
            halt=service.engine.halt,
            unfinished=lambda: service.engine.unfinished,
            grace=GRACE_SECONDS,
        )
        try:
            server.run_until_interrupted()
        finally:
            service.engine.stop()
    print(f"\nstopped; requests answered: {service.answered}", flush=True)
    return {"answered": service.answered}


def _check_key(key: str | None) -> str | None:
    """Return the key without surrounding spaces, which headers do not keep, or raise an error if it cannot be sent."""
    key = None if key is None else key.strip()
    if key == "":
        raise UserError(f"the API key is empty; set one with --api_key or {API_KEY}, or leave it out")
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise UserError("the API key has characters that clients cannot send; use printable ASCII without spaces")
    return key
