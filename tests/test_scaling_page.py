"""docs/scaling.md says what `mosaics plan` printed and how near measured runs it was (`make results`)."""

import json
from pathlib import Path

import pytest

from benchmarks.plan_check import compare, rates_from
from memory_mosaics.benchmarks import plan

ROOT = Path(__file__).parents[1]
PLANS = [f"{model}-{gpus}" for gpus in (64, 512) for model in ("memory-mosaic-v2-8b", "llama-8b")]
CHECKS = {"check": "results.json", "check-cpu": "cpu/results.json"}


def read(path):
    return json.loads((ROOT / "benchmarks" / path).read_text())


def plan_lines():
    """A line per model, GPUs and checkpointing."""
    for name in PLANS:
        found = read(f"plan/{name}.json")
        for row in found["rows"]:
            sizes = row["memory_gib"]
            cells = [found["model"], found["gpus"], "yes" if row["checkpointing"] else "no"]
            cells += [f"{row['micro_steps']} of {row['micro_batch']}", f"{sizes['activations']:.1f}"]
            cells += [f"{sizes['gradients']:.1f}", f"{sizes['peak']:.1f}", f"{row['step_seconds']:.3g}"]
            cells += [f"{row['without_overlap_seconds']:.3g}", f"{row['tokens_per_second'] / 1e3:,.0f}"]
            yield "| " + " | ".join(map(str, [*cells, f"{row['mfu']:.0%}", f"{row['days']:.3g}"])) + " |"


def check_lines():
    """A line per run that had no part in the rates."""
    for name in CHECKS:
        for row in read(f"plan/{name}.json")["rows"]:
            if not row["fitted"]:
                time, peak = row["step_seconds"], row["peak_gib"]
                shape = f"{row['batch']} x {row['context']}"
                cells = [row["size"], row["label"], shape, f"{1e3 * time['predicted']:.4g}"]
                cells += [f"{1e3 * time['measured']:.4g}", f"{time['ratio']:.2f}"]
                cells += [f"{peak[key]:.2f}" for key in ("predicted", "measured", "ratio")] if peak else [""] * 3
                yield "| " + " | ".join(cells) + " |"


def published_lines():
    for run in read("plan/check.json")["published"]:
        speed = run["speed"]
        numbers = f"{speed['predicted']:,.0f} | {speed['measured']:,.0f} | {speed['ratio']:.2f}"
        yield f"| [{run['name']}]({run['source']}) | {numbers} |"


@pytest.mark.results
@pytest.mark.parametrize("lines", [plan_lines, check_lines, published_lines])
def test_the_tables_of_the_page(lines):
    page = (ROOT / "docs" / "scaling.md").read_text()
    expected = list(lines())
    assert expected
    for line in expected:
        assert line in page, line


@pytest.mark.results
@pytest.mark.parametrize("name", CHECKS)
def test_the_committed_comparison_is_what_the_results_give(name):
    assert compare(read(CHECKS[name])) == read(f"plan/{name}.json")


@pytest.mark.results
def test_the_rates_are_those_of_the_committed_results():
    known = dict(plan.TABLE["gpus"]["h200"]["rates"])
    assert known.pop("source").startswith("benchmarks/results.json")
    assert rates_from(read("results.json")) == known


@pytest.mark.results
def test_predictions_are_near_what_was_measured():
    """Of models with more than ten million parameters: the smaller ones wait for kernels to start and end."""
    rows = [row for row in read("plan/check.json")["rows"] if not row["fitted"] and not row["size"].startswith("small")]
    assert len(rows) > 12
    for row in rows:
        assert abs(row["step_seconds"]["ratio"] - 1) < 0.1, row
        assert abs(row["peak_gib"]["ratio"] - 1) < 0.05, row


@pytest.mark.parametrize("name", PLANS)
def test_the_committed_plans_are_what_the_command_prints(name, capsys):
    found = read(f"plan/{name}.json")
    plan.run(found["model"], found["gpus"], batch=found["batch"], tokens=found["tokens"], json=True)
    assert json.loads(capsys.readouterr().out) == found
