// The cards of a pane: the model, the predicted tokens, one memory, the edits.

class Heading {
  constructor(pane) {
    this.pane = pane;
    this.summary = h("span", { class: "summary" });
    this.element = h("div", { class: "model" });
  }

  build() {
    const { pane } = this, { name, blocks, width, texts, store } = pane.model;
    const choice = h("select", {
      "aria-label": "Model",
      onchange: (event) => {
        if (!pane.follow) pane.requested = { token: pane.characters() }; // the same characters, maybe other tokens
        pane.setModel(Number(event.target.value));
        pane.read();
      },
    }, ...DATA.models.map((one, i) => h("option", { value: i, selected: i === pane.number }, one.name)));
    const shown = DATA.models.length > 1 && !RECORD ? choice : h("strong", {}, name);
    const names = texts.slice(0, 3).map((one) => `${one.name} (${plural(one.read, "token")})`);
    if (texts.length > 3) names.push(`${texts.length - 3} more`);
    const facts = [`${plural(blocks, "block")} of width ${width}`, names.length && `reads on after ${names.join(", ")}`,
      store && `store ${store}`];
    this.element.replaceChildren(shown, h("span", {}, facts.filter(Boolean).join(" · ")), this.summary);
  }

  fill() {
    const { losses, edited, count, pages } = this.pane.data;
    const mean = (some) => {
      const known = (some || []).filter((loss) => loss !== null);
      return known.length ? (known.reduce((a, b) => a + b, 0) / known.length).toFixed(2) : null;
    };
    const plain = mean(losses), changed = edited && mean(edited.losses);
    const loss = `mean loss ${plain}` + (changed ? ` → ${changed}` : "") + (pages > 1 ? " on this page" : "");
    this.summary.textContent = plain === null ? "" : `${loss} · ${plural(count, "token")}`;
  }
}

class PredictionCard {
  constructor(pane) {
    this.pane = pane;
    this.element = h("section", { class: "card prediction", "aria-live": "off" });
  }

  fill() {
    const { data, position, pinned } = this.pane;
    const i = position - data.first;
    const before = data.best?.[i], after = data.edited?.best[i];
    this.element.hidden = !before;
    if (!before) return;
    const next = i + 1 < data.tokens.length ? [this.pane.word(position + 1), data.ids[i + 1]] : data.after;
    const rows = [...(after || before).slice(0, 5)];
    const known = (id) => rows.some((row) => row[2] === id);
    for (const [token, , id] of after ? before.slice(0, 3) : []) if (!known(id)) rows.push([token, null, id]);
    const loss = data.losses[i + 1] ?? null, changed = data.edited?.losses[i + 1] ?? null;
    const coming = next && loss !== null ? h("p", { class: "hint" }, "Then comes ", word(next[0]),
      `, loss ${loss.toFixed(2)}` + (changed === null ? "" : ` → ${changed.toFixed(2)}`) + ".") : null;
    replaceKeepingFocus(this.element,
      h("h2", {}, "After ", word(this.pane.word(position)), " it expects", pinned ? h("small", {}, "pinned") : null),
      h("ol", { class: "guesses" }, ...rows.map((row) => this.#row(row, before, Boolean(after), next?.[1]))),
      coming);
  }

  #row([token, now, id], before, edited, next) {
    const { pane } = this;
    const was = before.find((one) => one[2] === id)?.[1] ?? null;
    const aimed = typeof pane.target === "number" ? pane.target : pane.found?.target[1];
    const guess = h("button", {
      class: "guess", "aria-pressed": String(aimed === id), title: "Measure contributions to this token",
      disabled: Boolean(RECORD), "data-key": `guess-${id}`, onclick: () => pane.app.setTarget(pane, id, token),
    }, word(token));
    const bars = h("span", { class: "bars" }, edited ? bar(" was", was ?? 0) : null, bar("", now ?? 0));
    const share = h("span", { class: "share" },
      edited ? h("s", {}, was === null ? "<" : percent(was)) : null, now === null ? "less" : percent(now));
    const comes = id === next, ends = pane.position === pane.data.count - 1 && !RECORD;
    const add = ends ? h("button", {
      class: "small add", title: "Continue the text with it", "aria-label": `Continue the text with ${quoted(token)}`,
      "data-key": `add-${id}`, onclick: () => pane.app.extend(pane, { length: 1, token: id }),
    }, "+") : null;
    return h("li", { class: comes ? "next" : null }, guess, bars, share, comes ? h("em", {}, "comes next") : add);
  }
}

class DetailCard {
  constructor(pane) {
    this.pane = pane;
    this.hint = h("p", { class: "hint invite" });
    this.element = h("section", { class: "card detail", hidden: true });
  }

