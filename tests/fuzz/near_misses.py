"""Fuzzing target: what a fusion almost recognises. It stays as it was, and computes what it did.

The bases are the patterns themselves: a decode step over one segment, over two, and over rows that its query chooses, a
chunk, calls of equal layers in a row, and a compression with and without sinks, of which selection becomes one stage.
One to three random changes make a near miss (or leave the pattern, which then fuses).
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch_mlir import ir

from sscc.ir.builders import arguments_of
from sscc.ir.context import mlir, parse_module, print_module
from sscc.ir.rewriting import functions
from tests.fuzz.harness import Finding, Target
from tests.fuzz.lowering import FilledCall, compare
from tests.fuzz.modules import Edits, with_entry
from tests.fuzz.reduce_ir import reduced_finding

KERNEL, ENTRY = "layer", "main"
MODULE = """module attributes {{sscc.level = "graph",
  kv.geometry = {{sink = {sink} : i64, recent = 2 : i64, topk = 2 : i64, obs = 2 : i64, pool = 3 : i64,
                 pool_mode = "avg", max_context = 8 : i64, rows = "{rows}"{policy}}},
  sscc.program = {{batch = 2 : i64, chunk = 4 : i64, dtype = "f32", layers = 1 : i64, vocab_size = 9 : i64,
                  config = "{{}}", digest = "", eos = "[]"}}}} {{
  func.func private @layer({arguments}) -> ({results}) {{
{body}
  }}
}}
"""


@dataclass(frozen=True)
class Pattern:
    """A function that fuses, or that is made of stages.

    Attributes:
        types: letter -> shape and element type.
        arguments: name -> type; those in `states` are kept between calls, under the name of the result.
        results: name -> type.
        sink, rows, policy: of the geometry.
    """

    body: str
    types: str
    arguments: str
    states: str
    results: str
    sink: int = 0
    rows: str = "compact"
    policy: str = ""

    def text(self) -> str:
        states = self.states.split()
        arguments, results = (_pairs(words) for words in (self.arguments, self.results))
        roles = {name: "state" if name in states else "input" for name in arguments}
        ends = {name: "state" if name in states else "output" for name in results}
        result_types = (f'{kind} {{sscc.{ends[name]} = "{name}"}}' for name, kind in results.items())
        parameters = ", ".join(f'%{name}: {kind} {{sscc.{roles[name]} = "{name}"}}' for name, kind in arguments.items())
        text = MODULE.format(
            sink=self.sink, rows=self.rows, policy=self.policy, arguments=parameters, results=", ".join(result_types),
            body=self.body,
        )  # fmt: skip
        types = _pairs(self.types)
        return re.sub(r"!([a-z])\b", lambda match: f"tensor<{types[match.group(1)]}>", text)


def _pairs(words: str) -> dict[str, str]:
    return dict(word.split("=") for word in words.split())  # type: ignore[misc]  # two parts each


DECODE = Pattern(
    """
    %row = "kv.row"(%p, %t, %topk) : (!i, !i, index) -> !i
    %k1 = "kv.update"(%k, %kn, %row, %a) : (!c, !n, !i, !f) -> !c
    %v1 = "kv.update"(%v, %vn, %row, %a) : (!c, !n, !i, !f) -> !c
    %valid = "kv.validity"(%p, %t, %a, %topk) : (!i, !i, !f, index) -> !m
    %o = "kv.cached_attention"(%q, %k1, %v1, %valid) {scale = 0.5 : f64,
        operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0>} : (!q, !c, !c, !m) -> !q
    return %o, %k1, %v1 : !q, !c, !c""",
    "q=2x4x1x8xf32 c=2x2x4x8xf32 n=2x2x1x8xf32 i=2xi64 f=2xi1 m=2x4xi1",
    "q=!q k=!c v=!c kn=!n vn=!n p=!i t=!i a=!f topk=index p2=!i a2=!f topk2=index m2=!m",
    "k v",
    "o=!q k=!c v=!c",
)
INDEXED = Pattern(
    """
    %row = "kv.row"(%p, %t, %topk) : (!i, !i, index) -> !i
    %k1 = "kv.update"(%k, %kn, %row, %a) : (!c, !n, !i, !f) -> !c
    %v1 = "kv.update"(%v, %vn, %row, %a) : (!c, !n, !i, !f) -> !c
    %valid = "kv.validity"(%p, %t, %a, %topk, %chosen) : (!i, !i, !f, index, !p) -> !m
    %near = tensor.extract_slice %valid[0, 0] [2, 4] [1, 1] : !m to !j
    %far = tensor.extract_slice %valid[0, 4] [2, 2] [1, 1] : !m to !h
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %kp, %vp, %far, %chosen) {scale = 0.5 : f64,
        operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>}
        : (!q, !c, !c, !j, !s, !s, !h, !p) -> !q
    return %o, %k1, %v1 : !q, !c, !c""",
    "q=2x4x1x8xf32 c=2x2x4x8xf32 s=2x2x8x8xf32 n=2x2x1x8xf32 i=2xi64 f=2xi1 m=2x6xi1 h=2x2xi1 j=2x4xi1 p=2x2x2xi64",
    "q=!q k=!c v=!c kn=!n vn=!n kp=!s vp=!s chosen=!p p=!i t=!i a=!f topk=index p2=!i a2=!f topk2=index m2=!h m3=!j "
    "chosen2=!p",
    "k v",
    "o=!q k=!c v=!c",
    rows="indexed",
)
QUERY = Pattern(
    """
    %zero = arith.constant 0 : index
    %two = arith.constant 2 : index
    %row = "kv.row"(%p, %t, %zero) : (!i, !i, index) -> !i
    %k1 = "kv.update"(%k, %kn, %row, %a) : (!c, !n, !i, !f) -> !c
    %v1 = "kv.update"(%v, %vn, %row, %a) : (!c, !n, !i, !f) -> !c
    %lm:2 = "kv.quantize_keys"(%kn) : (!n) -> (!x, !y)
    %ks1 = "kv.update"(%ks, %kn, %p, %a) : (!s, !n, !i, !f) -> !s
    %vs1 = "kv.update"(%vs, %vn, %p, %a) : (!s, !n, !i, !f) -> !s
    %codes1 = "kv.update"(%codes, %lm#0, %p, %a) : (!l, !x, !i, !f) -> !l
    %scales1 = "kv.update"(%scales, %lm#1, %p, %a) : (!z, !y, !i, !f) -> !z
    %valid = "kv.validity"(%p, %t, %a, %two) : (!i, !i, !f, index) -> !m
    %scores = "kv.quantized_key_scores"(%q, %codes1, %scales1, %p, %a) {scale = 0.5 : f64} : (!q, !l, !z, !i, !f) -> !g
    %chosen = "kv.choose"(%q, %k1, %scores, %p, %a) {scale = 0.5 : f64} : (!q, !c, !g, !i, !f) -> !p
    %near = tensor.extract_slice %valid[0, 0] [2, 2] [1, 1] : !m to !h
    %far = tensor.extract_slice %valid[0, 2] [2, 2] [1, 1] : !m to !h
    %o = "kv.cached_attention"(%q, %k1, %v1, %near, %ks1, %vs1, %far, %chosen) {scale = 0.5 : f64,
        operandSegmentSizes = array<i32: 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0>}
        : (!q, !c, !c, !h, !s, !s, !h, !p) -> !q
    return %o, %k1, %v1, %ks1, %vs1, %codes1, %scales1 : !q, !c, !c, !s, !s, !l, !z""",
    "q=2x4x1x8xf32 c=2x2x2x8xf32 s=2x2x8x8xf32 n=2x2x1x8xf32 i=2xi64 f=2xi1 m=2x4xi1 h=2x2xi1 p=2x2x2xi64 "
    "x=2x2x1x2xi8 y=2x2x1x1xbf16 l=2x2x8x2xi8 z=2x2x8x1xbf16 g=2x4x8xf32",
    "q=!q k=!c v=!c kn=!n vn=!n ks=!s vs=!s codes=!l scales=!z p=!i t=!i a=!f topk=index p2=!i a2=!f m2=!h chosen2=!p "
    "scores2=!g",
    "k v ks vs codes scales",
    "o=!q k=!c v=!c ks=!s vs=!s codes=!l scales=!z",
    rows="indexed",
    policy=', policy = "query", key_bits = 2 : i64',
)
CHUNK = Pattern(
    """
    %k1 = tensor.insert_slice %kn into %k[0, 0, %s, 0] [1, 2, 4, 8] [1, 1, 1, 1] : !n into !c
    %v1 = tensor.insert_slice %vn into %v[0, 0, %s, 0] [1, 2, 4, 8] [1, 1, 1, 1] : !n into !c
    %o:2 = "kv.causal_attention"(%q, %k1, %v1, %s, %n) {scale = 0.5 : f64} : (!q, !c, !c, index, index) -> (!q, !g)
    %seen1 = "kv.observe"(%seen, %q, %s, %n) : (!o, !q, index, index) -> !o
    %l1 = "kv.observe"(%l, %o#1, %s, %n) : (!l, !g, index, index) -> !l
    return %o#0, %k1, %v1, %seen1, %l1 : !q, !c, !c, !o, !l""",
    "q=1x4x4x8xf32 c=1x2x8x8xf32 n=1x2x4x8xf32 o=1x4x2x8xf32 l=1x4x2x1xf32 g=1x4x4x1xf32",
    "q=!q k=!c v=!c kn=!n vn=!n seen=!o l=!l s=index n=index s2=index n2=index q2=!q",
    "k v seen l",
    "o=!q k=!c v=!c seen=!o l=!l",
)
_SCORES = """
    %scores = "kv.observation_scores"(%seen, %l, %k, %n) {scale = 0.5 : f64} : (!o, !l, !c, index) -> !s
    %pooled = "kv.pool"(%scores, %n) : (!s, index) -> !s
    %picked = "kv.select"(%pooled, %n, %topk) : (!s, index, index) -> !p
    %rows = "kv.kept_positions"(%n, %topk, %picked) : (index, index, !p) -> !i"""
_PROMPT = "o=1x4x2x8xf32 l=1x4x2x1xf32 c=1x2x8x8xf32 s=2x8xf32 p=2x2xi64"
_COMPRESSED = (
    "k=!c v=!c seen=!o l=!l kc=!b vc=!b slot=index n=index slot2=index n2=index picked2=!p rows2=!i "
    "topk=index"
)
COMPRESS = Pattern(
    f"""{_SCORES}
    %ks = tensor.extract_slice %kc[%slot, 0, 0, 0] [1, 2, 4, 8] [1, 1, 1, 1] : !b to !a
    %kr = "kv.gather"(%k, %rows, %ks) : (!c, !i, !a) -> !a
    %k1 = tensor.insert_slice %kr into %kc[%slot, 0, 0, 0] [1, 2, 4, 8] [1, 1, 1, 1] : !a into !b
    %vs = tensor.extract_slice %vc[%slot, 0, 0, 0] [1, 2, 4, 8] [1, 1, 1, 1] : !b to !a
    %vr = "kv.gather"(%v, %rows, %vs) : (!c, !i, !a) -> !a
    %v1 = tensor.insert_slice %vr into %vc[%slot, 0, 0, 0] [1, 2, 4, 8] [1, 1, 1, 1] : !a into !b
    return %k1, %v1, %picked : !b, !b, !p""",
    f"{_PROMPT} a=1x2x4x8xf32 b=2x2x4x8xf32 i=2x4xi64",
    _COMPRESSED,
    "kc vc",
    "kc=!b vc=!b picked=!p",
)
SINKS = Pattern(
    f"""{_SCORES}
    %ks = tensor.extract_slice %kc[%slot, 0, 0, 0] [1, 2, 5, 8] [1, 1, 1, 1] : !b to !a
    %kr = "kv.gather"(%k, %rows, %ks) : (!c, !i, !a) -> !a
    %k1 = tensor.insert_slice %kr into %kc[%slot, 0, 0, 0] [1, 2, 5, 8] [1, 1, 1, 1] : !a into !b
    %vs = tensor.extract_slice %vc[%slot, 0, 0, 0] [1, 2, 5, 8] [1, 1, 1, 1] : !b to !a
    %vr = "kv.gather"(%v, %rows, %vs) : (!c, !i, !a) -> !a
    %v1 = tensor.insert_slice %vr into %vc[%slot, 0, 0, 0] [1, 2, 5, 8] [1, 1, 1, 1] : !a into !b
    return %k1, %v1, %picked : !b, !b, !p""",
    f"{_PROMPT} a=1x2x5x8xf32 b=2x2x5x8xf32 i=2x5xi64",
    _COMPRESSED,
    "kc vc",
    "kc=!b vc=!b picked=!p",
    1,
)
PATTERNS = {"decode": DECODE, "indexed": INDEXED, "query": QUERY, "chunk": CHUNK, "compress": COMPRESS, "sinks": SINKS}
SCALARS: Mapping[str, tuple[int, int]] = {
    "s": (0, 4), "s2": (0, 4), "n": (1, 8), "n2": (1, 8), "slot": (0, 1), "slot2": (0, 1), "topk": (0, 2),
    "topk2": (0, 2),
}  # fmt: skip
"""Lowest and highest value of the scalars."""


class NearMisses(Target):
    name: ClassVar[str] = "near-misses"

    def __init__(self, folder: Path) -> None:
        del folder

    def run(self, seed: int) -> str:
        text, changes = changed(seed)
        try:
            return compare(text, call_of(text, seed))
        except Finding as finding:
            raise Finding(f"{finding}\nafter {', '.join(changes)}:\n{text}") from None

    def reduced(self, seed: int, tries: int) -> str:
        """The module of a seed, as small as it becomes."""
        text, _ = changed(seed)
        call = call_of(text, seed)
        return reduced_finding(text, lambda module: compare(module, call), tries)


def call_of(text: str, seed: int) -> FilledCall:
    """Random contents and scalars for a near miss."""
    draw = random.Random(seed)
    scalars = {name: draw.randint(*limits) for name, limits in SCALARS.items()}
    if "causal_attention" in text:  # what is behind the prompt is undefined: a chunk without padding
        scalars |= {"n": 8, "n2": 8}
    return FilledCall(ENTRY, contents(text, seed), scalars, SCALARS)


def changed(seed: int) -> tuple[str, list[str]]:
    """Return the module of a seed, and a list of the changes in it."""
    draw = random.Random(seed)
    pattern = PATTERNS[draw.choice(sorted(PATTERNS))]
    count = draw.choice((0, 1, 1, 1, 2, 3))
    with mlir():
        while True:
            module = parse_module(pattern.text(), "pattern")
            edits = Edits(next(functions(module)), draw)
            changes = [change for change in (edits.change() for _ in range(count)) if change]
            if len(changes) == count and _verifies(module):
                with_entry(module, KERNEL, ENTRY)
                return print_module(module), changes


def _verifies(module: ir.Module) -> bool:
    try:
        return bool(module.operation.verify())
    except ir.MLIRError:
        return False


def contents(text: str, seed: int) -> dict[str, torch.Tensor]:
    """Random contents for every tensor that the entry takes."""
    generator = torch.Generator().manual_seed(seed)
    with mlir():
        module = parse_module(text, "case")  # its operations live as long as it does
        function = next(f for f in functions(module) if f.name.value == ENTRY)
        types = {a.name: a.type for a in arguments_of(function) if isinstance(a.type, ir.RankedTensorType)}
        latest = 7 if "kv.quantized_key_scores" in text else 2  # with more rows than sinks and ring there is a choice
        return {name: _numbers(name, type_, latest, generator) for name, type_ in types.items()}


def _numbers(name: str, type_: Any, latest: int, generator: torch.Generator) -> torch.Tensor:
    """`latest`: the last position of a token."""
    shape, element = list(type_.shape), str(type_.element_type)
    if element == "i64":
        low, high = (-1, 8) if name in ("kept2", "picked2", "rows2", "chosen", "chosen2") else (0, latest + 1)
        numbers = torch.randint(low, high, shape, generator=generator)
        # An index of rows is negative in all KV heads or in none.
        return torch.where(numbers[:, :1] < 0, -1, numbers.clamp(min=0)) if len(shape) == 3 else numbers
    if element == "i8":
        return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
    if element == "i1":
        return torch.rand(shape, generator=generator) < 0.8
    numbers = torch.randn(shape, generator=generator)
    return numbers.abs().bfloat16() if element == "bf16" else numbers
