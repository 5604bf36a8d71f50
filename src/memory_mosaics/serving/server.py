"""`mosaics serve`: a trained model on a local address, for every client that speaks OpenAI's interface.

It decodes with our own engine and not on `transformers serve`, which was tried with transformers 5.17 and our
checkpoints. That one decodes one request at a time (its batches need paged attention, which averages of keys do not
have), takes a prompt as a single text only, ignores `n` and `logprobs` without a word, ends no stream with [DONE],
answers 500 to a chat without a template, to a wrong type and to /v1/models without a cache of the hub, has no key and
no limits, and tells errors in a shape that OpenAI's clients do not read.
"""

import ipaddress
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError
from memory_mosaics.serving.limits import Limits
from memory_mosaics.trained import Trained
from memory_mosaics.training.parallel import find_device

KEY = "MOSAICS_API_KEY"


def run(
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
    limits = Limits(max_tokens=max_tokens, context=context, requests=requests, rows=rows, max_body=max_body)
    api_key = os.environ.get(KEY) if api_key is None else api_key
    if api_key is not None and not api_key.strip():
        raise UserError(f"the API key is empty; name one with --api-key or {KEY}, or leave it out")
    trained = Trained.open(run, name=name or run.resolve().name, device=find_device(device))
    limits = limits.of(trained)
    with listen(host, port) as listening:
        if find_spec("fastapi") is None or find_spec("uvicorn") is None:
            raise UserError("this needs FastAPI and uvicorn: pip install 'memory-mosaics[serve]'")
        from memory_mosaics.serving.listening import serve

        return serve(trained, limits, listening, local=is_local(host), key=api_key)


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address, or a line that says why not."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)  # below 0: no such host
        raise UserError(f"cannot listen at {host}, port {port}: {reason}; name another --port or --host") from error


def is_local(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
