// What is what, in a minute: a card beside one part of the page after the other. Some are of some models only.

const TOUR = [
  [".composer", "The text", "Type here, or take an example below. The models read it as you type."],
  [".pane .sheet", "Each token, by its loss", "The darker a token, the less the model expected it. Hover one, or move with the "
    + "arrow keys, to see everything as it was after that token; click to pin it."],
  [".pane .prediction", "What it expects next", "The most probable tokens. Click one to measure what every memory adds to it; "
    + "+ at the end of the text continues with it."],
  [".pane .mosaics", "Every memory at work", "One tile per memory (or attention head), blocks from top to bottom. Blue adds to "
    + "the logit of the expected token, orange takes from it. λ: how slowly the memory's key forgets; β: how sharply it tells "
    + "keys apart; Pairs: how many of its stored pairs count."],
  [".pane .mosaics", "Short and long", "Short-term memories see the latest pairs alone, long-term memories those before. Choose a "
    + "memory, and the tokens that it does not see are pale.", (model) => model.layers.some((layer) => layer.terms)],
  [".pane .detail", "Inside one memory", "A memory that adds much here. It compared its key with the stored ones: these pairs "
    + "answered, a key and what came next. Lines lead to them in the text."],
  [".pane .detail", "Change what it remembers", "✕ removes a pair, ✎ rewrites it, and the switch turns the memory off. "
    + "The text is read again, and you see what changes."],
  [".pane .sources", "From which text", "This text is read after those of the memory files. The pairs of these are shown with the words "
    + "around them, and here is how much weight each text has; Files, above the tiles, shows that of every memory.",
  (model) => model.texts.length],
  ["#continue", "And on", "Let the model continue the text, compare it with another model, or save the page as one file. "
    + "? lists the keys."],
];

class Tour {
  constructor(app) {
    this.app = app;
    this.open = false;
    this.card = h("aside", { class: "tour card", role: "dialog", "aria-label": "Tour", hidden: true });
    document.body.append(this.card);
    this.resized = new ResizeObserver(() => this.open && this.#place()); // a memory that was just chosen
    for (const kind of ["scroll", "resize"]) addEventListener(kind, () => this.open && this.#place(), { passive: true });
  }

  start() {
    this.app.show("explore");
    const [{ model, memory }] = this.app.panes;
    this.steps = TOUR.filter(([, , , only]) => !only || only(model));
    this.memory = memory; // that was chosen before
    this.before = document.activeElement;
    this.open = true;
    this.#go(0);
  }

  close() {
    this.open = false;
    this.card.hidden = true;
    this.#mark(null);
    const [pane] = this.app.panes;
    if (!pane.memory && this.memory) pane.choose(this.memory);
    this.before?.focus?.();
  }

  #go(step) {
    const [pane] = this.app.panes, [selector, title, text] = this.steps[step], last = step === this.steps.length - 1;
    const inside = last || /detail|sources/.test(selector);
    if (inside && !pane.memory) this.#choose(pane);
    if (!inside && pane.memory) pane.choose(pane.memory); // closes it: its pairs would hide the losses
    const turn = (there, label, kind) => h("button", { class: kind, onclick: () => this.#go(there) }, label);
    const close = h("button", { class: last ? "primary" : "link", onclick: () => this.close() }, last ? "Done" : "End");
    this.card.replaceChildren(h("h2", {}, title), h("p", {}, text), h("footer", {},
      h("span", { class: "hint" }, `${step + 1} of ${this.steps.length}`), step ? turn(step - 1, "Back") : null,
      ...(last ? [close] : [close, turn(step + 1, "Next", "primary")])));
    this.card.hidden = false;
    this.#mark(document.querySelector(selector));
    this.marked?.scrollIntoView({ block: "center" });
    this.#place();
    this.card.querySelector(".primary").focus({ preventScroll: true });
  }

  // The memory that was chosen before, or the one with the largest contribution to the expected token.
  #choose(pane) {
    if (this.memory) return pane.choose(this.memory);
    const all = pane.model.layers.flatMap((layer, i) => (layer.closed ? [] : layer.peek === null ? []
      : (pane.found?.overview[i]?.contribution ?? []).map((value, head) => [value, [layer.block, layer.kind, head]])));
    const best = all.reduce((most, one) => (!most || one[0] > most[0] ? one : most), null);
    return best && pane.choose(best[1]);
  }

  #mark(element) {
    this.marked?.classList.remove("toured");
    this.resized.disconnect();
    this.marked = element;
    if (!element) return;
    element.classList.add("toured");
    this.resized.observe(element);
  }

  // Below the part, above it where there is no room, or at the foot of the window.
  #place() {
    const part = this.marked?.getBoundingClientRect(), { offsetWidth: width, offsetHeight: height } = this.card;
    if (!part) return;
    const below = part.bottom + 12, above = part.top - height - 12;
    const top = below + height < innerHeight ? below : above > 0 ? above : innerHeight - height - 12;
    const left = Math.max(8, Math.min(part.left, innerWidth - width - 8));
    Object.assign(this.card.style, { top: `${top}px`, left: `${left}px` });
  }
}
