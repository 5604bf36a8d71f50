"""The command `mosaics plan`: memory per GPU, step time and days of a training run on GPUs that are not here.

work.py counts the work from the configuration; plan.yaml has the seconds per unit of work that one GPU was measured to
take, the network, and what is assumed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any, Literal

from memory_mosaics.benchmarks.work import HALF, RESIDUAL, Work, count_work
from memory_mosaics.errors import UserError, check_range, did_you_mean, one_line
from memory_mosaics.experiments.report import text_table
from memory_mosaics.files import read_yaml
from memory_mosaics.language_model import LanguageModelConfig
from memory_mosaics.models import PRESETS, preset
from memory_mosaics.ops.cross_entropy import rows_at_a_time
from memory_mosaics.results import round_digits
from memory_mosaics.training.config import Training, read_model_file

TABLE: dict[str, Any] = read_yaml(Path(__file__).with_name("plan.yaml"))
NETWORK, ASSUMED = TABLE["network"], TABLE["assumed"]
PER_NODE: int = NETWORK["gpus_per_node"]
RECALL = 3.5  # products of a retrieval, forward and backward, per product forward: 2 and 5
FULL = 4  # bytes of a weight, a gradient, a moment
GIB = 2**30
MAX_GPUS = 4096  # tried for a run that does not fit

Rates = dict[str, Any]  # described in plan.yaml


@dataclass(frozen=True)
class Gpu:
    name: str
    usable_gib: float
    tflops: float
    rates: Rates


def find_gpu(name: str, **changes: float) -> Gpu:
    """Return a GPU of plan.yaml; the rates of one that was not measured follow from the data sheets."""
    if name not in TABLE["gpus"]:
        raise UserError(f"no GPU {name!r}; {did_you_mean(name, TABLE['gpus'])}")
    known = TABLE["gpus"][name] | changes
    like = TABLE["gpus"][known.get("like", name)]
    slower = {kind: like[kind] / known[kind] for kind in ("tflops", "bandwidth")}
    rates = like["rates"]
    rates = rates | {key: rates[key] * slower["tflops"] for key in ("products", "recall", "recall_few", "slots")}
    rates |= {key: rates[key] * slower["bandwidth"] for key in ("pointwise", "logits", "copies", "optimizer")}
    rates["extractors"] = {key: each * slower["bandwidth"] for key, each in rates["extractors"].items()}
    rates["mixers"] = {key: [each[0] * slower["bandwidth"], each[1]] for key, each in rates["mixers"].items()}
    return Gpu(name, ASSUMED["usable"] * known["memory_gib"], known["tflops"], rates)


@dataclass(frozen=True)
class Layout:
    """How a step is spread: `batch` sequences over `gpus`, `micro` of them at once on each."""

    gpus: int
    batch: int
    micro: int
    sharding: Literal["ddp", "fsdp"] = "ddp"
    checkpointing: bool = False

    @property
    def micro_steps(self) -> int:
        return self.batch // self.gpus // self.micro

    @property
    def shards(self) -> int:
        return self.gpus if self.sharding == "fsdp" else 1


def memory_gib(work: Work, layout: Layout, rates: Rates) -> dict[str, float]:
    """Return the GiB per GPU by kind, and the peak.

    In one process without accumulation gradients take the place of activations, which the backward pass frees; DDP
    keeps its buckets of gradients, and FSDP2 the whole gradient while it accumulates.
    """
    config, P, block = work.config, work.parameters, work.block_parameters
    L, W, V, N = config.blocks, config.width, config.vocabulary, layout.micro * config.context
    saved = N * (work.saved + W * rates["mixers"].get(work.mixer, (0, 0))[1])
    accumulates = layout.micro_steps > 1
    found = {
        "weights": FULL * P / layout.shards,
        # Of FSDP2: weights and gradients of two blocks, and the weights outside of blocks.
        "gathered": FULL * (P - L * block + 2 * 2 * block) if layout.shards > 1 else 0,
        "moments": 2 * FULL * P / layout.shards,
        "gradients": FULL * P / (1 if accumulates else layout.shards),
        "activations": RESIDUAL * N * W * L + saved if layout.checkpointing else saved * L,
        "casts": HALF * work.matrices * (1 if layout.checkpointing else L),
        "logits": HALF * rows_at_a_time(N, V, HALF) * V + (V + N) * W * (2 * HALF + FULL),
    }
    transient = found["activations"] + found["casts"] + found["logits"]
    keeps = layout.gpus > 1 or accumulates
    peak = found["weights"] + found["gathered"] + found["moments"]
    peak += found["gradients"] + transient if keeps else max(found["gradients"], transient)
    built = FULL * P + found["moments"]  # every process builds the whole model before it is sharded
    return {name: size / GIB for name, size in (found | {"peak": max(peak, built)}).items()}


def device_seconds(work: Work, layout: Layout, rates: Rates) -> dict[str, float]:
    """Return the seconds of one step on one GPU by kind, without communication."""
    config, again = work.config, int(layout.checkpointing)  # the forward pass of blocks once more
    L, tokens = config.blocks, layout.micro * config.context
    recall = 0.0
    for each in work.recalls:
        rate = rates["slots"] if each.persistent else rates["recall"] + rates["recall_few"] / max(1.0, 2 * each.pairs)
        recall += each.flops * rate * max(1.0, 64 / each.head_width)  # narrow heads have as many exponentials
    costs = rates["extractors"]
    features = sum(count * costs.get(name, costs["Taps"]) for name, count in work.extractors.items())
    other = config.width * rates["mixers"].get(work.mixer, (0, 0))[0] + work.saved * rates["pointwise"]
    seconds = {
        "products": tokens * (L * (3 + again) * work.products + 3 * work.head_flops) * rates["products"],
        "retrieval": tokens * L * (RECALL + again) * recall * (rates["dropout"] if config.dropout else 1),
        "norms and the like": tokens * L * other * (1 + again / 3),
        "extractors": tokens * L * features * (1 + 0.4 * again),  # of five passes over the features two are forward
        "logits": tokens * config.vocabulary * rates["logits"],
        "copies": work.parameters * rates["copies"],
    }
    idle = L * rates["idle"]
    if layout.gpus > 1 or layout.micro_steps > 1:  # launched kernel by kernel, where one process has a CUDA graph
        idle = max(idle, L * ASSUMED["block_launch_seconds"] * (1 + again / 3) - sum(seconds.values()))
    seconds = {name: layout.micro_steps * each for name, each in (seconds | {"idle": idle}).items()}
    return seconds | {"optimizer": work.parameters / layout.shards * rates["optimizer"]}


def communication_seconds(work: Work, layout: Layout) -> float:
    """Return the seconds of all collectives of a step: DDP reduces the gradient once; FSDP2 gathers the weights for
    both passes of each micro-batch, in float32, and scatters the gradient once.
    """
    n = layout.gpus
    if n == 1:
        return 0.0
    bandwidth = 1e9 * (NETWORK["node"] if n <= PER_NODE else NETWORK["between"])
    passes = 2 if layout.sharding == "ddp" else 2 * layout.micro_steps + 1
    steps = (work.config.blocks + 1) * (n - 1)
    return passes * (FULL * work.parameters * (n - 1) / n / bandwidth + steps * NETWORK["step_seconds"])


def predict(work: Work, layout: Layout, gpu: Gpu) -> dict[str, Any]:
    """Return a row: the layout, memory, seconds by kind, and what follows from them."""
    seconds, communication = device_seconds(work, layout, gpu.rates), communication_seconds(work, layout)
    computing = sum(seconds.values())
    step = computing + communication - min(ASSUMED["overlap"] * communication, computing)
    speed = layout.batch * work.config.context / step
    found = {
        "step_seconds": step,
        "without_overlap_seconds": computing + communication,
        "tokens_per_second": speed,
        "mfu": speed / layout.gpus * work.training_flops / gpu.tflops / 1e12,
        "seconds": seconds | {"communication": communication},
        "memory_gib": memory_gib(work, layout, gpu.rates),
    }
    about = {"sharding": layout.sharding if layout.gpus > 1 else None, "checkpointing": layout.checkpointing}
    return about | {"micro_batch": layout.micro, "micro_steps": layout.micro_steps} | round_digits(found)


def layouts(work: Work, gpu: Gpu, gpus: int, batch: int, chosen: dict[str, Any]) -> Iterator[Layout]:
    """Yield every way to train, or those that are `chosen`, with the largest micro-batch that fits."""
    share, pinned = batch // gpus, {name: [each] for name, each in chosen.items() if each is not None}
    micros = pinned.get("micro_batch") or [n for n in range(share, 0, -1) if share % n == 0]
    for sharding in pinned.get("sharding") or (["ddp", "fsdp"] if gpus > 1 else ["ddp"]):
        for checkpointing in pinned.get("checkpointing") or [False, True]:
            tried = (Layout(gpus, batch, micro, sharding, checkpointing) for micro in micros)
            yield from list(one for one in tried if memory_gib(work, one, gpu.rates)["peak"] <= gpu.usable_gib)[:1]


def plan(name: str, config: LanguageModelConfig, gpu: Gpu, gpus: int, batch: int, **chosen: Any) -> dict[str, Any]:
    """Return all layouts that fit; what makes no sense or does not fit is an error that says what would."""
    micro = chosen.get("micro_batch")
    check_range(1, float("inf"), **{"--gpus": gpus, "--batch": batch, "--micro_batch": micro})
    if gpus == 1 and chosen.get("sharding") == "fsdp":
        raise UserError("--sharding fsdp needs several GPUs; give --gpus, or leave it out")
    if gpus > PER_NODE and (over := gpus % PER_NODE):
        raise UserError(
            f"{gpus} GPUs are not whole nodes of {PER_NODE}; choose {gpus - over} or {gpus - over + PER_NODE}"
        )
    if batch % gpus:
        raise UserError(f"a batch of {batch} does not split over {gpus} GPUs; choose a multiple of {gpus}")
    if micro is not None and batch // gpus % micro:
        raise UserError(f"--micro_batch {micro} does not divide the {batch // gpus} sequences of a GPU")
    work = count_work(config)
    rows = [predict(work, layout, gpu) for layout in layouts(work, gpu, gpus, batch, chosen)]
    if not rows:
        sharding, checkpointing = chosen.get("sharding") or "fsdp", chosen.get("checkpointing") is not False
        need = memory_gib(work, Layout(gpus, batch, micro or 1, sharding, checkpointing), gpu.rates)["peak"]
        message = f"{name} needs {need:,.1f} GiB on each of {gpus} {gpu.name} with {gpu.usable_gib:,.1f} to use"
        raise UserError(f"{message}; {_remedy(work, gpu, gpus, batch)}")
    about = {"model": name, "gpu": gpu.name, "gpus": gpus, "batch": batch, "context": config.context}
    about |= {"parameters": work.parameters, "gflops_per_token": round_digits(work.training_flops / 1e9)}
    return about | {"not_counted": _missing(work, gpu.rates), "rows": rows}


def _missing(work: Work, rates: Rates) -> str | None:
    """Name what was never measured: a sequence mixer that does not retrieve, and extractors."""
    known = work.mixer in rates["mixers"] or any(not each.persistent for each in work.recalls)
    unknown = [name for name in work.extractors if name not in rates["extractors"]]
    return ", ".join([*([] if known else [work.mixer]), *unknown]) or None


def _remedy(work: Work, gpu: Gpu, gpus: int, batch: int) -> str:
    """Name a change that would fit: other flags on as many GPUs, else on more."""
    counts = (gpus * 2**power for power in range(MAX_GPUS.bit_length()) if batch % (gpus * 2**power) == 0)
    one = next((each for count in counts for each in layouts(work, gpu, count, batch, {})), None)
    if one is None:
        return "no number of GPUs would fit; choose a smaller model or context"
    flags = f"--gpus {one.gpus} --sharding {one.sharding} --checkpointing {str(one.checkpointing).lower()}"
    return f"{flags} --micro_batch {one.micro} would fit"


def run(
    model: str,
    gpus: int = 1,
    gpu: str = "h200",
    *,
    batch: int | None = None,
    tokens: float | None = None,
    context: int | None = None,
    dropout: float | None = None,
    micro_batch: int | None = None,
    sharding: Literal["ddp", "fsdp"] | None = None,
    checkpointing: bool | None = None,
    json: bool = False,
) -> None:
    """Plan a training run: memory per GPU, step time, MFU, tokens/s and days, under DDP and FSDP2.

    Nothing is computed or allocated: work is counted by shapes; its time follows from kernels that were measured on one
    H200 and from a model of the network. docs/scaling.md says what is assumed, and how near measured runs were.

    Args:
        model: a preset such as memory-mosaic-12, or a config.json
        gpus: in total; more than 8 are whole nodes of 8
        gpu: h200, h100 or a100; the first was measured, the others follow by their data sheets
        batch: sequences per step, over all GPUs; null is the recipe's
        tokens: to train on, such as 1e12; null is the recipe's
        context: tokens of a sequence; null is the model's
        dropout: of the weights of attention and memories, and of what each mixer adds; null is the recipe's
        micro_batch: sequences at once on a GPU; null is the largest that fits
        sharding: ddp or fsdp; null shows both
        checkpointing: whether blocks are computed again in the backward pass; null shows both
        json: print one JSON object and nothing else
    """
    changes = {name: value for name, value in (("context", context), ("dropout", dropout)) if value is not None}
    training = Training(**PRESETS[model].training) if model in PRESETS else Training()
    try:
        if model in PRESETS:
            config = preset(model, **{"dropout": PRESETS[model].dropout or 0.0} | changes)
        else:
            config = replace(read_model_file(Path(model)), **changes)
    except (TypeError, ValueError) as error:
        raise UserError(f"model {model}: {one_line(error)}") from error
    batch = training.batch if batch is None else batch
    chosen = {"micro_batch": micro_batch, "sharding": sharding, "checkpointing": checkpointing}
    found = plan(model, config, find_gpu(gpu), gpus, batch, **chosen)
    total = float(training.steps * training.batch * config.context if tokens is None else tokens)
    if total < batch * config.context:
        raise UserError(f"--tokens {total:g} are less than the {batch * config.context:,} of one step; give more")
    for row in found["rows"]:
        row["days"] = round_digits(total / row["tokens_per_second"] / 86400)
    found["tokens"] = total
    print(dumps(found, indent=1) if json else table(found))


def table(found: dict[str, Any]) -> str:
    """Return a plan as text, a line per layout."""
    kinds = ["weights", "gathered", "moments", "gradients", "activations", "logits", "peak"]
    header, lines = ["GiB per GPU:", "micro-batches", *kinds, "step s", "tokens/s", "MFU", "days"], []
    for row in found["rows"]:
        name = f"{row['sharding'] or 'one process'}{', checkpointing' if row['checkpointing'] else ''}"
        cells = [name, f"{row['micro_steps']} of {row['micro_batch']}"]
        cells += [f"{row['memory_gib'][kind]:.1f}" for kind in kinds] + [f"{row['step_seconds']:.4g}"]
        lines.append([*cells, f"{row['tokens_per_second']:,.0f}", f"{row['mfu']:.1%}", f"{row['days']:.3g}"])
    about = f"{found['model']}, {found['parameters']:,} parameters, on {found['gpus']} {found['gpu']}: "
    about += f"{found['batch']} x {found['context']} tokens per step, {found['tokens']:.4g} in total"
    missing = found["not_counted"]
    note = f"Not measured: {missing}. Of a mixer the products alone are counted, and an extractor is timed as Taps: "
    note += "a step may take longer and need more memory."
    return "\n".join([about, text_table(header, lines), *([] if missing is None else [note])])
