"""In-context regression and classification: learn a function from the examples in the context, which are vectors.

Regression of Garg et al. 2022 (2208.01066): a sequence has points and the values of a function at them, which is drawn
anew for each sequence. At every point its value is predicted, before it is shown.

    inputs      x_1  y_1  x_2  y_2  x_3  y_3  ...             x ~ N(0, 1) in each of 20 dimensions, y in the first
    targets     y_1   .   y_2   .   y_3   .   ...             dots are not part of the loss
    examples     0         1         2                        seen before each prediction

The function is linear with weights ~ N(0, 1), linear with all but three weights zero, or a network of one hidden layer,
y = sqrt(2 / 100) sum_i a_i relu(b_i . x) with a, b ~ N(0, 1). The score is the squared error divided by the variance of
y: predicting 0 has 1. Least squares, which is optimal for linear functions, has 1 - n/20 after n < 20 examples, then 0.

Classification with anonymous labels: each class of a sequence is a centre with a label of its own, drawn anew.

    inputs      x_1  B  x_2  D  x_3  B  x_4  D                x_1 and x_3 are near one centre, x_2 and x_4 near another
    targets      .   .   .   .   B   .   D   .                the first of a class cannot be known

Garg et al. begin training with fewer dimensions and shorter sequences; this curriculum is left out.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from memory_mosaics.config import MAX_SIZE, part
from memory_mosaics.errors import UserError, check_range
from memory_mosaics.language_model import LanguageModelConfig, without_state
from memory_mosaics.shapes import Bool, Float
from memory_mosaics.tasks.synthetic import IGNORED, Arrays, SyntheticData, distinct
from memory_mosaics.tasks.task import Batch

NEIGHBOURS = 3
LASSO_PENALTIES = (1.0, 0.1, 0.01)
LASSO_SWEEPS, LASSO_TOLERANCE = 300, 1e-4


@part("vector_model")
class VectorModelConfig:
    """A language model with vectors in place of tokens.

    Args:
        body: Its blocks, positions and norm; its vocabulary is not used.
        inputs: Size of the vectors that are read.
        outputs: Size of those that are predicted.
    """

    body: LanguageModelConfig
    inputs: int
    outputs: int

    def __post_init__(self) -> None:
        check_range(1, MAX_SIZE, inputs=self.inputs, outputs=self.outputs)

    def build(self) -> "VectorModel":
        return VectorModel(self)


class VectorModel(nn.Module):
    """A linear map, the body of a language model without embedding and output matrix, and another linear map."""

    def __init__(self, config: VectorModelConfig):
        super().__init__()
        self.config = config
        self.read_in = nn.Linear(config.inputs, config.body.width)
        self.body = replace(config.body, vocabulary=1, tied=True).build()
        del self.body.embedding
        self.read_out = nn.Linear(config.body.width, config.outputs)

    def forward(
        self,
        x: Float[Tensor, "B T inputs"],
        state: tuple | None = None,
        mask: Tensor | None = None,
        *,
        block_fn: Callable[..., tuple[Tensor, Any]] | None = None,
    ) -> tuple[Float[Tensor, "B T outputs"], tuple]:
        """Predict at every position; `block_fn` runs each block, as in `LanguageModel.features`."""
        features, state = self.body.features(self.read_in(x), state, mask, block_fn=block_fn)
        return self.read_out(features), state


@dataclass(frozen=True, kw_only=True)
class VectorData(SyntheticData):
    """Pairs of a point and its value or label, two positions each.

    Args:
        vocabulary: There are no tokens: always 2.
        length: Positions, two per pair.
        dimension: Size of a point.
        noise: Standard deviation of the noise that is added to the values of a function; around a centre, to points.
    """

    vocabulary: int = 2
    length: int = 82
    held_out: int = 1280
    dimension: int = 20
    noise: float = 0.0

    has_tokens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, 10_000, dimension=self.dimension)
        if self.vocabulary != 2:
            raise UserError(f"vectors have no vocabulary: it must be 2, not {self.vocabulary}")
        if self.length % 2:
            raise UserError(f"length must be even, two positions per point, not {self.length}")
        if not 0 <= self.noise < 1e6:
            raise UserError(f"noise must be at least 0 and below 1,000,000, not {self.noise}")

    @property
    def points(self) -> int:
        """Points per sequence."""
        return self.length // 2

    @property
    def label(self) -> str:
        return f"{self.points} points"

    @abstractmethod
    def predictions(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Predict the value or the label of each point from the points and values or labels before it; the first is 0.

        By the names of predictors that need no training. Values are (count, n), labels (count, n, labels).
        """


