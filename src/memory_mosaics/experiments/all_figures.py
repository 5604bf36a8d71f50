"""Command `mosaics figures`: every figure of section 6 and appendix D that trained models can give, on one page.

    training and validation loss against steps            figure 7
    loss by position, on one text or several              figures 2 and 8
    attention of the last position, width against lambda  appendix D.4
    continuations of the same prompts                     tables 3 and 4

Each part is the command of that name in a folder of its own; finished parts are not computed again.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from memory_mosaics.checkpoint import LoadedModel, iter_models, unique_names
from memory_mosaics.errors import UserError
from memory_mosaics.evaluation import sample_windows
from memory_mosaics.experiments import attention, evaluate, figures, prompts
from memory_mosaics.experiments.report import TEMPLATES, log_curve, write_page
from memory_mosaics.files import read_json
from memory_mosaics.models import architecture_name
from memory_mosaics.results import create_output_folder, write_results
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.training.loggers import read_log


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
    """Draw all figures that the paper has of trained models, on one page: curves, loss by position, attention, texts.

    Ctrl-C keeps the parts that are finished; the same command continues.

    Args:
        runs: training runs, of which the newest checkpoint is taken, or checkpoint folders
        data: one or more folders that `mosaics prepare` wrote with the models' own tokenizer; attention is measured
            on the first
        length: tokens per window, one part each; 512 and 1536 by default
        windows: number of windows to measure losses on; null for all
        sequences: number of sequences to measure attention on
        split: which part of the data; null for valid, or train of a text whose valid has no window of the length
        at_documents: start each window of the losses with a document and end it within
        batch: windows per batch
        device: cuda, mps or cpu; auto takes the first that is available
        out: folder for report.html and the parts
    """
    figures.check()
    lengths = sorted(set(length or attention.LENGTHS))
    if not data:
        raise UserError("name at least one text with --data")
    corpora = [Corpus.open(folder) for folder in data]
    if len({corpus.folder.name for corpus in corpora}) < len(corpora):  # they are names of parts
        raise UserError("two of the texts have folders of the same name; rename one")
    models, curves = [], []
    for trained in iter_models(unique_names(runs)):
        for corpus in corpora:
            trained.check_tokenizer_of(corpus)
        written = sorted(file.stat().st_mtime_ns for file in trained.folder.glob("*.safetensors"))
        models.append([trained.name, str(trained.folder), written])  # trained again, it is another model
        curves += _training_curve(trained)
    create_output_folder(out)
    parts: list[dict[str, Any]] = []  # of the page: results and their folder, or a note
    if curves:
        results = {"study": "runs", "runs": curves}
        create_output_folder(out / "training")
        write_results(out / "training" / "results.json", results)
        figures.draw(results, out / "training")
        parts.append({"results": results, "folder": out / "training"})

    def note(text: str) -> None:
        print(text)
        parts.append({"note": text})

    def add(name: str, command: Any, options: dict[str, Any], corpus: Corpus | None = None, **resources: Any) -> None:
        """Add a part. One that these models cannot give is named on the page, and the others follow."""
        request = {"runs": models} | options
        if corpus is not None:
            request["corpus"] = {split: part["sha256"] for split, part in corpus.manifest["splits"].items()}
            resources["data"] = corpus.folder
        try:
            results = _run_once(command, runs, request, out / name, **options, **resources)
            parts.append({"results": results, "folder": out / name})
        except UserError as error:
            note(f"{name} is left out: {error}")

    for corpus in corpora:
        name = corpus.folder.name
        splits = {size: split or _choose_split(corpus, size, at_documents=at_documents) for size in lengths}
        if split is None and (trains := " or ".join(str(size) for size in lengths if splits[size] == "train")):
            note(f"{name}: its valid split has no window of {trains} tokens, so its train split is read there.")
        for size in lengths:
            options = {"split": splits[size], "length": size, "windows": windows, "at_documents": at_documents}
            add(f"{name}-{size}", evaluate, options, corpus, by_position=True, batch=batch, device=device)
    options = {"split": split or _choose_split(corpora[0], lengths[-1]), "length": lengths, "sequences": sequences}
    add("attention", attention, options, corpora[0], batch=batch, device=device)
    add("prompts", prompts, {}, device=device)
    shown = {"parts": parts, "about_rules": prompts.ABOUT_RULES, "by_rule": prompts.BY_RULE, "score": prompts.score}
    write_page(out / "report.html", TEMPLATES / "all_figures.html", **shown)
    print(f"The page, to open in a browser: {out / 'report.html'}. Texts to judge: {out / 'prompts' / 'prompts.html'}.")
    return {"study": "figures", "interrupted": False}


def _run_once(command: Any, runs: list[str], request: dict[str, Any], folder: Path, **options: Any) -> dict[str, Any]:
    """Return the results in a folder if a command finished there with the same request; else run it."""
    file = folder / "request.json"
    try:
        if read_json(file) == request and isinstance(found := read_json(folder / "results.json"), dict):
            return found
    except FileNotFoundError:
        pass
    except UserError:  # a damaged file: it is measured again
        (folder / "results.json").unlink(missing_ok=True)
    file.unlink(missing_ok=True)
    found = command.run(runs, out=folder, **options)
    if found.get("interrupted"):
        raise KeyboardInterrupt
    write_results(file, request)
    return found


def _choose_split(corpus: Corpus, length: int, *, at_documents: bool = False) -> str:
    """Return valid where it has a window; else train if that has one, as of a text of which nothing was held out."""
    for split in ("valid", "train"):
        with suppress(UserError):
            sample_windows(corpus, split=split, length=length, count=1, at_documents=at_documents)
            return split
    return "valid"


def _training_curve(trained: LoadedModel) -> list[dict[str, Any]]:
    """Return the losses in the log of a training run: none for a checkpoint without one."""
    lines = read_log(trained.folder.parent / "log.jsonl")
    curve, measured = log_curve(lines, "loss"), log_curve(lines, "valid_loss")
    record = {"name": trained.name, "architecture": architecture_name(trained.model.config)}
    return [record | {"curve": curve, "measured": measured}] if curve and measured else []
