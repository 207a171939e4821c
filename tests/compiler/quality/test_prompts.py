"""Prompts as plain text, which has to stay as it is, and as turns of chat templates: their tokens and their ends."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from sscc.compiler.tools.quality.eval_options import Numbers
from sscc.compiler.tools.quality.haystack import HaystackErrors
from sscc.compiler.tools.quality.model_files import ModelFiles
from sscc.compiler.tools.quality.own_tasks import ExampleFileErrors, own_examples
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.tasks import TASKS, make_example
from sscc.runtime.text.chat_template import ChatTemplate
from tests.compiler.quality.test_tasks import LENGTH, SLACK
from tests.errors import raises
from tests.models.tiny_llama import END, byte_tokenizer
from tests.runtime.test_chat_template import CHATML, LLAMA2, LLAMA3

PLAIN_SHA256 = {
    "passkey": "869e491855422904",
    "niah_single": "0d27c22334520f84",
    "niah_multikey": "5fb1481257ae9788",
    "niah_multivalue": "36ca405c31ba5507",
    "niah_multiquery": "44bd66e918e9815f",
    "kv_retrieval": "07bf84e2cc0eede5",
    "variable_tracking": "b0cbab01c4186675",
    "common_words": "0d4b840c093cc9ba",
    "list_copy": "b7ebc4e36f0aa2c8",
    "answer_recall": "62a995c9a0391ed8",
    "extraction": "a3d2d0404d17c463",
}
"""The first 16 hexadecimal digits of the digest of each task's text, for example 0 and seed 0."""

ANSWERS = {
    "passkey": " The pass key is",
    "niah_single": " The special magic number for ",
    "niah_multikey": " The special magic number for ",
    "niah_multivalue": " The special magic numbers for ",
    "niah_multiquery": " The special magic numbers for ",
    "kv_retrieval": " The pair with the key ",
    "variable_tracking": " Answer: According to the chain ",
    "common_words": " Answer: The top 10 words ",
    "list_copy": " Here is the list of things ",
    "answer_recall": "",
    "extraction": " The JSON object is:",
}
"""Beginnings of the answers."""

TURN = "{{ bos_token }}u:{{ messages[0].content }}{{ eos_token }}a:"
SPECIAL = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
BEGIN = END + 1


