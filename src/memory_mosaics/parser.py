"""The parser of the command: jsonargparse, with lists as several words, flags that stand alone, presets, plain errors.

An argument's type comes from a function's signature; `Arguments.add_argument` decides how its values are written.
Errors are one line in words: `--environments must be whole numbers, not abc`.
"""

import math
import os
import re
import sys
from argparse import SUPPRESS, Action, ArgumentError
from argparse import ArgumentParser as PlainParser
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import asdict
from functools import partial
from importlib import import_module
from inspect import Parameter, cleandoc, signature
from itertools import takewhile
from json import loads
from pathlib import Path
from textwrap import fill
from types import NoneType, UnionType
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, get_loader, set_loader
from jsonargparse._core import ArgumentGroup

from memory_mosaics.config import MAX_SEED
from memory_mosaics.errors import UserError, did_you_mean, join_or, one_line
from memory_mosaics.experiments.runner import RECIPES
from memory_mosaics.files import check_yaml, read_yaml
from memory_mosaics.training.config import preset_defaults

NOUNS = {int: "whole number", float: "number", str: "text", Path: "path"}
FLAGS = {"--init_from": "--from"}  # whose names Python reserves
IMPORT_HELP = "a module with parts of your own, such as my_mixers of my_mixers.py, which is imported first"
MAX_CONFIG_BYTES = 1 << 20
QUICK = "MOSAICS_QUICK"  # an environment variable: if it is set, sizes are at most these, to try a script in seconds
QUICK_SIZES = {"count": 600, "windows": 2, "sequences": 2, "training.steps": 2, "training.batch": 2}
QUICK_SIZES |= {"training.evaluate_windows": 2, "steps": 2, "epochs": 1, "held_out": 32, "story_count": 300}
SYNONYMS = {"lr": "learning_rate", "batch_size": "batch", "max_steps": "steps", "max_iters": "steps"}  # of others
SYNONYMS |= {"n_layer": "blocks", "n_layers": "blocks", "n_head": "heads", "n_heads": "heads", "block_size": "context"}
SYNONYMS |= dict.fromkeys(("n_embd", "d_model", "hidden_size"), "width")
SYNONYMS |= dict.fromkeys(("max_new_tokens", "max_tokens", "max_length", "num_tokens"), "length")
LOAD_YAML = get_loader("yaml")


def load_yaml(text: str) -> Any:
    """Load a value as jsonargparse does, with bounded nesting: PyYAML recurses in C, to a segmentation fault."""
    try:
        return LOAD_YAML(check_yaml(text, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError, OverflowError) as error:
        raise yaml.YAMLError(one_line(error)) from error


set_loader("yaml", load_yaml, (yaml.YAMLError,))


class InvalidValue(TypeError):
    """A value that is not of its argument's type."""

    def __init__(self, action: Action, value: Any):
        super().__init__(f"{flag_of(action)} must be {expected(action)}, not {value}")


def flag_of(action: Action) -> str:
    """The flag of an argument, or the name of one without a flag."""
    return action.option_strings[0] if action.option_strings else action.dest


def import_parts(name: str) -> None:
    """Import a module, which registers the parts of models that it defines."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as for a script that is here
    try:
        import_module(name)
    except Exception as error:  # a module may do anything
        raise UserError(f"--import {name} fails: {type(error).__name__}: {one_line(error)}") from error


class ReadBefore(Action):
    """An argument that `Parser.parse_args` reads before all others, so that parsing it again does nothing."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None: ...


class Arguments:
    """Shared by the parser and its groups: `add_argument` sets nargs and names by the type of the argument."""

    words: tuple[str, ...] = ()  # the names of optional arguments that are given without a flag

    def add_argument(self: Any, *args: Any, **options: Any) -> Any:
        args, options = argument_options(args, options, self.words)
        action: Any = super().add_argument(*args, **options)  # type: ignore[misc]
        if not action.option_strings and not action.required:
            self._option_string_actions[f"--{action.dest}"] = action  # the words may come after their name as well
        if isinstance(options.get("nargs"), int):
            action.instantiate_classes = tuple
        if hasattr(action, "_typehint"):
            action._check_type = partial(check_type, action, action._check_type)
        return action


class HelpFormatter(DefaultHelpFormatter):
    """Shows a usage of one line, headings within the width of the terminal, and the type Path by its name."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Show the words alone: all flags are listed below, with their help."""
        words = [copy(action) for action in actions if not action.option_strings]
        for word in words:
            if isinstance(word.choices, dict):
                word.metavar = "COMMAND"
        self._prog = f"{self._prog.replace(' [options]', '')} [options]"
        super().add_usage(usage, words, [], prefix)

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and fill(heading, self._width - 1))

    def _get_type_str(self, action: Action) -> str | None:
        found = super()._get_type_str(action)
        return found and found.replace("<class 'Path'>", "Path")


