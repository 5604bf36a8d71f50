"""Every figure of the paper's section 6 and appendix D that trained models can give, on one page.

    training and validation loss against steps            figure 7
    loss by position, on one text or several              figures 2 and 8
    attention of the last position, width against lambda  appendix D.4
    continuations of the same prompts                     tables 3 and 4

Each part is a study of its own, in a folder of its own: what is finished is not computed again.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from memory_mosaics import evaluation
from memory_mosaics import results as files
from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError
from memory_mosaics.experiments import attention, evaluate, figures, prompts
from memory_mosaics.experiments.prompts_page import BY_RULE, score
from memory_mosaics.experiments.report import Page
from memory_mosaics.files import read_json
from memory_mosaics.models import architecture_name
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training.log import read


def run(
    runs: list[str],
    *,
    data: list[str],
    length: list[int] | None = None,
    windows: int | None = 1000,
    sequences: int = 2000,
    split: str | None = None,
    at_documents: bool = False,
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
        split: which part of the data; null for valid, or train of a text whose valid has no window of the length
        at_documents: begin each window of the losses with a document and keep it within
        batch: windows at a time
        device: cpu, cuda, mps, or auto for the best there is
        out: folder for report.html and the parts
    """
    figures.check()
    lengths = sorted(set(length or attention.LENGTHS))
    corpora = _texts(data)
    parts = _Parts(runs, corpora, out)
    computed = {"batch": batch, "device": device}
    for corpus in corpora:
        splits = _splits(parts.page, corpus, lengths, split, at_documents=at_documents)
        for long, part in splits.items():
            wish = {"split": part, "length": long, "windows": windows, "at_documents": at_documents}
            parts.add(f"{corpus.folder.name}-{long}", evaluate.run, _loss, wish, corpus, by_position=True, **computed)
    wish = {"split": split or _split(corpora[0], lengths[-1]), "length": lengths, "sequences": sequences}
    parts.add("attention", attention.run, _attention, wish, corpora[0], **computed)
    parts.add("prompts", prompts.run, _prompts, {}, device=device)
    parts.page.write(out / "report.html")
    print(f"The page, to open in a browser: {out / 'report.html'}. Texts to judge: {out / 'prompts' / 'prompts.html'}.")
    return {"study": "figures", "interrupted": False}


class _Parts:
    """The page, and under `out` a folder for each part; what is finished there with the same wishes stays."""

    def __init__(self, runs: list[str], corpora: list[Corpus], out: Path):
        self.runs, self.out, self.page = runs, out, Page("What trained models do")
        self.asked: list[Any] = []
        records = []
        for trained in iter_models(unique_names(runs)):
            for corpus in corpora:
                trained.check_reads(corpus)
            self.asked.append([trained.name, str(trained.folder), _written(trained.folder)])
            records += _curve(trained)
        files.prepare(out)
        _curves(self.page, records, out / "training")

    def add(
        self,
        name: str,
        study: Callable[..., dict[str, Any]],
        show: Callable[[Page, dict[str, Any], Path], None],
        wish: dict[str, Any],
        corpus: Corpus | None = None,
        **how: Any,
    ) -> None:
        """A study, as it is wished for and computed. One that these models cannot give is named, and others go on."""
        place = self.out / name
        asked = {"runs": self.asked} | wish
        if corpus is not None:
            asked["corpus"] = {name: part["sha256"] for name, part in corpus.manifest["splits"].items()}
            how["data"] = corpus.folder
        try:
            show(self.page, _found(place, asked, study, self.runs, **wish, **how), place)
        except UserError as error:
            print(f"left out: {error}")
            self.page.text(f"Left out: {error}")


def _found(
    place: Path, asked: dict[str, Any], study: Callable[..., dict[str, Any]], *words: Any, **options: Any
) -> dict[str, Any]:
    """What a study found, from its folder if it came to its end there with the same wishes."""
    file, wishes = place / "results.json", place / "asked.json"
    try:
        if read_json(wishes) == asked and isinstance(found := read_json(file), dict):
            return found
    except (FileNotFoundError, UserError):
        pass  # damaged: it is measured again
    wishes.unlink(missing_ok=True)
    found = study(*words, out=place, **options)
    if found.get("interrupted"):
        raise KeyboardInterrupt
    files.write(wishes, asked)
    return found


def _texts(data: list[str]) -> list[Corpus]:
    """All of them opened. Their names are those of parts, so no two may be alike."""
    if not data:
        raise UserError("name at least one text with --data")
    corpora = [Corpus.open(folder) for folder in data]
    if len({corpus.folder.name for corpus in corpora}) < len(corpora):
        raise UserError("two of the texts have folders of the same name; rename one")
    return corpora


def _splits(page: Page, corpus: Corpus, lengths: list[int], split: str | None, *, at_documents: bool) -> dict[int, str]:
    """Which split is read at each length. Where it is not the one that others are read in, that is said."""
    if split is not None:
        return dict.fromkeys(lengths, split)
    splits = {length: _split(corpus, length, at_documents=at_documents) for length in lengths}
    if trains := " or ".join(str(length) for length, split in splits.items() if split == "train"):
        name = corpus.folder.name
        said = f"{name}: its valid split has no window of {trains} tokens, so its train split is read there"
        print(said)
        page.text(f"{said}.")
    return splits


def _split(corpus: Corpus, length: int, *, at_documents: bool = False) -> str:
    """Valid where it has a window, else train if that has one: a text of which nothing was held out is read too."""
    for split in ("valid", "train"):
        with suppress(UserError):
            evaluation.sample(corpus, split=split, length=length, count=1, at_documents=at_documents)
            return split
    return "valid"


def _written(checkpoint: Path) -> list[int]:
    """When its weights were: another training in the same folder is another model."""
    return sorted(file.stat().st_mtime_ns for file in checkpoint.glob("*.safetensors"))


def _curve(trained: LoadedModel) -> list[dict[str, Any]]:
    """The losses of a training run of ours; a checkpoint by itself has no log."""
    lines = read(trained.folder.parent / "log.jsonl")
    curve = [[line["step"], round(line["loss"], 4)] for line in lines if "loss" in line]
    measured = [[line["step"], round(line["valid_loss"], 4)] for line in lines if "valid_loss" in line]
    about = {"name": trained.name, "architecture": architecture_name(trained.model.config)}
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
    page.heading(f"Loss by position: {found['corpus']} ({found['split']}), windows of {found['length']} tokens")
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


def _prompts(page: Page, found: dict[str, Any], place: Path) -> None:
    page.heading("How they go on")
    page.text(f"The same prompts for all, by beam search. {place.name}/prompts.html has a place for verdicts.")
    page.text("By rule is a first look at the words with which a text begins, where a rule can tell; it is no verdict.")
    page.table(["model", "by rule"], [[name, score(model["by_rule"])] for name, model in found["models"].items()])
    for number, prompt in enumerate(found["prompts"]):
        page.text(f"{prompt['prompt']} ...")
        page.beside(
            {name: f"... {model['texts'][number]}" for name, model in found["models"].items()},
            {name: f"By rule: {BY_RULE[model['by_rule'][number]]}" for name, model in found["models"].items()},
        )
