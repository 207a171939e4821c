"""RULER's package is called as it wants to be called, and is refused in one line where it is missing or fails.

A stand-in of the same layout takes its place: the package itself is an extra with many dependencies.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sscc.compiler.tools.quality.prompts import PromptFormat
from sscc.compiler.tools.quality.ruler import PACKAGE, RulerErrors, ruler_examples, ruler_tasks
from sscc.ir.extras import ExtraErrors
from sscc.runtime.text.chat_template import ChatTemplate
from tests.errors import raises

TASKS = """
vt:
  task: variable_tracking
  args:
    num_hops: 4
qa_1:
  task: qa
  args:
    dataset: squad
"""
CONSTANTS = """
TASKS = {
    "variable_tracking": {"tokens_to_generate": 30, "template": "Track {context} {query}", "answer_prefix": " Answer:"},
    "qa": {"tokens_to_generate": 32, "template": "Read {context}"},
}
"""
GENERATOR = """
import argparse, json, sys
from pathlib import Path
parser = argparse.ArgumentParser()
for name in ("save_dir", "save_name", "tokenizer_type", "tokenizer_path", "template", "num_hops", "dataset"):
    parser.add_argument(f"--{name}", type=str)
for name in ("max_seq_length", "tokens_to_generate", "num_samples", "random_seed"):
    parser.add_argument(f"--{name}", type=int)
args = parser.parse_args()
if args.random_seed == 13:
    sys.exit("LookupError: no luck")
from tokenizers import Tokenizer
folder = Path(args.tokenizer_path)
assert json.loads((folder / "tokenizer_config.json").read_text())["tokenizer_class"] and args.tokenizer_type == "hf"
tokens = len(Tokenizer.from_file(str(folder / "tokenizer.json")).encode("four").ids)
file = Path(args.save_dir) / args.save_name / "validation.jsonl"
file.parent.mkdir()
with file.open("w") as lines:
    for index in range(args.num_samples):
        text = f"{args.template}|{args.max_seq_length}|{args.tokens_to_generate}|{args.random_seed}|{tokens}|{index}"
        lines.write(json.dumps({"index": index, "input": text, "outputs": ["A", "B"]}) + "\\n")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / PACKAGE
    synthetic = root / "data" / "synthetic"
    synthetic.mkdir(parents=True)
    for folder in (root, root / "data", synthetic):
        (folder / "__init__.py").touch()
    (root / "synthetic.yaml").write_text(TASKS)
    (synthetic / "constants.py").write_text(CONSTANTS)
    for kind in ("variable_tracking", "qa"):
        (synthetic / f"{kind}.py").write_text(GENERATOR)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    return root


def test_examples(package: Path, plain: PromptFormat) -> None:
    first, second = ruler_examples("vt", 100, 2, 7, plain)
    assert first.text == "Track {context} {query} Answer:|130|30|7|4|0"
    assert second.name == "ruler:vt@100#1"
    assert first.prompt == tuple(plain.tokenizer.encode(first.text).ids)
    assert (first.answers, first.metric, first.max_new_tokens) == (("A", "B"), "string_match_all", 30)


def test_questions_have_any_answer(package: Path, plain: PromptFormat) -> None:
    (example,) = ruler_examples("qa_1", 100, 1, 7, plain)
    assert (example.text.split("|")[0], example.metric) == ("Read {context}", "string_match_part")


def test_a_chat_template_is_put_around_what_the_generators_write(package: Path, plain: PromptFormat) -> None:
    """The beginning of the answer goes behind it, and its tokens are taken off the length."""
    chat = PromptFormat(plain.tokenizer, ChatTemplate("are you?;{{ messages[0].content }};a{{ '\\n' }}"))
    (example,) = ruler_examples("vt", 100, 1, 7, chat)
    own = len("are you?;;a\n") - 1  # the space before "Answer" goes
    assert example.text == f"are you?;Track {{context}} {{query}};a\nAnswer:|{130 - own}|30|7|4|0"
    (example,) = ruler_examples("qa_1", 100, 1, 7, chat)
    assert example.text.startswith("are you?;Read {context}|")
    with raises(RulerErrors.TEMPLATE_FILLS_PROMPT, task="vt", length=own, template_tokens=own):
        list(ruler_examples("vt", own, 1, 7, chat))


def test_a_prompt_without_its_beginning_of_an_answer(package: Path, plain: PromptFormat) -> None:
    script = package / "data" / "synthetic" / "variable_tracking.py"
    script.write_text(GENERATOR.replace("{args.template}", "other"))
    with raises(RulerErrors.NO_ANSWER_PREFIX, prefix=" Answer:"):
        list(ruler_examples("vt", 100, 1, 7, PromptFormat(plain.tokenizer, ChatTemplate("a"))))


def test_refusals(package: Path, plain: PromptFormat) -> None:
    with raises(RulerErrors.UNKNOWN_TASK, task="chess", tasks=["vt", "qa_1"]):
        list(ruler_examples("chess", 100, 1, 0, plain))
    with raises(RulerErrors.FAILED, task="vt", reason="LookupError: no luck"):
        list(ruler_examples("vt", 100, 1, 13, plain))


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    with raises(ExtraErrors.NOT_INSTALLED, extra="ruler"):
        ruler_tasks()
