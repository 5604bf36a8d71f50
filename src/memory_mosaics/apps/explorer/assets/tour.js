// What is what, in a minute: a card beside one part of the page after the other.

const TOUR = [
  ["#text", "The text", "Type here, or take an example below. The models read it as you type."],
  [".pane .sheet", "Each token, by its loss", "The darker a token, the less the model expected it. Hover one, or move with the "
    + "arrow keys, to see everything as it was after that token; click to pin it."],
  [".pane .prediction", "What it expects next", "The most probable tokens. Click one to measure what every memory adds to it; "
    + "+ at the end of the text continues with it."],
  [".pane .mosaics", "Every memory at work", "One tile per memory (or attention head), blocks from top to bottom. Blue adds to "
    + "the logit of the expected token, orange takes from it. λ: how slowly the memory's key forgets; β: how sharply it tells "
    + "keys apart; Pairs: how many of its stored pairs count."],
  [".pane .detail", "Inside one memory", "The memory that adds most here. It compared its key with the stored ones: these pairs "
    + "answered, a key and what came next. Lines lead to them in the text."],
  [".pane .detail", "Change what it remembers", "✕ removes a pair, ✎ rewrites it, and the switch turns the memory off. "
    + "The text is read again, and you see what changes."],
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
    this.before = document.activeElement;
    this.open = true;
    this.#go(0);
  }

  close() {
    this.open = false;
    this.card.hidden = true;
    this.#mark(null);
    this.before?.focus?.();
  }

  #go(step) {
    const [pane] = this.app.panes, [selector, title, text] = TOUR[step];
    if (selector.endsWith(".detail") && !pane.memory) this.#chooseBest(pane);
    const turn = (there, label, kind) => h("button", { class: kind, onclick: () => this.#go(there) }, label);
    const last = step === TOUR.length - 1;
    const close = h("button", { class: last ? "primary" : "link", onclick: () => this.close() }, last ? "Done" : "End");
    this.card.replaceChildren(h("h2", {}, title), h("p", {}, text), h("footer", {},
      h("span", { class: "hint" }, `${step + 1} of ${TOUR.length}`), step ? turn(step - 1, "Back") : null,
      ...(last ? [close] : [close, turn(step + 1, "Next", "primary")])));
    this.card.hidden = false;
    this.#mark(document.querySelector(selector));
    this.marked?.scrollIntoView({ block: "center" });
    this.#place();
    this.card.querySelector(".primary").focus({ preventScroll: true });
  }

  // The memory with the largest contribution to the expected token.
  #chooseBest(pane) {
    const all = pane.model.layers.flatMap((layer, i) => (layer.closed ? [] : layer.peek === null ? []
      : (pane.found?.overview[i]?.contribution ?? []).map((value, head) => [value, [layer.block, layer.kind, head]])));
    const best = all.reduce((most, one) => (!most || one[0] > most[0] ? one : most), null);
    if (best) pane.choose(best[1]);
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