class Group(Arguments, ArgumentGroup):
    """The arguments of a dataclass."""


class Parser(Arguments, ArgumentParser):
    """Reports an error in one line, without the usage that `--help` shows."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, formatter_class=HelpFormatter, **options)
        self._group_class = Group  # else from the text of this file, silently none where that changes under the process
        if "version" in options:  # the parser of all commands
            self.add_argument("--import", action=ReadBefore, default=SUPPRESS, metavar="MODULE", help=IMPORT_HELP)

    def add_function_arguments(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[str]:
        leading = takewhile(lambda each: each.default is None, signature(function).parameters.values())
        self.words = tuple(each.name for each in leading if each.kind is Parameter.POSITIONAL_OR_KEYWORD)
        self.description = cleandoc(function.__doc__ or "").partition("\nArgs:")[0]  # not its first line alone
        self.add_argument("--import", action=ReadBefore, default=SUPPRESS, metavar="MODULE", help=IMPORT_HELP)
        recipe_file = RECIPES / f"{function.__module__.rpartition('.')[2]}.yaml"
        if recipe_file.exists():  # it is an experiment
            text = f"a changed copy of {recipe_file}, which has the defaults; a flag wins over it"
            self.add_argument("--recipe", action=ReadBefore, default=SUPPRESS, metavar="FILE", help=text)
        return super().add_function_arguments(function, *args, **options)

    def parse_args(self, args: Any = None, *rest: Any, **options: Any) -> Any:
        first = DEFAULTS.parse_known_args(args or ())[0]
        for module in filter(None, getattr(first, "import")):
            import_parts(module)
        name = first.preset if "--preset" in self._option_string_actions else None
        if first.recipe is not None and "--recipe" in self._option_string_actions:
            self._read_recipe(Path(first.recipe), preset=name)
        if name is not None:
            model, training = preset_defaults(name)
            self.set_defaults(model=asdict(model), training=asdict(training))
        found = super().parse_args(args, *rest, **options)
        for action in self._actions:  # jsonargparse takes null for any type
            hint = getattr(action, "_typehint", NoneType)
            is_null = action.default is not None and action.dest in found and found[action.dest] is None
            if is_null and NoneType not in (hint, *get_args(hint)) and not takes_list(action):
                self.error(str(InvalidValue(action, "null")))
        if name is not None and found.preset == name:
            found.preset = None  # its values are those of `model` and `training` now
        if os.environ.get(QUICK):
            self._reduce(found)
        return found

    def _reduce(self, found: Any) -> None:
        """Replace sizes by those of `QUICK_SIZES`, and print which."""
        own = {action.dest for action in self._actions}
        larger = {
            key: size
            for key, size in QUICK_SIZES.items()
            if key in own and (math.inf if found[key] is None else found[key]) > size
        }
        for name, size in larger.items():
            found[name] = size
        if larger:
            print(f"{QUICK} is set:", *(f"--{name} {size}" for name, size in larger.items()), file=sys.stderr)

    def _read_recipe(self, file: Path, *, preset: str | None) -> None:
        """Take the defaults from a recipe."""
        try:
            found = read_yaml(file, MAX_CONFIG_BYTES)
        except OSError as error:
            raise UserError(f"cannot read the recipe {file}: {one_line(error)}") from error
        if not isinstance(found, dict):
            raise UserError(f"the recipe {file} has no names and values")
        if preset is not None:
            raise UserError("give --preset or --recipe, not both: a recipe has the values of a preset in it")
        known = {action.dest for action in self._actions}
        for key in nested_keys(found, known):
            if key not in known:
                hint = did_you_mean(key, sorted(known), otherwise=f"{self.prog.split()[-1]} --help lists all")
                raise UserError(f"the recipe {file} has an unknown key {key}; {hint}")
        self.default_config_files = [str(file)]

    def _parse_optional(self, arg_string: str) -> Any:
        """`--by-position` is `--by_position`."""
        flag, equals, value = arg_string.partition("=")
        if flag.startswith("--"):
            arg_string = f"--{flag[2:].replace('-', '_')}{equals}{value}"
        return super()._parse_optional(arg_string)

    def _get_option_tuples(self, option_string: str) -> Any:
        """`--arch` is `--architectures`; those of a group want its name."""
        start = option_string.partition("=")[0]
        found = super()._get_option_tuples(option_string)
        return [each for each in found if "." not in each[1].removeprefix(start) and not each[1].endswith("+")]

    def _match_argument(self, action: Action, arg_strings_pattern: str) -> int:
        """`--json MODEL`: a flag that is true or false leaves another word to the arguments without a flag."""
        words = any(not each.option_strings and each.nargs != "*" for each in self._actions)
        if words and action.option_strings and action.nargs == "?":
            flag, *following = self.args[-len(arg_strings_pattern) - 1 :]
            alone = action.dest.startswith(flag[2:].replace("-", "_"))  # not --json=false
            if alone and following and following[0].lower() not in ("true", "false"):
                return 0
        one_word = arg_strings_pattern == "A"  # of those that follow, or of `--flag=word`
        if isinstance(action.nargs, int) and (one_word or self.args[-len(arg_strings_pattern) :][0].startswith("[")):
            return 1  # it may be a list: `_get_values` counts
        return super()._match_argument(action, arg_strings_pattern)

    def _match_arguments_partial(self, actions: Any, arg_strings_pattern: str) -> list[int]:
        """Leave arguments without a word to those that come after further flags."""
        counts = super()._match_arguments_partial(actions, arg_strings_pattern)
        while counts and not counts[-1] and "O" in arg_strings_pattern:
            counts.pop()
        return counts

    def _get_values(self, action: Action, arg_strings: list[str]) -> Any:
        """The words of an argument, if they are of its type; a list may be one word, `[1,3]`."""
        if not arg_strings and (action.nargs == "*" or (action.nargs == "?" and not action.option_strings)):
            return SUPPRESS  # leaves what its flag has set
        values = super()._get_values(action, arg_strings)
        if takes_config(action):
            check_config(action, values)
        elif takes_list(action):
            if len(values) == 1 and (items := json_list(values[0], action)) is not None:
                values = items
            if isinstance(action.nargs, int) and len(values) != action.nargs:
                raise ArgumentError(action, f"expected {action.nargs} arguments")
        return values

    def _check_value_key(self, action: Action, value: Any, key: str, cfg: Any, append: bool = False) -> Any:
        if hasattr(action, "basetype") and not isinstance(value, str | Mapping | Namespace):  # --config has its paths
            raise InvalidValue(action, value)
        return super()._check_value_key(action, value, key, cfg, append=append)

    def _flags(self) -> dict[str, Action]:
        """The flags of the command that the arguments name."""
        parser: Any = self
        for word in self.args or ():
            for action in parser._actions:
                if isinstance(action.choices, dict) and word in action.choices:
                    parser = action.choices[word]
        return {flag: action for flag, action in parser._option_string_actions.items() if flag.startswith("--")}

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:  # type: ignore[override]
        command = self.prog.replace(" [options]", "")
        where = "--help" if command == "mosaics" else f"{command} --help"
        cause: BaseException | None = ex
        while cause and not isinstance(cause, InvalidValue):
            cause = cause.__cause__ or cause.__context__
        if cause:
            message = str(cause)
        elif name := next((word for word in self.args or () if f" {word}." in message), ""):  # of a command's arguments
            message, where = message.replace(f" {name}.", " "), f"{command} {name} --help"
        elif isinstance(ex, ArgumentError) and ex.argument_name:
            message = f"{ex.argument_name}: {ex.message}"
        if wrong := re.search("invalid choice: '(.*?)' [(]choose from (.*)[)]", message):
            hint = did_you_mean(wrong[1], re.findall("'(.*?)'", wrong[2]), otherwise=" ")
            message = f"there is no command {wrong[1]}; {hint}".rstrip("; ")
        elif wrong := re.search(r"unrecognized arguments:.*?(--\S+)", message):
            message += f"; {near_flag(wrong[1].partition('=')[0], list(self._flags()))}".rstrip("; ")
        elif message.startswith("unrecognized arguments:") and "--prompt" in self._flags():
            message += "; a text comes after --prompt"
        elif wrong := re.search("does not accept option '(.*)'", message):
            hint = did_you_mean(f"--{wrong[1]}", self._flags(), otherwise=" ").replace("--", "")
            message = f"the configuration has an unknown key {wrong[1]}; {hint}".rstrip("; ")
        elif wrong := re.search("arguments are required: (.*)", message):
            flags = {action.dest: flag_of(action) for action in self._flags().values()}
            message = message.replace(wrong[1], ", ".join(flags.get(name, name) for name in wrong[1].split(", ")))
        print(f"mosaics: {one_line(ValueError(message))} (see {where})", file=sys.stderr)
        raise SystemExit(2)


def near_flag(flag: str, flags: list[str]) -> str:
    """Suggest the flag that was meant: `--lr` is --training.learning_rate."""
    path = flag[2:].replace("-", "_")
    name = path.rpartition(".")[2]
    name = SYNONYMS.get(name, name)
    if same := [each for each in flags if each[2:].rpartition(".")[2] == name]:
        return f"did you mean {join_or(same)}?"
    hint = did_you_mean(path, [each[2:] for each in flags], otherwise=" ")
    return hint.replace("did you mean ", "did you mean --")


DEFAULTS = PlainParser(add_help=False, exit_on_error=False)  # of flags that set the defaults of others
DEFAULTS.add_argument("--preset", nargs="?")
DEFAULTS.add_argument("--recipe", nargs="?")
DEFAULTS.add_argument("--import", nargs="?", action="append", default=[])


def nested_keys(values: Mapping[Any, Any], known: set[str], prefix: str = "") -> Iterator[str]:
    """Yield the names of all values, with the names of their groups where these are `known`: `model.width`."""
    for key, value in values.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping) and any(name.startswith(f"{prefix}{key}.") for name in known):
            yield from nested_keys(value, known, f"{prefix}{key}.")


def argument_options(args: Any, options: dict[str, Any], words: tuple[str, ...]) -> tuple[Any, dict[str, Any]]:
    """How the values of an argument's type are written: the arguments of `add_argument`, with nargs and names."""
    hint = options.get("type", getattr(options.get("action"), "_typehint", None))
    is_word = args[0].removeprefix("--") in words
    if element := element_type(hint):
        count = len(get_args(hint)) if get_origin(hint) is tuple else "+"
        default = options.get("default")
        options = options | {"type": element, "nargs": count} | ({"default": list(default)} if default else {})
        options.pop("action", None)
        args = args[:1]  # without jsonargparse's --NAME+
        if is_word:
            args, options["nargs"] = (args[0][2:],), "*"
    elif hint is bool:
        options = options | {"nargs": "?", "const": True}
    elif is_word:
        args, options = (args[0][2:],), options | {"nargs": "?"}
    if args[0] in FLAGS:
        options |= {"dest": args[0][2:], "metavar": "CHECKPOINT"}
        args = (FLAGS[args[0]],)
    return args, options


