"""How several models go on from the same prompts, side by side, for a person to judge: tables 3 and 4 of the paper."""

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import results as files
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.experiments.measuring import keep
from memory_mosaics.experiments.prompts_page import BY_RULE, score, write_page
from memory_mosaics.experiments.writer import Wish, Writer, a_compiler
from memory_mosaics.files import atomic_write
from memory_mosaics.results import progress_bar
from memory_mosaics.runtime import find_device
from memory_mosaics.text.prompts import Prompt, ours, read


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
    consistent. Where a rule can tell, it says how a text looks; that is a first look, and no verdict. Ctrl-C keeps the
    models that are finished.

    Args:
        runs: folders of training runs, or checkpoint folders
        prompts: a file with one prompt a line, or JSON lines or an array with "prompt", "group", "ability" and "rule"
        beams: beginnings that the search for the most probable text keeps in mind; 1 takes the best token each time
        length: at most so many tokens
        compile: fuse each step with torch.compile: faster on CUDA, after a wait at the beginning
        device: cuda, mps or cpu; auto takes the first that is there
        out: folder for prompts.html, prompts.md and results.json
    """
    wish = Wish(length=length, beams=beams, compiled=compile)
    asked = ours() if prompts is None else read(prompts)
    place, models = torch.device(find_device(device)), unique_names(runs)
    for trained in iter_models(models):
        for each in asked:
            Writer(trained, wish).encode(each.prompt)  # one that is too long is named before anything is written
    start = time.perf_counter()
    results: dict[str, Any] = {"study": "prompts", "interrupted": True}
    results |= {"prompts": [each.plain() for each in asked], "models": {}, "beams": beams, "length": length}
    results["rules"] = "a first look by rule at how each text begins, not a verdict: true looks right, false wrong"
    results |= files.environment_info(place)

    def told() -> Iterator[dict[str, Any]]:
        for trained in iter_models(models, device=place):
            found = continuations(trained, asked, wish)
            print(f"{trained.name}: {len(asked)} texts, by rule {score(found['by_rule'])}")
            results["seconds"] = round(time.perf_counter() - start, 1)
            yield {trained.name: found}

    keep(told(), results, out, also=lambda: _pages(results, out), pages=("prompts.md", "prompts.html"))
    stopped = "Stopped: these are the models that were finished. " if results["interrupted"] else ""
    print(f"{stopped}To judge in a browser: {out / 'prompts.html'}. On paper: {out / 'prompts.md'}.")
    return results


def continuations(trained: LoadedModel, asked: Sequence[Prompt], wish: Wish) -> dict[str, Any]:
    """What one model writes, and what the rules say to it."""
    writer, told = Writer(trained, wish), []
    with a_compiler(), progress_bar(trained.name, len(asked), "text") as bar:
        for record in writer.together([each.prompt for each in asked]):
            told.append(record["text"])
            bar.update(1)
    if said := writer.ran_out():
        print(said, file=sys.stderr)
    looks = [each.rule.judge(text) if each.rule else None for each, text in zip(asked, told, strict=True)]
    return {"checkpoint": str(trained.folder), "texts": told, "by_rule": looks}


def _pages(results: dict[str, Any], out: Path) -> None:
    """The same texts for a browser and for paper."""
    results["id"] = _identity(results)
    with atomic_write(out / "prompts.md") as tmp:
        tmp.write_text(markdown(results), encoding="utf-8")
    write_page(results, out / "prompts.html")


def markdown(results: dict[str, Any]) -> str:
    """The same as the page, with boxes to tick."""
    models = results["models"]
    lines = ["# How models go on from the same prompts", "", _how(results), ""]
    lines += ["| model | by rule |", "|---|---|"]
    lines += [f"| {_line(name)} | {score(found['by_rule'])} |" for name, found in models.items()]
    for number, prompt in enumerate(results["prompts"]):
        if prompt.get("group") != (results["prompts"][number - 1].get("group") if number else None):
            lines += ["", f"## {_line(prompt.get('group', 'others').capitalize())}"]
        title = f"{number + 1}. {_line(prompt.get('ability', ''))}".rstrip()
        quoted = "\n> ".join(_safe(line) for line in prompt["prompt"].splitlines())
        lines += ["", f"### {title}", "", f"> {quoted} ...", ""]
        lines += ["| model | goes on | by rule | right | partly | wrong |", "|---|---|---|---|---|---|"]
        for name, found in models.items():
            look = BY_RULE[found["by_rule"][number]]
            lines.append(f"| {_line(name)} | {_line(found['texts'][number])} | {look} | ☐ | ☐ | ☐ |")
    return "\n".join(lines) + "\n"


def _how(results: dict[str, Any]) -> str:
    return (
        f'Beam search of width {results["beams"]}, at most {results["length"]} tokens. "By rule" is a first look at '
        "the words with which a text begins, where a rule can tell; it is no verdict. Yours go into the boxes."
    )


def _line(text: str) -> str:
    """One line, and safe within a table or a heading."""
    return _safe(" / ".join(part.strip() for part in text.splitlines() if part.strip()))


def _safe(text: str) -> str:
    """Text that Markdown shows as it is, with no mark or tag in it."""
    return re.sub(r"([\\|`*_<>\[\]#&~])", r"\\\1", text)


def _identity(results: dict[str, Any]) -> str:
    """Names these texts, so that verdicts on others are not mixed with theirs."""
    said = [results["prompts"], {name: found["texts"] for name, found in results["models"].items()}]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]
