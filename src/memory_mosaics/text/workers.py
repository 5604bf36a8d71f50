"""Blocks of documents to ids, in other processes, in order. The result is the same for any number of workers."""

import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from multiprocessing import connection, forkserver, get_all_start_methods, get_context, parent_process
from typing import NamedTuple

import numpy as np

from memory_mosaics.errors import UserError
from memory_mosaics.isolation import interrupts_wait
from memory_mosaics.text.documents import Block, parse
from memory_mosaics.text.sources import Source
from memory_mosaics.text.tokenizer import Tokenizer

WORTH_WORKERS = 32 << 20  # bytes of text; workers take seconds to start


class Part(NamedTuple):
    """The counts of a document, or of a part of a long one."""

    tokens: int
    characters: int
    bytes: int
    begins: bool
    ends: bool


@dataclass(frozen=True)
class Encoded:
    """The ids of a block's documents, each followed by the end of text. `read` is what the block took to read."""

    ids: np.ndarray
    parts: list[Part]
    read: int
    last: bool


def token_dtype(vocabulary: int) -> str:
    """The type of the ids in a file: little-endian, two bytes where they suffice."""
    return "<u2" if vocabulary <= 1 << 16 else "<u4"


def default_workers(sources: list[Source]) -> int:
    """All cores for much text, one for little."""
    sizes = [WORTH_WORKERS if source.kind in ("dataset", "parquet") else source.size or 0 for source in sources]
    if sum(sizes) < WORTH_WORKERS:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode_block(block: Block, tokenizer: Tokenizer, text_field: str) -> Encoded:
    """Parse and encode one block."""
    pieces = parse(block, text_field)
    rows = tokenizer.encode_many([piece.text for piece in pieces])
    for piece, row in zip(pieces, rows, strict=True):
        if piece.ends:
            row.append(tokenizer.end_of_text)
    parts = [
        Part(len(row), len(piece.text), len(piece.text.encode()), piece.begins, piece.ends)
        for piece, row in zip(pieces, rows, strict=True)
    ]
    count = sum(part.tokens for part in parts)
    ids = np.fromiter(chain.from_iterable(rows), dtype=token_dtype(tokenizer.vocabulary), count=count)
    return Encoded(ids, parts, block.read, block.last)


def encode_blocks(
    blocks: Iterator[Block], tokenizer: Tokenizer, *, text_field: str, workers: int
) -> Generator[Encoded, None, None]:
    """Encode blocks by `workers` processes, or in this one where that is 1; few blocks are in memory at any time."""
    if workers == 1:
        yield from (encode_block(block, tokenizer, text_field) for block in blocks)
        return
    context = get_context("forkserver" if "forkserver" in get_all_start_methods() else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload([__name__])  # so that torch is imported once, not by each worker
        with _deaf_to_interrupts():  # or Ctrl-C while the server imports is a traceback of its own
            forkserver.ensure_running()
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(tokenizer, text_field))
    waiting: deque[Future[Encoded]] = deque()
    try:
        for block in blocks:
            with interrupts_wait():  # or a worker that is just starting would find the pool gone
                waiting.append(pool.submit(_encode, block))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError("a worker process died, for want of memory perhaps; try again with --workers 1") from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Within, Ctrl-C is ignored, also by processes started here; in the main thread, which alone can say so."""
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, before)


def _start(tokenizer: Tokenizer, text_field: str) -> None:
    """Make a worker ready. Ctrl-C is the parent's to handle, and a worker whose parent was killed ends."""
    global _job
    _job = tokenizer, text_field
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


_job: tuple[Tokenizer, str]


def _encode(block: Block) -> Encoded:
    return encode_block(block, *_job)
