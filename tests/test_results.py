"""Into a log a long computation says a line now and then, and a short one nothing."""

import io
import sys

from memory_mosaics.results import progress_bar


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
