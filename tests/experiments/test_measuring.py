"""What a study leaves in its folder: its own, of this run, and honest about how far it came."""

import json

import pytest

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import attention, evaluate
from memory_mosaics.experiments.measuring import keep


def found(folder):
    return json.loads((folder / "results.json").read_text())


def stopping(error: BaseException, *records: dict):
    yield from records
    raise error


def test_a_killed_study_does_not_look_finished(tmp_path):
    seen = []

    def records():
        for number in range(2):
            seen.append(found(tmp_path))
            yield {"number": number}

    results = {"study": "evaluate", "models": []}
    keep(records(), results, tmp_path)
    assert [(at["interrupted"], len(at["models"])) for at in seen] == [(True, 0), (True, 1)]
    assert found(tmp_path) == results == {"study": "evaluate", "models": [{"number": 0}, {"number": 1}],
                                          "interrupted": False}  # fmt: skip


def test_stopped_before_the_first_it_is_not_taken_for_the_one_before(tmp_path, capsys):
    keep([{"a": 1}], {"study": "evaluate", "models": []}, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        keep(stopping(KeyboardInterrupt()), {"study": "evaluate", "models": []}, tmp_path)
    assert found(tmp_path) == {"study": "evaluate", "models": [], "interrupted": True}
    assert main(["draw", str(tmp_path)]) == 2
    assert "stopped before its first model was measured" in capsys.readouterr().err


def test_an_error_before_the_first_loses_nothing(tmp_path):
    keep([{"a": 1}], {"study": "evaluate", "models": []}, tmp_path)
    for name in ("loss_by_position.png", "page.html", "mine.png"):
        (tmp_path / name).write_bytes(b"drawn")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(UserError):
        keep(stopping(UserError("no")), {"study": "evaluate", "models": []}, tmp_path, pages=("page.html",))
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    with pytest.raises(UserError):
        keep(stopping(UserError("no"), {"b": 2}), {"study": "evaluate", "models": []}, tmp_path, pages=("page.html",))
    assert found(tmp_path) == {"study": "evaluate", "models": [{"b": 2}], "interrupted": True}
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.png", "results.json"]


def test_old_figures_do_not_stay_beside_new_results(place, tmp_path):
    options = {"data": place / "corpus", "device": "cpu", "out": tmp_path}
    evaluate.run([str(place / "mosaic")], length=24, windows=3, by_position=True, **options)
    (tmp_path / "mine.png").write_bytes(b"of the user")
    evaluate.run([str(place / "mosaic")], length=24, windows=3, **options)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["mine.png", "results.json"]
    attention.run([str(place / "mosaic")], length=[24], sequences=3, **options)
    assert (tmp_path / "width.png").exists()
    attention.run([str(place / "alibi")], length=[24], sequences=3, **options)
    assert (tmp_path / "heads.png").exists()
    assert not (tmp_path / "width.png").exists()


def test_drawing_again_takes_away_what_is_not_drawn(place, tmp_path):
    attention.run([str(place / "alibi")], data=place / "corpus", length=[24], sequences=3, device="cpu", out=tmp_path)
    for name in ("width.png", "mine.png"):
        (tmp_path / name).write_bytes(b"old")
    assert main(["draw", str(tmp_path)]) == 0
    assert sorted(file.name for file in tmp_path.glob("*.png")) == ["attention.png", "heads.png", "mine.png"]
