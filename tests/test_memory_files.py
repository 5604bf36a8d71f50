import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from memory_mosaics import LanguageModel, checkpoint, indexed_store, memory_mosaic, preset, transformer
from memory_mosaics.bounded_stores import StorePolicy
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.decoding import Decoder, beam_search, generate
from memory_mosaics.errors import UserError
from memory_mosaics.memory_files import CHUNK, Memory, load_memories, read, start_state, union
from memory_mosaics.ops.recall import merge, recall_with_lse
from memory_mosaics.store_files import HEADER
from memory_mosaics.stores import GrowingStore, state_tensors, stores_of
from memory_mosaics.text.tokenizer import byte_tokenizer

INDEXED = "indexed:1000:6"  # reads all lists: exact
SIZES = {"width": 32, "blocks": 2, "heads": 4, "vocabulary": 257, "context": 64}


def opened(folder, config) -> LoadedModel:
    torch.manual_seed(0)
    byte_tokenizer().save(checkpoint.save(LanguageModel(config), folder))
    return LoadedModel.open(folder)


@pytest.fixture(autouse=True)
def _index_early(monkeypatch):
    monkeypatch.setattr(indexed_store, "FIRST", 40)
    monkeypatch.setattr(indexed_store, "LEAST", 16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> LoadedModel:
    return opened(tmp_path_factory.mktemp("models") / "mosaic", memory_mosaic(**SIZES))


@pytest.fixture(scope="module")
def v2(tmp_path_factory) -> LoadedModel:
    """With groups of heads, gated keys and a beta(n)."""
    config = replace(preset("memory-mosaic-v2-tiny"), blocks=2, vocabulary=257)
    return opened(tmp_path_factory.mktemp("models") / "v2", config)


def tokens(seed: int, length: int) -> torch.Tensor:
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(seed))


def memory_of(trained, text, name="text", store="exact", begun=None) -> Memory:
    parts = read(trained, text, {"name": name, "sha256": "0"}, policy=StorePolicy.parse(store), memory=begun)
    return list(parts)[-1]


def saved(memory, file) -> Memory:
    memory.save(file)
    return Memory.load(file)


