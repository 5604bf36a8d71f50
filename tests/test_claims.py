"""Every headline sentence of docs/claims.md stands where it says, with numbers that the committed results hold."""

import json
import operator
import re
from pathlib import Path
from statistics import fmean

import pytest

ROOT = Path(__file__).parents[1]
EVIDENCE = re.compile(r"`([\d.,]+(?: %| million)?) = ([^`:]+\.json): ([^`]+)`")
REDUCED = {"max": max, "min": min, "mean": fmean, "sum": sum, "count": len}


def claims():
    """The rows of the table: sentence, page, evidence, seeds, baselines, anchors."""
    lines = (ROOT / "docs" / "claims.md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    return [row for row in rows if row[0] != "sentence"]


def follow(found, path):
    """The value at `a.b[key=value, ...].c[0]`; where several records have those values, the list of theirs."""
    for name, chosen in re.findall(r"([^.\[\]]+)|\[([^\]]*)\]", path):
        if name:
            found = [one[name] for one in found] if isinstance(found, list) else found[name]
        elif chosen.isdigit():
            found = found[int(chosen)]
        else:
            wanted = [pair.split("=") for pair in chosen.split(", ")]
            found = [one for one in found if all(json.dumps(one[key]).strip('"') == value for key, value in wanted)]
            found = found[0] if len(found) == 1 else found
    return found


def measured(file, path):
    """A number of a results file, or the max, min, mean, sum, count, difference or ratio of some."""
    results = json.loads((ROOT / file).read_text())
    for sign, operation in (" - ", operator.sub), (" / ", operator.truediv):
        if sign in path:
            return operation(*(follow(results, part) for part in path.split(sign)))
    word, _, rest = path.partition(" ")
    return REDUCED[word](follow(results, rest)) if word in REDUCED else follow(results, path)


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
    found = EVIDENCE.findall(evidence)
    assert found
    for value, file, path in found:
        assert printed(measured(file, path), value) == value, f"{file}: {path}"
    numbers = {value.partition(" ")[0] for value, _, _ in found}
    assert {*re.findall(r"\d+\.\d+", sentence)} <= numbers, "every number of the sentence has its evidence"


def test_there_are_claims():
    assert len(claims()) >= 10


def test_a_wrong_number_is_found():
    path = "best[architecture=memory-mosaic, environments=100, in_distribution=false].accuracy"
    assert printed(measured("experiments/regbench/results.json", path), "0.923") == "0.923"
    assert printed(0.2812, "28 %") == "28 %"
    assert printed(0.2812, "28.0 %") == "28.1 %"
    assert printed(460300.0, "460,300") == "460,300"
