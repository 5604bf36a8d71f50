"""Command `mosaics prompts`: continuations of the same prompts by several models, to judge (tables 3 and 4)."""

import hashlib
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import torch

from memory_mosaics import results as files
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.decoding import GenerationParams, TextGenerator, compiler_errors
from memory_mosaics.experiments.report import Page, collect_records, template
from memory_mosaics.files import write_text
from memory_mosaics.results import progress_bar
from memory_mosaics.runtime import find_device
from memory_mosaics.text.prompts import Prompt, ours, read

BY_RULE = {True: "looks right", False: "looks wrong", None: "not told"}
VERDICTS = ("right", "partly", "wrong")
TITLE = "How models go on from the same prompts"
ABOUT_RULES = (
    '"By rule" is a first look at the words with which a text begins, where a rule can tell; it does not understand '
    "them, and it is no verdict."
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

    The prompts are 24 of this library's own, unless you name others: 9 about facts, 9 that ask to reason, 6 to stay
    consistent. Where a rule can tell, it says how a text looks; that is a first look, and no verdict. Ctrl-C keeps the
    models that are finished.

    Args:
        runs: folders of training runs, or checkpoint folders
        prompts: a file with one prompt per line, or JSON lines or an array with "prompt", "group", "ability", "rule"
        beams: width of the beam search; 1 is greedy decoding
        length: maximum number of new tokens
        compile: compile each step with torch.compile: faster on CUDA, after some time for compilation
        device: cuda, mps or cpu; auto takes the first that is available
        out: folder for prompts.html, prompts.md and results.json
    """
    params = GenerationParams(length=length, beams=beams, compiled=compile)
    asked = ours() if prompts is None else read(prompts)
    torch_device, models = torch.device(find_device(device)), unique_names(runs)
    for trained in iter_models(models):
        for each in asked:
            TextGenerator(trained, params).encode(each.prompt)  # a prompt that is too long is an error before the start
    start = time.perf_counter()
    results: dict[str, Any] = {"study": "prompts", "interrupted": True}
    results |= {"prompts": [each.plain() for each in asked], "models": {}, "beams": beams, "length": length}
    results["rules"] = "a first look by rule at how each text begins, not a verdict: true looks right, false wrong"
    results |= files.environment_info(torch_device)

    def records() -> Iterator[dict[str, Any]]:
        for trained in iter_models(models, device=torch_device):
            record = continuations(trained, asked, params)
            print(f"{trained.name}: {len(asked)} texts, by rule {score(record['by_rule'])}")
            results["seconds"] = round(time.perf_counter() - start, 1)
            yield {trained.name: record}

    def write_pages() -> None:
        texts = [results["prompts"], {name: found["texts"] for name, found in results["models"].items()}]
        results["id"] = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]  # verdicts belong to these texts
        write_text(out / "prompts.md", markdown(results))
        html_page(results).write(out / "prompts.html")

    collect_records(records(), results, out, write_pages=write_pages, pages=("prompts.md", "prompts.html"))
    stopped = "Stopped: these are the models that were finished. " if results["interrupted"] else ""
    print(f"{stopped}To judge in a browser: {out / 'prompts.html'}. On paper: {out / 'prompts.md'}.")
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
    return f"{by_rule.count(True)} of {len(by_rule) - unknown} judged look right, {unknown} not told"


def _method(results: dict[str, Any]) -> str:
    return f"Beam search of width {results['beams']}, at most {results['length']} tokens. {ABOUT_RULES}"


def markdown(results: dict[str, Any]) -> str:
    """Return the texts as Markdown, with boxes to tick."""
    models = results["models"]
    lines = [f"# {TITLE}", "", f"{_method(results)} Your verdicts go into the boxes.", ""]
    lines += ["| model | by rule |", "|---|---|"]
    lines += [f"| {_one_line(name)} | {score(found['by_rule'])} |" for name, found in models.items()]
    group = None
    for number, prompt in enumerate(results["prompts"]):
        if prompt.get("group") != group:
            group = prompt.get("group")
            lines += ["", f"## {_one_line((group or 'others').capitalize())}"]
        title = f"{number + 1}. {_one_line(prompt.get('ability', ''))}".rstrip()
        quoted = "\n> ".join(_escape_markdown(line) for line in prompt["prompt"].splitlines())
        lines += ["", f"### {title}", "", f"> {quoted} ...", ""]
        lines += ["| model | goes on | by rule | right | partly | wrong |", "|---|---|---|---|---|---|"]
        for name, found in models.items():
            by_rule = BY_RULE[found["by_rule"][number]]
            lines.append(f"| {_one_line(name)} | {_one_line(found['texts'][number])} | {by_rule} | ☐ | ☐ | ☐ |")
    return "\n".join(lines) + "\n"


def _one_line(text: str) -> str:
    """Return Markdown for a cell of a table or a heading."""
    return _escape_markdown(" / ".join(part.strip() for part in text.splitlines() if part.strip()))


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\|`*_<>\[\]#&~])", r"\\\1", text)


def html_page(results: dict[str, Any]) -> Page:
    """Return the page on which a person judges the texts. The browser stores the verdicts and exports them as JSON."""
    page, models, group = Page(TITLE, styles=("page.css", "prompts.css")), results["models"], None
    page.text(f"{_method(results)} The verdict is yours: right, partly or wrong. A second click takes it back.")
    page.html(_counts(models))
    for number, prompt in enumerate(results["prompts"]):
        if prompt.get("group") not in (None, group):
            page.heading(prompt["group"].capitalize())
        group = prompt.get("group")
        texts = "".join(_text(number, at, name, found) for at, (name, found) in enumerate(models.items()))
        title = f"<h3>{number + 1}. {escape(prompt.get('ability', ''))}</h3>"
        quote = f"<blockquote>{escape(prompt['prompt'])} ...</blockquote>"
        page.html(f'<section class="prompt">{title}{quote}<div class="texts">{texts}</div></section>')
    shown = {"id": results["id"], "models": list(models), "prompts": [each["prompt"] for each in results["prompts"]]}
    data = json.dumps(shown).replace("<", "\\u003c")  # no text can end the script
    save = '<button type="button" id="export">Save verdicts as JSON</button><output id="state"></output>'
    page.html(f'<div class="bar">{save}</div><script type="application/json" id="report">{data}</script>')
    page.html(f"<script>\n{template('prompts.js')}</script>")
    return page


def _counts(models: dict[str, Any]) -> str:
    """Return a table: how many texts look right and wrong by rule, and the verdicts so far, which the script counts."""
    header = "".join(
        f"<th>{cell}</th>" for cell in ("model", "right", "wrong", "right of judged", "not told", *VERDICTS)
    )
    rows = ['<th></th><th colspan="4">by rule it looks</th><th colspan="3">your verdict</th>', header]
    for number, (name, found) in enumerate(models.items()):
        right, wrong, unknown = (found["by_rule"].count(judgment) for judgment in BY_RULE)
        share = f"{right / (right + wrong):.0%}" if right + wrong else ""
        cells = "".join(f"<td>{cell}</td>" for cell in (escape(name), right, wrong, share, unknown))
        rows.append(cells + "".join(f'<td id="count-{number}-{verdict}">0</td>' for verdict in VERDICTS))
    return f'<div class="wide"><table class="counts"><tr>{"</tr><tr>".join(rows)}</tr></table></div>'


def _text(prompt: int, model: int, name: str, found: dict[str, Any]) -> str:
    """Return one continuation with buttons for the verdict."""
    judgment, text = found["by_rule"][prompt], escape(found["texts"][prompt].strip())
    buttons = "".join(f'<button type="button" value="{verdict}" aria-pressed="false">{verdict}</button>'
                      for verdict in VERDICTS)  # fmt: skip
    return (
        f'<div class="text" data-prompt="{prompt}" data-model="{model}"><strong>{escape(name)}</strong>'
        f"<p>... {text}</p>"
        f'<span class="rule" data-judgment="{str(judgment).lower()}">by rule: {BY_RULE[judgment]}</span>'
        f'<div class="choices" role="group" aria-label="Your verdict on {escape(name)}">{buttons}</div></div>'
    )
