"""The example of docs/serving.md runs as it stands."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.families import VOCABULARY, Compiler

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"


def test_the_example_runs(
    compiled: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    shutil.copytree(compiled("llama", batch=2).artifact.path, tmp_path / "model.rdu")
    words = "once upon a time the end never mind one two three".split()
    vocabulary = {word: token for token, word in enumerate([*words, *map(str, range(VOCABULARY - len(words)))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "model.rdu" / "tokenizer").mkdir(exist_ok=True)
    tokenizer.save(str(tmp_path / "model.rdu" / "tokenizer" / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    exec(compile(block[1], str(PAGE), "exec"), {"__name__": "example"})
    *_, cancelled, tokens, steps = capsys.readouterr().out.splitlines()
    assert cancelled.endswith("cancelled")
    assert [len(each) for each in json.loads(tokens.replace("(", "[").replace(")", "]"))] == [16] * 3
    assert int(steps) >= 30
