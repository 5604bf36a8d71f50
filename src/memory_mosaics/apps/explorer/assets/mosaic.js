// All memories of a model, one tile per memory: blocks from top to bottom, heads from left to right.

const MEASURES = {
  contribution: ["Contribution", "what it adds to the logit of the expected token"],
  effective: ["Pairs", "how many stored pairs count in its answer here"],
  lambda: ["λ", "how slowly its key forgets what came before"],
  beta: ["β", "how sharply it tells keys apart"],
  files: ["Files", "how much of the weight in its answer is on pairs of memory files"],
};

// The least range of values that has all colours: what is nearly equal looks so.
const NARROW = { contribution: 0.3, files: 1, lambda: 0.1, beta: Math.log(2), effective: Math.log(2) };

class MosaicView {
  constructor(pane) {
    this.pane = pane;
    this.measure = "contribution";
    this.title = h("h2");
    this.chooser = h("div", { class: "segments", role: "radiogroup", "aria-label": "Measure" });
    this.caption = h("p", { class: "hint" });
    this.grids = h("div", { class: "mosaic" });
    this.element = h("section", { class: "card mosaics" }, this.title, this.chooser, this.grids, this.caption);
    this.grids.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (tile) this.pane.choose(JSON.parse(tile.dataset.memory));
    });
    rovingFocus(this.grids, ".tile:not(:disabled)", (key, here, items) => this.#key(key, here, items));
    rovingFocus(this.chooser, "button", sideways, (button) => button.click());
  }

  build() {
    const { layers } = this.pane.model;
    const open = layers.filter((layer) => !layer.closed), memories = open.some((layer) => layer.name.includes("memory"));
    this.title.textContent = memories ? "Memories" : open.length ? "Heads" : "Nothing here retrieves";
    this.element.classList.toggle("none", layers.length === 0);
    this.#choices(layers);
    const kinds = ["sequence", "channel"].map((kind) => layers.filter((layer) => layer.kind === kind));
    const grids = kinds.filter((some) => some.length).flatMap((some) => (
      [...new Set(some.flatMap((layer) => layer.sees ?? [undefined]))].map((sees) => this.#grid(some, sees))));
    this.grids.replaceChildren(...grids);
    this.fill();
  }

  #choices(layers) {
    const measures = Object.keys(MEASURES);
    const there = measures.filter((name) => layers.some((layer) => layer[name] || layer.per_token.includes(name)));
    if (!there.includes(this.measure)) this.measure = "contribution";
    this.chooser.replaceChildren(...there.map((name) => h("button", {
      role: "radio", "aria-checked": String(name === this.measure), tabindex: name === this.measure ? 0 : -1,
      title: MEASURES[name][1], "data-measure": name,
      onclick: () => {
        this.measure = name;
        this.build();
        this.chooser.querySelector("[aria-checked=true]").focus();
      },
    }, MEASURES[name][0])));
  }

  // The layers of one kind, one per row, with the heads that see the same pairs. Grids are side by side if they fit,
  // otherwise one below the other.
  #grid(layers, sees) {
    const heads = (layer) => Array.from({ length: layer.heads }, (_, head) => head)
      .filter((head) => layer.sees?.[head] === sees);
    const [{ name: kind, closed, terms }] = layers, term = terms && `${terms[layers[0].sees.indexOf(sees)]}-term`;
    const replaces = closed && layers[0].kind === "channel" && this.pane.model.layers.some((one) => one.peek > 0);
    const [first, second] = replaces ? ["Persistent", kind] : [capital(term || kind), sees];
    const title = replaces ? `${kind}, in the place of a persistent memory` : [first, second].filter(Boolean).join(": ");
    const name = h("span", { class: "kind", title }, first, second ? h("span", {}, second) : null);
    const rows = layers.map((layer) => h("div", { role: "row", class: "row" },
      h("span", { class: "block", role: "rowheader", title: `block ${layer.block}` }, String(layer.block)),
      ...heads(layer).map((head) => {
        const memory = [layer.block, layer.kind, head];
        return h("button", {
          class: "tile", role: "gridcell", tabindex: "-1", "data-memory": JSON.stringify(memory),
          disabled: layer.closed || !this.pane.source.has(memory),
        }, h("span"));
      })));
    const most = Math.max(...layers.map((layer) => heads(layer).length));
    return h("div", { class: "grid", role: "grid", "aria-label": `${title}, blocks by heads`, "--heads": most }, name, ...rows);
  }

  fill() {
    const { memory } = this.pane;
    const values = this.#values();
    const sizes = [...values.values()].filter((value) => value !== null).map((value) => this.#size(value));
    const least = ["contribution", "files"].includes(this.measure) ? 0 : Math.min(...sizes);
    const most = Math.max(...sizes, least + NARROW[this.measure]);
    const chosen = memory && memoryKey(memory);
    const tiles = [...this.grids.querySelectorAll(".tile")];
    for (const tile of tiles) {
      const name = memoryKey(JSON.parse(tile.dataset.memory));
      const value = values.get(name);
      const strength = value === null ? 0 : (this.#size(value) - least) / Math.max(1e-9, most - least);
      this.#tile(tile, value, strength);
      tile.setAttribute("aria-selected", String(name === chosen));
      tile.tabIndex = name === chosen ? 0 : -1;
    }
    if (!tiles.some((tile) => tile.tabIndex === 0)) {
      const first = tiles.find((tile) => !tile.disabled);
      if (first) first.tabIndex = 0;
    }
    const target = this.pane.found?.target;
    const [, what] = MEASURES[this.measure];
    this.caption.replaceChildren(...(this.measure === "contribution" && target
      ? ["What each memory adds to the logit of ", word(target[0]), ", above the average token."]
      : [capital(what) + "."]));
  }

  // The measure of every memory by its name.
  #values() {
    const { model, found } = this.pane;
    const values = new Map();
    model.layers.forEach((layer, i) => {
      const of = layer[this.measure] ?? found?.overview[i]?.[this.measure];
      for (let head = 0; head < layer.heads; head++) {
        const value = of?.[head];
        values.set(memoryKey([layer.block, layer.kind, head]), typeof value === "number" ? value : null);
      }
    });
    return values;
  }

  #tile(tile, value, strength) {
    const [block, kind, head] = JSON.parse(tile.dataset.memory);
    const contribution = this.measure === "contribution";
    const edits = this.pane.edits.filter((edit) => edit.block === block && edit.kind === kind && edit.head === head);
    const off = edits.some((edit) => edit.pair === null);
    tile.style.setProperty("--strength", (0.05 + 0.85 * Math.max(0, Math.min(1, strength))).toFixed(3));
    tile.classList.toggle("negative", contribution && value < 0);
    tile.classList.toggle("off", off);
    tile.classList.toggle("edited", edits.some((edit) => edit.pair !== null));
    tile.classList.toggle("strong", strength > 0.62);
    const layer = this.pane.model.layers.find((one) => one.block === block && one.kind === kind);
    const name = layer.closed ? layer.name : `${kind === "channel" ? "persistent memory" : "memory"} ${head}`;
    const label = `block ${block}, ${name}${off ? ", off" : ""}: ${MEASURES[this.measure][0]} ${number(value)}`;
    tile.setAttribute("aria-label", label);
    const why = layer.closed ? "it retrieves nothing" : "its pairs are not in this file";
    tile.title = tile.disabled ? `${label}; ${why}` : label;
    tile.firstChild.textContent = value === null ? "" : contribution ? signed(value)
      : this.measure === "files" ? percent(value) : number(value, 2);
    tile.firstChild.dataset.short = value === null ? "" : this.#short(value);
  }

  // For narrow tiles, without the sign: the colour shows it.
  #short(value) {
    const size = Math.abs(value);
    if (this.measure === "contribution" && size < 0.05) return "0";
    return number(size, size < 1 ? 1 : 2).replace(/^0\./, ".");
  }

  // Where a value lies on the scale of colours.
  #size(value) {
    if (this.measure === "contribution") return Math.abs(value);
    return ["lambda", "files"].includes(this.measure) ? value : Math.log(Math.max(value, 1e-6));
  }

  // Left and right within a block, through all its memories; up and down to the same memory of another.
  #key(key, here, items) {
    const memories = items.map((item) => JSON.parse(item.dataset.memory));
    const [block, kind, head] = memories[here];
    const all = memories.map((_, i) => i);
    const row = all.filter((i) => memories[i][0] === block);
    const column = all.filter((i) => memories[i][1] === kind && memories[i][2] === head);
    const next = (some, step) => some[some.indexOf(here) + step] ?? here;
    const moves = {
      ArrowRight: () => next(row, 1), ArrowLeft: () => next(row, -1),
      ArrowDown: () => next(column, 1), ArrowUp: () => next(column, -1),
      Home: () => 0, End: () => items.length - 1,
    };
    return moves[key]?.() ?? null;
  }
}
