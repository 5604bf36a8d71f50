"""Configurations: frozen dataclasses that name the parts of a model, and their plain form for JSON and YAML.

A part is a dataclass registered under a name; its plain form is a dictionary with that name under "part". Only
registered parts can be read back, so a configuration file can name nothing that was not imported already.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

PARTS: dict[str, type] = {}

T = TypeVar("T")


def part(name: str) -> Callable[[type[T]], type[T]]:
    """Register a configuration dataclass under `name`."""

    def register(cls: type[T]) -> type[T]:
        if PARTS.setdefault(name, cls).__qualname__ != cls.__qualname__:
            raise ValueError(f"part {name!r} is already {PARTS[name].__qualname__}")
        return cls

    return register


def to_plain(config: Any) -> Any:
    """Dictionaries, numbers and strings only; the inverse of `from_plain`."""
    if not is_dataclass(config):
        return config
    name = next((name for name, cls in PARTS.items() if cls is type(config)), None)
    plain = {"part": name} if name else {}
    return plain | {field.name: to_plain(getattr(config, field.name)) for field in fields(config)}


def from_plain(cls: type[T], plain: Any) -> T:
    """Build `cls` from its plain form; an unknown field, part or type is an error that names it."""
    if not isinstance(plain, Mapping):
        raise ValueError(f"{cls.__name__} wants a mapping of its fields, not {plain!r}")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    for name in plain:
        if name not in known:
            raise ValueError(f"{cls.__name__} has no field {name!r}; it has {', '.join(known)}")
    for name, field in known.items():
        if name not in plain and field.default is MISSING:
            raise ValueError(f"{cls.__name__} wants a value for {name!r}")
    hints = get_type_hints(cls)
    return cls(**{name: _value(f"{cls.__name__}.{name}", hints[name], value) for name, value in plain.items()})


def _value(where: str, hint: Any, value: Any) -> Any:
    if isinstance(value, Mapping):
        name = value.get("part")
        if name not in PARTS:
            raise ValueError(f"{where}: no part {name!r}; there are {', '.join(sorted(PARTS))}")
        return from_plain(PARTS[name], {key: item for key, item in value.items() if key != "part"})
    allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = tuple(kind for kind in allowed if not is_protocol(kind) and not is_dataclass(kind))
    if float in kinds and type(value) is int:
        return float(value)
    if type(value) not in kinds:
        names = [
            "a part" if kind not in kinds else "null" if kind is types.NoneType else kind.__name__ for kind in allowed
        ]
        raise ValueError(f"{where} wants {' or '.join(dict.fromkeys(names))}, not {value!r}")
    return value


def is_protocol(kind: Any) -> bool:
    return getattr(kind, "_is_protocol", False)
