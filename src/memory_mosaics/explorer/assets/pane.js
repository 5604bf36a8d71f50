// One model reading the text: tokens, prediction, memories, the chosen memory, edits.

class Pane {
  constructor(app, index, model) {
    this.app = app;
    this.index = index;
    this.session = `${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    this.data = { count: 0, tokens: [], first: 0, last: 0, pages: 1, page: 0, offset: 0, edits: [] };
    this.position = 0; this.held = false; this.follow = true;
    this.memory = null; this.target = null; this.found = null;
    this.edits = []; this.page = -1; this.version = 0; this.read_ = new Newest(); this.look_ = new Newest();
    this.seen = new Map();
    this.name = h("div", { class: "model" });
    this.text = new TextView(this);
    this.mosaic = new MosaicView(this);
    this.prediction = h("section", { class: "card prediction", "aria-live": "off" });
    this.detail = h("section", { class: "card detail", hidden: true });
    this.changes = h("section", { class: "card edits", hidden: true });
    this.element = h("article", { class: "pane", "data-pane": index },
      h("div", { class: "left" }, this.name, this.text.element, this.detail, this.hint = h("p", { class: "hint invite" }, "Hover a token to see what was expected there. Choose a memory to see what it retrieves.")),
      h("div", { class: "right" }, this.prediction, this.changes, this.mosaic.element));
    this.use(model);
  }

  get model() { return DATA.models[this.number]; }
  get layer() { return this.memory && this.model.layers.find((layer) => layer.block === this.memory[0] && layer.kind === this.memory[1]); }
  get peek() { return this.layer ? this.layer.peek : null; }

  use(model) {
    this.number = model;
    this.memory = null; this.edits = []; this.target = null; this.found = null; this.seen.clear();
    const { name, blocks, width } = this.model;
    const several = DATA.models.length > 1 && !RECORD;
    const choice = several ? h("select", { "aria-label": "Model", onchange: (event) => { this.use(Number(event.target.value)); this.read(); } },
      ...DATA.models.map((one, i) => h("option", { value: i, selected: i === model }, one.name))) : h("strong", {}, name);
    this.name.replaceChildren(choice, h("span", {}, `${blocks} block${blocks > 1 ? "s" : ""} of width ${width}`), h("span", { class: "summary" }));
    this.mosaic.build();
    this.show();
  }

  // Reading.

  read() { return this.read_.run(() => this.#read()); }

  async #read() {
    const text = this.app.text;
    const begin = performance.now();
    const { edits, memory } = this;
    try {
      const data = RECORD ? RECORD.panes[this.index].read : await (await ask("/api/read", {
        session: this.session, model: this.number, text, edits, page: this.page,
        look: { position: this.follow && !this.held ? null : this.position, memory, target: null },
      })).json();
      if (text !== this.app.text && this.read_.waiting) return;
      this.#take(data, edits, memory);
      this.app.fine(this);
      this.app.took(this, performance.now() - begin);
      if (!this.found) await this.look();
    } catch (error) {
      this.element.classList.add("stale");
      this.app.failed(error, this);
    }
  }

  #take(data, edits, memory) {
    this.version++;
    this.data = data;
    this.seen.clear();
    this.element.classList.remove("stale");
    if (data.dropped) message.say(`${data.dropped} edit${data.dropped > 1 ? "s were" : " was"} undone: the text they were about has changed.`);
    if (edits === this.edits) this.edits = data.edits; // or they were changed meanwhile, and will be read next
    if (this.follow && !this.held) this.position = data.last - 1;
    this.position = Math.max(data.first, Math.min(this.position, data.last - 1));
    this.text.fill();
    const mean = (losses) => { const known = (losses || []).filter((loss) => loss !== null); return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null; };
    const plain = mean(data.losses), edited = data.edited && mean(data.edited.losses);
    this.name.querySelector(".summary").textContent = plain === null ? "" : `mean loss ${plain.toFixed(2)}` + (edited ? ` → ${edited.toFixed(2)}` : "") + ` · ${data.count.toLocaleString("en")} tokens`;
    this.target = null;
    this.found = data.look?.position === this.position && memory === this.memory ? data.look : null; // or another was chosen meanwhile
    this.show();
  }

  // Looking.

  look() { return this.look_.run(() => this.#look()); }

  async #look() {
    if (this.data.count === 0) return;
    const { position, memory, target, version } = this;
    const name = [position, memory, target].join("|");
    try {
      const found = RECORD ? this.#recorded() : this.seen.get(name) ?? await (await ask("/api/look", {
        session: this.session, model: this.number, text: this.app.text, edits: this.edits, position, memory, target,
      })).json();
      if (version !== this.version) return;
      this.seen.set(name, found);
      this.found = found;
      this.show();
    } catch (error) {
      if (version === this.version) this.app.failed(error, this);
    }
  }

  #recorded() {
    const { overview, memories, read } = RECORD.panes[this.index];
    const here = this.position - read.first;
    return { position: this.position, overview: overview[here], memory: this.memory && memories[this.memory.join(".")]?.[here] };
  }

  show() {
    this.text.select();
    this.mosaic.fill();
    this.#prediction();
    this.#detail();
    this.#changes();
  }

  go(position, { quiet = false } = {}) {
    if (position === this.position && this.found?.position === position) return;
    this.position = position;
    this.follow = position === this.data.count - 1;
    this.target = null;
    this.text.select();
    this.#prediction();
    this.look();
    if (!quiet) this.app.moved(this);
  }

  hold(position) {
    this.held = !(this.held && position === this.position);
    this.element.classList.toggle("held", this.held);
    this.go(position);
    this.text.select();
  }

  release() {
    this.held = false;
    this.element.classList.remove("held");
    if (this.memory) this.choose(this.memory);
  }

  choose(memory) {
    const same = this.memory && this.memory.join() === memory.join();
    this.memory = same ? null : memory;
    if (this.found) this.found = { ...this.found, memory: null };
    this.show();
    this.look();
  }

  turn(page) {
    this.page = page;
    this.held = false; this.follow = false;
    this.position = 0;
    this.read();
  }

  // The token before which a text of so many letters ends, for the pane beside.
  letters() { return this.data.offset + this.data.tokens.slice(0, this.position - this.data.first + 1).reduce((sum, token) => sum + [...token].length, 0); }

  goToLetters(letters) {
    let sum = this.data.offset;
    for (let i = 0; i < this.data.tokens.length; i++) {
      sum += [...this.data.tokens[i]].length;
      if (sum >= letters) { this.go(this.data.first + i, { quiet: true }); return; }
    }
  }

  // Edits.

  edit(change) {
    const same = (one) => one.block === change.block && one.kind === change.kind && one.head === change.head && one.place === change.place;
    this.edits = [...this.edits.filter((one) => !same(one)), change];
    this.read();
  }

  undo(index) {
    this.edits = index === null ? [] : this.edits.filter((_, i) => i !== index);
    this.read();
  }

  change(place, text = null) {
    const [block, kind, head] = this.memory;
    return { block, kind, head, place, text };
  }

  toggle() {
    if (!this.memory || RECORD) return;
    const index = this.#off();
    if (index >= 0) this.undo(index); else this.edit(this.change(null));
  }

  #off() { return this.edits.findIndex((edit) => edit.place === null && [edit.block, edit.kind, edit.head].join() === this.memory?.join()); }

  // Cards.

  targetText() {
    const i = this.position - this.data.first;
    const best = (this.data.edited || this.data).best?.[i];
    if (!best) return null;
    return (best.find((one) => one[2] === this.target) || (this.data.best[i].find((one) => one[2] === this.target)) || best[0])[0];
  }

  #prediction() {
    const i = this.position - this.data.first;
    const before = this.data.best?.[i], after = this.data.edited?.best[i];
    if (!before) { this.prediction.hidden = true; return; }
    this.prediction.hidden = false;
    const next = i + 1 < this.data.tokens.length ? this.data.tokens[i + 1] : this.data.after;
    const share = (list, id) => list?.find((one) => one[2] === id)?.[1] ?? null;
    const rows = [...(after || before).slice(0, 5)];
    if (after) for (const one of before.slice(0, 3)) if (!rows.some((row) => row[2] === one[2])) rows.push([one[0], null, one[2]]);
    const lines = rows.map(([token, now, id]) => {
      const was = share(before, id);
      const bars = h("span", { class: "bars" }, h("i", { class: "bar", "--share": now ?? 0 }));
      if (after) bars.prepend(h("i", { class: "bar was", "--share": was ?? 0 }));
      return h("li", { class: token === next ? "next" : null },
        h("button", { class: "guess", "aria-pressed": String(this.targetText() === token), title: "Measure contributions to this token", disabled: Boolean(RECORD), "data-key": `guess-${id}`, onclick: () => { this.target = id; this.look(); } }, word(token)),
        bars, h("span", { class: "share" }, after ? h("s", {}, was === null ? "<" : percent(was)) : null, now === null ? "less" : percent(now)),
        token === next ? h("em", {}, "comes next") : null);
    });
    const loss = this.data.losses[i + 1], changed = this.data.edited?.losses[i + 1];
    const told = next === null || next === undefined || loss === undefined || loss === null ? null
      : h("p", { class: "hint" }, "Then comes ", word(next), `, loss ${loss.toFixed(2)}` + (changed !== undefined && changed !== null ? ` → ${changed.toFixed(2)}` : "") + ".");
    this.#fill(this.prediction, h("h2", {}, "After ", word(this.data.tokens[i]), " it expects", this.held ? h("small", {}, "held") : null), h("ol", { class: "guesses" }, ...lines), told);
  }

  #detail() {
    this.detail.hidden = !this.memory;
    this.hint.hidden = Boolean(this.memory) || this.data.count === 0;
    if (!this.memory) return;
    const { layer } = this, [block, , head] = this.memory, seen = this.found?.memory;
    const off = this.#off() >= 0;
    const fixed = [layer.lambda && `λ ${number(layer.lambda[head])}`, layer.beta && `β ${number(layer.beta[head])}`,
      this.found && `${this.found.overview[this.model.layers.indexOf(layer)]?.effective[head].toFixed(1)} ${layer.peek === null ? "slots" : "pairs"} count`].filter(Boolean).join(" · ");
    const button = RECORD ? null : h("button", { class: "switch", role: "switch", "aria-checked": String(!off), "data-key": "switch", onclick: () => this.toggle() }, off ? "off" : "on");
    const title = h("header", {}, h("h2", {}, `${layer.name.replace(/^./, (letter) => letter.toUpperCase())}, block ${block}, head ${head}`), button, h("p", { class: "hint" }, fixed));
    let body;
    if (!seen) body = [h("p", { class: "hint" }, RECORD ? "This file holds another memory only." : "…")];
    else {
      const pairs = seen.pairs.slice(0, 8).map(([place, weight]) => this.#pair(place, weight));
      const largest = Math.max(0.2, ...seen.says.map((one) => Math.abs(one[1])));
      const says = seen.says.map(([token, logit]) => h("li", {}, word(token), h("span", { class: "bars" }, h("i", { class: "bar says" + (logit < 0 ? " negative" : ""), "--share": Math.abs(logit) / largest })), h("span", { class: "share" }, signed(logit))));
      body = [h("div", { class: "beside" },
        h("div", {}, h("h3", {}, layer.peek === null ? "Slots retrieved" : layer.peek ? "Pairs retrieved: key → what came next" : "Pairs retrieved"),
          pairs.length ? h("ul", { class: "pairs" }, ...pairs) : h("p", { class: "hint" }, "Nothing is stored yet: the answer is zero.")),
        h("div", {}, h("h3", {}, off ? "Switched off, it says nothing" : "Its answer says"), h("ul", { class: "says" }, ...(off ? [] : says))))];
    }
    this.#fill(this.detail, title, ...body);
  }

  #pair(place, weight) {
    const { peek } = this, named = peek === null;
    const token = (position) => position < this.data.first || position >= this.data.last ? h("span", { class: "word far" }, `token ${position + 1}`) : word(this.data.tokens[position - this.data.first]);
    const rewritten = this.edits.find((edit) => edit.place === place && edit.text && [edit.block, edit.kind, edit.head].join() === this.memory.join());
    const what = named ? [h("span", {}, `slot ${place}`)] : peek ? [token(place), " → ", rewritten ? h("ins", {}, word(rewritten.text)) : token(place + peek)] : [rewritten ? h("ins", {}, word(rewritten.text)) : token(place)];
    const row = h("li", { "data-place": place, onpointerenter: () => this.text.point(place, true), onpointerleave: () => this.text.point(place, false) },
      h("span", { class: "share" }, percent(weight)), h("span", { class: "bars" }, h("i", { class: "bar weight", "--share": weight })), h("span", { class: "what" }, ...what));
    if (RECORD) return row;
    const held = named ? `slot ${place}` : `pair ${place}`;
    const rewrite = h("button", { class: "small", "aria-label": `Write ${held} anew`, title: "Write it anew, as if another token had come", "data-key": `write-${place}`, onclick: () => this.#rewrite(row, place) }, "✎");
    row.append(h("span", { class: "does" }, named ? null : rewrite,
      h("button", { class: "small", "aria-label": `Remove ${held}`, title: "Remove it", "data-key": `remove-${place}`, onclick: () => this.edit(this.change(place)) }, "✕")));
    return row;
  }

  #rewrite(row, place) {
    const was = this.data.tokens[place + this.peek - this.data.first];
    const input = h("input", { "aria-label": "Token instead", maxlength: 100, size: 10, placeholder: was === undefined ? "" : was.trim(), "data-key": `token-${place}` });
    const form = h("form", { class: "rewrite", onsubmit: (event) => {
      event.preventDefault();
      if (input.value) this.edit(this.change(place, input.value));
    } }, input, h("button", {}, "write"));
    input.addEventListener("keydown", (event) => { if (event.key === "Escape") { event.stopPropagation(); this.show(); } });
    row.querySelector(".what").replaceChildren(form);
    input.focus();
  }

  #changes() {
    this.changes.hidden = this.edits.length === 0;
    const chips = this.edits.map((edit, index) => {
      const name = `block ${edit.block} ${edit.kind === "channel" ? "persistent" : ""} head ${edit.head}`.replace("  ", " ");
      const layer = this.model.layers.find((one) => one.block === edit.block && one.kind === edit.kind);
      const token = layer.peek === null ? null : this.data.tokens[edit.place - this.data.first];
      const what = edit.place === null ? "off" : edit.text ? `pair ${edit.place} says` : `${layer.peek === null ? "slot" : "pair"} ${edit.place} removed`;
      return h("li", {}, h("span", {}, `${name}: ${what} `), edit.text ? word(edit.text) : edit.place !== null && token ? word(token) : null,
        RECORD ? null : h("button", { class: "small", "aria-label": `Undo ${name} ${what}`, "data-key": `undo-${index}`, onclick: () => this.undo(index) }, "✕"));
    });
    this.#fill(this.changes, h("header", {}, h("h2", {}, `${this.edits.length} edit${this.edits.length > 1 ? "s" : ""}`), RECORD ? null : h("button", { "data-key": "undo-all", onclick: () => this.undo(null) }, "Undo all")), h("ul", { class: "chips" }, ...chips));
  }

  // A card anew, with the focus where it was.
  #fill(card, ...children) {
    const key = card.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    card.replaceChildren(...children.filter(Boolean));
    if (key) (card.querySelector(`[data-key="${key}"]`) || card.querySelector("button"))?.focus();
  }
}
