"""What is wrong with a story, by reason; and what is left is a corpus that `mosaics prepare` takes."""

import json

import pytest

from memory_mosaics.apps.babistories.cleaning import REASONS, Cleaner, tidy
from memory_mosaics.apps.babistories.collect import read_journal
from memory_mosaics.apps.babistories.prompts import contains_word, default_lists
from memory_mosaics.apps.story_world import stories
from memory_mosaics.cli import main
from memory_mosaics.text.corpus import Corpus

GOOD = (
    "One rainy day, Anna ran to the old bridge. She saw a little duck in the water. The duck was sad, for it could not "
    'find its mother. "Do not cry," said Anna, "we will look for her." They looked under the bridge and behind the '
    "stones. Then they heard a loud quack. The mother was in the reeds! The little duck was happy, and Anna went home "
    "with wet feet and a warm heart."
)
ASKED = {
    "words": {"noun": "bridge", "verb": "run/ran", "adjective": "happy"},
    "name": "Anna",
    "opening": "One rainy day",
    "finish": "stop",
}
GERMAN = (
    "One rainy day, lief Anna zu der alten Brücke am Fluss. Dort sah sie eine kleine Ente im Wasser, die sehr traurig "
    "war, weil sie ihre Mutter nicht finden konnte. Anna suchte unter der Brücke und hinter den Steinen, und dann "
    "hörten sie ein lautes Quaken im Schilf. Die Mutter war wieder da, und alle waren froh und gingen nach Hause. Am "
    "Abend erzählte Anna ihrem Vater, was sie am Fluss gesehen hatte, und er lachte und kochte ihr eine warme Suppe."
)
BAD = {
    "no answer": ["", "  \n", "**A title**\n"],
    "refusal": [
        "I'm sorry, but I can't write that story for you today.",
        "As an AI language model, I would rather write about something else than this.",
        "I cannot write a story with these words, as they do not fit together very well.",
    ],
    "URL": [
        GOOD + " Read more at https://example.org/ducks.",
        GOOD + " Visit www.ducks.example!",
        GOOD + " See ducks.com.",
    ],
    "too short": ["One rainy day, Anna ran to the bridge and was happy.", " ".join(GOOD.split()[:49])],
    "cut off": [GOOD[: GOOD.rindex("with wet")], GOOD + " And then she"],
    "other language": [GERMAN, GOOD + " 第二天安娜又去了桥边。小鸭子和妈妈在水里游泳。他们都很高兴。" * 3],
    "wrong opening": [GOOD.replace("One rainy day", "One sunny day"), "Anna was here. " + GOOD],
    "missing words": [GOOD.replace("bridge", "road"), GOOD.replace("ran", "walked"), GOOD.replace("Anna", "Berta")],
}


def reason(text: str, cleaner: Cleaner | None = None, **asked) -> str | None:
    ((_, _, why),) = (cleaner or Cleaner()).clean([{"index": 0, "text": text} | ASKED | asked])
    return why


def test_a_good_story_stays():
    assert reason(GOOD) is None
    assert reason(GOOD.replace("One rainy day,", "“One  Rainy Day”")) is None, "marks and case do not matter"


@pytest.mark.parametrize(("why", "text"), [(why, text) for why, texts in BAD.items() for text in texts])
def test_each_reason_has_its_stories(why, text):
    assert reason(text) == why
    if why != "no answer":
        assert reason(text, Cleaner(allow=frozenset(REASONS) - {"near-duplicate"})) is None


def test_an_answer_that_reached_its_length_is_cut_off():
    assert reason(GOOD, finish="length") == "cut off"


def test_somebody_in_a_story_may_be_sorry():
    assert reason(GOOD.replace('"Do not cry,"', '"I am sorry," said the duck. "Do not cry,"')) is None


@pytest.mark.parametrize("end", [" \U0001f600", " \u2764\ufe0f\n", "\n\n---", "\n\n***\n", ' "', "\n\n**The End**"])
def test_what_may_stand_after_the_last_sentence(end):
    assert reason(GOOD + end) is None


def test_a_story_with_the_end_is_complete():
    whole = GOOD.removesuffix(".") + " happily ever after"
    assert reason(whole) == "cut off"
    assert reason(whole + "\n\nTHE END") is None
    assert reason(GOOD + " They came to the end") == "cut off"


