"""What requests are about, and what is remembered between them.

Every request says all that it is about: model, text, edits. A session only keeps what was read for the last one, so
that little has to be read again; one that is gone costs time and nothing else.
"""

import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from memory_mosaics.apps.explorer import analysis
from memory_mosaics.apps.explorer.edits import Edit, Layer
from memory_mosaics.apps.explorer.reading import Engine, Reading
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError

CHARACTERS, TOKENS = 20_000, 4096  # of a text
EDITS = 64

Memory = tuple[int, str, int]  # block, "sequence" or "channel", head


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """An edit as the page asks for it: of a whole memory, of a slot, or of a pair of the text.

    A pair says with `mark` which text it is of. To be written anew, it has the token, or what was typed for one.
    """

    block: int
    kind: str
    head: int
    place: int | None = None
    mark: int | None = None
    token: int | None = None
    text: str | None = None


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a request is about."""

    text: str
    model: int = 0
    session: str = ""
    edits: Sequence[Wanted] = ()


@dataclass(frozen=True, kw_only=True)
class Look:
    """Where to look: at which token, at which memory closely, and at what all memories add to which token.

    The token is that at `position`, that with the last of so many `letters` of the text, or else the last. `target` is
    a token's id, a text of which the first token is meant, or else the token expected most.
    """

    position: int | None = None
    letters: int | None = None
    memory: Memory | None = None
    target: int | str | None = None


class Session:
    """One text in one model: read as it is, and with edits."""

    def __init__(self, trained: LoadedModel, engine: Engine):
        self.trained, self.engine = trained, engine
        self.plain, self.edited = Reading(engine), Reading(engine)
        self.spelt: list[str] = []  # the letters that each token adds
        self.ends: list[int] = []  # how many letters there are up to the end of each
        self.marks: list[int] = []  # a checksum of all tokens up to each
        self.made: list[Edit] = []
        self.undone = 0  # edits of which the text has changed
        self.refused: list[str] = []  # why others were not made

    @property
    def reading(self) -> Reading:
        """With the edits, if there are any."""
        return self.edited if self.made else self.plain

    def read(self, asked: Asked) -> None:
        """Be at this text with these edits."""
        if len(asked.text) > CHARACTERS:
            raise UserError(f"the text has {len(asked.text):,} characters; at most {CHARACTERS:,} are read")
        if len(asked.edits) > EDITS:
            raise UserError(f"{len(asked.edits)} edits are too many; at most {EDITS} can be made")
        tokens = self.trained.tokenizer.encode(asked.text)
        longest = min(TOKENS, self.trained.model.max_positions or TOKENS)
        if len(tokens) > longest:
            raise UserError(f"the text has {len(tokens):,} tokens; {self.trained.name} reads at most {longest:,} here")
        if tokens != self.plain.tokens:
            self.spelt = analysis.spelt(self.trained.tokenizer, tokens)
            self.ends = list(accumulate(map(len, self.spelt)))
            self.marks = list(accumulate(tokens, lambda mark, token: zlib.crc32(b"%d " % token, mark), initial=0))[1:]
        self.plain.read(tokens)
        self.undone, self.refused = 0, []
        self.made = list(dict.fromkeys(edit for one in asked.edits if (edit := self._edit(one))))
        if self.made or self.edited.edits:
            self.edited.read(tokens if self.made else [], self.made, self.plain)

    def _edit(self, wanted: Wanted) -> Edit | None:
        layer, head = self.memory((wanted.block, wanted.kind, wanted.head))
        edit = Edit(block=wanted.block, kind=wanted.kind, head=head, place=wanted.place, token=wanted.token)
        peek, written = self.engine.peek(layer), wanted.token is not None or wanted.text is not None
        if written and (wanted.place is None or peek is None):
            raise UserError("only pairs that come from the text can be written anew")
        if wanted.place is None:
            return edit
        if peek is None:
            slots = self.engine.slots(layer) or 0
            if not 0 <= wanted.place < slots:
                raise UserError(f"there is no slot {wanted.place} among {slots}")
            return edit
        if wanted.mark is None:
            raise UserError(f"the edit of pair {wanted.place} does not say which text it is about")
        value = wanted.place + peek
        if not 0 <= wanted.place <= value < len(self.marks) or self.marks[value] != wanted.mark:
            self.undone += 1
            return None
        return self._written(edit, wanted, value) if written else edit

    def _written(self, edit: Edit, wanted: Wanted, at: int) -> Edit | None:
        """With the one token that was typed, which begins with a blank if that in its place does."""
        token = wanted.token
        if token is None:
            text = wanted.text or ""
            text = f" {text}" if self.spelt[at].startswith(" ") and not text.startswith(" ") else text
            tokens = self.trained.tokenizer.encode(text)
            if len(tokens) != 1:
                parts = ", ".join(f"“{self.trained.tokenizer.display(one)}”" for one in tokens)
                remedy = f"not the {len(tokens)} of “{text}”: {parts}" if tokens else "and none was given"
                self.refused.append(f"The pair was not written: it holds one token, {remedy}.")
                return None
            token = tokens[0]
        self.check_token(token)
        return replace(edit, token=token)

    def described(self, edit: Edit) -> dict[str, Any]:
        """An edit as it is sent to the page, which asks for it again by all but `words`: those name its pair."""
        found: dict[str, Any] = {"block": edit.block, "kind": edit.kind, "head": edit.head, "place": edit.place}
        text = None if edit.token is None else self.trained.tokenizer.display(edit.token)
        found |= {"token": edit.token, "text": text, "mark": None, "words": None}
        peek = self.engine.peek(edit.layer)
        if edit.place is not None and peek is not None:
            value = edit.place + peek
            found["mark"] = self.marks[value]
            found["words"] = [self.word(at) for at in sorted({edit.place, value})]
        return found

    def word(self, position: int) -> str:
        """A token of the text by itself."""
        return self.spelt[position] or self.trained.tokenizer.display(self.plain.tokens[position])

    def token_at(self, letters: int) -> int:
        """The token that holds the last of so many letters."""
        return min(bisect_left(self.ends, letters), max(0, len(self.ends) - 1))

    def memory(self, memory: Memory) -> tuple[Layer, int]:
        """The layer and the head of a memory that there is."""
        block, kind, head = memory
        if self.engine.has(memory):
            return (block, kind), head
        raise UserError(f"there is no {kind} memory {head} in block {block} of {self.trained.name}")

    def check_token(self, token: int) -> None:
        """That the model has it."""
        if not 0 <= token < self.trained.model.config.vocabulary:
            raise UserError(f"there is no token {token}")
