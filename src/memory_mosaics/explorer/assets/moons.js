// The three moons: periods on sliders, both astronomers, the error of what they expect as it grows and falls.

class Moons {
  constructor(place) {
    const { shortest, longest, periods } = DATA.sky;
    this.periods = [...periods]; this.seed = 0; this.time = 0; this.playing = false; this.data = null; this.asking = new Newest();
    this.names = { 1: "One memory for the whole sky", 3: "A memory for each moon" };
    this.sliders = h("div", { class: "sliders" }, ...this.periods.map((period, i) => {
      const shown = h("output", {}, String(period));
      const slider = h("input", { type: "range", min: shortest, max: longest, value: period, "aria-label": `Period of moon ${i + 1}`, disabled: Boolean(RECORD), oninput: (event) => {
        this.periods[i] = Number(event.target.value);
        shown.textContent = event.target.value;
        this.load();
      } });
      return h("label", { class: `moon moon${i}` }, h("span", {}, `moon ${i + 1}`), slider, shown);
    }));
    this.play = h("button", { class: "primary", onclick: () => this.#play(!this.playing) }, "Play");
    this.scrub = h("input", { type: "range", min: 0, max: DATA.sky.watched - 1, value: 0, "aria-label": "Observations", oninput: (event) => { this.#play(false); this.time = Number(event.target.value); this.draw(); } });
    this.day = h("output", {});
    const again = RECORD ? null : h("button", { onclick: () => { this.seed++; this.load(); } }, "Other phases");
    this.skies = Object.fromEntries(Object.keys(this.names).map((heads) => [heads, s("svg", { viewBox: "-120 -120 240 240", class: "orbits", role: "img", "aria-label": this.names[heads] })]));
    this.errors = Object.fromEntries(Object.keys(this.names).map((heads) => [heads, h("span", { class: "error" })]));
    this.chart = s("svg", { height: 250, class: "chart", role: "img", "aria-label": "Error of the next expectations against observations" });
    this.facts = h("p", { class: "hint" });
    new ResizeObserver(() => { if (this.data && this.chart.clientWidth) { this.#chart(); this.draw(); } }).observe(this.chart);
    place.append(
      h("div", { class: "intro" }, h("h2", {}, "Three moons"), h("p", {}, "Two astronomers watch three moons whose periods they do not know. One keeps a single table of the whole sky and has to wait until all moons stand together as before. The other has learnt to keep a table for each moon, and is right once the slowest has returned.")),
      h("div", { class: "card controls" }, this.sliders, h("div", { class: "transport" }, this.play, this.scrub, this.day, again)),
      h("div", { class: "skies" }, ...Object.entries(this.skies).map(([heads, sky]) => h("figure", { class: `card astronomer heads${heads}` }, h("figcaption", {}, h("strong", {}, this.names[heads]), this.errors[heads]), sky))),
      h("figure", { class: "card" }, h("figcaption", {}, h("strong", {}, `Error of the next ${DATA.sky.ahead} expectations`), h("span", { class: "legend" }, h("span", { class: "key one" }, "one memory"), h("span", { class: "key three" }, "three memories"))), this.chart, this.facts));
  }

  load() { return this.asking.run(() => this.#load()); }

  async #load() {
    try {
      this.data = RECORD ? RECORD.sky : await (await ask("/api/moons", { periods: this.periods, seed: this.seed })).json();
      message.clear();
    } catch (error) {
      message.say(error.message, h("button", { onclick: () => this.load() }, "Try again"));
      return;
    }
    if (!this.data) return;
    if (RECORD) this.time = RECORD.start?.time ?? this.time;
    this.#chart();
    this.draw();
  }

  open() {
    if (this.data) return;
    this.load().then(() => { if (!RECORD && !matchMedia("(prefers-reduced-motion: reduce)").matches) this.#play(true); });
  }

  close() { this.#play(false); }

  #play(on) {
    this.playing = on;
    this.play.textContent = on ? "Pause" : "Play";
    if (!on || !this.data) return;
    if (this.time >= this.data.astronomers[1].error.length - 1) this.time = 0;
    let last = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      this.time = Math.min(this.data.astronomers[1].error.length - 1, this.time + Math.max(0, now - last) / 40);
      last = now;
      this.draw();
      if (this.time >= this.data.astronomers[1].error.length - 1) this.#play(false);
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  // Where the moons will be, a dot each, and where the astronomer expects them, a ring each.
  draw() {
    if (!this.data) return;
    const time = Math.floor(this.time), { truth, ahead, astronomers } = { ...this.data, ahead: DATA.sky.ahead };
    const point = (at, i) => { const radius = [44, 74, 104][i]; return [radius * at[2 * i], -radius * at[2 * i + 1]]; };
    for (const [heads, sky] of Object.entries(this.skies)) {
      const found = astronomers[heads], expected = found.expected[time], later = truth[time + ahead];
      const marks = [s("circle", { r: 7, class: "planet" })];
      for (let i = 0; i < 3; i++) {
        const [x, y] = point(truth[time], i), [u, v] = point(later, i), [a, b] = point(expected, i);
        marks.push(s("circle", { r: [44, 74, 104][i], class: "orbit" }), s("circle", { cx: x, cy: y, r: 2.5, class: `now moon${i}` }),
          s("line", { x1: u, y1: v, x2: a, y2: b, class: "miss" }), s("circle", { cx: u, cy: v, r: 6, class: `truth moon${i}` }), s("circle", { cx: a, cy: b, r: 9, class: `expected moon${i}` }));
      }
      sky.replaceChildren(...marks);
      this.errors[heads].textContent = `error ${found.error[time].toFixed(2)}`;
    }
    this.scrub.value = time;
    this.day.textContent = `${time + 1} seen`;
    this.#grow(time);
  }

  get #width() { return (this.chart.clientWidth || 900) - 24; }
  #x(time) { return 36 + (time / (DATA.sky.watched - 1)) * (this.#width - 36); }
  #y(error) { return 214 - Math.min(1.4, error) / 1.4 * 190; }

  #chart() {
    const { slowest, together } = this.data;
    const parts = [];
    for (const error of [0, 0.5, 1]) parts.push(s("line", { x1: 36, x2: this.#width, y1: this.#y(error), y2: this.#y(error), class: "rule" }), s("text", { x: 28, y: this.#y(error) + 4, class: "end" }, String(error)));
    for (let time = 0; time <= DATA.sky.watched; time += 120) parts.push(s("text", { x: this.#x(time), y: 234, class: "middle" }, String(time)));
    for (const [time, text] of [[slowest, "slowest is back"], [together, "all are back"]]) {
      if (time < DATA.sky.watched) parts.push(s("line", { x1: this.#x(time), x2: this.#x(time), y1: 20, y2: 214, class: "mark" }), s("text", { x: this.#x(time) + 6, y: 16, class: "start" }, text));
    }
    this.curves = { 1: s("path", { class: "curve one" }), 3: s("path", { class: "curve three" }) };
    this.chart.replaceChildren(...parts, ...Object.values(this.curves));
    this.facts.textContent = `The slowest moon returns after ${slowest} observations, the whole sky after ${together.toLocaleString("en")}.` + (together >= DATA.sky.watched ? " One memory has not seen it return yet." : "") + ` Dots: where the moons will be ${DATA.sky.ahead} observations from now. Rings: where the astronomer expects them.`;
  }

  #grow(time) {
    for (const [heads, curve] of Object.entries(this.curves)) {
      const errors = this.data.astronomers[heads].error.slice(0, time + 1);
      curve.setAttribute("d", errors.map((error, i) => `${i ? "L" : "M"}${this.#x(i).toFixed(1)} ${this.#y(error).toFixed(1)}`).join(""));
    }
  }
}
