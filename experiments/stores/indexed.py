r"""Recall from an index against exact recall: speed, error and bound, on keys of a trained model and drawn ones.

    mosaics prepare books.jsonl --out books --tokenizer bpe --vocabulary 4096 --valid_share 0.03 --seed 1
    mosaics train books --out runs/books --model.width 128 --model.heads 2 --model.blocks 2 --model.context 256 \
        --training.steps 600
    python experiments/stores/indexed.py runs/books books --out experiments/stores/indexed

Pairs are in memory-mapped files, under --work, which a second call uses again; results are written after each kind of
keys, and a kind that has them is not measured again. A kind of keys is `uniform`, `clustered` (1,000 directions, and
noise whose norm is half of theirs), or `BLOCK.HEAD` of the model, whose queries are keys of held-out books.
"""

import os
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jsonargparse import auto_cli
from torch import Tensor

from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.experiments import figures
from memory_mosaics.files import read_json
from memory_mosaics.inspection import retrievals
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.ops.indexed_recall import BATCH, PIECE, READ, Index, Moments, default_lists
from memory_mosaics.ops.recall import recall
from memory_mosaics.results import environment_info, progress_bar, round_digits, write_results
from memory_mosaics.text.corpus import Corpus

WIDTH, CLUSTERS, TIME, ROWS = 64, 1000, 512, 16
CHUNK = 2**16  # pairs drawn at a time
MOST_QUERIES = 10_000
BOUND = 0.05  # that is wanted


def main(
    model: Path,
    data: Path,
    *,
    kinds: list[str] = ["1.0", "1.1", "clustered", "uniform"],  # noqa: B006 (a flag's default)
    pairs: int = 10_000_000,
    queries: int = 256,
    read: int = READ,
    sharpness: list[float] = [10.0, 50.0],  # noqa: B006
    work: Path = Path("runs/indexed"),
    out: Path = Path("runs/indexed"),
) -> None:
    """Measure all kinds of keys, with one thread, and write results.json and the figure."""
    torch.set_num_threads(1)
    file = out / "results.json"
    results = (
        read_json(file)
        if file.exists()
        else {"study": "indexed", "pairs": pairs, "read": read, "kinds": {}} | environment_info()
    )
    for kind in kinds:
        if kind not in results["kinds"]:
            keys, values, asked = collect(kind, model, data, pairs, queries, work)
            results["kinds"][kind] = measure(kind, keys, values, asked, sharpness, read)
            out.mkdir(parents=True, exist_ok=True)
            write_results(file, results)
    figures.draw_if_possible(results, out)


