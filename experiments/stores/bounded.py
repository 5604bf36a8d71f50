r"""Stores at equal budget on books read one after the other: loss, needles, cost, sparsity, and slots from text.

    mosaics prepare books.jsonl --out books --tokenizer bpe --vocabulary 2048 --valid_share 0.08 --seed 1
    mosaics train books --out runs/v1 --preset memory-mosaic-tiny ...      # the READMEs of the results have the flags
    python experiments/stores/bounded.py runs/v1 runs/v2 --data books --capacity 1024 --length 1000000 --out FOLDER

Every part of every model is written to results.json when it is done; the same command continues with what is missing.

    losses      mean loss of every BLOCK tokens of held-out books, for each store; `exact` up to --exact_length
    needles     loss and accuracy of tokens drawn at random that were read once, so many tokens before
    cost        seconds per token, all stores taking turns, and bytes of the state
    sparsity    how many pairs have a weight above 1 %, and what they weigh together, by the number of pairs stored
    slots       held-out windows after the pairs of training text, exact and summarised: `mosaics evaluate --memory`
"""

import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jsonargparse import auto_cli
from torch import Tensor

from memory_mosaics.benchmarks.timing import Timer
from memory_mosaics.bounded_stores import EXACT, MAX_INTERVAL, POLICIES, USED, StorePolicy
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError, check_range, did_you_mean, one_line
from memory_mosaics.evaluation import check_window, of_model, sample_windows
from memory_mosaics.experiments import figures
from memory_mosaics.experiments.figures.stores import BLOCK, differences, span_edges
from memory_mosaics.experiments.report import describe_model
from memory_mosaics.inspection import decay_and_sharpness, retrievals
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.memory_files import Memory, read, start_state
from memory_mosaics.ops.common import at_least_fp32
from memory_mosaics.parser import Parser
from memory_mosaics.results import (
    NORMAL_95,
    create_output_folder,
    environment_info,
    progress_bar,
    read_results,
    round_digits,
    write_results,
)
from memory_mosaics.runtime import find_device
from memory_mosaics.stores import State, state_tensors
from memory_mosaics.text.corpus import Corpus

BEFORE, NEEDLE = 256, 16  # tokens before a needle, and of a needle
PIECE = MAX_INTERVAL  # tokens that are timed, with one eviction
REPEATS = 5  # of times, which take turns
QUERIES = 64  # whose weights are counted, per text


