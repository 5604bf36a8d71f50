"""Numbers on the pages are those of the committed results (`make results`)."""

import importlib.util
import json
from pathlib import Path

import pytest

from memory_mosaics.results import mean_and_interval

pytestmark = pytest.mark.results
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
KINDS = {
    "memory-mosaic": "Memory Mosaic",
    "transformer": "transformer, learned positions",
    "transformer-rotary": "transformer, RoPE",
    "transformer-alibi": "transformer, ALiBi",
}
TEXTS = ("stories-512", "stories-1536", "wikipedia-512", "wikipedia-1536")


def read(path):
    """A committed results.json."""
    return json.loads((ROOT / path / "results.json").read_text())


def label(row):
    """Of a benchmark's row, whose transformers are those of all other tables."""
    return KINDS.get(row["model"], row["label"])


def loss_cell(loss, within=None):
    return "" if loss is None else f"{loss:.3f}" + ("" if within is None else f" ± {within:.3f}")


def test_the_numbers_of_the_page_on_induction_are_those_measured():
    folder = ROOT / "experiments" / "induction"
    results, random = read(folder), read(folder / "random_triggers")
    readme = (folder / "README.md").read_text()
    rows = [
        [cell.strip(" *") for cell in line.split("|")[1:-1]] for line in readme.splitlines() if line.startswith("|")
    ]
    records = [
        (triggers, record)
        for triggers, measured in (("fixed", results), ("random", random))
        for record in (*measured["models"].values(), *measured["rules"].values())
    ]
    for (kind, *row), (triggers, record) in zip(rows[2:], records, strict=True):
        final = record["final"]
        assert (kind, row[0].replace(":*", ":")) == (triggers, record["label"])
        assert row[1] == (f"{record['parameters']:,}" if "parameters" in record else "")
        assert row[2:5] == [f"{final[key]:.3f}" for key in ("accuracy", "accuracy_changing", "accuracy_others")]
        assert row[5] == (f"{final['loss']:.3f}" if "loss" in final else "")
    assert f"Time: {results['seconds'] / 60:.0f} minutes" in readme
    assert f"above 0.99 after {reached(results, 'memory', 0.99)} steps" in readme
    assert f"pass 0.9 after {reached(results, 'transformer-2', 0.9)} steps" in readme
    assert results["models"]["memory"]["final"]["accuracy"] >= 0.99


def reached(results, name, accuracy):
    """The first measured step at which the model was this good."""
    return next(step for step, _, share in results["models"][name]["curve"] if share >= accuracy)


def moons_rows(results, periods):
    for record in results["networks"].values():
        seeds = record["seeds"]
        worst = [max(seed[name] for seed in seeds) for name in ("error_1", "error_25")]
        numbers = " | ".join(f"{number:.3f}" for number in (*worst, min(seed["score"] for seed in seeds)))
        converged = f"{sum(seed['converged'] for seed in seeds)} of {len(seeds)}"
        yield f"| {record['label']}{periods} | {record['parameters']} | {converged} | {numbers} |"


def test_the_numbers_of_the_moons_tables_are_those_measured():
    folder = ROOT / "experiments" / "three_moons"
    page = (folder / "README.md").read_text()
    results, authors = read("experiments/three_moons"), read("experiments/three_moons/authors_periods")
    assert authors["settings"]["integer_periods"] is False
    assert [f"{period:.1f}" for period in authors["systems"]["validation"]["periods"]] == ["44.4", "66.7", "88.9"]
    for row in (*moons_rows(results, ""), *moons_rows(authors, "")):
        assert row in page
    assert results["seconds"] < 600
    assert json.loads((folder / "one_seed.json").read_text())["seconds"] < 60


def test_all_hundred_seeds_of_three_memories_converged():
    results = json.loads((ROOT / "experiments" / "three_moons" / "results.json").read_text())
    seeds = results["networks"]["3"]["seeds"]
    assert len(seeds) == 100
    assert all(seed["converged"] and seed["score"] > 0.99 for seed in seeds)


