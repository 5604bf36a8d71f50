"""Text from a trained model: shown as it comes, for many prompts at once, or in conversation with a person."""

import json
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.files import written_whole
from memory_mosaics.generation import PLAIN, Draw, beam_search, generate, stream
from memory_mosaics.shapes import Float, Int
from memory_mosaics.text.prompts import parse, read
from memory_mosaics.trained import Trained
from memory_mosaics.training.parallel import find_device

ROWS = 16  # texts that are written side by side
# A terminal would obey control characters; it gets to see their pictures instead.
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}


def run(
    run: Path,
    *,
    prompt: list[str] | None = None,
    prompts: Path | None = None,
    length: int = 200,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float | None = None,
    beams: int | None = None,
    seed: int | None = None,
    count: int = 1,
    compile: bool = False,
    device: str = "auto",
    out: Path | None = None,
) -> dict[str, Any]:
    """Let a trained model go on from prompts: given here, in a file, one a line from a pipe, or typed one by one.

    A single text is shown as it comes, until it ends by itself or has the length. An empty prompt begins a new text.

    Args:
        run: the folder of a training run, or a checkpoint folder
        prompt: one prompt or several
        prompts: a file with one prompt a line, or JSON lines with "prompt"
        length: at most so many tokens
        temperature: how freely tokens are drawn; 0 always takes the most probable
        top_k: draw among so many of the most probable tokens
        top_p: draw among the fewest most probable tokens that have this probability together
        beams: instead of drawing, search for the most probable text with so many beginnings in mind
        seed: the same seed gives the same texts again; without one they are other texts each time
        count: texts for each prompt
        compile: fuse each step with torch.compile: faster on CUDA, after a wait at the beginning
        device: cuda, mps or cpu; auto takes the first that is there
        out: also write the texts to this file, one JSON object a line
    """
    if prompt is not None and prompts is not None:
        raise UserError("give --prompt or --prompts, not both")
    any_seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    draw = _draw(temperature, top_k, top_p)
    wish = Wish(length=length, draw=draw, beams=beams, seed=any_seed, count=count, compiled=compile)
    texts = [each.prompt for each in read(prompts)] if prompts else prompt
    if out is not None:
        _check_file(out)
    writer = Writer(Trained.open(run, device=find_device(device)), wish)
    told: list[dict[str, Any]] = []
    interrupted = False
    with _replacing(sys.stdout), within_memory("fewer prompts, beams or tokens at once may fit"), a_compiler():
        try:
            if texts is not None:
                told.extend(_tell(writer, texts))
            elif sys.stdin is not None and sys.stdin.isatty():
                _converse(writer, told)
            else:
                told.extend(_tell(writer, _piped()))
        except KeyboardInterrupt:
            interrupted = True
            print(f"\nstopped; finished: {len(told)}", file=sys.stderr)
    if seed is None and beams is None and temperature > 0 and sys.stderr.isatty():
        print(f"(the same again with --seed {any_seed})", file=sys.stderr)
    if out is not None and told:
        with written_whole(out) as aside:
            lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in told)
            aside.write_text("".join(lines), encoding="utf-8")
    return {"texts": told, "interrupted": interrupted}


