"""Documents to prepare a corpus from: text files, JSON lines, Hugging Face datasets, generators that apps register.

A source is read as a stream, so that a corpus of any size takes little memory. Error messages name the file, the line
and, for bytes that are not UTF-8, the byte.
"""

import codecs
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.text.tokenizer import END_OF_TEXT, check_unicode

SUFFIXES = {".txt": "text", ".text": "text", ".md": "text", ".jsonl": "json", ".ndjson": "json", ".json": "json"}
SUFFIXES |= {".parquet": "parquet"}
BLOCK_BYTES = 1 << 20
MAX_RUN_BYTES = 1 << 20  # of text without whitespace to split at; a longer run is split between two characters
MAX_DOCUMENT_BYTES = 32 << 20  # of a document that cannot be split
MARGIN = len(END_OF_TEXT) + 4  # characters around a split in such a run that contain no part of a separator
BYTE_ORDER_MARK = "\ufeff"
SEPARATOR = re.compile(rf"^{re.escape(END_OF_TEXT)}\r?$", re.MULTILINE)
COMPLETE_DOCUMENTS = re.compile(rf".*^{re.escape(END_OF_TEXT)}\r?\n", re.MULTILINE | re.DOTALL)
# Ends before whitespace that follows a letter, so that no run of whitespace is split, and not after a separator.
COMPLETE_WORDS = re.compile(rf".*(?=[ \n])(?<=\S)(?<!{re.escape(END_OF_TEXT)})", re.DOTALL)
EACH_LINE = "each line should be a JSON string or object"

# Filled by apps: `SCHEME:...` is a source whose name the function checks, and whose documents it generates.
GENERATORS: dict[str, Callable[[str], Iterator[str]]] = {}


class Piece(NamedTuple):
    """A document, or a part of a long one."""

    text: str
    is_start: bool = True
    is_end: bool = True


@dataclass
class Source:
    """One file, dataset or generator, with what the last reading has counted: bytes, their SHA-256, documents."""

    name: str
    kind: str  # text, json, parquet, dataset, or the scheme of a generator
    where: str
    size: int | None = None  # in bytes, if known before reading
    split: str = "train"  # that its documents belong to
    bytes_read: int = 0
    documents: int = 0
    sha: Any = field(default_factory=hashlib.sha256)

    def count(self, data: bytes | memoryview) -> None:
        self.bytes_read += len(data)
        self.sha.update(data)

    def summary(self) -> dict[str, Any]:
        """Return its entry in the manifest."""
        counts = {"bytes": self.bytes_read, "sha256": self.sha.hexdigest(), "documents": self.documents}
        return {"name": self.name, **counts, "split": self.split}


def find_sources(names: Iterable[str]) -> list[Source]:
    """Resolve names from the command line, in order. A directory stands for the files in it, sorted by name."""
    return [source for name in names for source in _find(name)]


def _find(name: str) -> list[Source]:
    scheme, _, rest = name.partition(":")
    if scheme in GENERATORS and rest:
        GENERATORS[scheme](name)  # checks the name; generates nothing yet
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
            suffixes = ", ".join(suffix for suffix in SUFFIXES if suffix != ".json")  # too often a file of settings
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
        raise UserError(f"source {path}: its name should end in {', '.join(SUFFIXES)} (with or without .gz)")
    if size == 0:
        raise UserError(f"source {path} is empty")
    return Source(name, kind, str(path), None if kind == "parquet" else size)


def _kind(path: Path) -> str | None:
    return SUFFIXES.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def read_documents(
    source: Source, *, text_field: str, whole: bool = False, block_bytes: int = BLOCK_BYTES
) -> Iterator[Piece]:
    """Read the documents of a source, without the empty ones.

    A long document of a text file comes in several pieces, split before whitespace; with `whole` no document is split.
    A run of 1 MiB without whitespace is split between two characters. A document that cannot be split (a line of JSON,
    a row, or with `whole` any document) has at most 32 MiB.
    """
    source.bytes_read, source.documents, source.sha = 0, 0, hashlib.sha256()
    try:
        if source.kind == "text":
            yield from _read_text(source, whole, block_bytes)
        elif source.kind == "json":
            yield from _read_json_lines(source, text_field)
        else:
            yield from _read_rows(source, text_field)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"source {source.where} is a damaged or truncated .gz: {one_line(error)}") from error
    except OSError as error:
        raise UserError(f"source {source.where} cannot be read: {one_line(error)}") from error