def collect(kind: str, model: Path, data: Path, pairs: int, queries: int, work: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values, in files of this kind, and the keys of queries."""
    parts = "keys", "values", "queries"
    files = [work / f"{kind}-{name}-{pairs}.npy" for name in parts]
    if not files[2].exists():
        work.mkdir(parents=True, exist_ok=True)
        if kind in ("clustered", "uniform"):
            kinds, train, held_out = [kind], drawn(kind, seed=0), islice(drawn(kind, seed=1), 1)
        else:
            loaded, corpus = LoadedModel.open(model), Corpus.open(data)
            loaded.check_tokenizer_of(corpus)
            block = int(kind.split(".")[0])
            train, held_out = (read(loaded.model, corpus.tokens(split), block) for split in ("train", "valid"))
            first = next(train)
            kinds, train = [f"{block}.{head}" for head in range(first[0].shape[1])], chain([first], train)
        partial = [[work / f"{one}-{name}.part" for name in parts[:2]] for one in kinds]
        maps = [[np.lib.format.open_memmap(x, "w+", np.float32, (pairs, WIDTH)) for x in both] for both in partial]
        with progress_bar(f"pairs of {' and '.join(kinds)}", pairs, "pair") as bar:
            for both in train:
                first, count = bar.n, min(len(both[0]), pairs - bar.n)
                for head, stored in enumerate(maps):
                    for array, new in zip(stored, both, strict=True):
                        array[first : first + count] = new[:count, head].numpy()
                bar.update(count)
                if bar.n == pairs:
                    break
        asked = torch.cat([keys for keys, _ in held_out])
        order = torch.randperm(len(asked), generator=torch.Generator().manual_seed(0))  # neighbours are alike
        for head, (one, both) in enumerate(zip(kinds, partial, strict=True)):
            for old, name in zip(both, parts, strict=False):
                old.rename(work / f"{one}-{name}-{pairs}.npy")
            np.save(work / f"{one}-queries-{pairs}.npy", asked[order[:MOST_QUERIES], head].numpy())
    keys, values, asked = (torch.from_numpy(np.load(file, mmap_mode="c")) for file in files)
    return keys, values, asked[:queries]


def drawn(kind: str, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Keys, and as values a fixed linear map of them with noise of the same norm, normalised (n H D), for one head."""
    fixed, draws = torch.Generator().manual_seed(7), torch.Generator().manual_seed(seed)
    matrix = torch.randn(WIDTH, WIDTH, generator=fixed) / WIDTH**0.5
    centres = F.normalize(torch.randn(CLUSTERS, WIDTH, generator=fixed), dim=-1)
    while True:
        noise, other = torch.randn(2, CHUNK, WIDTH, generator=draws) / WIDTH**0.5
        centre = centres[torch.randint(CLUSTERS, (CHUNK,), generator=draws)]
        keys = F.normalize(noise if kind == "uniform" else centre + 0.5 * noise, dim=-1)
        yield keys[:, None], F.normalize(keys @ matrix + other, dim=-1)[:, None]


def read(model: LanguageModel, tokens: Any, block: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The pairs (n H D) that the memories of a block store while the model reads windows of the text."""
    model.blocks = model.blocks[: block + 1]
    model.blocks[block].channel_mixer = None  # nothing that comes after the memories is needed
    for first in range(0, len(tokens) - ROWS * TIME, ROWS * TIME):
        window = torch.from_numpy(np.asarray(tokens[first : first + ROWS * TIME]).astype(np.int64)).view(ROWS, TIME)
        *_, layer = retrievals(model, window)
        keys, values = layer.retrieval.pairs[:2]
        keys = keys[:, : values.shape[1]].flatten(0, 1)  # the last ones have no value yet
        yield F.normalize(keys, dim=-1), values.flatten(0, 1)


@torch.inference_mode()
def measure(
    kind: str, keys: Tensor, values: Tensor, queries: Tensor, sharpness: list[float], read: int
) -> dict[str, Any]:
    """Build the index, compare its answers with exact ones, and time both in turn."""
    start = time.perf_counter()
    index = Index.build(keys, values, lists=default_lists(len(keys)))
    found: dict[str, Any] = {"build_seconds": round(time.perf_counter() - start), "lists": len(index.counts)}
    keys, values = index.keys, index.values
    for beta in sharpness:
        answers, bounds, pairs_read, guaranteed, exact = [], [], [], [], []
        with progress_bar(f"{kind}, beta {beta:g}", len(queries), "query") as bar:
            for some in queries.split(BATCH):
                each = index.answers(some, beta, read=read)
                exact.append(by_products(some, keys, values, beta, torch.float64))
                parts = (answers, each.answers), (bounds, each.bounds), (pairs_read, each.pairs_read)
                for part, one in (*parts, (guaranteed, each.guaranteed)):
                    part.append(one)
                bar.update(len(some))
        truth, bound = torch.cat(exact), torch.cat(bounds).double()
        error = (torch.cat(answers).double() - truth).norm(dim=1)
        relative, ratio = error / truth.norm(dim=1), bound / error.clamp(min=1e-12)
        found[f"{beta:g}"] = {
            "queries": len(queries),
            "violations": int((error > bound).sum()),
            "no_guarantee": round_digits((~torch.cat(guaranteed)).double().mean().item()),
            **{name: spread(x) for name, x in {"relative_error": relative, "bound": bound, "ratio": ratio}.items()},
            "share_read": round_digits(torch.cat(pairs_read).double().mean().item() / len(keys)),
            "points": round_digits(torch.stack([error, bound], dim=1)[:256].clamp(max=1e300).numpy(), 3),
            "to_read": to_read(index, queries[:BATCH], beta),
            "speed": [timed(index, queries[:rows], beta, read) for rows in (1, BATCH)],
            "load": round_digits(os.getloadavg()[0], 3),
        }
        print(kind, {name: x for name, x in found[f"{beta:g}"].items() if name != "points"}, flush=True)
    return found


def spread(x: Tensor) -> dict[str, float]:
    """The median, the 90th percentile and the maximum."""
    values = {"median": x.median(), "p90": x.quantile(0.9), "max": x.max()}
    return round_digits({name: min(value.item(), 1e300) for name, value in values.items()}, 3)


def by_products(
    queries: Tensor, keys: Tensor, values: Tensor, beta: float, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Exact recall in blocks of pairs, with sums over blocks in `dtype`; no score is above 1."""
    answer, total = torch.zeros(len(queries), WIDTH, dtype=dtype), torch.zeros(len(queries), 1, dtype=dtype)
    for some_keys, some_values in zip(keys.split(PIECE), values.split(PIECE), strict=True):
        weights = (queries @ some_keys.T).sub_(1).mul_(beta).exp_()
        answer += weights @ some_values
        total += weights.sum(dim=1, keepdim=True)
    return answer / total


def to_read(index: Index, queries: Tensor, beta: float) -> dict[str, Any]:
    """The median share of pairs in the lists that hold half, 90 % and 99 % of the weight, and of those to be read
    until at most a weight of BOUND / 2 can be elsewhere, as far as the bound knows: the largest possible ones first.
    """
    moments = Moments(index, queries, torch.full((len(queries), 1), beta, dtype=torch.float64), float(index.slack))
    scale = moments.top - beta  # of the moments; weights here are relative to e^beta, and no score is above 1
    lists = index.keys.split(index.counts.long().tolist())
    weights = torch.stack([(queries @ keys.T).sub_(1).mul_(beta).exp_().sum(dim=1).double() for keys in lists], dim=1)
    total = weights.sum(dim=1, keepdim=True)
    found = {}
    for name, part, goal in (
        *((f"weight_{goal:g}", weights, goal * total) for goal in (0.5, 0.9, 0.99)),
        ("bound", moments.rest_high * scale.exp(), None),
    ):
        largest = part.sort(dim=1, descending=True)
        read = index.counts[largest.indices].cumsum(dim=1)
        goal = largest.values.sum(dim=1, keepdim=True) - BOUND / 2 * total if goal is None else goal
        last = (largest.values.cumsum(dim=1) < goal).sum(dim=1, keepdim=True).clamp(max=part.shape[1] - 1)
        found[name] = round_digits(read.gather(1, last).median().item() / len(index.keys), 3)
    return found


def timed(index: Index, queries: Tensor, beta: float, read: int) -> dict[str, Any]:
    """CPU seconds of exact recall, by the op and by products, and of the index, which take turns; ratio to the faster.

    The clock would measure other processes too.
    """
    keys, values = index.keys, index.values
    functions = {
        "recall": lambda: recall(queries[None, :, None], keys[None, :, None], values[None, :, None], beta),
        "products": lambda: by_products(queries, keys, values, beta),
        "index": lambda: index.answers(queries, beta, read=read),
    }
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(4):
        for name, function in functions.items():
            start = time.thread_time()
            function()
            seconds[name].append(time.thread_time() - start)
    middle = {name: median(each[1:]) for name, each in seconds.items()}  # the first is a warm-up
    faster = min(middle["recall"], middle["products"])
    return {"queries": len(queries), "times_exact": round_digits(faster / middle["index"], 3)} | {
        f"{name}_seconds": round_digits(value, 3) for name, value in middle.items()
    }


if __name__ == "__main__":
    auto_cli(main, as_positional=True)