@pytest.mark.parametrize("name", ["trained", "v2"])
@pytest.mark.parametrize("store", ["exact", "window:50", "lru:50", "merge:50", INDEXED])
def test_continuing_a_file_equals_reading_the_text_again(name, store, tmp_path, request):
    model = request.getfixturevalue(name)
    text, prompt = tokens(0, 150), tokens(1, 9)
    memory = saved(memory_of(model, text, store=store), tmp_path / "text.memory")
    with torch.no_grad():
        start = model.model.empty_state(StorePolicy.parse(store))
        whole, _ = model.model(torch.cat([text, prompt])[None], start)
        continued, _ = model.model(prompt[None], memory.state(model.model))
    assert_close(continued, whole[:, 150:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("store", ["exact", "lru:50", "reservoir:50", INDEXED])
def test_generating_from_a_file_equals_generating_from_the_text(store, trained, tmp_path):
    text, prompt = tokens(0, 150), tokens(1, 9)
    memory_of(trained, text, store=store).save(tmp_path / "text.memory")
    options = {"length": 12, "eos": None}
    state = start_state(trained, [tmp_path / "text.memory"])
    start = trained.model.empty_state(StorePolicy.parse(store))
    again = generate(trained.model, [torch.cat([text, prompt])], state=start, generator=torch.Generator(), **options)
    assert_close(generate(trained.model, [prompt], state=state, generator=torch.Generator(), **options), again)
    beams = beam_search(trained.model, [torch.cat([text, prompt])], state=start, beams=3, **options)
    assert_close(beam_search(trained.model, [prompt], state=state, beams=3, **options), beams)


def test_prompts_of_several_lengths_cannot_continue_one_state(trained):
    state = memory_of(trained, tokens(0, 5)).state(trained.model)
    with pytest.raises(ValueError, match="one length"):
        Decoder(trained.model, [tokens(0, 3), tokens(1, 4)], state=state)


@pytest.mark.parametrize("store", ["exact", "lru:500"])
def test_a_text_read_in_two_parts_leaves_the_same_file(store, trained, tmp_path):
    text = tokens(0, CHUNK + 50)
    parts = read(trained, text, {"name": "text", "sha256": "0"}, policy=StorePolicy.parse(store), memory=None)
    begun = saved(next(parts), tmp_path / "begun")
    assert not begun.complete
    for other in (union, lambda files: load_memories(trained, files)):
        with pytest.raises(UserError, match=r"the first 1,024 of 1,074 tokens"):
            other([begun] if other is union else [tmp_path / "begun"])
    memory_of(trained, text, store=store, begun=begun).save(tmp_path / "resumed")
    memory_of(trained, text, store=store).save(tmp_path / "at once")
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "at once").read_bytes()


def test_a_text_read_in_two_parts_leaves_the_same_index(trained, tmp_path):
    """But for rounding, which differs with the alignment of memory-mapped tensors."""
    text = tokens(0, CHUNK + 50)
    parts = read(trained, text, {"name": "text", "sha256": "0"}, policy=StorePolicy.parse("indexed:2:6"), memory=None)
    begun = saved(next(parts), tmp_path / "begun")
    resumed, at_once = (memory_of(trained, text, store="indexed:2:6", begun=memory) for memory in (begun, None))
    for one, other in zip(resumed.stores, at_once.stores, strict=True):
        assert one.num_indexed == other.num_indexed > CHUNK
        for x, y in zip(*(state_tensors(store[1:3]) for store in (one, other)), strict=True):
            assert_close(x, y, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["trained", "v2"])
@pytest.mark.parametrize("store", ["exact", "window:200", "merge:200", INDEXED])
def test_merged_files_are_the_union_of_both(name, store, tmp_path, request):
    """Per head: the answers of both by log-sum-exp, at the sharpness of the joint number of pairs."""
    model = request.getfixturevalue(name)
    texts = [tokens(0, 150), tokens(1, 90)]
    memories = [memory_of(model, text, name, store) for text, name in zip(texts, ("first", "second"), strict=True)]
    joint = saved(union(memories), tmp_path / "union.memory")
    assert joint.pairs == 149 + 89
    assert [joint.place(time)[0]["name"] for time in (0, 148, joint.texts[1]["start"])] == ["first", "first", "second"]
    assert joint.tokens[joint.place(joint.texts[1]["start"] + 7)[2]] == texts[1][7]
    mixer = model.model.blocks[0].sequence_mixer
    x = model.model.blocks[0].sequence_norm(model.model.embedding(tokens(2, 1)[None]))
    with torch.no_grad():
        retrieval, _ = mixer.prepare_retrieval(x, joint.state(model.model)[1][0])
    group, groups = retrieval.groups()[-1], len(mixer.visibility)  # of v2 the long-term heads
    delay = mixer.visibility[-1].delay
    seen = {"first": 149, "second": 91 - delay}  # the query comes after both texts, 239 pairs after the first one
    answers = []
    for memory, count in zip(memories, seen.values(), strict=True):
        keys, values = (x.chunk(groups, dim=2)[-1] for x in (memory.stores[0].keys, memory.stores[0].values))
        if count == 90:  # the pair that the new token completes
            values = torch.cat([values, group.pairs.values[:, -1:]], dim=1)
        answers.append(recall_with_lse(group.queries, keys[:, :count], values[:, :count], group.sharpness))
    expected = merge(*answers)[0]
    assert_close(group.answers(), expected if group.gate is None else expected * group.gate, rtol=1e-4, atol=1e-4)
    beta = mixer.sharpness(torch.tensor([[float(sum(seen.values()))]]))
    beta = beta.chunk(groups, dim=-1)[-1] if beta.ndim > 1 else beta
    assert_close(torch.as_tensor(group.sharpness).flatten(), beta.flatten())


def test_trimming_keeps_the_places_of_pairs(trained, tmp_path):
    memory = union([memory_of(trained, tokens(0, 300), "first"), memory_of(trained, tokens(1, 300), "second")])
    trimmed = saved(memory.trim(StorePolicy(kind="reservoir", capacity=100)), tmp_path / "trimmed")
    assert trimmed.policy == StorePolicy(kind="reservoir", capacity=100)
    assert trimmed.pairs < 200
    store, whole = trimmed.stores[1], memory.stores[1]
    assert isinstance(whole, GrowingStore)
    for index in (0, 40, 99):
        time = store.times[0, index, 2]
        assert_close(store.keys[0, index, 2], whole.keys[0, time, 2])
    assert {trimmed.place(int(time))[0]["name"] for time in store.times[0, :, 0]} == {"first", "second"}
    assert_close(store.mass[0].sum(dim=0), torch.full((4,), float(whole.keys.shape[1])))
    with torch.no_grad():
        trained.model(tokens(2, 5)[None], trimmed.state(trained.model))


def test_stores_that_differ_are_not_merged(trained, tmp_path):
    exact, bounded = memory_of(trained, tokens(0, 30)), memory_of(trained, tokens(0, 30), store="lru:20")
    with pytest.raises(UserError, match=r"store exact and .* has a store lru: trim one"):
        union([exact, bounded])
    bounded.save(tmp_path / "bounded")
    with pytest.raises(UserError, match="cannot become indexed"):
        start_state(trained, [tmp_path / "bounded"], "indexed")
    assert start_state(trained, [tmp_path / "bounded"], "window:10") is not None


def test_pairs_of_a_bounded_file_are_permanent_in_an_exact_store(trained, tmp_path):
    memory_of(trained, tokens(0, 400)).trim(StorePolicy.parse("kmeans:100")).save(tmp_path / "few")
    states = {store: start_state(trained, [tmp_path / "few"], store) for store in (None, "exact", "window:10")}
    before = [store.keys[:, : store.values.shape[1]] for store in stores_of(states["exact"])]
    for name, state in states.items():
        with torch.no_grad():
            _, state = trained.model(tokens(1, 500)[None], state)
        for kept, store in zip(before, stores_of(state), strict=True):
            pairs = store.values.shape[1]
            same = store.keys[:, : kept.shape[1]].equal(kept)
            assert (same, pairs == kept.shape[1] + 500) == (name == "exact", name == "exact"), name
            total = store.mass[:, :pairs].sum(dim=1)
            assert (total == 899).all() == (name != "window:10")


def test_an_index_is_made_of_an_exact_file_and_unmade(trained, tmp_path):
    text, prompt = tokens(0, 150), tokens(1, 9)
    memory_of(trained, text).save(tmp_path / "exact")
    indexed = saved(Memory.load(tmp_path / "exact").trim(StorePolicy.parse(INDEXED)), tmp_path / "indexed")
    assert str(indexed.policy) == INDEXED
    assert indexed.pairs == 149
    assert indexed.stores[0].num_indexed > 100
    with torch.no_grad():
        whole, _ = trained.model(torch.cat([text, prompt])[None])
        for file, store in (("exact", INDEXED), ("indexed", None), ("indexed", "exact")):
            continued, _ = trained.model(prompt[None], start_state(trained, [tmp_path / file], store))
            assert_close(continued, whole[:, 150:], rtol=1e-4, atol=1e-4)
    trimmed = indexed.trim(StorePolicy(kind="window", capacity=20))
    assert_close(trimmed.stores[0].keys[:, -9:], indexed.stores[0].keys[:, -9:])


def test_only_models_with_contextual_memories_are_read_with(tmp_path):
    model = opened(tmp_path / "gpt", transformer(**SIZES))
    with pytest.raises(UserError, match="no contextual memories"):
        memory_of(model, tokens(0, 10))


def test_a_memory_of_another_model_is_refused(trained, v2, tmp_path):
    memory_of(trained, tokens(0, 30)).save(tmp_path / "mine")
    memory_of(v2, tokens(0, 30)).save(tmp_path / "other")
    with pytest.raises(UserError, match="is a memory of model"):
        start_state(v2, [tmp_path / "mine"])
    with pytest.raises(UserError, match="only those of one model can be merged"):
        union([Memory.load(tmp_path / "mine"), Memory.load(tmp_path / "other")])


def header_of(file):
    with safe_open(file, framework="pt") as opened:
        return json.loads(opened.metadata()[HEADER])


def change(file, **changes):
    """Write the file again with other tensors, or without those that are None; header= changes its JSON."""
    tensors, header = load_file(file), header_of(file) | changes.pop("header", {})
    tensors = {name: x.clone() for name, x in tensors.items()} | changes
    save_file({name: x for name, x in tensors.items() if x is not None}, file, {HEADER: json.dumps(header)})


HOSTILE = {
    "missing": {"stores.0.values": None},
    "extra": {"other": torch.zeros(1)},
    "wrong rank": {"stores.0.keys": torch.zeros(30, 4, 8)},
    "fewer keys than values": {"stores.0.keys": torch.zeros(1, 10, 4, 8)},
    "other number of heads": {"stores.0.keys": torch.zeros(1, 30, 2, 8)},
    "empty": {"stores.0.keys": torch.zeros(1, 0, 4, 8), "stores.0.values": torch.zeros(1, 0, 4, 8)},
    "wrong type": {"stores.0.keys": torch.zeros(1, 30, 4, 8, dtype=torch.int32)},
    "NaN": {"stores.1.values": torch.full((1, 29, 4, 8), torch.nan)},
    "layers of two lengths": {"stores.0.keys": torch.zeros(1, 31, 4, 8), "stores.0.values": torch.zeros(1, 30, 4, 8)},
    "mask": {"stores.0.key_padding_mask": torch.zeros(1, 30, dtype=torch.bool)},
    "tokens": {"tokens": torch.zeros(7, dtype=torch.int32)},
    "a state that is infinite": {"carry.0": torch.full((1, 4, 8), torch.inf)},
    "format": {"header": {"format": 2}},
    "number of stores": {"header": {"stores": 10**12}},
    "negative": {"header": {"stores": -1}},
    "text": {"header": {"stores": "2"}},
    "no texts": {"header": {"texts": []}},
    "a text that is none": {"header": {"texts": [7]}},
    "a huge text": {"header": {"texts": [{"name": "a", "sha256": "0", "tokens": 10**30, "read": 30, "start": 0}]}},
    "policy": {"header": {"policy": ["fifo", 10, True]}},
    "capacity": {"header": {"policy": ["lru", 10**30, True]}},
    "others": {"header": {"others": None}},
    "model": {"header": {"model": 7}},
    "visibility": {"header": {"visibility": [[-1, None]]}},
    "groups of heads": {"header": {"visibility": [[1, None], [1, 2], [1, 3]]}},
    "a later start": {"header": {"texts": [{"name": "a", "sha256": "0", "tokens": 30, "read": 30, "start": 1}]}},
    "no token": {"tokens": torch.full((30,), 257, dtype=torch.int32)},
    "exact": {"header": {"policy": ["exact", 10, True]}},
    "index": {"header": {"policy": ["indexed", 4, None]}},
    "lists": {"header": {"policy": ["indexed", 4, 0.5]}},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_damaged_file_is_refused(what, trained, tmp_path):
    file = tmp_path / "file"
    memory_of(trained, tokens(0, 30)).save(file)
    change(file, **HOSTILE[what])
    with pytest.raises(UserError, match=r"damaged") as refusal:
        start_state(trained, [file])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"stores.0.mass": torch.full((1, 30, 4), -1.0)},
        {"stores.0.times": torch.full((1, 30, 4), 30)},
        {"stores.0.used": torch.zeros(1, 30, 4)},
        {"stores.1.now": torch.zeros(2, dtype=torch.long)},
    ],
    ids=["mass", "times", "used", "now"],
)
def test_a_damaged_bounded_store_is_refused(changes, trained, tmp_path):
    file = tmp_path / "file"
    memory_of(trained, tokens(0, 30), store="lru:50").save(file)
    change(file, **changes)
    with pytest.raises(UserError, match="damaged"):
        start_state(trained, [file])


