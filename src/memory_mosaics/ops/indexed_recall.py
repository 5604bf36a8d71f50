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

The answer estimates R, and E = sum r_i (v_i - u), from up to SAMPLES pairs j of the list: R^ is n e^(beta s) x^2 / 2,
which is exact, and n times the mean of r_j - e^(beta s) x_j^2 / 2, within the limits; E^ is n times the mean of
r_j (v_j - u). With Z^ = Z_read + sum_lists (n e^(beta s) + R^), and y^ likewise, exactly

    Z (y - y^) = sum_lists [ E - E^ + (R - R^) (u - y^) ],

    Z |y - y^|  <=  sum_lists [ R max_i |v_i - u| + |E^| + |R - R^| |u - y^| ].

The right side is convex in every R, so that it is at most a + sum_lists g (R - R_low), with 0 <= g <= G, the largest
max_i |v_i - u| + |u - y^|; a is its value where every R is R_low, and b the most it can be. Since the R are also a
part of Z = Z_low + sum_lists (R - R_low), Z_low = Z_read + sum_lists (n e^(beta s) + R_low),

    |y - y^|  <=  max(a / Z_low, b / (Z_low + (b - a) / G)).

No answer is longer than the longest value, so that |y - y^| is at most that and |y^|. An allowance for rounding is
added to the smaller of the two.

Letters in shapes: N pairs, D key width, V value width, L lists, T queries.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memory_mosaics.errors import UserError
from memory_mosaics.shapes import Bool, Float, Int

PAIRS_PER_CENTROID, ITERATIONS = 64, 8  # of the sample that k-means is fitted to
SAMPLES = 32  # pairs of each list, evenly spaced in time
BATCH = 64  # queries at a time
PIECE = 4096  # terms of a sum in float32; sums of such sums are in float64
ROWS = 256  # keys at a time, so that their scores stay in the cache
READ, MORE, TOLERANCE = 4, 32, 0.03  # lists to read, more of them if that takes the bound below the tolerance
SLACK, UNIT = 2e-5, 0.02  # of scores of unit keys and queries; how far from 1 norms may be: those of bfloat16 are
MAX_SAMPLE = 60.0  # of the exponents of sampled pairs in float32
HEADROOM, MAX_SHARPNESS = 300.0, 500.0  # weights are from e^-700 to e^300: float64 holds them all
EPS = 2.0**-24  # half a unit in the last place of float32


class IndexedAnswer(NamedTuple):
    """Answers, the logarithm of the total weight behind each, and how far each can be from exact recall."""

    answers: Float[Tensor, "T V"]
    lse: Float[Tensor, " T"]
    bounds: Float[Tensor, " T"]  # |answer - exact answer| <= bound
    pairs_read: Int[Tensor, " T"]  # one by one, of the index
    guaranteed: Bool[Tensor, " T"]  # whether the bound is less than the largest |v_i|: beyond, it guarantees nothing


class OtherPairs(NamedTuple):
    """What queries retrieve from pairs that are stored elsewhere: by recall_with_lse, with the largest |v_i|."""

    answers: Float[Tensor, "T V"]
    lse: Float[Tensor, " T"]
    value_norm: float