def test_the_numbers_of_the_stories_tables_are_those_measured():
    page, results = (ROOT / "experiments" / "stories" / "README.md").read_text(), read("experiments/stories")
    assert len(results["summary"]) == 2 * len(KINDS)
    for row in results["summary"]:
        losses = [loss_cell(row[name], row[f"{name}_within"]) for name in ("train_loss", "valid_loss")]
        cells = [KINDS[row["architecture"]], f"{row['parameters']:,}", f"{row['learning_rate']:g}", str(row["seeds"])]
        assert f"| {row['blocks']} | {' | '.join(cells + losses)} |" in page
    search = {}
    for run in results["runs"]:
        if run["seed"] == 0:
            row = search.setdefault((run["blocks"], run["learning_rate"]), {})
            row[run["architecture"]] = f"{run['valid_loss']:.3f}"
    for (blocks, rate), row in search.items():
        assert f"| {blocks} | {rate:g} | {' | '.join(row.get(kind, '') for kind in KINDS)} |" in page
    first, second, third = (f"{run['valid_loss']:.3f}" for run in read("experiments/stories/more_slots")["runs"])
    assert f"has {first}, {second} and {third} at 0.001, 0.003 and 0.006" in page


def test_the_numbers_of_the_sweep_table_are_those_measured():
    folder = ROOT / "experiments" / "sweep"
    results, page = json.loads((folder / "results.json").read_text()), (folder / "README.md").read_text()
    assert len(results["rows"]) == 7
    for row in results["rows"]:
        cells = [f"**{row[name]:g}**" if name in row["changed"] else f"{row[name]:g}" for name in results["base"]]
        assert f"| {' | '.join(cells)} | {row['train_loss']:.3f} | {row['valid_loss']:.3f} |" in page


@pytest.mark.parametrize("text", TEXTS)
def test_the_losses_by_position_are_those_measured(text):
    page = (ROOT / "experiments" / "out_of_distribution" / "README.md").read_text()
    results, anchors = (read(f"experiments/out_of_distribution/{folder}{text}") for folder in ("", "anchors/"))
    assert [model["architecture"] for model in results["models"]] == list(KINDS)
    for label, one in [(KINDS[model["architecture"]], model) for model in results["models"]] + [
        (f"*{anchor['label']}*", anchor | {"windows": anchors["windows"]}) for anchor in anchors["anchors"]
    ]:
        cells = [f"{one['windows']:,}", loss_cell(one["loss"], one["loss_within"])]
        cells += [loss_cell(*span[2:]) for span in one["spans"]]
        assert f"| {text.split('-')[0]} | {label} | {' | '.join(cells)} |" in page
    kept = [{name: one[name] for name in ("name", "label", "loss", "spans")} for one in anchors["anchors"]]
    assert results["anchors"] == kept  # what the figure draws
    assert (results["windows"], results["split"], results["at_documents"]) == (
        anchors["windows"],
        anchors["split"],
        anchors["at_documents"],
    )


