"""The story world: endless, exact, true to itself, in correct and simple English."""

import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from memory_mosaics.apps.story_world import Story, stories, story
from memory_mosaics.apps.story_world import generator as module
from memory_mosaics.apps.story_world.generator import FEATURES, run
from memory_mosaics.apps.story_world.narration import PHRASES
from memory_mosaics.apps.story_world.plots import PLOTS, add_details
from memory_mosaics.apps.story_world.world import COLOURS, PETS, PLACES, RULES, SURNAMES, THINGS, World
from memory_mosaics.errors import UserError
from memory_mosaics.text.word_lists import BOYS, GIRLS

NAMES = {*BOYS, *GIRLS, *(name for _, names in PETS for name in names)}


def unchecked(code: str) -> str:
    """What a fresh interpreter prints: without the run-time checks of types, which cost more than the stories."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def some() -> list[Story]:
    return list(stories(1500, seed=5))


def written(count: int, folder: Path) -> list[str]:
    file = folder / "stories.jsonl"
    unchecked(f"from memory_mosaics.apps.story_world.generator import *; run({count}, Path({str(file)!r}))")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> list[str]:
    return written(6_000, tmp_path_factory.mktemp("stories"))


# Determinism


def test_the_same_story_whenever_it_is_asked_for():
    first = [story(3, index) for index in (0, 7, 123_456_789)]
    assert first == [story(3, index) for index in (0, 7, 123_456_789)]
    code = "from memory_mosaics.apps.story_world import story; print(story(3, 123_456_789).text)"
    assert unchecked(code).strip() == first[-1].text


def test_a_story_does_not_depend_on_the_others():
    assert list(stories(20, seed=1, start=30)) == list(stories(50, seed=1))[30:]
    assert story(0, 1).text != story(1, 0).text


def test_no_letter_changes():
    """A corpus that somebody made can be made again: a change of the stories needs a new digest, and a reason."""
    digest = hashlib.sha256()
    for seed in (0, 1, 2, 5, 1_000_003, 4_100_000_007):
        for one in stories(250, seed=seed, start=seed % 1000):
            digest.update(json.dumps([one.text, one.features, one.words, one.probes]).encode())
    assert digest.hexdigest() == "ac7b9f7eb7b6b3288a027ac666d61f3c34b2b009bc890935d919f73f6ba15256"


# Size, variety, speed


@pytest.mark.slow
def test_twenty_thousand_are_all_different_and_of_the_right_length(tmp_path):
    check_all_different_and_of_the_right_length(written(20_000, tmp_path), 20_000)


def test_many_are_all_different_and_of_the_right_length(many):
    check_all_different_and_of_the_right_length(many, 6_000)


def check_all_different_and_of_the_right_length(many, count):
    assert len(many) == count == len(set(many))
    lengths = [len(text.split()) for text in many]
    assert min(lengths) >= 100
    assert max(lengths) <= 250
    assert {text.count("\n") + 1 for text in many} <= {3, 4, 5}
    assert not any("\n\n" in text or text != text.strip() for text in many)


def test_two_stories_share_almost_no_eight_words(many):
    def grams(text: str) -> set[tuple[str, ...]]:
        words = text.split()
        return {tuple(words[i : i + 8]) for i in range(len(words) - 7)}

    shared = [len(grams(a) & grams(b)) / len(grams(a)) for a, b in zip(many[:3000], many[3000:], strict=True)]
    assert sum(shared) / len(shared) < 0.002


def test_a_story_takes_a_thousand_calls():
    """Which is half a millisecond on an idle core."""
    code = f"""
