"""Generated examples: deterministic, of the requested length, with the answers at the stated places."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from sscc.compiler.tools.quality.answer_scores import METRICS
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.haystack import Haystack, HaystackErrors, fit
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.tasks import GOLDEN, TASKS, make_example
from tests.errors import raises

LENGTH = 3000  # bytes
COUNT = 3
STATED = re.compile(r"One of the special magic numbers for ([a-z]+-[a-z]+) is: (\d{7})\.")
SLACK = {"kv_retrieval": 40, "common_words": 60}  # an entry of a list; elsewhere a word


def make_examples(task: str, plain: PromptFormat, seed: int = 0, length: int = LENGTH) -> list[Example]:
    return [make_example(task, length, index, seed, plain) for index in range(COUNT)]


@pytest.mark.parametrize("task", TASKS)
class TestEveryTask:
    def test_equal_arguments_give_equal_examples(self, task: str, plain: PromptFormat) -> None:
        examples = make_examples(task, plain)
        assert examples == make_examples(task, plain)
        assert len({example.prompt for example in examples}) == COUNT
        assert not {e.prompt for e in examples} & {e.prompt for e in make_examples(task, plain, seed=1)}

    def test_prompts_are_as_long_as_asked_for(self, task: str, plain: PromptFormat) -> None:
        for length in (LENGTH, 2 * LENGTH):
            for example in make_examples(task, plain, length=length):
                assert length - SLACK.get(task, 12) <= len(example.prompt) + len(example.spoken) <= length
                assert example.prompt == tuple(plain.tokenizer.encode(example.text).ids)

    def test_answers_fit_into_the_new_tokens_and_score_one(self, task: str, plain: PromptFormat) -> None:
        for example in make_examples(task, plain):
            said = ", ".join(example.answers)
            assert METRICS[example.metric](said, example.answers) == 1.0
            assert METRICS[example.metric]("no idea", example.answers) == 0.0
            assert example.positions == LENGTH + example.max_new_tokens

    def test_a_length_that_is_too_short_is_refused(self, task: str, plain: PromptFormat) -> None:
        with raises(HaystackErrors.PROMPT_TOO_LONG, text=re.compile(rf"the task {task}$")) as caught:
            make_example(task, 20, 0, 0, plain)
        assert caught.value.fields["smallest"] > 20 >= caught.value.fields["length"]


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if task.placed])
def test_answers_stand_where_promised_and_depths_are_spread(task: str, plain: PromptFormat) -> None:
    examples = [make_example(task, 2 * LENGTH, index, 3, plain) for index in range(12)]
    for index, example in enumerate(examples):
        (answer,) = example.answers
        assert example.text.count(answer) == (2 if task == "passkey" else 1)
        assert example.depth == example.text.index(answer) / len(example.text)
        assert abs(example.depth - (index + 1) * GOLDEN % 1.0) < 0.1  # what stands around the filler shifts it
    counts = Counter(int(4 * (example.depth or 0.0)) for example in examples)
    assert all(counts[quarter] >= 2 for quarter in range(4))


@pytest.mark.parametrize(
    ("task", "keys", "asked", "values"),
    [
        ("niah_single", 1, 1, 1),
        ("niah_multikey", 4, 1, 1),
        ("niah_multivalue", 1, 1, 4),
        ("niah_multiquery", 4, 4, 1),
    ],
)
def test_needles(task: str, keys: int, asked: int, values: int, plain: PromptFormat) -> None:
    for example in make_examples(task, plain):
        body, question = example.text.rsplit("\n\n", 1)
        stated = STATED.findall(body)
        assert len(stated) == keys * values == len(set(stated))
        assert len({key for key, _ in stated}) == keys
        numbers = [number for key, number in stated if key in question]
        assert sorted(numbers) == sorted(example.answers)
        assert len(numbers) == asked * values
        assert not STATED.search(question)


def test_key_value_pairs(plain: PromptFormat) -> None:
    for example in make_examples("kv_retrieval", plain):
        pairs = json.loads(example.text[example.text.index("{") : example.text.index("}") + 1])
        asked = example.text[example.text.rindex("\n") + 1 :].removesuffix('": "').removeprefix('"')
        assert (pairs[asked],) == example.answers
        assert len(set(pairs.values())) == len(pairs) > 50


def test_variables_follow_from_the_text(plain: PromptFormat) -> None:
    for example in make_examples("variable_tracking", plain):
        shown, asked = example.text.split("\n\nMemorize")
        for text in (shown, asked):
            value = re.search(r"assigned the value (\d{5}) in", text)
            assert value is not None
            held = {}
            for name, source in re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?(\w{5})\.", text):
                held[name] = held.get(source, source)
            assert set(held.values()) == {value.group(1)}
            assert len(held) == 5
        assert tuple(held) == example.answers
        assert shown.rsplit("they are: ", 1)[1].split(", ") == re.findall(r"VAR ([A-Z]{5}) =", shown)


@pytest.mark.parametrize(("length", "often", "rare"), [(2000, 6, 1), (4000, 12, 2), (5000, 30, 3)])
def test_the_most_common_words(length: int, often: int, rare: int, plain: PromptFormat) -> None:
    example = make_example("common_words", length, 0, 0, plain)
    listed = example.text.rsplit("appear most often.\n", 1)[1].split("\nQuestion")[0]
    counts = Counter(re.findall(r"\d+\. (\w+)", listed))
    assert {word for word, count in counts.items() if count == often} == set(example.answers)
    assert {count for word, count in counts.items() if word not in example.answers} == {rare}


def test_a_list_to_copy(plain: PromptFormat) -> None:
    for example in make_examples("list_copy", plain):
        listed = re.search(r"Here is the list of things to be packed: (1\. .*? 20\. \S+)\. ", example.text)
        assert listed is not None
        assert tuple(re.findall(r"\d+\. (\S+)", listed.group(1))) == example.answers
        assert example.text.endswith("to be packed? Here is the list of things to be packed:")


def test_an_answer_that_is_half_given(plain: PromptFormat) -> None:
    """The number is in its beginning and nowhere else; half of the length lies between it and the question."""
    for length in (LENGTH, 2 * LENGTH):
        for example in make_examples("answer_recall", plain, length=length):
            spoken = plain.tokenizer.decode(list(example.spoken))
            (number,) = example.answers
            assert length // 2 - 12 <= len(example.spoken) <= length // 2
            assert number not in example.text
            assert spoken.count(number) == 1
            assert spoken.index(number) < 80
            key = re.search(r"number for (\S+) is:$", spoken)
            assert key is not None
            assert f"The special magic number for {key.group(1)} is: {number}." in spoken
            assert example.positions == length + example.max_new_tokens
            assert example.steps == len(example.spoken) + example.max_new_tokens


def test_details_to_extract(plain: PromptFormat) -> None:
    for example in make_examples("extraction", plain):
        text, form = example.text.split("\n\nFill in this JSON object")
        fields = [json.loads(f"{{{answer}}}") for answer in example.answers]
        (names,) = [json.loads(form[form.index("{") : form.index("}") + 1])]
        assert [*names] == [name for field in fields for name in field]
        assert {*names.values()} == {""}
        assert all(text.count(value) == 1 for field in fields for value in field.values())
        assert example.text.endswith("filled in? The JSON object is:\n{\n")


class TestHaystack:
    def test_needles_stand_between_sentences(self) -> None:
        text = Haystack.noise().text(25, [(0.0, "FIRST"), (0.5, "HALF"), (1.0, "LAST")])
        assert text == (
            "FIRST The grass is green. The sky is blue. The sun is yellow. HALF Here we go. There and back again. "
            "The grass is green. LAST The sky"
        )

    def test_needles_at_one_place_keep_their_order(self) -> None:
        assert Haystack.noise().text(4, [(0.9, "A"), (1.0, "B")]) == "The grass is green. A B"

    def test_no_words_leave_the_needles(self) -> None:
        assert Haystack.noise().text(0, [(0.7, "A")]) == "A"


class TestFit:
    @pytest.mark.parametrize("length", [3, 10, 17, 18, 19, 100, 1000])
    def test_finds_the_longest(self, length: int) -> None:
        assert len(fit(lambda size: "abc" + "x" * size, length, len, "it")) == length

    def test_stops_at_the_largest(self) -> None:
        assert fit(lambda size: "x" * size, 100, len, "it", largest=30) == "x" * 30
        assert fit(lambda size: "x" * size, 100, len, "it", largest=0) == ""
