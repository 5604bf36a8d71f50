"""experiments/arena/gpu.sh, with a program in place of Python that writes what the arena would."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "experiments" / "arena" / "gpu.sh"
ARENA = """#!/bin/sh
sleep 0.1 # longer than the clock of the file system
cd experiments/arena/outcomes
echo new > mine.jsonl; touch .mine.jsonl.lock .mine.jsonl.0.1@host.part
mkdir -p ../../../runs/arena-gpu/recall/trials/one
echo "RuntimeError: CUDA out of memory" > ../../../runs/arena-gpu/recall/trials/one/output.txt
echo "commit $MEMORY_MOSAICS_COMMIT"
exit STATUS
"""

pytestmark = pytest.mark.skipif(os.name == "nt" or not shutil.which("timeout"), reason="a script for Linux")


def files(archive: Path) -> list[str]:
    with tarfile.open(archive) as packed:
        return packed.getnames()


@pytest.mark.parametrize(("status", "code"), [(0, 0), (1, 1), (2, 2), (124, 0), (130, 0), (137, 0)])
def test_a_part_packs_its_own_tasks_and_returns_the_status(status, code, tmp_path):
    root, folder = tmp_path / "code", tmp_path / "folder"
    (root / "experiments/arena/outcomes").mkdir(parents=True)
    (root / "experiments/arena/outcomes/of_another_part.jsonl").write_text("old")
    script = shutil.copy(SCRIPT, root / "experiments/arena")
    (root / "carry").mkdir()
    (root / "carry/commit").write_text("0123abc\n")
    python = tmp_path / "python"
    python.write_text(ARENA.replace("STATUS", str(status)))
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python)}
    ended = subprocess.run(["bash", script, "60", "1", folder], env=environment, capture_output=True, text=True)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "commit 0123abc\n" in ended.stdout
    assert files(folder / "outcomes.tar.gz") == ["outcomes/mine.jsonl"]
    assert files(folder / "failures.tar.gz") == ["runs/arena-gpu/recall/trials/one/output.txt"]
    assert not [*folder.glob(".*")]
