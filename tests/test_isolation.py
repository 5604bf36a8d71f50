"""Files of others that attack: crashes, endless loops, floods and nesting cost one line."""

import json
import os
import re
import signal

import pytest

from memory_mosaics.cli import main
from memory_mosaics.errors import UserError, one_line, printable
from memory_mosaics.files import check_yaml
from memory_mosaics.isolation import IsolatedFunction, delayed_interrupts
from memory_mosaics.text.chat import ChatTemplate
from memory_mosaics.text.tokenizer import Tokenizer, byte_tokenizer, is_builtin, train_bpe

MESSAGES = [{"role": "user", "content": "Hello"}]
OURS = dict(train_bpe(["Once upon a time. " * 9], 300).layout)
LOWERCASE = {"type": "Lowercase"}


def nested(depth: int) -> dict:
    step = LOWERCASE
    for _ in range(depth):
        step = {"type": "Sequence", "normalizers": [step]}
    return step


def load(folder, **changes) -> Tokenizer:
    (folder / "tokenizer.json").write_text(json.dumps(OURS | changes))
    return Tokenizer.load(folder)


def test_a_function_is_called_again_and_again_and_after_its_process_was_killed():
    function = IsolatedFunction(
        "import os\ndef function(x):\n    if x == 'die': os._exit(3)\n    if x == 'spin':\n        while True: pass\n"
        "    if x == 'much': return 'a' * 17 * 2**20\n    return [x, os.getpid()]\n",
        seconds=1,
    )
    (first, one), (second, two) = function("a"), function("\n\u2028")
    assert (first, second, one) == ("a", "\n\u2028", two)
    for argument, why in {"die": "exit code 3", "spin": "more than 1 seconds", "much": "result is too long"}.items():
        with pytest.raises(UserError, match=why):
            function(argument)
    assert function("b")[0] == "b"
    function.close()


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 2 seconds"),
        ("{{ 'a' * 10**10 }}", "more than 1024 MB"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ raise_exception('only pairs') }}", "only pairs"),
        ("{{" + "(" * 5000, "recursion"),
        ("{% for %}", "Expected an expression"),
    ],
)
def test_a_hostile_template_is_one_line(source, why):
    with pytest.raises(UserError, match=why):
        ChatTemplate(source).render(MESSAGES)


def test_a_template_renders():
    template = ChatTemplate("{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m['content'] }}\n{% endfor %}")
    assert template.render(MESSAGES, bos_token="<s>") == "<s>user: Hello\n"


def test_our_tokenizers_need_no_process(monkeypatch):
    monkeypatch.setattr("memory_mosaics.text.tokenizer.check_tokenizer", lambda *_: pytest.fail("tried"))
    assert is_builtin(OURS)
    assert is_builtin(byte_tokenizer().layout)
    assert Tokenizer(OURS, "own", end_of_text=0).encode("Once")


def test_a_tokenizer_of_others_is_tried_and_works(tmp_path):
    assert load(tmp_path, normalizer=LOWERCASE).encode("ONCE") == load(tmp_path).encode("once")


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": nested(120)},
        {"normalizer": nested(450)},
        {"normalizer": {"type": "Nothing"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100_000}},
        {"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}},  # a panic
        {"model": OURS["model"] | {"continuing_subword_prefix": "#####"}},  # a panic
    ],
)
def test_a_hostile_tokenizer_is_one_line(tmp_path, changes, capfd):
    with pytest.raises(UserError, match="cannot be built") as caught:
        load(tmp_path, **changes).encode("Hello")
    assert "\n" not in str(caught.value)
    assert not capfd.readouterr().err  # what the library prints when it panics


@pytest.mark.parametrize("index", [10**12, -1, 1.5, "a", True])
def test_ids_are_small_whole_numbers(tmp_path, index):
    with pytest.raises(UserError, match="token 'q' has the id"):
        load(tmp_path, model=OURS["model"] | {"vocab": OURS["model"]["vocab"] | {"q": index}})


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_no_file(tmp_path, name):
    load(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match="not a regular file"):
        Tokenizer.load(tmp_path)


def test_a_vocabulary_too_large_to_train_is_refused():
    with pytest.raises(UserError, match="at most 1,048,576, not 1000000000"):
        train_bpe(["a"], 10**9)


