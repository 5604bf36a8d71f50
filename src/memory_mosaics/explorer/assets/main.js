// The page as a whole: views, the text, theme, keys.

class App {
  constructor() {
    this.box = at("text");
    this.text = "";
    this.view = null;
    this.lost = new Set();
    this.panes = RECORD ? RECORD.panes.map((pane, i) => new Pane(this, i, pane.model)) : [new Pane(this, 0, 0)];
    if (!RECORD && DATA.models.length > 1) this.panes.push(new Pane(this, 1, 1));
    if (!this.panes.length) this.panes.push(new Pane(this, 0, 0));
    at("panes").append(...this.panes.map((pane) => pane.element));
    this.moons = new Moons(at("sky"));
    this.#tabs();
    this.#theme();
    this.#keys();
    this.#tools();
    this.#text();
    this.#start();
  }

  shownPanes() { return this.view === "compare" ? this.panes : this.panes.slice(0, 1); }

  show(view) {
    if (!this.views().includes(view)) return;
    const before = this.view;
    this.view = view;
    document.body.dataset.view = view;
    at("reading").hidden = view === "moons";
    at("sky").hidden = view !== "moons";
    for (const tab of document.querySelectorAll("[role=tab]")) {
      tab.setAttribute("aria-selected", String(tab.dataset.view === view));
      tab.tabIndex = tab.dataset.view === view ? 0 : -1;
    }
    if (view === "moons") this.moons.open(); else this.moons.close();
    if (view === "compare" && before !== "compare") this.panes[1].read();
    if (view !== "moons") requestAnimationFrame(() => this.panes.forEach((pane) => pane.text.draw()));
  }

  views() {
    const views = ["explore"];
    if (this.panes.length > 1) views.push("compare");
    if (!RECORD || RECORD.sky) views.push("moons");
    return RECORD ? [RECORD.start?.view ?? "explore"] : views;
  }

  write(text) {
    this.box.value = text;
    this.typed();
  }

  typed() {
    const { characters } = DATA.limits;
    this.text = this.box.value;
    const length = [...this.text].length;
    if (length > characters) {
      this.text = "";
      for (const pane of this.shownPanes()) pane.element.classList.add("stale");
      message.say(`The text has ${length.toLocaleString("en")} characters; at most ${characters.toLocaleString("en")} are read. What is below was read before.`);
      return;
    }
    message.clear();
    for (const pane of this.shownPanes()) { pane.page = -1; pane.follow = !pane.held; pane.read(); }
  }

  fine(pane) {
    if (this.lost.delete(pane) && this.lost.size === 0) message.clear();
  }

  // A server that is gone may come back: until then the page keeps what it has.
  failed(error, pane) {
    if (error instanceof Lost) {
      this.lost.add(pane);
      clearTimeout(this.retry);
      this.retry = setTimeout(() => [...this.lost].forEach((one) => one.read()), 2000);
    }
    message.say(this.shownPanes().length > 1 && !(error instanceof Lost) ? `${pane.model.name}: ${error.message}` : error.message);
  }

  took(pane, milliseconds) {
    if (RECORD) return;
    const again = pane.data.again;
    at("status").textContent = pane.data.count ? `${milliseconds.toFixed(0)} ms` + (again ? ` · ${again} of ${pane.data.count.toLocaleString("en")} tokens read again` : "") : "";
    at("status").dataset.milliseconds = milliseconds.toFixed(1);
  }

  moved(pane) {
    if (this.view === "compare") for (const other of this.panes) if (other !== pane) other.goToLetters(pane.letters());
  }

  resolved() { return this.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"); }

  #tabs() {
    for (const tab of document.querySelectorAll("[role=tab]")) {
      tab.hidden = !this.views().includes(tab.dataset.view);
      tab.addEventListener("click", () => this.show(tab.dataset.view));
    }
    roving(document.querySelector("[role=tablist]"), "[role=tab]:not([hidden])", (key, here) => ({ ArrowRight: here + 1, ArrowLeft: here - 1 })[key] ?? null);
  }

  #theme() {
    this.theme = RECORD?.start?.theme ?? remembered("theme");
    const apply = () => { if (this.theme) document.documentElement.dataset.theme = this.theme; };
    apply();
    at("theme").addEventListener("click", () => {
      this.theme = this.resolved() === "dark" ? "light" : "dark";
      remembered("theme", this.theme);
      apply();
    });
  }

  #tools() {
    const guarded = (id, work) => at(id).addEventListener("click", async (event) => {
      const button = event.currentTarget;
      button.disabled = true;
      try { await work(this); } catch (error) { message.say(error.message.replace(" Trying again …", "")); } finally { button.disabled = false; }
    });
    guarded("save-html", saveHtml);
    guarded("save-png", savePng);
    at("save-html").hidden = Boolean(RECORD);
    at("help").addEventListener("click", () => at("keys").showModal());
  }

  #text() {
    let resize;
    const grow = () => { this.box.style.height = "auto"; this.box.style.height = `${Math.min(220, this.box.scrollHeight + 2)}px`; };
    this.box.addEventListener("input", () => { cancelAnimationFrame(resize); resize = requestAnimationFrame(grow); this.typed(); });
    const guesses = h("button", { class: "link", "aria-pressed": "false", id: "guesses", onclick: (event) => {
      const on = document.documentElement.classList.toggle("guessing");
      event.currentTarget.setAttribute("aria-pressed", String(on));
      this.panes.forEach((pane) => pane.text.draw());
    } }, "guesses under the text");
    const examples = RECORD ? [] : ["Try ", ...Object.entries(DATA.examples).flatMap(([name, text], i) => [i ? ", " : "", h("button", { class: "link", onclick: () => { this.write(text); grow(); } }, name)]), " · "];
    at("examples").append(...examples, guesses);
    this.grow = grow;
  }

  #keys() {
    document.addEventListener("keydown", (event) => {
      const typing = event.target.closest("textarea, input:not([type=range]), select, dialog");
      if (event.key === "Escape" && !at("keys").open) { for (const pane of this.shownPanes()) pane.release(); if (typing) event.target.blur(); return; }
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const [pane] = this.shownPanes();
      const keys = {
        "/": () => this.box.focus(), o: () => pane.toggle(), u: () => !RECORD && pane.undo(null), "?": () => at("keys").showModal(),
        1: () => this.show("explore"), 2: () => this.show("compare"), 3: () => this.show("moons"),
      };
      if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
    });
  }

  #start() {
    if (RECORD) {
      const { panes, start = {} } = RECORD;
      document.documentElement.classList.add("recorded");
      this.box.readOnly = true;
      this.text = this.box.value = panes[0]?.text ?? "";
      for (const pane of this.panes) {
        if (!panes.length) break;
        const memory = start.memories ? start.memories[pane.index] : start.memory;
        const there = memory && pane.model.layers.some((layer) => layer.block === memory[0] && layer.kind === memory[1] && memory[2] < layer.heads);
        pane.memory = there ? memory : null;
        if (start.position !== null && start.position !== undefined) { pane.position = start.position; pane.follow = false; }
        pane.mosaic.measure = start.measure ?? "adds";
        pane.mosaic.build();
      }
      this.show(start.view ?? "explore");
      if (panes.length) this.panes.forEach((pane) => pane.read());
    } else {
      this.show("explore");
      this.write(Object.values(DATA.examples)[0]);
    }
    this.grow();
  }
}

window.explorer = new App();
