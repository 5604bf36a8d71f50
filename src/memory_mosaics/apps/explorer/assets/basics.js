// Shared by all other scripts: elements, requests to the server, the format of tokens and numbers, messages.

const DATA = JSON.parse(document.getElementById("data").textContent);
const RECORD = DATA.record || null; // the data of a saved view, which has no server
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);

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

// Characters that are invisible: controls, direction marks, joiners, line and paragraph separators.
const UNSEEN = /^(?!\p{Variation_Selector})[\p{Cc}\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}]$/u;

// A token with symbols for control characters, and a dot for a part of a character.
function visible(token) {
  if (token === "") return "·";
  return [...token].map((letter) => {
    const code = letter.codePointAt(0);
    if (letter === "\n") return "⏎";
    if (code < 32) return String.fromCodePoint(0x2400 + code);
    if (code === 127) return "␡";
    return UNSEEN.test(letter) ? "◌" : letter;
  }).join("");
}

const quoted = (token) => visible(token).replace(/^ /, "␣");
const word = (token) => h("span", { class: "word" }, quoted(token));
const capital = (text) => text.replace(/^./, (letter) => letter.toUpperCase());
const plural = (count, name) => `${count.toLocaleString("en")} ${name}${count === 1 ? "" : "s"}`;
const countCharacters = (text) => [...text].length;
const memoryKey = (memory) => memory.join(".");

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && size < 0.001) return value.toExponential(0);
  return String(Number(value.toPrecision(digits)));
}

const bar = (kind, share) => h("i", { class: "bar" + kind, "--share": share });

// With its sign, in at most five characters.
function signed(value) {
  const size = Math.abs(value);
  if (size < 0.005) return "0";
  return (value < 0 ? "−" : "+") + size.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

const decimal = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 100 ? 1 : 0 });

function percent(share) {
  const digits = share < 0.0995 || (share > 0.995 && share < 0.9995) ? 1 : 0;
  return (share > 0 && share < 0.0005 ? "<0.1" : (100 * share).toFixed(digits)) + " %";
}

// The position in the changed text of what was at `count` characters before; null if it was changed itself.
function shifted(before, after, count) {
  const [old, now] = [[...before], [...after]];
  let same = 0;
  while (same < Math.min(old.length, now.length) && old[same] === now[same]) same++;
  if (count <= same) return count;
  let end = 0;
  while (end < Math.min(old.length, now.length) - same && old.at(-1 - end) === now.at(-1 - end)) end++;
  return old.length - count < end ? count + now.length - old.length : null;
}

const message = {
  show(text, action = null) {
    const element = byId("message");
    element.replaceChildren(text, ...(action ? [" ", action] : []));
    element.hidden = false;
  },
  clear() { byId("message").hidden = true; },
};

class TransientError extends Error {} // the same request may succeed later
class ModelsReplaced extends Error {}

async function post(path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Identity": DATA.identity },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(60000),
    });
  } catch {
    throw new TransientError("The explorer does not answer. Is “mosaics explore” still running?");
  }
  if (answer.ok) return answer;
  if (answer.status === 409) throw new ModelsReplaced("Another model is served here now.");
  if ([429, 503].includes(answer.status)) throw new TransientError("The explorer has too many requests at once.");
  const found = await answer.json().catch(() => ({}));
  throw new Error(found.error?.message || `The explorer answered ${answer.status}.`);
}

const postJson = async (path, body) => (await post(path, body)).json();

// Runs one task at a time; of those that wait only the latest is kept, so that fast typing does not queue requests.
class LatestOnly {
  #running = false;
  #next = null;
  async run(work) {
    this.#next = work;
    if (this.#running) return;
    this.#running = true;
    try {
      while (this.#next) {
        const now = this.#next;
        this.#next = null;
        await now();
      }
    } finally {
      this.#running = false;
    }
  }
  get waiting() { return this.#next !== null; }
}

function storedSetting(name, value) {
  try {
    if (value === undefined) return localStorage.getItem(name);
    localStorage.setItem(name, value);
  } catch { /* a sandboxed frame has no storage, and needs none */ }
  return null;
}

// Move the focus within a group of elements by keys. Only the focused element can be reached by Tab.
function rovingFocus(group, selector, step, then = null) {
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
    then?.(chosen);
  });
}

const sideways = (key, here) => ({ ArrowRight: here + 1, ArrowLeft: here - 1 })[key] ?? null;

// Replace the content of a card. The focus stays on the same button, or moves to the one in its place.
function replaceKeepingFocus(card, ...children) {
  const key = card.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const kind = key && `[data-key^="${key.replace(/\d+$/, "")}"]`;
  const row = key ? [...card.querySelectorAll(kind)].indexOf(document.activeElement) : -1;
  card.replaceChildren(...children.filter(Boolean));
  if (!key) return;
  const alike = card.querySelectorAll(kind);
  const same = card.querySelector(`[data-key="${key}"]`) || alike[Math.min(row, alike.length - 1)];
  (same || card.querySelector("button"))?.focus();
}
