"""Atomic writes of files and folders, bounded reads of untrusted files, checksums, comparison of configurations."""

import json
import os
import platform
import re
import shutil
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

from memory_mosaics.errors import CheckpointError, UserError, one_line


@contextmanager
def atomic_write(file: Path) -> Iterator[Path]:
    """Yield a temporary path that is flushed and renamed to `file` at the end, or removed if anything fails."""
    if file.exists() and not file.is_file():
        raise UserError(f"cannot write {file}: it exists and is not a regular file")
    tmp = temporary_path(file)
    try:
        yield tmp
        flush(tmp)
        tmp.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {one_line(error)}") from error
    finally:
        remove_temporary(tmp)


def write_text(file: Path, text: str) -> None:
    """Write a UTF-8 text file atomically."""
    with atomic_write(file) as tmp:
        tmp.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` at the end, or is removed if anything fails.

    Only an empty folder is replaced: OSError where another process has written to it meanwhile.
    """
    target = folder.resolve()
    tmp = temporary_path(target)
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        tmp.mkdir(parents=True)
        yield tmp
        publish_folder(tmp, target)
        missing = []
    finally:
        remove_temporary(tmp)
        for parent in missing:
            with suppress(OSError):
                parent.rmdir()


def publish_folder(tmp: Path, target: Path) -> None:
    """Flush a temporary folder and rename it to `target`."""
    for path in (*tmp.rglob("*"), tmp):
        flush(path)
    if target.is_dir():
        target.rmdir()  # fails unless it is empty
    tmp.rename(target)
    flush(target.parent)


_IN_USE: set[str] = set()  # names of temporary files and folders of this process
_NUMBERS = count()


def temporary_path(target: Path) -> Path:
    """Return a hidden path beside `target` whose name has the process and the machine that write it.

    Temporary files that killed processes of this machine left in the folder are removed first.
    """
    remove_leftovers(target.parent)
    path = target.with_name(f".{target.name}.{next(_NUMBERS)}.{os.getpid()}@{platform.node()}.part")
    _IN_USE.add(path.name)
    return path


def remove_temporary(path: Path) -> None:
    """Remove a temporary file or folder, if it exists."""
    _IN_USE.discard(path.name)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders of processes of this machine that no longer exist."""
    ours = re.compile(rf"\..+\.(\d+)@{re.escape(platform.node())}\.part")
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        if (found := ours.fullmatch(name)) and not _in_use(name, int(found[1])):
            remove_temporary(folder / name)


def _in_use(name: str, process: int) -> bool:
    if process == os.getpid():
        return name in _IN_USE  # else left by an earlier process with the same number
    if sys.platform == "win32":
        return True  # there, signal 0 is not a mere query
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass  # it exists and belongs to another user
    return True


def flush(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def first_difference(theirs: Any, mine: Any, name: str = "") -> tuple[str, Any, Any] | None:
    """Return the dotted name and both values of the first field in which two nested dictionaries differ."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        keys = [*mine, *(key for key in theirs if key not in mine)]
        found = (first_difference(theirs.get(key), mine.get(key), f"{name}.{key}".strip(".")) for key in keys)
        return next((difference for difference in found if difference), None)
    return None if theirs == mine else (name, theirs, mine)


MAX_JSON_BYTES = 64 << 20  # the largest configuration, tokenizer or manifest that is read


def check_regular(file: Path) -> int:
    """Return the size of a file without opening it; UserError for a device, FIFO or folder."""
    found = file.stat()
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{file} is not a regular file")
    return found.st_size


def check_folder(folder: Path) -> None:
    """Refuse a folder in which another library would read a device, a FIFO or an oversized settings file."""
    for file in folder.iterdir():
        if not file.is_dir() and check_regular(file) > MAX_JSON_BYTES and file.suffix in (".json", ".jinja", ".txt"):
            raise UserError(f"{file} is larger than the {MAX_JSON_BYTES:,} bytes that such a file may have")


def read_bytes(file: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; devices and FIFOs are never opened.

    Raises OSError where there is no such file, and UserError for one that is too large or not a regular file.
    """
    content = b""
    if (size := check_regular(file)) <= limit:
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    if max(size, len(content)) > limit:
        raise UserError(f"{file} is larger than the {limit:,} bytes that such a file may have")
    return content


def read_text(file: Path, limit: int = MAX_JSON_BYTES) -> str:
    """Return the UTF-8 text of a regular file of at most `limit` bytes."""
    try:
        return read_bytes(file, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text: {one_line(error)}; convert it with iconv -t UTF-8") from error


def parse_json(text: str) -> Any:
    """Parse a JSON text; ValueError also for what could not be written again: a lone surrogate, NaN."""
    value = json.loads(text, parse_constant=_finite, parse_float=_finite)
    if re.search(r"\\ud[89a-f]", text, re.IGNORECASE):
        json.dumps(value, ensure_ascii=False).encode()
    return value


def _finite(text: str) -> float:
    if not isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def read_json(file: Path) -> Any:
    """Return the JSON value of a file. A missing file raises FileNotFoundError, a damaged one UserError."""
    try:
        return parse_json(read_text(file))
    except (FileNotFoundError, NotADirectoryError, UserError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged or not JSON: {one_line(error)}") from error


MAX_YAML_DEPTH = MAX_YAML_ALIASES = 100  # deeper, PyYAML overflows its stack; nested aliases could grow without bound


def check_yaml(text: str, limit: int = MAX_JSON_BYTES) -> str:
    """Return a YAML or JSON text unless it is too large to parse, nested too deeply or full of aliases."""
    import yaml

    if len(text) > limit:
        raise UserError(f"a YAML text of {len(text):,} characters is larger than the {limit:,} that it may have")
    has_anchor: list[bool] = []  # of the collections that are open
    aliases = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            has_anchor.append(event.anchor is not None)
        elif isinstance(event, yaml.CollectionEndEvent):
            has_anchor.pop()
        is_alias = isinstance(event, yaml.AliasEvent)
        aliases += is_alias
        if len(has_anchor) > MAX_YAML_DEPTH or aliases > MAX_YAML_ALIASES or (is_alias and any(has_anchor)):
            bounds = f"{MAX_YAML_DEPTH} levels and {MAX_YAML_ALIASES} aliases, none within an anchor"
            raise UserError(f"YAML may have at most {bounds}, and line {event.start_mark.line + 1} has more")
    return text


def read_yaml(file: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """Return the YAML value of a file. A missing file raises FileNotFoundError, a damaged one UserError."""
    import yaml

    text = read_text(file, limit)
    try:
        return yaml.safe_load(check_yaml(text, limit))
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{file} is damaged or not YAML: {one_line(error)}") from error


MANIFEST = "manifest.json"  # of a training checkpoint: its files with their sizes and checksums


def describe_files(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the size and CRC-32 of files: fast, and enough against flipped bits and truncation."""
    return {name: {"bytes": (folder / name).stat().st_size, "crc32": _crc32(folder / name)} for name in names}


def _crc32(file: Path) -> str:
    checksum = 0
    with file.open("rb") as stream:
        while block := stream.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return f"{checksum:08x}"


RESTORE = f"restore it, or remove {MANIFEST} if the change is wanted"


class ManifestError(CheckpointError):
    """A file of a checkpoint does not match its manifest: `what` is wrong, and the `remedy`."""

    def __init__(self, folder: Path, what: str, remedy: str = RESTORE):
        super().__init__(folder, what, remedy)  # pickle builds a copy from these: processes send each other errors
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.what}; {self.remedy}"


def read_manifest(folder: Path) -> dict[str, dict[str, Any]] | None:
    """Return the files that a manifest lists; None without a manifest, or for the manifest of a corpus."""
    try:
        found = read_json(folder / MANIFEST)
        if isinstance(found, dict) and "files" not in found and "splits" in found:
            return None
        if not all({"bytes", "crc32"} <= about.keys() for about in found["files"].values()):
            raise ValueError("a size or a checksum is missing")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ManifestError(folder, f"{MANIFEST} is damaged: {one_line(error)}") from error
    return found["files"]


def check_manifest(folder: Path, names: Iterable[str]) -> None:
    """Refuse files about to be read that do not match the manifest, naming the first.

    A folder without a manifest passes.
    """
    if (manifest := read_manifest(folder)) is None:
        return
    for name in names:
        file = folder / name
        if name not in manifest:
            if file.exists():
                raise ManifestError(folder, f"{name} is not in {MANIFEST}", "remove that file")
            continue
        try:
            size, wanted = check_regular(file), manifest[name]
        except OSError as error:
            raise ManifestError(folder, f"{name} is in {MANIFEST}, and cannot be read: {one_line(error)}") from error
        if size != wanted["bytes"]:
            raise ManifestError(folder, f"{name} has {size} bytes, and {MANIFEST} says {wanted['bytes']}")
        if (found := _crc32(file)) != wanted["crc32"]:
            what = f"its CRC-32 is {found}, and {MANIFEST} says {wanted['crc32']}"
            raise ManifestError(folder, f"{name} is damaged: {what}")
