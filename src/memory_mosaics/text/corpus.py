"""A corpus: documents as ids in two flat files, train.bin and valid.bin, with the tokenizer and a manifest.

`mosaics prepare` writes one, `Corpus.open` reads it. Every document is followed by the end-of-text id.
"""

import errno
import hashlib
import json
import os
import platform
import re
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from memory_mosaics.config import MAX_JOBS
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.files import atomic_folder, read_json
from memory_mosaics.text.sources import BLOCK_BYTES, Piece, Source, find_sources, read_documents
from memory_mosaics.text.tokenizer import Tokenizer, find_tokenizer, train_bpe
from memory_mosaics.version import __version__

FORMAT = 1
BPE_SAMPLE = 64 << 20  # bytes to train a BPE on; more change few of its merges
CHECKED_AT_ONCE = 1 << 30  # bytes; the ids of a larger file are checked when they are read


class TokenFile:
    """A file of `count` ids below `vocabulary`, which are checked as they are read: `tokens[10:20]` is an array.

    Read by position and not mapped into memory: a mapped file that is truncated ends the process with SIGBUS.
    """

    _verified: ClassVar[set[tuple[Any, ...]]] = set()  # files that this process has compared with their checksums

    def __init__(self, file: Path, dtype: np.dtype, count: int, vocabulary: int):
        self.file, self.dtype, self.count, self.vocabulary = file, dtype, count, vocabulary
        try:
            self._open = file.open("rb", buffering=0)
        except OSError as error:
            raise UserError(f"cannot read {file}: {one_line(error)}") from error
        weakref.finalize(self, self._open.close)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, step = part.indices(self.count)
        if step != 1:
            raise ValueError(f"a slice of a token file has a step of 1, not {step}")
        width = self.dtype.itemsize
        wanted = max(0, stop - start) * width
        data = self._read(start * width, wanted)
        if len(data) != wanted:
            size = os.fstat(self._open.fileno()).st_size
            raise UserError(f"{self.file} was truncated to {size:,} bytes while it was read: prepare the corpus again")
        ids = np.frombuffer(data, self.dtype)
        if ids.size and ids.max() >= self.vocabulary:
            at = int((ids >= self.vocabulary).argmax())
            raise UserError(
                f"{self.file} is damaged: token {start + at:,} is {ids[at]}, the vocabulary has {self.vocabulary:,}; "
                "prepare the corpus again"
            )
        return ids

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:] if dtype is None else self[:].astype(dtype)

    def check(self, sha256: str, *, limit: int | None = CHECKED_AT_ONCE) -> None:
        """Compare a file of at most `limit` bytes with its checksum, once per process."""
        about = os.fstat(self._open.fileno())
        identity = (about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        key = (self.file.absolute(), identity, sha256)
        if (limit is not None and about.st_size > limit) or key in self._verified:
            return
        found, step = hashlib.sha256(), 1 << 22
        for start in range(0, self.count, step):
            found.update(self[start : start + step].tobytes())
        if found.hexdigest() != sha256:
            raise UserError(
                f"{self.file} is damaged: sha256 {found.hexdigest()[:12]}, not {sha256[:12]}; prepare the corpus again"
            )
        self._verified.add(key)

    def _read(self, start: int, size: int) -> bytearray:
        """Read `size` bytes from `start`, or as many as there are."""
        data = bytearray()
        try:
            while len(data) < size:
                if hasattr(os, "pread"):
                    more = os.pread(self._open.fileno(), size - len(data), start + len(data))
                else:  # Windows
                    with self._lock:
                        self._open.seek(start + len(data))
                        more = self._open.read(size - len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise UserError(f"cannot read {self.file}: {one_line(error)}") from error
        return data


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus. Only the manifest is read until tokens are requested."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Open a folder that `mosaics prepare` wrote, and check the sizes of its files."""
        folder = Path(folder)
        file = folder / "manifest.json"
        try:
            manifest = read_json(file)
            if manifest["format"] != FORMAT:
                raise UserError(
                    f"{file} is of format {manifest['format']}, this version reads {FORMAT}: prepare it again"
                )
            _check_manifest(manifest)
        except (FileNotFoundError, NotADirectoryError):
            what = (
                "is not a corpus: it has no manifest.json; make one" if folder.is_dir() else "does not exist; make it"
            )
            what = "is a file and not a corpus; make one of it" if folder.is_file() else what
            raise UserError(f"{folder} {what} with mosaics prepare") from None
        except UserError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is damaged: {type(error).__name__} {one_line(error)}; prepare it again") from error
        for split in manifest["splits"].values():
            path, size = folder / split["file"], split["tokens"] * np.dtype(manifest["dtype"]).itemsize
            found = path.stat().st_size if path.is_file() else 0
            if found != size:
                raise UserError(f"{path} holds {found} bytes, the manifest says {size}: prepare the corpus again")
        return cls(folder, manifest)

    @property
    def vocabulary(self) -> int:
        return self.manifest["tokenizer"]["vocabulary"]

    @property
    def end_of_text(self) -> int:
        return self.manifest["tokenizer"]["end_of_text"]

    @property
    def fingerprint(self) -> dict[str, dict[str, str]]:
        """The checksums that identify its tokens."""
        return {"corpus": {name: split["sha256"] for name, split in self.manifest["splits"].items()}}

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that the corpus was made with."""
        tokenizer = Tokenizer.load(self.folder)
        wanted = self.manifest["tokenizer"]["fingerprint"]
        if tokenizer.fingerprint != wanted:
            raise UserError(f"{self.folder / 'tokenizer.json'} is not the one that made the corpus: {wanted[:12]}")
        if tokenizer.vocabulary != self.vocabulary:
            raise UserError(
                f"{self.folder / 'manifest.json'} is damaged: its vocabulary has {self.vocabulary} ids, that of "
                f"tokenizer.json {tokenizer.vocabulary}; prepare it again"
            )
        return tokenizer

    def tokens(self, split: str, *, limit: int | None = CHECKED_AT_ONCE) -> TokenFile:
        """Return all ids of `train` or `valid`. A file of up to `limit` bytes is compared with its checksum first."""
        if split not in self.manifest["splits"]:
            raise UserError(f"{self.folder} has no split {split!r}; it has {', '.join(self.manifest['splits'])}")
        part = self.manifest["splits"][split]
        dtype = np.dtype(self.manifest["dtype"]).newbyteorder("<")
        tokens = TokenFile(self.folder / part["file"], dtype, part["tokens"], self.vocabulary)
        tokens.check(part["sha256"], limit=limit)
        return tokens

    def verify(self) -> None:
        """Read everything and compare it with the checksums in the manifest."""
        for name in self.manifest["splits"]:
            self.tokens(name, limit=None)
        self.tokenizer()


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise ValueError for a manifest that `mosaics prepare` cannot have written."""

    def check(name: str, value: Any, is_valid: bool, wanted: str) -> None:
        if not is_valid:
            raise ValueError(f"{name} is {one_line(ValueError(repr(value)), 60)}, not {wanted}")

    def is_count(value: Any) -> bool:
        return type(value) is int and value >= 0

    check("dtype", manifest["dtype"], manifest["dtype"] in ("uint16", "uint32"), "uint16 or uint32")
    ids, about = 1 << 8 * np.dtype(manifest["dtype"]).itemsize, manifest["tokenizer"]
    size, end = about["vocabulary"], about["end_of_text"]
    check("vocabulary", size, is_count(size) and size <= ids, f"a number up to {ids}, the ids of {manifest['dtype']}")
    check("end_of_text", end, is_count(end) and end < size, f"an id below the vocabulary of {size}")
    check("fingerprint", about["fingerprint"], isinstance(about["fingerprint"], str), "a text")
    splits = manifest["splits"]
    check("splits", list(splits), set(splits) == {"train", "valid"}, "train and valid")
    for name, split in splits.items():
        file, sha256 = split["file"], str(split.get("sha256"))
        check(f"the file of {name}", file, file == f"{name}.bin", f"{name}.bin")
        check(f"tokens of {name}", split["tokens"], is_count(split["tokens"]), "a number")
        check(f"sha256 of {name}", split.get("sha256"), bool(re.fullmatch("[0-9a-f]{64}", sha256)), "a checksum")
    sources, options = manifest.get("sources", []), manifest.get("options", {})
    are_records = isinstance(sources, list) and all(isinstance(source, dict) for source in sources)
    check("sources", sources, are_records, "a list of records")
    check("options", options, isinstance(options, dict), "names and values")


def prepare(
    sources: list[str],
    *,
    out: Path,
    tokenizer: str = "gpt2",
    vocabulary: int | None = None,
    field: str = "text",
    valid: list[str] | None = None,
    valid_share: float | None = None,
    seed: int | None = None,
    workers: int | None = None,
) -> Corpus:
    """Turn texts into a corpus to train on: train.bin, valid.bin, the tokenizer and a manifest.

    Args:
        sources: files (.txt with lines <|endoftext|> between documents, .jsonl of strings or objects, .parquet; .gz of
            them), directories of these, hf:NAME[[:CONFIG]:SPLIT] for a Hugging Face dataset, stories:COUNT[:SEED]
        out: the folder to write; it appears when everything is done
        tokenizer: gpt2, bytes, bpe to train one on the sources, or a folder with a tokenizer.json
        vocabulary: size of the vocabulary of a trained bpe; null is 2048
        field: the field of a JSON object or a dataset that holds the text
        valid: sources to validate on; without them a share of the documents is held out
        valid_share: the share of documents held out for validation, chosen by a hash of the seed and their number;
            where they are too few for one to be chosen, the same share of the tokens, the last ones; null is 0.01
        seed: chooses the documents held out; null is 0
        workers: threads that encode, by default one per core; the result does not depend on it
    """
    if valid_share is not None and not 0 <= valid_share < 1:
        raise UserError(f"valid_share must be at least 0 and below 1, not {valid_share}")
    check_range(1, MAX_JOBS, workers=workers)
    if not sources:
        raise UserError("no source was named; name a file, a directory, hf:NAME or stories:COUNT")
    found = [*find_sources(sources), *(replace(source, split="valid") for source in find_sources(valid or []))]
    for name, value in {"valid_share": valid_share, "seed": seed}.items():
        if valid and value:
            raise UserError(
                f"--{name} {value} has no effect beside --valid, which names what to validate on; leave it out"
            )
    chosen = None if tokenizer == "bpe" else find_tokenizer(tokenizer)
    if chosen and vocabulary not in (None, chosen.vocabulary) and not Path(tokenizer).is_dir():
        raise UserError(f"--vocabulary {vocabulary} is of --tokenizer bpe; {tokenizer} has {chosen.vocabulary:,}")
    vocabulary = 2048 if vocabulary is None else vocabulary
    held_out = 0.01 if valid_share is None else valid_share
    options = {"tokenizer": chosen.name if chosen else f"bpe-{vocabulary}", "field": field}
    options |= {"valid_share": 0.0 if valid else held_out, "seed": seed or 0}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        return _open_same(out, found, options, chosen)
    start = time.monotonic()
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    try:
        with atomic_folder(out) as folder:
            if chosen is None:
                chosen = train_bpe(_bpe_sample(found, options), vocabulary, name=f"bpe-{vocabulary}")
            splits = write_splits(folder, found, chosen, options, workers=workers)
            chosen.save(folder)
            manifest = _manifest(splits, found, chosen, options)
            (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        if out.is_dir() and any(out.iterdir()):
            print(f"mosaics: another process has written {out} meanwhile", file=sys.stderr)
            return _open_same(out, found, options, chosen)
        remedy = "free some space or name" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "name"
        reason = error.strerror or one_line(error)
        raise UserError(f"cannot write {out}: {reason}; {remedy} another --out") from error
    _report(manifest, time.monotonic() - start, f"{chosen.engine}, {workers} thread{'s'[: workers != 1]}")
    print(f"written: {out}")
    return Corpus.open(out)


def _bpe_sample(sources: list[Source], options: dict[str, Any]) -> Iterator[str]:
    """Yield training documents, or pieces of long ones, evenly spaced, to train a BPE on."""
    sources = [source for source in sources if source.split == "train"]
    share = min(1.0, BPE_SAMPLE / max(1, sum(source.size or 0 for source in sources)))
    number = -1
    for index, (_, piece) in enumerate(_read(sources, options["field"], "train bpe")):
        number += piece.is_start
        is_train = split_of(number, options["seed"], options["valid_share"]) == "train"
        if is_train and int((index + 1) * share) > int(index * share):
            yield piece.text


class SplitWriter:
    """Writes the ids of one split and counts its documents."""

    def __init__(self, file: Path, tokenizer: Tokenizer):
        self.name, self.path, self.file, self.sha = file.name, file, file.open("wb"), hashlib.sha256()
        self.dtype, self.end = tokenizer.dtype, np.array(tokenizer.end_of_text, tokenizer.dtype).tobytes()
        self.counts = {"documents": 0, "tokens": 0, "characters": 0, "bytes": 0}

    def write(self, piece: Piece, ids: np.ndarray) -> None:
        data = ids.astype(self.dtype).tobytes() + self.end * piece.is_end
        self.file.write(data)
        self.sha.update(data)
        added = (piece.is_start, len(ids) + piece.is_end, len(piece.text), len(piece.text.encode()))
        for name, count in zip(self.counts, added, strict=True):
            self.counts[name] += count

    def summary(self) -> dict[str, Any]:
        """Return its entry in the manifest."""
        return {"file": self.name} | self.counts | {"sha256": self.sha.hexdigest()}


def write_splits(
    folder: Path, sources: list[Source], tokenizer: Tokenizer, options: dict[str, Any], *, workers: int
) -> dict[str, SplitWriter]:
    """Encode all sources and write their documents, in order, to train.bin and valid.bin.

    Without sources to validate on, a hash of its number decides where a document goes.
    """
    writers = {name: SplitWriter(folder / f"{name}.bin", tokenizer) for name in ("train", "valid")}
    pieces = _read(sources, options["field"], "prepare", whole=not tokenizer.splits_at_whitespace)
    tokenizer.encode_batch([""])  # builds the engine once, before the threads need it
    number, writer = 0, writers["train"]
    with ExitStack() as stack:
        for each in writers.values():
            stack.enter_context(each.file)
        encoded = stack.enter_context(closing(_encode(pieces, tokenizer, workers)))
        for split, piece, ids in encoded:
            if piece.is_start:
                held_out = split_of(number, options["seed"], options["valid_share"])
                writer = writers[held_out if split == "train" else split]
                number += 1
            writer.write(piece, ids)
    if not writers["valid"].counts["documents"]:
        _hold_out_tail(writers, tokenizer, options["valid_share"])
    train, valid = (writers[name].counts["documents"] for name in ("train", "valid"))
    if train == 0 or (valid == 0 and options["valid_share"] > 0):
        raise UserError(
            f"nothing to {'validate' if train else 'train'} on: {train + valid} document{'s'[: train + valid != 1]} "
            f"and a valid_share of {options['valid_share']}; add text, or let mosaics prepare change it, set it to 0 "
            "for no validation, or name files with --valid"
        )
    return writers


def _hold_out_tail(writers: dict[str, SplitWriter], tokenizer: Tokenizer, share: float) -> None:
    """Move the last tokens of train.bin to valid.bin. A document that is cut ends in both."""
    train, valid = writers["train"], writers["valid"]
    width = train.dtype.itemsize
    start = train.counts["tokens"] - int(share * train.counts["tokens"])
    while tokenizer.decode(np.fromfile(train.path, train.dtype, 8, offset=start * width)).startswith("\ufffd"):
        start += 1  # not within a character
    tail = np.fromfile(train.path, train.dtype, offset=start * width)
    if len(tail) < 2 or start == 0:
        return
    data, text = tail.tobytes(), tokenizer.decode(tail[tail != tokenizer.end_of_text])
    counts = (int((tail == tokenizer.end_of_text).sum()), len(tail), len(text), len(text.encode()))
    valid.counts, valid.sha = dict(zip(valid.counts, counts, strict=True)), hashlib.sha256(data)
    valid.path.write_bytes(data)
    with train.path.open("r+b") as file:
        file.truncate(start * width)
        file.seek((start - 1) * width)
        is_cut = file.read() != train.end
        file.write(train.end * is_cut)
        file.seek(0)
        train.sha = hashlib.file_digest(file, "sha256")
    kept = {"documents": is_cut, "tokens": is_cut}
    train.counts = {name: train.counts[name] - valid.counts[name] + kept.get(name, 0) for name in train.counts}


def _read(sources: list[Source], text_field: str, label: str, *, whole: bool = False) -> Iterator[tuple[str, Piece]]:
    """Yield all documents with their splits, and show the bytes read in a progress bar."""
    from tqdm import tqdm

    sizes = [source.size for source in sources if source.size is not None]
    total = sum(sizes) if len(sizes) == len(sources) else None
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, desc=label) as progress:
        for source in sources:
            before = progress.n
            for piece in read_documents(source, text_field=text_field, whole=whole):
                progress.update(before + source.bytes_read - progress.n)
                source.documents += piece.is_start
                yield source.split, piece
            if not source.documents:
                raise UserError(f"source {source.where} holds no document, only blanks")


def _encode(
    pieces: Iterable[tuple[str, Piece]], tokenizer: Tokenizer, workers: int
) -> Generator[tuple[str, Piece, np.ndarray], None, None]:
    """Yield each piece with its ids, in order, encoded by threads in batches of about 1 MB."""
    pool, pending = ThreadPoolExecutor(workers), deque()

    def next_result() -> Iterator[tuple[str, Piece, np.ndarray]]:
        batch, future = pending.popleft()
        return ((*item, ids) for item, ids in zip(batch, future.result(), strict=True))

    try:
        for batch in _batches(pieces):
            pending.append((batch, pool.submit(tokenizer.encode_batch, [piece.text for _, piece in batch])))
            if len(pending) > 2 * workers:
                yield from next_result()
        while pending:
            yield from next_result()
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(pieces: Iterable[tuple[str, Piece]]) -> Iterator[list[tuple[str, Piece]]]:
    """Collect about 1 MB of text at a time."""
    batch, size = [], 0
    for item in pieces:
        batch.append(item)
        size += len(item[1].text)
        if size >= BLOCK_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def split_of(number: int, seed: int, valid_share: float) -> str:
    """Return the split of document `number`, counted over all sources, by a hash of the seed and the number."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return "valid" if int.from_bytes(digest, "little") < valid_share * 2**64 else "train"


def _manifest(
    writers: dict[str, SplitWriter], sources: list[Source], tokenizer: Tokenizer, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the manifest, which does not depend on the time, the folder or the number of workers."""
    versions = {"memory-mosaics": __version__, "python": platform.python_version(), "numpy": np.__version__}
    if tokenizer.engine != "bytes":
        versions[tokenizer.engine] = version(tokenizer.engine)
    return {
        "format": FORMAT,
        "dtype": tokenizer.dtype.name,
        "tokenizer": {name: getattr(tokenizer, name) for name in ("name", "vocabulary", "end_of_text", "fingerprint")},
        "splits": {name: writer.summary() for name, writer in writers.items()},
        "sources": [source.summary() for source in sources],
        "options": options,
        "versions": versions,
    }


def _open_same(out: Path, sources: list[Source], options: dict[str, Any], tokenizer: Tokenizer | None) -> Corpus:
    """Open the corpus in `out` if it was made from the same sources with the same options."""
    remedy = "name another --out, or remove it first"
    if not (out / "manifest.json").exists():
        raise UserError(f"{out} exists and is not a corpus; {remedy}")
    corpus = Corpus.open(out)
    known = {"options": {}, "sources": []} | corpus.manifest
    for name, value in options.items():
        if known["options"].get(name) != value:
            raise UserError(f"{out} was prepared with {name} {known['options'].get(name)}, not {value}; {remedy}")
    if tokenizer and tokenizer.fingerprint != known["tokenizer"]["fingerprint"]:
        raise UserError(f"{out} was prepared with another tokenizer called {tokenizer.name}; {remedy}")
    before = [source | {"documents": None} for source in known["sources"]]
    for source in sources:
        deque(read_documents(source, text_field=options["field"]), maxlen=0)  # only its bytes are counted
        if source.summary() | {"documents": None} not in before:
            raise UserError(f"{out} was prepared without {source.where} as it is now; {remedy}")
    if len(before) != len(sources):
        raise UserError(f"{out} was prepared from {len(before)} sources, not these; {remedy}")
    corpus.verify()
    print(f"{out} holds this corpus already: left as it is")
    return corpus


def _report(manifest: dict[str, Any], seconds: float, how: str) -> None:
    print(f"{'split':6} {'documents':>12} {'tokens':>15} {'characters/document':>20} {'tokens/character':>17}")
    for name, split in manifest["splits"].items():
        length = split["characters"] / max(1, split["documents"])
        rate = split["tokens"] / max(1, split["characters"])
        print(f"{name:6} {split['documents']:>12,} {split['tokens']:>15,} {length:>20,.1f} {rate:>17.4f}")
    size = sum(split["bytes"] for split in manifest["splits"].values()) / 1e6
    print(f"{size:,.1f} MB of text in {seconds:,.1f} s: {size / seconds:,.1f} MB/s ({how})")