class _CountingFile(io.FileIO):
    """The file of a source, whose bytes are counted and hashed as they are read."""

    def __init__(self, source: Source):
        super().__init__(source.where)
        self.source = source

    def readinto(self, buffer: Any) -> int:
        size = super().readinto(buffer) or 0
        self.source.count(memoryview(buffer)[:size])
        return size


@contextmanager
def _open(source: Source) -> Iterator[Any]:
    with io.BufferedReader(_CountingFile(source), BLOCK_BYTES) as file:
        yield gzip.GzipFile(fileobj=file) if source.where.lower().endswith(".gz") else file


def _decode(data: bytes, source: Source, line: int, offset: int, *, final: bool = True) -> tuple[str, int]:
    """Decode the bytes of a file that start at a line and an offset; returns also how many bytes the text takes.

    Unless the data is `final`, an incomplete character at its end is left out.
    """
    try:
        return codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        byte = f"byte {offset + error.start} is {data[error.start]:#04x}"
        raise UserError(
            f"source {source.where}, line {line}: {byte}, which is not UTF-8 ({error.reason}); "
            "convert it with iconv -t UTF-8"
        ) from None


def _check_length(length: int, where: str, unit: str) -> None:
    if length > MAX_DOCUMENT_BYTES:
        limit = f"a {unit} of more than {MAX_DOCUMENT_BYTES >> 20} MiB would have to be read whole"
        remedy = f"put lines {END_OF_TEXT} between documents" if unit == "text" else "make several documents of it"
        raise UserError(f"{where}: {limit}; {remedy}")


def _read_json_lines(source: Source, text_field: str) -> Iterator[Piece]:
    """Read a JSON string, or an object whose `text_field` is one, from each line that is not blank."""
    number = offset = 0
    is_first = True
    with _open(source) as file:
        while line := file.readline(MAX_DOCUMENT_BYTES + 1):
            number += 1
            where = f"source {source.where}, line {number}"
            _check_length(len(line), where, "line")
            text, _ = _decode(line, source, number, offset)
            text = text.removeprefix(BYTE_ORDER_MARK) if offset == 0 else text
            offset += len(line)
            if not text.strip():
                continue
            if is_first and text.lstrip().startswith("["):
                raise UserError(f"source {source.where} is one JSON list: make lines of it with jq -c '.[]'")
            is_first = False
            try:
                value = json.loads(text.removesuffix("\n"))
            except json.JSONDecodeError as error:
                raise UserError(f"{where} is not JSON: {error.msg}, column {error.colno}; {EACH_LINE}") from None
            except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python reads
                raise UserError(f"{where} cannot be read: {one_line(error)}") from None
            document = value if isinstance(value, str) else _text_field(value, text_field, where)
            check_unicode(document, where)
            if document.strip():
                yield Piece(document)


def _text_field(row: Any, name: str, where: str) -> str:
    """Return the text in a field of an object."""
    if not isinstance(row, dict):
        raise UserError(f"{where} is {_json_type(row)}; {EACH_LINE}")
    if name not in row:
        raise UserError(f"{where} has no field {name!r}; it has {', '.join(map(str, row))}: name one with --field")
    if not isinstance(row[name], str):
        raise UserError(f"{where}: field {name!r} is {_json_type(row[name])}, not a string")
    return row[name]


