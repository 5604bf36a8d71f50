"""A corpus: documents as ids in two flat files, train.bin and valid.bin, with the tokenizer and a manifest beside them.

`mosaics prepare` writes one, `Corpus.open` reads it. Every document is followed by the end-of-text id.
"""

import json
import platform
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from memory_mosaics.config import MAX_JOBS
from memory_mosaics.errors import UserError, check_range, one_line
from memory_mosaics.files import read_json
from memory_mosaics.text.documents import parse
from memory_mosaics.text.sources import Source, find_sources, read_blocks
from memory_mosaics.text.token_file import TokenFile
from memory_mosaics.text.tokenizer import Tokenizer, find, train_bpe
from memory_mosaics.text.workers import default_workers, token_dtype
from memory_mosaics.text.writing import CorpusWriter, WrittenMeanwhile, folder_written_whole, split_of, write_corpus
from memory_mosaics.version import __version__

FORMAT = 1
BPE_SAMPLE = 64 << 20  # bytes to learn merges from; more change few of them


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus. Nothing but the manifest is read until tokens are asked for."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> "Corpus":
        """Open a folder written by `mosaics prepare`, and check that its files have the lengths they should."""
        folder = Path(folder)
        file = folder / "manifest.json"
        try:
            manifest = read_json(file)
            if manifest["format"] != FORMAT:
                raise UserError(
                    f"{file} is of format {manifest['format']}, this version reads {FORMAT}: prepare it again"
                )
            _check_manifest(manifest)
        except FileNotFoundError:
            raise UserError(
                f"{folder} is not a corpus: it has no manifest.json; make one with mosaics prepare"
            ) from None
        except UserError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is damaged: {type(error).__name__} {one_line(error)}; prepare it again") from error
        for split in manifest["splits"].values():
            path, size = folder / split["file"], split["tokens"] * np.dtype(manifest["dtype"]).itemsize
            there = path.stat().st_size if path.is_file() else 0
            if there != size:
                raise UserError(f"{path} holds {there} bytes, the manifest says {size}: prepare the corpus again")
        return cls(folder, manifest)

    @property
    def vocabulary(self) -> int:
        return self.manifest["tokenizer"]["vocabulary"]

    @property
    def end_of_text(self) -> int:
        return self.manifest["tokenizer"]["end_of_text"]

    @property
    def fingerprint(self) -> dict[str, dict[str, str]]:
        """What tells its tokens from others."""
        return {"corpus": {name: split["sha256"] for name, split in self.manifest["splits"].items()}}

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the corpus was made with."""
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

    def tokens(self, split: str) -> TokenFile:
        """All ids of `train` or `valid`, one after the other, read from the disk where they are used.

        A file of up to a gigabyte is read once by each process, to compare it with its checksum.
        """
        if split not in self.manifest["splits"]:
            raise UserError(f"{self.folder} has no split {split!r}; it has {', '.join(self.manifest['splits'])}")
        tokens = self._file(split)
        tokens.check(self.manifest["splits"][split]["sha256"])
        return tokens

    def verify(self) -> None:
        """Read everything again and compare with the manifest's sha256."""
        for name, split in self.manifest["splits"].items():
            self._file(name).check(split["sha256"], limit=None)
        self.tokenizer()

    def _file(self, split: str) -> TokenFile:
        part = self.manifest["splits"][split]
        dtype = np.dtype(self.manifest["dtype"]).newbyteorder("<")
        return TokenFile(self.folder / part["file"], dtype, part["tokens"], self.vocabulary)


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Refuse, as ValueError, a manifest that `mosaics prepare` cannot have written."""

    def check(name: str, value: Any, right: bool, wanted: str) -> None:
        if not right:
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
    named = isinstance(sources, list) and all(isinstance(source, dict) for source in sources)
    check("sources", sources, named, "a list of records")
    check("options", options, isinstance(options, dict), "names and values")


def run(
    sources: list[str],
    *,
    out: Path,
    tokenizer: str = "gpt2",
    vocabulary: int = 2048,
    field: str = "text",
    valid: list[str] | None = None,
    valid_share: float = 0.01,
    seed: int = 0,
    workers: int | None = None,
) -> Corpus:
    """Turn texts into a corpus to train on: train.bin, valid.bin, the tokenizer and a manifest.

    Args:
        sources: files (.txt with lines <|endoftext|> between documents, .jsonl of strings or objects, .parquet; .gz of
            them), directories of these, hf:NAME[[:CONFIG]:SPLIT] for a Hugging Face dataset, stories:COUNT[:SEED]
        out: the folder to write; it appears when everything is done
        tokenizer: gpt2, bytes, bpe to learn one from the sources, or a folder with a tokenizer.json
        vocabulary: how many ids a learnt bpe has
        field: where an object of JSON lines or a dataset holds its text
        valid: sources to validate on; without them a share of the documents is held out
        valid_share: the share of documents held out for validation, chosen by a hash of the seed and their number
        seed: chooses the documents held out
        workers: processes to encode with; the result does not depend on it
    """
    if not 0 <= valid_share < 1:
        raise UserError(f"valid_share must be at least 0 and below 1, not {valid_share}")
    check_range(1, MAX_JOBS, workers=workers)
    groups = {"train": find_sources(sources), "valid": find_sources(valid or [])}
    if not groups["train"]:
        raise UserError("no source was named; name a file, a directory, hf:NAME or stories:COUNT")
    share = 0.0 if valid else valid_share
    chosen = None if tokenizer == "bpe" else find(tokenizer)
    options = {"tokenizer": chosen.name if chosen else f"bpe-{vocabulary}"}
    options |= {"field": field, "valid_share": share, "seed": seed}
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        return _already_there(out, groups, options, chosen)
    start = time.monotonic()
    try:
        with folder_written_whole(out) as tmp:
            if chosen is None:
                held_out = partial(split_of, seed=seed, valid_share=share)
                chosen = train_bpe(
                    _sample(find_sources(sources), field, held_out), vocabulary, name=f"bpe-{vocabulary}"
                )
            writer = CorpusWriter(tmp, seed=seed, valid_share=share)
            number = workers or default_workers([*groups["train"], *groups["valid"]])
            write_corpus(writer, groups, chosen, text_field=field, workers=number)
            _check_counts(writer, share)
            chosen.save(tmp)
            manifest = _manifest(writer, groups, chosen, options)
            (tmp / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8", newline="\n")
    except WrittenMeanwhile:
        print(f"mosaics: another process has written {out} meanwhile", file=sys.stderr)
        groups = {"train": find_sources(sources), "valid": find_sources(valid or [])}
        return _already_there(out, groups, options, chosen)
    _report(manifest, time.monotonic() - start, f"{chosen.engine}, {number} process{'es' if number > 1 else ''}")
    print(f"written: {out}")
    return Corpus.open(out)


def _sample(sources: list[Source], text_field: str, split_of_document: Callable[[int], str]) -> Iterator[str]:
    """Training documents, or parts of long ones, evenly spread, to learn merges from."""
    from tqdm import tqdm

    size = sum(source.size or 0 for source in sources)
    share = min(1.0, BPE_SAMPLE / max(1, size))
    blocks = (block for source in sources for block in read_blocks(source, text_field=text_field, whole=False))
    number, index = -1, 0
    with tqdm(total=size or None, unit="B", unit_scale=True, disable=None, desc="learn bpe") as progress:
        for block in blocks:
            for piece in parse(block, text_field):
                number += piece.begins
                index += 1
                if int(index * share) > int((index - 1) * share) and split_of_document(number) == "train":
                    yield piece.text
            progress.update(block.read)


def _check_counts(writer: CorpusWriter, valid_share: float) -> None:
    """Refuse a corpus with nothing to train or to validate on."""
    train, valid = (writer.splits[name].documents for name in ("train", "valid"))
    if train == 0 or (valid == 0 and valid_share > 0):
        empty = "validate" if train else "train"
        raise UserError(
            f"nothing to {empty} on: {train + valid} document{'s'[: train + valid != 1]} and a valid_share of "
            f"{valid_share}; change it, set it to 0 for no validation, or name files with --valid"
        )


def _manifest(
    writer: CorpusWriter, groups: dict[str, list[Source]], tokenizer: Tokenizer, options: dict[str, Any]
) -> dict[str, Any]:
    """Nothing in it depends on the time, the place or the number of workers."""
    versions = {"memory-mosaics": __version__, "python": platform.python_version(), "numpy": np.__version__}
    if tokenizer.engine != "bytes":
        versions[tokenizer.engine] = version(tokenizer.engine)
    return {
        "format": FORMAT,
        "dtype": np.dtype(token_dtype(tokenizer.vocabulary)).name,
        "tokenizer": {
            "name": tokenizer.name,
            "vocabulary": tokenizer.vocabulary,
            "end_of_text": tokenizer.end_of_text,
            "fingerprint": tokenizer.fingerprint,
        },
        "splits": {name: split.summary() for name, split in writer.splits.items()},
        "sources": [source.summary() | {"split": name} for name, group in groups.items() for source in group],
        "options": options,
        "versions": versions,
    }


def _already_there(
    out: Path, groups: dict[str, list[Source]], options: dict[str, Any], tokenizer: Tokenizer | None
) -> Corpus:
    """The corpus in `out`, if it was made from the same sources with the same options."""
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
    sources = [source | {"documents": None} for source in known["sources"]]
    for name, group in groups.items():
        for source in group:
            for _ in read_blocks(source, text_field=options["field"], whole=False):
                pass
            if source.summary() | {"split": name, "documents": None} not in sources:
                raise UserError(f"{out} was prepared without {source.where} as it is now; {remedy}")
    if len(sources) != sum(map(len, groups.values())):
        raise UserError(f"{out} was prepared from {len(sources)} sources, not these; {remedy}")
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