def test_what_a_story_may_contain():
    for found in ("I am afraid of the dark, thought Tom.", "I'm sorry I broke it, thought Tom."):
        assert reason(f"{found} {GOOD}", opening="") is None
    assert reason(GOOD.replace("heart.", "home.Info came.")) is None
    for found in (
        "I'm afraid I can't write this story.",
        "I am sorry, but this is not possible.",
        "I'm unable to help.",
    ):
        assert reason(f"{found} {GOOD}", opening="") == "refusal"


def test_near_duplicates_of_what_was_kept_go():
    cleaner = Cleaner()
    assert reason(GOOD, cleaner) is None
    assert reason(GOOD, cleaner) == "near-duplicate"
    assert reason(GOOD.replace("a little duck", "a tiny duck"), cleaner) == "near-duplicate"
    another = "One rainy day, " + " ".join(GERMAN.split()[3:]) + " bridge run happy Anna."
    assert reason(another, Cleaner(language=None)) is None
    assert cleaner.counts == {"kept": 1, "near-duplicate": 2}


def test_the_stories_of_our_world_are_good_english_and_differ():
    cleaner = Cleaner(shortest=20)
    texts = [{"index": n, "text": story.text, "finish": "stop"} for n, story in enumerate(stories(300))]
    found = [(why, text[:80]) for _, text, why in cleaner.clean(texts) if why]
    assert not found


def test_what_is_around_a_story_is_taken_off():
    assert tidy(f"# The duck\n\n**Anna**\n\n{GOOD}\n\nThe end.\n") == GOOD
    assert tidy(f"Title: Ducks\r\n\r\n{GOOD}</s> Here is another") == GOOD
    assert tidy("Story: Once upon a time there was a cat. It ran.") == "Once upon a time there was a cat. It ran."
    assert tidy(f"Story: The duck\n\n{GOOD}\n\n---") == tidy(f"Story:\n{GOOD}") == GOOD
    assert tidy('"All is well."') == "All is well."
    assert tidy('"Yes," said Tom. "No," said Anna. "Oh."') == '"Yes," said Tom. "No," said Anna. "Oh."'


FORMS = {
    "noun": "cat:cats bus:buses fish:fishes berry:berries toy:toys mouse/mice:mice bee:bees pie:pies potato:potatoes",
    "verb": "run/ran:runs,running,ran carry:carried,carries,carrying bake:baking,baked,bakes hop:hopped,hopping,hops "
    "hope:hoped,hoping visit:visited,visiting begin/began:beginning play:played tie/tying:tied,tying fix:fixed,fixes "
    "tiptoe:tiptoed,tiptoeing sew:sewed look:looked catch/caught:catches,caught",
    "adjective": "happy:happily,happier,happiest big:bigger,biggest nice:nicer,nicely gentle:gently,gentler dull:dully "
    "sad:sadly,sadder slow:slower good/better/best:better shy:shyly",
    "name": "Anna:Anna",
}
OTHERS = {
    "noun": "car:carry,cared,cart,caring bus:busy star:stared,starry hat:hated pen:penny bee:beer pie:pier plan:plane",
    "verb": "hop:hoped,hoping run/ran:brand,runner,rant pat:patient hum:human pet:petal",
    "adjective": "bad/worse:badge,bade wet:we red:reed,reds fair:fairy new:news",
    "name": "Ann:Anna,Anns Ben:bend,Benny",
}


@pytest.mark.parametrize(("table", "used"), [(FORMS, True), (OTHERS, False)], ids=["forms", "other words"])
@pytest.mark.parametrize("kind", FORMS)
def test_forms_of_a_word_count_and_other_words_do_not(kind, table, used):
    for word, forms in (one.split(":") for one in table[kind].split()):
        assert contains_word(f"They saw, {word.split('/')[0]}!", word, kind)
        for form in forms.split(","):
            assert contains_word(f"They saw, {form}'s!", word, kind) == used, (word, form)


def test_our_lists_hold_each_word_once():
    lists = default_lists()
    for several in (lists.nouns, lists.verbs, lists.adjectives):
        assert len(set(several)) == len(several) > 150
        assert all(word == word.lower() for word in several)


def write_journal(folder, texts) -> None:
    lines = [{"step": "stories"}]
    lines += [{"index": n, "text": text, "finish": "stop", "tokens": [10, 20]} for n, text in enumerate(texts)]
    folder.mkdir(exist_ok=True)
    (folder / "stories.journal").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"index": 7, "te')