def _json_type(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def _read_text(source: Source, whole: bool, block_bytes: int) -> Iterator[Piece]:
    """Read documents between lines `<|endoftext|>`, block by block."""
    complete = COMPLETE_DOCUMENTS if whole else COMPLETE_WORDS
    text, undecoded, line, offset, is_first = "", b"", 1, 0, True
    with _open(source) as file:
        while data := file.read(block_bytes):
            data, searched = undecoded + data, len(text)
            more, used = _decode(data, source, line, offset, final=False)
            text += more.removeprefix(BYTE_ORDER_MARK) if offset == 0 else more
            undecoded, line, offset = data[used:], line + data.count(b"\n", 0, used), offset + used
            size = len(text.encode())
            if size < block_bytes:
                continue
            found = complete.match(text, max(1, searched - MARGIN))
            end = found.end() if found else 0
            if not end and not whole and size >= MAX_RUN_BYTES:
                end = _split_run(text)
            if end:
                yield from _split_documents(text[:end], is_first, is_last=whole)
                text, is_first = text[end:], whole
            else:
                _check_length(size, f"source {source.where}, line {line - text.count(chr(10))}", "text")
    _decode(undecoded, source, line, offset)
    yield from _split_documents(text, is_first, is_last=True)


def _split_documents(text: str, is_first: bool, is_last: bool) -> Iterator[Piece]:
    """Split a block at its separators. Line ends around a document are not part of it."""
    parts = SEPARATOR.split(text)
    for index, part in enumerate(parts):
        is_start, is_end = index > 0 or is_first, index < len(parts) - 1 or is_last
        part = part.lstrip("\r\n") if is_start else part
        part = part.rstrip("\r\n") if is_end else part
        if not (is_start and is_end) or part.strip():
            yield Piece(part, is_start, is_end)


def _split_run(text: str) -> int:
    """Return an index near the end that is not near a separator; or 0."""
    indices = range(len(text) - MARGIN, MARGIN, -MARGIN)
    return next((end for end in indices if END_OF_TEXT not in text[end - MARGIN : end + MARGIN]), 0)


def _read_rows(source: Source, text_field: str) -> Iterator[Piece]:
    """Read the texts of a generator or a Hugging Face dataset."""
    generate = GENERATORS.get(source.kind)
    for number, text in enumerate(generate(source.where) if generate else _dataset_texts(source, text_field), 1):
        where = f"source {source.where}, row {number}"
        data = text.encode(errors="surrogatepass") + b"\0"
        source.count(data)
        _check_length(len(data), where, "row")
        check_unicode(text, where)
        if text.strip():
            yield Piece(text)


def _dataset_texts(source: Source, text_field: str) -> Iterator[str]:
    try:
        import datasets
    except ImportError:
        extra = "pip install 'memory-mosaics[datasets]'"
        raise UserError(f"source {source.where} needs the library datasets: {extra}") from None
    try:
        for number, row in enumerate(_load_dataset(datasets, source), 1):
            yield _text_field(row, text_field, f"source {source.where}, row {number}")
    except UserError:
        raise
    except Exception as error:  # the library raises whatever its readers and the network raise
        raise UserError(f"source {source.where} cannot be read by datasets: {one_line(error)}") from error


def _load_dataset(datasets: Any, source: Source) -> Iterable[Any]:
    if source.kind == "parquet":
        return datasets.load_dataset("parquet", data_files=source.where, split="train", streaming=True)
    name, rest = source.where, ""
    if name.startswith("hf:"):
        name, _, rest = name.removeprefix("hf:").partition(":")
    config, _, split = rest.rpartition(":") if ":" in rest else ("", "", rest)
    split = split or "train"
    if not Path(name).is_dir():
        return datasets.load_dataset(name, config or None, split=split)
    loaded = datasets.load_from_disk(name)
    if not hasattr(loaded, "keys"):
        return loaded
    if split not in loaded:
        has = f"it has {', '.join(loaded)}: write hf:{name}:SPLIT"
        raise UserError(f"source {source.where} has no split {split!r}; {has}")
    return loaded[split]