@dataclass(frozen=True, kw_only=True)
class RegressionData(VectorData):
    """Points and the values of a random function, with or without noise."""

    metric: ClassVar[str] = "squared error"
    higher_is_better: ClassVar[bool] = False

    @abstractmethod
    def values(self, rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
        """Draw a function for each row of points (count, n, dimension) and return its values (count, n)."""

    @property
    def variance(self) -> int:
        """Of the values, without noise."""
        return self.dimension

    def guess(self) -> float:
        """Predict 0."""
        return 1 + self.noise**2 / self.variance

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        points = rng.standard_normal((count, self.points, self.dimension), dtype=np.float32)
        values = self.values(rng, points)
        if self.noise:
            values = values + self.noise * rng.standard_normal(values.shape)
        inputs = np.zeros((count, self.length, self.dimension), dtype=np.float32)
        targets = np.full((count, self.length), IGNORED, dtype=np.float32)
        inputs[:, ::2], inputs[:, 1::2, 0], targets[:, ::2] = points, values, values
        return inputs, targets

    def model(self, body: LanguageModelConfig) -> VectorModelConfig:
        return VectorModelConfig(body=body, inputs=self.dimension, outputs=1)

    def _errors(self, model: Any, inputs: Tensor, targets: Tensor, block_fn: Callable[..., Any] | None) -> Tensor:
        predicted = model(inputs, block_fn=block_fn)[0][:, ::2, 0]
        return (predicted.float() - targets[:, ::2]).square() / self.variance

    def loss(self, model: Any, batch: Batch, block_fn: Callable[..., Any] | None) -> Float[Tensor, ""]:
        return self._errors(model, batch.inputs, batch.targets, block_fn).mean()

    def score(self, model: Any, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        errors = self._errors(model, inputs, targets, without_state).flatten()
        return errors, errors

    def anchors(self, examples: Batch) -> dict[str, float]:
        errors = self.anchors_by_point(examples)
        return super().anchors(examples) | {name: float(error.mean()) for name, error in errors.items()}

    def anchors_by_point(self, examples: Batch) -> dict[str, np.ndarray]:
        """Return the mean error of each predictor by the number of examples seen."""
        x, y = examples.inputs[:, ::2].double().numpy(), examples.targets[:, ::2].double().numpy()
        return {name: ((p - y) ** 2).mean(axis=0) / self.variance for name, p in self.predictions(x, y).items()}

    def predictions(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        seen = np.maximum(np.arange(self.points), 1)
        before = lambda sums: np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], axis=1)  # noqa: E731
        return {
            "zero": np.zeros_like(y),
            "mean": before(y.cumsum(axis=1)) / seen,
            "averaging": (x * before((x * y[..., None]).cumsum(axis=1))).sum(axis=-1) / seen,
            f"{NEIGHBOURS} nearest neighbours": nearest_neighbours(x, y),
            "least squares": ridge(x, y, 0.0),
        }


def nearest_neighbours(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Predict the mean value of the nearest points before each."""
    found = np.zeros_like(y)
    for at in range(1, y.shape[1]):
        distances = ((x[:, :at] - x[:, at, None]) ** 2).sum(axis=-1)
        nearest = distances.argsort(axis=1)[:, :NEIGHBOURS]
        found[:, at] = np.take_along_axis(y, nearest, axis=1).mean(axis=1)
    return found


def ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """Predict by the weights w that minimise |y - x w|^2 + penalty |w|^2; by the smallest of them if penalty is 0."""
    found, dimension = np.zeros_like(y), x.shape[-1]
    for at in range(1, y.shape[1]):
        known, values = x[:, :at], y[:, :at, None]
        turned = known.swapaxes(1, 2)
        if at < dimension:
            weights = turned @ np.linalg.solve(known @ turned + penalty * np.eye(at), values)
        else:
            weights = np.linalg.solve(turned @ known + penalty * np.eye(dimension), turned @ values)
        found[:, at] = (x[:, at, None] @ weights)[:, 0, 0]
    return found


def lasso(x: np.ndarray, y: np.ndarray, penalties: Sequence[float]) -> dict[float, np.ndarray]:
    """Predict by the weights w that minimise |y - x w|^2 / 2n + penalty |w|_1, by coordinate descent.

    All rows and all numbers of examples n are computed at once, from the products of the examples, until the
    weights no longer change. Each penalty starts from the weights of the one before it: largest first.
    """
    rows, points, dimension = x.shape
    seen = np.arange(1, points)[:, None]
    products = (x[:, :-1, :, None] * x[:, :-1, None]).cumsum(axis=1) / seen[:, :, None]
    products = products.reshape(-1, dimension, dimension)
    slopes = ((x[:, :-1] * y[:, :-1, None]).cumsum(axis=1) / seen).reshape(-1, dimension)
    weights, found = np.zeros_like(slopes), {}
    for penalty in penalties:
        left = np.arange(len(weights))
        for _ in range(LASSO_SWEEPS):
            product, slope, weight = products[left], slopes[left], weights[left]
            for each in range(dimension):
                own = product[:, each, each]
                rest = slope[:, each] - (product[:, each] * weight).sum(axis=1) + own * weight[:, each]
                weight[:, each] = np.sign(rest) * np.maximum(np.abs(rest) - penalty, 0) / own
            change = np.abs(weight - weights[left]).max(axis=1)
            weights[left] = weight
            left = left[change > LASSO_TOLERANCE]
            if not len(left):
                break
        predicted = (x[:, 1:] * weights.reshape(rows, points - 1, dimension)).sum(axis=-1)
        found[penalty] = np.concatenate([np.zeros((rows, 1)), predicted], axis=1)
    return found


@part("linear_regression")
class LinearRegressionData(RegressionData):
    """y = w . x, w ~ N(0, 1)."""

    def values(self, rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
        weights = rng.standard_normal((len(points), self.dimension, 1))
        return (points @ weights)[..., 0]

    def predictions(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Also the optimal one with noise, which without noise is least squares."""
        return super().predictions(x, y) | ({"ridge": ridge(x, y, self.noise**2)} if self.noise else {})


@part("sparse_regression")
class SparseRegressionData(RegressionData):
    """y = w . x, where only some weights are not zero.

    Args:
        sparsity: Weights that are not zero.
    """

    sparsity: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, self.dimension, sparsity=self.sparsity)

    @property
    def variance(self) -> int:
        return self.sparsity

    def values(self, rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
        chosen = distinct(rng, self.dimension, (len(points), self.sparsity))
        weights = rng.standard_normal((len(points), 1, self.sparsity))
        return (np.take_along_axis(points, chosen[:, None], axis=2) * weights).sum(axis=-1)

    def predictions(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Also the lasso, for several penalties."""
        found = lasso(x, y, LASSO_PENALTIES)
        return super().predictions(x, y) | {f"lasso {penalty}": each for penalty, each in found.items()}


@part("network_regression")
class NetworkRegressionData(RegressionData):
    """y = sqrt(2 / hidden) sum_i a_i relu(b_i . x), a and b ~ N(0, 1).

    Args:
        hidden: Hidden units.
    """

    length: int = 202
    hidden: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(1, 1_000_000, hidden=self.hidden)

    def values(self, rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
        first = rng.standard_normal((len(points), self.dimension, self.hidden), dtype=np.float32)
        second = rng.standard_normal((len(points), self.hidden, 1), dtype=np.float32)
        return (np.maximum(points @ first, 0) @ second)[..., 0] * (2 / self.hidden) ** 0.5

    def predictions(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Also the best linear prediction: 1/pi of the variance is in the intercept, 1/2 linear, the rest neither."""
        intercept = np.full((*y.shape, 1), (self.dimension / np.pi) ** 0.5)
        features = np.concatenate([x / 2**0.5, intercept], axis=-1)
        rest = (1 / 2 - 1 / np.pi) * self.dimension + self.noise**2
        return super().predictions(x, y) | {"ridge": ridge(features, y, rest)}


@part("anonymous_classification")
class ClassificationData(VectorData):
    """Points around centres ~ N(0, 1), and the labels of the centres.

    A point and a label are vectors of dimension + labels numbers: the point and zeros, or zeros and a one.

    Args:
        classes: Centres per sequence.
        labels: Labels to draw from, anew for each sequence.
    """

    length: int = 128
    classes: int = 8
    labels: int = 32
    noise: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(2, 10_000, labels=self.labels)
        check_range(2, self.labels, classes=self.classes)
        check_range(2 * self.classes + 2, 1 << 16, length=self.length)

    def guess(self) -> float:
        """One of the classes of the sequence."""
        return 1 / self.classes

    @property
    def label(self) -> str:
        return f"{self.classes} classes, {self.points} points"

    def draw(self, rng: np.random.Generator, count: int, *, training: bool) -> Arrays:
        centres = rng.standard_normal((count, self.classes, self.dimension), dtype=np.float32)
        labels = distinct(rng, self.labels, (count, self.classes))
        chosen = rng.integers(self.classes, size=(count, self.points))
        points = np.take_along_axis(centres, chosen[:, :, None], axis=1)
        points = points + self.noise * rng.standard_normal(points.shape, dtype=np.float32)
        labelled = np.take_along_axis(labels, chosen, axis=1)
        inputs = np.zeros((count, self.length, self.dimension + self.labels), dtype=np.float32)
        inputs[:, ::2, : self.dimension] = points
        np.put_along_axis(inputs[:, 1::2, self.dimension :], labelled[:, :, None], 1, axis=2)
        earlier = np.tril(np.ones((self.points, self.points), dtype=bool), k=-1)
        known = ((chosen[:, :, None] == chosen[:, None]) & earlier).any(axis=2)
        targets = np.full((count, self.length), IGNORED)
        targets[:, ::2] = np.where(known, labelled, IGNORED)
        return inputs, targets

    def model(self, body: LanguageModelConfig) -> VectorModelConfig:
        return VectorModelConfig(body=body, inputs=self.dimension + self.labels, outputs=self.labels)

    def loss(self, model: Any, batch: Batch, block_fn: Callable[..., Any] | None) -> Float[Tensor, ""]:
        logits = model(batch.inputs, block_fn=block_fn)[0]
        return F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=IGNORED)

    def logits(self, model: Any, inputs: Tensor, asked: Bool[Tensor, "B T"]) -> Float[Tensor, "N labels"]:
        return model(inputs, block_fn=without_state)[0][asked].float()

    def anchors(self, examples: Batch) -> dict[str, float]:
        x = examples.inputs[:, ::2, : self.dimension].double().numpy()
        labels = examples.inputs[:, 1::2, self.dimension :].double().numpy()
        answers = examples.targets[:, ::2].numpy()
        asked, found = answers != IGNORED, self.predictions(x, labels)
        return super().anchors(examples) | {name: float((p == answers)[asked].mean()) for name, p in found.items()}

    def predictions(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        names = ("most frequent label", "nearest neighbour", "nearest class mean")
        found = {name: np.zeros(x.shape[:2], dtype=np.int64) for name in names}
        for at in range(1, self.points):
            known, shown = x[:, :at], y[:, :at]
            nearest = ((known - x[:, at, None]) ** 2).sum(axis=-1).argmin(axis=1)
            counts = shown.sum(axis=1)
            means = shown.swapaxes(1, 2) @ known / np.maximum(counts, 1)[:, :, None]
            distances = np.where(counts > 0, ((means - x[:, at, None]) ** 2).sum(axis=-1), np.inf)
            nearest_label = shown[np.arange(len(x)), nearest].argmax(axis=1)
            labels = counts.argmax(axis=1), nearest_label, distances.argmin(axis=1)
            for name, label in zip(names, labels, strict=True):
                found[name][:, at] = label
        return found
