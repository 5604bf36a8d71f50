"""From blocks of bytes to documents: plain text, and JSON lines. The errors name the file, the line and the byte."""

import json
import re
from dataclasses import dataclass
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.text.vocabulary import END_OF_TEXT

SEPARATOR = re.compile(rf"^{re.escape(END_OF_TEXT)}\r?$", re.MULTILINE)
EACH_LINE = "each line should be a JSON string or object"


@dataclass(frozen=True)
class Block:
    """Some lines of a file, or some documents. `line` and `byte` say where it begins, `read` what it took to read."""

    name: str
    kind: str
    data: bytes | list[str]
    line: int
    byte: int
    read: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Piece:
    """A document, or a part of a long one, and whether it is its beginning and its end."""

    text: str
    begins: bool = True
    ends: bool = True


def parse(block: Block, text_field: str) -> list[Piece]:
    """The documents of a block, without the empty ones."""
    if isinstance(block.data, list):
        for number, text in enumerate(block.data, block.line):
            check_text(text, f"source {block.name}, document {number}")
        return [Piece(text) for text in block.data if not text.isspace() and text]
    try:
        text = block.data.decode()
    except UnicodeDecodeError as error:
        line = block.line + block.data.count(b"\n", 0, error.start)
        bad, byte = block.data[error.start], block.byte + error.start
        raise UserError(
            f"source {block.name}, line {line}: byte {byte} is {bad:#04x}, which is not UTF-8 ({error.reason}); "
            "convert it with iconv -t UTF-8"
        ) from None
    return _texts(block, text) if block.kind == "text" else _json_lines(block, text, text_field)


def _texts(block: Block, text: str) -> list[Piece]:
    """Documents stand between lines `<|endoftext|>`; the line ends around them are not part of them."""
    parts = SEPARATOR.split(text)
    pieces = []
    for index, part in enumerate(parts):
        begins = index > 0 or block.first
        ends = index < len(parts) - 1 or block.last
        part = part.lstrip("\r\n") if begins else part
        part = part.rstrip("\r\n") if ends else part
        if not (begins and ends and not part.strip()):
            pieces.append(Piece(part, begins, ends))
    return pieces


def _json_lines(block: Block, text: str, text_field: str) -> list[Piece]:
    """Each line is a JSON string, or an object whose field `text_field` is one."""
    pieces = []
    for number, line in enumerate(text.split("\n"), block.line):
        if line.strip():
            where = f"source {block.name}, line {number}"
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{where} is not JSON: {error.msg}, column {error.colno}; {EACH_LINE}") from None
            except (ValueError, RecursionError) as error:  # a number or a nesting beyond what Python reads
                raise UserError(f"{where} cannot be read: {one_line(error)}") from None
            document = value if isinstance(value, str) else text_of(value, text_field, where)
            check_text(document, where)
            pieces.append(Piece(document))
    return [piece for piece in pieces if piece.text.strip()]


def text_of(row: Any, text_field: str, where: str) -> str:
    """The text in an object's field."""
    if not isinstance(row, dict):
        raise UserError(f"{where} is {_json_name(row)}; {EACH_LINE}")
    if text_field not in row:
        raise UserError(
            f"{where} has no field {text_field!r}; it has {', '.join(map(str, row))}: name one with --field"
        )
    if not isinstance(row[text_field], str):
        raise UserError(f"{where}: field {text_field!r} is {_json_name(row[text_field])}, not a string")
    return row[text_field]


def _json_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", int: "a number"}
    return names.get(type(value), "a number" if isinstance(value, float) else f"a {type(value).__name__}")


def check_text(text: str, where: str) -> None:
    """Refuse what JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(f"{where} holds half a surrogate pair, {half}, which is no character") from None