def element_type(hint: Any) -> Any:
    """The type of the elements of a list or tuple, or of None or a list; None for other types."""
    if get_origin(hint) in (Union, UnionType):
        parts = [part for part in get_args(hint) if part is not NoneType]
        hint = parts[0] if len(parts) == 1 else None
    return get_args(hint)[0] if get_origin(hint) in (list, tuple) else None


def takes_list(action: Action) -> bool:
    """Whether the value is a list, written as several words."""
    return action.nargs in ("+", "*") or isinstance(action.nargs, int)


def takes_config(action: Action) -> bool:
    """Whether the value is a configuration: `--config`, or the flag of a group such as `--training`."""
    return action.dest == "config" or hasattr(action, "basetype")


def check_config(action: Action, value: str) -> None:
    """Refuse configurations that are too large, no text or not regular, before jsonargparse reads them."""
    if os.path.exists(value) and not os.path.isdir(value):  # False, too, for a text that cannot be a path
        read_yaml(Path(value), MAX_CONFIG_BYTES)
        return
    if re.fullmatch(r"[^\s{]+\.(yaml|yml|json)", value):
        raise UserError(f"{flag_of(action)}: there is no file {value}")
    with suppress(yaml.YAMLError):
        check_yaml(value)
        if isinstance(load_yaml(value), Mapping):
            return
    raise InvalidValue(action, value)


