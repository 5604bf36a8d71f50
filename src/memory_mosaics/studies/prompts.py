"""How several models go on from the same prompts, side by side, for a person to judge: tables 3 and 4 of the paper."""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import results as files
from memory_mosaics.files import written_whole
from memory_mosaics.studies.generate import Wish, Writer, a_compiler
from memory_mosaics.studies.prompts_page import BY_RULE, write_page
from memory_mosaics.text.prompts import Prompt, ours, read
from memory_mosaics.trained import Trained, named, one_by_one
from memory_mosaics.training.parallel import find_device


def run(
    runs: list[str],
    *,
    prompts: Path | None = None,
    beams: int = 2,
    length: int = 60,
    compile: bool = False,
    device: str = "auto",
    out: Path = Path("runs/prompts"),
) -> dict[str, Any]:
    """Write how trained models go on from the same prompts, side by side, with a place for your verdicts.

    The prompts are 24 of this library's own, unless you name others: 9 about facts, 9 that ask to reason, 6 to stay
    consistent. Where a rule can tell, it says how a text looks; that is a first look, and no verdict.

    Args:
        runs: folders of training runs, or checkpoint folders
        prompts: a file with one prompt a line, or JSON lines with "prompt", "group", "ability" and "rule"
        beams: beginnings that the search for the most probable text keeps in mind; 1 takes the best token each time
        length: at most so many tokens
        compile: fuse each step with torch.compile: faster on CUDA, after a wait at the beginning
        device: cuda, mps or cpu; auto takes the first that is there
        out: folder for prompts.html, prompts.md and results.json
    """
    wish = Wish(length=length, beams=beams, compiled=compile)
    asked = ours() if prompts is None else read(prompts)
    place, models = torch.device(find_device(device)), named(runs)
    for trained in one_by_one(models):
        for each in asked:
            Writer(trained, wish).encode(each.prompt)  # one that is too long is named before anything is written
    files.prepare(out)
    start = time.perf_counter()
    results = {
        "study": "prompts",
        "prompts": [each.plain() for each in asked],
        "models": {},
        "beams": beams,
        "length": length,
        "rules": "a first look by rule at how each text begins, not a verdict: true looks right, false looks wrong",
    }
    for trained in one_by_one(models, device=place):
        results["models"][trained.name] = continuations(trained, asked, wish)
        print(f"{trained.name}: {len(asked)} texts, by rule {_score(results['models'][trained.name])}")
    results["id"] = _identity(results)
    results["seconds"] = round(time.perf_counter() - start, 1)
    results |= files.surroundings(place)
    files.write(out / "results.json", results)
    with written_whole(out / "prompts.md") as aside:
        aside.write_text(markdown(results), encoding="utf-8")
    page = write_page(results, out / "prompts.html")
    print(f"To judge in a browser: {page}. On paper: {out / 'prompts.md'}.")
    return results


def continuations(trained: Trained, asked: Sequence[Prompt], wish: Wish) -> dict[str, Any]:
    """What one model writes, and what the rules say to it."""
    with a_compiler():
        told = [record["text"] for record in Writer(trained, wish).together([each.prompt for each in asked])]
    looks = [each.rule.judge(text) if each.rule else None for each, text in zip(asked, told, strict=True)]
    return {"checkpoint": str(trained.folder), "texts": told, "by_rule": looks}


def markdown(results: dict[str, Any]) -> str:
    """The same as the page, with boxes to tick."""
    models = results["models"]
    lines = ["# How models go on from the same prompts", "", _how(results), ""]
    lines += ["| model | by rule |", "|---|---|"]
    lines += [f"| {_cell(name)} | {_score(found)} |" for name, found in models.items()]
    for number, prompt in enumerate(results["prompts"]):
        if prompt.get("group") != (results["prompts"][number - 1].get("group") if number else None):
            lines += ["", f"## {prompt.get('group', 'others').capitalize()}"]
        title = f"{number + 1}. {prompt['ability']}" if "ability" in prompt else f"{number + 1}."
        quoted = prompt["prompt"].replace("\n", "\n> ")
        lines += ["", f"### {title}", "", f"> {quoted} ...", ""]
        lines += ["| model | goes on | by rule | right | partly | wrong |", "|---|---|---|---|---|---|"]
        for name, found in models.items():
            look = BY_RULE[found["by_rule"][number]]
            lines.append(f"| {_cell(name)} | {_cell(found['texts'][number])} | {look} | ☐ | ☐ | ☐ |")
    return "\n".join(lines) + "\n"


def _how(results: dict[str, Any]) -> str:
    return (
        f'Beam search of width {results["beams"]}, at most {results["length"]} tokens. "By rule" is a first look at '
        "the words with which a text begins, where a rule can tell; it is no verdict. Yours go into the boxes."
    )


def _score(found: dict[str, Any]) -> str:
    counted = [f"{found['by_rule'].count(look)} {said}" for look, said in BY_RULE.items() if look is not None]
    return f"{', '.join(counted)}, {found['by_rule'].count(None)} not told"


def _cell(text: str) -> str:
    """One line, and safe within a table."""
    flat = " / ".join(part.strip() for part in text.splitlines() if part.strip())
    for mark in "\\|`*_<>":
        flat = flat.replace(mark, "\\" + mark)
    return flat


def _identity(results: dict[str, Any]) -> str:
    """Names these texts, so that verdicts on others are not mixed with theirs."""
    said = [results["prompts"], {name: found["texts"] for name, found in results["models"].items()}]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
