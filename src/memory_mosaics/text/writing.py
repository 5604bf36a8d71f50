"""Writing a corpus: a folder that appears whole or not at all, and the two files of ids in it."""

import errno
import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import flush, remove_temporary, temporary_path
from memory_mosaics.text.sources import Source, read_blocks
from memory_mosaics.text.tokenizer import Tokenizer
from memory_mosaics.text.workers import Encoded, encode_blocks


class WrittenMeanwhile(UserError):
    """Another process has written the folder first."""


@contextmanager
def folder_written_whole(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to write to: flushed and renamed to it at the end, removed if anything fails.

    What a killed run on this machine left behind is removed first. Raises `WrittenMeanwhile` where the folder is there
    and not empty at the end.
    """
    target = folder.resolve()
    tmp = temporary_path(target)
    made = [parent for parent in target.parents if not parent.exists()]
    done = False
    try:
        tmp.mkdir(parents=True)
        yield tmp
        for path in (*tmp.iterdir(), tmp):
            flush(path)
        try:
            if target.exists():
                target.rmdir()  # only an empty one may be replaced
            tmp.rename(target)
        except OSError as error:
            if target.is_dir() and any(target.iterdir()):
                raise WrittenMeanwhile(f"another process has written {folder} meanwhile; name another --out") from error
            raise
        done = True
        flush(target.parent)
    except OSError as error:
        reason = error.strerror or one_line(error)
        remedy = "free some space or name" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "name"
        raise UserError(f"cannot write {folder}: {reason}; {remedy} another --out") from error
    finally:
        remove_temporary(tmp)
        if not done:
            for parent in made:
                with suppress(OSError):
                    parent.rmdir()


class SplitWriter:
    """One file of ids, and the counts of what went into it."""

    def __init__(self, file: Path):
        self.name = file.name
        self.file = file.open("wb")
        self.sha = hashlib.sha256()
        self.documents = self.tokens = self.characters = self.bytes = 0

    def write(self, ids: np.ndarray) -> None:
        data = ids.tobytes()
        self.file.write(data)
        self.sha.update(data)

    def summary(self) -> dict[str, Any]:
        """What the manifest says about this file."""
        counts = {name: getattr(self, name) for name in ("documents", "tokens", "characters", "bytes")}
        return {"file": self.name} | counts | {"sha256": self.sha.hexdigest()}


class CorpusWriter:
    """Sends documents to train.bin or valid.bin: all to the one named, or a share by a hash of their number."""

    def __init__(self, folder: Path, *, seed: int, valid_share: float):
        self.splits = {name: SplitWriter(folder / f"{name}.bin") for name in ("train", "valid")}
        self.seed, self.valid_share = seed, valid_share
        self.number = 0
        self.current = self.splits["train"]

    def add(self, encoded: Encoded, split: str | None) -> int:
        """Write a block; returns how many documents began in it. Documents stay in the order of the sources."""
        start = began = 0
        for part in encoded.parts:
            if part.begins:
                self.current = self.splits[split or split_of(self.number, self.seed, self.valid_share)]
                self.current.documents += 1
                self.number += 1
                began += 1
            self.current.write(encoded.ids[start : start + part.tokens])
            self.current.tokens += part.tokens
            self.current.characters += part.characters
            self.current.bytes += part.bytes
            start += part.tokens
        return began

    def close(self) -> None:
        for writer in self.splits.values():
            writer.file.close()


def write_corpus(
    writer: CorpusWriter, groups: dict[str, list[Source]], tokenizer: Tokenizer, *, text_field: str, workers: int
) -> None:
    """Read, encode and write all sources in order, with a bar that shows the bytes read."""
    from tqdm import tqdm

    todo = [(split, source) for split, group in groups.items() for source in group]
    sizes = [source.size for _, source in todo]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    # Without validation sources the hash of its number decides where a document goes.
    chosen = [(split if groups["valid"] else None, source) for split, source in todo]
    whole = not tokenizer.cuts_at_blanks
    blocks = chain.from_iterable(read_blocks(source, text_field=text_field, whole=whole) for _, source in todo)
    with (
        closing(writer),
        closing(encode_blocks(blocks, tokenizer, text_field=text_field, workers=workers)) as results,
        tqdm(total=total, unit="B", unit_scale=True, disable=None, desc="prepare") as progress,
    ):
        for encoded in results:
            split, source = chosen[0]
            source.documents += writer.add(encoded, split)
            progress.update(encoded.read)
            if encoded.last and source.documents == 0:
                raise UserError(f"source {source.where} holds no document, only blanks")
            if encoded.last:
                del chosen[0]


def split_of(number: int, seed: int, valid_share: float) -> str:
    """Where document `number` belongs: a hash decides, so that the order of the sources does not."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return "valid" if int.from_bytes(digest, "little") < valid_share * 2**64 else "train"
