"""The command `mosaics`. Each subcommand is a function here that calls one function of the library.

Flags come from the signatures and their help from the docstrings. A user's mistake ends in one line and exit code 2.
"""

import _thread
import os
import re
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields, is_dataclass
from inspect import signature
from itertools import takewhile
from json import dumps, loads
from pathlib import Path
from typing import Any

from jsonargparse import auto_cli

from memory_mosaics.apps import demo
from memory_mosaics.apps.babistories.commands import COMMANDS as BABISTORIES
from memory_mosaics.apps.babistories.writers import Writer
from memory_mosaics.apps.explorer import command as explorer
from memory_mosaics.apps.serve import server
from memory_mosaics.apps.story_world import generator
from memory_mosaics.benchmarks import bench
from memory_mosaics.checkpoint import STEP
from memory_mosaics.errors import UserError, one_line, within_memory
from memory_mosaics.experiments import (
    anchors,
    attention,
    curves,
    evaluate,
    gallery,
    generate,
    induction,
    inspect,
    lm_eval,
    moons,
    prompts,
    regbench,
    sweep,
)
from memory_mosaics.files import read_json
from memory_mosaics.parser import FLAGS, Parser, check_arguments, either
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus
from memory_mosaics.training import trainer
from memory_mosaics.training.config import ModelArgs, Run, Training, as_flag_only, recipe
from memory_mosaics.version import __version__

MODEL, TRAINING = ModelArgs(), recipe("memory-mosaic-tiny")[1]
MACHINE = RuntimeConfig()
FLAG = re.compile(r"--?[A-Za-z]")  # among the values of a list
PARSERS_OWN = ("help", "config", "print_config")  # flags


def info(model: str, *, json: bool = False) -> None:
    """Say what a model is made of, and how many parameters each part has.

    Args:
        model: a checkpoint folder, or the name of a preset such as memory-mosaic-12 or mamba-tiny
        json: print one JSON object and nothing else: `config`, which --model.name of train reads, and `parameters`
    """
    import torch

    from memory_mosaics.checkpoint import load
    from memory_mosaics.config import to_plain
    from memory_mosaics.language_model import LanguageModel, parameter_count
    from memory_mosaics.models import PRESETS, no_preset, preset

    if Path(model).exists():
        built = load(model)
    elif model in PRESETS:
        with torch.device("meta"):
            built = LanguageModel(preset(model))
    else:
        raise UserError(f"{model} is neither a folder nor a preset; {no_preset(model)}")
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
        tokenizer: of its training data, written into the folder: gpt2, bytes, or a folder with a tokenizer.json;
            without it, commands that read text, and `train --from`, refuse the folder
    """
    from memory_mosaics.convert import convert as convert_checkpoint

    print(f"written: {convert_checkpoint(source, out, tokenizer=tokenizer)}")


def draw(folder: Path) -> None:
    """Draw the figures of a study again from its results.json, as after running it where matplotlib was not installed.

    Args:
        folder: where results.json lies, or the file itself; the figures go beside it
    """
    from memory_mosaics.experiments import figures

    folder = folder.parent if folder.name == "results.json" else folder
    try:
        results = read_json(folder / "results.json")
        drawn = figures.draw(results, folder)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} holds no results.json; name the folder of a study") from None
    except UserError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{folder / 'results.json'} is not what a study wrote: {one_line(error)}") from error
    print(f"drawn: {', '.join(map(str, drawn))}" if drawn else "nothing to draw: what was measured has no figure")


def train(
    data: Path,
    out: Path | None = None,
    *,
    init_from: Path | None = None,
    preset: str | None = None,
    model: ModelArgs = MODEL,
    training: Training = TRAINING,
    machine: RuntimeConfig = MACHINE,
) -> dict[str, Any]:
    """Train a language model on a prepared corpus, or go on with a run that was stopped, on one process or by torchrun.

    Args:
        data: a folder that `mosaics prepare` wrote
        out: the folder of the run; the same command goes on from the newest checkpoint in it, also to more
            --training.steps than before: the learning rate is then that of the new length from there on. null is
            runs/model, and with --from runs/SOURCE-finetuned: runs/a-finetuned, or runs/a-step-00000800-finetuned
        init_from: fine-tuning: a checkpoint, or a run, whose weights, model and tokenizer to begin with; optimiser and
            schedule are new, and of the model only --model.dropout and --model.context may be others
        preset: where the values below come from that are not given: memory-mosaic-{1,4,8,12,18} are the paper's, -small
            and -tiny, the default, for small corpora; transformer- has the same
        model: which model
        training: how it learns
        machine: how it is computed, saved and watched
    """
    as_flag_only(preset)
    if out is None:
        out = Path("runs") / ("model" if init_from is None else f"{_source_name(init_from)}-finetuned")
    plan = Run(data=data, out=out, init_from=init_from, model=model, training=training, machine=machine)
    return trainer.train(plan, lengthen=True)


def _source_name(source: Path) -> str:
    """The name of a checkpoint folder; a checkpoint of a run has the run's before it."""
    source = source.resolve()
    return f"{source.parent.name}-{source.name}" if STEP.fullmatch(source.name) else source.name


COMMANDS: dict[str, Any] = {
    "demo": demo.run,
    "stories": generator.run,
    "babistories": BABISTORIES,
    "prepare": corpus.run,
    "train": train,
    "info": info,
    "convert": convert,
    "generate": generate.run,
    "prompts": prompts.run,
    "inspect": inspect.run,
    "explore": explorer.run,
    "lm-eval": lm_eval.run,
    "serve": server.serve,
    "evaluate": evaluate.run,
    "anchors": anchors.run,
    "attention": attention.run,
    "figures": gallery.run,
    "curves": curves.run,
    "sweep": sweep.run,
    "draw": draw,
    "induction": induction.run,
    "moons": moons.run,
    "regbench": regbench.run,
    "bench": bench.run,
}


