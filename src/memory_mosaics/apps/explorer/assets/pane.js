// One model that reads the text: what was read, the chosen position and memory, the edits. The cards show them.

const NOTHING = { count: 0, tokens: [], names: {}, first: 0, last: 0, pages: 1, page: 0, offset: 0, edits: [] };
const SLOW = 300; // milliseconds of reading after which "reading …" is shown

class Pane {
  constructor(app, index, model) {
    this.app = app;
    this.index = index;
    this.source = RECORD?.panes.length ? new Saved(RECORD.panes[index]) : SERVED;
    this.session = crypto.getRandomValues(new Uint32Array(2)).join("-");
    this.data = NOTHING;
    this.shownText = ""; // the text that `data` is about
    this.refused = null; // a text that the model does not read
    // The page to read: by number, or the one where so many `characters` end; `token` characters also choose the token.
    this.requested = { page: -1 };
    this.position = 0;
    this.pinned = false;
    this.rewriting = null; // the pair that is being rewritten, and what was typed for it
    this.follow = true; // stay at the last token while text is typed
    this.version = 0;
    this.reading = new LatestOnly();
    this.looking = new LatestOnly();
    this.lookCache = new Map();
    this.heading = new Heading(this);
    this.text = new TextView(this);
    this.mosaic = new MosaicView(this);
    this.prediction = new PredictionCard(this);
    this.detail = new DetailCard(this);
    this.changes = new EditsCard(this);
    // In the order of the Tab key, and of a layout with one column.
    this.element = h("article", { class: "pane", "data-pane": index },
      h("div", { class: "left" }, this.heading.element, this.text.element),
      h("div", { class: "right" }, this.prediction.element, this.changes.element, this.mosaic.element),
      h("div", { class: "below" }, this.detail.hint, this.detail.element));
    this.setModel(model);
  }

  get model() { return DATA.models[this.number]; }
  get peek() { return this.layer ? this.layer.peek : null; }
  get layer() {
    const [block, kind] = this.memory ?? [];
    return this.model.layers.find((layer) => layer.block === block && layer.kind === kind) ?? null;
  }

  setModel(model) {
    this.number = model;
    this.stopRewriting();
    this.memory = this.target = this.found = this.refused = null;
    this.edits = [];
    this.lookCache.clear();
    this.heading.build();
    this.mosaic.build();
    this.show();
  }

  // Reading.

  // A pinned token stays with its characters; otherwise the end of the page with the caret is shown.
  typed(caret) {
    this.stopRewriting();
    this.refused = null;
    this.requested = { characters: caret };
    this.follow = !this.pinned;
    return this.read();
  }

  read() { return this.reading.run(() => this.#read()); }
  retry() { return this.read(); }

  async #read() {
    const text = this.app.text === this.refused ? this.shownText : this.app.text;
    const begin = performance.now();
    const slow = setTimeout(() => this.#busy(), SLOW);
    const { edits, memory, position, requested } = this;
    const sent = { text, edits, memory, position, requested, target: text === this.shownText ? this.target : null };
    const wanted = this.#wanted(text);
    try {
      const data = await this.source.read({
        ...this.request(text), page: wanted.page ?? -1, characters: wanted.token ?? wanted.characters ?? null,
        look: {
          position: this.follow && !this.pinned ? null : position, characters: wanted.token ?? null,
          memory, target: sent.target,
        },
      });
      if (text !== this.app.text && this.reading.waiting) return;
      this.#take(data, sent);
      this.app.succeeded(this);
      this.app.showTime(this, performance.now() - begin);
      if (!this.found) await this.look();
    } catch (error) {
      if (!(error instanceof TransientError)) Object.assign(this, { refused: text, edits: this.data.edits });
      this.element.classList.add("stale");
      byId("status").textContent = "";
      this.app.failed(error, this);
    } finally {
      clearTimeout(slow);
    }
  }

  #busy() {
    this.element.classList.add("stale");
    if (this.index === 0) byId("status").textContent = "reading …";
  }

  // The fields that all requests have.
  request(text) {
    const edits = this.edits.map(({ words, ...edit }) => edit);
    return { session: this.session, model: this.number, text, edits };
  }

  // The page to read, and the pinned token, which moves with its characters.
  #wanted(text) {
    if (this.requested.token !== undefined || !this.pinned || text === this.shownText || RECORD) return this.requested;
    const token = shifted(this.shownText, text, this.characters());
    if (token !== null) return { token };
    this.setPinned(false);
    this.follow = true;
    return this.requested;
  }

