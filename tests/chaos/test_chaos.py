"""The chaos test finds what is broken: children that misbehave, writers that do not write whole, readers of damage.

All in a process of its own, since a process that has computed on many threads must not fork.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from waiting import HANG

PROGRAM = """
import json, os, sys, time
from pathlib import Path
from random import Random
from chaos import children, crashes, fuzz
from chaos.workloads import Given
from memory_mosaics import cli

folder = Path(sys.argv[1])
command = cli.main
children.LARGEST = 300 << 20

def misbehave(words):
    match words:
        case ["well"]: return 0
        case ["raise"]: raise KeyError("a reader")
        case ["refuse"]: print("mosaics: no", file=sys.stderr); return 2
        case ["two lines"]: print("oh\\nmosaics: no", file=sys.stderr); return 2
        case ["escape"]: print("mosaics: \\x1b[2J", file=sys.stderr); return 2
        case ["three"]: return 3
        case ["die"]: os.abort()
        case ["hang"]: time.sleep(600)
        case ["grow"]: grown = b"x" * (400 << 20); time.sleep(600)
        case ["write"]:
            Path("a.part").write_text("whole")
            os.rename("a.part", "a")
            return 0
        case ["info", out]:
            print(len((Path(out) / "config.json").read_bytes()))
            return 0

cli.main = misbehave
words = "well raise refuse escape three die hang grow".split() + ["two lines"]
problems = {}
for word in words:
    children.LONGEST = 1.0 if word == "hang" else 120.0
    problems[word] = children.run([[word]], folder).problem()
children.LONGEST = 120.0

def crash(at, torn=False):
    for file in folder.glob("a*"):
        file.unlink()
    ended = children.run([["write"]], folder, crashes.CrashPoints(folder, at=at, torn=torn).install)
    return [ended.code, {file.name: file.read_text() for file in folder.glob("a*")}]

crashed = [crash(1), crash(2), crash(2, torn=True), crash(3), crash(4)]

given = Given(folder)
checkpoint = folder / fuzz.READERS["info"][0]
checkpoint.mkdir(parents=True)
(checkpoint / "config.json").write_text('{"model_type": "memory_mosaic"}')
(checkpoint / "weights.safetensors").write_text("12345")
given.outcomes["info"] = str(len('{"model_type": "memory_mosaic"}')) + "\\n"
def read(number):
    place = folder / f"{cli.main.__name__}-{number}"
    place.mkdir()
    return fuzz.run_case(given, f"info/{number}", Random(number), place)[0]
broken = [read(number) for number in range(25)]
cli.main = command
sound = [read(number) for number in range(2)]
print(json.dumps({"problems": problems, "crashed": crashed, "broken": broken, "sound": sound}))
"""


def test_what_is_broken_is_found(tmp_path):
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), str(tests.parent / "src"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    problems = found["problems"]
    assert problems.pop("well") is None
    assert problems.pop("refuse") is None
    values = ["traceback", "control", "exit code 3", "exit code -6", "hangs", "more than 300 MiB", "with 2 lines"]
    assert [word in problem for word, problem in zip(values, problems.values(), strict=True)] == [True] * 7, problems
    half = {"a.part": "wh"}
    assert found["crashed"] == [
        [137, {}],
        [137, {"a.part": ""}],
        [137, half],
        [137, {"a.part": "whole"}],
        [0, {"a": "whole"}],
    ]
    assert any("traceback" in (problem or "") for problem in found["broken"])
    assert found["sound"] == [None, None]
