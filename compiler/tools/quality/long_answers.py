"""Drafts of tasks with long answers, during which decode steps need different rows.

A cache that is selected once, at the end of the prompt, is best for the first words of such an answer.
"""

from __future__ import annotations

from random import Random

from sscc.compiler.tools.quality.example_drafts import ExampleDraft, distinct_keys, distinct_numbers, numbered
from sscc.compiler.tools.quality.haystack import Haystack

ITEMS = 20
NUMBER, NAME = "number", "name"

INVOICE = (
    ("invoice_number", "The invoice that all of this is about has the number {}.", NUMBER),
    ("customer", "It was made out to a customer by the name of {}.", NAME),
    ("order_number", "The order behind it had been written down under the number {}.", NUMBER),
    ("product", "What had been ordered was a product called {}.", NAME),
    ("pieces", "They had asked for {} pieces of the product.", NUMBER),
    ("warehouse", "All of it lay in a warehouse that is called {}.", NAME),
    ("weight", "On the scales the goods came to {} grams.", NUMBER),
    ("ship", "The goods went out on a ship called {}.", NAME),
    ("container", "The container had the number {} on its side.", NUMBER),
    ("harbour", "They were to be unloaded in the harbour of {}.", NAME),
    ("price", "The price that was agreed on was {} crowns.", NUMBER),
    ("clerk", "A clerk whom everybody called {} signed for it.", NAME),
)
"""Fields of an invoice: the name, the sentence that states it, and the kind of its value."""


def list_copy(random: Random, depth: float, length: int) -> ExampleDraft:
    """Return a draft with a list of items in prose, which the answer must repeat in order."""
    items = distinct_keys(random, ITEMS)
    needle = f"Here is the list of things to be packed:{numbered(items)}."
    prose = Haystack.prose(random)
    head = f"A list of {ITEMS} things is hidden in the text below. Find the list and repeat it.\n\n"

    def question(size: int) -> str:
        return f"{head}{prose.text(size, [(depth, needle)])}\n\nWhat is the list of things to be packed?"

    return ExampleDraft(tuple(items), question, " Here is the list of things to be packed:")


def answer_recall(random: Random, depth: float, length: int) -> ExampleDraft:
    """Return a draft whose answer states a number at its beginning and must repeat it at its end. The prompt does not
    contain the number."""
    (key,) = distinct_keys(random, 1)
    (number,) = distinct_numbers(random, 1)
    story, answer = Haystack.prose(random), Haystack.prose(random)
    fact = f"The special magic number for {key} is: {number}."
    asked = f"At its beginning this story says that the special magic number for {key} is:"

    def question(size: int) -> str:
        return (
            f"Here is the beginning of a long story.\n\n{story.text(size)}\n\nGo on with the story. State the special "
            f"magic number for {key} first, and repeat it at the end. How does the story go on?"
        )

    return ExampleDraft((number,), question, "", spoken=lambda size: f" {fact} {answer.text(size)} {asked}")


def extraction(random: Random, depth: float, length: int) -> ExampleDraft:
    """Return a draft with the details of an invoice scattered in prose, which the answer must list as a JSON object. It
    follows Text2JSON (arXiv 2604.08426), with texts of this project."""
    names = iter(distinct_keys(random, len(INVOICE)))
    numbers = iter(distinct_numbers(random, len(INVOICE), 10_000, 100_000))
    values = {field: next(numbers if kind == NUMBER else names) for field, _, kind in INVOICE}
    needles = [(random.random(), sentence.format(values[field])) for field, sentence, _ in INVOICE]
    prose = Haystack.prose(random)
    form = ",\n".join(f'  "{field}": ""' for field in values)

    def question(size: int) -> str:
        return (
            f"The details of an invoice are scattered over the text below.\n\n{prose.text(size, needles)}\n\nFill in "
            f"this JSON object with what the text says:\n{{\n{form}\n}}\nWhat is the JSON object, filled in?"
        )

    answers = tuple(f'"{field}": "{value}"' for field, value in values.items())
    return ExampleDraft(answers, question, " The JSON object is:\n{\n")
