"""What is wrong with a story, by reason; and what is left is a corpus that `mosaics prepare` takes."""

import json

import pytest

from memory_mosaics.babistories.cleaning import REASONS, Cleaner, tidy
from memory_mosaics.babistories.words import ADJECTIVES, NOUNS, VERBS, uses
from memory_mosaics.cli import main
from memory_mosaics.text.corpus import Corpus
from memory_mosaics.text.stories import stories

GOOD = (
    "One rainy day, Anna ran to the old bridge. She saw a little duck in the water. The duck was sad, for it could not "
    'find its mother. "Do not cry," said Anna, "we will look for her." They looked under the bridge and behind the '
    "stones. Then they heard a loud quack. The mother was in the reeds! The little duck was happy, and Anna went home "
    "with wet feet and a warm heart."
)
ASKED = {"words": ["bridge", "run/ran", "happy"], "name": "Anna", "opening": "One rainy day", "finish": "stop"}
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
    told = [{"index": n, "text": story.text, "finish": "stop"} for n, story in enumerate(stories(300))]
    found = [(why, text[:80]) for _, text, why in cleaner.clean(told) if why]
    assert not found


def test_what_is_around_a_story_is_taken_off():
    assert tidy(f"# The duck\n\n**Anna**\n\n{GOOD}\n\nThe end.\n") == GOOD
    assert tidy(f"Title: Ducks\r\n\r\n{GOOD}</s> Here is another") == GOOD
    assert tidy('"All is well."') == "All is well."
    assert tidy('"Yes," said Tom. "No," said Anna. "Oh."') == '"Yes," said Tom. "No," said Anna. "Oh."'


def test_forms_of_a_word_count():
    forms = {"run/ran": "runs running ran runner", "carry": "carried carries carrying", "bake": "baking baked baker"}
    forms |= {"happy": "happily happier happiness", "hop": "hopped hopping hops", "mouse/mice": "mice mouse"}
    for word, several in forms.items():
        assert all(uses(f"They saw, {form}!", word) for form in several.split()), word
    assert not uses("The cart was here.", "car")
    assert not uses("A brand new day", "ran")


def test_our_lists_hold_each_word_once():
    for several in (NOUNS, VERBS, ADJECTIVES):
        assert len(set(several)) == len(several) > 150
        assert all(word == word.lower() for word in several)


def write_journal(folder, texts) -> None:
    lines = [{"step": "stories"}]
    lines += [{"index": n, "text": text, "finish": "stop", "tokens": [10, 20]} for n, text in enumerate(texts)]
    folder.mkdir(exist_ok=True)
    (folder / "stories.journal").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"index": 7, "te')


def test_what_is_left_is_split_counted_and_prepared(tmp_path, capsys):
    told = [story.text for story in stories(300)]
    write_journal(tmp_path, [*told, told[3], "Too short.", told[5] + " https://x.org."])
    words = ["--out", str(tmp_path), "--valid-share", "0.1", "--shortest", "20"]
    assert main(["babistories", "clean", *words]) == 0
    table = dict(line.rsplit(maxsplit=2)[:2] for line in capsys.readouterr().out.splitlines()[:11])
    assert table["answers"] == "303"
    assert (table["kept"], table["near-duplicate"], table["too short"], table["URL"]) == ("300", "1", "1", "1")
    split = {name: (tmp_path / f"{name}.jsonl").read_text().splitlines() for name in ("train", "valid")}
    assert sorted(json.loads(line) for lines in split.values() for line in lines) == sorted(told)
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
    told = [story.text for story in stories(40)]
    write_journal(tmp_path / "one", told[:20])
    write_journal(tmp_path / "two", told)
    journals = [str(tmp_path / name / "stories.journal") for name in ("one", "two")]
    out = tmp_path / "out"
    words = ["--out", str(out), "--valid-share", "0", "--shortest", "20", "--language", "null"]
    assert main(["babistories", "clean", "--journals", *journals, *words]) == 0
    found = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    assert sorted(found) == sorted(told), "each number once"
    assert not (out / "valid.jsonl").read_text()
    assert json.loads((out / "clean.json").read_text())["answers"] == 40


def test_a_small_corpus_has_something_to_validate_on(tmp_path):
    write_journal(tmp_path, [story.text for story in stories(6)])
    assert main(["babistories", "clean", "--out", str(tmp_path), "--shortest", "20", "--valid-share", "1e-9"]) == 0
    assert json.loads((tmp_path / "clean.json").read_text())["stories"] == {"train": 5, "valid": 1}
