"""The JSON of answers, whole and in pieces, as OpenAI's clients read it."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from memory_mosaics.apps.serve.answers import Piece, Spoken


class Shape:
    """Gathers the pieces of `count` texts. Subclasses say how one text looks."""

    prefix, kind, chunk_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, model: str, count: int):
        self.id, self.model, self.created = self.prefix + uuid.uuid4().hex, model, int(time.time())
        self.pieces: list[list[Piece]] = [[] for _ in range(count)]

    def add(self, number: int, piece: Piece) -> None:
        self.pieces[number].append(piece)

    def frame(self, *, chunk: bool) -> dict[str, Any]:
        """What is around the texts."""
        kind = self.chunk_kind if chunk else self.kind
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def whole(self) -> dict[str, Any]:
        """The answer to who did not want a stream."""
        choices = []
        for number, pieces in enumerate(self.pieces):
            text, spoken = "".join(piece.text for piece in pieces), [each for piece in pieces for each in piece.spoken]
            choices.append(self.choice(number, Piece(text, spoken, pieces[-1].finish)))
        return self.frame(chunk=False) | {"choices": choices}

    def chunk(self, number: int, piece: Piece) -> dict[str, Any]:
        """One event of a stream."""
        return self.frame(chunk=True) | {"choices": [self.part(number, piece)]}

    def begin(self) -> list[dict[str, Any]]:
        """Events before the first piece."""
        return []

    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        """A whole text."""
        raise NotImplementedError

    def part(self, number: int, piece: Piece) -> dict[str, Any]:
        """A piece of a text."""
        raise NotImplementedError


class CompletionShape(Shape):
    """Of /v1/completions."""

    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        logs = _columns(piece.spoken) if piece.spoken else None
        return {"index": number, "text": piece.text, "logprobs": logs, "finish_reason": piece.finish}

    part = choice


class ChatShape(Shape):
    """Of /v1/chat/completions."""

    prefix, kind, chunk_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def begin(self) -> list[dict[str, Any]]:
        first = {"role": "assistant", "content": ""}
        choices = [{"index": number, "delta": first, "logprobs": None, "finish_reason": None}
                   for number in range(len(self.pieces))]  # fmt: skip
        return [self.frame(chunk=True) | {"choices": [choice]} for choice in choices]

    def choice(self, number: int, piece: Piece) -> dict[str, Any]:
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {"index": number, "message": message, "logprobs": _rows(piece.spoken), "finish_reason": piece.finish}

    def part(self, number: int, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text} if piece.text else {}
        return {"index": number, "delta": delta, "logprobs": _rows(piece.spoken), "finish_reason": piece.finish}


def _columns(spoken: Sequence[Spoken]) -> dict[str, Any]:
    return {
        "tokens": [each.text for each in spoken],
        "token_logprobs": [each.log for each in spoken],
        "top_logprobs": [dict(each.likely) for each in spoken],
        "text_offset": [each.offset for each in spoken],
    }


def _rows(spoken: Sequence[Spoken]) -> dict[str, Any] | None:
    def row(text: str, log: float) -> dict[str, Any]:
        whole = "\ufffd" not in text  # a token may end within a letter
        return {"token": text, "logprob": log, "bytes": list(text.encode()) if whole else None}

    if not spoken:
        return None
    rows = [row(each.text, each.log) | {"top_logprobs": [row(*top) for top in each.likely]} for each in spoken]
    return {"content": rows, "refusal": None}