  fill() {
    const { memory, data, found } = this.pane;
    this.element.hidden = !memory;
    this.hint.hidden = Boolean(memory) || data.count === 0;
    this.hint.textContent = this.#invitation();
    if (!memory) return;
    const seen = found?.memory;
    const body = seen ? this.#body(seen) : h("p", { class: "hint" }, "…");
    replaceKeepingFocus(this.element, this.#title(), body);
  }

  #invitation() {
    const saved = RECORD && Object.keys(RECORD.panes[this.pane.index]?.memories ?? {});
    const [block, kind, head] = saved?.length === 1 ? saved[0].split(".") : [];
    const one = `${kind === "channel" ? "persistent memory" : "memory"} ${head} of block ${block}`;
    const choose = head === undefined ? "Choose a memory to see what it retrieves."
      : `Of this long text the file has the pairs of one memory: ${one}.`;
    return `Hover a token to see what was expected there. ${choose}`;
  }

  #title() {
    const { pane } = this, { layer, found } = pane, [block, , head] = pane.memory;
    const off = pane.off() >= 0;
    const here = { ...layer, ...found?.overview[pane.model.layers.indexOf(layer)] };
    const seen = found?.memory?.seen ?? null, term = layer.terms?.[head];
    const n = seen === null ? "" : ` at n = ${Math.round(seen).toLocaleString("en")}`;
    const facts = [
      layer.sees && `sees ${layer.sees[head]}`,
      here.lambda && `λ ${number(here.lambda[head])}`,
      here.beta && `β ${number(here.beta[head])}${n}`,
      here.effective && `${decimal(here.effective[head])} ${layer.peek === null ? "slots" : "pairs"} count`,
    ];
    const button = RECORD ? null : h("button", {
      class: "switch", role: "switch", "aria-checked": String(!off), "data-key": "switch",
      "aria-label": "This memory", onclick: () => pane.toggle(),
    }, off ? "off" : "on");
    return h("header", {}, h("h2", {}, `${capital(term ? `${term}-term memory` : layer.name)}, block ${block}, head ${head}`), button,
      h("p", { class: "hint" }, facts.filter(Boolean).join(" · ")));
  }