def _is_list(value: str, kind: str) -> bool:
    """Whether it is a list as the parser has it, and not a text in brackets."""
    try:
        found = loads(value)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and not ("str" in kind and any(not isinstance(each, str) for each in found))


def _as_list(values: list[str], kind: str) -> str:
    return dumps(values, ensure_ascii=False) if "str" in kind else f"[{','.join(values)}]"


def _in_full(word: str, names: Collection[str]) -> str:
    """`--architecture` as `--architectures`, if no other flag begins like that; those of a group want its name."""
    flag, given, value = word.partition("=")
    start = flag.removeprefix("--")
    if start in (flag, "") or start in names:
        return word
    meant = [name for name in names if name.startswith(start) and "." not in name.removeprefix(start)]
    if len(meant) > 1:
        raise UserError(f"{flag} may be {either(f'--{name}' for name in meant)}; write it in full")
    return f"--{meant[0]}{given}{value}" if meant else word


def gather_lists(arguments: Sequence[str]) -> list[str]:
    """`--heads 1 3` as `--heads [1,3]`, which is how the parser wants a list; words before the first flag likewise.

    `bench train` is `bench --benchmarks train`, a flag that is true or false may stand alone: `--cpu`, `--by-position`
    is `--by_position`, and so is `--by`.
    """
    rest = [re.sub(r"^--[\w.-]+", lambda flag: "--" + flag[0][2:].replace("-", "_"), word) for word in arguments]
    gathered = [rest.pop(0)]
    command = COMMANDS.get(gathered[0])
    if isinstance(command, dict):
        gathered += rest[:1]
        command = command.get(rest.pop(0) if rest else None)
    parameters = signature(command).parameters if callable(command) else {}
    kinds = dict.fromkeys(PARSERS_OWN) | {FLAGS.get(name, name): each.annotation for name, each in parameters.items()}
    if kinds.pop("writer", None):  # given on to it, flag by flag
        kinds |= {field.name: field.type for field in fields(Writer)}
    for name, group in tuple(kinds.items()):
        kinds |= {f"{name}.{field.name}": field.type for field in (fields(group) if is_dataclass(group) else ())}
    check_arguments(arguments, {"--config"} | {f"--{name.partition('.')[0]}" for name in kinds if "." in name})
    lists = {
        f"--{name}": str(kind) for name, kind in kinds.items() if re.match(r"(list|tuple)\[(?!.*\| str)", str(kind))
    }
    word = f"--{next(iter(parameters), '')}"  # the first parameter takes the words before any flag
    if word in lists and parameters[word[2:]].default is None and rest and not rest[0].startswith("-"):
        rest.insert(0, word)
    takes_words = any(each.default is each.empty and each.kind is not each.VAR_KEYWORD for each in parameters.values())
    while rest:
        kind = lists.get(word, "")
        values = takewhile(lambda value: not FLAG.match(value) and not _is_list(value, kind), rest)  # noqa: B023
        values = list(values) if kind else []
        if values:
            gathered.append(_as_list(values, kind))
            del rest[: len(values)]
        if rest:
            word = _in_full(rest.pop(0), kinds)
            name, given, value = word.partition("=")
            if given and (kind := lists.get(name, "")) and not _is_list(value, kind):
                word = f"{name}={_as_list([value], kind)}"  # the way to give one that begins with a dash
            gathered.append(word)
            if kinds.get(word[2:]) is bool:
                told = rest and (rest[0].lower() in ("true", "false") or not (takes_words or rest[0].startswith("-")))
                gathered.append(rest.pop(0).lower() if told else "true")
    return gathered


def with_preset(arguments: list[str]) -> list[str]:
    """A training preset as the configuration that it stands for; what else is on the command line changes it."""
    named = [at for at, word in enumerate(arguments) if word.split("=")[0] == "--preset"]
    if arguments[0] not in ("train", "sweep") or not named:
        return arguments
    at = named[-1]
    _, given, name = arguments[at].partition("=")
    rest = arguments[1:at] + arguments[at + (1 if given else 2) :]
    model, training = recipe(name if given else " ".join(arguments[at + 1 : at + 2]))
    return [arguments[0], "--config", dumps({"model": asdict(model), "training": asdict(training)}), *rest]


def _interrupt_again(ignored: Any) -> None:
    """Ctrl-C that came while Python cleaned up, where it cannot be raised, comes again; else it would be lost."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        later = threading.Timer(0.05, _thread.interrupt_main)  # raised here, it would be lost again
        later.daemon = True
        later.start()
    else:
        sys.__unraisablehook__(ignored)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 2 for a user's mistake, 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    options: dict[str, Any] = {"prog": "mosaics", "parser_class": Parser, "version": __version__}
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _interrupt_again
    try:
        with within_memory("these sizes do not fit this machine; choose smaller ones"):
            results = auto_cli(COMMANDS, args=with_preset(gather_lists(arguments)), **options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, `head` say, has what it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (UserError, OSError) as error:
        print(f"mosaics: {one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mosaics: interrupted", file=sys.stderr)
        return 130
    return 130 if isinstance(results, dict) and results.get("interrupted") else 0


if __name__ == "__main__":
    raise SystemExit(main())