ALIASES = ["a: &a [1]\n" + "b: [*a, *a]\n" * 60, "a: &a [1]\nb: &b [*a, *a]\n"]


@pytest.mark.parametrize("text", ["[" * 30_000, "- " * 30_000, "{a: " * 30_000, *ALIASES])
def test_deep_yaml_is_refused_before_it_is_parsed(text):
    with pytest.raises(UserError, match="at most 100 levels and 100 aliases"):
        check_yaml(text)


def test_control_characters_are_shown_not_obeyed():
    assert one_line(ValueError("a\x1b[31m\x9b\u202eb\nc")) == r"a\x1b[31m\x9b\u202eb c"
    assert printable("é\x07") == "é\\x07"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "corpus", "--config", "brackets.yaml"], "at most 100 levels"),
        (["train", "corpus", "--config=brackets.yaml"], "at most 100 levels"),
        (["train", "corpus", "--training", "brackets.yaml"], "must be a YAML file|at most 100 levels"),
        (["moons", "--heads", "[" * 30_000], "at most 100 levels"),
        (["train", "corpus", "--config", "zero.yaml"], "zero.yaml is not a regular file"),
        (["train", "corpus", "--training", "fifo.yaml"], "fifo.yaml is not a regular file"),
        (["train", "corpus", "--config", "large.yaml"], "larger than the 1,048,576 bytes"),
        (["train", "corpus", "--training.learning_rate", ".nan"], "--training.learning_rate must be a finite number"),
        (["train", "corpus", "--training.steps", "1" + "0" * 30], "--training.steps must be between"),
        (["moons", "--heads", "1", "1" + "0" * 30], "--heads must be between"),
        (["info", "a\x1b[31m"], r"a\\x1b\[31m is neither"),
    ],
)
def test_commands_end_in_one_line(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brackets.yaml").write_text("[" * 30_000)
    (tmp_path / "zero.yaml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "fifo.yaml")
    (tmp_path / "large.yaml").write_text("#" * (1 << 21))
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code
    err = capsys.readouterr().err
    assert code == 2
    assert err.count("\n") == 1
    assert re.search(message, err), err


def test_running_out_of_memory_anywhere_is_one_line(monkeypatch, capsys):
    def fail(*_, **__):
        raise MemoryError

    monkeypatch.setattr("memory_mosaics.cli.auto_cli", fail)
    assert main(["info", "x"]) == 2
    assert "out of memory" in capsys.readouterr().err


def test_files_that_users_name_are_read_within_bounds(tmp_path, monkeypatch, capsys):
    """Prompts, words, templates, journals: a FIFO would wait for ever, a link to /dev/zero fill the memory."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    os.symlink("/dev/zero", "zero")
    os.symlink("/dev/zero", "stories.journal")
    server = ["babistories", "stories", "--server", "http://localhost:1"]
    for arguments in (
        [*server, "--words", "fifo"],
        [*server, "--names", "zero"],
        [*server, "--template", "zero"],
        ["babistories", "clean", "--out", "."],
        ["generate", "run", "--prompts", "fifo"],
        ["prepare", "a.txt", "--tokenizer", "zero", "--out", "corpus"],
        ["train", "corpus", "--model.name", "zero"],
        ["draw", "zero/results.json"],
    ):
        assert main(arguments) == 2, arguments
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    "arguments",
    [
        "stories --count 1000000000",
        "prepare stories:1000000000 --out corpus",
        "prepare stories:9 --workers 1000000000 --out corpus",
        "generate run --count 1000000000",
        "generate run --beams 1000000000",
        "inspect run text --top 1000000000",
        "moons --seeds 1000000000",
        "moons --sequences 1000000000",
        "induction --batch_size 1000000000",
        "induction --task.vocabulary 1000000000",
        "induction --task.length 1000000000",
        "sweep corpus --jobs 1000000000",
        "curves corpus --jobs 1000000000",
        "regbench --jobs 1000000000",
        "demo --story_count 1000000000",
        "babistories stories --server http://localhost:1 --concurrency 1000000000",
    ],
)
def test_absurd_numbers_are_refused_at_once(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == 2
    assert re.search(r"at most|GB of memory", capsys.readouterr().err)


def test_ctrl_c_waits_for_what_must_be_finished():
    done = []

    def interrupted() -> None:
        with delayed_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
