"""Models that slice what a product gives: a stage's operand is strided then, and a reshape of it needs a copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import FalconConfig, FalconForCausalLM

import sscc
from sscc.compiler.emit.layout import gathered
from sscc.ir import schedule as sch
from sscc.ir.errors import InternalError

CONTEXT, PROMPT, NEW_TOKENS = 64, 20, 12


@pytest.mark.parametrize(("groups", "opt_level"), [(1, 2), (2, 0), (4, 1)])
def test_falcon_s_new_decoder_architecture_is_transformers_generate(
    groups: int, opt_level: int, tmp_path: Path
) -> None:
    """Its rows of one product are queries, a key and a value, group after group."""
    torch.manual_seed(groups)
    config = FalconConfig(
        vocab_size=96,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_kv_heads=groups,
        new_decoder_architecture=True,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = FalconForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    ids = torch.randint(0, config.vocab_size, (1, PROMPT))
    expected = model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False)[0, PROMPT:].tolist()
    options = {"kv_budget": CONTEXT, "kv_topk": 0, "kv_sink": 0, "prefill_chunk": 8, "opt_level": opt_level}
    result = sscc.compile(tmp_path / "model", output=tmp_path / "x.rdu", **options)  # type: ignore[arg-type]
    for interpreter in ("reference", "native"):
        session = sscc.load(result, interpreter=interpreter)
        assert list(session.generate(ids[0].tolist(), NEW_TOKENS)) == expected


# ---------------------------------------------------------------------------------------------------- bodies


def body() -> sch.Body:
    """Adds the window [6] of x0 [2, 3] to x1 [6]."""
    row = ((1, 0),)
    params = (sch.Param("x0", (2, 3), "f32", "read"), sch.Param("x1", (6,), "f32", "read"))
    window = sch.Window("w0", sch.View("x0", (6,), (1,)))
    add = sch.Vector(
        (6,),
        (sch.Access("w0", row), sch.Access("x1", row)),
        sch.Access("y0", row),
        (sch.Instr("sum", "addf", ("in0", "in1"), "f32"),),
        "sum",
    )
    out = sch.Param("y0", (6,), "f32", "write")
    return sch.Body("add", (*params, out), (), (sch.Local("t0", (1,), "f32"),), (window,), (add,))


def test_only_a_strided_operand_that_has_windows_is_gathered() -> None:
    plain = body()
    assert gathered(plain, [False, True]) is plain
    moved = gathered(plain, [True, False])
    copy = moved.locals[-1]
    assert (copy.name, copy.shape) == ("t1", (2, 3))
    assert [window.view.tensor for window in moved.windows] == ["t1"]
    assert moved.steps[0].output == sch.Access("t1", ((1, 0, 0), (0, 1, 0)))
    assert moved.steps[1:] == plain.steps


def test_a_strided_operand_that_is_updated_through_a_window_is_a_bug() -> None:
    plain = body()
    updating = replace(plain, params=(replace(plain.params[0], access="update"), *plain.params[1:]))
    with pytest.raises(InternalError):
        gathered(updating, [True, False])
