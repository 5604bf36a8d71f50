// Save the view as one HTML file that still responds to the pointer, or as a picture.

function download(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function saveHtml(app) {
  const moons = app.view === "moons";
  const panes = moons ? [] : app.shownPanes().map((pane) => ({
    ...pane.request(pane.shownText), page: pane.data.page, pinned: pane.pinned, measure: pane.mosaic.measure,
    look: { position: pane.position, memory: pane.memory, target: pane.target },
  }));
  const periods = moons ? { periods: app.moons.periods, seed: app.moons.seed } : null;
  const { view, theme, guessing } = app;
  const start = { view, theme, guessing, time: Math.floor(app.moons.time) };
  const answer = await post("/api/export", { panes, moons: periods, start });
  download(await answer.blob(), `memory-mosaic-${view}.html`);
}

// cloneNode does not copy what was typed and selected.
function copyWithValues(shown) {
  const copy = shown.cloneNode(true);
  const fields = shown.querySelectorAll("textarea, input, select");
  copy.querySelectorAll("textarea, input, select").forEach((field, i) => {
    const { value, offsetHeight, selectedIndex } = fields[i];
    if (field.tagName === "TEXTAREA") {
      field.textContent = value;
      field.style.height = `${offsetHeight}px`;
    } else if (field.tagName === "SELECT") {
      [...field.options].forEach((option, j) => option.toggleAttribute("selected", j === selectedIndex));
    } else {
      field.setAttribute("value", value);
    }
  });
  return copy;
}

// Characters that XML cannot contain, among them lone surrogates, as they are shown in the text.
const withoutControls = (xml) => xml.replace(/[^\t\n\r -\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]/gu, (letter) => {
  const code = letter.codePointAt(0);
  return code < 32 ? visible(letter) : "\ufffd";
});

async function savePng(app) {
  const shown = app.view === "moons" ? byId("moons") : byId("reading");
  const { width, height } = shown.getBoundingClientRect();
  const margin = 24, [wide, high] = [Math.ceil(width) + 2 * margin, Math.ceil(height) + 2 * margin];
  const page = h("div", { class: "picture", "data-view": app.view, xmlns: "http://www.w3.org/1999/xhtml" },
    h("style", {}, document.querySelector("style").textContent), copyWithValues(shown));
  page.style.cssText = `width:${wide}px;min-height:${high}px;padding:${margin}px;box-sizing:border-box`;
  const picture = s("svg", {
    xmlns: SVG, width: wide, height: high, "data-theme": app.resolved(), class: document.documentElement.className,
  }, s("foreignObject", { width: wide, height: high }, page));
  const image = new Image();
  const xml = withoutControls(new XMLSerializer().serializeToString(picture));
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(xml);
  await image.decode();
  const canvas = h("canvas", { width: 2 * wide, height: 2 * high });
  const brush = canvas.getContext("2d");
  brush.scale(2, 2);
  brush.drawImage(image, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new Error("This browser cannot make a picture of the page; save it as HTML.");
  download(blob, `memory-mosaic-${app.view}.png`);
}
