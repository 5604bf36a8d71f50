"""What is wrong with a story, if anything. The first reason counts, in the order of `REASONS`."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from memory_mosaics.babistories.words import uses, words
from memory_mosaics.errors import UserError

REASONS = (
    "no answer",
    "refusal",
    "URL",
    "too short",
    "cut off",
    "other language",
    "wrong opening",
    "missing words",
    "near-duplicate",
)
URL = re.compile(r"https?:|www\.|\b[\w-]+\.(?-i:com|org|net|edu|gov|io|co|info|html?)\b", re.IGNORECASE)
MODEL = re.compile(r"\bas an? (?:ai|artificial intelligence)\b|\blanguage model\b", re.IGNORECASE)
NOT = r"i (?:can(?:no|['\u2019])t|can not|could not|am (?:unable|not able)|won['\u2019]t|will not|do not|don['\u2019]t)"
REFUSAL = re.compile(  # at the very beginning, and not what somebody says
    rf"[^\"“]{{0,60}}\b(?:i(?:['\u2019]m| am) (?:sorry,? (?:but\b|{NOT})|afraid,? (?:that )?(?:this|{NOT})|unable to\b)"
    r"|i (?:can|could) not write\b"
    r"|i (?:can(?:no|['\u2019])t|won['\u2019]t|will not) (?:write|help|assist|create|provide|fulfil))",
    re.IGNORECASE,
)
END = re.compile(r"[.!?…。\uff01\uff1f][^\w,;:(\[{\u2013\u2014-]*$")  # emoji and quotation marks may follow
THE_END = re.compile(r"(?:^|\n|[.!?…\"”]\s)[^\w\n]*the end\W*$", re.IGNORECASE)
HEADING = re.compile(
    r"^(?:#+ .*|\*\*[^*\n]{1,80}\*\*|title\s*:.*|story\s*:[^.!?]*|[\"“*]*the end[.!\"”*]*|[-*_~=# ]{3,})$",
    re.IGNORECASE,
)
LABEL = re.compile(r"^story\s*:\s*", re.IGNORECASE)
TAIL = re.compile(r"<\|endoftext\|>|</s>|<\|im_end\|>|<\|eot_id\|>")
LATIN = frozenset(  # languages, by the letters they are written in
    words("af ca cs cy da de en es et eu fi fr ga hr hu id is it la lt lv ms mt nl no pl pt ro sk sl sq sv sw tr vi")
)
PERMUTATIONS, BANDS, SHINGLE = 128, 32, 4
Cleaned = tuple[dict[str, Any], str, str | None]  # the entry, the tidied text, the reason to drop it
HALVES = 600  # characters from which the two halves are looked at alone


def tidy(text: str) -> str:
    """The story alone: without a heading, "The end", marks of the model's own, and quotation marks around it all."""
    lines = [line.rstrip() for line in TAIL.split(text)[0].replace("\r\n", "\n").strip().split("\n")]
    while lines and (not lines[0] or HEADING.match(lines[0].strip())):
        del lines[0]
    while lines and (not lines[-1] or HEADING.match(lines[-1].strip())):
        del lines[-1]
    text = LABEL.sub("", re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip())
    for opened, closed in ('""', "“”"):
        inside = text[1:-1]
        if text[:1] == opened and text[-1:] == closed and opened not in inside and closed not in inside:
            text = inside.strip()
    return text