def main(
    runs: list[str],
    *,
    data: Path,
    stores: list[str] = list(POLICIES),  # noqa: B006 (a flag's default)
    capacity: int = 1024,
    length: int = 1_000_000,
    exact_length: int = 16_384,
    rows: int = 8,
    needle_distance: int = 16_384,
    slot_tokens: int = 65_536,
    slot_length: int = 512,
    slot_windows: int = 64,
    parts: list[str] = ["losses", "needles", "cost", "sparsity", "slots"],  # noqa: B006
    device: str = "auto",
    work: Path = Path("runs/stores"),
    out: Path = Path("runs/stores"),
) -> dict[str, Any]:
    """Measure all parts of all models and write results.json and the figures.

    Args:
        runs: training runs or checkpoint folders of Memory Mosaics
        data: the prepared books, with the models' own tokenizer
        stores: kinds of bounded stores
        capacity: pairs that each keeps
        length: tokens that are read with bounded stores
        exact_length: tokens that are read with all pairs
        rows: texts side by side, each with a needle of its own; windows side by side after the slots
        needle_distance: largest distance of a needle
        slot_tokens: training text whose pairs become slots
        slot_length: tokens of the windows read after the slots
        slot_windows: how many windows
        parts: what to measure
        device: cuda, mps or cpu; auto takes the first that is available
        work: folder of memory files
        out: folder of results.json and the figures
    """
    check_range(BLOCK, 1 << 40, length=length, exact_length=exact_length)
    check_range(1, 1 << 40, capacity=capacity, slot_tokens=slot_tokens)
    check_range(2, 1 << 20, rows=rows)
    for part in parts:
        if part not in PARTS:
            raise UserError(f"there is no part {part!r}; {did_you_mean(part, PARTS)}")
    torch_device, corpus = torch.device(find_device(device)), Corpus.open(data)
    kinds = [str(StorePolicy.parse(f"{kind}:{capacity}")) for kind in stores]
    settings = {"corpus": corpus.folder.name, "capacity": capacity, "stores": kinds, "length": length}
    settings |= {"exact_length": exact_length, "rows": rows, "needle_distance": needle_distance}
    settings |= {"slot_tokens": slot_tokens, "slot_length": slot_length, "slot_windows": slot_windows}
    create_output_folder(out)
    results = read_results(out, "stores")
    for name, value in settings.items():
        if results.setdefault(name, value) != value:
            raise UserError(f"{out} was measured with {name} {results[name]}, not {value}; name another --out")
    results |= environment_info(torch_device)
    measured = results.setdefault("models", {})
    for trained in iter_models(unique_names(runs), device=torch_device):
        trained.check_tokenizer_of(corpus)
        trained.model.eval().empty_state(StorePolicy(kind="window", capacity=capacity))  # refuses one without memories
        described = describe_model(trained) | {"fingerprint": trained.fingerprint()[:12]}
        record = measured.setdefault(trained.name, described)
        if record["fingerprint"] != described["fingerprint"]:
            raise UserError(f"{out} was measured with another model named {trained.name}; name another --out")
        subject = Subject(trained, corpus, work, settings)
        for part in parts:
            for name, found in PARTS[part](subject, record.setdefault(part, {})):
                record[part][name] = found
                write_results(out / "results.json", results)
    print(tables(results))
    print(figures.draw_if_possible(results, out))
    return results


@torch.no_grad()
def advance(model: LanguageModel, tokens: Tensor, state: State | None) -> State:
    """The state after tokens (B, T), read BLOCK at a time."""
    for part in tokens.split(BLOCK, dim=1):
        _, state = model.features(model.embedding(part), state)
    assert state is not None
    return state


@torch.no_grad()
def predict(model: LanguageModel, tokens: Tensor, state: State | None) -> tuple[Tensor, Tensor, State]:
    """The losses (B, T) of tokens (B, T + 1) but the first, whether each is the most probable, and the state before
    the last.
    """
    features, state = model.features(model.embedding(tokens[:, :-1]), state)
    logits, targets = at_least_fp32(model.logits(features)), tokens[:, 1:]
    return F.cross_entropy(logits.mT, targets, reduction="none"), (logits.argmax(dim=-1) == targets).double(), state


def load_tokens(model: LanguageModel, tokens: Any, start: int, count: int) -> Tensor:
    part = torch.from_numpy(np.asarray(tokens[start : start + count]).astype(np.int64))
    return part.to(model.embedding.weight.device)


