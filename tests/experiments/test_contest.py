"""All contestants on one task: which runs the search and the report have, and what their outcomes say."""

import json
import shutil
from dataclasses import replace

import pytest

from memory_mosaics.errors import UserError
from memory_mosaics.experiments import arena
from memory_mosaics.experiments import suite as suites
from memory_mosaics.experiments.contest import Contest, beyond, is_extensible, name_of, settings
from memory_mosaics.experiments.figures.arena import best_anchor, best_transformer, difference, verdict
from memory_mosaics.experiments.grid import is_at_edge
from memory_mosaics.runtime import RuntimeConfig


def contest(suite, **changes):
    task = next(iter(suites.load_suite(str(suite))[0].values()))
    out, runtime = suite.parent / "out", RuntimeConfig(device="cpu")
    return Contest(out=out, task=replace(task, **changes), contestants=["transformer"], seeds=2, runtime=runtime)


def end(contest, run, status="finished", score=0.5):
    """Write an outcome without training."""
    folder = contest._grid([run]).folder(run)
    folder.mkdir(parents=True)
    found = {"valid_loss": 1 - score, "valid_score": score, "parameters": 9, "seconds": 1.0, "hardware": "CPU"}
    found |= {
        "parameters_without_embeddings": 5,
        "tests": [{"accuracy": score}] * 2,
        "curve": [[1, score]],
        "reason": "the loss is nan",
    }
    (folder / "outcome.json").write_text(json.dumps({"status": status} | run | found))


def test_a_best_value_at_the_edge_is_searched_further():
    assert beyond([0.001, 0.003, 0.01], 0.003) is None
    assert beyond([0.001, 0.003, 0.01], 0.01) == pytest.approx(0.0333)
    assert beyond([0.001, 0.003, 0.01], 0.001) == pytest.approx(0.000333)
    assert repr(beyond([100, 200], 200)) == "400"
    assert is_extensible("learning_rate", [0.001, 0.003])
    assert not is_extensible("init", ["default", "authors"])
    assert beyond([0.0, 0.1], 0.1) == pytest.approx(0.2)
    assert beyond([0.0, 0.1], 0.0) is None
    assert not is_extensible("dropout", [0.1])
    assert [is_at_edge(value, [0.0, 0.1, 0.2]) for value in (0.0, 0.1, 0.2)] == [False, False, True]
    assert not is_at_edge("a", ["a", "b"])


def test_seeds_are_trained_as_soon_as_the_search_of_their_contestant_has_ended(suite):
    one = replace(contest(suite), contestants=["transformer", "llama"])
    for run in one._search_runs("transformer"):
        assert one.report_grid.runs == []
        end(one, run, score=0.999)
    assert {run["contestant"] for run in one.report_grid.runs} == {"transformer"}


def test_values_beyond_the_edge_that_no_model_can_have_are_left_out(suite):
    one = contest(suite, search={"dropout": [0.1, 0.5]})
    for run in one._search_runs("transformer"):
        end(one, run, score=run["dropout"])
    assert [run["dropout"] for run in one._search_runs("transformer")] == [0.1, 0.5]
    assert one.results()["mixed"]["contestants"]["transformer"]["at_edge"] == ["dropout"]


@pytest.mark.parametrize("best", [1, 4])
def test_all_have_the_same_heads(suite, best):
    one = contest(suite, search={"heads": [1, 4], "learning_rate": [0.001, 0.003, 0.01]})
    for run in one._search_runs("transformer"):
        end(one, run, score=0.5 + 0.1 * (run["heads"] == best) + 0.1 * (run["learning_rate"] == 0.003))
    assert len(one._search_runs("transformer")) == 6
    assert one.chosen("transformer") == {"heads": best, "learning_rate": 0.003}


def test_seeds_that_failed_are_counted(suite):
    one = contest(suite)
    for run in one._search_runs("transformer"):
        end(one, run, status="fail")
    record = one.results()["mixed"]["contestants"]["transformer"]
    assert {run["status"] for run in record["searched"]} == {"fail"}
    assert arena._cell(record, 2) == record["cell"] == "failed"
    one = replace(one, out=suite.parent / "other")
    for run in one._search_runs("transformer"):
        end(one, run, score=0.999)
    for run, status in zip(one.report_grid.runs, ("finished", "fail"), strict=True):
        end(one, run, status=status)
    record = one.results()["mixed"]["contestants"]["transformer"]
    assert (arena._cell(record, 2), record["cell"]) == ("0.500, 1 failed", "0.500 (1/2)")
    shutil.rmtree(one.out / "trials" / name_of(one.report_grid.runs[0]))
    record = one.results()["mixed"]["contestants"]["transformer"]
    assert arena._cell(record, 2) == record["cell"] == "-", "the other seed may still succeed"


