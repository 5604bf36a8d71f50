"""experiments/gpu.sh, with a program in place of Python that writes what the arena would."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "gpu.sh"
ARENA = """#!/bin/sh
sleep 0.1 # longer than the clock of the file system
cd experiments/ablation/outcomes
echo new > mine.jsonl; touch .mine.jsonl.lock .mine.jsonl.0.1@host.part
mkdir -p ../../../runs/ablation-gpu/recall/trials/one
echo "RuntimeError: CUDA out of memory" > ../../../runs/ablation-gpu/recall/trials/one/output.txt
echo "commit $MEMORY_MOSAICS_COMMIT, arguments $*"
exit STATUS
"""

pytestmark = pytest.mark.skipif(os.name == "nt" or not shutil.which("timeout"), reason="a script for Linux")


def files(archive: Path) -> list[str]:
    with tarfile.open(archive) as packed:
        return packed.getnames()


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1, 1), (2, 2), (124, 0), (130, 0), (137, 0)])
def test_a_part_packs_its_own_tasks_and_returns_the_status(status, code, tmp_path):
    root, folder = tmp_path / "code", tmp_path / "folder"
    (root / "experiments/ablation/outcomes").mkdir(parents=True)
    (root / "experiments/ablation/suite.yaml").touch()
    (root / "experiments/ablation/outcomes/of_another_part.jsonl").write_text("old")
    script = shutil.copy(SCRIPT, root / "experiments")
    (root / "carry").mkdir()
    (root / "carry/commit").write_text("0123abc\n")
    python = tmp_path / "python"
    python.write_text(ARENA.replace("STATUS", str(status)))
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python)}
    words = ["bash", script, "60", "1", folder, "ablation", "--tasks", "mine"]
    ended = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert ended.returncode == code, ended.stdout + ended.stderr
    given = "--outcomes experiments/ablation/outcomes --jobs 1 --suite experiments/ablation/suite.yaml --tasks mine"
    assert f"commit 0123abc, arguments -m memory_mosaics.cli arena --out runs/ablation-gpu {given}\n" in ended.stdout
    assert files(folder / "outcomes.tar.gz") == ["outcomes/mine.jsonl"]
    assert files(folder / "failures.tar.gz") == ["runs/ablation-gpu/recall/trials/one/output.txt"]
    assert not [*folder.glob(".*")]


def test_an_estimate_takes_no_outcomes_and_an_unknown_experiment_is_refused(tmp_path):
    (tmp_path / "experiments/arena").mkdir(parents=True)
    script, python = shutil.copy(SCRIPT, tmp_path / "experiments"), tmp_path / "python"
    python.write_text('#!/bin/sh\necho "arguments $*"\necho {} > runs/arena-gpu/estimate.json\n')
    python.chmod(0o755)
    words = ["bash", script, "60", "1", tmp_path / "folder"]
    options = {"env": os.environ | {"PYTHON": str(python)}, "capture_output": True, "text": True}
    ended = subprocess.run([*words, "arena", "--suite", "reduced", "--estimate"], **options)
    assert ended.returncode == 0
    assert "arguments -m memory_mosaics.cli arena --out runs/arena-gpu --suite reduced --estimate\n" in ended.stdout
    assert "./estimate.json" in files(tmp_path / "folder/report.tar.gz")
    ended = subprocess.run([*words, "arean"], **options)
    assert (ended.returncode, ended.stderr) == (2, "no experiment arean: there is no folder experiments/arean\n")
