"""The command `mosaics`. Each subcommand is a function here that calls one function of the library.

Flags come from the signatures and their help from the docstrings. A user's mistake ends in one line and exit code 2.
"""

import _thread
import os
import sys
import threading
from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Any

import torch
from jsonargparse import auto_cli

from memory_mosaics.apps import demo
from memory_mosaics.apps.babistories import cleaning, collect
from memory_mosaics.apps.explorer import explore
from memory_mosaics.apps.serve import serve
from memory_mosaics.apps.story_world import generator
from memory_mosaics.benchmarks import bench, plan
from memory_mosaics.checkpoint import STEP, load
from memory_mosaics.config import to_plain
from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.experiments import (
    all_figures,
    arena,
    attention,
    curves,
    evaluate,
    generate,
    induction,
    inspect,
    lm_eval,
    memories,
    moons,
    prompts,
    regbench,
    sweep,
)
from memory_mosaics.files import read_json
from memory_mosaics.language_model import LanguageModel, parameter_count
from memory_mosaics.models import PRESETS, preset, preset_hint
from memory_mosaics.parser import Parser
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus
from memory_mosaics.training import trainer
from memory_mosaics.training.config import ModelArgs, Run, Training, preset_defaults, read_model_file, refuse_preset
from memory_mosaics.version import __version__

MODEL, TRAINING = ModelArgs(), preset_defaults("memory-mosaic-tiny")[1]
RUNTIME = RuntimeConfig()


def info(model: str, *, json: bool = False) -> None:
    """Print the configuration of a model and the number of parameters of each part.

    Args:
        model: a checkpoint folder, the name of a preset such as memory-mosaic-12 or mamba-tiny, or a file that --json
            printed
        json: print one JSON object and nothing else, `config` and `parameters`: a file for `train --model.name`
    """
    if Path(model).is_file():
        with torch.device("meta"):
            built = LanguageModel(read_model_file(Path(model)))
    elif Path(model).exists():
        built = load(model)
    elif model in PRESETS:
        with torch.device("meta"):
            built = LanguageModel(preset(model))
    else:
        raise UserError(f"{model} is neither a folder nor a preset; {preset_hint(model)}")
    config, parameters = to_plain(built.config), parameter_count(built)
    if json:
        print(dumps({"config": config, "parameters": parameters}, indent=2))
        return
    print(dumps(config, indent=2))
    for part, count in parameters.items():
        print(f"{part:16} {count:>12,}")


def convert(source: Path, out: Path, *, tokenizer: str | None = None) -> None:
    """Convert a checkpoint of the authors' public code into a folder that this library and Hugging Face open.

    Args:
        source: the .pt file: nanoMosaics, or the Library's plain or fast variant
        out: the folder to write; it must not exist yet
        tokenizer: the tokenizer of its training data, to be saved with it: gpt2, bytes, or a folder with a
            tokenizer.json. Without it, commands that read text, and `train --from`, refuse the folder
    """
    from memory_mosaics.convert import convert as convert_checkpoint

    print(f"written: {convert_checkpoint(source, out, tokenizer=tokenizer)}")


def draw(folder: Path) -> None:
    """Draw the figures of an experiment from its results.json.

    Args:
        folder: the folder of results.json, or the file itself; the figures are written beside it, as PNG, PDF and SVG
    """
    from memory_mosaics.experiments import figures

    folder = folder.parent if folder.name == "results.json" else folder
    try:
        results = read_json(folder / "results.json")
        drawn = figures.draw(results, folder)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no results.json; name the folder of an experiment") from None
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / 'results.json'} is not what an experiment wrote: {one_line(error)}") from error
    print(f"drawn: {', '.join(map(str, drawn))}" if drawn else "nothing to draw: what was measured has no figure")