@dataclass
class Cleaner:
    """Looks at stories one after the other; of those that are near-duplicates the first is kept."""

    language: str | None = "en"
    shortest: int = 50
    similarity: float = 0.7
    allow: frozenset[str] = frozenset()
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        unknown = sorted(self.allow - set(REASONS))
        if unknown:
            raise UserError(f"there is no reason {unknown[0]!r} to allow; they are {', '.join(REASONS)}")
        self._language = _languages(self.language)
        self._duplicates = _duplicates(self.similarity)

    def clean(self, entries: Iterable[dict[str, Any]]) -> Iterator[Cleaned]:
        """Each entry with its tidied text and the reason to drop it, None to keep it."""
        for entry in entries:
            text = tidy(entry["text"])
            reason = self.reason(entry, text)
            self.counts[reason or "kept"] += 1
            yield entry, text, reason

    def reason(self, entry: dict[str, Any], text: str) -> str | None:
        checks: dict[str, Callable[[], bool]] = {
            "no answer": lambda: not text,
            "refusal": lambda: bool(REFUSAL.match(text) or MODEL.search(text)),
            "URL": lambda: URL.search(text) is not None,
            "too short": lambda: len(text.split()) < self.shortest,
            "cut off": lambda: entry.get("finish") in ("length", "content_filter") or not _ends(entry["text"], text),
            "other language": lambda: not self._language(text),
            "wrong opening": lambda: not _begins(text, entry.get("opening", "")),
            "missing words": lambda: self._missing(entry, text),
            "near-duplicate": lambda: self._duplicates(text),
        }
        return next((name for name in REASONS if name not in self.allow and checks[name]()), None)

    def _missing(self, entry: dict[str, Any], text: str) -> bool:
        found = entry.get("words", {})  # by kind; in a list of words each may be of any
        wanted = list(found.items()) if isinstance(found, dict) else [(None, word) for word in found]
        wanted += [("name", entry["name"])] if entry.get("name") else []
        return not all(uses(text, word, kind) for kind, word in wanted)


def _ends(answer: str, text: str) -> bool:
    """Whether the last sentence is whole, or the answer says "The end"."""
    return bool(END.search(text) or THE_END.search(TAIL.split(answer)[0]))


def _begins(text: str, opening: str) -> bool:
    """Whether the first words are the asked ones, whatever the case and the marks between them."""
    asked = re.findall(r"\w+", opening.casefold())
    return re.findall(r"\w+", text[: 4 * len(opening) + 80].casefold())[: len(asked)] == asked


def _languages(language: str | None) -> Callable[[str], bool]:
    """Whether a text is of the language, in both halves, and of its letters."""
    if language is None:
        return lambda text: True
    try:
        import py3langid
    except ImportError:
        raise UserError(
            "telling languages needs py3langid: pip install 'memory-mosaics[babistories]', or give --language null"
        ) from None
    if language not in {code for code, _ in py3langid.rank("any text loads the model")}:
        raise UserError(f"there is no language {language!r}; it is a code of two letters such as en, de, fr, or null")

    def is_of(text: str) -> bool:
        if language in LATIN and not text.isascii():
            letters = [letter for letter in text if letter.isalpha()]
            foreign = sum(not unicodedata.name(letter, "").startswith("LATIN") for letter in letters if letter > "\x7f")
            if foreign > 0.02 * len(letters):
                return False
        middle = len(text) // 2
        parts = (text[:middle], text[middle:]) if len(text) >= HALVES else (text,)
        return all(py3langid.classify(part)[0] == language for part in parts)

    return is_of


def _duplicates(similarity: float) -> Callable[[str], bool]:
    """Whether a text is near to an earlier one: by MinHash of its runs of four words, and if not, remember it."""
    if not 0 < similarity <= 1:
        raise UserError(f"similarity must be in (0, 1], not {similarity}")
    try:
        import rensa  # in Rust, and needs nothing else
    except ImportError:
        raise UserError("finding near-duplicates needs rensa: pip install 'memory-mosaics[babistories]'") from None
    library: Any = rensa  # it comes without types
    seen = library.RMinHashDeduplicator(similarity, PERMUTATIONS, True, BANDS, 0)

    def is_known(text: str) -> bool:
        said = re.findall(r"\w+", text.casefold())
        runs = {" ".join(said[at : at + SHINGLE]) for at in range(max(1, len(said) - SHINGLE + 1))}
        sketch = library.RMinHash(num_perm=PERMUTATIONS, seed=0)
        sketch.update(sorted(runs))
        return not seen.add(str(seen.len()), sketch)

    return is_known
