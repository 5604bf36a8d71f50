// Three moons: sliders for the periods, the predictions of both networks, and their error over time.

const RADII = [44, 74, 104];
const ASTRONOMERS = { 1: "One memory for the whole sky", 3: "A memory for each moon" };
const STORY = "Two astronomers watch three moons whose periods they do not know. One keeps a single table of the "
  + "whole sky and has to wait until all moons stand together as before. The other has learnt to keep a table for each "
  + "moon, and is right once the slowest has returned.";

class Moons {
  constructor(app, element) {
    this.app = app;
    this.periods = [...(RECORD?.moons ?? DATA.moons).periods];
    this.seed = 0;
    this.time = 0;
    this.playing = false;
    this.data = null;
    this.asking = new LatestOnly();
    this.chart = new ErrorChart(this);
    const each = (make) => Object.fromEntries(Object.entries(ASTRONOMERS).map(([heads, name]) => [heads, make(name)]));
    const sky = { viewBox: "-120 -120 240 240", class: "orbits", role: "img" };
    this.skies = each((name) => s("svg", { ...sky, "aria-label": name }));
    this.errors = each(() => h("span", { class: "error" }));
    element.append(
      h("div", { class: "intro" }, h("h2", {}, "Three moons"), h("p", {}, STORY)),
      this.#controls(),
      h("div", { class: "skies" }, ...Object.entries(ASTRONOMERS).map(([heads, name]) => (
        h("figure", { class: `card astronomer heads${heads}` },
          h("figcaption", {}, h("strong", {}, name), this.errors[heads]), this.skies[heads])))),
      this.chart.figure);
  }

