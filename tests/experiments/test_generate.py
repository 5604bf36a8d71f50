import io
import json
import sys

import pytest
import torch

from experiments.conftest import small_run
from memory_mosaics import decoding, transformer
from memory_mosaics.checkpoint import LoadedModel
from memory_mosaics.cli import main
from memory_mosaics.decoding import GREEDY, GenerationParams, TextGenerator

TEXT = "Grüße, 日本 🌍!"


def stub_tokens(monkeypatch, ids):
    """Let the model generate these tokens."""
    monkeypatch.setattr(decoding, "stream", lambda *_, **__: (torch.tensor([index]) for index in ids))


def generated(out, run, *flags):
    assert main(["generate", str(run), *flags, "--out", str(out)]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_half_a_letter_waits_for_the_rest(mosaic, monkeypatch):
    stub_tokens(monkeypatch, TEXT.encode())
    pieces = list(TextGenerator(LoadedModel.open(mosaic), GenerationParams()).stream("Once"))
    assert "".join(pieces) == TEXT
    assert all(len(piece) <= 1 for piece in pieces), "each letter comes whole, and as soon as it is"


def test_a_letter_that_never_ends_is_marked(mosaic, monkeypatch):
    stub_tokens(monkeypatch, "🌍".encode()[:3])
    assert "".join(TextGenerator(LoadedModel.open(mosaic), GenerationParams()).stream("Once")) == "\ufffd"


def test_the_end_of_text_stops_it(mosaic, monkeypatch, capsys):
    stub_tokens(monkeypatch, [*b" A cat.", 256, *b"another text"])
    assert main(["generate", str(mosaic), "--prompt", "Once:"]) == 0
    assert capsys.readouterr().out == "Once: A cat.\n"


def test_it_streams(mosaic, monkeypatch):
    """What has come is shown before the next token is asked for."""
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stdout", shown)
    seen = []

    def slowly(*_, **__):
        for letter in b"abc":
            yield torch.tensor([letter])
            seen.append(shown.getvalue())

    monkeypatch.setattr(decoding, "stream", slowly)
    main(["generate", str(mosaic), "--prompt", "-> "])
    assert seen == ["-> a", "-> ab", "-> abc"]


def test_a_seed_gives_the_same_text_alone_or_in_company(mosaic, tmp_path):
    alone = generated(tmp_path / "a", mosaic, "--prompt", "Once", "--seed", "7", "--length", "12")
    beside = generated(
        tmp_path / "b", mosaic, "--prompt", "Once", "Two", "A longer one", "--seed", "7", "--length", "12"
    )
    again = generated(
        tmp_path / "c", mosaic, "--prompt", "Once", "Two", "A longer one", "--seed", "7", "--length", "12"
    )
    other = generated(tmp_path / "d", mosaic, "--prompt", "Once", "--seed", "8", "--length", "12")
    assert beside == again
    assert alone == beside[:1]
    assert alone[0]["text"] != other[0]["text"]
    assert alone[0] == {"prompt": "Once", "text": alone[0]["text"], "model": "mosaic", "seed": 7, "number": 0}


def test_without_a_seed_texts_differ_and_the_seed_is_printed(mosaic, tmp_path):
    first, second = (generated(tmp_path / name, mosaic, "--prompt", "Once", "--length", "20")[0] for name in "ab")
    assert first["text"] != second["text"]
    again = generated(tmp_path / "c", mosaic, "--prompt", "Once", "--length", "20", "--seed", str(first["seed"]))
    assert again == [first]


def test_several_texts_of_one_prompt(mosaic, tmp_path):
    records = generated(tmp_path / "a", mosaic, "--prompt", "Once", "--count", "3", "--seed", "1", "--length", "12")
    assert [record["number"] for record in records] == [0, 1, 2]
    assert len({record["text"] for record in records}) == 3


def test_temperature_zero_is_greedy(mosaic, tmp_path):
    (record,) = generated(tmp_path / "a", mosaic, "--prompt", "Once", "--temperature", "0", "--length", "9")
    trained = LoadedModel.open(mosaic)
    (tokens,) = decoding.generate(trained.model, [torch.tensor(list(b"Once"))], 9, sampler=GREEDY, eos=256)
    assert record["text"] == trained.tokenizer.decode(tokens.tolist())


def test_beams(mosaic, tmp_path):
    records = generated(tmp_path / "a", mosaic, "--prompt", "Once", "Another", "--beams", "2", "--length", "9")
    trained = LoadedModel.open(mosaic)
    for record in records:
        prompt = torch.tensor(list(record["prompt"].encode()))
        (tokens,) = decoding.beam_search(trained.model, [prompt], 9, beams=2, eos=256)
        assert record["text"] == trained.tokenizer.decode(tokens.tolist())
        assert record["beams"] == 2


def pipe(data):
    """As Python opens it: what is not UTF-8 passes as halves of characters."""
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="surrogateescape")


