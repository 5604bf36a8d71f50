"""What every architecture, preset and command computes, in small: stored, and compared on every change.

    python tests/goldens.py list                 all there are
    python tests/goldens.py check [NAME ...]     which differ from the stored ones, and where: to the last bit
    python tests/goldens.py write [NAME ...]     store them again, in a commit that says why the numbers change

A refactor changes no bit on the machine that computed them. Another processor may round otherwise: the tests compare to
2e-4, and there only what is continuous: losses and logits, no choices.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import LanguageModel, checkpoint
from memory_mosaics.cli import main
from memory_mosaics.config import to_plain
from memory_mosaics.experiments.regbench_models import ARCHITECTURES
from memory_mosaics.language_model import LanguageModelConfig, parameter_count, weight_count
from memory_mosaics.models import POSITIONS, PRESETS, memory_mosaic, preset, transformer
from mixers_under_contract import MIXERS, WIDTH

FOLDER = Path(__file__).parent / "golden"
SMALL = {"width": WIDTH, "blocks": 2, "heads": 4, "vocabulary": 64, "context": 48}
VARY = {"seconds", "tokens_per_second", "versions", "hardware", "commit", "minutes", "date", "resumed", "out", "data"}


def plain(value: Any) -> Any:
    """Without what differs from run to run: times, versions, places."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items() if key not in VARY and not key.startswith("seconds")}
    if isinstance(value, list | tuple):
        if len(value) > 64 and all(isinstance(item, int | float) for item in value):  # some of them, and all in a sum
            value = [*value[:: len(value) // 16], math.fsum(value)]
        return [plain(item) for item in value]
    if isinstance(value, str) and tempfile.gettempdir() in value:
        return Path(value).name
    return value


def numbers(tensor: torch.Tensor) -> list[float]:
    """A few of a tensor's numbers and its norm."""
    flat = tensor.detach().double().flatten()
    return [*flat[:: max(1, len(flat) // 7)].tolist(), flat.norm().item()]


def mosaics(*words: object) -> str:
    """What a command prints; it must succeed."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main([str(word) for word in words])
    assert code == 0, (words, errors.getvalue())
    return output.getvalue()


def results(folder: Path) -> Any:
    return plain(json.loads((folder / "results.json").read_text()))


@cache
def shared() -> Path:
    """A folder of stories, two corpora and two trained models, for all commands."""
    folder = Path(tempfile.mkdtemp(prefix="goldens-"))
    mosaics("stories", "--count", 60, "--out", folder / "stories.jsonl", "--seed", 1)
    mosaics("prepare", folder / "stories.jsonl", "--out", folder / "corpus", "--tokenizer", "bytes", "--seed", 1)
    for kind, name in (("memory-mosaic-tiny", "mosaic"), ("transformer-tiny", "twin")):
        train(
            folder / name, folder / "corpus", kind, "--model.width", WIDTH, "--model.blocks", 2, "--model.context", 48
        )
    return folder


def corpus() -> Path:
    return shared() / "corpus"


def train(out: Path, data: Path, name: object, *words: object) -> list[Any]:
    """Twenty steps by the command; the losses of each and of the end."""
    recipe = ["--training.steps", 20, "--training.batch", 4, "--training.warm_up", 4, "--training.evaluate_every", 10]
    recipe += ["--training.evaluate_windows", 8, "--training.learning_rate", 3e-3, "--runtime.log_every", 1]
    mosaics("train", data, "--out", out, "--model.name", name, *recipe, "--runtime.samples", 0, *words)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [plain(line) for line in lines]


def architecture(name: str, folder: Path) -> Any:
    """A mixer in a language model: as its channel mixer, its positions or its sequence mixer."""
    config = memory_mosaic(**SMALL | {"vocabulary": 257}, slots=24)
    mixer = MIXERS[name]
    part = "channel_mixer" if name.startswith(("persistent", "mlp", "swiglu", "own")) else "sequence_mixer"
    part = "positions" if name in ("learned positions", "dropped inputs") else part
    config = dataclasses.replace(config, dropout=0.1, **{part: mixer})
    (folder / "config.json").write_text(json.dumps(to_plain(config)))
    return train(folder / "run", corpus(), folder / "config.json")


def logits(config: LanguageModelConfig) -> Any:
    torch.manual_seed(0)
    model = LanguageModel(config)
    tokens = torch.randint(0, config.vocabulary, (2, 24))
    return {"parameters": parameter_count(model), "logits": numbers(model(tokens)[0])}


def of_preset(name: str, folder: Path) -> Any:
    """Its size as it is, and logits at a small width."""
    return {
        "weights": weight_count(preset(name)),
        **logits(preset(name, **SMALL | {"blocks": PRESETS[name].config().blocks})),
    }


def of_position(position: str, folder: Path) -> Any:
    return logits(transformer(position=position, **SMALL))


def converted(layout: str, folder: Path) -> Any:
    from reference_checkpoints import checkpoint as theirs
    from reference_checkpoints import some_tokens

    torch.save(theirs(layout, bias=True, count=2), folder / "ckpt.pt")
    mosaics("convert", folder / "ckpt.pt", folder / "converted")
    return numbers(checkpoint.load(folder / "converted")(some_tokens(20))[0])


def regbench(name: str, folder: Path) -> Any:
    words = ["--choices.blocks", 2, "--choices.width", 16, "--choices.heads", 2, "--epochs", 2, "--held_out", 6]
    mosaics("regbench", "--architectures", name, "--environments", 40, *words, "--device", "cpu", "--out", folder)
    return results(folder)["runs"]


def moons(folder: Path, *words: object) -> Any:
    mosaics("moons", "--steps", 20, "--sequences", 2, "--seeds", 2, "--out", folder, *words)
    return results(folder)


def induction(folder: Path, *words: object) -> Any:
    mosaics("induction", "--steps", 5, "--out", folder, *words)
    return results(folder)


def stories(folder: Path) -> Any:
    return hashlib.sha256((shared() / "stories.jsonl").read_bytes()).hexdigest()


def prepared(folder: Path) -> Any:
    texts = shared() / "stories.jsonl"
    mosaics("prepare", texts, "--out", folder / "bpe", "--tokenizer", "bpe", "--vocabulary", 300, "--seed", 1)
    splits = [json.loads((one / "manifest.json").read_text())["splits"] for one in (corpus(), folder / "bpe")]
    return plain(splits)


def evaluated(folder: Path) -> Any:
    models = (shared() / "mosaic", shared() / "twin")
    words = ["--data", corpus(), "--length", 40, "--windows", 6, "--by-position", "true", "--device", "cpu"]
    mosaics("evaluate", *models, *words, "--out", folder)
    return results(folder)


def anchors(folder: Path) -> Any:
    mosaics("anchors", corpus(), "--data", corpus(), "--length", 40, "--windows", 6, "--out", folder)
    return results(folder)


def attention(folder: Path) -> Any:
    models = (shared() / "mosaic", shared() / "twin")
    words = ["--data", corpus(), "--length", 40, "--sequences", 4, "--device", "cpu", "--out", folder]
    mosaics("attention", *models, *words)
    return results(folder)


def generated(folder: Path) -> Any:
    words = ["--prompt", "One day", "--length", 24, "--device", "cpu"]
    seed = ["--seed", 3]
    ways = (seed, ["--temperature", 0], [*seed, "--top_k", 5, "--top_p", 0.9, "--count", 2], ["--beams", 3])
    return [mosaics("generate", shared() / "mosaic", *words, *way).splitlines() for way in ways]


def inspected(folder: Path) -> Any:
    mosaics("inspect", shared() / "mosaic", "Once upon a time", "--device", "cpu", "--json", folder / "seen.json")
    return plain(json.loads((folder / "seen.json").read_text()))


def prompted(folder: Path) -> Any:
    (folder / "prompts.txt").write_text("One day\nThe cat\n")
    words = ["--length", 12, "--beams", 2, "--device", "cpu", "--out", folder / "o"]
    mosaics("prompts", shared() / "mosaic", shared() / "twin", "--prompts", folder / "prompts.txt", *words)
    return results(folder / "o")


SCHEDULE = ["--training.steps", 6, "--training.batch", 2, "--training.evaluate_every", 3, "--training.warm_up", 2]
SCHEDULE += ["--training.evaluate_windows", 4, "--model.width", WIDTH, "--model.heads", 4, "--model.context", 32]


def curves(folder: Path) -> Any:
    words = ["--blocks", 1, "--learning_rates", 1e-3, 3e-3, "--out", folder, "--runtime.device", "cpu"]
    mosaics("curves", corpus(), *words, *SCHEDULE)
    return results(folder)


def sweep(folder: Path) -> Any:
    mosaics("sweep", corpus(), "--out", folder, *SCHEDULE, "--model.blocks", 1, "--runtime.device", "cpu")
    return results(folder)


def info(folder: Path) -> Any:
    return [mosaics("info", name).splitlines() for name in ("memory-mosaic-12", "transformer-rotary-12")]


def drawn(folder: Path) -> Any:
    """The names of the figures; pixels belong to matplotlib."""
    mosaics("evaluate", shared() / "mosaic", "--data", corpus(), "--length", 40, "--windows", 6, "--out", folder)
    return sorted(file.name for file in folder.iterdir())


CASES: dict[str, Callable[[Path], Any]] = {
    **{f"train/{name}": partial(architecture, name) for name in MIXERS},
    **{f"preset/{name}": partial(of_preset, name) for name in PRESETS},
    **{f"positions/{name}": partial(of_position, name) for name in POSITIONS},
    **{f"convert/{layout}": partial(converted, layout) for layout in ("nano", "library", "library, convolution")},
    **{f"regbench/{name}": partial(regbench, name) for name in ARCHITECTURES},
    "moons": moons,
    "moons/authors' periods": lambda folder: moons(folder, "--integer_periods", "false"),
    "induction": induction,
    "induction/small": lambda folder: induction(folder, "--width", 16, "--batch_size", 4, "--task.length", 64),
    "induction/random triggers": lambda folder: induction(folder, "--task.fixed_triggers", "false"),
    "command/stories": stories,
    "command/prepare": prepared,
    "command/evaluate": evaluated,
    "command/anchors": anchors,
    "command/attention": attention,
    "command/generate": generated,
    "command/inspect": inspected,
    "command/prompts": prompted,
    "command/curves": curves,
    "command/sweep": sweep,
    "command/info": info,
    "command/draw": drawn,
}


def machine() -> dict[str, str]:
    """What the last bits depend on, and with them what is chosen where two are almost equal."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"processor": models[0].partition(":")[2].strip() if models else "", "torch": torch.__version__}


def file_of(name: str) -> Path:
    """One file per group."""
    return FOLDER / f"{name.split('/')[0]}.json"


def stored(name: str) -> Any:
    return json.loads(file_of(name).read_text())[name]


def compute(name: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        torch.manual_seed(0)
        return json.loads(json.dumps(CASES[name](Path(folder))))


def differences(found: Any, wanted: Any, *, exact: bool, at: str = "") -> list[str]:
    """Where two results differ, each in one line."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = {*found, *wanted}
        missing = object()
        pairs = [(key, found.get(key, missing), wanted.get(key, missing)) for key in sorted(keys)]
        return [
            line
            for key, left, right in pairs
            for line in (
                [f"{at}/{key} is new or gone"]
                if left is missing or right is missing
                else differences(left, right, exact=exact, at=f"{at}/{key}")
            )
        ]
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return [
            line
            for number, (left, right) in enumerate(zip(found, wanted, strict=True))
            for line in differences(left, right, exact=exact, at=f"{at}/{number}")
        ]
    if found == wanted:
        return []
    close = all(isinstance(one, int | float) for one in (found, wanted)) and math.isclose(
        found, wanted, rel_tol=2e-4, abs_tol=2e-4
    )
    if close and not exact:
        return []
    return [f"{at}: {found!r}, stored {wanted!r}"]


def run(command: str, names: list[str]) -> int:
    """`NAME` may be a group, such as train."""
    names = [
        one
        for name in names
        for one in ([name] if name in CASES else [c for c in CASES if c.startswith(name + "/")] or [name])
    ]
    unknown = [name for name in names if name not in CASES]
    if unknown or command not in ("list", "check", "write"):
        print(__doc__, *unknown, sep="\n")
        return 2
    failed = 0
    if command == "write":
        FOLDER.mkdir(exist_ok=True)
        (FOLDER / "machine.json").write_text(json.dumps(machine()) + "\n")
    for name in names or CASES:
        if command == "list":
            print(name)
            continue
        start = time.process_time()
        found, file = compute(name), file_of(name)
        spent = f"{time.process_time() - start:.1f} s"
        known = json.loads(file.read_text()) if file.exists() else {}
        if command == "check":
            wrong = differences(found, known.get(name), exact=True)
            verdict = f"{len(wrong)} differ, first {wrong[0][:300]}" if wrong else "same"
            print(f"{name}: {verdict} ({spent})", flush=True)
            failed += bool(wrong)
        else:
            known[name] = found
            file.write_text(json.dumps(known, indent=None, separators=(",", ":"), sort_keys=True) + "\n")
            print(f"{name} written ({spent})", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(run(sys.argv[1] if len(sys.argv) > 1 else "", sys.argv[2:]))
