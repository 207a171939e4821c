"""Examples from files: every form of a line, defaults, and refusals."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from sscc.compiler.tools.quality.eval_options import EvalOptions
from sscc.compiler.tools.quality.evaluation_plan import make_examples
from sscc.compiler.tools.quality.example import Example
from sscc.compiler.tools.quality.own_tasks import LONGBENCH, REFUSED, ExampleFileErrors, cut_middle, own_examples
from sscc.compiler.tools.quality.perplexity import PerplexityErrors, perplexity_examples
from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.tasks import PERPLEXITY
from sscc.ir.errors import ErrorKind
from sscc.ir.files import STANDARD
from tests.errors import raises


def read(folder: Path, prompts: PromptFormat | None, *lines: Any, count: int | None = None) -> list[Example]:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n\n")
    return list(own_examples(path, count, prompts))


def test_forms(tmp_path: Path, plain: PromptFormat) -> None:
    own, longbench, ruler, tokens = read(
        tmp_path,
        plain,
        {"prompt": "The capital is", "answers": ["Paris"], "max_new_tokens": 3, "metric": "exact_match", "task": "t"},
        {"context": "Long text.", "input": "Who?", "answers": ["He", "Him"], "dataset": "hotpotqa_e", "length": 9000},
        {"index": 0, "input": "Find it: ", "outputs": ["1", "2"], "length": 30},
        {"tokens": [5, 6, 7], "answer_tokens": [8]},
    )
    assert (own.name, own.metric, own.max_new_tokens, own.answers) == ("t#0", "exact_match", 3, ("Paris",))
    assert own.prompt == tuple(plain.tokenizer.encode("The capital is").ids)
    assert longbench.text == "Long text.\n\nQuestion: Who?\nAnswer:"
    assert (longbench.task, longbench.metric, longbench.max_new_tokens) == ("hotpotqa_e", "f1", 32)
    assert (ruler.name, ruler.text, ruler.answers, ruler.metric) == (
        "mine#0",
        "Find it: ",
        ("1", "2"),
        "string_match_all",
    )
    assert (tokens.name, tokens.prompt, tokens.answer_tokens, tokens.max_new_tokens) == ("mine#1", (5, 6, 7), (8,), 1)


def test_the_first_of_each_task(tmp_path: Path, plain: PromptFormat) -> None:
    lines = [{"prompt": "p", "answers": ["a"], "task": task} for task in ("x", "x", "y", "x", "y", "y")]
    assert [e.name for e in read(tmp_path, plain, *lines, count=2)] == ["x#0", "x#1", "y#0", "y#1"]


def test_long_prompts_lose_their_middle(tmp_path: Path, plain: PromptFormat) -> None:
    assert cut_middle(list(range(10)), 5) == [0, 1, 7, 8, 9]
    assert cut_middle(list(range(5)), 5) == list(range(5))
    path = tmp_path / "f.jsonl"
    path.write_text(json.dumps({"prompt": "abcdefghij", "answers": ["x"]}))
    (example,) = own_examples(path, None, plain, longest=4)
    assert plain.tokenizer.decode(list(example.prompt)) == "abij"


@pytest.mark.parametrize("dataset", REFUSED)
def test_datasets_of_other_metrics_are_refused(dataset: str, tmp_path: Path, plain: PromptFormat) -> None:
    assert dataset not in LONGBENCH
    with raises(ExampleFileErrors.NO_SUCH_METRIC_HERE, dataset=dataset):
        read(tmp_path, plain, {"context": "c", "input": "q", "answers": ["a"], "dataset": dataset})


@pytest.mark.parametrize(
    ("line", "kind", "fields"),
    [
        ("nonsense", ExampleFileErrors.NOT_JSON, {"where": re.compile(r"mine\.jsonl:1$")}),
        ([1], ExampleFileErrors.NOT_AN_OBJECT, {}),
        ({"answers": ["a"]}, ExampleFileErrors.NO_PROMPT, {}),
        ({"prompt": "p"}, ExampleFileErrors.NO_ANSWERS, {}),
        ({"prompt": "p", "answers": []}, ExampleFileErrors.NO_ANSWERS, {}),
        ({"prompt": "p", "answers": "a"}, ExampleFileErrors.NO_ANSWERS, {}),
        (
            {"prompt": "p", "answers": ["a"], "metric": "bleu"}, ExampleFileErrors.UNKNOWN_METRIC,
            {"metric": "bleu"},
        ),
        (
            {"prompt": "p", "answers": ["a"], "metric": "json_fields"}, ExampleFileErrors.ANSWERS_ARE_NOT_FIELDS, {},
        ),
        (
            {"prompt": "p", "answers": ["a"], "max_new_tokens": 0}, ExampleFileErrors.BAD_NEW_TOKENS,
            {"value": 0},
        ),
        ({"tokens": [1]}, ExampleFileErrors.NO_TOKENS, {"field": "answer_tokens"}),
        (
            {"context": "c", "input": "", "answers": ["7"], "dataset": "passage_count"},
            ExampleFileErrors.QUESTION_IN_PROMPT, {},
        ),
        ("", ExampleFileErrors.EMPTY, {}),
    ],
)
def test_faults_are_named(
    line: Any, kind: ErrorKind, fields: dict[str, Any], tmp_path: Path, plain: PromptFormat
) -> None:
    with raises(kind, **fields):
        read(tmp_path, plain, line)


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    with raises(ExampleFileErrors.NO_TOKENIZER):
        read(tmp_path, None, {"prompt": "p", "answers": ["a"]})


class TestPerplexity:
    def test_windows_follow_the_text(self, tokenizer: Tokenizer) -> None:
        text = "".join(chr(32 + i % 90) for i in range(1000))
        tokens = tokenizer.encode(text).ids
        examples = list(perplexity_examples(text, "text", [50, 100], 20, 5, tokenizer))
        assert [e.name for e in examples[:2]] == ["perplexity@50#0", "perplexity@50#1"]
        starts = []
        for example in examples:
            window = [*example.prompt, *example.continuation]
            assert (len(example.prompt), len(example.continuation)) == (example.length, 20)
            starts.append(next(i for i in range(1000) if tokens[i : i + len(window)] == window))
            assert example.positions == example.length + 20
        assert len(set(starts)) > 5

    def test_a_short_text_is_refused(self, tokenizer: Tokenizer) -> None:
        with raises(PerplexityErrors.TEXT_TOO_SHORT, name="book.txt", tokens=69, length=50, scored=20):
            list(perplexity_examples("x" * 69, "book.txt", [50], 20, 1, tokenizer))

    def test_a_text_on_stdin_is_read_once(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"x" * 80)))
        options = EvalOptions(Path("model"), (PERPLEXITY,), lengths=(50,), text=STANDARD, score_tokens=20, examples=2)
        assert options.described()["text"] == hashlib.sha256(b"x" * 80).hexdigest()
        assert [len(example.prompt) for example in make_examples(options, tokenizer)] == [50, 50]