def check_type(action: Any, convert: Callable[[Any], Any], values: Any) -> Any:
    """Convert a value or a list as jsonargparse does; refuse other types, and numbers that PyTorch does not take."""
    several, converted = takes_list(action), []
    if several and not isinstance(values, list | tuple):
        raise InvalidValue(action, values)
    for value in values if several else (values,):
        if isinstance(value, str) and action._typehint is not str:
            with suppress(yaml.YAMLError, UnicodeEncodeError):  # no YAML for jsonargparse either, which sets no bounds
                check_yaml(value, MAX_CONFIG_BYTES)
        try:
            found = convert([value])[0] if several else convert(value)
        except (TypeError, ValueError):
            raise InvalidValue(action, value) from None
        for number in found if isinstance(found, list) else (found,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{flag_of(action)} must be a finite number, not {number}")
            if isinstance(number, int) and abs(number) > MAX_SEED:
                bounds = f"between {-MAX_SEED} and {MAX_SEED}"
                raise UserError(f"{flag_of(action)} must be {bounds}, not {str(number)[:40]}")
        converted.append(found)
    return converted if several else converted[0]


def json_list(word: str, action: Any) -> list[Any] | None:
    """The list that a word is, unless it is one of several texts."""
    with suppress(ValueError, RecursionError):
        found = loads(word)
        if isinstance(found, list) and (action._typehint is not str or all(isinstance(each, str) for each in found)):
            return found
    return None


def expected(action: Any) -> str:
    """A noun phrase for the values of an argument."""
    if takes_config(action):
        return "a YAML file or JSON object"
    if takes_list(action):
        return f"{action.nargs if isinstance(action.nargs, int) else ''} {NOUNS[action._typehint]}s".strip()
    return type_phrase(action._typehint)


def type_phrase(hint: Any) -> str:
    """A noun phrase for the values of a type."""
    parts = [part for part in get_args(hint) if part is not NoneType]
    if hint is bool or get_origin(hint) is Literal:
        return join_or(parts or ("true", "false"))
    if get_origin(hint) is list:
        return f"{NOUNS[parts[0]]}s"
    return join_or(map(type_phrase, parts)) if parts else f"a {NOUNS[hint]}"