@pytest.fixture(scope="module")
def beginning() -> Tokenizer:
    """One token per byte; <|end|>; and <|begin|>, which it puts before every text itself."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(["<|begin|>"])
    begin = [("<|begin|>", BEGIN)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=begin)
    return tokenizer


@pytest.fixture
def turns(beginning: Tokenizer) -> PromptFormat:
    return PromptFormat(beginning, ChatTemplate(TURN, SPECIAL))


@pytest.mark.parametrize("task", TASKS)
def test_plain_prompts_stay_as_they_are(task: str, plain: PromptFormat) -> None:
    text = make_example(task, LENGTH, 0, 0, plain).text
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == PLAIN_SHA256[task]


class TestFormat:
    def test_plain_text_gets_the_tokenizers_special_tokens(self, beginning: Tokenizer) -> None:
        plain = PromptFormat(beginning)
        assert plain.text("What?", " It is") == "What? It is"
        assert plain.encode("What? It is") == beginning.encode("What? It is").ids
        assert plain.encode("What? It is")[0] == BEGIN
        assert plain.added("What?", " It is") == 1

    def test_a_template_writes_its_special_tokens_once(self, turns: PromptFormat) -> None:
        text = turns.text("What?", " It is")
        assert text == "<|begin|>u:What?<|end|>a: It is"
        tokens = turns.encode(text)
        assert (tokens[0], tokens.count(BEGIN), tokens.count(END)) == (BEGIN, 1, 1)
        assert turns.count(text) == len(tokens) == len("u:What?a: It is") + 2
        assert turns.added("What?", " It is") == len("u:a:") + 2

    def test_without_a_beginning_it_ends_with_the_generation_prompt(self, turns: PromptFormat) -> None:
        assert turns.text("What?") == "<|begin|>u:What?<|end|>a:"

    @pytest.mark.parametrize(
        ("template", "end"),
        [
            (CHATML, "Why?<|im_end|>\n<|im_start|>assistant\nIt is"),
            (LLAMA2, "<|begin|>[INST] Why? [/INST] It is"),
            (LLAMA3, "Why?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nIt is"),
        ],
        ids=["chatml", "llama-2", "llama-3"],
    )
    @pytest.mark.parametrize("prefix", [" It is", "\n\nIt is", "It is"])
    def test_one_space_or_none_before_the_answer(
        self, template: str, end: str, prefix: str, beginning: Tokenizer
    ) -> None:
        assert PromptFormat(beginning, ChatTemplate(template, SPECIAL)).text("Why?", prefix).endswith(end)


@pytest.mark.parametrize("task", TASKS)
class TestEveryTask:
    def test_the_template_counts(self, task: str, beginning: Tokenizer) -> None:
        """As long as asked for, template included, and the same again."""
        prompts = PromptFormat(beginning, ChatTemplate(CHATML))
        example = make_example(task, LENGTH, 1, 0, prompts)
        assert LENGTH - SLACK.get(task, 12) <= len(example.prompt) + len(example.spoken) <= LENGTH
        assert list(example.prompt) == beginning.encode(example.text, add_special_tokens=False).ids
        assert example == make_example(task, LENGTH, 1, 0, prompts)

    def test_the_answer_begins_in_the_assistants_turn(self, task: str, turns: PromptFormat) -> None:
        text = make_example(task, LENGTH, 1, 0, turns).text
        question, begun = text.removeprefix("<|begin|>u:").split("<|end|>a:")
        assert begun.startswith(ANSWERS[task])
        assert question.endswith(("?", "in the text above.", '"}'))

    def test_a_length_without_room_beside_the_template(self, task: str, plain: PromptFormat) -> None:
        alone = PromptFormat(plain.tokenizer, ChatTemplate(f"{'x' * LENGTH}{TURN}"))
        with raises(HaystackErrors.PROMPT_TOO_LONG, text=f"the task {task}") as caught:
            make_example(task, LENGTH, 0, 0, alone)
        assert caught.value.fields["smallest"] > LENGTH >= caught.value.fields["length"]


class TestOwnExamples:
    def read(self, folder: Path, prompts: PromptFormat, line: object, longest: int | None = None) -> tuple[int, ...]:
        path = folder / "mine.jsonl"
        path.write_text(json.dumps(line))
        (example,) = own_examples(path, None, prompts, longest)
        return example.prompt

    def test_text_becomes_a_turn_and_tokens_stay(self, tmp_path: Path, turns: PromptFormat) -> None:
        text = self.read(tmp_path, turns, {"prompt": "Who?", "answers": ["me"]})
        assert list(text) == turns.encode("<|begin|>u:Who?<|end|>a:")
        asked = self.read(tmp_path, turns, {"context": "Long.", "input": "Who?", "answers": ["me"]})
        assert list(asked) == turns.encode("<|begin|>u:Long.\n\nQuestion: Who?\nAnswer:<|end|>a:")
        assert self.read(tmp_path, turns, {"tokens": [5, 6], "answer_tokens": [7]}) == (5, 6)

    def test_the_middle_is_lost_and_the_template_is_not(self, tmp_path: Path, turns: PromptFormat) -> None:
        line = {"prompt": "abcdefghijklmnop", "answers": ["x"]}
        assert list(self.read(tmp_path, turns, line, 14)) == turns.encode("<|begin|>u:abcdmnop<|end|>a:")
        assert len(self.read(tmp_path, turns, line, 22)) == 22
        with raises(ExampleFileErrors.TEMPLATE_FILLS_PROMPT, longest=11, template_tokens=6):
            self.read(tmp_path, turns, line, 11)
        assert len(self.read(tmp_path, turns, {"prompt": "abcde", "answers": ["x"]}, 11)) == 11  # nothing to cut


class TestModelFiles:
    def folder(self, model: Path, to: Path, template: str | None) -> Path:
        to.mkdir()
        for file in model.iterdir():
            (to / file.name).write_bytes(file.read_bytes())
        if template is not None:
            (to / "chat_template.jinja").write_text(template)
            (to / "tokenizer_config.json").write_text(json.dumps(SPECIAL))
        return to

    def test_a_template_with_the_tokens_that_it_names(self, model: Path, tmp_path: Path) -> None:
        checkpoint = self.folder(model, tmp_path / "model", TURN)
        for _ in range(2):  # opened, and kept
            template = ModelFiles(checkpoint, tmp_path / "work", Numbers()).chat_template
            assert template is not None
            assert template.render([{"role": "user", "content": "Q"}]) == "<|begin|>u:Q<|end|>a:"

    def test_every_day_is_the_same(self, model: Path, tmp_path: Path) -> None:
        checkpoint = self.folder(model, tmp_path / "model", LLAMA3)
        template = ModelFiles(checkpoint, tmp_path / "work", Numbers()).chat_template
        assert template is not None
        assert "Today Date: 26 Jul 2024\n" in template.render([{"role": "user", "content": "Q"}])

    def test_none(self, model: Path, tmp_path: Path) -> None:
        files = ModelFiles(self.folder(model, tmp_path / "model", None), tmp_path / "work", Numbers())
        assert files.chat_template is None
        assert files.tokenizer is not None
