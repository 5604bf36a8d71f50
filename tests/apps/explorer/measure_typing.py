"""Time from a keystroke to the finished picture: `python tests/apps/explorer/measure_typing.py RUN OUT.json [OPTIONS]`.

A text of about 300 tokens, a memory chosen; the page in Chromium, the server beside it on the same machine. The options
are those of `mosaics explore`, such as --memory.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from playwright.sync_api import sync_playwright

from memory_mosaics.checkpoint import LoadedModel

TIMES = 9
STORY = (
    "Once there was a little girl named Lily. She had a red kite and a small dog named Max. One day Lily and Max went "
    "to the park. The wind was strong and Lily was happy. "
) * 7
PLACES = {"end": len(STORY), "middle": len(STORY) // 2, "start": 0}
TYPE = """async ([before, after]) => {
  const { box, panes: [pane] } = window.explorer;
  const write = async (text) => { box.value = window.explorer.text = text; await pane.read(); };
  await write(before);
  const begin = performance.now();
  await write(after);
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return [performance.now() - begin, pane.data.recomputed, pane.data.count];
}"""
HOVER = """async (position) => {
  const [pane] = window.explorer.panes;
  pane.position = position;
  const begin = performance.now();
  await pane.look();
  return performance.now() - begin;
}"""


def measure(run: Path, *options: str) -> dict:
    config = LoadedModel.open(run).model.config
    command = [
        sys.executable,
        "-m",
        "memory_mosaics.cli",
        "explore",
        str(run),
        "--port",
        "0",
        "--device",
        "cpu",
        *options,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(word for word in server.stdout.readline().split() if word.startswith("http"))
            found = _in_browser(address)
        finally:
            server.terminate()
    model = {"blocks": config.blocks, "width": config.width, "vocabulary": config.vocabulary}
    machine = {"threads": torch.get_num_threads(), "load": [round(load, 1) for load in os.getloadavg()]}
    return {"model": model, "machine": machine, "times": TIMES, **found}


def _in_browser(address: str) -> dict:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.goto(address)
        page.wait_for_selector(".tile span:not(:empty)", state="attached")
        if not page.locator(".tile[aria-selected=true]").count():  # no example is recalled
            page.click(".tile >> nth=2")
        page.wait_for_selector(".pairs li")
        typed = {}
        for name, at in PLACES.items():
            changed = STORY[:at] + " dog " + STORY[at:]
            rows = [page.evaluate(TYPE, [STORY, changed]) for _ in range(TIMES)]
            typed[name] = {
                "milliseconds": round(statistics.median(row[0] for row in rows)),
                "worst": round(max(row[0] for row in rows)),
                "read_again": rows[0][1],
            }
        tokens = page.evaluate("window.explorer.panes[0].data.count")
        hover = round(statistics.median(page.evaluate(HOVER, position) for position in range(100, 100 + TIMES)))
        browser.close()
    return {"tokens": tokens, "typed": typed, "hover": hover}


if __name__ == "__main__":
    results = measure(Path(sys.argv[1]), *sys.argv[3:])
    Path(sys.argv[2]).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=2))