@pytest.mark.parametrize("tests", [[0.5], [{"accuracy": "high"}] * 2, [{}] * 2, "none", [{"accuracy": 0.5}]])
def test_an_outcome_with_damaged_tests_is_named(suite, tests):
    one = contest(suite)
    for run in one._search_runs("transformer"):
        end(one, run, score=0.999)
    run = one.report_grid.runs[0]
    end(one, run)
    file = one._grid([run]).folder(run) / "outcome.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"tests": tests}))
    with pytest.raises(UserError, match=r"outcome\.json is damaged: its tests are"):
        one.results()


def test_names_of_runs_tell_the_fields_apart():
    first = settings("a", {"learning_rate": 0.01, "weight_decay": 0.1}, 0)
    second = settings("a", {"weight_decay": 0.01, "learning_rate": 0.1}, 0)
    assert name_of(first) != name_of(second)
    assert name_of(first) == name_of(dict(reversed(first.items())))


def test_a_verdict_needs_a_difference_beyond_its_interval_and_all_seeds():
    def record(score, within, failed=0, seeds=5, valid=None):
        valid = score if valid is None else valid
        numbers = {"score": score, "within": within, "failed": failed, "seeds": seeds}
        return numbers | {"valid_score": valid, "reached": 0}

    known = {"transformer": record(0.5, 0.1), "llama": record(0.6, 0.05), "a": record(0.7, 0.2), "b": record(0.7, 0.05)}
    known |= {"transformer-rotary": record(0.55, 0.1), "transformer-alibi": {"unreadable": True}}
    known |= {"c": record(0.3, 0.1), "d": record(0.665, 0.05), "e": record(0.7, 0.05, failed=1)}
    known |= {"f": record(0.7, 0.05, seeds=4), "g": {"unreadable": True}}
    task = {"higher_is_better": True, "metric": "accuracy", "examples": 1_000_000, "seeds": 5, "contestants": known}
    assert best_transformer(task) == "llama"
    failed = task | {"contestants": known | {"transformer-alibi": record(0.9, 0.1, failed=1)}}
    assert best_transformer(failed) == "llama", "of those whose seeds all ended"
    assert verdict(failed, "b") == 0, "one transformer is not known"
    assert best_anchor(task | {"anchors": {"guess": 0.9, "a": 0.1, "b": 0.2, "ceiling: c": 1.0}}) == "b"
    assert best_anchor(task | {"anchors": {"guess": 0.9}}) is None
    assert [verdict(task, name) for name in "abcdefg"] == [0, 1, -1, 0, 0, 0, 0]
    assert verdict(task, "llama") == 0
    assert verdict(task | {"higher_is_better": False}, "c") == 1, "lower than that of the lowest transformer"
    assert verdict(task | {"examples": 30}, "b") == 0, "thirty examples do not tell 0.6 from 0.7"
    assert verdict(task | {"contestants": {name: known[name] for name in ("llama", "b")}}, "b") == 0, (
        "three are missing"
    )
    assert verdict(task | {"contestants": known | {"b": known["b"] | {"reached": 5}}}, "b") == 1
    both = {name: known[name] | {"reached": 5} for name in ("llama", "b")}
    assert verdict(task | {"contestants": known | both}, "b") == 0, "both stopped when they were good enough"
    by_validation = known | {"transformer": record(0.5, 0.1, valid=0.8)}
    assert best_transformer(task | {"contestants": by_validation}) == "transformer"


def test_a_difference_is_that_of_the_same_seeds():
    scores = {"one": [1.0, 2.0, 3.0], "other": [0.5, 1.5, 2.6]}
    one, other = ({"scores": each, "score": sum(each) / 3, "within": 2.0} for each in scores.values())
    mean, within = difference(*(record | {"seeds": 3, "failed": 0} for record in (one, other)))
    assert (mean, within) == (pytest.approx(1.4 / 3), pytest.approx(4.303 / 30))
    apart = difference(one | {"seeds": 3, "failed": 0}, other | {"seeds": 2, "failed": 1})
    assert apart == (pytest.approx(1.4 / 3), pytest.approx(8**0.5)), "which seed failed is not known"


@pytest.mark.parametrize("name", suites.load_suite("tiny")[0])
def test_every_task_of_the_tiny_suite_trains_and_is_tested(name, tmp_path):
    """Two steps of each: its loss, its validation and its tests are computed."""
    task = suites.load_suite("tiny")[0][name]
    task = replace(task, training=replace(task.training, steps=2, batch=4, warm_up=0, evaluate_every=1))
    runtime = RuntimeConfig(device="cpu", samples=0)
    contest = Contest(out=tmp_path, task=task, contestants=["memory-mosaic"], seeds=1, runtime=runtime)
    contest.check()
    contest.prepare()
    outcome = contest.train(settings("memory-mosaic", task.combinations()[0], 1), tmp_path / "run")
    assert outcome is not None
    tests = task.data.open(contest.data_folder).test_sets()
    assert len(outcome["tests"]) == len(tests)
    assert len(outcome["curve"]) == 2
    assert all("guess" in test.anchors() for test in tests)
