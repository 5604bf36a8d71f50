// Saving what is on the page: as one HTML file that can still be hovered, or as a picture.

function download(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function saveHtml(app) {
  const panes = app.view === "moons" ? [] : app.shownPanes().map((pane) => ({
    session: pane.session, model: pane.number, text: app.text, edits: pane.edits, page: pane.data.page, memory: pane.memory,
  }));
  const sky = app.view === "moons" ? { periods: app.moons.periods, seed: app.moons.seed } : null;
  const [first] = app.shownPanes();
  const start = { view: app.view, memories: app.shownPanes().map((pane) => pane.memory), position: first.position, time: Math.floor(app.moons.time), measure: first.mosaic.measure, theme: app.theme };
  const answer = await ask("/api/export", { panes, sky, start });
  download(await answer.blob(), `memory-mosaic-${app.view}.html`);
}

async function savePng(app) {
  const shown = app.view === "moons" ? at("sky") : at("reading");
  const { width, height } = shown.getBoundingClientRect();
  const margin = 24, [wide, high] = [Math.ceil(width) + 2 * margin, Math.ceil(height) + 2 * margin];
  const copy = shown.cloneNode(true);
  const fields = shown.querySelectorAll("textarea, input, select");
  copy.querySelectorAll("textarea, input, select").forEach((field, i) => { // a copy forgets what was typed
    if (field.tagName === "TEXTAREA") { field.textContent = fields[i].value; field.style.height = `${fields[i].offsetHeight}px`; }
    else field.setAttribute("value", fields[i].value);
    if (field.tagName === "SELECT") field.querySelectorAll("option").forEach((option, j) => option.toggleAttribute("selected", j === fields[i].selectedIndex));
  });
  const page = h("div", { class: "picture", "data-view": app.view, xmlns: "http://www.w3.org/1999/xhtml" }, h("style", {}, document.querySelector("style").textContent), copy);
  page.style.cssText = `width:${wide}px;min-height:${high}px;padding:${margin}px;box-sizing:border-box`;
  const frame = s("foreignObject", { width: wide, height: high }, page);
  const picture = s("svg", { xmlns: SVG, width: wide, height: high, "data-theme": app.resolved(), class: document.documentElement.className }, frame);
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(new XMLSerializer().serializeToString(picture));
  await image.decode();
  const canvas = h("canvas", { width: 2 * wide, height: 2 * high });
  const brush = canvas.getContext("2d");
  brush.scale(2, 2);
  brush.drawImage(image, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("This browser cannot make a picture of the page; save it as HTML.");
  download(blob, `memory-mosaic-${app.view}.png`);
}
