import json
from importlib.util import find_spec

import pytest

from memory_mosaics.apps.story_world import story
from memory_mosaics.cli import main
from memory_mosaics.experiments import lm_eval

ITEMS = [json.loads(line) for line in (lm_eval.TASK_FOLDERS[0] / "story_memory.jsonl").read_text().splitlines()]
INSTALLED = find_spec("lm_eval") is not None
needs_it = pytest.mark.skipif(not INSTALLED, reason="lm-evaluation-harness is not installed")


def test_one_line_names_what_to_install(mosaic, monkeypatch, capsys):
    monkeypatch.setattr(lm_eval, "find_spec", lambda _: None)
    assert main(["lm-eval", str(mosaic), "--tasks", "story_memory"]) == 2
    output = capsys.readouterr().err
    assert output == "mosaics: this needs lm-evaluation-harness: pip install 'memory-mosaics[lm-eval]'\n"


def test_our_task_has_known_answers():
    assert len(ITEMS) >= 40
    assert len({item["prefix"] for item in ITEMS}) == len(ITEMS)
    assert {item["answer"] for item in ITEMS} == {0, 1, 2, 3}
    for item in ITEMS:
        assert len(set(item["choices"])) == 4
        assert (item["prefix"], item["choices"][item["answer"]]) in story(item["seed"], item["story"]).probes


def test_the_table():
    found = {"items": {"t": 64}, "results": {"t": {"acc": 0.25, "acc_stderr": 0.05, "perplexity": 12.0}}}
    lines = lm_eval.table(found).splitlines()
    assert lines[1].split() == ["t", "64", "acc", "0.2500", "0.0500"]
    assert lines[2].split() == ["t", "64", "perplexity", "12.0000", "-"]


def test_numbers():
    metrics = {"alias": "t", "acc,none": 1, "acc_stderr,none": "N/A", "f1,strict": 0.5, "sample_len": 3}
    assert lm_eval._numbers(metrics) == {"acc": 1.0, "f1_strict": 0.5}


@needs_it
def test_it_measures_ours_and_yours(mosaic, tmp_path, capsys):
    (tmp_path / "own.jsonl").write_text('{"text": "Once there was a cat."}\n{"text": "Tom had a dog."}\n')
    task = {"task": "own", "dataset_path": "json", "output_type": "loglikelihood_rolling", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(tmp_path / "own.jsonl")}}, "doc_to_text": "",
            "doc_to_target": "{{text}}", "metric_list": [{"metric": "bits_per_byte"}]}  # fmt: skip
    (tmp_path / "own.yaml").write_text(json.dumps(task))
    out = tmp_path / "out.json"
    assert main(["lm-eval", str(mosaic), "--tasks", "story_memory", "own", "--include_path", str(tmp_path),
                 "--limit", "2", "--out", str(out)]) == 0  # fmt: skip
    found = json.loads(out.read_text())
    assert found["items"] == {"story_memory": 2, "own": 2}
    assert found["results"]["own"]["bits_per_byte"] > 0
    assert "story_memory" in capsys.readouterr().out


@needs_it
def test_a_task_that_nobody_knows(mosaic, capsys):
    assert main(["lm-eval", str(mosaic), "--tasks", "story_memori"]) == 2
    assert capsys.readouterr().err == "mosaics: there is no task 'story_memori'; near to it: story_memory\n"