  #body(seen) {
    const { peek } = this.pane, off = this.pane.off() >= 0;
    const largest = Math.max(0.2, ...seen.promoted.map((one) => Math.abs(one[1])));
    const promoted = seen.promoted.map(([token, logit]) => h("li", {}, word(token),
      h("span", { class: "bars" }, bar(" promoted" + (logit < 0 ? " negative" : ""), Math.abs(logit) / largest)),
      h("span", { class: "share" }, signed(logit))));
    const pairs = seen.pairs.slice(0, 8).flatMap((one) => this.#pair(...one));
    const title = (peek === null ? "Slots" : "Pairs") + " retrieved" + (peek ? ": key → what came next" : "");
    const none = this.pane.layer.sees ? "It sees no pair yet" : "Nothing is stored yet";
    return h("div", { class: "found" }, off ? null : this.#reason(seen), h("div", { class: "beside" },
      h("div", {}, h("h3", {}, title), pairs.length ? h("ul", { class: "pairs" }, ...pairs)
        : h("p", { class: "hint" }, `${none}: the answer is zero.`)),
      h("div", {}, h("h3", {}, off ? "Switched off: it adds nothing" : "Tokens it makes more probable"),
        h("ul", { class: "promoted" }, ...(off ? [] : promoted)), seen.shares ? this.#shares(seen.shares) : null)));
  }

  #pair(pair, weight, mass = 1) {
    const { pane } = this, named = pane.peek === null, place = pane.found.memory.places?.[pair];
    const words = named ? [`slot ${pair}`] : pane.words(pair);
    const chosen = memoryKey(pane.memory);
    const rewritten = pane.edits.find((edit) => (
      edit.pair === pair && edit.text && memoryKey([edit.block, edit.kind, edit.head]) === chosen));
    const name = named ? words[0] : words.map(quoted).join(" → ");
    const shown = words.map((text) => (named ? h("span", {}, text) : word(text)));
    if (rewritten) shown[shown.length - 1] = h("ins", {}, word(rewritten.text));
    const what = shown.flatMap((one, i) => (i ? [" → ", one] : [one]));
    const many = `It stands for ${plural(mass, "pair")}, of which this is one`;
    if (mass !== 1) what.unshift(h("small", { class: "mass", title: many, "aria-label": many }, `${decimal(mass)} ×`));
    const row = h("li", {
      "data-pair": pair,
      onpointerenter: () => pane.text.highlight(pair, true), onpointerleave: () => pane.text.highlight(pair, false),
    }, h("span", { class: "share" }, percent(weight)), h("span", { class: "bars" }, bar(" weight", weight)),
      h("span", { class: "what" }, ...(pane.rewriting?.pair === pair ? [this.#form(words.at(-1))] : what)));
    const where = place ? this.#place(pair, place) : [];
    if (RECORD) return [row, ...where];
    const write = h("button", {
      class: "small", "aria-label": `Rewrite ${name}`, title: "Rewrite it, as if another token had followed",
      "data-key": `write-${pair}`, onclick: () => this.#write(pair),
    }, "✎");
    const remove = h("button", {
      class: "small", "aria-label": `Remove ${name}`, title: "Remove it", "data-key": `remove-${pair}`,
      onclick: () => pane.edit(pane.change(pair)),
    }, "✕");
    row.append(h("span", { class: "does" }, named || place ? null : write, remove));
    return [row, ...where];
  }

  // Where a pair of a memory file is in its text, with the words around it.
  #place(pair, { text, position, before, words, between, after }) {
    const { name } = this.pane.model.texts[text], [key, value] = words;
    const plain = (text) => (text ? visible(text) : "");
    const mark = (token = "") => [plain(token.match(/^ */)[0]), h("mark", {}, plain(token.trimStart()))];
    const passage = [
      plain(before.trimStart()), ...mark(key), plain(between), ...(value === undefined ? [] : mark(value)), plain(after.trimEnd()),
    ];
    return [h("li", { class: "place", "data-place": pair },
      h("span", { class: "source" }, `${name}, token ${(position + 1).toLocaleString("en")}: `),
      h("q", { class: "passage", dir: "auto" }, ...passage))];
  }

  // How the weight divides among the texts of memory files and the one on the page.
  #shares(shares) {
    const names = [...this.pane.model.texts.map((text) => text.name), "this text"];
    const rows = shares.map((share, i) => [share, names[i]]);
    const best = [...rows.slice(0, -1).sort((a, b) => b[0] - a[0]).slice(0, 5), rows.at(-1)];
    return h("div", { class: "sources" }, h("h3", {}, "Where its weight is"),
      h("ul", {}, ...best.map(([share, name]) => h("li", {}, h("span", { class: "source", title: name }, name),
        h("span", { class: "bars" }, bar(" weight", share)), h("span", { class: "share" }, percent(share))))));
  }

  // If the heaviest pair predicts the expected token, why that is expected.
  #reason(seen) {
    const { pane } = this, { found, position, peek } = pane, [block, kind, head] = pane.memory;
    const [pair] = seen.pairs[0] ?? [], target = found.target?.[0];
    const layer = pane.model.layers.findIndex((one) => one.block === block && one.kind === kind);
    const adds = found.overview[layer].contribution[head];
    const most = Math.max(...found.overview.flatMap((one, i) => (pane.model.layers[i].closed ? [] : one.contribution)));
    const sum = ["adds ", h("strong", {}, signed(adds)), " to the logit of ", word(target), "."];
    const first = adds === most && adds > 0.05 ? h("p", { class: "reason" }, "Of all memories it adds most: it ", ...sum) : null;
    if (peek === null || pair === undefined || pane.words(pair).at(-1) !== target) return first;
    const alike = seen.pairs.slice(0, 8).filter(([other]) => pane.words(other).at(-1) === target);
    const share = alike.reduce((sum, one) => sum + one[1], 0);
    if (share < 0.1) return first;
    const place = seen.places?.[pair], words = pane.words(pair).flatMap((text, i) => (i ? [" → ", word(text)] : [word(text)]));
    const where = place ? `in ${pane.model.texts[place.text].name}` : `${plural(position - pair, "token")} ago`;
    const others = alike.length > 1 ? ` and ${plural(alike.length - 1, "pair")} like it` : "";
    return h("p", { class: "reason" }, "It recalls ", ...words, `, ${where}${others}: ${percent(share)} of its weight.`,
      ...(adds < 0.05 ? [] : [" This ", ...sum]));
  }

  // Open the form in the row of a pair. The token is pinned while it is open, so that the pointer does not move it.
  #write(pair) {
    const { pane } = this;
    pane.rewriting = { pair, text: "", pinned: pane.rewriting?.pinned ?? pane.pinned };
    pane.setPinned(true);
    pane.show();
    this.element.querySelector(".rewrite input").focus();
  }

  // With the text typed so far: the card may be drawn again while the form is open.
  #form(was) {
    const { rewriting } = this.pane;
    const input = h("input", {
      "aria-label": "Token instead", maxlength: 100, size: 10, placeholder: was.trim(), "data-key": "token",
      oninput: () => { rewriting.text = input.value; },
      onkeydown: (event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        this.#close(rewriting);
      },
    });
    input.value = rewriting.text;
    return h("form", {
      class: "rewrite",
      onsubmit: (event) => {
        event.preventDefault();
        if (!input.value) return;
        const change = this.pane.change(rewriting.pair, input.value);
        this.#close(rewriting);
        this.pane.edit(change);
      },
    }, input, h("button", {}, "write"));
  }

