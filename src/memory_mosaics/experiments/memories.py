"""Commands `mosaics read` and `mosaics memory`: texts that a model has read, as files to continue from."""

import hashlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from memory_mosaics.bounded_stores import AnyPolicy, StorePolicy
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.errors import UserError, check_range, printable, within_memory
from memory_mosaics.experiments.report import check_output_file, text_table
from memory_mosaics.files import read_text
from memory_mosaics.indexed_store import IndexPolicy
from memory_mosaics.inspection import heaviest_pairs, retrievals
from memory_mosaics.memory_files import Memory, load_memories, union
from memory_mosaics.memory_files import read as read_tokens
from memory_mosaics.results import progress_bar
from memory_mosaics.runtime import find_device
from memory_mosaics.store_files import newest_pairs
from memory_mosaics.stores import state_tensors

MAX_TEXT_BYTES = 1 << 30
SAVE_SECONDS = 30.0  # between saves of what has been read so far
AROUND = 8  # tokens shown before and after a pair


def read(run: Path, text: Path, *, out: Path, store: str = "exact", device: str = "auto") -> dict[str, Any]:
    """Read a text once and keep what the model stored of it in a file, to generate from, search and merge.

    Progress is saved twice a minute, and when Ctrl-C stops it: the same command continues.

    Args:
        run: the folder of a training run, or a checkpoint folder, of a Memory Mosaic
        text: a UTF-8 text file
        out: the memory file to write
        store: which pairs to keep: exact for all, or window, sinks, lru, merge, reservoir or kmeans with a number of
            pairs, such as lru:4096; or indexed for all, of which each query reads few
        device: cuda, mps or cpu; auto takes the first that is available
    """
    policy = StorePolicy.parse(store)
    try:
        content = read_text(text, MAX_TEXT_BYTES)
    except OSError as error:
        raise UserError(f"{text} cannot be read: {error.strerror}") from error
    trained = LoadedModel.open(run, device=find_device(device))
    tokens = torch.tensor(trained.tokenizer.encode(content), dtype=torch.long)
    if not len(tokens):
        raise UserError(f"{text} is empty: there is nothing to read")
    described = {"name": text.name, "sha256": hashlib.sha256(content.encode()).hexdigest()}
    memory = _begun(out, trained, described, policy) if out.exists() else None
    check_output_file(out)
    interrupted, saved, done = False, time.monotonic(), 0 if memory is None else len(memory.tokens)
    with (
        within_memory("a bounded --store may fit, such as lru:4096"),
        progress_bar(text.name, len(tokens), "token") as bar,
    ):
        bar.update(done)
        try:
            for newest in read_tokens(trained, tokens, described, policy=policy, memory=memory):
                bar.update(len(newest.tokens) - done)
                memory, done = newest, len(newest.tokens)
                if not memory.complete and time.monotonic() > saved + SAVE_SECONDS:
                    memory.save(out)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            interrupted = True
    if memory is not None:
        memory.save(out)
    state = (
        f"stopped after {done:,} of {len(tokens):,} tokens; the same command continues" if interrupted else "written"
    )
    print(f"{out}: {state}" + ("" if memory is None else f"; {_describe_pairs(memory)}"))
    return {"tokens": done, "interrupted": interrupted}


def _begun(out: Path, trained: LoadedModel, text: dict[str, Any], policy: AnyPolicy | None) -> Memory:
    """The memory of the beginning of the same text, or an error: a file of something else is not overwritten."""
    memory, remedy = Memory.load(out), "name another --out, or remove it first"
    memory.check_model(trained, trained.fingerprint())
    if len(memory.texts) != 1 or any(memory.texts[0][name] != value for name, value in text.items()):
        names = ", ".join(one["name"] for one in memory.texts)
        raise UserError(f"{out} holds another text, {names}, not this {text['name']}; {remedy}")
    if memory.policy != policy:
        raise UserError(f"{out} has a store {memory.policy or 'exact'}, not {policy or 'exact'}; {remedy}")
    return memory


def _describe_pairs(memory: Memory) -> str:
    heads = sum(newest_pairs(store).keys.shape[2] for store in memory.stores)
    parts = ((x.keys, x.values) if x is newest_pairs(x) else state_tensors(x) for x in memory.stores)
    size = sum(x.numel() * x.element_size() for part in parts for x in part)
    return f"{memory.pairs:,} pairs in each of {heads} heads, {size / 1e6:,.1f} MB"