  #take(data, sent) {
    this.version++;
    this.data = data;
    this.lookCache.clear();
    this.app.report(data);
    const moved = this.position !== sent.position; // in the meantime
    this.position = moved ? Math.max(data.first, Math.min(this.position, data.last - 1)) : data.look?.position ?? 0;
    if (sent.text !== this.shownText) this.target = null;
    this.shownText = sent.text;
    // Edits and pages that were requested in the meantime are read next.
    if (sent.edits === this.edits) this.edits = data.edits;
    if (sent.requested === this.requested) this.requested = { page: data.page };
    const same = data.look?.position === this.position && sent.memory === this.memory && sent.target === this.target;
    this.found = same ? data.look : null;
    this.element.classList.toggle("stale", !RECORD && this.shownText !== this.app.box.value);
    this.text.fill();
    this.heading.fill();
    this.show();
  }

  // All memories at the chosen token.

  look() { return this.looking.run(() => this.#look()); }

  async #look() {
    if (this.data.count === 0 || this.position < this.data.first) return;
    const { position, memory, target, version } = this;
    const name = [position, memory, target].join("|");
    try {
      const look = { position, memory, target };
      const found = this.lookCache.get(name) ?? await this.source.look({ ...this.request(this.shownText), look });
      if (version !== this.version) return;
      this.lookCache.set(name, found);
      this.found = found;
      this.show();
    } catch (error) {
      if (version === this.version) this.app.failed(error, this);
    }
  }

  show() {
    this.text.select();
    this.mosaic.fill();
    this.prediction.fill();
    this.detail.fill();
    this.changes.fill();
  }

  // The chosen position, memory and target.

  go(position, { quiet = false } = {}) {
    if (position === this.position && this.found?.position === position) return;
    this.position = position;
    this.follow = position === this.data.count - 1;
    this.target = null;
    this.text.select();
    this.prediction.fill();
    this.look();
    if (!quiet) this.app.moved(this);
  }

  setPinned(on) {
    this.pinned = on;
    this.element.classList.toggle("pinned", on);
  }

  pin(position) {
    this.stopRewriting();
    this.setPinned(!(this.pinned && position === this.position));
    this.go(position, { quiet: true });
    this.app.moved(this);
    this.show();
  }

  // Close the form in which a pair is rewritten.
  stopRewriting() {
    if (this.rewriting) this.setPinned(this.rewriting.pinned);
    this.rewriting = null;
  }

  release() {
    this.setPinned(false);
    if (this.memory) this.choose(this.memory);
    else this.show();
  }

  choose(memory) {
    this.stopRewriting();
    this.memory = this.memory && memoryKey(this.memory) === memoryKey(memory) ? null : memory;
    if (this.found) this.found = { ...this.found, memory: null };
    this.show();
    this.look();
  }

  setTarget(target) {
    this.target = target;
    this.look();
  }

  // The id of a token if it is among the most probable here.
  idOf(text) {
    const best = (this.data.edited || this.data).best?.[this.position - this.data.first];
    return best?.find((one) => one[0] === text)?.[2] ?? null;
  }

  turnPage(page) {
    this.stopRewriting();
    this.requested = { page };
    this.setPinned(false);
    this.follow = false;
    this.position = 0;
    this.read().then(() => this.app.moved(this));
  }

  // The number of characters up to the end of the chosen token, by which the other pane finds its own token.
  characters() {
    const { offset, tokens, first } = this.data;
    return offset + countCharacters(tokens.slice(0, this.position - first + 1).join(""));
  }

  goToCharacter(count) {
    let end = this.data.offset;
    const i = this.data.tokens.findIndex((token) => (end += countCharacters(token)) >= count);
    const here = i >= 0 && (count > this.data.offset || this.data.page === 0);
    if (here) return this.go(this.data.first + i, { quiet: true });
    if (this.data.pages === 1 && (this.data.count || RECORD)) return null; // it may be in text not read yet
    if (!RECORD) {
      this.requested = { token: count };
      this.follow = false;
      return this.read();
    }
    this.position = -1; // on a page that is not in the saved view
    this.found = null;
    return this.show();
  }

  // Edits.

  edit(change) {
    const of = ({ block, kind, head, pair }) => [block, kind, head, pair].join();
    this.#edited([...this.edits.filter((one) => of(one) !== of(change)), change]);
  }

  undo(index) { this.#edited(index === null ? [] : this.edits.filter((_, i) => i !== index)); }

  #edited(edits) {
    this.edits = edits;
    if (!this.element.classList.contains("stale")) message.clear();
    this.read();
  }

  change(pair, text = null) {
    const [block, kind, head] = this.memory;
    const words = pair === null || this.peek === null ? null : this.words(pair);
    const checksum = this.found?.memory?.checksums?.[pair] ?? null;
    return { block, kind, head, pair, text, token: null, checksum, words };
  }

  toggle() {
    if (!this.memory || RECORD) return;
    const index = this.off();
    if (index >= 0) this.undo(index); else this.edit(this.change(null));
  }

  // The index of the edit that switches off the chosen memory, or -1.
  off() {
    const same = (edit) => memoryKey([edit.block, edit.kind, edit.head]) === memoryKey(this.memory);
    return this.memory ? this.edits.findIndex((edit) => edit.pair === null && same(edit)) : -1;
  }

  // A token of the text, displayed by itself; and those of a pair: key and value, one token if peek is 0.
  word(position) {
    const i = position - this.data.first;
    const { names, tokens } = this.data;
    return names[i] ?? tokens[i] ?? this.found?.memory?.distant_words?.[position] ?? `token ${position + 1}`;
  }

  words(pair) {
    const place = this.found?.memory?.places?.[pair];
    if (place) return place.words;
    return this.peek ? [this.word(pair), this.word(pair + this.peek)] : [this.word(pair)];
  }
}