  #controls() {
    this.play = h("button", { class: "primary", onclick: () => this.#play(!this.playing) }, "Play");
    this.scrub = h("input", {
      type: "range", min: 0, max: DATA.moons.watched - 1, value: 0, "aria-label": "Observations",
      oninput: (event) => {
        this.#play(false);
        this.time = Number(event.target.value);
        this.draw();
      },
    });
    this.day = h("output", {});
    const other = () => {
      this.seed++;
      this.load();
    };
    const again = RECORD ? null : h("button", { onclick: other }, "Other phases");
    return h("div", { class: "card controls" },
      h("div", { class: "sliders" }, ...this.periods.map((period, i) => this.#slider(period, i))),
      h("div", { class: "transport" }, this.play, this.scrub, this.day, again));
  }

  #slider(period, i) {
    const shown = h("output", {}, String(period));
    const slider = h("input", {
      type: "range", min: DATA.moons.shortest, max: DATA.moons.longest, value: period,
      "aria-label": `Period of moon ${i + 1}`, disabled: Boolean(RECORD),
      oninput: (event) => {
        this.periods[i] = Number(event.target.value);
        shown.textContent = event.target.value;
        this.load();
      },
    });
    return h("label", { class: `moon moon${i}` }, h("span", {}, `moon ${i + 1}`), slider, shown);
  }

  load() { return this.asking.run(() => this.#load()); }
  retry() { return this.load(); }

  async #load() {
    try {
      this.data = RECORD ? RECORD.moons : await postJson("/api/moons", { periods: this.periods, seed: this.seed });
      this.app.succeeded(this);
    } catch (error) {
      this.app.failed(error, this);
      return;
    }
    if (!this.data) return;
    if (RECORD) this.time = RECORD.start?.time ?? this.time;
    this.chart.frame();
    this.draw();
  }

  open() {
    if (this.data) return;
    const still = RECORD || matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.load().then(() => { if (!still) this.#play(true); });
  }

  close() { this.#play(false); }

  #play(on) {
    this.playing = on;
    this.play.textContent = on ? "Pause" : "Play";
    if (!on || !this.data) return;
    const end = this.data.astronomers[1].error.length - 1;
    if (this.time >= end) this.time = 0;
    let last = performance.now();
    const tick = (now) => {
      if (!this.playing) return;
      this.time = Math.min(end, this.time + Math.max(0, now - last) / 40);
      last = now;
      this.draw();
      if (this.time >= end) this.#play(false);
      else requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  // Dots are the positions of the moons some observations later, rings the predicted ones.
  draw() {
    if (!this.data) return;
    const time = Math.floor(this.time), { truth, astronomers } = this.data;
    const later = truth[time + DATA.moons.ahead];
    for (const [heads, sky] of Object.entries(this.skies)) {
      const found = astronomers[heads];
      const moons = RADII.flatMap((radius, i) => this.#moon(radius, i, truth[time], later, found.expected[time]));
      sky.replaceChildren(s("circle", { r: 7, class: "planet" }), ...moons);
      this.errors[heads].textContent = `error ${found.error[time].toFixed(2)}`;
    }
    this.scrub.value = time;
    this.day.textContent = `${time + 1} seen`;
    this.chart.grow(time);
  }

  #moon(radius, i, ...times) {
    const point = (where) => [radius * where[2 * i], -radius * where[2 * i + 1]];
    const [[x, y], [u, v], [a, b]] = times.map(point);
    return [
      s("circle", { r: radius, class: "orbit" }),
      s("circle", { cx: x, cy: y, r: 2.5, class: `now moon${i}` }),
      s("line", { x1: u, y1: v, x2: a, y2: b, class: "miss" }),
      s("circle", { cx: u, cy: v, r: 6, class: `truth moon${i}` }),
      s("circle", { cx: a, cy: b, r: 9, class: `expected moon${i}` }),
    ];
  }
}

class ErrorChart {
  constructor(moons) {
    this.moons = moons;
    const label = "Error of the next expectations against observations";
    this.element = s("svg", { height: 250, class: "chart", role: "img", "aria-label": label });
    this.facts = h("p", { class: "hint" });
    const legend = h("span", { class: "legend" },
      h("span", { class: "key one" }, "one memory"), h("span", { class: "key three" }, "three memories"));
    this.figure = h("figure", { class: "card" },
      h("figcaption", {}, h("strong", {}, `Error of the next ${DATA.moons.ahead} expectations`), legend),
      this.element, this.facts);
    new ResizeObserver(() => {
      if (!moons.data || !this.element.clientWidth) return;
      this.frame();
      moons.draw();
    }).observe(this.element);
  }

  get #width() { return (this.element.clientWidth || 900) - 24; }
  #x(time) { return 36 + (time / (DATA.moons.watched - 1)) * (this.#width - 36); }
  #y(error) { return 214 - Math.min(1.4, error) / 1.4 * 190; }

  frame() {
    const { watched, ahead } = DATA.moons, { slowest, together } = this.moons.data;
    const parts = [0, 0.5, 1].flatMap((error) => [
      s("line", { x1: 36, x2: this.#width, y1: this.#y(error), y2: this.#y(error), class: "rule" }),
      s("text", { x: 28, y: this.#y(error) + 4, class: "end" }, String(error)),
    ]);
    for (let time = 0; time <= watched; time += 120) {
      parts.push(s("text", { x: this.#x(time), y: 234, class: "middle" }, String(time)));
    }
    this.curves = { 1: s("path", { class: "curve one" }), 3: s("path", { class: "curve three" }) };
    this.element.replaceChildren(...parts, ...Object.values(this.curves));
    this.#mark(slowest, "slowest is back", 16);
    this.#mark(together, "all are back", 30);
    this.facts.textContent = `The slowest moon returns after ${slowest} observations, `
      + `the whole sky after ${together.toLocaleString("en")}.`
      + (together >= watched ? " One memory has not seen it return yet." : "")
      + ` Dots: where the moons will be ${ahead} observations from now. Rings: where the astronomer expects them.`;
  }

  // A vertical line with a label, to its left if it does not fit to its right.
  #mark(time, text, y) {
    if (time >= DATA.moons.watched) return;
    const x = this.#x(time), left = x + 110 > this.#width;
    this.element.append(
      s("line", { x1: x, x2: x, y1: y + 4, y2: 214, class: "mark" }),
      s("text", { x: left ? x - 6 : x + 6, y, class: left ? "end" : "start" }, text));
  }

  grow(time) {
    for (const [heads, curve] of Object.entries(this.curves)) {
      const errors = this.moons.data.astronomers[heads].error.slice(0, time + 1);
      const points = errors.map((error, i) => `${this.#x(i).toFixed(1)} ${this.#y(error).toFixed(1)}`);
      curve.setAttribute("d", `M${points.join("L")}`);
    }
  }
}
