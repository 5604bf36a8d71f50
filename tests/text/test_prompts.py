"""Prompts of files and of the library, and the rules that judge their continuations."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from memory_mosaics.errors import UserError
from memory_mosaics.text.prompts import Rule, default_prompts, names, parse, read

PAPERS = Path(__file__).parents[3] / "shared" / "data" / "prompts.jsonl"


def test_there_are_24_of_our_own():
    prompts = default_prompts()
    assert Counter(prompt.group for prompt in prompts) == {"factual": 9, "reasoning": 9, "consistency": 6}
    assert [prompt.group for prompt in prompts] == ["factual"] * 9 + ["reasoning"] * 9 + ["consistency"] * 6
    assert len({prompt.prompt for prompt in prompts}) == len({prompt.ability for prompt in prompts}) == 24


@pytest.mark.skipif(not PAPERS.exists(), reason="the paper's prompts are not here")
def test_they_are_none_of_the_papers():
    def runs(text, length=4):
        words = re.findall(r"[a-z']+", text.lower())
        return {tuple(words[at : at + length]) for at in range(len(words) - length + 1)}

    papers = [json.loads(line) for line in PAPERS.read_text(encoding="utf-8").splitlines()]
    assert [each["group"] for each in papers] == [prompt.group for prompt in default_prompts()], "one for one"
    taken = set().union(*(runs(each["prompt"]) for each in papers))
    assert not any(runs(prompt.prompt) & taken for prompt in default_prompts())


GOOD_AND_BAD = [  # of each prompt, what should look right, and what should not
    (" fridge and made a sandwich.", " window and flew away."),
    ' eight legs!" Sam counted again.|, too."',
    " low, and they could walk far out.| so high that nobody swam.",
    " the post office.| a big tree.",
    '. "No, Theo," said grandpa.|. "Yes, of course!" said grandpa.',
    ' "They love carrots and grass," he said.| "I do not know."',
    '. "It is in Italy," said the teacher.|. "You are a good boy."',
    " melt.| grow and grow.",
    ' your umbrella!"| to be happy."',
    " some grapes instead.| another pear.",
    " he rode her scooter all day.| they went home.",
    " the pond, the ice was thick.| the lake, the water was warm.",
    " boats are much better.| trains are the best.",
    ', "No, I want to swim!"|, "Yes, me too!"',
    " his brother.| his sister.",
    ', "No, thank you."|, "Yes! I love drums."',
    " took turns.| went to bed.",
    " but nobody came.| and Mina opened the door.",
    ' "I do not know," said Ruth.| Tim smiled and ran away.',
    ' green and yellow."| purple too."',
    ' "It is a key," said Boris.| "It is a coin," said Boris.',
    " out the candle.| out another spoon.",
    ' "I am Ruth, and this is Boris."| "My name is Tim," said the boy.',
    ' spare a lemon?"| help me find my cat?"',
]


@pytest.mark.parametrize("number", range(24))
def test_the_rules_judge_right(number):
    texts = GOOD_AND_BAD[number]
    good, bad = texts if isinstance(texts, tuple) else texts.split("|")
    rule = default_prompts()[number].rule
    assert rule is not None
    assert rule.judge(good) is True
    assert rule.judge(bad) is not True
    assert rule.judge(bad) is False or not (rule.none or rule.keeps)


def test_what_a_small_model_wrote_is_not_taken_for_an_answer():
    """She would be there, as if nobody had said that she is not."""
    [rule] = [prompt.rule for prompt in default_prompts() if "rang the bell" in prompt.prompt]
    assert rule is not None
    assert rule.judge(" but she was still scared.") is None
    assert rule.judge(" but she wasn't there.") is True


def test_where_only_one_answer_will_do_any_other_looks_wrong():
    [rome] = [prompt.rule for prompt in default_prompts() if "Rome" in prompt.prompt]
    assert rome is not None
    assert rome.judge('. "I don\'t know," said the teacher. She smiled.') is False
    assert rome.judge("") is False
    rules = {number: prompt.rule for number, prompt in enumerate(default_prompts()) if prompt.rule}
    closed = [number for number, rule in rules.items() if rule.otherwise is False]
    assert closed == [6, 9, 20, 21, 23]
    assert all(rules[number].judge(GOOD_AND_BAD[number].split("|")[1]) is False for number in closed)
    assert Rule(none=("dog",), otherwise=True).judge(" a cat.") is True
    assert Rule(any=("cat",), none=("dog",), otherwise=False).judge(" a cat and a dog.") is True
    assert Rule(keeps=("Ruth",), otherwise=False).judge(" said Ruth.") is True


def test_a_rule_looks_at_the_beginning_only():
    rule = Rule(any=("cat",), none=("dog",))
    assert rule.judge(" a cat. Then a dog.") is True
    assert rule.judge(" a bird. Then a cat.") is None
    assert Rule(any=("cat",), within=2).judge(" a bird. Then a cat.") is True
    assert rule.judge(" a dog and a cat.") is False, "the first decides"
    assert rule.judge(" a catalogue") is None, "whole words"
    assert Rule(any=("cat*",)).judge(" a catalogue") is True
    assert Rule(none=("don't",)).judge(" they don\u2019t.") is False, "whatever the apostrophe"
    assert Rule(keeps=("Ruth",)).judge(' "Who knows?" asked Mr. Wood.') is None, "that is the second sentence"
    assert Rule(keeps=("Ruth",), within=2).judge(' "Who knows?" asked Mr. Wood.') is False
    assert rule.judge("") is None
    assert rule.judge('"\n\n"...') is None


def test_names():
    assert names('Then Tom met a girl. "Hello, Zed," said Mom. She ran.') == ["Tom", "Zed"]
    assert names("Quark laughed.") == []
    assert names("Quark laughed.", known=("Quark",)) == ["Quark"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "an object with a text"),
        ('{"prompt": 3}', "an object with a text"),
        ('{"prompt": "a", "group": 3}', "group wants str, not 3"),
        ('{"prompt": "a", "rule": {}}', "a rule needs words"),
        ('{"prompt": "a", "rule": ["cat"]}', "wants a mapping of its fields"),
        ('{"prompt": "a", "rule": {"some": ["cat"]}}', "Rule has no field 'some'; it has any, none"),
        ('{"prompt": "a", "rule": {"any": 3}}', "any wants"),
        ('{"prompt": "a", "rule": {"any": ["b", 3]}}', "any wants str, not 3"),
        ('{"prompt": "a", "rule": {"any": ["*"]}}', "a rule needs words"),
        ('{"prompt": "a", "rule": {"any": ["b"], "within": 0}}', "at least 1, not 0"),
        ('{"prompt": "a", "rule": {"any": ["b"], "otherwise": "no"}}', "otherwise wants"),
        ("[" * 100_000, "not JSON"),
        ("{", "not JSON"),
    ],
)
def test_what_is_no_prompt(line, message):
    with pytest.raises(UserError, match=message) as error:
        parse(f'"fine"\n{line}\n', "file", as_json=True)
    assert "file, line 2" in str(error.value)


def test_an_array_of_prompts(tmp_path):
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps([prompt.plain() for prompt in default_prompts()], indent=2), encoding="utf-8")
    assert read(file) == default_prompts()
    file.write_text('["fine", 3]', encoding="utf-8")
    with pytest.raises(UserError, match=r"prompts\.json, prompt 2 should be an object with a text"):
        read(file)
    file.write_text('["fine"', encoding="utf-8")
    with pytest.raises(UserError, match=r"prompts\.json starts as an array of prompts, and is not JSON"):
        read(file)
    file.write_text("[]", encoding="utf-8")
    with pytest.raises(UserError, match="holds no prompt"):
        read(file)


def test_plain_and_back(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps(prompt.plain()) + "\n" for prompt in default_prompts()), encoding="utf-8")
    assert read(file) == default_prompts()
