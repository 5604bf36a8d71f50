"""A suite of the arena: tasks, and the sizes, the training and the search that all contestants have in common.

`suites/tiny.yaml` is an example. The values of a task that is one of `tasks` win over those of `defaults`.
"""

import re
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from memory_mosaics.config import from_plain, to_plain
from memory_mosaics.errors import UserError, one_line
from memory_mosaics.experiments.grid import combinations
from memory_mosaics.experiments.outcomes import Settings
from memory_mosaics.experiments.own_mixers import OwnMixer, find_architecture
from memory_mosaics.files import read_yaml
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.models import (
    ARCHITECTURES,
    INGREDIENTS,
    Architecture,
    add_ingredients,
    baseline,
    count_without_embeddings,
    resize_channel_mixer,
    transformer,
)
from memory_mosaics.tasks import induction, mad, mqar, regbench, regression, ruler  # noqa: F401 - they register parts
from memory_mosaics.tasks.synthetic import SyntheticData
from memory_mosaics.tasks.text import TextData
from memory_mosaics.training.config import Training

SUITES = Path(__file__).parent / "suites"
SEARCH_SEED = 0  # of all runs of the search; those of the report have 1, 2, ...
MAX_SUITE_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")  # of a task or a text: part of the names of files

Data = SyntheticData | TextData


