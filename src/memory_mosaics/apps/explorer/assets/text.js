// The text as tokens: shaded by surprise or by what a memory retrieves, with lines to the pairs.

const SURPRISE = 8; // nats that are shaded fully

class TextView {
  constructor(pane) {
    this.pane = pane;
    this.lines = s("svg", { class: "lines", "aria-hidden": "true" });
    this.body = h("div", { class: "tokens", role: "listbox", "aria-label": "Tokens", tabindex: "-1", dir: "auto" });
    this.pager = h("div", { class: "pager" });
    this.legend = h("p", { class: "legend" });
    const sheet = h("div", { class: "sheet" }, this.lines, this.body);
    this.element = h("div", { class: "text" }, this.legend, sheet, this.pager);
    this.body.addEventListener("pointermove", (event) => this.#over(event));
    this.body.addEventListener("click", (event) => this.#click(event));
    this.body.addEventListener("focusin", (event) => this.#focus(event));
    rovingFocus(this.body, ".token", (key, here, items) => this.#key(key, here, items));
    new ResizeObserver(() => this.draw()).observe(this.body);
  }

  token(position) { return this.body.querySelector(`[data-at="${position}"]`); }

  // Create all tokens of the page.
  fill() {
    const { data } = this.pane;
    this.body.replaceChildren(...data.tokens.flatMap((token, i) => {
      const shown = this.#token(token, i);
      return token.includes("\n") ? [shown, h("br")] : [shown];
    }));
    if (data.count === 0) {
      const invitation = "Nothing to read yet. Type a few words above, or take an example.";
      this.body.replaceChildren(h("p", { class: "empty" }, invitation));
    }
    this.#page();
  }

  #token(token, i) {
    const { data } = this.pane;
    const changed = data.edited || data;
    const loss = changed.losses?.[i] ?? null;
    const guess = i > 0 ? changed.best[i - 1][0] : null;
    const moved = data.edited && loss !== null ? loss - data.losses[i] : 0;
    const better = Math.abs(moved) > 0.05 ? (moved > 0 ? " worse" : " better") : "";
    return h("span", {
      class: "token" + better + (token === "" ? " part" : ""),
      role: "option", tabindex: "-1", "data-at": data.first + i, title: data.names[i],
      "--loss": loss === null ? 0 : Math.min(1, loss / SURPRISE).toFixed(3),
      "data-guess": guess ? quoted(guess[0]) : null,
      "data-right": guess && guess[2] === data.ids[i] ? "" : null,
    }, ...this.#inked(token));
  }

  // Shade words but not the spaces before them, which may be at the end of a line.
  #inked(token) {
    const shown = visible(token), blank = shown.trim() ? shown.length - shown.trimStart().length : 0;
    return [shown.slice(0, blank), h("span", { class: "ink" }, shown.slice(blank))];
  }

  // The chosen position, and what the chosen memory retrieves there.
  select() {
    const { position, found, memory, peek } = this.pane;
    const weights = new Map(memory && found?.memory && peek !== null ? found.memory.pairs : []);
    const largest = Math.max(0.05, ...weights.values());
    const ranges = memory && found?.memory?.ranges;
    const unseen = (at) => ranges && at < position && !ranges.some(([first, last]) => first <= at && at < last);
    this.hides = false;
    this.element.classList.toggle("retrieving", Boolean(memory && peek !== null));
    for (const token of this.body.querySelectorAll(".token")) {
      const here = Number(token.dataset.at);
      token.tabIndex = here === position ? 0 : -1;
      token.setAttribute("aria-selected", String(here === position));
      const weight = weights.get(here);
      token.style.setProperty("--weight", weight ? (0.12 + 0.78 * weight / largest).toFixed(3) : 0);
      token.classList.toggle("value", peek > 0 && weights.get(here - peek) > 0.5 * largest);
      token.classList.toggle("unseen", Boolean(unseen(here)));
      if (unseen(here)) this.hides = true;
    }
    this.legend.replaceChildren(...this.#legend());
    this.draw();
  }

  #legend() {
    const key = (kind, text) => h("span", { class: "key " + kind }, text);
    const parts = [key("loss", "loss: the darker, the less expected")];
    if (this.pane.memory && this.pane.peek !== null) parts.unshift(key("weight", "retrieved here"));
    if (this.hides) parts.push(key("unseen", "not seen by this memory"));
    if (this.pane.data.edited) parts.push(key("better", "better"), key("worse", "worse with the edits"));
    return parts;
  }

  // At most once per frame: measuring the positions of tokens is slow.
  draw() {
    cancelAnimationFrame(this.drawing);
    this.drawing = requestAnimationFrame(() => this.#draw());
  }

  // Lines from the chosen token to the pairs with the largest weights.
  #draw() {
    const { position, found, memory, peek } = this.pane;
    this.lines.replaceChildren();
    const here = this.token(position);
    if (!here?.offsetParent || !memory || peek === null || !found?.memory) return;
    const sheet = this.lines.getBoundingClientRect();
    const middle = (token) => {
      const box = token.querySelector(".ink").getClientRects()[0];
      return [box.left + box.width / 2 - sheet.left, box.top - sheet.top + 2];
    };
    const [x, y] = middle(here);
    for (const [pair, weight] of found.memory.pairs.slice(0, 5)) {
      const there = this.token(pair);
      if (!there || weight < 0.02 || pair === position) continue;
      const [u, v] = middle(there);
      const lift = 14 + Math.min(30, Math.abs(u - x) / 14);
      const path = s("path", { d: `M${x} ${y} C${x} ${y - lift} ${u} ${v - lift} ${u} ${v}` });
      path.style.setProperty("--weight", weight.toFixed(3));
      this.lines.append(path);
    }
  }

  // Highlight a pair while the pointer is over it in the list.
  highlight(pair, on) {
    this.token(pair)?.classList.toggle("hot", on);
    if (this.pane.peek > 0) this.token(pair + this.pane.peek)?.classList.toggle("hot", on);
  }

  #page() {
    const { page, pages, first, last, count } = this.pane.data;
    const turn = (there, text, label) => h("button", {
      disabled: RECORD || there < 0 || there >= pages, "aria-label": label, onclick: () => this.pane.turnPage(there),
    }, text);
    const shown = `page ${page + 1} of ${pages} · tokens ${first + 1}–${last} of ${count.toLocaleString("en")}`;
    const parts = [turn(page - 1, "←", "Page before"), h("span", {}, shown), turn(page + 1, "→", "Page after")];
    this.pager.replaceChildren(...(pages > 1 ? parts : []));
  }

  // Only if the pointer itself has moved: text that moves under it while typing must not change the position.
  #over(event) {
    const token = event.target.closest(".token"), where = `${event.screenX} ${event.screenY}`;
    if (!token || event.pointerType === "touch" || this.pane.pinned || where === this.pointer) return;
    this.pointer = where;
    this.pane.go(Number(token.dataset.at));
  }

  #click(event) {
    const token = event.target.closest(".token");
    if (token) this.pane.pin(Number(token.dataset.at));
  }

  #focus(event) {
    const token = event.target.closest(".token");
    if (token?.matches(":focus-visible")) this.pane.go(Number(token.dataset.at));
  }

  #key(key, here, items) {
    if (key === "ArrowRight") return here + 1;
    if (key === "ArrowLeft") return here - 1;
    if (key === "Home") return 0;
    if (key === "End") return items.length - 1;
    if (key === "Enter" || key === " ") {
      this.pane.pin(Number(items[here].dataset.at));
      return here;
    }
    if (key !== "ArrowUp" && key !== "ArrowDown") return null;
    const box = items[here].getBoundingClientRect();
    const down = key === "ArrowDown";
    let best = null;
    items.forEach((item, i) => {
      const other = item.getBoundingClientRect();
      const lines = down ? other.top - box.top : box.top - other.top;
      if (lines < box.height / 2) return;
      const far = lines * 1000 + Math.abs(other.left - box.left);
      if (!best || far < best[0]) best = [far, i];
    });
    return best ? best[1] : here;
  }
}