def test_a_pipe_that_is_not_utf_8_is_named(mosaic, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", pipe(b"caf\xe9\n"))
    assert main(["generate", str(mosaic)]) == 2
    output = capsys.readouterr().err
    assert output.startswith("mosaics: what comes from the pipe is not UTF-8: 'utf-8' codec can't decode byte 0xe9")
    assert output.count("\n") == 1


@pytest.mark.parametrize("flags", [["--seed", "1"], ["--beams", "1"]])
def test_a_text_that_ends_with_the_positions_is_reported(tmp_path, monkeypatch, capsys, flags):
    short = small_run(tmp_path / "short", transformer, context=24)
    no_end = LoadedModel.open(short)
    monkeypatch.setattr(no_end.tokenizer, "end_of_text", -1)
    monkeypatch.setattr(LoadedModel, "open", lambda *_, **__: no_end)
    ends = "short has learned positions for 24: {}\n"
    main(["generate", str(short), "--prompt", "Once", "--length", "400", *flags])
    assert capsys.readouterr().err == ends.format("1 text ends there, before its 400 tokens")
    main(["generate", str(short), "--prompt", "Once", "Two", "--length", "22", *flags])
    assert capsys.readouterr().err == ends.format("1 text ends there, before its 22 tokens")
    main(["generate", str(short), "--prompt", "Once", "Two", "--length", "23", *flags])
    assert capsys.readouterr().err == ends.format("2 texts end there, before their 23 tokens")
    main(["generate", str(short), "--prompt", "Once", "--length", "21", *flags])
    assert capsys.readouterr().err == ""


def test_a_pipe_has_a_prompt_a_line(mosaic, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", pipe(b"Once\n\n  Two\r\n"))
    records = generated(tmp_path / "a", mosaic, "--length", "3", "--seed", "1")
    assert [record["prompt"] for record in records] == ["Once", "  Two"]
    assert capsys.readouterr().out == "\n\n".join(record["prompt"] + record["text"] for record in records) + "\n"
    monkeypatch.setattr(sys, "stdin", pipe(b"\n"))
    assert main(["generate", str(mosaic)]) == 2
    assert capsys.readouterr().err == "mosaics: no prompt came from the pipe\n"


def test_files_of_prompts(mosaic, tmp_path):
    (tmp_path / "lines.txt").write_text("Once\n\nTwo\n")
    (tmp_path / "lines.jsonl").write_text('{"prompt": "Once", "group": "x"}\n"Two"\n')
    for name in ("lines.txt", "lines.jsonl"):
        records = generated(tmp_path / "out", mosaic, "--prompts", str(tmp_path / name), "--length", "2")
        assert [record["prompt"] for record in records] == ["Once", "Two"]


def test_a_conversation(tmp_path, monkeypatch, capsys):
    short = small_run(tmp_path / "short", transformer, context=24)
    lines = iter(["Once", "far too long for a model like this", "", None])

    def typed(_):
        line = next(lines)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed)
    records = generated(tmp_path / "out", short, "--length", "5", "--seed", "3")
    assert [record["prompt"] for record in records] == ["Once", ""]
    output = capsys.readouterr()
    assert "has learned positions for 24" in output.err
    assert "Once" + records[0]["text"] in output.out


def test_a_short_prompt_does_not_pay_for_a_long_one(tmp_path):
    short = small_run(tmp_path / "short", transformer, context=24)
    flags = ("--length", "15", "--temperature", "0")
    alone = generated(tmp_path / "a", short, "--prompt", "Once", *flags)
    beside = generated(tmp_path / "b", short, "--prompt", "Once", "Twenty-two bytes long.", *flags)
    assert alone[0]["text"] == beside[0]["text"]


def test_ctrl_c_keeps_what_is_finished(mosaic, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(decoding, "MAX_BATCH", 1)
    whole = decoding.generate

    def stopped(model, prompts, *rest, **options):
        if len(prompts[0]) == 3:
            raise KeyboardInterrupt
        return whole(model, prompts, *rest, **options)

    monkeypatch.setattr(decoding, "generate", stopped)
    out = tmp_path / "out"
    assert main(["generate", str(mosaic), "--prompt", "Once", "Two", "--out", str(out), "--length", "3"]) == 130
    assert [json.loads(line)["prompt"] for line in out.read_text().splitlines()] == ["Once"]
    assert "finished: 1" in capsys.readouterr().err


def test_a_terminal_does_not_obey_the_model(mosaic, monkeypatch, capsys):
    stub_tokens(monkeypatch, b"\x1b[2J\n\x07")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    main(["generate", str(mosaic), "--prompt", "Once"])
    assert capsys.readouterr().out == "Once␛[2J\n␇\n"


@pytest.mark.parametrize("flags", [["--top_k", "1"], ["--top_p", "0.0001"]])
def test_drawing_among_one_is_greedy(flags, mosaic, tmp_path):
    drawn = generated(tmp_path / "a", mosaic, "--prompt", "Once", "--length", "9", *flags)
    greedy = generated(tmp_path / "b", mosaic, "--prompt", "Once", "--length", "9", "--temperature", "0")
    assert drawn[0]["text"] == greedy[0]["text"]


@pytest.mark.parametrize("beams", [[], ["--beams", "2"]])
def test_compiled_steps_write_the_same(mosaic, beams, monkeypatch, capsys):
    """What is compiled is for test_gpu.py; here, that it is asked for."""
    words = ["generate", str(mosaic), "--prompt", "Once", "upon", "--length", "5", *(beams or ["--seed", "1"])]
    assert main(words) == 0
    plain = capsys.readouterr().out
    asked = []
    monkeypatch.setattr("torch.compile", lambda step, **options: asked.append(options) or step)
    assert main([*words, "--compile"]) == 0
    assert capsys.readouterr().out == plain
    assert asked


def test_a_missing_compiler_is_reported(mosaic, monkeypatch, capsys):
    from torch._inductor.exc import InvalidCxxCompiler

    def fails(*_, **__):
        raise InvalidCxxCompiler

    monkeypatch.setattr("torch.compile", lambda step, **_: fails)
    assert main(["generate", str(mosaic), "--prompt", "Once", "--length", "5", "--compile", "--seed", "0"]) == 2
    output = capsys.readouterr().err
    assert output.startswith("mosaics: --compile does not work here")
    assert output.count("\n") == 1
