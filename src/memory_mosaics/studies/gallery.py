"""Every figure of the paper's section 6 and appendix D that trained models can give, on one page.

    training and validation loss against steps            figure 7
    loss by position, on one text or several              figures 2 and 8
    attention of the last position, width against lambda  appendix D.4
    continuations of the same prompts                     tables 3 and 4

Each part is a study of its own, in a folder of its own: what is finished is not computed again.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memory_mosaics import evaluation, figures
from memory_mosaics import results as files
from memory_mosaics.errors import UserError
from memory_mosaics.report import Page
from memory_mosaics.studies import attention, evaluate, prompts
from memory_mosaics.studies.prompts_page import BY_RULE, score
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.trained import Trained, named, one_by_one
from memory_mosaics.training.log import read


def run(
    runs: list[str],
    *,
    data: list[str],
    length: list[int] | None = None,
    windows: int | None = 1000,
    sequences: int = 2000,
    split: str = "valid",
    batch: int = 8,
    device: str = "auto",
    out: Path = Path("runs/figures"),
) -> dict[str, Any]:
    """Draw all that the paper draws of trained models: curves, loss by position, attention, continuations; one page.

    Ctrl-C keeps the parts that are finished; the same command goes on.

    Args:
        runs: training runs, of which the newest checkpoint is taken, or checkpoint folders
        data: one or more folders that `mosaics prepare` wrote with the models' own tokenizer; attention looks at the
            first
        length: tokens in a window, one part each; 512 and 1536 if none are named
        windows: how many to measure losses on; null for all
        sequences: how many to look at attention in
        split: which part of the data
        batch: windows at a time
        device: cpu, cuda, mps, or auto for the best there is
        out: folder for report.html and the parts
    """
    figures.check()
    lengths = length or list(attention.LENGTHS)
    models = named(runs)
    corpora = {Path(name).name: Corpus.open(name) for name in data}
    if len(corpora) < len(data):
        raise UserError("two of the texts have folders of the same name; rename one")
    asked: dict[str, Any] = {"split": split, "runs": []}
    records = []
    for trained in one_by_one(models):
        for corpus in corpora.values():
            trained.check_reads(corpus)
        asked["runs"].append([trained.name, str(trained.folder), _written(trained.folder)])
        records += _curve(trained)
    files.prepare(out)
    computed: dict[str, Any] = {"split": split, "batch": batch, "device": device}
    page = Page("What trained models do")
    _curves(page, records, out / "training")
    for name, corpus in corpora.items():
        for long in lengths:
            place = out / f"{name}-{long}"
            wish = {"length": long, "windows": windows}
            options = computed | wish | {"data": corpus.folder, "by_position": True}
            with _left_out(page):
                _loss(page, _part(place, asked | wish | _of(corpus), evaluate.run, runs, **options), place)
    first, wish = next(iter(corpora.values())), {"length": lengths, "sequences": sequences}
    with _left_out(page):
        options, place = computed | wish | {"data": first.folder}, out / "attention"
        _attention(page, _part(place, asked | wish | _of(first), attention.run, runs, **options), place)
    with _left_out(page):
        _prompts(page, _part(out / "prompts", asked, prompts.run, runs, device=device))
    page.write(out / "report.html")
    print(f"The page, to open in a browser: {out / 'report.html'}. Texts to judge: {out / 'prompts' / 'prompts.html'}.")
    return {"study": "figures", "interrupted": False}


def _part(place: Path, asked: dict[str, Any], study: Callable[..., dict[str, Any]], *words: Any, **options: Any) -> Any:
    """What a study found, from its folder if it came to its end there with the same wishes."""
    file, wishes = place / "results.json", place / "asked.json"
    if file.exists() and wishes.exists() and json.loads(wishes.read_text(encoding="utf-8")) == asked:
        return json.loads(file.read_text(encoding="utf-8"))
    for old in (wishes, *place.glob("*.png")):
        old.unlink(missing_ok=True)
    found = study(*words, out=place, **options)
    if found.get("interrupted"):
        raise KeyboardInterrupt
    files.write(wishes, asked)
    return found


@contextmanager
def _left_out(page: Page) -> Iterator[None]:
    """A part that these models cannot give is named, and the others go on."""
    try:
        yield
    except UserError as error:
        print(f"left out: {error}")
        page.text(f"Left out: {error}")


def _written(checkpoint: Path) -> list[int]:
    """When its weights were: another training in the same folder is another model."""
    return sorted(file.stat().st_mtime_ns for file in checkpoint.glob("*.safetensors"))


def _of(corpus: Corpus) -> dict[str, Any]:
    return {"corpus": {name: part["sha256"] for name, part in corpus.manifest["splits"].items()}}


def _curve(trained: Trained) -> list[dict[str, Any]]:
    """The losses of a training run of ours; a checkpoint by itself has no log."""
    lines = read(trained.folder.parent / "log.jsonl")
    curve = [[line["step"], round(line["loss"], 4)] for line in lines if "loss" in line]
    measured = [[line["step"], round(line["valid_loss"], 4)] for line in lines if "valid_loss" in line]
    about = {"name": trained.name, "architecture": evaluation.architecture(trained.model.config)}
    return [about | {"curve": curve, "measured": measured}] if curve and measured else []


def _curves(page: Page, records: list[dict[str, Any]], out: Path) -> None:
    if records:
        files.prepare(out)
        results = {"study": "runs", "runs": records}
        files.write(out / "results.json", results)
        page.heading("Training")
        for file in figures.draw(results, out):
            page.figure(file, "Loss against steps: lines are the batches trained on, dots the validation text.")


def _loss(page: Page, found: dict[str, Any], place: Path) -> None:
    page.heading(f"Loss by position: {found['corpus']}, windows of {found['length']} tokens")
    rows = [
        [model["name"], f"{model['loss']:.4f}", f"{model['perplexity']:,.2f}", f"{model['bits_per_byte']:.4f}"]
        for model in found["models"]
    ]
    page.table(["model", "loss", "perplexity", "bits a byte"], rows)
    beyond = [model["name"] for model in found["models"] if model["context"] < found["length"]]
    if beyond:
        page.text(f"Longer than what was trained on: {', '.join(beyond)}.")
    page.figure(place / "loss_by_position.png", "Mean loss at each position, with its 95 % confidence band.")


def _attention(page: Page, found: dict[str, Any], place: Path) -> None:
    page.heading("How the last position attends to earlier ones")
    captions = {
        "attention.png": "Weight of earlier positions, averaged over heads and blocks.",
        "heads.png": "The same for every head.",
        "width.png": "How wide a memory looks, against the leaky coefficient of its keys.",
    }
    for name, caption in captions.items():
        if (place / name).exists():
            page.figure(place / name, caption)
    rows = [[m["name"], str(m["length"]), f"{m['pairs']:.1f}", f"{m['distance']:.1f}"] for m in found["models"]]
    page.table(["model", "length", "pairs retrieved in effect", "tokens back"], rows)


def _prompts(page: Page, found: dict[str, Any]) -> None:
    page.heading("How they go on")
    page.text("The same prompts for all, by beam search. prompts/prompts.html has a place for verdicts.")
    page.text("By rule is a first look at the words with which a text begins, where a rule can tell; it is no verdict.")
    page.table(["model", "by rule"], [[name, score(model["by_rule"])] for name, model in found["models"].items()])
    for number, prompt in enumerate(found["prompts"]):
        page.text(f"{prompt['prompt']} ...")
        page.beside(
            {
                name: f"... {model['texts'][number]}\nBy rule: {BY_RULE[model['by_rule'][number]]}."
                for name, model in found["models"].items()
            }
        )
