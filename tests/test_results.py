"""Confidence intervals, and progress bars: in a log file a line per minute, none for a short computation."""

import io
import sys

import pytest

from memory_mosaics import results
from memory_mosaics.results import mean_and_interval, progress_bar


def test_the_commit_of_code_without_a_repository_is_what_the_environment_says(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "__file__", str(tmp_path / "results.py"))
    monkeypatch.delenv("MEMORY_MOSAICS_COMMIT", raising=False)
    assert results.commit.__wrapped__() is None
    monkeypatch.setenv("MEMORY_MOSAICS_COMMIT", "0123abc")
    assert results.commit.__wrapped__() == "0123abc"


@pytest.mark.parametrize(("runs", "student"), [(2, 12.706), (16, 2.131), (17, 2.120), (31, 2.042), (61, 2.000)])
def test_intervals_are_those_of_student(runs, student):
    values = [0.0, 1.0] + [0.5] * (runs - 2)
    mean, within = mean_and_interval(values)
    assert mean == 0.5
    assert within == pytest.approx(student * (0.5 / (runs - 1) / runs) ** 0.5, abs=1e-3)


def test_a_log_has_whole_lines_and_few(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    with progress_bar("long", 12, "text") as bar:
        for _ in range(12):
            now[0] += 16  # seconds
            bar.update(1)
    lines = log.getvalue().splitlines()
    assert 3 <= len(lines) <= 4, "one for each minute of three"
    assert all(line.startswith("long: ") for line in lines)
    assert "\r" not in log.getvalue()
    assert "12/12" in lines[-1]


def test_what_is_short_leaves_nothing_in_a_log(monkeypatch):
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with progress_bar("short", 2, "text") as bar:
        bar.update(2)
    assert log.getvalue() == ""


def test_a_terminal_has_a_bar_at_once(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("short", 2, "text") as bar:
        bar.update(2)
    assert terminal.getvalue().startswith("\rshort:   0%")