def test_what_is_left_is_split_counted_and_prepared(tmp_path, capsys):
    texts = [story.text for story in stories(300)]
    write_journal(tmp_path, [*texts, texts[3], "Too short.", texts[5] + " https://x.org."])
    words = ["--out", str(tmp_path), "--valid-share", "0.1", "--shortest", "20"]
    assert main(["babistories", "clean", *words]) == 0
    table = dict(line.rsplit(maxsplit=2)[:2] for line in capsys.readouterr().out.splitlines()[:11])
    assert table["answers"] == "303"
    assert (table["kept"], table["near-duplicate"], table["too short"], table["URL"]) == ("300", "1", "1", "1")
    split = {name: (tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("train", "valid")}
    assert sorted(json.loads(line) for lines in split.values() for line in lines) == sorted(texts)
    assert 10 < len(split["valid"]) < 60
    dropped = [json.loads(line) for line in (tmp_path / "dropped.log").read_text().splitlines()]
    assert [line["reason"] for line in dropped] == ["near-duplicate", "too short", "URL"]

    assert main(["babistories", "stats", "--out", str(tmp_path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[1][:2] == ["train", str(len(split["train"]))]
    assert json.loads((tmp_path / "statistics.json").read_text())["valid"]["stories"] == len(split["valid"])

    sources = [str(tmp_path / "train.jsonl"), "--valid", str(tmp_path / "valid.jsonl")]
    assert main(["prepare", *sources, "--tokenizer", "bytes", "--out", str(tmp_path / "corpus")]) == 0
    splits = Corpus.open(tmp_path / "corpus").manifest["splits"]
    assert splits["train"]["documents"] == len(split["train"])
    assert splits["valid"]["documents"] == len(split["valid"])


def test_journals_of_several_machines_are_one_corpus(tmp_path):
    texts = [story.text for story in stories(40)]
    write_journal(tmp_path / "one", texts[:20])
    write_journal(tmp_path / "two", texts)
    journals = [str(tmp_path / name / "stories.journal") for name in ("one", "two")]
    out = tmp_path / "out"
    words = ["--out", str(out), "--valid-share", "0", "--shortest", "20", "--language", "null"]
    assert main(["babistories", "clean", "--journals", *journals, *words]) == 0
    found = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert sorted(found) == sorted(texts), "each number once"
    assert not (out / "valid.jsonl").read_text()
    assert json.loads((out / "clean.json").read_text())["answers"] == 40


def test_a_small_corpus_has_something_to_validate_on(tmp_path):
    write_journal(tmp_path, [story.text for story in stories(6)])
    assert main(["babistories", "clean", "--out", str(tmp_path), "--shortest", "20", "--valid-share", "1e-9"]) == 0
    assert json.loads((tmp_path / "clean.json").read_text())["stories"] == {"train": 5, "valid": 1}


def test_a_story_is_held_out_by_its_number(tmp_path):
    texts = [story.text for story in stories(60)]
    write_journal(tmp_path, texts)
    lines = (tmp_path / "stories.journal").read_text().splitlines()[:-1]
    (tmp_path / "turned").mkdir()
    (tmp_path / "turned" / "stories.journal").write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    valid = []
    for out in (tmp_path, tmp_path / "turned"):
        assert main(["babistories", "clean", "--out", str(out), "--shortest", "20", "--valid-share", "0.2"]) == 0
        valid.append(sorted((out / "valid.jsonl").read_text().splitlines()))
    assert valid[0] == valid[1] != []


def test_reading_a_journal_reports_the_bytes_of_complete_lines(tmp_path):
    write_journal(tmp_path, ["Once.", "Zwölf Wölfe."])
    read: list[int] = []
    assert len(list(read_journal(tmp_path / "stories.journal", read.append))) == 3
    assert sum(read) == (tmp_path / "stories.journal").read_bytes().rindex(b"\n") + 1


def test_half_a_surrogate_pair_is_no_line_of_a_journal(tmp_path, capsys):
    write_journal(tmp_path, ["Once.", "Twice."])
    journal = tmp_path / "stories.journal"
    journal.write_text(journal.read_text().replace("Twice", "\\ud800"))
    assert main(["babistories", "clean", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"mosaics: {journal}, line 3 is not of a journal")


def test_a_corpus_without_a_story_is_one_line(tmp_path, capsys):
    write_journal(tmp_path, ["Once.", "Twice."])
    assert main(["babistories", "clean", "--out", str(tmp_path)]) == 2
    errors = capsys.readouterr().err
    assert errors == f"mosaics: no story is left of 2 answers; the reasons are in {tmp_path / 'dropped.log'}\n"
    assert len((tmp_path / "dropped.log").read_text().splitlines()) == 2
