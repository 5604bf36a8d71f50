// All memories of a model: a tile each, blocks from top to bottom, heads from left to right.

const MEASURES = {
  adds: ["Contribution", "what it adds to the logit of the expected token"],
  effective: ["Pairs", "how many stored pairs count in its answer here"],
  lambda: ["λ", "how slowly its key forgets what came before"],
  beta: ["β", "how sharply it tells keys apart"],
};

class MosaicView {
  constructor(pane) {
    this.pane = pane;
    this.measure = "adds";
    this.chooser = h("div", { class: "segments", role: "radiogroup", "aria-label": "Measure" });
    this.says = h("p", { class: "hint" });
    this.grid = h("div", { class: "mosaic", role: "grid", "aria-label": "Memories, blocks by heads" });
    this.element = h("section", { class: "card mosaics" }, this.title = h("h2"), this.chooser, this.grid, this.says);
    this.grid.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (tile) this.pane.choose(JSON.parse(tile.dataset.memory));
    });
    roving(this.grid, ".tile", (key, here, items) => this.#key(key, here, items));
    roving(this.chooser, "button", (key, here) => ({ ArrowRight: here + 1, ArrowLeft: here - 1 })[key] ?? null);
  }

  build() {
    const { layers, blocks } = this.pane.model;
    this.title.textContent = layers.some((layer) => layer.name.includes("memory")) ? "Memories" : layers.length ? "Heads" : "Nothing here retrieves";
    this.element.classList.toggle("none", layers.length === 0);
    const measures = Object.keys(MEASURES).filter((name) => name === "adds" || name === "effective" || layers.some((layer) => layer[name]));
    if (!measures.includes(this.measure)) this.measure = "adds";
    this.chooser.replaceChildren(...measures.map((name) => h("button", {
      role: "radio", "aria-checked": String(name === this.measure), tabindex: name === this.measure ? 0 : -1,
      title: MEASURES[name][1], "data-measure": name,
      onclick: () => { this.measure = name; this.build(); this.chooser.querySelector("[aria-checked=true]").focus(); },
    }, MEASURES[name][0])));
    const kinds = ["sequence", "channel"].filter((kind) => layers.some((layer) => layer.kind === kind));
    const columns = kinds.map((kind) => layers.find((layer) => layer.kind === kind));
    this.grid.style.setProperty("--columns", columns.map((layer) => `repeat(${layer.heads}, minmax(0, 1fr))`).join(" .5rem "));
    const row = (first, ...cells) => h("div", { role: "row", class: "row" }, first, ...cells.flatMap((some, i) => (i ? [h("i"), ...some] : some)));
    const names = columns.map((layer) => {
      const cell = h("span", { class: "kind", role: "columnheader" }, layer.name);
      cell.style.gridColumn = `span ${layer.heads}`;
      return [cell];
    });
    const rows = [row(h("span"), ...names)];
    for (let block = 0; block < blocks; block++) {
      const cells = kinds.map((kind) => {
        const layer = layers.find((one) => one.kind === kind && one.block === block);
        return Array.from({ length: layer?.heads || 0 }, (_, head) => h("button", {
          class: "tile", role: "gridcell", tabindex: "-1", "data-memory": JSON.stringify([block, kind, head]),
        }));
      });
      rows.push(row(h("span", { class: "block", role: "rowheader", title: `block ${block}` }, String(block)), ...cells));
    }
    this.grid.replaceChildren(...rows);
    this.fill();
  }

  fill() {
    const { model, found, memory } = this.pane;
    const values = new Map();
    model.layers.forEach((layer, i) => {
      const here = found?.overview[i];
      for (let head = 0; head < layer.heads; head++) {
        const value = this.measure === "adds" || this.measure === "effective" ? here?.[this.measure][head] : layer[this.measure]?.[head];
        values.set(`${layer.block}.${layer.kind}.${head}`, typeof value === "number" ? value : null);
      }
    });
    const sizes = [...values.values()].filter((value) => value !== null).map((value) => this.#size(value));
    const [least, most] = [Math.min(...sizes), Math.max(...sizes, this.measure === "adds" ? 0.3 : -Infinity)];
    const chosen = memory && memory.join(".");
    let first = null;
    for (const tile of this.grid.querySelectorAll(".tile")) {
      const [block, kind, head] = JSON.parse(tile.dataset.memory);
      const name = `${block}.${kind}.${head}`;
      const value = values.get(name);
      const off = this.pane.edits.some((edit) => edit.place === null && `${edit.block}.${edit.kind}.${edit.head}` === name);
      const edited = this.pane.edits.some((edit) => edit.place !== null && `${edit.block}.${edit.kind}.${edit.head}` === name);
      const from = this.measure === "adds" ? 0 : least;
      const strength = value === null ? 0 : (this.#size(value) - from) / Math.max(1e-9, most - from);
      tile.style.setProperty("--strength", (0.05 + 0.85 * Math.max(0, Math.min(1, strength))).toFixed(3));
      tile.className = "tile" + (this.measure === "adds" && value < 0 ? " negative" : "") + (off ? " off" : "") + (edited ? " edited" : "") + (strength > 0.62 ? " strong" : "");
      tile.textContent = value === null ? "" : this.measure === "adds" ? Math.abs(value) < 0.005 ? "0" : signed(value) : number(value, 2);
      const small = this.measure === "adds" && Math.abs(value) < 0.05;
      tile.dataset.short = value === null ? "" : small ? "0" : number(Math.abs(value), Math.abs(value) < 1 ? 1 : 2).replace(/^0\./, "."); // where there is little room, the colour is the sign
      tile.setAttribute("aria-selected", String(name === chosen));
      tile.setAttribute("aria-label", `block ${block}, ${kind === "channel" ? "persistent memory" : "memory"} ${head}${off ? ", off" : ""}: ${MEASURES[this.measure][0]} ${number(value)}`);
      tile.tabIndex = name === chosen ? 0 : -1;
      if (name === chosen) first = tile;
    }
    if (!first) { const tile = this.grid.querySelector(".tile"); if (tile) tile.tabIndex = 0; }
    const target = this.pane.targetText();
    this.says.replaceChildren(...(this.measure === "adds" && target !== null ? ["What each memory adds to the logit of ", word(target), ", above the average token."] : [MEASURES[this.measure][1].replace(/^./, (letter) => letter.toUpperCase()) + "."]));
  }

  // Where a value lies on the scale of colours.
  #size(value) {
    if (this.measure === "adds") return Math.abs(value);
    return this.measure === "lambda" ? value : Math.log(Math.max(value, 1e-6));
  }

  #key(key, here, items) {
    const width = items.filter((item) => JSON.parse(item.dataset.memory)[0] === JSON.parse(items[0].dataset.memory)[0]).length;
    return { ArrowRight: here + 1, ArrowLeft: here - 1, ArrowDown: here + width, ArrowUp: here - width, Home: 0, End: items.length - 1 }[key] ?? null;
  }
}
