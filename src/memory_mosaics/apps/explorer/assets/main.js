// The whole page: views, text, theme, keys.

const RETRY = 2000; // milliseconds

class App {
  constructor() {
    this.box = byId("text");
    this.text = ""; // the last one that is not too long
    this.view = null;
    this.guessing = false;
    this.waiting = new Set(); // panes, or the moons, whose request is sent again
    const models = RECORD ? RECORD.panes.map((pane) => pane.model) : [...DATA.models.keys()].slice(0, 2);
    this.panes = (models.length ? models : [0]).map((model, i) => new Pane(this, i, model));
    this.current = this.panes[0]; // the pane that keys are for
    byId("panes").append(...this.panes.map((pane) => pane.element));
    for (const pane of this.panes) {
      for (const touch of ["focusin", "pointerdown"]) {
        pane.element.addEventListener(touch, () => { this.current = pane; });
      }
    }
    this.moons = new Moons(this, byId("moons"));
    this.#tabs();
    this.#theme();
    this.#keys();
    this.#tools();
    this.#text();
    if (RECORD) this.#open(RECORD); else this.#begin();
    this.grow();
  }

  shownPanes() { return this.view === "compare" ? this.panes : this.panes.slice(0, 1); }

  show(view) {
    if (!this.views().includes(view)) return;
    const before = this.view;
    this.view = view;
    document.body.dataset.view = view;
    byId("reading").hidden = view === "moons";
    byId("moons").hidden = view !== "moons";
    for (const tab of document.querySelectorAll("[role=tab]")) {
      tab.setAttribute("aria-selected", String(tab.dataset.view === view));
      tab.tabIndex = tab.dataset.view === view ? 0 : -1;
    }
    if (view === "moons") this.moons.open(); else this.moons.close();
    if (view === "compare" && before !== "compare" && !RECORD) this.#join();
    if (view !== "moons") requestAnimationFrame(() => this.panes.forEach((pane) => pane.text.draw()));
  }