def info(file: Path) -> dict[str, Any]:
    """Print what a memory file holds.

    Args:
        file: a file of `mosaics read`
    """
    memory = Memory.load(file)
    print(
        f"{file}: {_describe_pairs(memory)}, store {memory.policy or 'exact'}, of model {printable(memory.model[:12])}"
    )
    names = [(printable(one["name"]), printable(one["sha256"][:12])) for one in memory.texts]
    rows = [
        [name, f"{one['read']:,}", f"{one['tokens']:,}", sha]
        for (name, sha), one in zip(names, memory.texts, strict=True)
    ]
    print(text_table(["text", "tokens read", "of", "SHA-256"], rows))
    return {"texts": memory.texts, "pairs": memory.pairs, "store": str(memory.policy or "exact"), "model": memory.model}


def merge(files: list[Path], *, out: Path) -> dict[str, Any]:
    """Write the union of the pairs of several memory files of one model.

    It is as if the model had read each text alone. A text that continues the merged memory continues the last file.

    Args:
        files: two or more files of `mosaics read`, with stores of one kind
        out: the file to write; it must not exist yet
    """
    if len(files) < 2:
        raise UserError("name at least two memory files to merge")
    return _write(union([Memory.load(file) for file in files]), out)


def trim(file: Path, *, store: str, out: Path, device: str = "auto") -> dict[str, Any]:
    """Write a memory file with fewer pairs, or with an index of all.

    Args:
        file: a file of `mosaics read`
        store: which pairs to keep, such as merge:4096 (`mosaics read --help` has all); up to 128 more stay, as while
            reading. lru keeps the newest, unless the file has such a store already. exact removes an index
        out: the file to write; it must not exist yet
        device: cuda, mps or cpu; auto takes the first that is available
    """
    policy, memory = StorePolicy.parse(store), Memory.load(file).check_complete()
    if policy is None and not isinstance(memory.policy, IndexPolicy):
        raise UserError("exact keeps all pairs: name a bounded --store, such as merge:4096, or indexed")
    return _write(memory.trim(policy, find_device(device)), out)


def _write(memory: Memory, out: Path) -> dict[str, Any]:
    if out.exists():
        raise UserError(f"{out} exists already; name another --out, or remove it first")
    check_output_file(out)
    memory.save(out)
    print(f"{out}: {_describe_pairs(memory)}")
    return {"pairs": memory.pairs}


def search(run: Path, files: list[Path], *, prompt: str, top: int = 10, device: str = "auto") -> dict[str, Any]:
    """Show which pairs of memory files the last token of a prompt retrieves, and where they are in the texts.

    Args:
        run: the run or checkpoint of the files
        files: one or several files of `mosaics read`
        prompt: what the model reads after the texts
        top: how many pairs to show, those with the largest weights of all heads
        device: cuda, mps or cpu; auto takes the first that is available
    """
    check_range(1, 10_000, top=top)
    trained = LoadedModel.open(run, device=find_device(device))
    memory, tokens = load_memories(trained, files), torch.tensor([trained.tokenizer.encode(prompt)], dtype=torch.long)
    if not tokens.numel():
        raise UserError("the prompt is empty: nothing is retrieved")
    model, tokens = trained.model, tokens.to(trained.model.embedding.weight.device)
    with torch.no_grad():
        _, state = model.features(model.embedding(tokens[:, :-1]), memory.state(model))
    found = []
    for layer in retrievals(model, tokens[:, -1:], state):
        if layer.kind == "sequence":
            for head, weights in enumerate(layer.retrieval.weights([-1])[0]):
                (best,) = heaviest_pairs(layer.retrieval.pairs.without_index(), weights, head, top)
                found += [(pair.weight, layer.block, head, pair.time) for pair in best if pair.weight > 0]
    records = [_record(trained, memory, tokens[0].cpu(), *one) for one in sorted(found, key=lambda one: -one[0])[:top]]
    rows = [
        [r["around"], f"{r['weight']:.4f}", str(r["block"]), str(r["head"]), r["text"], f"{r['position']:,}"]
        for r in records
    ]
    print(text_table(["pair, after its key |", "weight", "block", "head", "text", "position"], rows))
    return {"pairs": records}


def _record(
    trained: LoadedModel, memory: Memory, prompt: Tensor, weight: float, block: int, head: int, at: int
) -> dict[str, Any]:
    """A retrieved pair with the tokens around it."""
    text, position, before, after = memory.excerpt(at, AROUND)
    name = text["name"]
    if position >= text["read"]:  # it came after the texts
        name, position = "the prompt", position - text["read"]
        before = prompt[max(0, position - AROUND) : position + 1].tolist()
        after = prompt[position + 1 : position + 1 + AROUND].tolist()
    before, after = map(trained.tokenizer.decode, (before, after))
    found = {"weight": round(weight, 6), "block": block, "head": head, "text": printable(name), "position": position}
    return found | {"around": printable(f"{before}|{after}")}
