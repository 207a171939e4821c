"""Drafts of examples: the answers, and a function from an amount of filler to the prompt.

The tasks follow RULER (arXiv 2404.06654), with sentences and words of this project.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from sscc.compiler.tools.quality.haystack import Haystack
from sscc.compiler.tools.quality.prose import ADJECTIVES, NOUNS

DISTRACTORS = 3
VALUES = 4
QUERIES = 4
HOPS = 4
COMMON = 10
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

_MAGIC = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize them. I will quiz you "
    "about the numbers afterwards.\n\n{context}\n\n"
)
_ASK_ONE = "What is the special magic number for {key} mentioned in the text above?"
_ASK_ALL = "What are all the special magic numbers for {key} mentioned in the text above?"
_MOST_COMMON = f" Answer: The top {COMMON} words that appear most often in the list are:"


@dataclass(frozen=True)
class ExampleDraft:
    """An example whose length is not yet determined.

    Attributes:
        answers: answers to find in the model's text.
        question: returns the text for a number of units of filler (words or entries); more units only add text.
        answer_prefix: beginning of the answer, which the model continues. As in RULER it is part of the assistant's
            turn if there are turns. In plain text it directly follows the question.
        largest: maximum number of units; None for no limit.
        spoken: returns the first part of the answer for a number of words of filler. It takes half of the length, and
            decode steps feed it before tokens are generated. None if the model generates the whole answer.
    """

    answers: tuple[str, ...]
    question: Callable[[int], str]
    answer_prefix: str
    largest: int | None = None
    spoken: Callable[[int], str] | None = None


Maker = Callable[[Random, float, int], ExampleDraft]
"""Function from a random generator, the depth of the first answer (0 to 1) and the length in tokens to a draft."""


def passkey(random: Random, depth: float, length: int) -> ExampleDraft:
    key = str(random.randrange(10_000, 100_000))
    needle = f"The pass key is {key}. Remember it: {key} is the pass key."
    noise = Haystack.noise()
    head = "There is an important fact hidden in the text below. Find it and remember it.\n\n"

    def question(size: int) -> str:
        return f"{head}{noise.text(size, [(depth, needle)])}\n\nWhat is the pass key?"

    return ExampleDraft((key,), question, " The pass key is")


def single_needle(random: Random, depth: float, length: int) -> ExampleDraft:
    return _needles(random, depth, asked=1, values=1, others=0)


def multi_key(random: Random, depth: float, length: int) -> ExampleDraft:
    return _needles(random, depth, asked=1, values=1, others=DISTRACTORS)


def multi_value(random: Random, depth: float, length: int) -> ExampleDraft:
    return _needles(random, depth, asked=1, values=VALUES, others=0)


def multi_query(random: Random, depth: float, length: int) -> ExampleDraft:
    return _needles(random, depth, asked=QUERIES, values=1, others=0)


def _needles(random: Random, depth: float, *, asked: int, values: int, others: int) -> ExampleDraft:
    """Return a draft with the numbers of several keys in prose.

    Args:
        random: random generator.
        depth: depth of the first answer, 0 to 1.
        asked: number of keys in the question.
        values: numbers per key.
        others: number of further keys.
    """
    keys = distinct_keys(random, asked + others)
    numbers = distinct_numbers(random, (asked + others) * values)
    stated = [(keys[i // values], number) for i, number in enumerate(numbers)]
    depths = [depth, *(random.random() for _ in stated[1:])]
    needles = [
        (place, f"One of the special magic numbers for {key} is: {number}.")
        for place, (key, number) in zip(depths, stated, strict=True)
    ]
    prose = Haystack.prose(random)
    names = keys[0] if asked == 1 else f"{', '.join(keys[: asked - 1])} and {keys[asked - 1]}"
    one = asked * values == 1
    verb = "is" if one else "are"
    asking = (_ASK_ONE if one else _ASK_ALL).format(key=names)
    prefix = f" The special magic {'number' if one else 'numbers'} for {names} mentioned in the text above {verb}"
    answers = tuple(numbers[: asked * values])
    return ExampleDraft(answers, lambda size: _MAGIC.format(context=prose.text(size, needles)) + asking, prefix)


def key_value(random: Random, depth: float, length: int) -> ExampleDraft:
    """Return a draft with a JSON object of random pairs and a question for one value ("Lost in the middle", arXiv
    2307.03172)."""
    asked, *keys = distinct_keys(random, 1 + max(8, length // 8))
    value, *numbers = distinct_numbers(random, 1 + len(keys))
    entries = [f'"{key}": "{number}"' for key, number in zip(keys, numbers, strict=True)]

    def question(size: int) -> str:
        place = round(depth * size)
        lines = [*entries[:place], f'"{asked}": "{value}"', *entries[place:size]]
        body = ",\n".join(lines)
        return f'Below is a JSON object. Find the value of the key "{asked}" in it.\n\n{{{body}}}'

    prefix = f'\n\nThe pair with the key "{asked}" is:\n"{asked}": "'
    return ExampleDraft((value,), question, prefix, len(entries))


def variable_tracking(random: Random, depth: float, length: int) -> ExampleDraft:
    """Return a draft with a solved example, then a chain of assignments in noise and a question for all variables with
    its first value."""
    names = _variables(random, 2 * (HOPS + 1))
    shown, chain = names[: HOPS + 1], names[HOPS + 1 :]
    first, second = distinct_numbers(random, 2, 10_000, 100_000)
    example = _tracking(first, Haystack.noise().text(60, _chain(random, shown, first))) + _tracked(first, shown)
    depths, noise = _chain(random, chain, second), Haystack.noise()

    def question(size: int) -> str:
        return f"{example} {', '.join(shown)}\n\n{_tracking(second, noise.text(size, depths))}"

    return ExampleDraft(tuple(chain), question, _tracked(second, chain))


def _chain(random: Random, names: Sequence[str], value: str) -> list[tuple[float, str]]:
    """Return the assignments of a chain in order, each with a random depth."""
    texts = [f"VAR {names[0]} = {value}."]
    texts += [f"VAR {name} = VAR {before}." for before, name in pairwise(names)]
    return list(zip(sorted(random.random() for _ in texts), texts, strict=True))


def _tracking(value: str, context: str) -> str:
    return (
        f"Memorize and track the chain of variable assignments hidden in the following text.\n\n{context}\n\n"
        f"Question: Find all variables that are assigned the value {value} in the text above."
    )


def _tracked(value: str, names: Sequence[str]) -> str:
    return (
        f" Answer: According to the chain of variable assignments in the text above, {len(names)} variables are "
        f"assigned the value {value}, they are:"
    )


def common_words(random: Random, depth: float, length: int) -> ExampleDraft:
    """Return a draft with a solved example, then a numbered list of words and a question for its ten most frequent.

    As in RULER, these ten occur 6 times as often as others, and 10 times as often from 4096 tokens on.
    """
    words = random.sample((*NOUNS, *ADJECTIVES), len(NOUNS) + len(ADJECTIVES))
    shown, common, others = words[: 2 * COMMON], words[2 * COMMON : 3 * COMMON], words[3 * COMMON :]
    rare = 1 + length // 2048
    often = rare * (10 if length >= 4096 else 6)
    order = random.random()
    example = _listed(Random(order), [*shown[:COMMON] * 3, *shown[COMMON:]]) + _MOST_COMMON + numbered(shown[:COMMON])

    def question(size: int) -> str:
        return f"{example}\n\n{_listed(Random(order), [*common * often, *others[:size] * rare])}"

    return ExampleDraft(tuple(common), question, _MOST_COMMON, len(others))


def _listed(random: Random, words: list[str]) -> str:
    listed = numbered(random.sample(words, len(words)))
    return (
        "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that "
        f"appear most often.\n{listed}\nQuestion: What are the {COMMON} most common words in the above list?"
    )


def numbered(words: Sequence[str]) -> str:
    return "".join(f" {number}. {word}" for number, word in enumerate(words, 1))


def distinct_keys(random: Random, count: int) -> list[str]:
    """Return different pairs of an adjective and a noun."""
    chosen = random.sample(range(len(ADJECTIVES) * len(NOUNS)), count)
    return [f"{ADJECTIVES[i // len(NOUNS)]}-{NOUNS[i % len(NOUNS)]}" for i in chosen]


def distinct_numbers(random: Random, count: int, low: int = 1_000_000, high: int = 10_000_000) -> list[str]:
    return [str(number) for number in random.sample(range(low, high), count)]


def _variables(random: Random, count: int) -> list[str]:
    """Return different names of five letters."""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(random.choices(LETTERS, k=5))] = None
    return list(names)
