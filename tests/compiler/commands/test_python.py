"""An artifact in Python: printed forms of objects, and text as input and output."""

from __future__ import annotations

from pathlib import Path

import sscc
from sscc.runtime.serving.engine import Engine, Request
from sscc.runtime.session.artifact import Artifact
from sscc.runtime.session.session import Session
from sscc.runtime.session.session_errors import SessionErrors
from sscc.runtime.text.tokenizer import decode, encode
from tests.errors import raises


def test_text_in_and_text_out(artifact: Path) -> None:
    session = sscc.load(artifact)
    tokens = list(session.generate(encode(session.tokenizer, "abc"), 12, eos=()))
    assert "".join(session.generate("abc", 12, eos=())) == decode(session.tokenizer, tokens)
    with raises(SessionErrors.REQUEST_TOO_LONG, tokens=3, max_new_tokens=1000, max_context=128):
        session.generate("abc", 1000)


def test_as_many_tokens_as_fit(artifact: Path) -> None:
    session = sscc.load(artifact)
    assert len(list(session.generate(range(1, 101), eos=()))) == 28
    assert len(list(session.generate([1, 2, 3], eos=()))) == 64


def test_text_without_a_tokenizer(artifact: Path) -> None:
    loaded = sscc.load(artifact)
    session = Session(loaded.signature, loaded.interpreter)
    with raises(SessionErrors.NO_TOKENIZER):
        session.generate("abc")


def test_what_is_printed(artifact: Path) -> None:
    session = sscc.load(artifact)
    sizes = "2 layers, f32, 2 slots of 128 tokens, cache of 16 rows"
    assert repr(session) == f"Session({sizes}; all slots empty)"
    session.prefill(1, [1, 2, 3])
    assert repr(session) == f"Session({sizes}; slot 1 holds 3 tokens)"
    assert repr(Artifact.load(artifact)) == f"Artifact({str(artifact)!r}: llama, {sizes}, weights embedded)"
    with Engine(session, session.tokenizer) as engine:
        done = engine.submit(Request((1, 2, 3), 4, eos=frozenset())).result()
    rows = "prompt of 3, 6 rows kept, 0 evicted"
    assert repr(done).startswith(f"Completion({done.text!r}, length after 4 tokens, {rows}")
    result = sscc.CompileResult(Path("model.rdu"), "schedule", ("a line",))
    assert repr(result) == f"CompileResult(path={Path('model.rdu')!r}, level='schedule')"
    assert str(result) == "a line\nwrote model.rdu"