@dataclass(frozen=True, kw_only=True)
class ArenaTask:
    """A task of a suite: its examples, the sizes of all contestants, how they are trained, and what is searched."""

    name: str
    data: Data
    sizes: dict[str, Any]  # width, blocks and heads
    channel_mixer: bool  # false: sequence mixers alone
    training: Training
    search: dict[str, list[Any]]  # values by the name of a field of Training or of LanguageModelConfig

    @classmethod
    def from_plain(cls, name: str, plain: Any, defaults: Any) -> "ArenaTask":
        """Read a task of a suite; UserError for anything that is missing, unknown or impossible."""
        try:
            check_name(name)
            known = {"data", "model", "training", "search"}
            for given in (plain, defaults):
                fields_of = [given.get(field, {}) for field in known] if isinstance(given, dict) else [None]
                if not all(isinstance(part, dict) for part in fields_of):
                    raise ValueError(f"it must have the fields {', '.join(sorted(known))}, each with fields of its own")
            if unknown := {*plain, *defaults} - known:
                raise ValueError(f"it has no field {min(unknown)!r}; it has {', '.join(sorted(known))}")
            plain = {field: defaults.get(field, {}) | plain.get(field, {}) for field in known}
            data = from_plain(Holder, {"data": plain["data"]}).data
            model = {"channel_mixer": True} | plain["model"]
            channel_mixer = model.pop("channel_mixer")
            if "seed" in plain["training"]:
                raise ValueError("training.seed cannot be given: the search has seed 0, the report 1, 2 and so on")
            if "evaluate_windows" in plain["training"]:
                raise ValueError("training.evaluate_windows cannot be given: the data say how much is held out")
            training = from_plain(Training, {"final_learning_rate": 0.0} | plain["training"])
            search = plain["search"]
            for field, values in search.items():
                if field not in SEARCHABLE:
                    raise ValueError(f"search.{field} cannot be searched; these can: {', '.join(sorted(SEARCHABLE))}")
                if not isinstance(values, list) or not values:
                    raise ValueError(f"search.{field} must be a list of values")
            search = {field: list(dict.fromkeys(values)) for field, values in search.items()}
            one = cls(name=name, data=data, sizes=model, channel_mixer=channel_mixer, training=training, search=search)
            for label in getattr(data, "read", ()):
                check_name(label)
            for values in one.combinations():
                one.training_of(values, seed=SEARCH_SEED)
            for values in one.model_combinations():
                one.config("memory-mosaic", values)
            return one
        except (TypeError, ValueError, AttributeError) as error:
            raise UserError(f"task {name}: {one_line(error)}") from error

    @property
    def setup(self) -> Settings:
        """What all its runs have in common."""
        training = to_plain(self.training)
        others = {name: value for name, value in training.items() if name not in ("seed", *self.search)}
        data = to_plain(Holder(data=self.data))["data"]
        model = self.sizes | {"channel_mixer": self.channel_mixer}
        return {"data": data, "model": model, "training": others, "search": self.search}

    def combinations(self) -> list[Settings]:
        return combinations(self.search)

    def model_combinations(self) -> list[Settings]:
        """Return those of what is searched of the model alone."""
        return combinations({name: values for name, values in self.search.items() if name not in TRAINING_FIELDS})

    def config(self, contestant: str, values: Settings) -> Any:
        """Return the configuration of a contestant with these values."""
        return self.data.model(self.body(contestant, values))

    def body(self, contestant: str, values: Settings) -> LanguageModelConfig:
        """Return the language model of a contestant, or the part of its model that is one.

        Channel mixers are resized so that all have as many parameters outside the embeddings as the transformer.
        """
        sizes: Settings = self.sizes | {"vocabulary": self.data.vocabulary, "context": self.data.length}
        sizes |= {name: value for name, value in values.items() if name in SIZE_FIELDS}
        body = architecture(contestant).config(**sizes)
        body = replace(body, **{name: value for name, value in values.items() if name in MODEL_FIELDS})
        self._check_ingredients(contestant, body)
        if not self.channel_mixer:
            return replace(body, channel_mixer=None)
        weights = count_without_embeddings(transformer(**sizes))
        if abs(count_without_embeddings(body) - weights) < 0.01 * weights:
            return body
        return resize_channel_mixer(body, weights, count_without_embeddings)

    def _check_ingredients(self, contestant: str, body: LanguageModelConfig) -> None:
        """Refuse those that change nothing in this task: the same model would be trained under two names."""
        for name in contestant.split("+")[1:]:
            if name.endswith("-dropout") and not body.dropout:
                raise UserError(f"{contestant}: {name} changes nothing in {self.name}, which has no dropout")
            if "channel_mixer" in INGREDIENTS[name] and not self.channel_mixer:
                raise UserError(f"{contestant}: {name} changes nothing in {self.name}, which has no channel mixers")

    def training_of(self, values: Settings, *, seed: int) -> Training:
        changed = {name: value for name, value in values.items() if name in TRAINING_FIELDS}
        return from_plain(Training, to_plain(self.training) | changed | {"seed": seed})


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A part in plain form has its name only inside another."""

    data: Data


TRAINING_FIELDS = {field.name for field in fields(Training)} - {"steps", "batch", "seed"}
MODEL_FIELDS = {"dropout", "residual_dropout", "embedding_dropout", "init", "tied", "norm_placement"}
SIZE_FIELDS = {"heads"}
SEARCHABLE = TRAINING_FIELDS | MODEL_FIELDS | SIZE_FIELDS


def check_name(name: str) -> None:
    """Refuse what cannot be part of the name of a file."""
    if not NAME.fullmatch(name):
        raise ValueError(f"the name {name!r} must consist of letters, digits, '_', '-' and '.'")


def load_suite(suite: str) -> tuple[dict[str, ArenaTask], Settings]:
    """Return the tasks of a suite, by its name in suites/ or from a file, and its other fields."""
    packaged = SUITES / f"{suite}.yaml"
    file = packaged if packaged.exists() else Path(suite)
    try:
        plain = read_yaml(file, MAX_SUITE_BYTES)
    except (FileNotFoundError, IsADirectoryError):
        names = sorted(path.stem for path in SUITES.glob("*.yaml"))
        raise UserError(f"no suite {suite!r}: neither a file nor one of {', '.join(names)}") from None
    if not isinstance(plain, dict) or {"contestants", "seeds", "tasks"} != plain.keys() - {"defaults"}:
        raise UserError(f"the suite {file} must have the fields contestants, seeds and tasks, and may have defaults")
    if not isinstance(plain["tasks"], dict) or not plain["tasks"]:
        raise UserError(f"the suite {file} has no tasks")
    names = plain["contestants"]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"the suite {file} must have a list of contestants, not {names!r}")
    if type(plain["seeds"]) is not int:
        raise UserError(f"the suite {file} must have a number of seeds, not {plain['seeds']!r}")
    defaults = plain.get("defaults") or {}
    return {str(name): ArenaTask.from_plain(str(name), one, defaults) for name, one in plain["tasks"].items()}, plain


def architecture(name: str) -> Architecture:
    """Return an architecture by its name in the table of models, or a mixer of your own by its dotted path.

    A mixer is put where the transformer has its attention. Ingredients are added: memory-mosaic+taps+gate.
    """

    def own_architecture(own: OwnMixer) -> Architecture:
        def config(*, heads: int, **sizes: Any) -> LanguageModelConfig:
            return baseline(partial(own.config, heads), **sizes)

        return Architecture(own.label, config, own.config, compiles=False)

    base, *ingredients = name.split("+")
    found = find_architecture(base, ARCHITECTURES, own_architecture)
    return add_ingredients(found, ingredients) if ingredients else found


def is_own(name: str) -> bool:
    """Whether an architecture is a mixer of your own."""
    return name.split("+")[0] not in ARCHITECTURES
