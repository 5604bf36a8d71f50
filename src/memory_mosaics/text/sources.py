"""Where documents come from: text files, JSON lines, Hugging Face datasets, generators that apps register.

A source is read as blocks of about a megabyte that any process can turn into documents, so that a corpus of any size
takes little memory. The errors name the file, the line and, where bytes are wrong, the byte.
"""

import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.text.documents import Block, text_of
from memory_mosaics.text.vocabulary import END_OF_TEXT

SUFFIXES = {".txt": "text", ".text": "text", ".md": "text", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
SUFFIXES |= {".parquet": "parquet"}
BLOCK = 1 << 20
LONG_RUN = 1 << 20  # bytes without a blank to cut before: then a text is cut between two characters
LONG_DOCUMENT = 32 << 20  # bytes of a document that has to be read whole
SAFE = len(END_OF_TEXT) + 4  # bytes on either side of such a cut that hold no part of a separator

# Filled by apps: `SCHEME:...` is a source that the function of its scheme checks and generates, the same every time.
GENERATORS: dict[str, Callable[[str], Iterator[str]]] = {}


@dataclass
class Source:
    """One file, dataset or generator. `read` and `sha` are of its bytes as they lie on the disk, so far."""

    name: str
    kind: str  # text, json, parquet, dataset, or the scheme of a generator
    where: str
    size: int | None = None  # in bytes, where it is known before reading
    read: int = 0
    documents: int = 0
    sha: Any = field(default_factory=hashlib.sha256)

    def count(self, data: bytes) -> None:
        """Note bytes that were read."""
        self.read += len(data)
        self.sha.update(data)

    def summary(self) -> dict[str, Any]:
        """What the manifest says about it."""
        sha = self.sha.hexdigest()
        return {"name": self.name, "bytes": self.read, "sha256": sha, "documents": self.documents}


def find_sources(names: Iterable[str]) -> list[Source]:
    """The sources that names on the command line stand for, in order; a directory is its files by name."""
    return [source for name in names for source in _find(name)]


def _find(name: str) -> list[Source]:
    scheme, _, rest = name.partition(":")
    if scheme in GENERATORS and rest:
        GENERATORS[scheme](name)  # checks the name; nothing is generated yet
        return [Source(name, scheme, name)]
    if scheme == "hf" and rest:
        return [Source(name, "dataset", name)]
    path = Path(name)
    if path.is_dir() and any((path / mark).exists() for mark in ("state.json", "dataset_dict.json")):
        return [Source(path.resolve().name, "dataset", name)]
    if path.is_dir():
        found = (file for file in path.rglob("*") if _kind(file) and file.suffix != ".json" and file.is_file())
        names = {file: file.relative_to(path) for file in found}
        files = sorted(file for file in names if not any(part.startswith(".") for part in names[file].parts))
        if not files:
            suffixes = _suffixes().replace(" .json,", "")  # too often a file of settings
            raise UserError(f"{name} holds no file that ends in {suffixes} (with or without .gz)")
        return [_file(file, str(path.resolve().name / names[file])) for file in files]
    return [_file(path, path.name)]


def _file(path: Path, name: str) -> Source:
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        scheme = re.match(r"([a-z]+):\d", str(path))
        remedy = f"; to generate it, import the app that registers {scheme[1]}" if scheme else ""
        raise UserError(f"source {path} does not exist{remedy}") from None
    except OSError as error:
        raise UserError(f"source {path} cannot be read: {one_line(error)}") from error
    kind = _kind(path)
    if kind is None:
        raise UserError(f"source {path}: its name should end in {_suffixes()} (with or without .gz)")
    if size == 0:
        raise UserError(f"source {path} is empty")
    return Source(name, kind, str(path), None if kind == "parquet" else size)


def _kind(path: Path) -> str | None:
    name = path.name.lower().removesuffix(".gz")
    return SUFFIXES.get(Path(name).suffix)


def _suffixes() -> str:
    return ", ".join(SUFFIXES)


def read_blocks(source: Source, *, text_field: str, whole: bool, size: int = BLOCK) -> Iterator[Block]:
    """Read a source block by block. A long text is cut before a blank, or with `whole` between documents only.

    Where 1 MiB holds no blank after a character, it is cut between two characters: the words on either side are encoded
    as two. What has to be read whole, a line of JSON, a row, or with `whole` a document, has at most 32 MiB.
    """
    try:
        if source.kind in ("text", "json"):
            yield from _file_blocks(source, whole, size)
        else:
            yield from _document_blocks(source, text_field, size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"source {source.where} is a damaged or truncated .gz: {one_line(error)}") from error
    except OSError as error:
        raise UserError(f"source {source.where} cannot be read: {one_line(error)}") from error


class _Counted:
    """A file whose bytes are counted and hashed as they are read."""

    def __init__(self, file: Any, source: Source):
        self.file, self.source = file, source

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.source.count(data)
        return data


def _file_blocks(source: Source, whole: bool, size: int) -> Iterator[Block]:
    find_cut = _line_end if source.kind == "json" else _document_end if whole else _blank
    with open(source.where, "rb") as raw:
        counted: Any = _Counted(raw, source)
        file: Any = gzip.GzipFile(fileobj=counted) if source.where.lower().endswith(".gz") else counted
        buffer, line, byte, before, first = bytearray(), 1, 0, 0, True
        while data := file.read(size):
            searched = len(buffer)
            buffer += data
            if first and not searched:
                byte = len(b"\xef\xbb\xbf") if buffer.startswith(b"\xef\xbb\xbf") else 0  # the byte order mark
                del buffer[:byte]
                if source.kind == "json" and buffer.lstrip()[:1] == b"[":
                    raise UserError(f"source {source.where} is one JSON list: make lines of it with jq -c '.[]'")
            cut = find_cut(buffer, max(1, searched - SAFE)) if len(buffer) >= size else 0
            if cut <= 0 and find_cut is _blank and len(buffer) >= LONG_RUN:
                cut = _between_characters(buffer)
            if cut <= 0 and len(buffer) > LONG_DOCUMENT:
                _refuse_long(f"source {source.where}, line {line}", "line" if source.kind == "json" else "text")
            if cut > 0:
                read, before = source.read - before, source.read
                yield Block(source.where, source.kind, bytes(buffer[:cut]), line, byte, read, first, False)
                line, byte, first = line + buffer.count(b"\n", 0, cut), byte + cut, False
                del buffer[:cut]
        read = source.read - before
        yield Block(source.where, source.kind, bytes(buffer), line, byte, read, first, True)


def _line_end(buffer: bytearray, start: int) -> int:
    return buffer.rfind(b"\n", start - 1) + 1


def _blank(buffer: bytearray, start: int) -> int:
    """Before the last line end that follows a letter; where there is none, before such a space."""
    return _before(buffer, b"\n", start) or _before(buffer, b" ", start)


def _between_characters(buffer: bytearray) -> int:
    """Near the end, where no character is cut in two and no separator is near; or 0."""
    end = END_OF_TEXT.encode()
    for near in range(len(buffer) - SAFE, max(2 * SAFE, len(buffer) - 1000 * SAFE), -SAFE):
        cut = next((cut for cut in range(near, near - 4, -1) if buffer[cut] & 0xC0 != 0x80), near)  # or it is not UTF-8
        if end not in buffer[cut - SAFE : cut + SAFE]:
            return cut
    return 0


def _refuse_long(where: str, what: str) -> None:
    remedy = f"put lines {END_OF_TEXT} between documents" if what == "text" else "make several documents of it"
    raise UserError(f"{where}: a {what} of more than {LONG_DOCUMENT >> 20} MiB would have to be read whole; {remedy}")


def _document_end(buffer: bytearray, start: int) -> int:
    return _before(buffer, f"\n{END_OF_TEXT}\n".encode(), start)


def _before(buffer: bytearray, mark: bytes, start: int, tries: int = 1000) -> int:
    """Where the last `mark` begins that follows a letter, so that no run of blanks and no separator is cut; or 0."""
    cut = len(buffer)
    for _ in range(tries):
        cut = buffer.rfind(mark, start, cut)
        if cut < 0:
            return 0
        letter = buffer[max(0, cut - 4) : cut].decode(errors="ignore")[-1:]
        if letter and not letter.isspace() and not buffer.endswith(END_OF_TEXT.encode(), 0, cut):
            return cut
    return 0


def _document_blocks(source: Source, text_field: str, size: int) -> Iterator[Block]:
    texts: list[str] = []
    length, number = 0, 1
    generate = GENERATORS.get(source.kind)
    for text in generate(source.where) if generate else DOCUMENTS[source.kind](source.where, text_field):
        texts.append(text)
        data = text.encode(errors="surrogatepass") + b"\0"
        source.count(data)
        if len(data) > LONG_DOCUMENT:
            _refuse_long(f"source {source.where}, row {number + len(texts) - 1}", "row")
        length += len(data)
        if length >= size:
            yield Block(source.where, "documents", texts, number, 0, length, False, False)
            number += len(texts)
            texts, length = [], 0
    yield Block(source.where, "documents", texts, number, 0, length, False, True)


def _parquet(where: str, text_field: str) -> Iterator[str]:
    return _rows(
        where,
        text_field,
        lambda library: library.load_dataset("parquet", data_files=where, split="train", streaming=True),
    )


def _dataset(where: str, text_field: str) -> Iterator[str]:
    name, _, rest = where.removeprefix("hf:").partition(":")
    config, _, split = rest.rpartition(":") if ":" in rest else ("", "", rest)
    split = split or "train"

    def load(library: Any) -> Any:
        if not Path(name).is_dir():
            return library.load_dataset(name, config or None, split=split)
        loaded = library.load_from_disk(name)
        if hasattr(loaded, "keys") and split not in loaded:
            raise UserError(f"source {where} has no split {split!r}; it has {', '.join(loaded)}: write hf:{name}:SPLIT")
        return loaded[split] if hasattr(loaded, "keys") else loaded

    return _rows(where, text_field, load)


DOCUMENTS: dict[str, Callable[[str, str], Iterator[str]]] = {
    "parquet": _parquet,
    "dataset": _dataset,
}


def _rows(where: str, text_field: str, load: Callable[[Any], Any]) -> Iterator[str]:
    """The texts of a Hugging Face dataset."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"source {where} needs the library datasets: pip install 'memory-mosaics[datasets]'") from None
    try:
        for number, row in enumerate(load(datasets), 1):
            yield text_of(row, text_field, f"source {where}, row {number}")
    except UserError:
        raise
    except Exception as error:  # the library raises whatever its readers and the network raise
        raise UserError(f"source {where} cannot be read by datasets: {one_line(error)}") from error
