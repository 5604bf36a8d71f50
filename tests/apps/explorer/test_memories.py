"""A text is read after memory files and in bounded stores: which pairs are shown, and where they come from."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from memory_mosaics import LanguageModel, checkpoint, memory_mosaic
from memory_mosaics.apps.explorer import Explorer, show
from memory_mosaics.apps.explorer import reading as reading_module
from memory_mosaics.apps.explorer.explorer import AROUND, EXAMPLES, Look, LookRequest, ReadRequest
from memory_mosaics.apps.explorer.reading import CachedText, Edit, InstrumentedModel
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.cli import main
from memory_mosaics.errors import UserError
from memory_mosaics.inspection import retrievals
from memory_mosaics.memory_files import load_memories, read, start_state
from memory_mosaics.text.tokenizer import byte_tokenizer

from .conftest import TEXT, WORDS, Served, Tab, memory

BOOKS = {"first": WORDS * 3 + "The first book ends", "second": "The red dog has a kite. " * 9 + "It ends too"}
GENERATOR = torch.Generator()
STORES = ["exact", "lru:50", "merge:50", "window:50", "reservoir:20"]


@pytest.fixture(scope="session")
def files(mosaic, gated, tmp_path_factory) -> dict[str, list[Path]]:
    """Memory files of both books, of two models."""
    folder = tmp_path_factory.mktemp("memories")
    found: dict[str, list[Path]] = {}
    for loaded in (mosaic, gated):
        for name, text in BOOKS.items():
            tokens = torch.tensor(loaded.tokenizer.encode(text))
            (*_, whole) = read(loaded, tokens, {"name": f"{name}.txt", "sha256": name}, policy=None, memory=None)
            file = folder / f"{loaded.name}-{name}.memory"
            whole.save(file)
            found.setdefault(loaded.name, []).append(file)
    return found


def reader(loaded: LoadedModel, files: list[Path], store: str | None = None) -> CachedText:
    texts = load_memories(loaded, files, store)
    return CachedText(InstrumentedModel(loaded, state=texts.state(loaded.model), memory=texts))


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["mosaic", "gated"])
def test_a_changing_text_is_read_after_memory_files(name, store, files, request):
    """As a whole one is, whatever was read before and whatever the stores have evicted since."""
    loaded = request.getfixturevalue(name)
    found, model = reader(loaded, files[name], store), loaded.model.eval()
    generator = torch.Generator().manual_seed(3)
    tokens: list[int] = torch.randint(280, (170,), generator=generator).tolist()
    for change in (169, 70, 3):
        tokens = tokens[:change] + torch.randint(280, (max(1, 175 - change),), generator=generator).tolist()
        found.update(tokens)
        with torch.no_grad():
            x = model.embedding(torch.tensor([tokens]))
            wanted, _ = model.features(x, start_state(loaded, files[name], store))
        features = torch.cat([chunk.features for chunk in found.chunks])
        torch.testing.assert_close(features, wanted[0], atol=2e-4, rtol=1e-3)
    assert [span for span in found.spans(0, len(tokens))][-1][1] == len(tokens)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("name", ["mosaic", "gated"])
def test_pairs_are_those_of_inspection_with_their_text_and_number(name, store, files, request):
    loaded = request.getfixturevalue(name)
    found = reader(loaded, files[name], store)
    tokens = torch.randperm(280, generator=GENERATOR.manual_seed(5))[:150].tolist()
    found.update(tokens)
    layers = list(
        retrievals(loaded.model, torch.tensor([tokens[-1:]]), _state(loaded, files[name], store, tokens[:-1]))
    )
    for layer in (one for one in layers if one.kind == "sequence"):
        weights, pairs = layer.retrieval.weights([-1])[0, :, 0].detach(), layer.retrieval.pairs
        for head in range(4):
            (detail,) = found.detail((layer.block, "sequence", head), 149, 150)
            times = pairs.times(head)
            mass = torch.ones_like(times) if pairs.stored is None else pairs.stored.mass[0, :, head]
            known = dict(zip(times.tolist(), zip(weights[head].tolist(), mass.tolist(), strict=True), strict=True))
            best = weights[head].topk(5).values.tolist()
            for (pair, weight, *number), heaviest in zip(detail["pairs"], best, strict=False):
                assert weight == pytest.approx(heaviest, abs=1e-4)  # equal keys may come in any order
                expected = known[pair + found.model.before]
                assert (weight, *(number or [1])) == pytest.approx(expected, abs=0.05), "the number is rounded"
                assert weight == pytest.approx(expected[0], abs=1e-4)
            assert sum(detail["shares"]) == pytest.approx(float(weights[head].sum()), abs=1e-3)
            in_files = float(weights[head][times < found.model.before].sum())
            assert sum(detail["shares"][:-1]) == pytest.approx(in_files, abs=1e-3)
            (overview,) = found.overview(149, 150)
            shown = overview[list(found.model.layers).index((layer.block, "sequence"))]
            assert shown["files"][head] == pytest.approx(in_files, abs=1e-3)
    if store == "merge:50":
        assert any(len(pair) > 2 and pair[2] > 1 for pair in detail["pairs"])


def _state(loaded, files, store, tokens):
    with torch.no_grad():
        x = loaded.model.embedding(torch.tensor([tokens]))
        return loaded.model.features(x, start_state(loaded, files, store))[1]


def test_a_pair_of_a_memory_file_is_shown_in_its_place(mosaic, files):
    explorer = Explorer([mosaic], memory=files["mosaic"])
    assert [model.name for model in explorer.models] == ["mosaic", "mosaic without memory files"]
    assert [text["name"] for text in explorer.description["models"][0]["texts"]] == ["first.txt", "second.txt"]
    text, seen = " and the dog saw the red", set()
    for block, head in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1)):
        for position in (0, 2, 4):
            look = Look(position=position, memory=(block, "sequence", head))
            shown = explorer.look(LookRequest(text=text, look=look))["memory"]
            assert all(pair >= -explorer.models[0].before for pair, _ in shown["pairs"])
            for place in shown.get("places", {}).values():
                book = list(BOOKS.values())[place["text"]]
                passage = place["before"] + place["words"][0] + place["between"] + place["words"][1] + place["after"]
                own = mosaic.tokenizer.decode(mosaic.tokenizer.encode(book)[place["position"] :][:1])
                assert place["words"][0] == own
                assert passage in (book if place["text"] == 0 else book + text)
                assert len(mosaic.tokenizer.encode(place["before"])) <= AROUND + 1
                seen.add(place["text"])
    assert seen == {0, 1}


def test_a_pair_of_a_memory_file_can_be_removed_but_not_rewritten(mosaic, files):
    explorer = Explorer([mosaic], memory=files["mosaic"])
    look = Look(position=4, memory=(0, "sequence", 1))
    before = explorer.read(ReadRequest(text=TEXT, look=look))
    pair = before["look"]["memory"]["pairs"][0][0]
    assert pair < 0
    edit = Edit(block=0, kind="sequence", head=1, pair=pair)
    after = explorer.read(ReadRequest(text=TEXT, look=look, edits=[edit]))
    assert pair not in [one[0] for one in after["look"]["memory"]["pairs"]]
    assert (after["dropped"], len(after["edits"][0]["words"])) == (0, 2)
    assert after["edited"]["losses"] != after["losses"]
    for wrong in (Edit(block=0, kind="sequence", head=1, pair=pair, text="a"), Edit(**ABSENT)):
        with pytest.raises(UserError, match="of a memory file: such a pair can be removed, but not rewritten"):
            explorer.read(ReadRequest(text=TEXT, edits=[wrong]))


ABSENT = {"block": 0, "kind": "sequence", "head": 1, "pair": -(10**9)}


@pytest.mark.parametrize("store", ["lru:30", "merge:30"])
def test_edits_in_a_bounded_store(gated, store):
    """A pair that has been evicted cannot be edited any more; others are found wherever they are stored now."""
    plain, edited = (CachedText(InstrumentedModel(gated, state=start_state(gated, (), store))) for _ in range(2))
    tokens = torch.randperm(280, generator=GENERATOR.manual_seed(5))[:150].tolist()
    plain.update(tokens)
    (detail,) = plain.detail((0, "sequence", 3), 149, 150)
    pair = detail["pairs"][0][0]
    edited.update(tokens, [Edit(block=0, kind="sequence", head=3, pair=pair)], plain)
    (left,) = edited.detail((0, "sequence", 3), 149, 150)
    assert [one[0] for one in left["pairs"][:3]] == [one[0] for one in detail["pairs"][1:4]]
    stored = {at for first, last in detail["ranges"] for at in range(first, last)}
    gone = min(set(range(140)) - stored)
    edited.update(tokens, [Edit(block=0, kind="sequence", head=3, pair=gone)], plain)
    assert edited.detail((0, "sequence", 3), 149, 150) == [detail]
    edited.update(tokens, [Edit(block=0, kind="sequence", head=3, pair=pair, token=9)], plain)
    value = edited.layer_edits[0, "sequence"][0][1]
    assert value is not None
    assert not torch.equal(value, plain.rewritten_value(Edit(block=0, kind="sequence", head=3, pair=pair, token=8)))


def test_what_a_memory_sees_is_its_window_and_its_delay(gated):
    """With the number of pairs on which beta depends."""
    found = CachedText(InstrumentedModel(gated))
    found.update(list(range(100)))
    for head, position, ranges in (
        (0, 90, [[83, 90]]),
        (3, 90, [[0, 88]]),
        (0, 3, [[0, 3]]),
        (3, 2, []),
    ):
        (detail,) = found.detail((1, "sequence", head), position, position + 1)
        assert detail["ranges"] == ranges
        assert detail["seen"] == sum(last - first for first, last in ranges)


def test_a_store_that_is_too_large_for_every_chunk_is_refused(mosaic, monkeypatch):
    found = CachedText(InstrumentedModel(mosaic, state=start_state(mosaic, (), "lru:200")))
    monkeypatch.setattr(reading_module, "MAX_KEPT", 100_000)
    with pytest.raises(UserError, match=r"with the store lru:200 mosaic reads at most \d+ tokens here"):
        found.update([7] * 1000)
    found.update([7] * 100)
    assert sum(len(chunk.tokens) for chunk in found.chunks) == 100


def test_an_index_is_refused(mosaic):
    with pytest.raises(UserError, match="an index reads few: take --store exact"):
        Explorer([mosaic], store="indexed")


def copying_model() -> LoadedModel:
    """It expects what followed the last byte the last time: embeddings are one-hot, and a value is the next token."""
    tokenizer = byte_tokenizer()
    size = tokenizer.vocabulary
    model = LanguageModel(memory_mosaic(vocabulary=size, width=size, blocks=1, heads=1, slots=1, context=64))
    block: Any = model.blocks[0]
    memories, slots = block.sequence_mixer, block.channel_mixer
    with torch.no_grad():
        for weight in (
            model.embedding.weight,
            memories.key.map.weight,
            memories.value.map.weight,
            memories.combine.map.weight,
        ):
            weight.copy_(torch.eye(size))
        memories.combine.map.weight.mul_(30)
        memories.key.decay.rate.fill_(10.0)
        memories.value.taps.copy_(torch.tensor([[0.0, 1.0]]))
        slots.combine.map.weight.zero_()
    return LoadedModel("copying", Path(), model, tokenizer)


def test_the_opening_example_is_recalled(tmp_path, mosaic, browser):
    """And the memory that is opened retrieves the pair that predicts the next token."""
    loaded = copying_model()
    for files in ((), (_book_of(loaded, tmp_path),)):
        explorer = Explorer([loaded], memory=files)
        opening = explorer.examples["opening"]
        found = explorer.read(ReadRequest(text=opening["text"], look=Look(memory=opening["memory"])))
        (pair, weight), following = found["look"]["memory"]["pairs"][0][:2], found["best"][-1][0][0]
        text = opening["text"] if not files else PASSAGE
        sources = [example for example in explorer.examples["texts"].values() if example.startswith(opening["text"])]
        assert weight > 0.1
        assert text[pair + 1] == following, "as in Python, pairs below zero count from the end of the memory file"
        assert files or sources
    server = Served([loaded])
    with Tab(browser, server.address) as tab:
        tab.page.wait_for_selector(".reason")
        reason = tab.page.inner_text(".reason")
        expected = tab.page.inner_text(".guess >> nth=0")
        assert re.fullmatch(
            r"It recalls . → (.), \d+ tokens? ago.*: \d+ % of its weight. This adds .* logit of \1\.", reason
        )
        assert reason.endswith(f"{expected}.")
    server.stop()
    explorer = Explorer([mosaic])
    assert set(explorer.examples["texts"]) == set(EXAMPLES)


PASSAGE = "Tom has a red hat. Ann has a big dog. The dog ran up the hill, and Tom ran after it. " * 3


def _book_of(loaded: LoadedModel, folder: Path) -> Path:
    tokens = torch.tensor(loaded.tokenizer.encode(PASSAGE))
    (*_, whole) = read(loaded, tokens, {"name": "tom.txt", "sha256": "0"}, policy=None, memory=None)
    whole.save(folder / "tom.memory")
    return folder / "tom.memory"


def test_the_page_shows_which_file_a_pair_is_from(browser, mosaic, files):
    server = Served([mosaic], memory=files["mosaic"])
    with Tab(browser, server.address) as tab:
        assert "reads on after first.txt" in tab.page.inner_text(".pane .model")
        tab.write(WORDS + "She saw the red")
        tab.page.click(".segments button:text-is('Files')")
        assert "%" in tab.page.inner_text(memory(0, "sequence", 1))
        tab.page.click(memory(0, "sequence", 1))
        tab.page.wait_for_selector(".pairs .place")
        place = tab.page.inner_text(".pairs .place >> nth=0")
        assert "first.txt, token" in place or "second.txt, token" in place
        assert tab.page.locator(".pairs .place mark").count() >= 2
        rows = tab.page.locator(".sources li").all_inner_texts()
        assert [row.split("\n")[0] for row in rows][-1] == "this text"
        first = tab.page.locator(".pairs li[data-pair^='-']").first
        pair = first.get_attribute("data-pair")
        assert first.locator("[aria-label^=Rewrite]").count() == 0
        first.locator("[aria-label^=Remove]").click()
        tab.page.wait_for_selector(".chips li")
        tab.page.wait_for_selector(f".pairs [data-pair='{pair}']", state="detached")
        tab.page.click("[data-view=compare]")
        tab.page.wait_for_selector(".pane[data-pane='1'] .token")
        assert tab.text(1) == tab.text(0)
    server.stop()


def test_a_view_is_saved_with_the_places_of_its_pairs(browser, mosaic, files, tmp_path):
    server = Served([mosaic], memory=files["mosaic"], store="merge:60")
    with Tab(browser, server.address) as tab:
        tab.write("She saw the red")
        tab.page.click(".segments button:text-is('Files')")
        tab.page.click(memory(0, "sequence", 1))
        tab.page.wait_for_selector(".pairs .mass")
        shown = tab.page.inner_text(".detail")
        page = tab.download("#save-html", tmp_path / "view.html")
    server.stop()
    with Tab(browser, offline=True) as saved:
        saved.page.goto(page.as_uri())
        saved.page.wait_for_selector(".pairs .place")
        assert saved.page.locator(".segments [aria-checked=true]").inner_text() == "Files"
        without_buttons = [line for line in shown.split("\n") if line.strip() not in ("✎", "✕", "on", "")]
        assert [line for line in saved.page.inner_text(".detail").split("\n") if line.strip()] == without_buttons
        saved.page.hover(".token >> nth=1")
        saved.page.wait_for_selector(".token[data-at='1'][aria-selected=true]")
        assert saved.page.locator(".pairs .place").count() > 0
    html = show(mosaic, "She saw the red", memory=(0, "sequence", 1), memory_files=files["mosaic"]).html
    assert '"places":{' in html
    assert "without memory files" not in html


def test_mistakes_of_the_command(mosaic, twin, files, tmp_path, capsys):
    runs = []
    for loaded in (mosaic, twin):
        runs.append(str(checkpoint.save(loaded.model, tmp_path / loaded.name)))
        loaded.tokenizer.save(Path(runs[-1]))
    file = str(files["mosaic"][0])
    for words, message in (
        ([*runs, "--memory", file], "--memory holds what one model has read; explore that model alone"),
        ([runs[1], "--memory", file], "is a memory of model"),
        ([runs[0], "--memory", str(tmp_path / "none")], "there is no memory file"),
        ([runs[0], "--store", "fifo:3"], "no store 'fifo:3'"),
        ([runs[1], "--store", "lru:64"], "takes no store"),
    ):
        assert main(["explore", *words, "--port", "0"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
