"""Recall from an index: some pairs one by one, moments of lists of pairs for all others, and a bound on the error.

    y = sum_i w_i v_i / Z,  w_i = exp(beta q.k_i),  Z = sum_i w_i                   over all pairs, |q| = |k_i| = 1

Similar keys form a list (spherical k-means), contiguous in memory. For the n pairs of a list, with mean key m, mean
value u, covariance C of keys and M of keys with values, let s = q.m, x_i = beta (q.k_i - s) and
h(x) = (e^x - 1 - x) / x^2, so that

    w_i = t_i + r_i,    t_i = e^(beta s) (1 + x_i),    r_i = e^(beta s) x_i^2 h(x_i) >= 0.

The sums of the tangents t_i are exact, sum t_i = n e^(beta s) and sum t_i v_i = n e^(beta s) (u + beta M'q), and the
mean of x_i^2 is x^2 = beta^2 q'C q. The sum R of the rest is bounded, since h increases (it is the integral of
(1 - a) e^(a x) over a from 0 to 1): where all scores are in [low, high],

    n e^(beta s) x^2 h(beta (low - s))  <=  R = sum r_i  <=  n e^(beta s) x^2 h(beta (high - s)).

The limits on scores are the tighter of two. Keys within an angle rho of the mean key, which makes an angle theta with
q, have scores from cos(theta + rho) to cos(theta - rho), the triangle inequality on the sphere. And |q.(k_i - m)| is at
most (q'A q)^(1/2) max (d'A^-1 d)^(1/2), d = k_i - m, by Cauchy-Schwarz, for any positive A; here A is C and a little
more.

The answer takes R^ for R, which is a Gaussian's moment within the limits, and g for the mean value behind it:
Z^ = Z_read + sum_lists (n e^(beta s) + R^), and y^ likewise. Then exactly

    Z (y - y^) = sum_lists [ sum_i r_i (v_i - g) + (R - R^) (g - y^) ],

    |y - y^|  <=  sum_lists [ R_high (max_i |v_i - u| + |g - u|) + max(R_high - R^, R^ - R_low) |g - y^| ] / Z_low,

where Z_low is Z_read + sum_lists (n e^(beta s) + R_low). An allowance for rounding is added.

Letters in shapes: N pairs, D key width, V value width, L lists, T queries.
"""

from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from memory_mosaics.shapes import Float, Int

PAIRS_PER_CENTROID, ITERATIONS = 64, 8  # of the sample that k-means is fitted to
BATCH = 64  # queries at a time
PIECE = 4096  # terms of a sum in float32; sums of such sums are in float64
ROWS = 256  # keys at a time, so that their scores stay in the cache
SLACK = 2e-5  # of scores, for keys and queries whose norm is 1 within a quarter of it
HEADROOM, MAX_SHARPNESS = 300.0, 500.0  # weights are from e^-700 to e^300: float64 holds them all
EPS = 2.0**-24  # half a unit in the last place of float32


class IndexedAnswer(NamedTuple):
    """Answers, the logarithm of the total weight behind each, and how far each can be from exact recall."""

    answers: Float[Tensor, "T V"]
    lse: Float[Tensor, " T"]
    bounds: Float[Tensor, " T"]  # |answer - exact answer| <= bound * the largest norm of a value
    pairs_read: Int[Tensor, " T"]  # one by one

    @property
    def guaranteed(self) -> Tensor:
        """Whether the bound is worth having: beyond 1 there is no guarantee."""
        return self.bounds <= 1


class Lists(NamedTuple):
    """Pairs in the order of their lists, and what is known of each list."""

    keys: Float[Tensor, "N D"]
    values: Float[Tensor, "N V"]
    starts: Int[Tensor, " L+1"]  # of the lists, and the end
    counts: Float[Tensor, " L"]
    key_means: Float[Tensor, "L D"]  # means, and all numbers per list, are float64
    value_means: Float[Tensor, "L V"]
    covariances: Float[Tensor, "P L"]  # of keys: the upper triangle, with what is off the diagonal counted twice
    slopes: Float[Tensor, "L D V"]  # covariances of keys and values
    cap: Float[Tensor, " L"]  # cos(rho): the smallest cosine between a key and the mean key
    reach: Float[Tensor, " L"]  # the largest (d'A^-1 d)^(1/2)
    ridge: Float[Tensor, " L"]  # A = C + ridge
    key_spread: Float[Tensor, " L"]  # root mean square of |k_i - m|
    value_spread: Float[Tensor, " L"]  # root mean square of |v_i - u|
    value_radius: Float[Tensor, " L"]  # largest |v_i - u|


