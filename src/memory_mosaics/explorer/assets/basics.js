// What everything below uses: elements, requests, how tokens and numbers are written, messages.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RECORD = DATA.record || null; // a page that nobody serves
const SVG = "http://www.w3.org/2000/svg";
const at = (id) => document.getElementById(id);

function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) element.style.setProperty(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function s(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// A token as it can be seen: control characters as their pictures, an unfinished letter as a dot.
function visible(token) {
  if (token === "") return "·";
  return [...token].map((letter) => {
    const code = letter.codePointAt(0);
    if (letter === "\n") return "⏎";
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    if (code === 127) return "␡";
    if ((code >= 0x80 && code < 0xa0) || (code >= 0x200b && code <= 0x200f) || (code >= 0x202a && code <= 0x202e) ||
        (code >= 0x2066 && code <= 0x2069) || code === 0xfeff) return "◌";
    return letter;
  }).join("");
}

const quoted = (token) => visible(token).replace(/^ /, "␣");
const word = (token) => h("span", { class: "word" }, quoted(token));

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(0);
  return String(Number(value.toPrecision(digits)));
}

const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(2);
const percent = (share) => (share >= 0.0995 ? (100 * share).toFixed(0) : (100 * share).toFixed(1)) + " %";

const message = {
  say(text, action = null) {
    const place = at("message");
    place.replaceChildren(text, ...(action ? [" ", action] : []));
    place.hidden = false;
  },
  clear() { at("message").hidden = true; },
};

class Lost extends Error {}

async function ask(path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(60000),
    });
  } catch {
    throw new Lost("The explorer does not answer. Is “mosaics explore” still running? Trying again …");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Error(said.error || `The explorer answered ${answer.status}.`);
}

// One at a time, and of those that wait only the newest: fast typing never queues up.
class Newest {
  #running = false;
  #next = null;
  async run(work) {
    this.#next = work;
    if (this.#running) return;
    this.#running = true;
    while (this.#next) {
      const now = this.#next;
      this.#next = null;
      await now();
    }
    this.#running = false;
  }
  get waiting() { return this.#next !== null; }
}

function remembered(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch { /* a sandboxed frame has no storage, and needs none */ }
  return null;
}

// Keys that move within a group of elements of which one has the focus.
function roving(group, selector, step) {
  group.addEventListener("keydown", (event) => {
    const items = [...group.querySelectorAll(selector)];
    const here = items.indexOf(document.activeElement);
    if (here < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const there = step(event.key, here, items);
    if (there === null || there === undefined) return;
    event.preventDefault();
    const chosen = items[Math.max(0, Math.min(items.length - 1, there))];
    for (const item of items) item.tabIndex = item === chosen ? 0 : -1;
    chosen.focus();
  });
}