def train(
    data: Path,
    out: Path | None = None,
    *,
    init_from: Path | None = None,
    documents: bool = False,
    preset: str | None = None,
    model: ModelArgs = MODEL,
    training: Training = TRAINING,
    runtime: RuntimeConfig = RUNTIME,
) -> dict[str, Any]:
    """Train a language model on a prepared corpus or a text file, or resume a run, on one process or by torchrun.

    Args:
        data: a folder that `mosaics prepare` wrote; or a .txt, .md or .jsonl file, which is prepared in OUT/corpus with
            a BPE of its own (with --from, that of the checkpoint) and a tenth of it held out
        out: the folder of the run. The same command resumes from its newest checkpoint; with more --training.steps it
            continues even a finished run, on the schedule of the new length. null is runs/model, for a text file
            runs/NAME with the file's name, or with --from runs/NAME-finetuned, with that of the run or checkpoint
        init_from: a checkpoint or run to fine-tune: its weights, model and tokenizer, with a new optimiser and
            schedule. Only --model.dropout and --model.context may differ from it
        documents: read each document of the corpus apart: a memory is empty at the start of each
        preset: an architecture and a size, which set the defaults of all flags below. memory-mosaic-tiny is the
            default; -tiny and -small are for small corpora, and -1, -4, -8, -12 and -18 are the paper's depths.
            transformer and llama have the same sizes, other architectures such as mamba -tiny, -small and -12
        model: the architecture and its sizes
        training: the optimiser, the schedule and the batches
        runtime: device, precision, checkpoints and logs
    """
    refuse_preset(preset)
    if out is None:
        name = data.name.partition(".")[0] if data.is_file() else "model"
        out = Path("runs") / (name if init_from is None else f"{_source_name(init_from)}-finetuned")
    parts = {"model": model, "training": training, "runtime": runtime}
    run = Run(data=data, out=out, init_from=init_from, documents=documents, **parts)
    results = trainer.train(run, lengthen=True)
    if not results["interrupted"] and int(os.environ.get("RANK", 0)) == 0:
        print(f"Next: mosaics generate {out}\n      mosaics inspect {out} TEXT\n      mosaics explore {out}")
    return results


def _source_name(source: Path) -> str:
    """Return the name of a run or checkpoint folder; RUN-STEP for a checkpoint of a run."""
    source = source.resolve()
    return f"{source.parent.name}-{source.name}" if STEP.fullmatch(source.name) else source.name


COMMANDS: dict[str, Any] = {
    "demo": demo.run,
    "stories": generator.run,
    "babistories": {
        "_help": "Make a corpus of tiny stories with a language model, as the paper did.",
        "names": collect.names,
        "openings": collect.openings,
        "stories": collect.stories,
        "clean": cleaning.clean,
        "stats": cleaning.stats,
    },
    "prepare": corpus.prepare,
    "train": train,
    "info": info,
    "convert": convert,
    "generate": generate.run,
    "read": memories.read,
    "memory": {
        "_help": "Look into, merge, trim and search the memory files of mosaics read.",
        "info": memories.info,
        "merge": memories.merge,
        "trim": memories.trim,
        "search": memories.search,
    },
    "prompts": prompts.run,
    "inspect": inspect.run,
    "explore": explore,
    "lm-eval": lm_eval.run,
    "serve": serve,
    "evaluate": evaluate.run,
    "anchors": evaluate.run_anchors,
    "attention": attention.run,
    "figures": all_figures.run,
    "curves": curves.run,
    "sweep": sweep.run,
    "draw": draw,
    "induction": induction.run,
    "moons": moons.run,
    "arena": arena.run,
    "regbench": regbench.run,
    "bench": bench.run,
    "plan": plan.run,
}


def _interrupt_again(ignored: Any) -> None:
    """Raise Ctrl-C again that came where Python cannot raise it, such as in a weakref callback.

    Objects that it left half built may raise errors in `__del__`, which are not reported.
    """
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        later = threading.Timer(0.05, _thread.interrupt_main)  # raised here, it would be lost again
        later.daemon = True
        later.start()
    elif not (issubclass(ignored.exc_type, AttributeError) and getattr(ignored.object, "__name__", "") == "__del__"):
        sys.__unraisablehook__(ignored)


def _discard_output() -> None:
    """Send what standard output still holds, and cannot write, to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _flush_output() -> None:
    if sys.stdout is not None:  # it is closed: `mosaics info NAME >&-`
        sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for a user's mistake, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if len(arguments) == 1 and isinstance(COMMANDS.get(arguments[0]), dict):
        arguments.append("--help")  # lists its commands
    options: dict[str, Any] = {"prog": "mosaics", "parser_class": Parser, "version": __version__, "allow_abbrev": True}
    options["description"] = "Networks of associative memories: train, run, measure and look inside."
    named = arguments[0]
    commands = {named: COMMANDS[named]} if named in COMMANDS else COMMANDS  # the flags of all take a fifth of a second
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _interrupt_again
    try:
        with within_memory("these sizes do not fit this machine; choose smaller ones"):
            results = auto_cli(commands, args=arguments, **options)
        _flush_output()
    except BrokenPipeError:  # the reader, `head` say, has what it wants
        _discard_output()
        return 0
    except (UserError, OSError) as error:
        print(f"mosaics: {one_line(error)}", file=sys.stderr)
        try:
            _flush_output()
        except OSError:  # a full disk: Python would report it again at exit, and exit with 120
            _discard_output()
        return 2
    except KeyboardInterrupt:
        print("mosaics: interrupted", file=sys.stderr)
        return 130
    return 130 if isinstance(results, dict) and results.get("interrupted") else 0


if __name__ == "__main__":
    raise SystemExit(main())
