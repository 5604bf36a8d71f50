"use strict";
const report = JSON.parse(document.getElementById("report").textContent);
const key = "mosaics-prompts-" + report.id, cells = [...document.querySelectorAll(".text")];
const state = document.getElementById("state");
let verdicts = {}, stored = true;
try { verdicts = JSON.parse(localStorage.getItem(key)) || {}; } catch (error) { stored = false; }

function cellKey(cell) { return cell.dataset.prompt + "/" + cell.dataset.model; }

function show() {
  const counts = report.models.map(() => ({ right: 0, partly: 0, wrong: 0 }));
  for (const cell of cells) {
    const verdict = verdicts[cellKey(cell)];
    if (verdict) { cell.dataset.verdict = verdict; counts[cell.dataset.model][verdict] += 1; } else { delete cell.dataset.verdict; }
    for (const button of cell.querySelectorAll("button"))
      button.setAttribute("aria-pressed", String(button.value === verdict));
  }
  counts.forEach((count, model) => {
    for (const verdict in count)
      document.getElementById("count-" + model + "-" + verdict).textContent = count[verdict];
  });
  state.textContent = Object.keys(verdicts).length + " of " + cells.length + " judged, " +
    (stored ? "kept in this browser" : "not kept: this browser stores nothing for this page");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest(".choices button");
  if (!button) return;
  const id = cellKey(button.closest(".text"));
  if (verdicts[id] === button.value) delete verdicts[id]; else verdicts[id] = button.value;
  try { localStorage.setItem(key, JSON.stringify(verdicts)); stored = true; } catch (error) { stored = false; }
  show();
});

function judged() {
  return { report: report.id, verdicts: cells.filter((cell) => verdicts[cellKey(cell)]).map((cell) => ({
    prompt: report.prompts[cell.dataset.prompt], model: report.models[cell.dataset.model],
    text: cell.querySelector("p").textContent, verdict: verdicts[cellKey(cell)] })) };
}

document.getElementById("export").addEventListener("click", () => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(judged(), null, 2)], { type: "application/json" }));
  link.download = "verdicts.json";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});
show();