import sys
sys.path.append({str(Path(__file__).parents[2])!r})
from counting import calls
from memory_mosaics.apps.story_world import stories
list(stories(300, seed=9))
print(calls(lambda: list(stories(400, seed=10))))
"""
    assert int(unchecked(code)) < 1000 * 400


def test_the_world_is_large():
    assert len({*BOYS, *GIRLS}) >= 150
    assert len(THINGS) >= 80
    assert len(PLACES) >= 25
    assert len(PLOTS) >= 12


def test_the_words_are_simple(many):
    forms = Counter(form for text in many[:5000] for form in re.findall(r"[a-z]+", text.lower()))
    names = {part.lower() for part in NAMES | set(SURNAMES)}
    assert len(forms.keys() - names) < 2500
    assert sum(len(form) * count for form, count in forms.items()) / forms.total() < 4.6


# Features are true


def test_each_feature_is_neither_rare_nor_certain(some):
    share = {name: sum(name in one.features for one in some) / len(some) for name in FEATURES}
    assert all(0.05 < value < 0.95 for value in share.values()), share
    assert 0.05 < share["BadEnding"] < 0.40


def test_dialogue_means_quotes(some):
    assert all(("Dialogue" in one.features) == ('"' in one.text) for one in some)


GLOOM = re.compile(
    r"sad\b|unhappy|could not sleep|ceiling|start this day again|hung h|a little\.|not been a good day|spoiled|"
    r"So it ended|tomorrow will be better|no happy end"
)


def test_a_bad_ending_reads_like_one(some):
    for one in some:
        last = one.text.split("\n")[-1]
        if "BadEnding" in one.features:
            assert GLOOM.search(last), last
        else:
            assert not re.search(r"no happy end|start this day again|not been a good day|went to bed sad", last), last


def test_a_moral_closes_the_story(some):
    says = re.compile(r"[Rr]emember|learned|found out|understood|knew|saw|From that day on|After that, ")
    for one in some:
        sentences = re.split(r"(?<=[.!?]) ", one.text.split("\n")[-1])
        assert ("MoralValue" in one.features) <= bool(says.search(sentences[-1])), sentences[-1]
        assert ("emember:" not in one.text and "remember this:" not in one.text) or "MoralValue" in one.features


def test_a_conflict_has_angry_words(some):
    heard = re.compile(
        r"angry|\bmad\b|\bcross\b|argued|quarreled|shout|yell|\blie\b|not know|stole|mine|crumb, and|hurt|faster|"
        r"not want|\"No!\"|cannot play|was a lie|You took it|to give it back|waited for so long|all that time|\bkeep\b|"
        r"not my fault|never listen|None for you|Not one bite|Thief"
    )
    assert all(heard.search(one.text) for one in some if "Conflict" in one.features)


def test_what_is_planted_matters_later(some):
    """Read from the text alone: the stick that was seen is fetched, the clouds bring rain, the warning comes true."""
    pairs = [
        (r"ong stick (lay|leaned)|a long stick (at|in|by|on)", r"the long stick|The stick!", 0),
        (r"may rain|clouds over the hills", r"rained|rain came|pour|sky came down", 1),
        (r"must not get wet", r"wet through|splashed water all over", 0),
    ]
    for early, late, always in pairs:
        planted = [one for one in some if re.search(early, one.text)]
        paid = [one for one in planted if re.search(late, one.text[re.search(early, one.text).end() :])]
        assert paid
        assert len(paid) == len(planted) or not always
        assert all("Foreshadowing" in one.features for one in paid)


def test_features_are_in_the_order_of_the_list(some):
    assert all(one.features == tuple(name for name in FEATURES if name in one.features) for one in some)


def test_every_plot_can_end_well_and_badly():
    seen = Counter()
    for index in range(3000):
        world = World(Random(index))
        name = world.pick(list(PLOTS))
        PLOTS[name](world)
        seen[name, world.ends_well()] += 1
    assert len(seen) == 2 * len(PLOTS)


def test_every_rule_and_every_phrase_is_of_use():
    assert RULES.keys() <= PHRASES.keys()
    found: set[str] = set()
    for index in range(4000):
        world = World(Random(index))
        PLOTS[world.pick(list(PLOTS))](world)
        add_details(world)
        found.update(kind for kind, _ in world.trace)
    assert found - {""} == PHRASES.keys()


# Consistency, read from the text alone


def test_nothing_changes_its_colour(many):
    nouns = "|".join(sorted(THINGS, key=len, reverse=True))
    containers = "box|basket|drawer|tin|chest|suitcase|cupboard|trunk|bucket|barrel|sack|crate|tub|tent|cart|hut|door"
    seen_in = re.compile(rf"\b({'|'.join(COLOURS)}) ({nouns}|{containers})\b")
    for text in many[:5000]:
        colours: dict[str, str] = {}
        for colour, noun in seen_in.findall(text):
            assert colours.setdefault(noun, colour) == colour, text


def test_everybody_is_introduced(many):
    kin = "named|friend|cousin|neighbor|brother|sister|" + "|".join(kind for kind, _ in PETS)
    for text in many[:5000]:
        for name in NAMES & set(re.findall(r"\b[A-Z][a-z]+\b", text)):
            first = re.search(rf"\b{name}\b", text)
            assert re.search(rf"\b({kin}) $", text[: first.start()]), f"{name}: {text}"


def test_probes_ask_for_what_was_mentioned_long_before(some):
    probes = [(one.text, *probe) for one in some for probe in one.probes]
    assert len(probes) > 0.8 * len(some)
    for text, prefix, answer in probes:
        assert text.startswith(f"{prefix} {answer}")
        words, sought = prefix.split(), answer.split()
        heard = [i for i in range(len(words)) if [w.strip('.,!?";:') for w in words[i : i + len(sought)]] == sought]
        assert heard, (prefix[-80:], answer)
        assert len(words) - heard[0] - len(sought) >= 40


def test_the_three_words_occur(some):
    assert all(word in one.text.split() for one in some for word in one.words)


# English


def test_the_english_is_clean(many):
    wrong = re.compile(
        r"  | [.,!?;:]|[{}\[\]|_*\x01\x02]|\b(the the|a a|an an|to to|he he|she she|and and)\b|\b[Aa] [aeiou]|"
        r"\b[Aa]n (?!hour)[^aeiou]|,,|\.\.|'s's|"
        r"\b(said|asked|cried|called|gave|told|with|to|from|of|hugged|pulled) (he|she)\b|"
        r"\b(him|Him) (was|had|could|did|went)\b|\b[Hh]e and s?he\b|\b[Ss]he and s?he\b|\. [a-z]|[a-z][!?] [a-z]"
    )
    for text in many:
        found = wrong.search(text)
        assert not found, text[max(0, found.start() - 40) : found.end() + 40]


def test_sentences_begin_and_end_as_they_should(many):
    for text in many:
        for paragraph in text.split("\n"):
            assert re.match(r'"?[A-Z]', paragraph), paragraph
            assert re.search(r'[.!?]"?$', paragraph), paragraph
            assert paragraph.count('"') % 2 == 0, paragraph


# The command


def test_the_file_is_one_json_string_a_line(tmp_path, capsys):
    file = tmp_path / "new" / "stories.jsonl"
    statistics = run(50, file, seed=4)
    assert [json.loads(line) for line in file.read_text().splitlines()] == [one.text for one in stories(50, seed=4)]
    assert statistics["stories"] == 50
    assert list(statistics["features"]) == list(FEATURES)
    printed = capsys.readouterr().out
    assert str(file) in printed
    assert "words per story" in printed
    assert [path.name for path in file.parent.iterdir()] == ["stories.jsonl"]


def test_tokens_are_counted_estimated_or_unknown(tmp_path, capsys, monkeypatch):
    class Tokenizer:
        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            return [[0] * 7 for _ in texts]

    def missing() -> Tokenizer:
        raise UserError("no tokenizer here")

    monkeypatch.setattr("memory_mosaics.text.tokenizer.gpt2", Tokenizer)
    assert run(10, tmp_path / "a.jsonl")["tokens"] == 70
    monkeypatch.setattr(module, "TOKEN_SAMPLE", 5)
    estimated = run(10, tmp_path / "a.jsonl")
    assert estimated["tokens"] == 70
    assert "about" in estimated["tokens_note"]
    monkeypatch.setattr("memory_mosaics.text.tokenizer.gpt2", missing)
    assert run(10, tmp_path / "a.jsonl")["tokens"] is None
    assert "tokens                - (" in capsys.readouterr().out


def test_a_failed_write_leaves_nothing_and_keeps_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "stories.jsonl"
    file.write_text("old\n")

    def fails(*args: object, **options: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "stories", fails)
    with pytest.raises(KeyboardInterrupt):
        run(10, file)
    assert file.read_text() == "old\n"
    assert [path.name for path in tmp_path.iterdir()] == ["stories.jsonl"]


@pytest.mark.parametrize(
    ("count", "out", "says"),
    [
        (0, "a.jsonl", "count must be at least 1, not 0"),
        (5, "", "is a folder"),
        (5, "file/a.jsonl", "cannot write to .*file: "),
    ],
)
def test_mistakes_are_one_line(tmp_path, count, out, says):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=says) as error:
        run(count, tmp_path / out)
    assert "\n" not in str(error.value)
    assert [path.name for path in Path(tmp_path).iterdir()] == ["file"]
