"""Command `mosaics generate`: texts of a trained model, streamed, for many prompts at once, or in a conversation."""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from memory_mosaics import pretrained
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.decoding import GenerationParams, Sampler, TextGenerator, compiler_errors
from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.experiments.report import check_output_file
from memory_mosaics.files import MAX_JSON_BYTES, write_text
from memory_mosaics.memory_files import start_state
from memory_mosaics.runtime import find_device
from memory_mosaics.text.prompts import parse, read

# A terminal interprets control characters; it gets their pictures instead.
VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
VISIBLE |= {127: 0x2421} | dict.fromkeys([*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)

TEMPERATURE = 0.8


def run(
    run: Path | None = None,
    *,
    prompt: list[str] | None = None,
    prompts: Path | None = None,
    length: int = 200,
    temperature: float = TEMPERATURE,
    top_k: int | None = None,
    top_p: float | None = None,
    beams: int | None = None,
    seed: int | None = None,
    count: int = 1,
    compile: bool = False,
    memory: list[Path] | None = None,
    store: str | None = None,
    device: str = "auto",
    out: Path | None = None,
) -> dict[str, Any]:
    """Continue prompts with a trained model: given here, in a file, one per line from a pipe, or typed one by one.

    A single text is streamed until it ends or reaches the maximum length. An empty prompt starts a new text.

    Args:
        run: the folder of a training run, a checkpoint folder, or a model that comes with the package:
            memory-mosaic-stories or llama-stories; null is the first of these
        prompt: one prompt or several
        prompts: a file with one prompt per line, or JSON lines with "prompt"
        length: maximum number of new tokens
        temperature: of sampling; 0 is greedy decoding
        top_k: sample from the k most probable tokens
        top_p: sample from the smallest set of most probable tokens with this total probability
        beams: use beam search of this width instead of sampling
        seed: makes the texts reproducible; without it they differ each time
        count: texts per prompt
        compile: compile each step with torch.compile: faster on CUDA, after some time for compilation
        memory: one or several files of `mosaics read`: texts continue as if the model had just read what they hold
        store: which pairs contextual memories keep, such as lru:4096 (`mosaics read --help` has all). null is exact, or
            as in the memory files; exact after a file with another store keeps its pairs and all new ones
        device: cuda, mps or cpu; auto takes the first that is available
        out: also write the texts to this file, one JSON object per line
    """
    if prompt is not None and prompts is not None:
        raise UserError("give --prompt or --prompts, not both")
    if beams is not None and (seed is not None or temperature != TEMPERATURE):
        raise UserError("beams take the most probable text: leave out --seed and --temperature, or --beams")
    if temperature == 0 and (seed, top_k, top_p) != (None, None, None):
        raise UserError("--temperature 0 takes the most probable token: leave out --seed, --top_k and --top_p")
    any_seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    sampler = Sampler(temperature=temperature, top_k=top_k, top_p=top_p)
    params = GenerationParams(length=length, sampler=sampler, beams=beams, seed=any_seed, count=count, compiled=compile)
    texts = [each.prompt for each in read(prompts)] if prompts else prompt
    check_output_file(out)
    trained = LoadedModel.open(run or Path(pretrained.MOSAIC), device=find_device(device))
    generator = TextGenerator(trained, params, state=start_state(trained, memory or [], store))
    records, interrupted = [], False
    advice = "fewer prompts, beams or tokens at once may fit"
    with within_memory(advice), compiler_errors():
        try:
            for record in _records(generator, texts):
                records.append(record)
        except KeyboardInterrupt:
            interrupted = True
            print(f"\nstopped; finished: {len(records)}", file=sys.stderr)
    if seed is None and beams is None and temperature > 0 and sys.stderr.isatty():
        print(f"(the same again with --seed {any_seed})", file=sys.stderr)
    if out is not None and records:
        write_text(out, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records))
    return {"texts": records, "interrupted": interrupted}


def _records(generator: TextGenerator, prompts: list[str] | None) -> Iterator[dict[str, Any]]:
    """Continue prompts; None for those that are typed, or come from a pipe."""
    if prompts is None and sys.stdin is not None and sys.stdin.isatty():
        return _converse(generator)
    return _generate(generator, _read_pipe() if prompts is None else prompts)


def _read_pipe() -> list[str]:
    """Read prompts from standard input, as bytes: Python would decode invalid UTF-8 to surrogates."""
    try:
        content = sys.stdin.buffer.read(MAX_JSON_BYTES + 1) if sys.stdin is not None else b""
        if len(content) > MAX_JSON_BYTES:
            raise UserError(f"more than {MAX_JSON_BYTES:,} bytes come from the pipe; give fewer prompts at a time")
        return [each.prompt for each in parse(content.decode(), "the pipe", as_json=False)]
    except UnicodeDecodeError as error:
        raise UserError(f"what comes from the pipe is not UTF-8: {one_line(error)}") from None


def _generate(generator: TextGenerator, prompts: list[str]) -> Iterator[dict[str, Any]]:
    """Print a single text piece by piece, several texts each when it is complete."""
    if not prompts:
        raise UserError("no prompt came from the pipe")
    if len(prompts) == generator.params.count == 1 and generator.params.beams is None:
        [prompt], number, pieces = prompts, generator.num_texts, []
        for piece in generator.stream(prompt):
            _print(piece if pieces else prompt + piece)
            pieces.append(piece)
        _print("\n")
        yield generator.record(prompt, "".join(pieces), number)
    else:
        for number, record in enumerate(generator.generate(prompts)):
            _print(("\n" if number else "") + record["prompt"] + record["text"] + "\n")
            yield record
    if message := generator.truncation_message():
        print(message, file=sys.stderr)


def _converse(generator: TextGenerator) -> Iterator[dict[str, Any]]:
    """Continue typed prompts until Ctrl-D. An invalid prompt prints an error and does not end the conversation."""
    import readline  # noqa: F401 - gives `input` its line editing

    print(f"{generator.trained.name} continues what you type; an empty line starts a text, Ctrl-D ends.")
    while True:
        try:
            prompt = input("\n> ")
        except EOFError:
            print()
            return
        try:
            yield from _generate(generator, [prompt])
        except UserError as error:
            print(one_line(error), file=sys.stderr)


def _print(text: str) -> None:
    """Print characters that the encoding of the terminal lacks as question marks."""
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "replace").decode(encoding)
    sys.stdout.write(text.translate(VISIBLE) if sys.stdout.isatty() else text)
    sys.stdout.flush()
