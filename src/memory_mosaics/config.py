"""Configurations: frozen dataclasses that name the parts of a model, and their plain form for JSON and YAML.

A part is a dataclass registered under a name; its plain form is a dictionary with that name under "part". Only
registered parts can be read back, so a configuration file can name nothing that was not imported already.
"""

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from math import inf
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from torch import nn

from memory_mosaics.errors import UserError, check_range, join_or

MAX_SIZE = 2**31 - 1  # of any dimension of a tensor
MAX_SEED = 2**63 - 1  # what PyTorch takes
MAX_JOBS, MAX_STORIES = 1024, 100_000_000  # processes at once; stories, about 100 GB

PARTS: dict[str, type] = {}

T = TypeVar("T")

# Types of fields whose values a `Part` checks.
PositiveInt = Annotated[int, "at least", 1]
NonNegativeInt = Annotated[int, "at least", 0]
NonNegativeFloat = Annotated[float, "at least", 0]
PositiveFloat = Annotated[float, "positive"]


class Part:
    """Base of configurations: fields annotated with `PositiveInt` and the like are checked when one is created."""

    def __post_init__(self) -> None:  # torch.compile traces it too
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            for kind in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
                match getattr(kind, "__metadata__", None):
                    case ("at least", bound):
                        check_range(bound, inf, **{name: getattr(self, name)})
                    case ("positive",):
                        check_positive(self, name)


class ExtractorConfig(Part, ABC):
    """Configuration of an extractor, which turns inputs into keys or values.

    It builds its `extractor` with its fields as keywords, or overrides `build`.
    """

    extractor: ClassVar[Callable[..., Any]]

    def build(self, width: int, heads: int, *, head_width: int, bias: bool = False) -> Any:
        return self.extractor(width, heads, head_width=head_width, bias=bias, **vars(self))


class SharpnessConfig(Part, ABC):
    """Names how the sharpness beta of a memory depends on the number of pairs, and builds it."""

    @abstractmethod
    def build(self, heads: int, *, initial: float) -> Any:
        """`initial` is a good beta for random keys of this width."""


class MixerConfig(Part, ABC):
    """Configuration of a mixer."""

    @abstractmethod
    def build(self, width: int, *, dropout: float = 0.0, bias: bool = False) -> nn.Module: ...


class NormConfig(Part, ABC):
    """Configuration of a norm."""

    @abstractmethod
    def build(self, width: int, *, bias: bool = False) -> nn.Module: ...


KINDS = {ExtractorConfig: "an extractor", SharpnessConfig: "a sharpness", MixerConfig: "a mixer", NormConfig: "a norm"}


@dataclass_transform(frozen_default=True, kw_only_default=True)
def part(name: str) -> Callable[[type[T]], type[T]]:
    """Make a class a frozen dataclass of keywords, unless it is a dataclass, and register it under `name`.

    Defining the same class again replaces it.
    """

    def register(cls: type[T]) -> type[T]:
        if "__dataclass_fields__" not in vars(cls):
            cls = dataclass(frozen=True, kw_only=True)(cls)
        known = PARTS.setdefault(name, cls)
        if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"part {name!r} is already {known.__module__}.{known.__qualname__}")
        PARTS[name] = cls
        return cls

    return register


def part_name(cls: type) -> str:
    """Return the name under which a configuration dataclass is registered."""
    for name, known in PARTS.items():
        if known is cls:
            return name
    raise ValueError(f"{cls.__name__} has no name to be saved under; register it with @part")


def check_positive(config: Any, *names: str) -> None:
    """Raise `UserError` for fields that are not positive and finite. None is an option that is not given."""
    for name in names:
        if (value := getattr(config, name)) is not None and not 0 < value < inf:
            raise UserError(f"{name} must be positive, not {value}")


def check_choices(config: Any) -> None:
    """Raise `UserError` for fields annotated as a Literal with another value: dataclasses do not check it."""
    for name, hint in get_type_hints(type(config)).items():
        if get_origin(hint) is Literal and getattr(config, name) not in get_args(hint):
            raise UserError(f"{name} must be {join_or(map(repr, get_args(hint)))}, not {getattr(config, name)!r}")


def check_sizes(config: Any) -> None:
    """Raise `UserError` for integers that exceed the size of a tensor, in a configuration and its parts."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            check_sizes(value)
        elif isinstance(value, int):
            check_range(-inf, MAX_SIZE, **{field.name: value})


def to_plain(config: Any) -> dict[str, Any]:
    """Dictionaries, lists, numbers and strings only; the inverse of `from_plain`."""
    return {field.name: _plain(getattr(config, field.name)) for field in fields(config)}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return {"part": part_name(type(value))} | to_plain(value) if is_dataclass(value) else value


def from_plain(cls: type[T], plain: Any) -> T:
    """Build `cls` from its plain form; an unknown field, part or type is an error that names it."""
    if not isinstance(plain, Mapping):
        raise ValueError(f"{cls.__name__} wants a mapping of its fields, not {plain!r}")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    for name in plain:
        if name not in known:
            raise ValueError(f"{cls.__name__} has no field {name!r}; it has {', '.join(known)}")
    for name, field in known.items():
        if name not in plain and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{cls.__name__} wants a value for {name!r}")
    hints = get_type_hints(cls)
    return cls(**{name: _value(f"{cls.__name__}.{name}", hints[name], value) for name, value in plain.items()})


def _value(where: str, hint: Any, value: Any) -> Any:
    """Convert a plain value to a type annotation; ValueError if it does not allow it."""
    allowed = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if isinstance(value, Mapping):
        if get_origin(hint) is dict:
            return {str(key): _value(f"{where}.{key}", get_args(hint)[1], item) for key, item in value.items()}
        name = value.get("part")
        if not isinstance(name, str) or name not in PARTS:
            raise ValueError(f"{where}: no part {name!r}; there are {', '.join(sorted(PARTS))}")
        value = from_plain(PARTS[name], {key: item for key, item in value.items() if key != "part"})
    for kind in allowed:
        if get_origin(kind) is tuple and isinstance(value, list):
            if ... not in get_args(kind) and len(value) != len(get_args(kind)):
                raise ValueError(f"{where} wants {len(get_args(kind))} values, not {len(value)}")
            return tuple(_value(where, get_args(kind)[0], item) for item in value)
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
        if kind is float and type(value) is int:
            return float(value)
        if isinstance(kind, type) and isinstance(value, kind) and not (type(value) is bool and kind is not bool):
            return value
    raise ValueError(f"{where} wants {' or '.join(map(_name, allowed))}, not {_name(type(value), value)}")


def _name(kind: Any, value: Any = None) -> str:
    """The name of a type, or of a value of it, in messages."""
    if kind in PARTS.values():
        return f"the part {part_name(kind)!r}"
    if kind in KINDS:
        return KINDS[kind]
    if value is not None:
        return repr(value)
    if get_origin(kind) is tuple:
        return "a list"
    return "null" if kind is types.NoneType else getattr(kind, "__name__", str(kind))