  // The second pane starts at the position of the first one.
  #join() {
    const [first, second] = this.panes;
    second.setPinned(first.pinned);
    second.follow = first.follow;
    if (first.data.count) second.requested = { token: first.characters() };
    second.read();
  }

  views() {
    if (RECORD) return [RECORD.start?.view ?? "explore"];
    return this.panes.length > 1 ? ["explore", "compare", "moons"] : ["explore", "moons"];
  }

  write(text) {
    this.box.value = text;
    this.typed();
  }

  // Continue the text by what a model expects, from one of its tokens on if that is given.
  async extend(pane, { length = 16, token = null } = {}) {
    const text = this.text;
    try {
      const found = await postJson("/api/continue", { ...pane.request(text), length, token });
      if (text !== this.box.value) return; // typed meanwhile
      if (!found.text) return message.show("The text ends here: the model expects nothing after it.");
      pane.release();
      this.box.selectionStart = this.box.value.length;
      this.write(text + found.text);
      this.grow();
    } catch (error) {
      message.show(error.message);
    }
  }

  typed() {
    const { characters } = DATA.limits, text = this.box.value, count = countCharacters(text);
    if (count > characters) {
      for (const pane of this.shownPanes()) pane.element.classList.add("stale");
      message.show(`The text has ${plural(count, "character")}; at most ${characters.toLocaleString("en")} are read. `
        + "What is below was read before.");
      return;
    }
    message.clear();
    this.text = text;
    const caret = countCharacters(text.slice(0, this.box.selectionStart));
    for (const pane of this.shownPanes()) pane.typed(caret);
  }

  succeeded(who) {
    if (this.waiting.delete(who) && this.waiting.size === 0) message.clear();
  }

  // Requests to a server that is gone or busy are sent again; until then the page stays as it is.
  failed(error, who) {
    if (error instanceof TransientError) {
      this.waiting.add(who);
      clearTimeout(this.retryTimer);
      this.retryTimer = setTimeout(() => [...this.waiting].forEach((one) => one.retry()), RETRY);
      message.show(`${error.message} Trying again …`);
    } else if (error instanceof ModelsReplaced) {
      this.waiting.clear();
      message.show(error.message, h("button", { onclick: () => location.reload() }, "Reload the page"));
    } else {
      const name = this.shownPanes().length > 1 ? who.model?.name : null;
      message.show(name && !error.message.includes(name) ? `${name}: ${error.message}` : error.message);
    }
  }

  // Report edits that were not made.
  report({ dropped, errors }) {
    const were = dropped > 1 ? "were" : "was";
    const lost = `${plural(dropped, "edit")} ${were} dropped: the text of the pair has changed.`;
    if (dropped || errors.length) message.show([...errors, dropped ? lost : ""].join(" ").trim());
  }

  showTime(pane, milliseconds) {
    if (RECORD) return;
    const { recomputed, count } = pane.data;
    const read = recomputed ? ` · ${recomputed} of ${plural(count, "token")} read again` : "";
    byId("status").textContent = count ? `${milliseconds.toFixed(0)} ms${read}` : "";
    byId("status").dataset.milliseconds = milliseconds.toFixed(1);
  }

  #beside(pane) { return this.view === "compare" ? this.panes.filter((other) => other !== pane) : []; }

  moved(pane) {
    for (const other of this.#beside(pane)) {
      other.setPinned(pane.pinned);
      other.goToCharacter(pane.characters());
    }
  }

  // Choose the token to which contributions are measured, also in a model with another tokenizer.
  setTarget(pane, id, text) {
    pane.setTarget(id);
    for (const other of this.#beside(pane)) other.setTarget(other.idOf(text) ?? text);
  }

  resolved() { return this.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"); }

  guess(on) {
    this.guessing = on;
    document.documentElement.classList.toggle("guessing", on);
    byId("guesses").setAttribute("aria-pressed", String(on));
    this.panes.forEach((pane) => pane.text.draw());
  }

  #tabs() {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      tab.hidden = !this.views().includes(tab.dataset.view);
      tab.addEventListener("click", () => this.show(tab.dataset.view));
    }
    rovingFocus(document.querySelector("[role=tablist]"), "[role=tab]:not([hidden])", sideways);
  }

  #theme() {
    this.theme = RECORD?.start?.theme ?? storedSetting("theme");
    const apply = () => { if (this.theme) document.documentElement.dataset.theme = this.theme; };
    apply();
    byId("theme").addEventListener("click", () => {
      this.theme = this.resolved() === "dark" ? "light" : "dark";
      storedSetting("theme", this.theme);
      apply();
    });
  }

  #tools() {
    const guarded = (id, work) => byId(id).addEventListener("click", async (event) => {
      const button = event.currentTarget;
      button.disabled = true;
      try {
        await work(this);
      } catch (error) {
        message.show(error.message);
      } finally {
        button.disabled = false;
      }
    });
    guarded("save-html", saveHtml);
    guarded("save-png", savePng);
    byId("save-html").hidden = Boolean(RECORD);
    this.tour = new Tour(this);
    byId("tour").hidden = Boolean(RECORD);
    byId("tour").addEventListener("click", () => this.tour.start());
    byId("help").addEventListener("click", () => byId("keys").showModal());
  }

  #text() {
    let resize;
    this.grow = () => {
      this.box.style.height = "auto";
      this.box.style.height = `${Math.min(220, this.box.scrollHeight + 2)}px`;
    };
    this.box.addEventListener("input", () => {
      cancelAnimationFrame(resize);
      resize = requestAnimationFrame(this.grow);
      this.typed();
    });
    const take = (text) => {
      this.write(text);
      this.grow();
    };
    const examples = Object.entries(DATA.examples?.texts ?? {}).flatMap(([name, text], i) => (
      [i ? ", " : "Try ", h("button", { class: "link", onclick: () => take(text) }, name)]));
    const further = h("button", {
      class: "link", id: "continue", title: "Add the 16 most probable tokens", onclick: () => this.extend(this.panes[0]),
    }, "continue the text");
    byId("examples").append(...(RECORD ? [] : [...examples, " · ", further, " · "]), h("button", {
      class: "link", "aria-pressed": "false", id: "guesses", onclick: () => this.guess(!this.guessing),
    }, "guesses under the text"));
  }

  #keys() {
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("textarea, input:not([type=range]), select, dialog");
      if (event.key === "Escape" && this.tour.open) return this.tour.close();
      if (event.key === "Escape" && !byId("keys").open) {
        for (const pane of this.shownPanes()) pane.release();
        if (typing) event.target.blur();
        return;
      }
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const pane = this.shownPanes().includes(this.current) ? this.current : this.panes[0];
      const keys = {
        "/": () => this.box.focus(), "?": () => byId("keys").showModal(),
        c: () => !RECORD && this.extend(pane), t: () => !RECORD && this.tour.start(),
        o: () => pane.toggle(), u: () => !RECORD && pane.undo(null),
        1: () => this.show("explore"), 2: () => this.show("compare"), 3: () => this.show("moons"),
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
  }

  #begin() {
    const { texts, opening } = DATA.examples;
    this.show("explore");
    this.panes[0].memory = opening?.memory ?? null;
    this.write(opening?.text ?? Object.values(texts)[0]);
  }

  // Show a saved view.
  #open({ panes, start }) {
    document.documentElement.classList.add("recorded");
    this.box.readOnly = true;
    this.text = this.box.value = panes[0]?.text ?? "";
    panes.forEach((saved, i) => {
      const pane = this.panes[i];
      Object.assign(pane, { memory: saved.memory, target: saved.target, shownText: this.text });
      pane.mosaic.measure = saved.measure ?? "contribution";
      pane.mosaic.build();
      pane.setPinned(Boolean(saved.pinned));
    });
    this.show(start.view);
    this.guess(Boolean(start.guessing));
    if (panes.length) this.panes.forEach((pane) => pane.read());
  }
}

window.explorer = new App();
