"""The demo: everything from nothing to a report, in minutes on a laptop.

Three moons; the embedded stories as a corpus; a Memory Mosaic and a Llama-like transformer of the same size, trained on
the same batches; what both have learned, in numbers, in stories and in one picture; one HTML page with all of it.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memory_mosaics import checkpoint
from memory_mosaics.apps.explorer import PORT
from memory_mosaics.apps.story_world import stories
from memory_mosaics.decoding import Sampler, generate
from memory_mosaics.experiments import curves, figures, moons
from memory_mosaics.experiments.report import write_page
from memory_mosaics.inspection import patterns
from memory_mosaics.language_model import LanguageModel
from memory_mosaics.results import create_output_folder, round_digits, write_results
from memory_mosaics.runtime import RuntimeConfig
from memory_mosaics.text import corpus as corpora
from memory_mosaics.text.sources import find_sources
from memory_mosaics.text.tokenizer import Tokenizer
from memory_mosaics.training.config import ModelArgs, Training

STORIES = 20_000
VOCABULARY = 2048
BLOCKS = 2
TWINS = ["memory-mosaic", "llama"]
MODEL = ModelArgs(width=128, heads=4, context=256)
TRAINING = Training(
    steps=700,
    batch=8,
    learning_rate=5e-3,
    final_learning_rate=5e-4,
    warm_up=70,
    evaluate_every=150,
    evaluate_windows=48,
)
UNSEEN_SEED = 1_000_003  # of the stories for probes and continuations
PROBED, CONTINUED = 150, 3  # number of stories
OPENING, LENGTH = 24, 120  # words of a prompt, and tokens of a continuation
PICTURED = 40  # tokens of the story in the picture


def run(out: Path = Path("runs/demo"), *, steps: int = TRAINING.steps, story_count: int = STORIES) -> dict[str, Any]:
    """Run three moons, train a Memory Mosaic and a Llama-like transformer on the embedded stories, and write a report.

    Five minutes on two cores. Ctrl-C keeps what is finished; the same command resumes.

    Args:
        out: folder of all results; report.html is the page to open
        steps: training steps of each model
        story_count: number of stories in the corpus
    """
    training = replace(TRAINING, steps=steps, warm_up=min(TRAINING.warm_up, steps // 5))
    find_sources([f"stories:{story_count}"])
    figures.check()
    create_output_folder(out)
    print("1. Three moons: one memory of everything against one memory per moon")
    moons_results = moons.run(out / "moons")
    if moons_results["interrupted"]:
        return {"interrupted": True}
    print(f"\n2. A corpus: {story_count:,} stories of the embedded world")
    corpus = corpora.prepare([f"stories:{story_count}"], out=out / "corpus", tokenizer="bpe", vocabulary=VOCABULARY)
    print("\n3. A Memory Mosaic and a Llama-like transformer: same parameters, same batches in the same order")
    trained = curves.run(
        out / "corpus", out / "language", architectures=TWINS, blocks=[BLOCKS], learning_rates=[training.learning_rate],
        model=MODEL, training=training, runtime=RuntimeConfig(samples=0),
    )  # fmt: skip
    results = {"study": "demo", "interrupted": trained["interrupted"], "moons": moons_results}
    if results["interrupted"]:
        return results
    tokenizer = corpus.tokenizer()
    models = {record["architecture"]: checkpoint.load(out / "language" / record["run"]) for record in trained["runs"]}
    print("\n4. What they recall from earlier in a story, and the stories they generate")
    results["memory"] = {name: recall_accuracy(model, tokenizer) for name, model in models.items()}
    results["stories"] = continue_stories(models, tokenizer)
    results["picture"] = picture(models["memory-mosaic"], tokenizer)
    results["language"], results["corpus"] = trained, corpus.manifest
    results["seconds"] = round(moons_results["seconds"] + sum(one["seconds"] for one in trained["runs"]), 1)
    print(summary(results))
    (drawn,) = figures.draw(results, out)
    shown = {"results": results, "out": out, "labels": curves.LABELS, "blocks": BLOCKS, "opening": OPENING}
    page = write_page(out / "report.html", Path(__file__).with_name("demo.html"), exp=math.exp, drawn=drawn, **shown)
    kept = ("study", "seconds", "memory", "stories", "picture")
    write_results(out / "results.json", {key: results[key] for key in kept})
    print(f"\n{results['seconds'] / 60:.1f} minutes. The report, to open in a browser: {page}")
    print(f"A picture to share, of every memory at work: {drawn}")
    folders = " ".join(str(out / "language" / record["run"]) for record in trained["runs"])
    print(f"To look inside, type and see every memory work, at http://127.0.0.1:{PORT}:\n  mosaics explore {folders}")
    return results


@torch.no_grad()
def recall_accuracy(model: LanguageModel, tokenizer: Tokenizer) -> dict[str, float | int]:
    """How often the most likely word is the one determined by what a story contains 40 or more words before."""
    right = asked = 0
    for story in stories(PROBED, seed=UNSEEN_SEED):
        for prefix, answer in story.probes:
            before, word = tokenizer.encode(prefix), tokenizer.encode(" " + answer)
            if word and len(before) + len(word) <= model.config.context:
                logits, _ = model(torch.tensor([[*before, *word[:-1]]]))
                right += logits[0, len(before) - 1 :].argmax(-1).tolist() == word
                asked += 1
    return {"asked": asked, "right": right, "share": right / max(1, asked)}


def continue_stories(models: dict[str, LanguageModel], tokenizer: Tokenizer) -> list[dict[str, str]]:
    """The openings of unseen stories, and each model's continuation."""
    continued = []
    for number, story in enumerate(stories(CONTINUED, seed=UNSEEN_SEED + 1)):
        opening = " ".join(story.text.split()[:OPENING])
        prompt = torch.tensor(tokenizer.encode(opening))
        texts = {"opening": opening}
        for name, model in models.items():
            sampling = {"sampler": Sampler(temperature=0.7), "generator": torch.Generator().manual_seed(number)}
            (tokens,) = generate(model, [prompt], LENGTH, eos=tokenizer.end_of_text, **sampling)
            texts[name] = tokenizer.decode(tokens.tolist()).strip()
        continued.append(texts)
    return continued


def picture(model: LanguageModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """The first tokens of an unseen story, and the weights of the pairs that each contextual memory retrieves there."""
    (story,) = stories(1, seed=UNSEEN_SEED + 2)
    tokens = tokenizer.encode(story.text)[:PICTURED]
    weights = [block[0] for block in patterns(model, torch.tensor(tokens))]  # (H, T, T) of each block
    return {"tokens": [tokenizer.display(token) for token in tokens], "weights": round_digits(np.stack(weights), 3)}


def summary(results: dict[str, Any]) -> str:
    """The recall accuracies and the continuations, for the terminal."""
    lines = ["words determined by an earlier sentence, predicted correctly:"]
    for name, found in results["memory"].items():
        lines.append(f"  {curves.LABELS[name]:18} {found['right']:4} of {found['asked']} ({found['share']:.0%})")
    for texts in results["stories"]:
        lines += ["", f"> {texts['opening']} ..."]
        lines += [f"  {curves.LABELS[name]}: ... {texts[name]}" for name in results["memory"]]
    return "\n".join(lines)