def side_by_side(model: LanguageModel, tokens: Any, rows: int, count: int) -> Tensor:
    """Evenly spaced parts of a text."""
    starts = [row * (len(tokens) - count) // rows for row in range(rows)]
    return torch.stack([load_tokens(model, tokens, start, count) for start in starts])


def empty(model: LanguageModel, store: str) -> State | None:
    return model.empty_state(StorePolicy.parse(store))


@dataclass(frozen=True)
class Subject:
    """A model, the books and the settings of the study."""

    trained: LoadedModel
    corpus: Corpus
    work: Path
    settings: dict[str, Any]

    @property
    def model(self) -> LanguageModel:
        return self.trained.model

    @property
    def stores(self) -> list[str]:
        return [EXACT, *self.settings["stores"]]

    def held_out(self, length: int) -> Any:
        """The tokens of the held-out books, at least so many."""
        check_window(tokens := self.corpus.tokens("valid"), length, f"the valid split of {self.corpus.folder}")
        return tokens


Found = Iterator[tuple[str, Any]]


def losses(subject: Subject, done: dict[str, Any]) -> Found:
    """Per store the mean loss of every BLOCK tokens from the start of the held-out books on."""
    model, settings = subject.model, subject.settings
    text = subject.held_out(max(settings["length"], settings["exact_length"]))
    for store in (each for each in subject.stores if each not in done):
        length = settings["exact_length" if store == EXACT else "length"] // BLOCK * BLOCK
        state, means, begun = empty(model, store), [], time.perf_counter()
        with progress_bar(f"{subject.trained.name}, {store}", length, "token") as bar:
            for at in range(0, length, BLOCK):
                found, _, state = predict(model, load_tokens(model, text, at, BLOCK + 1)[None], state)
                means.append(found.mean().item())
                bar.update(BLOCK)
        yield store, {"losses": round_digits(means, 6), "seconds": round(time.perf_counter() - begun, 1)}


def needles(subject: Subject, done: dict[str, Any]) -> Found:
    """Per store, at each distance, [distance, loss, accuracy, by how much the needle's loss is larger after another
    text, and half the width of its 95 % interval over needles].

    Each text is read to the end of its needle and on; at each distance the needle is read once more from a copy of the
    state. Its first token is not counted, since nothing tells that it comes.
    """
    model, rows, longest = subject.model, subject.settings["rows"], subject.settings["needle_distance"]
    context = side_by_side(model, subject.held_out(BEFORE + longest), rows, BEFORE + longest)
    drawn = torch.randint(subject.corpus.vocabulary, (rows, NEEDLE), generator=torch.Generator().manual_seed(0))
    drawn = drawn.to(context.device)
    for store in (each for each in subject.stores if each not in done):
        most = min(longest, subject.settings["exact_length"]) if store == EXACT else longest
        state = advance(model, torch.cat([context[:, :BEFORE], drawn], dim=1), empty(model, store))
        found, at = [], 0
        with progress_bar(f"{subject.trained.name}, needles, {store}", most, "token") as bar:
            for distance in (2**power for power in range(6, 40) if 2**power <= most):
                state = advance(model, context[:, BEFORE + at : BEFORE + distance], state)
                bar.update(distance - at)
                at = distance
                again, others = (predict(model, needle, state)[:2] for needle in (drawn, drawn.roll(1, dims=0)))
                saved = (others[0].roll(-1, dims=0) - again[0]).mean(dim=1)  # of the same needle, after another text
                numbers = [again[0].mean(), again[1].mean(), saved.mean(), NORMAL_95 * saved.std() / rows**0.5]
                found.append([distance, *round_digits([x.item() for x in numbers])])
        yield store, found


def cost(subject: Subject, done: dict[str, Any]) -> Found:
    """Milliseconds per token, of 128 tokens at once and one by one, in turn, and bytes of the state."""
    if done:
        return
    model, capacity = subject.model, subject.settings["capacity"]
    text = side_by_side(model, subject.held_out(subject.settings["exact_length"]), 1, subject.settings["exact_length"])
    lengths = {store: capacity + 2 * PIECE for store in subject.settings["stores"]}
    lengths |= {f"{EXACT}, {n:,} pairs": n for n in _powers(capacity, subject.settings["exact_length"])}
    states = {
        name: advance(model, text[:, :length], empty(model, name.partition(",")[0])) for name, length in lengths.items()
    }
    piece = text[:, :PIECE]
    at_once = {name: partial(advance, model, piece, state) for name, state in states.items()}
    one_by_one = {name: partial(_one_by_one, model, piece, state) for name, state in states.items()}
    seconds = [_medians(model, functions) for functions in (at_once, one_by_one)]
    for name, state in states.items():
        times = [round_digits(1000 * one[name] / PIECE) for one in seconds]
        yield name, {"at_once": times[0], "one_by_one": times[1], "bytes": sum(x.nbytes for x in state_tensors(state))}


def _one_by_one(model: LanguageModel, tokens: Tensor, state: State) -> None:
    for token in tokens.split(1, dim=1):
        state = advance(model, token, state)


def _medians(model: LanguageModel, functions: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of functions that take turns: of the device, or of the processor, which other work then shares."""
    device = model.embedding.weight.device
    if device.type == "cuda":
        return Timer(device).medians(functions, REPEATS)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(REPEATS + 1):  # the first warms up
        for name, function in functions.items():
            begun = time.process_time()
            function()
            seconds[name].append(time.process_time() - begun)
    return {name: median(each[1:]) for name, each in seconds.items()}


def sparsity(subject: Subject, done: dict[str, Any]) -> Found:
    """By the number of pairs stored, exactly, for every memory: pairs above 1 %, what they weigh together, and beta."""
    model, most = subject.model, subject.settings["exact_length"]
    text = side_by_side(model, subject.held_out(most), subject.settings["rows"], most)
    state, at = None, 0
    for pairs in (each for each in _powers(256, most) if str(each) not in done):
        state = advance(model, text[:, at : pairs - QUERIES], state)
        at = pairs - QUERIES
        heads = []
        for layer in retrievals(model, text[:, at:pairs], state):
            if layer.kind == "sequence":
                weights = layer.retrieval.weights()
                above = weights > USED
                info, (_, beta) = layer.mixer.memory_info(), decay_and_sharpness(layer.mixer, layer.retrieval, layer.x)
                beta = beta.expand(QUERIES, info.heads).mean(dim=0)
                count, weight = (
                    above.double().sum(dim=-1).mean(dim=(0, 2)),
                    (weights * above).sum(dim=-1).mean(dim=(0, 2)),
                )
                heads += [
                    {
                        "block": layer.block,
                        "head": head,
                        "window": info.visibility[head * len(info.visibility) // info.heads].window,
                    }
                    | {"beta": round_digits(beta[head].item()), "above": round_digits(count[head].item())}
                    | {"weight": round_digits(weight[head].item())}
                    for head in range(info.heads)
                ]
        yield str(pairs), heads


def slots(subject: Subject, done: dict[str, Any]) -> Found:
    """Losses of held-out windows without memory, after the exact pairs of training text, and after fewer."""
    settings, trained = subject.settings, subject.trained
    text = sample_windows(subject.corpus, length=settings["slot_length"], count=settings["slot_windows"])
    budgets = (settings["capacity"] // 4, settings["capacity"])
    names = [f"{store.partition(':')[0]}:{budget}" for budget in budgets for store in settings["stores"]]
    for name in (each for each in ("none", EXACT, *names) if each not in done):
        files = [] if name == "none" else [_slot_file(subject, name)]
        losses_of = of_model(subject.model, start_state(trained, files, EXACT))
        with progress_bar(f"{trained.name}, slots, {name}", len(text), "window") as bar:
            found = []
            for windows in text.batches(settings["rows"]):
                found.append(losses_of(windows))
                bar.update(len(windows))
        by_window = np.concatenate(found)
        edges = [0, *_powers(8, settings["slot_length"])]
        spans = [[*span, round_digits(by_window[:, slice(*span)].mean(), 6)] for span in pairwise(edges)]
        yield name, {"spans": spans, "windows": round_digits(by_window.mean(axis=1), 6)}


def _slot_file(subject: Subject, store: str) -> Path:
    """The memory file of the training text with such a store, which stays in the folder for work."""
    tokens = load_tokens(subject.model, subject.corpus.tokens("train"), 0, subject.settings["slot_tokens"]).cpu()
    key = f"{subject.trained.fingerprint()[:12]}-{len(tokens)}"
    whole, file = (subject.work / f"{key}-{name.replace(':', '-')}.memory" for name in (EXACT, store))
    if not whole.exists():
        subject.work.mkdir(parents=True, exist_ok=True)
        text = {"name": "train", "sha256": hashlib.sha256(tokens.numpy().tobytes()).hexdigest()}
        memory = None
        with progress_bar(f"{subject.trained.name}, training text", len(tokens), "token") as bar:
            for memory in read(subject.trained, tokens, text, policy=None, memory=None):
                bar.update(len(memory.tokens) - bar.n)
        assert memory is not None
        memory.save(whole)
    if not file.exists():
        policy = StorePolicy.parse(store)
        assert policy is not None
        Memory.load(whole).trim(policy, subject.model.embedding.weight.device).save(file)
    return file


def _powers(first: int, last: int) -> list[int]:
    """first, 2 first, 4 first ... up to `last`."""
    return [first * 2**power for power in range(40) if first * 2**power <= last]


def tables(results: dict[str, Any]) -> str:
    """The tables of the page, in Markdown."""
    models = results["models"]

    def of(part: str) -> Iterator[tuple[str, str, Any]]:
        yield from ((name, store, one) for name, model in models.items() for store, one in model.get(part, {}).items())

    sections = []
    lengths = [len(one["losses"]) for *_, one in of("losses")]
    if lengths:
        edges = [BLOCK * edge for edge in span_edges(max(lengths))]
        rows = []
        for name, store, _ in of("losses"):
            found = [_signed(mean, within) for *_, mean, within in differences(models[name]["losses"], store)]
            rows.append([name, store, *found[1:], *[""] * (len(edges) - 1 - len(found))])
        sections.append(_table(["model", "store", *(f"{first:,}" for first in edges[1:-1])], rows))
    distances = sorted({point[0] for *_, points in of("needles") for point in points})
    rows = []
    for name, store, points in of("needles"):
        cells = [f"{saved:.2f} ± {within:.2f}" for *_, saved, within in points]
        rows.append([name, store, *cells, *[""] * (len(distances) - len(cells))])
    sections.append(_table(["model", "store", *(f"{distance:,}" for distance in distances)], rows))
    rows = [
        [name, store, f"{one['at_once']:.3g}", f"{one['one_by_one']:.3g}", f"{one['bytes'] / 2**20:.2f}"]
        for name, store, one in of("cost")
    ]
    sections.append(_table(["model", "store", "128 at once", "one by one", "MiB"], rows))
    rows = []
    for name, pairs, heads in of("sparsity"):
        long = [head for head in heads if head["window"] is None]
        means = [sum(head[field] for head in long) / len(long) for field in ("beta", "above", "weight")]
        rows.append([name, f"{int(pairs):,}", f"{means[0]:.1f}", f"{means[1]:.1f}", f"{means[2]:.2f}"])
    sections.append(_table(["model", "pairs", "beta", "above 1 %", "their weight"], rows))
    rows = []
    for name, store, one in of("slots"):
        base = models[name]["slots"]["none"]
        less = np.subtract(one["windows"], base["windows"])
        within = NORMAL_95 * less.std(ddof=1) / len(less) ** 0.5
        spans = [loss - before for (*_, loss), (*_, before) in zip(one["spans"], base["spans"], strict=True)]
        cells = [f"{np.mean(one['windows']):.3f}", "" if store == "none" else _signed(less.mean(), within)]
        rows.append([name, store, *cells, *("" if store == "none" else _signed(each) for each in spans)])
    ends = [f"{span[0]} to {span[1]}" for *_, one in of("slots") for span in one["spans"]]
    sections.append(_table(["model", "slots", "loss", "difference", *dict.fromkeys(ends)], rows))
    return "\n\n".join(filter(None, sections))


def _signed(mean: float, within: float | None = None) -> str:
    return f"{mean:+.3f}" + ("" if within is None else f" ± {within:.3f}")


def _table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, or nothing without rows."""
    lines = [header, ["---", "---", *["---:"] * (len(header) - 2)], *rows]
    return "\n".join(re.sub("  +", " ", f"| {' | '.join(cells)} |") for cells in lines) if rows else ""


PARTS: dict[str, Callable[[Subject, dict[str, Any]], Found]] = {
    part.__name__: part for part in (losses, needles, cost, sparsity, slots)
}


if __name__ == "__main__":
    try:
        auto_cli(main, prog="bounded.py", parser_class=Parser)
    except (UserError, OSError) as error:
        print(f"bounded.py: {one_line(error)}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("bounded.py: interrupted; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None
