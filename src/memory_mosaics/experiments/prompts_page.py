"""The page on which a person judges continuations. It keeps the verdicts in the browser and hands them out as JSON."""

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from memory_mosaics.experiments.report import Page

BY_RULE = {True: "looks right", False: "looks wrong", None: "not told"}
VERDICTS = ("right", "partly", "wrong")

STYLE = """
body { max-width: 84rem; }
:root { --right: #1a7f37; --partly: #9a6700; --wrong: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --right: #4ac26b; --partly: #d4a72c; --wrong: #ff7b72; } }
.counts th[colspan] { text-align: center; }
.counts :is(th, td):nth-child(6) { border-left: 1px solid var(--line); }
@media (max-width: 40rem) { .counts { font-size: .75rem; } .counts :is(th, td) { padding: .35rem .2rem; }
  .counts td:first-child { white-space: normal; overflow-wrap: anywhere; } }
.prompt { margin: 1.8rem 0 2.4rem; }
.prompt h3 { font-size: .95rem; font-weight: 600; opacity: .75; margin: 0 0 .3rem; }
.prompt blockquote { margin: 0 0 .8rem; padding-left: .9rem; border-left: 3px solid var(--accent); max-width: 60rem;
  overflow-wrap: anywhere; white-space: pre-line; }
.texts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(17rem, 100%), 1fr)); gap: .8rem; }
.text { display: flex; flex-direction: column; gap: .6rem; background: var(--soft); border-radius: 6px;
  padding: .8rem 1rem; border-left: 4px solid transparent; }
.text[data-said=right] { border-color: var(--right); }
.text[data-said=partly] { border-color: var(--partly); }
.text[data-said=wrong] { border-color: var(--wrong); }
.text strong { color: var(--accent); overflow-wrap: anywhere; }
.text p { margin: 0; flex: 1; white-space: pre-line; overflow-wrap: anywhere; }
.rule { font-size: .8rem; opacity: .75; }
.rule::before { content: ""; display: inline-block; width: .6em; height: .6em; margin-right: .4em; border-radius: 50%;
  border: 1.5px solid currentColor; }
.rule[data-look=true]::before { background: var(--right); }
.rule[data-look=false]::before { background: var(--wrong); }
.choices { display: flex; gap: .4rem; }
button { font: inherit; font-size: .88rem; padding: .35rem .8rem; min-height: 2.2rem; border: 1px solid var(--line);
  border-radius: 6px; color: var(--ink); background: var(--paper); cursor: pointer; }
button:hover { border-color: var(--ink); }
button:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.choices button { flex: 1; }
button[aria-pressed=true] { color: #fff; font-weight: 600; }
@media (prefers-color-scheme: dark) { button[aria-pressed=true] { color: #17181a; } }
button[value=right][aria-pressed=true] { background: var(--right); border-color: var(--right); }
button[value=partly][aria-pressed=true] { background: var(--partly); border-color: var(--partly); }
button[value=wrong][aria-pressed=true] { background: var(--wrong); border-color: var(--wrong); }
.bar { position: sticky; bottom: 0; display: flex; flex-wrap: wrap; gap: .6rem 1rem; align-items: center;
  padding: .7rem 0; margin-top: 2rem; background: var(--paper); border-top: 1px solid var(--line); }
.bar output { font-size: .9rem; opacity: .8; }
@media print { .bar { display: none; } }
"""

SCRIPT = """
"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const key = "mosaics-prompts-" + report.id, cells = [...document.querySelectorAll(".text")];
const state = document.getElementById("state");
let verdicts = {}, kept = true;
try { verdicts = JSON.parse(localStorage.getItem(key)) || {}; } catch (error) { kept = false; }

function place(cell) { return cell.dataset.prompt + "/" + cell.dataset.model; }

function show() {
  const counts = report.models.map(() => ({ right: 0, partly: 0, wrong: 0 }));
  for (const cell of cells) {
    const said = verdicts[place(cell)];
    if (said) { cell.dataset.said = said; counts[cell.dataset.model][said] += 1; } else { delete cell.dataset.said; }
    for (const button of cell.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.value === said));
  }
  counts.forEach((count, model) => {
    for (const said in count)
      document.getElementById("count-" + model + "-" + said).textContent = count[said];
  });
  state.textContent = Object.keys(verdicts).length + " of " + cells.length + " judged, " +
    (kept ? "kept in this browser" : "not kept: this browser stores nothing for this page");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".choices button");
  if (!button) return;
  const at = place(button.closest(".text"));
  if (verdicts[at] === button.value) delete verdicts[at]; else verdicts[at] = button.value;
  try { localStorage.setItem(key, JSON.stringify(verdicts)); kept = true; } catch (error) { kept = false; }
  show();
});

function judged() {
  return { report: report.id, verdicts: cells.filter((cell) => verdicts[place(cell)]).map((cell) => ({
    prompt: report.prompts[cell.dataset.prompt], model: report.models[cell.dataset.model],
    text: cell.querySelector("p").textContent, verdict: verdicts[place(cell)] })) };
}

document.getElementById("export").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(judged(), null, 2)], { type: "application/json" }));
  link.download = "verdicts.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
show();
"""