@pytest.mark.parametrize(
    "change_index",
    [
        {"indexed.counts": lambda x: x + 1},
        {"indexed.starts": lambda x: -x},
        {"indexed.times": lambda x: 0 * x},
        {"indexed.slopes": lambda x: x / 0},
        {"indexed.covariances": lambda x: x[..., :2]},
        {"indexed.keys": lambda x: x[:, :1]},
        {"indexed.values": lambda x: x.double()},
        {"newest.keys": lambda x: x[:, :, :1]},
        {"recent": lambda x: x - 5},
        {"recent": lambda x: x + 5},
        {"indexed.slack": None},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_damaged_index_is_refused(change_index, trained, tmp_path):
    file = tmp_path / "file"
    memory_of(trained, tokens(0, 100), store=INDEXED).save(file)
    found = load_file(file)
    change(file, **{f"stores.0.{n}": f and f(found[f"stores.0.{n}"]).contiguous() for n, f in change_index.items()})
    with pytest.raises(UserError, match="damaged"):
        start_state(trained, [file])


@pytest.mark.parametrize("changes", [{"stores.0.keys": (2, 3)}, {"carry.1": (0, 1)}], ids=["heads", "state"])
def test_shapes_of_no_such_model_are_refused(changes, trained, tmp_path):
    file = tmp_path / "file"
    memory_of(trained, tokens(0, 30)).save(file)
    tensors = load_file(file)
    change(file, **{name: torch.cat([tensors[name]] * 2, dim=-1) for name in changes})
    with pytest.raises(UserError, match="do not have the shapes of this model"):
        start_state(trained, [file])


@pytest.mark.parametrize("size", [0, 7, 200, -1])
def test_a_truncated_file_is_refused(size, trained, tmp_path):
    file = tmp_path / "file"
    memory_of(trained, tokens(0, 30)).save(file)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(UserError, match="damaged or not a memory file"):
        Memory.load(file)
    with pytest.raises(UserError, match="not a regular file"):
        Memory.load(tmp_path)
    with pytest.raises(UserError, match="no memory file"):
        Memory.load(tmp_path / "none")


def test_rows_of_pairs_are_refused(trained, tmp_path):
    file = tmp_path / "file"
    memory_of(trained, tokens(0, 30)).save(file)
    tensors = load_file(file)
    change(file, **{name: torch.cat([x, x]) for name, x in tensors.items() if name.startswith("stores.")})
    with pytest.raises(UserError, match="2 rows of pairs"):
        start_state(trained, [file])
