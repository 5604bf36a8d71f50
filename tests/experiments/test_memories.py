import json
import re

import pytest
import torch

from memory_mosaics import indexed_store
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.cli import main
from memory_mosaics.experiments import memories
from memory_mosaics.memory_files import CHUNK, Memory

TEXT = "A cat sat on a mat. The cat saw a bird. " * 40  # bytes are tokens
NOTES = "Mia has a red ball. " * 20


@pytest.fixture
def files(mosaic, tmp_path, capsys):
    """Memories of two texts."""
    for name, text in (("book", TEXT), ("notes", NOTES)):
        (tmp_path / f"{name}.txt").write_text(text)
        out = tmp_path / f"{name}.memory"
        assert main(["read", str(mosaic), str(tmp_path / f"{name}.txt"), "--out", str(out)]) == 0
    assert "written; 1,599 pairs in each of 8 heads" in capsys.readouterr().out
    return tmp_path / "book.memory", tmp_path / "notes.memory"


def refused(capsys, *arguments):
    """The one line in which a command refuses its arguments."""
    capsys.readouterr()
    assert main([str(each) for each in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def generated(capsys, *arguments):
    capsys.readouterr()
    assert main(["generate", *map(str, arguments), "--length", "20", "--temperature", "0"]) == 0
    return capsys.readouterr().out


def test_generating_after_a_text_read_once(mosaic, files, capsys):
    again = generated(capsys, mosaic, "--prompt", TEXT + "Then")
    assert "Then" + again.split("Then", 1)[1] == generated(capsys, mosaic, "--memory", files[0], "--prompt", "Then")
    both = generated(capsys, mosaic, "--memory", *files, "--prompt", "Then")
    assert generated(capsys, mosaic, "--memory", *files, "--prompt", "Then", "--store", "lru:5000") == both


def test_an_index_of_a_file(mosaic, files, tmp_path, capsys, monkeypatch):
    """Made by `trim`, or for a while by --store; generating and searching with all its lists is exact."""
    monkeypatch.setattr(indexed_store, "FIRST", 100)
    store, out = "indexed:1000:20", tmp_path / "indexed"
    assert main(["memory", "trim", str(files[0]), "--store", store, "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["memory", "info", str(out)]) == 0
    assert re.search(rf"1,599 pairs in each of 8 heads, 1.4 MB, store {store}", capsys.readouterr().out)
    exact = generated(capsys, mosaic, "--memory", files[0], "--prompt", "Then")
    assert generated(capsys, mosaic, "--memory", out, "--prompt", "Then") == exact
    assert generated(capsys, mosaic, "--memory", files[0], "--prompt", "Then", "--store", store) == exact
    assert generated(capsys, mosaic, "--memory", out, "--prompt", "Then", "--store", "exact") == exact
    found = []
    for file in (files[0], out):
        assert main(["memory", "search", str(mosaic), str(file), "--prompt", "a bird", "--top", "5"]) == 0
        found.append([float(weight) for weight in re.findall(r"0\.\d{4}", capsys.readouterr().out)])
    assert found[0] == pytest.approx(found[1], abs=1e-4)
    assert len(found[0]) == 5
    assert "may name how many lists" in refused(capsys, "generate", mosaic, "--prompt", "a", "--store", "indexed:x")


def test_info_merge_trim_and_search(mosaic, files, tmp_path, capsys):
    both, few = tmp_path / "both.memory", tmp_path / "few.memory"
    assert main(["memory", "merge", *map(str, files), "--out", str(both)]) == 0
    assert main(["memory", "trim", str(both), "--store", "sinks:500", "--out", str(few)]) == 0
    capsys.readouterr()
    assert main(["memory", "info", str(few)]) == 0
    printed = capsys.readouterr().out
    assert "store sinks:500" in printed
    assert re.search(r"notes.txt +400 +400", printed)
    assert main(["memory", "search", str(mosaic), str(both), "--prompt", "a red", "--top", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(re.search(r"(book|notes).txt|the prompt", line) for line in lines[1:])


def test_a_retrieved_pair_is_shown_in_its_place(mosaic, files):
    found = memories.search(mosaic, list(files), prompt="a red", top=40)["pairs"]
    texts = {"book.txt": TEXT, "notes.txt": NOTES}
    for pair in (one for one in found if one["text"] in texts):
        before, after = pair["around"].split("|")
        at = pair["position"] + 1
        assert texts[pair["text"]][:at].endswith(before)
        assert texts[pair["text"]][at:].startswith(after)
    assert found == sorted(found, key=lambda one: -one["weight"])


def test_ctrl_c_keeps_what_was_read(mosaic, tmp_path, monkeypatch, capsys):
    (tmp_path / "book.txt").write_text(TEXT * 2)
    command = ["read", str(mosaic), str(tmp_path / "book.txt"), "--store", "window:300", "--out"]
    assert main([*command, str(tmp_path / "whole")]) == 0
    read = memories.read_tokens

    def interrupted(*arguments, **options):
        yield next(read(*arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(memories, "read_tokens", interrupted)
    assert main([*command, str(tmp_path / "parts")]) == 130
    assert len(Memory.load(tmp_path / "parts").tokens) == CHUNK
    assert "finish it" in refused(capsys, "generate", mosaic, "--memory", tmp_path / "parts", "--prompt", "a")
    monkeypatch.setattr(memories, "read_tokens", read)
    assert main([*command, str(tmp_path / "parts")]) == 0
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()
    assert main([*command, str(tmp_path / "parts")]) == 0, "nothing is left to read"


def test_progress_is_saved(mosaic, tmp_path, monkeypatch):
    (tmp_path / "book.txt").write_text(TEXT * 2)
    monkeypatch.setattr(memories, "SAVE_SECONDS", -1.0)
    sizes = []
    save = Memory.save
    monkeypatch.setattr(Memory, "save", lambda self, file: (sizes.append(len(self.tokens)), save(self, file))[1])
    assert main(["read", str(mosaic), str(tmp_path / "book.txt"), "--out", str(tmp_path / "book")]) == 0
    assert sizes == [1024, 2048, 3072, 3200]


def test_what_cannot_be_read_or_written(mosaic, twin, files, tmp_path, capsys):
    book, _ = files
    text, other = tmp_path / "book.txt", tmp_path / "notes.txt"
    (tmp_path / "empty.txt").write_text("")
    new = tmp_path / "new"
    assert "no run" in refused(capsys, "read", tmp_path / "none", text, "--out", new)
    assert "cannot be read" in refused(capsys, "read", mosaic, tmp_path / "none", "--out", new)
    assert "is empty" in refused(capsys, "read", mosaic, tmp_path / "empty.txt", "--out", new)
    assert "no store" in refused(capsys, "read", mosaic, text, "--out", new, "--store", "fifo:3")
    assert "holds another text" in refused(capsys, "read", mosaic, other, "--out", book)
    assert "has a store exact, not lru:9" in refused(capsys, "read", mosaic, text, "--out", book, "--store", "lru:9")
    assert "no contextual memories" in refused(capsys, "read", twin, text, "--out", new)
    assert "damaged" in refused(capsys, "read", mosaic, text, "--out", other)
    assert "exists already" in refused(capsys, "memory", "merge", *files, "--out", other)
    assert "at least two" in refused(capsys, "memory", "merge", book, "--out", new)
    assert "bounded --store" in refused(capsys, "memory", "trim", book, "--store", "exact", "--out", new)
    assert "prompt is empty" in refused(capsys, "memory", "search", mosaic, book, "--prompt", "")
    for command in (["generate"], ["memory", "search"], ["serve"]):
        flags = [twin, "--memory", book] if command != ["memory", "search"] else [twin, book]
        prompt = [] if command == ["serve"] else ["--prompt", "a"]
        assert "is a memory of model" in refused(capsys, *command, *flags, *prompt)
    assert not new.exists()


def test_a_store_for_evaluation(mosaic, tmp_path, capsys, undrawn, monkeypatch):
    (tmp_path / "text.txt").write_text(TEXT)
    assert (
        main(
            [
                "prepare",
                str(tmp_path / "text.txt"),
                "--out",
                str(tmp_path / "data"),
                "--tokenizer",
                "bytes",
                "--valid",
                str(tmp_path / "text.txt"),
            ]
        )
        == 0
    )
    losses = {}
    monkeypatch.setattr(indexed_store, "FIRST", 100)
    for store in ("exact", "lru:2000", "lru:50", "indexed:1000:10", "indexed:1:100"):
        out = tmp_path / store.replace(":", "-")
        flags = ["--data", tmp_path / "data", "--length", "1500", "--store", store, "--out", out, "--device", "cpu"]
        assert main(["evaluate", str(mosaic), *map(str, flags)]) == 0
        results = json.loads((out / "results.json").read_text())
        assert results.get("store", "exact") == store
        losses[store] = results["models"][0]["loss"]
    assert losses["lru:2000"] == pytest.approx(losses["exact"], abs=1e-3)
    assert losses["lru:50"] != pytest.approx(losses["exact"], abs=1e-3)
    assert losses["indexed:1000:10"] == pytest.approx(losses["exact"], abs=1e-4)
    assert losses["indexed:1:100"] == pytest.approx(losses["exact"], abs=1e-3)


def test_evaluating_after_a_file(mosaic, twin, files, tmp_path, capsys, undrawn):
    """The loss of each window is that of the same tokens after the text of the file."""
    (tmp_path / "text.txt").write_text(text := NOTES + TEXT[:200])
    prepared = ["--tokenizer", "bytes", "--valid", str(tmp_path / "text.txt")]
    assert main(["prepare", str(tmp_path / "text.txt"), "--out", str(tmp_path / "data"), *prepared]) == 0
    flags = ["--data", tmp_path / "data", "--length", "99", "--device", "cpu", "--by-position", "true"]
    losses = {}
    for name, few in {"none": [], "book": ["--memory", files[0]], "both": ["--memory", *files]}.items():
        command = ["evaluate", mosaic, *few, *flags, "--out", tmp_path / name]
        assert main([str(each) for each in command]) == 0
        results = json.loads((tmp_path / name / "results.json").read_text())
        losses[name] = results["models"][0]["by_position"]
        memory = results["models"][0].get("memory")
        assert (memory is None) == (name == "none")
        assert name != "both" or [one["name"] for one in memory["texts"]] == ["book.txt", "notes.txt"]
    trained = LoadedModel.open(mosaic)
    rows = torch.tensor([*text.encode()])[: 6 * 99 + 1].unfold(0, 100, 99)
    before = torch.tensor([*TEXT.encode()])[None].expand(len(rows), -1)
    with torch.no_grad():
        logits, _ = trained.model(torch.cat([before, rows[:, :-1]], dim=1))
    expected = torch.nn.functional.cross_entropy(logits[:, len(TEXT) :].mT, rows[:, 1:], reduction="none").mean(dim=0)
    assert losses["book"] == pytest.approx(expected.tolist(), rel=1e-3)
    assert losses["both"] != pytest.approx(losses["book"], rel=1e-2)
    assert losses["none"] != pytest.approx(losses["book"], rel=1e-2)
    some = [*flags, "--out", tmp_path / "new"]
    assert "measure them one by one" in refused(capsys, "evaluate", mosaic, twin, "--memory", files[0], *some)
    assert "is a memory of model" in refused(capsys, "evaluate", twin, "--memory", files[0], *some)
    assert "no memory file" in refused(capsys, "evaluate", mosaic, "--memory", tmp_path / "none.memory", *some)


def test_a_file_for_the_state_of_a_model(mosaic, files):
    """The library's way to what the commands do."""
    trained = LoadedModel.open(mosaic)
    state = Memory.load(files[0]).state(trained.model)
    with torch.no_grad():
        logits, _ = trained.model(torch.tensor([[*b"Then"]]), state)
    assert logits.shape == (1, 4, 257)