class Index(NamedTuple):
    """Pairs in the order of their lists, and what is known of each list. The last pairs, of no list, are padding.

    A store has one for all its rows and heads, with these as the first two dimensions of every tensor.
    """

    keys: Float[Tensor, "*B N D"]
    values: Float[Tensor, "*B N V"]
    times: Int[Tensor, "*B N"]  # when each pair was stored; -1 - time for padding
    starts: Int[Tensor, "*B L+1"]  # of the lists, and the end
    counts: Float[Tensor, "*B L"]
    key_means: Float[Tensor, "*B L D"]  # means, and all numbers per list, are float64
    value_means: Float[Tensor, "*B L V"]
    covariances: Float[Tensor, "*B P L"]  # of keys: the upper triangle, with what is off the diagonal counted twice
    slopes: Float[Tensor, "*B L D V"]  # covariances of keys and values
    sample_keys: Float[Tensor, "*B L S D"]  # k_j - m and v_j - u of some pairs; zero where a list has fewer
    sample_values: Float[Tensor, "*B L S V"]
    sample_radius: Float[Tensor, "*B L S"]  # |v_j - u|
    cap: Float[Tensor, "*B L"]  # cos(rho): the smallest cosine between a key and the mean key
    reach: Float[Tensor, "*B L"]  # the largest (d'A^-1 d)^(1/2)
    ridge: Float[Tensor, "*B L"]  # A = C + ridge
    key_spread: Float[Tensor, "*B L"]  # root mean square of |k_i - m|
    value_radius: Float[Tensor, "*B L"]  # largest |v_i - u|
    value_norm: Float[Tensor, "*B"]  # largest |v_i|
    slack: Float[Tensor, "*B"]  # of scores, for norms of keys that are not quite 1
    clustered: Int[Tensor, "*B"]  # how many pairs there were when the lists were made, padding included

    @classmethod
    def build(
        cls, keys: Float[Tensor, "N D"], values: Float[Tensor, "N V"], times: Tensor | None = None, *, lists: int
    ) -> "Index":
        """An index of so many lists, some of them empty where there are fewer pairs."""
        times = torch.arange(len(keys), device=keys.device) if times is None else times
        real = times >= 0
        found = keys[real]
        sample = found[_evenly(len(found), PAIRS_PER_CENTROID * lists, keys.device)]
        assigned = torch.full_like(times, lists)
        assigned[real] = nearest(found, spherical_kmeans(sample, min(lists, len(found))))
        return cls._collect(keys, values, times, assigned, lists, len(keys))

    def extended(
        self, keys: Float[Tensor, "N D"], values: Float[Tensor, "N V"], times: Int[Tensor, " N"], *, lists: int
    ) -> "Index":
        """The index with more pairs, in the nearest lists; in `lists` new ones if there are now twice as many pairs."""
        old, stored = self.counts.shape[0], len(self.keys)
        every: list[Any] = [torch.cat(both) for both in ((self.keys, keys), (self.values, values), (self.times, times))]
        if len(every[2]) >= 2 * int(self.clustered):  # with padding, so that all rows of a batch agree
            return Index.build(every[0], every[1], every[2], lists=lists)
        assigned = torch.full_like(every[2], old)
        place = torch.arange(stored, device=keys.device)
        assigned[:stored] = torch.searchsorted(self.starts[1:], place, right=True)
        centroids = normalised(self.key_means).float()
        assigned[stored:] = torch.where(times >= 0, nearest(keys, centroids), old)
        return self._collect(every[0], every[1], every[2], assigned, old, int(self.clustered))

    @staticmethod
    def _collect(keys: Tensor, values: Tensor, times: Tensor, assigned: Tensor, count: int, clustered: int) -> "Index":
        """Pairs in the order of the lists that they are assigned to, and the moments of these lists."""
        slack = check_unit(keys[times >= 0])
        order = assigned.argsort(stable=True)
        keys, values, times = keys[order], values[order], times[order]
        sizes = assigned.bincount(minlength=count)[:count]
        starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        D, V = keys.shape[1], values.shape[1]
        zeros = partial(torch.zeros, dtype=torch.float64, device=keys.device)
        key_means, value_means, numbers = zeros(count, D), zeros(count, V), zeros(count, 5)
        sample_keys, sample_values = zeros(count, SAMPLES, D).float(), zeros(count, SAMPLES, V).float()
        covariances, slopes = zeros(D * (D + 1) // 2, count).float(), zeros(count, D, V).float()
        row, column = torch.triu_indices(D, D, device=keys.device)
        eye, value_norm = torch.eye(D, dtype=torch.float64, device=keys.device), zeros(())
        numbers[:, 0] = 1  # an empty list
        for one, (start, end) in enumerate(zip(starts.tolist(), starts[1:].tolist(), strict=False)):
            if start == end:
                continue
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
            some = _evenly(len(k), SAMPLES, keys.device)
            sample_keys[one, : len(some)], sample_values[one, : len(some)] = d[some].float(), e[some].float()
            largest = squares.amax().sqrt()
            numbers[one] = torch.stack([cap.clamp(-1, 1), reach.amax(), ridge, C.trace().sqrt(), largest])
            value_norm = value_norm.maximum(v.norm(dim=1).amax())
        if not value_norm.isfinite():
            raise ValueError("values contain NaN or Inf")
        moments: list[Any] = [sizes.double(), key_means, value_means, covariances, slopes]
        moments += [sample_keys, sample_values, sample_values.norm(dim=2), *numbers.T]
        moments += [value_norm, zeros(()) + slack, torch.tensor(clustered, device=keys.device)]
        return Index(keys, values, times, starts, *moments)

    @torch.no_grad()
    def answers(
        self,
        queries: Float[Tensor, "T D"],
        sharpness: float | Float[Tensor, " T"] = 1.0,
        *,
        read: int = READ,
        more: int = MORE,
        tolerance: float = TOLERANCE,
        others: OtherPairs | None = None,
    ) -> IndexedAnswer:
        """Answer every query. The `read` lists of which most is estimated are read pair by pair.

        If reading up to `more` lists, in the order of their part of the bound, takes it below `tolerance`, they are
        read too. With as many lists as there are, all pairs are read. The answer is from the pairs of the index and
        from `others`, which have been read before.
        """
        slack = float(self.slack) + 4 * check_unit(queries)
        beta = torch.as_tensor(sharpness, dtype=torch.float64, device=queries.device).expand(len(queries))
        if not ((beta >= 0) & (beta <= MAX_SHARPNESS)).all():
            raise UserError(f"the sharpness of an index is between 0 and {MAX_SHARPNESS:g}")
        found = []
        for first in range(0, len(queries), BATCH):
            batch = slice(first, first + BATCH)
            read_before = others and OtherPairs(others.answers[batch], others.lse[batch], others.value_norm)
            found.append(
                self._answer(queries[batch].float(), beta[batch, None], read, more, tolerance, slack, read_before)
            )
        if not found:
            empty = queries.new_zeros(0, dtype=torch.float32)
            return IndexedAnswer(empty.new_zeros(0, self.values.shape[1]), empty, empty, empty.long(), empty.bool())
        return IndexedAnswer(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _answer(
        self, q: Tensor, beta: Tensor, read: int, more: int, tolerance: float, slack: float, others: OtherPairs | None
    ) -> IndexedAnswer:
        moments = Moments(self, q, beta, slack)
        done = ReadPairs(q, beta, moments.top, self.values.shape[1])
        value_norm = float(self.value_norm)
        if others is not None:
            done.add_others(others)
            value_norm = max(value_norm, others.value_norm)
        chosen = torch.zeros_like(moments.tangent, dtype=torch.bool)
        count = chosen.shape[1]
        chosen.scatter_(1, moments.likely.topk(min(read, count), dim=1).indices, True)
        done.add_lists(self, chosen)
        _, errors, Z_low, _ = moments.errors(done, moments.answers(done, chosen, slopes=False)[0], chosen)
        worst = errors.topk(min(more, count), dim=1)
        total = errors.sum(dim=1, keepdim=True)
        left = torch.cat([total, total - worst.values.cumsum(dim=1)], dim=1)  # with 0, 1, 2 ... more lists read
        beyond = left > tolerance * value_norm * Z_low
        within_reach = ~beyond[:, -1:] if more < count else torch.ones_like(beyond[:, :1])
        further = torch.zeros_like(chosen).scatter_(1, worst.indices, beyond[:, :-1] & within_reach) & ~chosen
        done.add_lists(self, further)
        chosen |= further
        y, Z = moments.answers(done, chosen)
        bounds = moments.bounds(done, y, chosen).minimum(value_norm + y.norm(dim=1))
        bounds = bounds + value_norm * moments.rounding(Z, chosen)
        lse = (Z.log() + moments.top)[:, 0]
        return IndexedAnswer(y.float(), lse.float(), bounds.float(), done.count, bounds <= value_norm)


class Moments:
    """What the moments of all lists tell about a batch of queries: the terms of the formulas above, per query and list.

    All weights are relative to e^top.
    """

    def __init__(self, lists: Index, q: Float[Tensor, "T D"], beta: Float[Tensor, "T 1"], slack: float):
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
        high = torch.where(cos >= lists.cap, 1.0, straight + across).minimum(s + deviation).maximum(s) + slack
        low = torch.where(cos <= -lists.cap, -1.0, straight - across).maximum(s - deviation).minimum(s) - slack
        self.top = beta - HEADROOM
        squared = beta.square() * variance
        log_tangent = lists.counts.log() + beta * s - self.top
        self.tangent = log_tangent.exp()
        up = beta * (high - s)
        above = ((log_tangent + up).exp() - self.tangent * (1 + up)) / up.square()
        self.rest_high = squared * torch.where(up < 0.01, self.tangent * _remainder(up), above)
        self.rest_low = beta.square() * least * self.tangent * _remainder(beta * (low - s))
        gaussian = self.tangent * (squared / 2).clamp(max=HEADROOM).expm1()
        self.likely = gaussian.minimum((self.rest_low * self.rest_high).sqrt()).maximum(self.rest_low)
        self._sample(squared)

    def _sample(self, squared: Float[Tensor, "T L"]) -> None:
        """Estimate the rest, R^, and bound |E^|, from samples of all lists."""
        lists, T = self.lists, len(self.q)
        L, S = lists.sample_keys.shape[:2]
        self.share = 1 / lists.counts.clamp(1, S)
        self.sampled = self.q.new_empty(T, L, S)  # r_j / e^(beta s)
        curvature, spread, mean = (self.tangent.new_empty(T, L) for _ in range(3))
        step = max(1, PIECE // S)
        for first in range(0, L, step):
            some = slice(first, first + step)
            x = (self.q @ lists.sample_keys[some].flatten(0, 1).T).mul_(self.beta.float()).clamp_(max=MAX_SAMPLE)
            x, r = x.view(T, -1, S), self.sampled[:, some]
            torch.sub(torch.expm1(x), x, out=r)
            mean[:, some] = r.sum(dim=2)
            curvature[:, some] = mean[:, some] - x.square_().sum(dim=2) / 2
            spread[:, some] = (r * lists.sample_radius[some]).sum(dim=2)
        self.rest = self.tangent * (squared / 2 + curvature * self.share)
        self.rest = self.rest.minimum(self.rest_high).maximum(self.rest_low)
        total = self.tangent * mean * self.share
        self.limit = self.share * (self.rest_high / total.clamp(min=1e-300)).clamp(max=1)  # a pair can outweigh all
        self.sampled_error = self.tangent * self.limit * spread

    def answers(self, read: "ReadPairs", chosen: Tensor, *, slopes: bool = True) -> tuple[Tensor, Tensor]:
        """y^ and Z^, with exact sums of the pairs of chosen lists; without slopes, with u for all values."""
        lists, left = self.lists, ~chosen
        weights = (self.tangent + self.rest) * left
        Z = read.total + weights.sum(dim=1, keepdim=True)
        y = (read.weighted + weights @ lists.value_means) / Z
        if slopes:
            weights = self.tangent * left / Z
            by_slope, by_sample = (self.beta * weights).float(), (self.limit * weights).float()
            step = max(1, PIECE // max(self.q.shape[1], SAMPLES))
            for first in range(0, weights.shape[1], step):
                some = slice(first, first + step)
                terms = (by_slope[:, some, None] * self.q[:, None]).flatten(1) @ lists.slopes[some].flatten(0, 1)
                sampled = (by_sample[:, some, None] * self.sampled[:, some]).flatten(1)
                y += (terms + sampled @ lists.sample_values[some].flatten(0, 1)).double()
        return y, Z

    def errors(self, read: "ReadPairs", y: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The parts of the lists (T, L) in a, and in b; Z_low and G (T, 1)."""
        lists, left = self.lists, ~chosen
        u = lists.value_means
        distance = (y.square().sum(dim=1, keepdim=True) + u.square().sum(dim=1) - 2 * y @ u.T).clamp(min=0).sqrt()
        high, low = self.rest_high - self.rest, self.rest - self.rest_low
        least = self.rest_low * lists.value_radius + self.sampled_error + low * distance
        most = self.rest_high * lists.value_radius + self.sampled_error + high.maximum(low) * distance
        Z_low = read.total + ((self.tangent + self.rest_low) * left).sum(dim=1, keepdim=True)
        return least * left, most * left, Z_low, ((lists.value_radius + distance) * left).amax(dim=1, keepdim=True)

    def bounds(self, read: "ReadPairs", y: Tensor, chosen: Tensor) -> Float[Tensor, " T"]:
        """How far y^ can be from the exact answer, without rounding."""
        least, most, Z_low, steepest = self.errors(read, y, chosen)
        a, b = (x.sum(dim=1, keepdim=True) for x in (least, most))
        return (a / Z_low).maximum(b / (Z_low + (b - a) / steepest.clamp(min=1e-300)))[:, 0]

    def rounding(self, Z: Float[Tensor, "T 1"], chosen: Tensor) -> Float[Tensor, " T"]:
        """What rounding scores and sums in float32 can add to the error."""
        steep = self.beta * self.lists.key_spread * (self.tangent + self.rest) * ~chosen / Z
        terms = self.beta[:, 0] * (self.q.shape[1] + 4) + PIECE
        return 2 * EPS * terms * (1 + steep.sum(dim=1))


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

    def add_others(self, others: OtherPairs) -> None:
        """Add pairs that have been read elsewhere to the sums of all queries."""
        scale = (others.lse.double()[:, None] - self.top).exp()
        self.weighted += scale * others.answers.double()
        self.total += scale

    def add(self, rows: Tensor | slice, keys: Float[Tensor, "n D"], values: Float[Tensor, "n V"]) -> None:
        """Add some pairs to the sums of some queries."""
        q, beta, top = self.q[rows], self.beta[rows], self.top[rows]
        for first in range(0, len(keys), PIECE):
            some_keys, some_values = (x[first : first + PIECE].float() for x in (keys, values))
            scores = q @ some_keys.T
            best = scores.amax(dim=1, keepdim=True)
            weights = (scores - best).mul_(beta.float()).exp_()
            scale = (beta * best.double() - top).exp()
            self.weighted[rows] += scale * (weights @ some_values).double()
            self.total[rows] += scale * weights.sum(dim=1, keepdim=True).double()
        self.count[rows] += len(keys)

    def add_lists(self, lists: Index, chosen: Tensor) -> None:
        """Add the pairs of the chosen lists (T, L): each list is read once for all queries that chose it."""
        number, query = chosen.T.nonzero(as_tuple=True)
        numbers, queries = number.unique_consecutive(return_counts=True)
        bounds = zip(lists.starts[numbers].tolist(), lists.starts[numbers + 1].tolist(), strict=True)
        for (start, end), rows in zip(bounds, query.split(queries.tolist()), strict=True):
            self.add(rows, lists.keys[start:end], lists.values[start:end])


def default_lists(pairs: int) -> int:
    """2,047 for 10 million pairs of width 64, where what is known of lists takes 2 % of the memory of the pairs.

    It takes as much as 80 pairs per list: fewer pairs have fewer lists, so that it stays a sixth of them.
    """
    return max(1, min(round(9.5 * pairs ** (1 / 3)), pairs // 480))


def check_unit(keys: Float[Tensor, "N D"]) -> float:
    """How far from 1 the norms of keys are; refuse those that are not of unit norm."""
    norms = [some.float().norm(dim=1) for some in keys.split(2**20) if len(some)]
    off = max((float((norm - 1).abs().max()) for norm in norms), default=0.0)
    if not off <= UNIT:
        norm = next(float(norm[(norm - 1).abs().argmax()]) for norm in norms if not (norm - 1).abs().max() <= UNIT)
        raise UserError(f"an index takes keys of norm 1, and one has {norm:.6g}; normalise them")
    return off


def normalised(x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    return torch.nn.functional.normalize(x, dim=-1)


def nearest(keys: Float[Tensor, "N D"], centroids: Float[Tensor, "L D"]) -> Int[Tensor, " N"]:
    """The centroid with the largest cosine."""
    found = torch.zeros(len(keys), dtype=torch.long, device=keys.device)  # many small results would fragment memory
    for some, part in zip(keys.split(ROWS), found.split(ROWS), strict=True):
        if len(some):
            part.copy_((some.float() @ centroids.T).argmax(dim=1))
    return found


def spherical_kmeans(keys: Float[Tensor, "N D"], count: int) -> Float[Tensor, "L D"]:
    """Centroids of norm 1, initially `count` of the keys, evenly spaced."""
    centroids = keys[torch.arange(count, device=keys.device) * len(keys) // count].float()
    for _ in range(ITERATIONS):
        sums = torch.zeros_like(centroids).index_add_(0, nearest(keys, centroids), keys.float())
        centroids = torch.where(sums.norm(dim=1, keepdim=True) > EPS, normalised(sums), centroids)
    return centroids


def _evenly(total: int, count: int, device: torch.device) -> Int[Tensor, " n"]:
    """Up to `count` of `total` indices, evenly spaced."""
    count = min(count, total)
    return torch.arange(count, device=device) * total // max(count, 1)