class Index:
    """Pairs with keys of norm 1, to recall from without reading all of them.

    What is inserted is read pair by pair until it is `1 / PENDING` of the pairs; then it moves into the nearest lists.
    """

    PENDING, MIN_PENDING = 128, 1024
    PENDING_PAIRS = ("pending_keys", "pending_values")

    def __init__(self, keys: Float[Tensor, "N D"], values: Float[Tensor, "N V"], *, lists: int | None = None):
        """`lists` is 9.5 times the cube root of the number of pairs by default, and follows it as the index grows."""
        self.wanted, self.clustered, self.value_norm = lists, 0, 0.0
        self.lists = collect_lists(keys[:0], values[:0], torch.zeros(0, dtype=torch.long, device=keys.device))
        self.pending_keys, self.pending_values = self.lists.keys, self.lists.values
        self.insert(keys, values)

    def __len__(self) -> int:
        return len(self.lists.keys) + len(self.pending_keys)

    def pairs(self) -> tuple[Float[Tensor, "N D"], Float[Tensor, "N V"]]:
        """All pairs, in no particular order."""
        parts = (self.lists.keys, self.pending_keys), (self.lists.values, self.pending_values)
        keys, values = (new if len(old) == 0 else torch.cat([old, new]) for old, new in parts)
        return keys, values

    def insert(self, keys: Float[Tensor, "N D"], values: Float[Tensor, "N V"]) -> None:
        """Add pairs, in any order."""
        check_unit(keys)
        norms = [some.float().norm(dim=1).max().item() for some in values.split(2**20) if len(some)]
        if not all(map(isfinite, norms)):
            raise ValueError("values contain NaN or Inf")
        self.value_norm = max([self.value_norm, *norms])
        stored, new = len(self.lists.keys), len(self.pending_keys) + len(keys)
        if new <= max(self.MIN_PENDING, stored // self.PENDING):
            self.pending_keys = torch.cat([self.pending_keys, keys.float()])
            self.pending_values = torch.cat([self.pending_values, values.float()])
            return
        parts = (self.lists.keys, self.pending_keys, keys), (self.lists.values, self.pending_values, values)
        keys, values = (
            torch.cat(some) if stored else torch.cat(some[1:]) if len(some[1]) else some[2] for some in parts
        )
        if len(keys) >= 2 * self.clustered:
            self.lists, self.clustered = build_lists(keys, values, self.wanted or default_lists(len(keys))), len(keys)
        else:
            old = torch.searchsorted(self.lists.starts[1:], torch.arange(stored, device=keys.device), right=True)
            centroids = normalised(self.lists.key_means).float()
            self.lists = collect_lists(keys, values, torch.cat([old, nearest(keys[stored:], centroids)]))
        self.pending_keys, self.pending_values = self.lists.keys[:0], self.lists.values[:0]

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors, from which `from_state` makes an equal index."""
        numbers = torch.tensor([self.wanted or 0, self.clustered, self.value_norm], dtype=torch.float64)
        return self.lists._asdict() | {name: getattr(self, name) for name in self.PENDING_PAIRS} | {"numbers": numbers}

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> "Index":
        index = cls(state["pending_keys"][:0], state["pending_values"][:0])
        index.lists = Lists(*(state[name] for name in Lists._fields))
        index.pending_keys, index.pending_values = (state[name] for name in cls.PENDING_PAIRS)
        wanted, clustered, index.value_norm = state["numbers"].tolist()
        index.wanted, index.clustered = int(wanted) or None, int(clustered)
        return index

    @torch.no_grad()
    def answer(
        self,
        queries: Float[Tensor, "T D"],
        sharpness: float | Float[Tensor, " T"] = 1.0,
        *,
        tolerance: float = 0.03,
        few: int = 4,
        many: int = 32,
    ) -> IndexedAnswer:
        """Answer every query. The `few` lists of which most is estimated are read pair by pair.

        If reading up to `many` more, in the order of their part of the bound, takes it below `tolerance`, they are read
        too. With `many` as large as the number of lists and a tolerance of 0 all pairs are read.
        """
        check_unit(queries)
        beta = torch.as_tensor(sharpness, dtype=torch.float64, device=queries.device).expand(len(queries))
        if not ((beta >= 0) & (beta <= MAX_SHARPNESS)).all():
            raise ValueError(f"the sharpness of an index is between 0 and {MAX_SHARPNESS:g}")
        if len(self) == 0:
            zeros = queries.new_zeros(len(queries), dtype=torch.float32)
            answers = zeros[:, None].expand(-1, self.lists.values.shape[1])
            return IndexedAnswer(answers, zeros - torch.inf, zeros, zeros.long())
        batches = zip(queries.float().split(BATCH), beta.split(BATCH), strict=True)
        found = [self._answer(q, b[:, None], tolerance, few, many) for q, b in batches]
        return IndexedAnswer(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _answer(self, q: Tensor, beta: Tensor, tolerance: float, few: int, many: int) -> IndexedAnswer:
        lists = self.lists
        moments = Moments(lists, q, beta)
        read = ReadPairs(q, beta, moments.top, lists.values.shape[1])
        read.add(slice(None), self.pending_keys, self.pending_values)
        chosen = torch.zeros_like(moments.tangent, dtype=torch.bool)
        count = chosen.shape[1]
        chosen.scatter_(1, moments.rest.topk(min(few, count), dim=1).indices, True)
        read.add_lists(lists, chosen)
        errors, Z_low = moments.errors(read, moments.answer(read, chosen, slopes=False)[0], chosen)
        worst = errors.topk(min(many, count), dim=1)
        total = errors.sum(dim=1, keepdim=True)
        left = torch.cat([total, total - worst.values.cumsum(dim=1)], dim=1)  # with 0, 1, 2 ... more lists read
        beyond = left > tolerance * self.value_norm * Z_low
        within_reach = ~beyond[:, -1:] if many < count else torch.ones_like(beyond[:, :1])
        more = torch.zeros_like(chosen).scatter_(1, worst.indices, beyond[:, :-1] & within_reach) & ~chosen
        read.add_lists(lists, more)
        chosen |= more
        y, Z = moments.answer(read, chosen)
        errors, Z_low = moments.errors(read, y, chosen)
        bounds = errors.sum(dim=1) / (Z_low[:, 0] * self.value_norm) + moments.rounding(Z, chosen)
        lse = (Z.log() + moments.top)[:, 0]
        return IndexedAnswer(y.float(), lse.float(), bounds.float(), read.count)


class Moments:
    """What the moments of all lists tell about a batch of queries: the terms of the formulas above, per query and list.

    All weights are relative to e^top.
    """

    def __init__(self, lists: Lists, q: Float[Tensor, "T D"], beta: Float[Tensor, "T 1"]):
        self.lists, self.q, self.beta = lists, q, beta
        D = q.shape[1]
        row, column = torch.triu_indices(D, D, device=q.device)
        variance = ((q[:, row] * q[:, column]) @ lists.covariances).double()
        rounding = 4 * D * EPS * lists.key_spread.square()  # more than that of the variance
        least, variance = (variance - rounding).clamp(min=0), (variance + rounding).clamp(min=0)
        s = q.double() @ lists.key_means.T
        deviation = lists.reach * (variance + lists.ridge).sqrt()
        cos = (s / lists.key_means.norm(dim=1).clamp(min=EPS)).clamp(-1, 1)
        straight, across = cos * lists.cap, ((1 - cos.square()) * (1 - lists.cap.square())).sqrt()
        high = torch.where(cos >= lists.cap, 1.0, straight + across).minimum(s + deviation).maximum(s) + SLACK
        low = torch.where(cos <= -lists.cap, -1.0, straight - across).maximum(s - deviation).minimum(s) - SLACK
        self.top = beta - HEADROOM
        squared = beta.square() * variance
        self.x = squared.sqrt()
        log_tangent = lists.counts.log() + beta * s - self.top
        self.tangent = log_tangent.exp()
        up = beta * (high - s)
        above = ((log_tangent + up).exp() - self.tangent * (1 + up)) / up.square()
        self.rest_high = squared * torch.where(up < 0.01, self.tangent * _remainder(up), above)
        self.rest_low = beta.square() * least * self.tangent * _remainder(beta * (low - s))
        gaussian = self.tangent * (squared / 2).clamp(max=HEADROOM).expm1()
        self.rest = gaussian.minimum((self.rest_low * self.rest_high).sqrt()).maximum(self.rest_low)

    def answer(self, read: "ReadPairs", chosen: Tensor, *, slopes: bool = True) -> tuple[Tensor, Tensor]:
        """y^ and Z^, with exact sums of the pairs of chosen lists; without slopes, u for g and for the tangents."""
        lists, left = self.lists, ~chosen
        weights = (self.tangent + self.rest) * left
        Z = read.total + weights.sum(dim=1, keepdim=True)
        y = (read.weighted + weights @ lists.value_means) / Z
        if slopes:
            weights = (self.beta * (self.tangent + self.rest * self._damping()) * left / Z).float()
            step = max(1, PIECE // self.q.shape[1])
            for some, matrices in zip(weights.split(step, dim=1), lists.slopes.split(step), strict=True):
                y += ((some[..., None] * self.q[:, None]).flatten(1) @ matrices.flatten(0, 1)).double()
        return y, Z

    def errors(self, read: "ReadPairs", y: Tensor, chosen: Tensor) -> tuple[Float[Tensor, "T L"], Float[Tensor, "T 1"]]:
        """The part of each list in the bound, times Z_low, and Z_low."""
        lists, left = self.lists, ~chosen
        u = lists.value_means
        distance = (y.square().sum(dim=1, keepdim=True) + u.square().sum(dim=1) - 2 * y @ u.T).clamp(min=0).sqrt()
        shift = self.x * self._damping() * lists.value_spread  # at least |g - u|, by Cauchy-Schwarz
        unsure = (self.rest_high - self.rest).maximum(self.rest - self.rest_low)
        errors = self.rest_high * (lists.value_radius + shift) + unsure * (distance + shift)
        return errors * left, read.total + ((self.tangent + self.rest_low) * left).sum(dim=1, keepdim=True)

    def rounding(self, Z: Float[Tensor, "T 1"], chosen: Tensor) -> Float[Tensor, " T"]:
        """What rounding scores and sums in float32 can add to the error."""
        steep = self.beta * self.lists.key_spread * (self.tangent + self.rest) * ~chosen / Z
        terms = self.beta[:, 0] * (self.q.shape[1] + 4) + PIECE
        return 2 * EPS * terms * (1 + steep.sum(dim=1))

    def _damping(self) -> Tensor:
        """Of g = u + damping * beta M'q, which then stays within the spread of the values."""
        return 1 / self.x.clamp(min=1)


def _remainder(x: Tensor) -> Tensor:
    """(e^x - 1 - x) / x^2, for x that are not large."""
    safe = torch.where(x.abs() < 0.01, 1.0, x)
    return torch.where(x.abs() < 0.01, 0.5 + x / 6 + x.square() / 24, (safe.expm1() - safe) / safe.square())


class ReadPairs:
    """Sums over pairs that are read one by one, for a batch of queries, relative to e^top."""

    def __init__(self, q: Float[Tensor, "T D"], beta: Float[Tensor, "T 1"], top: Float[Tensor, "T 1"], width: int):
        self.q, self.beta, self.top = q, beta, top
        self.weighted, self.total = top.new_zeros(len(q), width), top.new_zeros(len(q), 1)
        self.count = torch.zeros(len(q), dtype=torch.long, device=q.device)

    def add(self, rows: Tensor | slice, keys: Float[Tensor, "n D"], values: Float[Tensor, "n V"]) -> None:
        """Add some pairs to the sums of some queries."""
        q, beta, top = self.q[rows], self.beta[rows], self.top[rows]
        for first in range(0, len(keys), PIECE):
            some_keys, some_values = keys[first : first + PIECE], values[first : first + PIECE]
            scores = q @ some_keys.T
            best = scores.amax(dim=1, keepdim=True)
            weights = (scores - best).mul_(beta.float()).exp_()
            scale = (beta * best.double() - top).exp()
            self.weighted[rows] += scale * (weights @ some_values).double()
            self.total[rows] += scale * weights.sum(dim=1, keepdim=True).double()
        self.count[rows] += len(keys)

    def add_lists(self, lists: Lists, chosen: Tensor) -> None:
        """Add the pairs of the chosen lists (T, L): each list is read once for all queries that chose it."""
        number, query = chosen.T.nonzero(as_tuple=True)
        numbers, queries = number.unique_consecutive(return_counts=True)
        bounds = zip(lists.starts[numbers].tolist(), lists.starts[numbers + 1].tolist(), strict=True)
        for (start, end), rows in zip(bounds, query.split(queries.tolist()), strict=True):
            self.add(rows, lists.keys[start:end], lists.values[start:end])


def default_lists(pairs: int) -> int:
    """2,047 for 10 million pairs of width 64, where the moments take 1 % of the memory of the pairs."""
    return max(1, round(9.5 * pairs ** (1 / 3)))


def check_unit(keys: Float[Tensor, "N D"]) -> None:
    """Refuse keys that are not of norm 1 in float32."""
    for some in keys.split(2**20):
        off = (some.float().norm(dim=1) - 1).abs()
        if len(off) and not off.max() <= SLACK / 4:
            norm = some.float().norm(dim=1)[off.argmax()].item()
            raise ValueError(f"an index takes keys of norm 1 in float32, and one has {norm:.6g}; normalise them")


def normalised(x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    return torch.nn.functional.normalize(x, dim=-1)


def nearest(keys: Float[Tensor, "N D"], centroids: Float[Tensor, "L D"]) -> Int[Tensor, " N"]:
    """The centroid with the largest cosine."""
    found = torch.zeros(len(keys), dtype=torch.long, device=keys.device)  # many small results would fragment memory
    for some, part in zip(keys.split(ROWS), found.split(ROWS), strict=True):
        part.copy_((some.float() @ centroids.T).argmax(dim=1))
    return found


def spherical_kmeans(keys: Float[Tensor, "N D"], count: int) -> Float[Tensor, "L D"]:
    """Centroids of norm 1, initially `count` of the keys, evenly spaced."""
    centroids = keys[torch.arange(count, device=keys.device) * len(keys) // count].float()
    for _ in range(ITERATIONS):
        sums = torch.zeros_like(centroids).index_add_(0, nearest(keys, centroids), keys.float())
        centroids = torch.where(sums.norm(dim=1, keepdim=True) > EPS, normalised(sums), centroids)
    return centroids


def build_lists(keys: Float[Tensor, "N D"], values: Float[Tensor, "N V"], count: int) -> Lists:
    """`count` lists, or fewer, where some would be empty."""
    count = min(count, len(keys))
    sample = keys[_evenly(len(keys), PAIRS_PER_CENTROID * count, keys.device)]
    return collect_lists(keys, values, nearest(keys, spherical_kmeans(sample, count)))


def _evenly(total: int, count: int, device: torch.device) -> Int[Tensor, " n"]:
    """Up to `count` of `total` indices, evenly spaced."""
    count = min(count, total)
    return torch.arange(count, device=device) * total // max(count, 1)


def collect_lists(keys: Float[Tensor, "N D"], values: Float[Tensor, "N V"], assigned: Int[Tensor, " N"]) -> Lists:
    """Pairs in the order of the lists that they are assigned to, and the moments of these lists; no list is empty."""
    order = assigned.argsort(stable=True)
    keys, values = keys[order].float(), values[order].float()
    counts = assigned.bincount()
    counts = counts[counts > 0]
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    D, V, L = keys.shape[1], values.shape[1], len(counts)
    key_means, value_means, numbers = (keys.new_zeros(L, width, dtype=torch.float64) for width in (D, V, 6))
    covariances, slopes = keys.new_zeros(D * (D + 1) // 2, L), keys.new_zeros(L, D, V)
    row, column = torch.triu_indices(D, D, device=keys.device)
    eye = torch.eye(D, dtype=torch.float64, device=keys.device)
    for one, (start, end) in enumerate(zip(starts.tolist(), starts[1:].tolist(), strict=False)):
        k, v = keys[start:end].double(), values[start:end].double()
        m, u = k.mean(dim=0), v.mean(dim=0)
        d, e = k - m, v - u
        C, squares = d.T @ d / len(d), e.square().sum(dim=1)
        ridge = C.trace() / (100 * D) + EPS
        reach = torch.linalg.solve_triangular(torch.linalg.cholesky(C + ridge * eye), d.T, upper=False).norm(dim=0)
        norm = m.norm()
        cap = (k @ m / norm).amin() - EPS if norm > SLACK else norm.new_tensor(-1.0)
        key_means[one], value_means[one], slopes[one] = m, u, (d.T @ e / len(d)).float()
        covariances[:, one] = (C[row, column] * torch.where(row == column, 1, 2)).float()
        spreads = C.trace().sqrt(), squares.mean().sqrt(), squares.amax().sqrt()
        numbers[one] = torch.stack([cap.clamp(-1, 1), reach.amax(), ridge, *spreads])
    return Lists(keys, values, starts, counts.double(), key_means, value_means, covariances, slopes, *numbers.T)