PARTS = {"gated keys": "gated-0.003-", "gated keys, adaptive sharpness": "gated-adaptive-0.003-"}
BASELINES = {
    "leaky average": "memory-mosaic",
    "transformer, RoPE": "transformer-rotary",
    "transformer, ALiBi": "transformer-alibi",
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_losses_of_the_parts_of_memories_are_those_measured(text):
    folder = "experiments/memory_parts"
    page, corpus = (ROOT / folder / "README.md").read_text(), text.split("-")[0]
    measured = [read(f"{folder}/rate-0.003{part}/{text}") for part in ("", "-more")]
    runs = [run for results in measured for run in results.get("runs", results["models"])]  # by run if interrupted
    for label, name in PARTS.items():
        own = [[run["loss"], *(span[2] for span in run["spans"])] for run in runs if run["name"].startswith(name)]
        columns = [mean_and_interval(column) if len(own) > 2 else column for column in zip(*own, strict=True)]
        cells = [loss_cell(*column) if len(own) > 2 else ", ".join(map(loss_cell, column)) for column in columns]
        assert f"| {corpus} | {label} | {len(own)} | {' | '.join(cells)} |" in page
    models = {model["architecture"]: model for model in read(f"experiments/out_of_distribution/{text}")["models"]}
    for label, kind in BASELINES.items():
        cells = [loss_cell(models[kind]["loss"], models[kind]["loss_within"])]
        cells += [loss_cell(*span[2:]) for span in models[kind]["spans"]]
        assert f"| {corpus} | {label} | {models[kind]['seeds']} | {' | '.join(cells)} |" in page


def test_the_rates_of_the_parts_of_memories_are_those_measured():
    folder = ROOT / "experiments" / "memory_parts"
    runs = {run["name"]: run for run in json.loads((folder / "training.json").read_text())["runs"]}
    page = (folder / "README.md").read_text()
    for rate in ("0.0015", "0.003", "0.006"):
        found = [
            [runs[f"{kind}-{rate}-{seed}"]["valid_loss"] for seed in (0, 1)] for kind in ("gated", "gated-adaptive")
        ]
        assert f"| {rate} | {' | '.join(', '.join(map(loss_cell, losses)) for losses in found)} |" in page
    for kind, joint in (("gated", "in training and {} in validation"), ("gated-adaptive", "and {}")):
        own = [runs[f"{kind}-0.003-{seed}"] for seed in range(5)]
        train, valid = (
            loss_cell(*mean_and_interval([run[name] for run in own])) for name in ("train_loss", "valid_loss")
        )
        assert f"{train} {joint.format(valid)}" in page


def test_the_numbers_of_other_sets_of_languages_are_those_measured():
    folders = [f"experiments/regbench{seed}" for seed in ("", "/data_seed_1", "/data_seed_2")]
    page = (ROOT / folders[0] / "README.md").read_text()
    for kind in ("memory-mosaic", "transformer"):
        for environments in (100, 1000):
            wanted = (kind, environments, False)
            best = [
                next(
                    one
                    for one in read(folder)["best"]
                    if (one["architecture"], one["environments"], one["in_distribution"]) == wanted
                )
                for folder in folders
            ]
            cells = " | ".join(f"{one['accuracy']:.3f} / {one['tvd']:.3f}" for one in best)
            assert f"| {KINDS[kind]} | {environments:,} | {cells} |" in page


def test_the_numbers_of_the_attention_table_are_those_measured():
    folder = ROOT / "experiments" / "attention"
    for model in json.loads((folder / "results.json").read_text())["models"]:
        first, last = model["weights"][0], sum(model["weights"][-16:])
        cells = f"{model['pairs']:.1f} | {model['distance']:.1f} | {first:.1%} | {last:.1%}"
        assert f"| {KINDS[model['architecture']]} | {model['length']} | {cells} |" in (folder / "README.md").read_text()


def test_the_numbers_of_the_regbench_tables_are_those_measured():
    folder = ROOT / "experiments" / "regbench"
    page, results = (folder / "README.md").read_text(), json.loads((folder / "results.json").read_text())
    for one in results["best"]:
        assert f"| {one['accuracy']:.3f} / {one['tvd']:.3f} |" in page, one["name"]
    for name in ("2-gram", "3-gram", "4-gram"):
        cell = f"{results['anchors'][name]['accuracy']:.3f} / {results['anchors'][name]['tvd']:.3f}"
        assert f"| *{name}* | {' | '.join([cell] * 5)} |" in page


def test_a_hundred_languages_are_enough_for_memories_and_not_for_a_transformer():
    results = json.loads((ROOT / "experiments" / "regbench" / "results.json").read_text())
    best = {(one["architecture"], one["environments"]): one for one in results["best"] if not one["in_distribution"]}
    assert best["memory-mosaic", 100]["accuracy"] >= 0.92
    assert best["memory-mosaic", 1000]["accuracy"] >= 0.93
    assert best["memory-mosaic", 1000]["tvd"] <= 0.22
    assert best["transformer", 100]["accuracy"] < 0.55
    for environments in (1000, 2500):  # the firm numbers of the literature: between them it begins to learn
        published = results["published"]["transformer"][str(environments)]
        for measure, number in zip(("accuracy", "tvd"), published, strict=True):
            assert abs(best["transformer", environments][measure] - number) <= 0.03


def test_the_numbers_of_the_page_on_speed_are_those_measured():
    page, results = (ROOT / "docs" / "speed.md").read_text(), json.loads((ROOT / "benchmarks/results.json").read_text())
    for row in results["train"]["rows"]:
        cells = f"{row['steps_per_second']:.4g} | {row['tokens_per_second']:,.0f} | {row['relative_speed']:.2f}"
        assert (
            f"| {row['size']} | {label(row)} | {cells} | {row['product_share']:.1%} | {row['peak_gib']:.2f} |" in page
        )
    for row in results["decode"]["rows"]:
        cells = f"{row['tokens_per_second']:,.0f} | {row['prefill_ms']:.4g} | {row['token_ms']:.4g}"
        assert f"| {row['batch']} | {label(row)} | {cells} |" in page
    for row in results["memory"]["rows"]:
        speed = f"{row['tokens_per_second']:,.0f} | {row['relative_speed']:.2f} | {row['peak_gib']:.2f}"
        cells = f"{speed} | {row['recall_microseconds']:.4g} | {row['rest_microseconds']:.4g}"
        assert f"| {row['context']:,} | {row['batch']} | {label(row)} | {cells} |" in page
    for row in results["kernels"]["rows"]:
        shares = ("" if (share := row[f"{way}_share"]) is None else f"{share:.0%}" for way in ("forward", "backward"))
        cells = f"{row['forward_ms']:.4g} | {row['backward_ms']:.4g} | {' | '.join(shares)}"
        assert f"| {row['op']} | {row['batch']} x {row['context']} | {row['form']} | {cells} |" in page


def test_decoding_is_at_least_twice_as_fast_as_that_of_transformers():
    rows = json.loads((ROOT / "benchmarks/results.json").read_text())["decode"]["rows"]
    speed = {(row["batch"], row["model"]): row["tokens_per_second"] for row in rows}
    for batch, least in ((1, 1500), (32, 40_000)):
        assert speed[batch, "memory-mosaic"] >= max(least, 2 * speed[batch, "transformers-static"])


def test_all_but_recall_is_linear_in_the_length():
    rows = json.loads((ROOT / "benchmarks/results.json").read_text())["memory"]["rows"]
    rest = [row["rest_microseconds"] for row in rows if row["model"] == "memory-mosaic"]
    assert max(rest) <= 1.05 * min(rest)


def test_every_row_of_the_tables_of_the_readme_is_as_measured():
    """And no other row is there: a number that no results.json holds fails too."""
    results = README.partition("## Results")[2].partition("## Map")[0]
    lines = results.splitlines()
    heads = {at for at, line in enumerate(lines) if line.startswith("|---")}
    rows = {line for at, line in enumerate(lines) if line.startswith("|") and not {at, at + 1} & heads}
    wanted = {*moons_rows(read("experiments/three_moons"), "")}
    wanted |= {*moons_rows(read("experiments/three_moons/authors_periods"), ", authors' periods")}
    wanted |= {*stories_rows(), *induction_rows(), *arena_rows(), *distribution_rows(), *regbench_rows(), *speed_rows()}
    assert rows == wanted


def stories_rows():
    for blocks, folder in ((1, "one_block/stories-512"), (6, "stories-512")):
        models = read(f"experiments/out_of_distribution/{folder}")["models"]
        losses = {model["architecture"]: loss_cell(model["loss"], model["loss_within"]) for model in models}
        yield f"| {blocks} | {' | '.join(losses[kind] for kind in KINDS)} |"


def induction_rows():
    fixed, random = (read(f"experiments/induction{folder}")["models"] for folder in ("", "/random_triggers"))
    for name, record in fixed.items():
        shares = " | ".join(f"{models[name]['final']['accuracy']:.3f}" for models in (fixed, random))
        yield f"| {record['label']} | {record['parameters']:,} | {shares} |"


def distribution_rows():
    folder = "experiments/out_of_distribution"
    models = [
        {one["architecture"]: one["spans"][-1][2:] for one in read(f"{folder}/{text}")["models"]} for text in TEXTS
    ]
    for kind, label in KINDS.items():
        yield f"| {label} | {' | '.join(loss_cell(*each[kind]) for each in models)} |"
    anchors = [
        {one["label"]: one["spans"][-1][2:] for one in read(f"{folder}/anchors/{text}")["anchors"]} for text in TEXTS
    ]
    for label in list(anchors[0])[1:]:  # the add-1 unigram is further off where tokens are unseen
        yield f"| *{label}* | {' | '.join(loss_cell(*each[label]) for each in anchors)} |"


def regbench_rows():
    results = read("experiments/regbench")
    best = {
        (one["environments"], one["architecture"]): one["accuracy"]
        for one in results["best"]
        if not one["in_distribution"]
    }
    grams = [results["anchors"][name]["accuracy"] for name in ("3-gram", "4-gram")]
    for number in (100, 500, 1000, 2500, 40_000):
        shares = [*(best[number, name] for name in ("memory-mosaic", "transformer")), *grams]
        yield f"| {number:,} | {' | '.join(f'{share:.3f}' for share in shares)} |"


def speed_rows():
    train, decode = (read("benchmarks")[name]["rows"] for name in ("train", "decode"))
    for model in (*KINDS, "transformers-static"):
        trained, dropped = (
            [row for row in train if (row["size"], row["model"]) == (size, model)]
            for size in ("GPT-2 small", "GPT-2 small, dropout 0.1")
        )
        decoded = [row for row in decode if row["model"] == model]
        cells = [f"{row['tokens_per_second']:,.0f}" for row in trained + dropped] or ["", ""]
        cells += [f"{row['peak_gib']:.2f}" for row in trained] or [""]
        cells += [f"{row['tokens_per_second']:,.0f}" for row in decoded] or ["", ""]
        yield f"| {label((trained or decoded)[0])} | {' | '.join(cells)} |"


ARENA = ("memory-mosaic", "transformer", "transformer-rotary", "transformer-alibi", "llama", "gated-delta-net")
ARENA_TASKS = {"mqar-256-width-64": "MQAR, length 256, width 64", "induction": "induction, random triggers"}
ARENA_TASKS |= {"mad-recall": "recall (MAD)", "mad-noisy": "noisy recall (MAD)", "mad-fuzzy": "fuzzy recall (MAD)"}
ARENA_TASKS |= {"mad-memorization": "memorization (MAD)", "mad-compression": "compression (MAD)"}


def arena_rows():
    for name, task in read("experiments/arena")["tasks"].items():
        assert task["seeds"] == 5
        records = [task["contestants"].get(contestant, {}) for contestant in ARENA]
        cells = " | ".join(loss_cell(one.get("score"), one.get("within")) for one in records)
        yield f"| {ARENA_TASKS[name]} | {cells} |"


def test_the_tables_of_the_page_on_stores_are_those_measured():
    folder = ROOT / "experiments" / "stores"
    spec = importlib.util.spec_from_file_location("bounded", folder / "bounded.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    page = (folder / "bounded" / "README.md").read_text()
    for results in ("bounded", "bounded/million"):
        for table in study.tables(read(f"experiments/stores/{results}")).split("\n\n"):
            assert table in page


def test_the_page_of_the_arena_says_what_was_measured():
    tasks = read("experiments/arena")["tasks"]
    text = (ROOT / "experiments" / "arena" / "README.md").read_text()
    page = " ".join(text.split())
    assert {*arena_rows()} <= {*text.splitlines()}
    fuzzy = sorted(tasks["mad-fuzzy"]["contestants"]["memory-mosaic"]["scores"])
    assert f"four of its five seeds have {fuzzy[1]:.3f} or more and one has {fuzzy[0]:.3f}" in page
    induction = [one["score"] for one in tasks["induction"]["contestants"].values() if "score" in one]
    assert max(induction) - min(induction) < 0.04
    mosaic, *others = (tasks["mad-compression"]["contestants"][name] for name in ARENA[:5])
    assert mosaic["score"] + mosaic["within"] < min(one["score"] - one["within"] for one in others)
