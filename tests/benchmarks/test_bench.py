"""`mosaics bench`: sections that replace each other one by one, tables that hold the numbers, one line for mistakes."""

import json

import pytest

from benchmarks.conftest import CEILINGS
from memory_mosaics import results
from memory_mosaics.benchmarks import bench
from memory_mosaics.cli import COMMANDS, main
from memory_mosaics.experiments import figures


def results_in(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
def test_all_of_them(tiny, tmp_path, capsys):
    assert main(["bench", "--cpu", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    results = results_in(tmp_path)
    assert list(results) == ["study", "train", "decode", "kernels", "memory", "profile"]
    for name in bench.BENCHMARKS:
        section = results[name]
        assert section["ceilings"] == CEILINGS
        assert section["device"] == "cpu"
        assert "cores" in section["hardware"]
        assert {"torch", "python"} <= set(section["versions"])
        assert "commit" in section
        assert bench.table(name, section) in output
    for row in results["train"]["rows"]:
        assert f"{row['parameters']:,}" in output
        assert row["product_share"] > 0
    for file in ("speed.png", "memory.png", "profile.png"):
        assert (tmp_path / file).read_bytes().startswith(b"\x89PNG")
        (tmp_path / file).unlink()
    assert main(["draw", str(tmp_path)]) == 0
    for file in ("speed.png", "memory.png", "profile.png"):
        assert (tmp_path / file).exists()


def test_a_benchmark_replaces_its_own_section(tiny, tmp_path, monkeypatch):
    bench.run(["kernels", "decode"], tmp_path, cpu=True)
    before = results_in(tmp_path)
    assert list(before) == ["study", "decode", "kernels"]
    monkeypatch.setattr(bench, "measure_ceilings", lambda timer: CEILINGS | {"copy_gbs": 7.0})
    bench.run(["decode"], tmp_path, cpu=True)
    after = results_in(tmp_path)
    assert after["kernels"] == before["kernels"]
    assert after["decode"]["ceilings"]["copy_gbs"] == 7.0
    assert [file.name for file in sorted(tmp_path.iterdir())] == [
        "results.json",
        *(f"speed.{kind}" for kind in ("pdf", "png", "svg")),
    ]


@pytest.mark.usefixtures("undrawn")
def test_ctrl_c_keeps_what_is_finished(tiny, tmp_path, monkeypatch, capsys):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.BENCHMARKS, "kernels", bench.Benchmark(interrupt))
    assert main(["bench", "decode", "kernels", "memory", "--cpu", "--out", str(tmp_path)]) == 130
    assert list(results_in(tmp_path)) == ["study", "decode"]
    assert "Stopped; what was finished is kept." in capsys.readouterr().out
    monkeypatch.setattr(bench, "measure_ceilings", interrupt)
    assert main(["bench", "--cpu", "--out", str(tmp_path / "new")]) == 130
    assert "No results." in capsys.readouterr().out


@pytest.mark.usefixtures("undrawn")
def test_ctrl_c_keeps_the_rows_of_an_unfinished_benchmark(tiny, tmp_path, monkeypatch, capsys):
    whole = bench.BENCHMARKS["decode"]

    def measure(*given):
        yield next(whole.measure(*given))
        raise KeyboardInterrupt

    monkeypatch.setitem(bench.BENCHMARKS, "decode", bench.Benchmark(measure))
    command = ["bench", "decode", "--cpu", "--out", str(tmp_path)]
    assert main(command) == 130
    part = results_in(tmp_path)["decode"]
    assert part["interrupted"]
    assert len(part["rows"]) == 1
    monkeypatch.setitem(bench.BENCHMARKS, "decode", whole)
    assert main(command) == 0
    complete = results_in(tmp_path)["decode"]
    assert "interrupted" not in complete
    assert len(complete["rows"]) > 1
    monkeypatch.setitem(bench.BENCHMARKS, "decode", bench.Benchmark(measure))
    assert main(command) == 130
    assert results_in(tmp_path)["decode"] == complete


def test_without_matplotlib(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(figures, "available", lambda: False)
    bench.run(["decode"], tmp_path, cpu=True)
    assert "mosaics draw makes them" in capsys.readouterr().out
    assert [file.name for file in tmp_path.iterdir()] == ["results.json"]


def test_a_table_shows_what_was_measured():
    row = {"label": "A", "batch": 1, "tokens_per_second": 12345.6, "prefill_ms": 2.0, "token_ms": 0.5, "peak_gib": None}
    failed = {"label": "Another", "batch": 32, "tokens_per_second": None, "failed": "out of memory"}
    section = {"hardware": "a machine", "ceilings": CEILINGS, "rows": [row, failed]}
    about, *lines = bench.table("decode", section).splitlines()
    assert about == "decode: a machine; product 1 TFLOP/s (by decree), copy 100 GB/s"
    assert lines == [
        "batch  model    tokens/s  prefill ms  ms/token",
        "    1  A          12,346           2       0.5  -",
        "   32  Another         -           -         -  out of memory",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"study": "moons"}', "is of an experiment 'moons', not 'bench'; name another --out"),
        ("[1]", "is of an experiment None"),
        ("{", "results.json is damaged"),
    ],
)
def test_results_of_something_else_are_left_alone(content, message, tmp_path, capsys):
    (tmp_path / "results.json").write_text(content)
    assert main(["bench", "train", "--cpu", "--out", str(tmp_path)]) == 2
    output = capsys.readouterr().err
    assert message in output
    assert output.count("\n") == 1
    assert (tmp_path / "results.json").read_text() == content


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (None, False)),
        (["train", "memory"], (["train", "memory"], False)),
        (["train", "--cpu"], (["train"], True)),
        (["--cpu", "--benchmarks", "train"], (["train"], True)),
        (["--cpu"], (None, True)),
        (["--cpu", "false"], (None, False)),
    ],
)
def test_the_first_words_are_the_benchmarks(words, expected, monkeypatch):
    def spy(benchmarks: list[str] | None = None, *, cpu: bool = False) -> None:
        found.append((benchmarks, cpu))

    found = []
    monkeypatch.setitem(COMMANDS, "bench", spy)
    assert main(["bench", *words]) == 0
    assert found == [expected]


def test_the_commit_is_known_within_the_repository(monkeypatch):
    results.commit.cache_clear()
    known = results.commit()
    assert known is None or len(known.split()[0]) == 40

    def no_git(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(results.subprocess, "run", no_git)
    results.commit.cache_clear()
    assert results.commit() is None
    results.commit.cache_clear()


def test_nothing_drawn_is_reported(tmp_path, capsys):
    assert figures.draw({"study": "bench"}, tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "results.json").write_text('{"study": "bench"}')
    assert main(["draw", str(tmp_path)]) == 0
    assert "nothing to draw" in capsys.readouterr().out
