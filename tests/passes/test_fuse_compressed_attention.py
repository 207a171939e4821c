"""Near misses: a change of one line of what fuses leaves the operations as they were."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from sscc.compiler.tools.testing.ir_cases import run_ir
from sscc.ir.context import mlir, parse_module
from sscc.passes.base import TIDYING, run_upstream
from tests.fuzz import near_misses

MODULE = """module attributes {{
  kv.geometry = {{sink = 0 : i64, recent = 2 : i64, topk = 2 : i64, obs = 1 : i64, pool = 1 : i64,
                 pool_mode = "avg", max_context = 8 : i64}},
  sscc.program = {{batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64,
                  config = "{{}}", digest = "", eos = "[]"}}}} {{
  func.func private @k({arguments}) -> ({results}) attributes {{sscc.kernel}} {{
{body}
  }}
}}
"""

NAMES = ("decode", "chunk")
DECODE, CHUNK = (near_misses.PATTERNS[name].body for name in NAMES)


def pairs(text: str) -> dict[str, str]:
    return dict(word.split("=") for word in text.split())  # type: ignore[misc]  # two parts each


TYPES = {
    DECODE: pairs("q=2x4x1x8xf32 c=2x2x4x8xf32 n=2x2x1x8xf32 i=2xi64 f=2xi1 m=2x4xi1"),
    CHUNK: pairs("q=1x4x4x8xf32 c=1x2x8x8xf32 n=1x2x4x8xf32 o=1x4x1x8xf32 l=1x4x1x1xf32 g=1x4x4x1xf32"),
}
ARGUMENTS = {
    DECODE: pairs("q=!q k=!c v=!c kn=!n vn=!n p=!i t=!i a=!f topk=index p2=!i a2=!f topk2=index m2=!m x=!i"),
    CHUNK: pairs("q=!q k=!c v=!c kn=!n vn=!n seen=!o l=!l s=index n=index s2=index n2=index q2=!q g2=!g"),
}
FUSED = {DECODE: "kv.decode_attention", CHUNK: "kv.chunk_attention"}
OTHERS: dict[str, dict[str, int]] = {DECODE: {}, CHUNK: {"kv.observe": 2}}
"""Other operations that remain beside the fused one."""


def module(body: str, pattern: str) -> str:
    """`body`, a variant of `pattern`, as a kernel."""
    arguments = ", ".join(f'%{name}: {type_} {{sscc.input = "{name}"}}' for name, type_ in ARGUMENTS[pattern].items())
    types = re.search(r"return .* : (.*)", body)
    assert types is not None
    result_types = types.group(1).split(", ")
    results = ", ".join(f'{type_} {{sscc.output = "y{index}"}}' for index, type_ in enumerate(result_types))
    text = MODULE.format(arguments=arguments, results=results, body=body)
    return re.sub(r"!([a-z])\b", lambda match: f"tensor<{TYPES[pattern][match.group(1)]}>", text)


def tidied(text: str) -> str:
    """`text` without what goes away after every pass: operations that are unused, or equal to others."""
    with mlir():
        parsed = parse_module(text, "the test")
        run_upstream(parsed, TIDYING, "tidying")
        return str(parsed)


def operations(text: str) -> Counter[str]:
    return Counter(re.findall(r"= \"?((?:kv|tensor)\.\w+)", text))


@pytest.mark.parametrize("pattern", FUSED, ids=NAMES)
def test_the_pattern_itself_fuses(pattern: str) -> None:
    counts = operations(run_ir(module(pattern, pattern), ("fuse-compressed-attention",)))
    assert counts == {FUSED[pattern]: 1, **OTHERS[pattern]}


@pytest.mark.parametrize(("number", "fuses"), [(2, True), (1, False)])
def test_equal_constants_are_one_number(number: int, fuses: bool) -> None:
    """Operations of one step may have constants of their own; so the step has the same rows."""
    constants = f"    %two = arith.constant 2 : index\n    %other = arith.constant {number} : index\n"
    body = DECODE.replace("%p, %t, %topk)", "%p, %t, %two)").replace("%p, %t, %a, %topk)", "%p, %t, %a, %other)")
    after = run_ir(module(constants + body, DECODE), ("fuse-compressed-attention",))
    assert ("kv.decode_attention" in after) == fuses


@pytest.mark.parametrize(
    ("pattern", "old", "new"),
    [
        pytest.param(DECODE, '"kv.validity"(%p,', '"kv.validity"(%p2,', id="validity from another position"),
        pytest.param(DECODE, "%p, %t, %a, %topk)", "%p, %t, %a2, %topk)", id="validity of other slots"),
        pytest.param(DECODE, "%p, %t, %a, %topk)", "%p, %t, %a, %topk2)", id="validity of another number of kept rows"),
        pytest.param(DECODE, "%p, %t, %a, %topk)", "%p, %p2, %a, %topk)", id="validity of another ring"),
        pytest.param(DECODE, '"kv.row"(%p,', '"kv.row"(%p2,', id="row of another position"),
        pytest.param(DECODE, "%p, %t, %topk)", "%p, %t, %topk2)", id="row in a cache with another number of kept rows"),
        pytest.param(DECODE, "%vn, %row, %a)", "%vn, %x, %a)", id="rows differ"),
        pytest.param(DECODE, "%vn, %row, %a)", "%vn, %row, %a2)", id="one update of other slots"),
        pytest.param(DECODE, "%v1, %valid)", "%v1, %m2)", id="a mask of the caller"),
        pytest.param(DECODE, "(%q, %k1,", "(%q, %k,", id="keys as they were"),
        pytest.param(DECODE, "%v1, %valid)", "%v, %valid)", id="values as they were"),
        pytest.param(DECODE, "%kn, %row, %a)", "%kn, %x, %a)", id="keys at another row"),
        pytest.param(DECODE, "%kn, %row, %a)", "%kn, %row, %a2)", id="keys of other slots"),
        pytest.param(
            DECODE, "    %o =", "    %early = math.tanh %v1 : !c\n    %o =", id="the values are read before"
        ),
        pytest.param(
            DECODE, "    %o =", "    %early = math.tanh %k1 : !c\n    %o =", id="the cache is read before the attention"
        ),
        pytest.param(CHUNK, "%k[0, 0, %s, 0]", "%k[0, 0, %s2, 0]", id="keys appended elsewhere"),
        pytest.param(CHUNK, "%v[0, 0, %s, 0]", "%v[0, 0, %s2, 0]", id="values appended elsewhere"),
        pytest.param(CHUNK, "%k[0, 0, %s, 0]", "%k[0, 0, 0, %s]", id="appended along another axis"),
        pytest.param(CHUNK, "%v1, %s, %n)", "%v1, %s2, %n)", id="attention from elsewhere"),
        pytest.param(CHUNK, "(%q, %k1,", "(%q, %k,", id="keys as they were in the scratch"),
        pytest.param(CHUNK, "(%q, %k1,", "(%q, %v1,", id="values for keys"),
        pytest.param(DECODE, "(%q, %k1,", "(%q, %v1,", id="values for keys of a step"),
        pytest.param(CHUNK, "%v1, %s, %n)", "%v, %s, %n)", id="values as they were in the scratch"),
        pytest.param(CHUNK, "    %o:2", "    %early = math.tanh %v1 : !c\n    %o:2", id="the scratch is read before"),
    ],
)
def test_a_near_miss_does_not(pattern: str, old: str, new: str) -> None:
    assert pattern.count(old) == 1
    before = module(pattern.replace(old, new), pattern)
    after = run_ir(before, ("fuse-compressed-attention",))
    assert operations(after) == operations(tidied(before))
