"""Compute the rates of plan.yaml from committed results, and compare its predictions with runs: predicted, measured.

    python tests/benchmarks/plan_check.py benchmarks/results.json > benchmarks/plan/check.json

The profile of a step of a Memory Mosaic and of its transformer, both of the first size, gives products, slots,
pointwise kernels, the loss, the optimizer and idle time; the table of kernels gives retrieval at two lengths, and
extractors.
Of training runs, dropout is fitted to the Memory Mosaic of the first size, and other mixers to one run of each.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import yaml

from memory_mosaics.benchmarks.plan import FULL, GIB, RECALL, Layout, device_seconds, find_gpu, layouts, memory_gib
from memory_mosaics.benchmarks.plan import predict as predicted_row
from memory_mosaics.benchmarks.work import HALF, count_work
from memory_mosaics.models import ARCHITECTURES
from memory_mosaics.results import round_digits

OPS = {"LeakyAverage": "key", "GatedAverage": "gated key", "Taps": "value"}
SIZE = ("width", "blocks", "batch", "context")
PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())["published"]


def work_of(row):
    """What a training row of `mosaics bench` computes, in one process and one micro-batch."""
    sizes = {name: row[name] for name in ("width", "blocks", "heads", "vocabulary")}
    config = ARCHITECTURES[row["model"]].config(context=row["context"], dropout=row.get("dropout", 0.0), **sizes)
    return count_work(config), Layout(1, row["batch"], row["batch"])


def total(row, rates):
    return sum(device_seconds(*work_of(row), rates).values())


def peak(row, rates):
    return memory_gib(*work_of(row), rates)["peak"]


def rates_from(results):
    """The rates of a device from its `mosaics bench train kernels profile`."""
    runs, kernels, profile = (results[name]["rows"] for name in ("train", "kernels", "profile"))
    of_size = [row for row in runs if [row[key] for key in SIZE] == [runs[0][key] for key in SIZE]]
    first = {row["model"]: row for row in of_size if not row.get("dropout")}
    pair = [work_of(first[name])[0] for name in ("memory-mosaic", "transformer")]
    device, blocks = results["profile"], runs[0]["blocks"]
    tokens = runs[0]["batch"] * runs[0]["context"]

    def spent(*kinds):
        return sum(row["ms"] for row in profile if row["step"] == "training" and row["kind"] in kinds) / 1e3

    def form(op):
        """The rows of an operation in the form that a model uses."""
        rows = [row for row in kernels if row["op"] == op]
        best = next(name for name in ("op", "recall", "PyTorch") if any(row["form"] == name for row in rows))
        return [row for row in rows if row["form"] == best]

    def per_operation(row):
        seconds = [row[f"{way}_ms"] / 1e3 for way in ("forward", "backward")]
        return sum(seconds) / sum(
            1e12 * row[f"{way}_rate"] * time for way, time in zip(("forward", "backward"), seconds, strict=True)
        )

    few, many = form("contextual recall")
    slope = (per_operation(few) - per_operation(many)) / (1 / few["context"] - 1 / many["context"])
    bytes_ = HALF if device["device"] == "cuda" else FULL
    traffic = 3 * bytes_ / (device["ceilings"]["copy_gbs"] * 1e9)  # products write logits once and read them twice
    logits = len(pair) * tokens * runs[0]["vocabulary"]
    operations = 3 * tokens * sum(blocks * work.products + work.head_flops for work in pair)
    parameters = sum(work.parameters for work in pair)
    slots = sum(each.flops for work in pair for each in work.recalls if each.persistent)
    rates = {
        "products": (spent("matrix products") - traffic * logits) / operations,
        "recall": per_operation(many) - slope / many["context"],
        "recall_few": slope,
        "slots": spent("persistent recall") / (RECALL * tokens * blocks * slots),
        "pointwise": spent("norms, residuals and the like") / (tokens * blocks * sum(work.saved for work in pair)),
        "extractors": {"Linear": 0.0},
        "logits": spent("loss over the vocabulary") / logits + traffic,
        "copies": spent("copies and casts", "the rest") / parameters,
        "optimizer": spent("optimiser") / parameters,
        "idle": spent("idle") / (len(pair) * blocks),
        "dropout": 1.0,
        "mixers": {},
    }
    for name, op in OPS.items():
        row = form(op)[0]
        seconds = (row["forward_ms"] + row["backward_ms"]) / 1e3
        rates["extractors"][name] = seconds / (row["batch"] * row["context"] * runs[0]["width"])
    for row in of_size:
        if row.get("dropout") and row["model"] == "memory-mosaic":
            without = first["memory-mosaic"]
            more = row["step_seconds"] - without["step_seconds"] - total(row, rates) + total(without, rates)
            rates["dropout"] += more / device_seconds(*work_of(row), rates)["retrieval"]
    mixers = {}
    for row in first.values():
        work, layout = work_of(row)
        if work.mixer not in ("contextual_memory", "attention"):
            numbers = tokens * blocks * work.config.width
            more = GIB * (row["peak_gib"] - memory_gib(work, layout, rates)["peak"]) if row["peak_gib"] else 0.0
            mixers[work.mixer] = [(row["step_seconds"] - total(row, rates)) / numbers, more / numbers]
    return round_digits(rates | {"mixers": mixers})


def compared(predicted, measured):
    if measured is None:
        return None
    return {"predicted": round_digits(predicted), "measured": measured, "ratio": round_digits(predicted / measured, 3)}


def compare(results):
    """The training runs of a results.json, predicted by the rates of its own kernels; on CUDA published runs, too."""
    rates, rows, first = rates_from(results), [], results["train"]["rows"][0]
    for section in ("train", "memory"):
        for row in results[section]["rows"]:
            about = {name: row[name] for name in ("label", "size", "batch", "context")}
            of_size = all(row[key] == first[key] for key in SIZE)
            about["fitted"] = of_size and (not row.get("dropout") or row["model"] == "memory-mosaic")
            about["step_seconds"] = compared(total(row, rates), row["step_seconds"])
            rows.append(about | {"peak_gib": compared(peak(row, rates), row["peak_gib"])})
    found = {"hardware": results["train"]["hardware"], "rates": rates, "rows": rows}
    return found | ({"published": list(map(published, PUBLISHED))} if results["train"]["device"] == "cuda" else {})


def published(run):
    sizes = dict(run["model"])
    architecture, tied = ARCHITECTURES[sizes.pop("architecture")], sizes.pop("tied", True)
    work = count_work(replace(architecture.config(**sizes), tied=tied))
    gpu = find_gpu(run["gpu"], **{name: run[name] for name in ("bandwidth",) if name in run})
    chosen = {"micro_batch": run.get("micro_batch"), "sharding": run.get("sharding", "ddp")}
    layout = next(
        layouts(work, gpu, run["gpus"], run["batch"], chosen | {"checkpointing": run.get("checkpointing", False)})
    )
    speed = predicted_row(work, layout, gpu)["tokens_per_second"] / run["gpus"]
    return {"name": run["name"], "source": run["source"], "speed": compared(speed, run["tokens_per_second"])}


if __name__ == "__main__":
    print(json.dumps(compare(json.loads(Path(sys.argv[1]).read_text())), indent=1))