def score(looks: Sequence[bool | None]) -> str:
    """How many look right, of how many that a rule could tell about."""
    untold = looks.count(None)
    return f"{looks.count(True)} of {len(looks) - untold} judged look right, {untold} not told"


class JudgePage(Page):
    """A page with continuations to judge."""

    def __init__(self, title: str):
        super().__init__(title)
        self._parts.append(f"<style>{STYLE}</style>")

    def counts(self, models: dict[str, Any]) -> None:
        """What the rules say, and what the person has said so far."""
        heads = "".join(
            f"<th>{head}</th>" for head in ("model", "right", "wrong", "right of judged", "not told", *VERDICTS)
        )
        rows = []
        for number, (name, found) in enumerate(models.items()):
            right, wrong, untold = (found["by_rule"].count(look) for look in BY_RULE)
            share = f"{right / (right + wrong):.0%}" if right + wrong else ""
            looks = "".join(f"<td>{told}</td>" for told in (right, wrong, share, untold))
            said = "".join(f'<td id="count-{number}-{verdict}">0</td>' for verdict in VERDICTS)
            rows.append(f"<tr><td>{escape(name)}</td>{looks}{said}</tr>")
        over = '<tr><th></th><th colspan="4">by rule it looks</th><th colspan="3">your verdict</th></tr>'
        self._parts.append(
            f'<div class="wide"><table class="counts">{over}<tr>{heads}</tr>{"".join(rows)}</table></div>'
        )

    def prompt(self, number: int, prompt: dict[str, Any], models: dict[str, Any]) -> None:
        """One prompt, and under it how each model goes on."""
        title = f"{number + 1}. {prompt.get('ability', '')}"
        buttons = "".join(f'<button type="button" value="{said}" aria-pressed="false">{said}</button>'
                          for said in VERDICTS)  # fmt: skip
        cells = []
        for place, (name, found) in enumerate(models.items()):
            look = found["by_rule"][number]
            rule = f'<span class="rule" data-look="{str(look).lower()}">by rule: {BY_RULE[look]}</span>'
            group = f'role="group" aria-label="Your verdict on {escape(name)}"'
            cells.append(
                f'<div class="text" data-prompt="{number}" data-model="{place}"><strong>{escape(name)}</strong>'
                f"<p>... {escape(found['texts'][number].strip())}</p>{rule}"
                f'<div class="choices" {group}>{buttons}</div></div>'
            )
        self._parts.append(
            f'<section class="prompt"><h3>{escape(title)}</h3><blockquote>{escape(prompt["prompt"])} ...</blockquote>'
            f'<div class="texts">{"".join(cells)}</div></section>'
        )

    def verdicts(self, results: dict[str, Any]) -> None:
        """The bar at the bottom, and what makes the buttons work."""
        asked = [prompt["prompt"] for prompt in results["prompts"]]
        known = {"id": results["id"], "models": list(results["models"]), "prompts": asked}
        data = json.dumps(known).replace("<", "\\u003c")  # nothing in a text may end the script
        bar = '<button type="button" id="export">Save verdicts as JSON</button><output id="state"></output>'
        self._parts.append(f'<div class="bar">{bar}</div><script type="application/json" id="report">{data}</script>')
        self._parts.append(f"<script>{SCRIPT}</script>")


def write_page(results: dict[str, Any], file: Path) -> Path:
    """Everything into one file that needs nothing else."""
    models = results["models"]
    page = JudgePage("How models go on from the same prompts")
    page.text(
        f'Beam search of width {results["beams"]}, at most {results["length"]} tokens. What is marked "by rule" is a '
        "first look at the words with which a text begins, where a rule can tell; it does not understand them. "
        "The verdict is yours: right, partly or wrong. A second click takes it back."
    )
    page.counts(models)
    group = None
    for number, prompt in enumerate(results["prompts"]):
        if prompt.get("group") not in (None, group):
            page.heading(prompt["group"].capitalize())
        group = prompt.get("group")
        page.prompt(number, prompt, models)
    page.verdicts(results)
    return page.write(file)
