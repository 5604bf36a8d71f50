"use strict";
// The table of an arena from the results that are in the page; a click on a cell shows how it came about.
const results = JSON.parse(document.getElementById("results").textContent);
const root = document.getElementById("arena"), detail = document.getElementById("detail");
const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawing(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const tested = task => Object.keys(task.contestants).filter(name => "score" in task.contestants[name]);

function shade(task, score) {
  const guess = task.anchors.guess, perfect = task.perfect;
  return guess === perfect ? 1 : Math.min(Math.max((score - guess) / (perfect - guess), 0), 1);
}

const digits = (number, count = 3) => number.toFixed(count);
const interval = one => one.within === null ? "" : ` \u00b1 ${digits(one.within)}`;

function plot(task, record) {
  const curves = record.curves, points = curves.flat();
  const width = 700, height = 240, left = 44, bottom = 26, last = Math.max(...points.map(point => point[0]));
  const top = task.higher_is_better ? 1 : Math.max(...points.map(point => point[1]));
  const x = step => left + (width - left - 12) * step / last, y = score => 10 + (height - bottom - 10) * (1 - score / top);
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "validation during training" });
  for (const share of [0, 0.5, 1]) {
    svg.append(drawing("line", { x1: left, x2: width - 12, y1: y(share * top), y2: y(share * top), stroke: "#8886" }));
    svg.append(drawing("text", { x: left - 6, y: y(share * top) + 4, "text-anchor": "end" }, digits(share * top, 2)));
    svg.append(drawing("text", { x: x(share * last), y: height - 8, "text-anchor": "middle" }, Math.round(share * last)));
  }
  for (const curve of curves) {
    const line = curve.map(point => `${x(point[0])},${y(point[1])}`).join(" ");
    svg.append(drawing("polyline", { points: line, fill: "none", stroke: "#0072b2", "stroke-width": 1.6 }));
  }
  return svg;
}

function show(button, taskName, name) {
  for (const other of root.querySelectorAll("button")) other.setAttribute("aria-pressed", other === button);
  const task = results.tasks[taskName], record = task.contestants[name];
  const best = task.reference, facts = element("dl");
  const add = (term, text) => facts.append(element("dt", {}, term), element("dd", {}, text));
  add(`${task.metric}, test`, `${digits(record.score)}${interval(record)}`);
  add("seeds", record.scores.map(score => digits(score)).join(", ") + (record.failed ? `; ${record.failed} failed` : ""));
  if (task.tests.length > 1)
    add("by test", task.tests.map((test, i) => `${test}: ${digits(record.by_test[i][0])}`).join("; "));
  for (const [measure, values] of Object.entries(record.measures ?? {}))
    if (measure === task.metric) continue;
    else if (measure !== "by_position") add(measure.replaceAll("_", " "), `${digits(values[0])}${interval({ within: values[1] })}`);
    else add("loss by position", values.map(([first, end, loss]) => `[${first}, ${end}) ${digits(loss)}`).join("; "));
  if (best && best !== name) add("best transformer by validation", `${task.contestants[best].label}, ${digits(task.contestants[best].score)}`);
  add("anchors", Object.entries(task.anchors).map(([anchor, score]) => `${anchor} ${digits(score)}`).join("; "));
  add("parameters", `${record.parameters.toLocaleString("en")}, ${record.parameters_without_embeddings.toLocaleString("en")} without embeddings`);
  add("seconds per run", `${record.seconds}, ${results.jobs} run${results.jobs > 1 ? "s" : ""} at once, on ${record.hardware}`);
  add("chosen by validation", JSON.stringify(record.chosen));
  if (record.at_edge.length) add("at the edge of what was searched", record.at_edge.join(", "));
  add(`searched, ${record.searched.length} trials`, record.searched.map(one => {
    const values = Object.keys(task.setup.search).map(field => `${field} ${one[field]}`).join(", ");
    return `${values}: ${one.status === "finished" ? digits(one.valid_score) : one.status}`;
  }).join("; "));
  add("task", JSON.stringify(task.setup.data));
  add("model", JSON.stringify(task.setup.model));
  add("training", JSON.stringify(task.setup.training));
  detail.replaceChildren(element("h2", {}, `${record.label} on ${taskName}`),
    element("p", {}, `${task.metric} on the validation examples during training, one line per seed`),
    plot(task, record), facts);
}

const tasks = Object.entries(results.tasks).filter(([, task]) => tested(task).length);
const names = [...new Set(tasks.flatMap(([, task]) => Object.keys(task.contestants)))];
const label = name => tasks.map(([, task]) => task.contestants[name]).find(Boolean).label;

function cell(taskName, task, name) {
  const made = element("td"), record = task.contestants[name];
  if (!record) return made;
  if (!("score" in record)) {
    made.append(record.cell);
    made.classList.add("anchor");
    return made;
  }
  const share = shade(task, record.score);
  const button = element("button", { type: "button", "aria-pressed": "false" }, record.cell);
  button.style.background = `hsl(205 60% ${94 - 56 * share}%)`;
  if (share > 0.6) button.classList.add("dark");
  if (name === task.reference) button.classList.add("best");
  button.addEventListener("click", () => show(button, taskName, name));
  made.append(button);
  return made;
}

const table = element("table", { class: "arena" });
const titles = ["", ...names.map(label), "(guess)", "(best anchor)"];
table.append(element("tr", {}, ...titles.map(title => element("th", { scope: "col" }, title))));
for (const [taskName, task] of tasks) {
  const anchor = task.best_anchor, best = anchor ? `${digits(task.anchors[anchor])} ${anchor}` : "";
  table.append(element("tr", {}, element("th", { scope: "row" }, taskName), ...names.map(name => cell(taskName, task, name)),
    element("td", { class: "anchor" }, digits(task.anchors.guess)), element("td", { class: "anchor" }, best)));
}
root.append(table);
root.querySelector("button")?.click();
