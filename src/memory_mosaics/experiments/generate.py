"""Text from a trained model: shown as it comes, for many prompts at once, or in conversation with a person."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.decoding import GenerationParams, Sampler, TextGenerator, compiler_errors
from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.files import MAX_JSON_BYTES, atomic_write
from memory_mosaics.runtime import find_device
from memory_mosaics.text.prompts import parse, read

# A terminal would obey control characters; it gets to see their pictures instead.
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
VISIBLE |= {127: 0x2421} | dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)


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
    sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    params = GenerationParams(length=length, sampler=sampler, beams=beams, seed=any_seed, count=count, compiled=compile)
    texts = [each.prompt for each in read(prompts)] if prompts else prompt
    _check_file(out)
    text_generator = TextGenerator(LoadedModel.open(run, device=find_device(device)), params)
    told, interrupted = _finished(text_generator, texts)
    if seed is None and beams is None and temperature > 0 and sys.stderr.isatty():
        print(f"(the same again with --seed {any_seed})", file=sys.stderr)
    _write(told, out)
    return {"texts": told, "interrupted": interrupted}


def _finished(text_generator: TextGenerator, texts: list[str] | None) -> tuple[list[dict[str, Any]], bool]:
    """All that was written, and whether Ctrl-C ended it."""
    told: list[dict[str, Any]] = []
    with _replacing(sys.stdout), within_memory("fewer prompts, beams or tokens at once may fit"), compiler_errors():
        try:
            told.extend(_told(text_generator, texts))
        except KeyboardInterrupt:
            print(f"\nstopped; finished: {len(told)}", file=sys.stderr)
            return told, True
    return told, False


def _told(text_generator: TextGenerator, texts: list[str] | None) -> Iterator[dict[str, Any]]:
    """The texts of these prompts, or else of those that are typed or come from a pipe."""
    if texts is None and sys.stdin is not None and sys.stdin.isatty():
        return _converse(text_generator)
    return _tell(text_generator, _piped() if texts is None else texts)


def _piped() -> list[str]:
    """Read as bytes: decoded by Python, what is not UTF-8 would pass as halves of characters."""
    try:
        content = sys.stdin.buffer.read(MAX_JSON_BYTES + 1) if sys.stdin is not None else b""
        if len(content) > MAX_JSON_BYTES:
            raise UserError(f"more than {MAX_JSON_BYTES:,} bytes come from the pipe; give fewer prompts at a time")
        text = content.decode()
        return [each.prompt for each in parse(text, "the pipe", as_json=False)]
    except UnicodeDecodeError as error:
        raise UserError(f"what comes from the pipe is not UTF-8: {one_line(error)}") from None


def _tell(text_generator: TextGenerator, prompts: list[str]) -> Iterator[dict[str, Any]]:
    """The texts, shown as they come if there is one, or each when it is there."""
    if not prompts:
        raise UserError("no prompt came from the pipe")
    if len(prompts) == text_generator.params.count == 1 and text_generator.params.beams is None:
        yield _show(text_generator, prompts[0])
    else:
        for number, record in enumerate(text_generator.generate(prompts)):
            _say(("\n" if number else "") + record["prompt"] + record["text"] + "\n")
            yield record
    if message := text_generator.truncation_message():
        print(message, file=sys.stderr)


def _show(text_generator: TextGenerator, prompt: str) -> dict[str, Any]:
    """One text, piece by piece."""
    number, pieces = text_generator.num_texts, []
    for piece in text_generator.stream(prompt):
        if not pieces:
            _say(prompt)
        pieces.append(piece)
        _say(piece)
    _say("\n")
    return text_generator.record(prompt, "".join(pieces), number)


def _converse(text_generator: TextGenerator) -> Iterator[dict[str, Any]]:
    """Prompt after prompt until Ctrl-D. A prompt that cannot be taken costs a line, not the conversation."""
    import readline  # noqa: F401 - gives `input` its line editing

    print(f"{text_generator.trained.name} goes on from what you type; an empty line begins a text, Ctrl-D ends.")
    while True:
        try:
            prompt = input("\n> ")
        except EOFError:
            print()
            return
        try:
            yield from _tell(text_generator, [prompt])
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


def _write(told: list[dict[str, Any]], out: Path | None) -> None:
    if out is not None and told:
        with atomic_write(out) as tmp:
            lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in told)
            tmp.write_text("".join(lines), encoding="utf-8")


def _check_file(out: Path | None) -> None:
    """Say before the work that a file cannot be written."""
    if out is None:
        return
    if out.is_dir():
        raise UserError(f"{out} is a folder; name a file in it, such as {out / 'texts.jsonl'}")
    if not out.parent.is_dir():
        raise UserError(f"there is no folder {out.parent} to write {out.name} in")
