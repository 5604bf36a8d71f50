"""Every headline sentence of docs/claims.md stands where it says, with numbers that the committed results hold."""

import json
import operator
import re
from pathlib import Path
from statistics import fmean

import pytest

pytestmark = pytest.mark.results
ROOT = Path(__file__).parents[1]
EVIDENCE = re.compile(r"`(?:([≥≤]) )?([\d.,]+(?: %| million)?) = ([^`]+\.json: [^`]+)`")
GIVEN = re.compile(r"`given: ([^`]+)`")  # numbers of a sentence that name a setting and are no result
TESTS = re.compile(r"`test: ([^`]+)::(\w+)`")
REDUCED = {"max": max, "min": min, "mean": fmean, "sum": sum, "count": len}


def claims():
    """The rows of the table: sentence, page, evidence, seeds, baselines, anchors."""
    lines = (ROOT / "docs" / "claims.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] != "sentence"]


def follow(found, path):
    """The value at `a.b[key=value, ...].c[0]`; of a list, `.c` and `.0` are taken of each of its records."""
    for name, chosen in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", path):
        if name:
            found = (
                [one[int(name) if isinstance(one, list) else name] for one in found]
                if isinstance(found, list)
                else found[name]
            )
        elif chosen.isdigit():
            found = found[int(chosen)]
        else:
            wanted = [pair.split("=") for pair in re.split(r", (?=\w+=)", chosen)]
            found = [one for one in found if all(json.dumps(one[key]).strip('"') == value for key, value in wanted)]
            found = found[0] if len(found) == 1 else found
    return found


def measured(path):
    """A number `FILE: PATH`, the max, min, mean, sum or count of some, or the difference or ratio of two."""
    for sign, operation in (" - ", operator.sub), (" / ", operator.truediv):
        if sign in path:
            first, second = path.split(sign)
            return operation(measured(first), measured(second if ": " in second else f"{file_of(first)}: {second}"))
    word, _, rest = path.partition(": ")[2].partition(" ")
    results = json.loads((ROOT / file_of(path)).read_text())
    return REDUCED[word](follow(results, rest)) if word in REDUCED else follow(results, path.partition(": ")[2])


def file_of(path):
    return path.partition(": ")[0]


def printed(value, like):
    """With as many digits, and in per cent or millions, as the claim has it."""
    number, space, unit = like.partition(" ")
    digits = len(number.partition(".")[2])
    return f"{value * {'%': 100, 'million': 1e-6}.get(unit, 1):,.{digits}f}{space}{unit}"


@pytest.mark.parametrize("row", claims(), ids=lambda row: row[0][:40])
def test_a_claim_stands_on_its_page_with_the_numbers_measured(row):
    sentence, page, evidence, seeds, baselines, anchors = row
    assert all((seeds, baselines, anchors)), "say which, or none"
    (target,) = re.findall(r"\]\(([^)]+)\)", page)
    text = " ".join((ROOT / "docs" / target).read_text().replace("**", "").split())
    assert sentence in text
    found, tests = EVIDENCE.findall(evidence), TESTS.findall(evidence)
    assert found or tests
    for bound, value, path in found:
        number = measured(path)
        if bound:
            assert (number >= float(value)) if bound == "≥" else (number <= float(value)), path
        else:
            assert printed(number, value) == value, path
    for file, name in tests:
        assert f"def {name}(" in (ROOT / file).read_text(), name
    numbers = {value.partition(" ")[0] for _, value, _ in found}
    numbers |= {number for given in GIVEN.findall(evidence) for number in given.split(", ")}
    assert {*re.findall(r"\d[\d,]*(?:\.\d+)?(?<!,)", sentence)} <= numbers, "every number of the sentence has evidence"


def test_there_are_claims():
    assert len(claims()) >= 10


def test_a_wrong_number_is_found():
    path = "best[architecture=memory-mosaic, environments=100, in_distribution=false].accuracy"
    assert printed(measured(f"experiments/regbench/results.json: {path}"), "0.923") == "0.923"
    assert printed(0.2812, "28 %") == "28 %"
    assert printed(0.2812, "28.0 %") == "28.1 %"
    assert printed(460300.0, "460,300") == "460,300"


def test_the_search_in_sight_of_test_scores_is_in_the_log():
    log = " ".join((ROOT / "docs" / "LOG.md").read_text().split())
    assert "were chosen with these numbers in sight, not on the validation alone; no baseline had such a search" in log