  #close({ pair }) {
    this.pane.stopRewriting();
    this.pane.show();
    this.element.querySelector(`[data-key="write-${pair}"]`)?.focus();
  }
}

class EditsCard {
  constructor(pane) {
    this.pane = pane;
    this.element = h("section", { class: "card edits", hidden: true });
  }

  fill() {
    const { edits } = this.pane;
    const left = edits.length === 0 && this.element.contains(document.activeElement);
    this.element.hidden = edits.length === 0;
    const undo = { "data-key": "undo-all", onclick: () => this.pane.undo(null) };
    const all = RECORD ? null : h("button", undo, "Undo all");
    replaceKeepingFocus(this.element, h("header", {}, h("h2", {}, plural(edits.length, "edit")), all),
      h("ul", { class: "chips" }, ...edits.map((edit, index) => this.#chip(edit, index))));
    if (left) this.pane.text.body.querySelector('[tabindex="0"]')?.focus();
  }

  #chip(edit, index) {
    const { block, kind, head, pair, words, text } = edit;
    const name = `block ${block}${kind === "channel" ? " persistent" : ""} head ${head}`;
    const label = words?.map(quoted).join(" → ") ?? `slot ${pair}`;
    const what = pair === null ? "off" : text ? `${label} rewritten as ${quoted(text)}` : `${label} removed`;
    const undo = RECORD ? null : h("button", {
      class: "small", "aria-label": `Undo ${name}: ${what}`, "data-key": `undo-${index}`,
      onclick: () => this.pane.undo(index),
    }, "✕");
    return h("li", {}, h("span", {}, `${name}: `, pair === null ? what : h("span", { class: "word" }, what)), undo);
  }
}
