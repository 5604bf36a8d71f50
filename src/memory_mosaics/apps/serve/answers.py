"""From the tokens of a row to the pieces of text that a client gets, up to a stop sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from memory_mosaics.apps.serve.batches import Likely
from memory_mosaics.text.tokenizer import StreamDecoder, Tokenizer

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Spoken:
    """A token with its log-probability, those of the most probable ones, and where in the text it begins."""

    text: str
    likely: list[tuple[str, float]]
    log: float
    offset: int


@dataclass(frozen=True)
class Piece:
    """Text that is certain, the tokens that came since the last piece, and why it is the last one."""

    text: str
    spoken: list[Spoken] = field(default_factory=list)
    finish: Finish | None = None


class Answer:
    """Takes tokens and tells pieces. Text that may become a stop sequence waits until it is known."""

    def __init__(self, tokenizer: Tokenizer, length: int, stops: Sequence[str], tell: Callable[[Piece], None]):
        self.tokenizer, self.length, self.stops, self.tell = tokenizer, length, stops, tell
        self.decoder = StreamDecoder(tokenizer)
        self.count = 0
        self.told, self.waiting = 0, ""  # letters told, and text that is not
        self.spoken: list[Spoken] = []

    def take(self, token: int, likely: Likely | None) -> bool:
        """One more token; whether there is more to come."""
        self.count += 1
        ends = token == self.tokenizer.end_of_text
        if likely is not None and not ends:
            self.spoken.append(self._speak(token, likely))
        self.waiting += "" if ends else self.decoder.add(token)
        finish: Finish | None = "stop" if ends else "length" if self.count >= self.length else None
        if finish:
            self.waiting += self.decoder.flush()
        found = [at for at in (self.waiting.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self.waiting, finish = self.waiting[: min(found)], "stop"
        self._tell(finish)
        return finish is None

    def _tell(self, finish: Finish | None) -> None:
        certain = len(self.waiting) - (0 if finish else self._undecided())
        if not certain and not finish:
            return
        text, self.waiting = self.waiting[:certain], self.waiting[certain:]
        self.told += len(text)
        spoken = [each for each in self.spoken if each.offset < self.told]
        self.spoken = [each for each in self.spoken if each.offset >= self.told]
        self.tell(Piece(text, spoken, finish))

    def _undecided(self) -> int:
        """How many of the last letters may be the beginning of a stop sequence."""
        most = min(len(self.waiting), max((len(stop) - 1 for stop in self.stops), default=0))
        ends = (self.waiting[-size:] for size in range(most, 0, -1))
        return next((len(end) for end in ends if any(stop.startswith(end) for stop in self.stops)), 0)

    def _speak(self, token: int, likely: Likely) -> Spoken:
        top = [(self.tokenizer.decode([index]), log) for index, log in likely.top]
        return Spoken(self.tokenizer.decode([token]), top, likely.log, self.told + len(self.waiting))
