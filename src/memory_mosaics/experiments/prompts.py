"""Command `mosaics prompts`: continuations of the same prompts by several models, to judge (tables 3 and 4)."""

import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.decoding import GenerationParams, TextGenerator, compiler_errors
from memory_mosaics.experiments.report import TEMPLATES, collect_records, write_page
from memory_mosaics.results import environment_info, progress_bar
from memory_mosaics.runtime import find_device
from memory_mosaics.text.prompts import Prompt, default_prompts, read

BY_RULE = {True: "looks right", False: "looks wrong", None: "undecided"}
VERDICTS = ("right", "partly", "wrong")
ABOUT_RULES = (
    '"By rule" is a first impression of how a text begins, where a rule can tell; a rule does not understand the text, '
    "and this is no verdict."
)


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
    """Continue the same prompts with several trained models, side by side, on a page that records your verdicts.

    The prompts are 24 of this library's own, unless you name others: 9 test knowledge of facts, 9 reasoning, 6
    consistency. Where a rule can tell, it says whether a text looks right: a first impression, and no verdict. Ctrl-C
    keeps the models that are finished.

    Args:
        runs: folders of training runs, or checkpoint folders
        prompts: a file with one prompt per line, or JSON lines or an array with "prompt", "group", "ability", "rule"
        beams: width of the beam search; 1 is greedy decoding
        length: maximum number of new tokens
        compile: compile each step with torch.compile: faster on CUDA, after some time for compilation
        device: cuda, mps or cpu; auto takes the first that is available
        out: folder for prompts.html and results.json
    """
    params = GenerationParams(length=length, beams=beams, compiled=compile)
    asked = default_prompts() if prompts is None else read(prompts)
    torch_device, models = torch.device(find_device(device)), unique_names(runs)
    for trained in iter_models(models):
        for each in asked:
            TextGenerator(trained, params).encode(each.prompt)  # too long a prompt is an error before the start
    start = time.perf_counter()
    results: dict[str, Any] = {"study": "prompts", "interrupted": True}
    results |= {"prompts": [each.plain() for each in asked], "models": {}, "beams": beams, "length": length}
    results["rules"] = "a first look by rule at how each text begins, not a verdict: true looks right, false wrong"
    results |= environment_info(torch_device)

    def records() -> Iterator[dict[str, Any]]:
        for trained in iter_models(models, device=torch_device):
            record = continuations(trained, asked, params)
            print(f"{trained.name}: {len(asked)} texts, by rule {score(record['by_rule'])}")
            results["seconds"] = round(time.perf_counter() - start, 1)
            yield {trained.name: record}

    collect_records(records(), results, out, write_page=lambda: write_judging_page(results, out), page="prompts.html")
    stopped = "Stopped: these are the models that were finished. " if results["interrupted"] else ""
    print(f"{stopped}To judge in a browser: {out / 'prompts.html'}.")
    return results


def continuations(trained: LoadedModel, asked: Sequence[Prompt], params: GenerationParams) -> dict[str, Any]:
    """Continue all prompts with one model, and apply their rules."""
    generator, texts = TextGenerator(trained, params), []
    with compiler_errors(), progress_bar(trained.name, len(asked), "text") as bar:
        for record in generator.generate([each.prompt for each in asked]):
            texts.append(record["text"])
            bar.update(1)
    if warning := generator.truncation_message():
        print(warning, file=sys.stderr)
    by_rule = [each.rule.judge(text) if each.rule else None for each, text in zip(asked, texts, strict=True)]
    return {"checkpoint": str(trained.folder), "texts": texts, "by_rule": by_rule}


def score(by_rule: Sequence[bool | None]) -> str:
    """Describe how many texts look right, of those that a rule could judge."""
    unknown = by_rule.count(None)
    return f"{by_rule.count(True)} of {len(by_rule) - unknown} judged look right, {unknown} undecided"


def write_judging_page(results: dict[str, Any], out: Path) -> None:
    """Write the page on which a person judges the texts.

    The browser stores the verdicts under results["id"], which depends on all texts, and exports them as JSON.
    """
    texts = [results["prompts"], {name: found["texts"] for name, found in results["models"].items()}]
    results["id"] = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]
    method = f"Beam search of width {results['beams']}, at most {results['length']} tokens. {ABOUT_RULES}"
    values = {"title": "How models continue the same prompts", "method": method, "verdicts": VERDICTS}
    prompts = [each["prompt"] for each in results["prompts"]]
    shown = {"id": results["id"], "models": list(results["models"]), "prompts": prompts}
    page = TEMPLATES / "prompts.html"
    write_page(out / "prompts.html", page, results=results, by_rule=BY_RULE, shown=shown, **values)
