"""`mosaics serve`: a trained model on a local address, for every client that speaks OpenAI's interface."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError
from memory_mosaics.runtime import find_device

KEY = "MOSAICS_API_KEY"


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
    device: str = "auto",
) -> dict[str, Any]:
    """Serve a trained model to every client that speaks OpenAI's interface, until Ctrl-C.

    There are /v1/completions and /v1/chat/completions, both with streams, /v1/models and /health. Requests that come
    together are decoded together.

    Args:
        run: the folder of a training run, or a checkpoint folder
        port: where to listen; 0 takes any that is free
        host: the address to listen at; only this machine reaches the default, everybody 0.0.0.0
        api_key: what clients must send as their key; better given as the environment variable MOSAICS_API_KEY, which
            other users of the machine do not see
        name: what clients call the model; the name of the folder
        max_tokens: the longest answer that may be asked for
        context: at most so many tokens of prompt and answer together; as many as the model has positions for, or 8192
        requests: at most so many at a time, those that wait among them; more are told to come back (429)
        rows: texts that are decoded side by side
        max_body: bytes of a request
        device: cuda, mps or cpu; auto takes the first that is there
    """
    if not 0 <= port < 65536:
        raise UserError(f"port must be between 0 and 65535, not {port}")
    key = _key(os.environ.get(KEY) if api_key is None else api_key)
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError("this needs FastAPI and uvicorn: pip install 'memory-mosaics[serve]'")
    from memory_mosaics.apps.serve.app import Service
    from memory_mosaics.apps.serve.listening import Server, is_local, listen
    from memory_mosaics.apps.serve.requests import Limits

    trained = LoadedModel.open(run, name=name or run.resolve().name, device=find_device(device))
    trained.tokenizer.encode("a")  # one that cannot be built is found here, not by the first client
    limits = Limits.of(trained, max_tokens=max_tokens, context=context, requests=requests, rows=rows, max_body=max_body)
    with listen(host, port) as listening:
        if key is None and not is_local(listening):
            print("mosaics: no API key: whoever reaches this address can use the model", file=sys.stderr)
        service = Service(trained, limits)
        Server(service, listening, key=key).answer()
    return {"answered": service.answered}


def _key(key: str | None) -> str | None:
    """As it comes over the wire: without spaces around it, and of characters that a header may hold."""
    key = None if key is None else key.strip()
    if key == "":
        raise UserError(f"the API key is empty; name one with --api_key or {KEY}, or leave it out")
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise UserError("the API key has characters that clients cannot send; take letters, digits and signs of ASCII")
    return key