@dataclass(frozen=True, kw_only=True)
class OwnDraw(Draw):
    """Draws with random numbers of each row's own, so that a text does not depend on those written beside it."""

    generators: Sequence[torch.Generator] = ()

    def noise(
        self, logits: Float[Tensor, "B vocabulary"], generator: torch.Generator | None
    ) -> Float[Tensor, "B vocabulary"]:
        return torch.stack([torch.empty(logits.shape[1]).exponential_(generator=own) for own in self.generators])


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is wanted: texts of at most `length` tokens, `count` a prompt, drawn with a seed or found with beams."""

    length: int = 200
    draw: Draw = PLAIN
    beams: int | None = None
    seed: int = 0
    count: int = 1
    compiled: bool = False

    def __post_init__(self) -> None:
        for name in ("length", "count", "beams"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name} must be at least 1, not {value}")
        if self.beams is not None and self.count > 1:
            raise UserError(f"beams find one text for each prompt, not {self.count}; leave out --beams or --count")
        if self.beams is not None and (self.draw.top_k is not None or self.draw.top_p is not None):
            raise UserError("beams take the most probable text: leave out --top_k and --top_p, or --beams")


class Writer:
    """Writes texts with a model. The text with number n of a seed is the same alone or beside others."""

    def __init__(self, trained: Trained, wish: Wish):
        self.trained, self.wish, self.written = trained, wish, 0

    def encode(self, prompt: str) -> Int[Tensor, " T"]:
        """The prompt's tokens; an empty one is the end of what was before."""
        tokens = self.trained.tokenizer.encode(prompt) or [self.trained.tokenizer.end_of_text]
        longest = self.trained.model.longest
        if longest is not None and len(tokens) >= longest:
            raise UserError(
                f"{prompt[:30]!r}... has {len(tokens)} tokens, and {self.trained.name} has learned positions for "
                f"{longest}: nothing could follow; shorten it"
            )
        return torch.tensor(tokens)

    def as_it_comes(self, prompt: str) -> Iterator[str]:
        """The pieces of one text. Nothing that is not a whole letter."""
        letters = self.trained.tokenizer.letters()
        draw = self._own([self.written])
        self.written += 1
        for (token,) in stream(self.trained.model, [self.encode(prompt)], draw=draw, **self._how):
            if int(token) == self.trained.tokenizer.end_of_text:
                break
            yield letters.add(int(token))
        yield letters.rest()

    def together(self, prompts: Sequence[str]) -> Iterator[dict[str, Any]]:
        """The texts of all prompts, `count` each, in batches."""
        rows = [(prompt, self.encode(prompt)) for prompt in prompts for _ in range(self.wish.count)]
        for batch in self._batches(rows):
            numbers = range(self.written, self.written + len(batch))
            self.written += len(batch)
            tokens = [tokens for _, tokens in batch]
            if self.wish.beams is not None:
                texts = beam_search(self.trained.model, tokens, beams=self.wish.beams, **self._how)
            else:
                texts = generate(self.trained.model, tokens, draw=self._own(numbers), **self._how)
            for (prompt, _), text, number in zip(batch, texts, numbers, strict=True):
                yield self.record(prompt, self.trained.tokenizer.decode(text.tolist()), number)

    @property
    def _how(self) -> dict[str, Any]:
        """What drawing and searching are told alike."""
        end = self.trained.tokenizer.end_of_text
        return {"length": self.wish.length, "end": end, "compiled": self.wish.compiled}

    def record(self, prompt: str, text: str, number: int) -> dict[str, Any]:
        """A line of the file: what was asked, what came, and what it takes to have it again."""
        how = {"beams": self.wish.beams} if self.wish.beams is not None else {"seed": self.wish.seed, "number": number}
        return {"prompt": prompt, "text": text, "model": self.trained.name, **how}

    def _own(self, numbers: Iterable[int]) -> OwnDraw:
        """The way to draw, with the random numbers that belong to the seed and to each text."""
        seeds = ((self.wish.seed * 1_000_003 + number) % 2**63 for number in numbers)
        draw = self.wish.draw
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return OwnDraw(temperature=draw.temperature, top_k=draw.top_k, top_p=draw.top_p, generators=generators)

    def _batches(self, rows: list[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
        """As many rows as fit. Where positions are a table, a short prompt must not pay for a long one beside it."""
        longest = self.trained.model.longest
        full = longest is not None and max((len(tokens) for _, tokens in rows), default=0) + self.wish.length > longest
        size = 1 if full else max(1, ROWS // (self.wish.beams or 1))
        return (rows[start : start + size] for start in range(0, len(rows), size))


@contextmanager
def a_compiler() -> Iterator[None]:
    """Where torch.compile cannot do its work, as on a machine without a C++ compiler, say so."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise UserError(f"--compile does not work here: {one_line(error, 160)}; leave it out") from error
        raise


def _piped() -> list[str]:
    try:
        return [each.prompt for each in parse(sys.stdin.read(), "the pipe", as_json=False)]
    except UnicodeDecodeError as error:
        raise UserError(f"what comes from the pipe is not UTF-8: {one_line(error)}") from None


def _tell(writer: Writer, prompts: list[str]) -> Iterator[dict[str, Any]]:
    """The texts, shown as they come if there is one, or each when it is there."""
    if not prompts:
        raise UserError("no prompt came from the pipe")
    if len(prompts) == writer.wish.count == 1 and writer.wish.beams is None:
        yield _show(writer, prompts[0])
        return
    first = True
    for record in writer.together(prompts):
        _say(("" if first else "\n") + record["prompt"] + record["text"] + "\n")
        first = False
        yield record


def _show(writer: Writer, prompt: str) -> dict[str, Any]:
    """One text, piece by piece."""
    number, pieces = writer.written, []
    for piece in writer.as_it_comes(prompt):
        if not pieces:
            _say(prompt)
        pieces.append(piece)
        _say(piece)
    _say("\n")
    return writer.record(prompt, "".join(pieces), number)


def _converse(writer: Writer, told: list[dict[str, Any]]) -> None:
    """Prompt after prompt until Ctrl-D. A prompt that cannot be taken costs a line, not the conversation."""
    import readline  # noqa: F401 - gives `input` its line editing

    print(f"{writer.trained.name} goes on from what you type; an empty line begins a text, Ctrl-D ends.")
    while True:
        try:
            prompt = input("\n> ")
        except EOFError:
            print()
            return
        try:
            told.extend(_tell(writer, [prompt]))
        except UserError as error:
            print(one_line(error), file=sys.stderr)


def _say(text: str) -> None:
    sys.stdout.write(text.translate(VISIBLE) if sys.stdout.isatty() else text)
    sys.stdout.flush()


class _replacing:
    """Within: characters that the terminal's encoding lacks become question marks, not errors."""

    def __init__(self, output: Any):
        self.output, self.errors = output, getattr(output, "errors", None)

    def __enter__(self) -> None:
        if hasattr(self.output, "reconfigure"):
            self.output.reconfigure(errors="replace")

    def __exit__(self, *error: Any) -> None:
        if hasattr(self.output, "reconfigure"):
            self.output.reconfigure(errors=self.errors)


def _draw(temperature: float, top_k: int | None, top_p: float | None) -> Draw:
    try:
        return Draw(temperature=temperature, top_k=top_k, top_p=top_p)
    except ValueError as error:
        raise UserError(one_line(error)) from error


def _check_file(out: Path) -> None:
    """Say before the work that a file cannot be written."""
    if out.is_dir():
        raise UserError(f"{out} is a folder; name a file in it, such as {out / 'texts.jsonl'}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} in")
