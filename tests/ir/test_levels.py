"""The facts that a module records about itself, and the operations that each level permits."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest
from torch_mlir import ir

from sscc.ir import levels
from sscc.ir.attributes import AttributeErrors
from sscc.ir.choices import LEVELS
from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry, Span
from sscc.ir.levels import (
    GroupFacts,
    LayerKinds,
    LevelErrors,
    ProgramFacts,
    check_legal,
    get_facts,
    get_groups,
    get_kinds,
    get_level,
    passes_done,
    record_pass,
    renamed,
    set_facts,
    set_groups,
    set_kinds,
    set_level,
    walk,
)
from tests.errors import raises

GEOMETRY = Geometry(sink=2, recent=4, topk=3, obs=2, pool=3, pool_mode="max", max_context=20)
FACTS = ProgramFacts(
    batch=2, chunk=8, dtype="bf16", layers=3, vocab_size=11, config='{"a": "\\"b\\""}', digest="ab", eos=(1, 2)
)


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


def module_of(body: str = "") -> ir.Module:
    return parse_module(f"module attributes {{kv.geometry = {ATTRIBUTE}}} {{\n{body}\n}}", "the test")


ATTRIBUTE = (
    '{sink = 2 : i64, recent = 4 : i64, topk = 3 : i64, obs = 2 : i64, pool = 3 : i64, pool_mode = "avg", '
    "max_context = 20 : i64}"
)


def test_every_level_but_the_schedule_says_what_is_legal() -> None:
    assert LEVELS[:-1] == tuple(levels.LEGAL_DIALECTS)


# --------------------------------------------------------------------------------------------- facts and geometry


def test_facts_survive_printing() -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    set_level(module, "graph")
    set_kinds(module, LayerKinds("model.layers", (0, 1, 0)))
    record_pass(module, "one")
    record_pass(module, "two")
    again = parse_module(str(module), "printed")
    assert get_facts(again) == (FACTS, GEOMETRY)
    assert get_level(again) == "graph"
    assert passes_done(again) == ("one", "two")
    assert get_kinds(again) == LayerKinds("model.layers", (0, 1, 0))


WINDOWED = (GroupFacts("window5", (0, 2), GEOMETRY.windowed(Span(5))), GroupFacts("", (1,), GEOMETRY))


def test_groups_survive_printing() -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    alone = (GroupFacts("", (0, 1, 2), GEOMETRY),)
    set_groups(module, alone)
    assert "kv.groups" not in str(module)
    assert get_groups(module) == alone
    set_groups(module, WINDOWED)
    assert get_groups(parse_module(str(module), "printed")) == WINDOWED


def test_layers_that_share_survive_printing() -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    for groups in (
        (GroupFacts("", (0,), GEOMETRY, (1, 2)),),
        (GroupFacts("window5", (0,), GEOMETRY.windowed(Span(5)), (2,)), GroupFacts("", (1,), GEOMETRY)),
    ):
        set_groups(module, groups)
        assert get_groups(parse_module(str(module), "printed")) == groups


@pytest.mark.parametrize("text", ["{layers = array<i64: 2>}", "{layers = array<i64: 1, 2>, of = array<i64: 0>}",
                                  "{layers = array<i64: 0>, of = array<i64: 1>}",
                                  "{layers = array<i64: 2>, of = array<i64: 0>}", "3"])  # fmt: skip
def test_damaged_notes_of_layers_that_share(text: str) -> None:
    """Without the other list, of another length, of a layer behind, of one of a group of two, and no dictionary."""
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    module.operation.attributes["sscc.shares"] = ir.Attribute.parse(text)
    with raises(LevelErrors.GROUPS, attributes=["kv.groups", "sscc.layers", "sscc.beside", "sscc.shares"]):
        get_groups(module)


RINGS = GEOMETRY.windowed(Span(2))


def test_groups_beside_others_survive_printing() -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    groups = (
        GroupFacts("", (0,), GEOMETRY, (2,)),
        GroupFacts("rings", (0, 2), RINGS, beside=True),
        GroupFacts("others", (1,), RINGS),
    )
    set_groups(module, groups)
    assert get_groups(parse_module(str(module), "printed")) == groups


@pytest.mark.parametrize(
    ("layers", "beside"),
    [((0, 3), "[\"rings\"]"), ((1, 0), "[\"rings\"]"), ((), "[\"rings\"]"), ((0,), "3"), ((0,), "[3]")],
)
def test_damaged_notes_of_groups_beside_others(layers: tuple[int, ...], beside: str) -> None:
    """Lists with a missing layer, in a wrong order, or empty; and an attribute that is not a list of names."""
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    set_groups(module, [GroupFacts("", (0, 1, 2), GEOMETRY), GroupFacts("rings", layers, RINGS, beside=True)])
    module.operation.attributes["sscc.beside"] = ir.Attribute.parse(beside)
    with raises(LevelErrors.GROUPS):
        get_groups(parse_module(str(module), "printed"))


LAYERED = GEOMETRY.with_layers([3, 1])
"""Budgets of a module of three layers, one of which attends within a window."""


def test_a_geometry_of_layers_survives_printing() -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY.with_layers([3, 1, 0]))
    assert "layer_topk = array<i64: 3, 1, 0>" in str(module)
    again = parse_module(str(module), "printed")
    assert get_facts(again) == (FACTS, GEOMETRY.with_layers([3, 1, 0]))
    assert get_groups(again) == (GroupFacts("", (0, 1, 2), GEOMETRY.with_layers([3, 1, 0])),)


@pytest.mark.parametrize("windowed", [0, 1, 2])
def test_layers_with_a_window_have_no_budget(windowed: int) -> None:
    """Budgets are counted over the other layers."""
    others = tuple(layer for layer in range(3) if layer != windowed)
    module = ir.Module.create()
    set_facts(module, FACTS, LAYERED)
    window = GroupFacts("window5", (windowed,), LAYERED.windowed(Span(5)))
    set_groups(module, (window, GroupFacts("", others, LAYERED)))
    groups = {group.name: group for group in get_groups(parse_module(str(module), "printed"))}
    assert groups == {"window5": window, "": GroupFacts("", others, LAYERED)}


def test_groups_have_the_budgets_of_their_own_layers() -> None:
    """If heads differ too, for example, the same list applies to two groups."""
    layered = GEOMETRY.with_layers([3, 1, 2])
    module = ir.Module.create()
    set_facts(module, FACTS, layered)
    set_groups(module, (GroupFacts("wide", (0, 2), layered), GroupFacts("", (1,), layered)))
    found = {group.name: group.geometry for group in get_groups(parse_module(str(module), "printed"))}
    assert found == {"wide": layered.of_layers([0, 2]), "": layered.of_layers([1])}
    assert found["wide"].layer_topk == (3, 2)


@pytest.mark.parametrize("budgets", [[3, 1], [3, 1, 2, 0]])
def test_a_budget_for_each_layer_that_has_no_window(budgets: list[int]) -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY.with_layers(budgets))
    with raises(LevelErrors.GROUPS, cause=f"there are {len(budgets)} top-K budgets for 3 layers"):
        get_groups(module)


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("array<i64: 3, 4>", "positions, got 4"),
        ("array<i64: -1, 3>", "positions, got -1"),
        ("array<i32: 3, 1>", "layer_topk is array<i32: 3, 1>"),
        ("3 : i64", "layer_topk is 3 : i64"),
    ],
)
def test_a_damaged_list_of_budgets_is_refused(value: str, cause: str) -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    module.operation.attributes["kv.geometry"] = ir.Attribute.parse(f"{ATTRIBUTE[:-1]}, layer_topk = {value}}}")
    with raises(LevelErrors.GEOMETRY) as caught:
        get_facts(module)
    assert cause in caught.value.fields["cause"]


@pytest.mark.parametrize(
    ("attribute", "value", "cause"),
    [
        ("kv.groups", "3 : i64", "kv.groups is 3 : i64, expected a dictionary"),
        ("kv.groups", "{window5 = 1 : i64}", "kv.groups.window5 is invalid: .*expected a dictionary"),
        ("kv.groups", "{window5 = {sink = 0 : i64}}", r"kv.groups.window5 is invalid: recent is missing"),
        ("kv.groups", f"{{window5 = {ATTRIBUTE[:-1]}, window = 4 : i64}}}}", "within a window of 4 positions keeps"),
        ("kv.groups", f"{{window5 = {ATTRIBUTE[:-1]}, window = -4 : i64}}}}", "within a window of -4 positions"),
        ("kv.groups", "{}", "'window5' is not in the module's kv.groups"),
        ("kv.groups", None, "'window5' is not in the module's kv.groups"),
        ("sscc.layers", "3 : i64", "Cannot cast attribute|expected"),
        ("sscc.layers", "{window5 = 3 : i64}", "Cannot cast attribute|expected"),
        ("sscc.layers", "{window5 = array<i32: 0, 2>}", "Cannot cast attribute|expected"),
        ("sscc.layers", "{window5 = array<i64>}", r"the groups' layers must cover 3 layers, got \[\[\], \[0, 1, 2\]\]"),
        ("sscc.layers", "{window5 = array<i64: 2, 0>}", "must cover 3 layers"),
        ("sscc.layers", "{window5 = array<i64: 0, 0>}", "must cover 3 layers"),
        ("sscc.layers", "{window5 = array<i64: 0, 3>}", "must cover 3 layers"),
        ("sscc.layers", "{window5 = array<i64: -1, 0>}", "must cover 3 layers"),
        ("sscc.layers", "{window7 = array<i64: 0, 2>}", "'window7' is not in the module's kv.groups"),
    ],
)
def test_damaged_groups(attribute: str, value: str | None, cause: str) -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    set_groups(module, WINDOWED)
    del module.operation.attributes[attribute]
    if value is not None:
        module.operation.attributes[attribute] = ir.Attribute.parse(value)
    with raises(LevelErrors.GROUPS, attributes=["kv.groups", "sscc.layers", "sscc.beside", "sscc.shares"]) as caught:
        get_groups(parse_module(str(module), "printed"))
    assert re.search(cause, caught.value.fields["cause"])


def test_scratch_is_whole_chunks() -> None:
    assert FACTS.scratch_rows(GEOMETRY) == 24
    assert dataclasses.replace(FACTS, chunk=20).scratch_rows(GEOMETRY) == 20
    assert dataclasses.replace(FACTS, chunk=32).scratch_rows(GEOMETRY) == 32


@pytest.mark.parametrize(
    ("field", "value", "kind", "fields"),
    [
        ("batch", "0 : i64", LevelErrors.FACT_TOO_SMALL, {"name": "batch", "value": 0}),
        ("chunk", "-8 : i64", LevelErrors.FACT_TOO_SMALL, {"name": "chunk", "value": -8}),
        ("config", '"{"', LevelErrors.DAMAGED, {}),
        ("config", '"[]"', LevelErrors.FACT_CONFIG, {}),
        ("eos", '"1"', LevelErrors.FACT_EOS, {"eos": 1}),
        ("eos", '"[1.5]"', LevelErrors.FACT_EOS, {"eos": "[1.5]"}),
        ("dtype", '"f16"', LevelErrors.FACT_DTYPE, {"dtype": "f16"}),
    ],
)
def test_damaged_facts_are_refused(field: str, value: str, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, attribute="sscc.program", **fields):
        get_facts(_with_fact(field, value))


@pytest.mark.parametrize(
    ("field", "value", "kind", "fields"),
    [
        ("batch", '"2"', AttributeErrors.WRONG_TYPE, {"name": "batch", "value": '"2"', "expected": "an integer"}),
        ("digest", None, AttributeErrors.MISSING, {"name": "digest"}),
        ("heads", "4 : i64", AttributeErrors.UNKNOWN, {"name": "heads", "fields": list(asdict(FACTS))}),
    ],
)
def test_facts_are_a_record(field: str, value: str | None, kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(LevelErrors.DAMAGED, attribute="sscc.program") as caught:
        get_facts(_with_fact(field, value))
    cause = caught.value.fields["cause"]
    assert (cause["kind"], cause["fields"]) == (kind.code, fields)


def _with_fact(field: str, value: str | None) -> ir.Module:
    """Return a module one of whose facts is another attribute, or is missing."""
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    facts = {entry.name: entry.attr for entry in module.operation.attributes["sscc.program"]}
    facts.pop(field, None)
    if value is not None:
        facts[field] = ir.Attribute.parse(value)
    module.operation.attributes["sscc.program"] = ir.DictAttr.get(facts)
    return module


def test_a_damaged_geometry_is_refused() -> None:
    module = ir.Module.create()
    set_facts(module, FACTS, GEOMETRY)
    module.operation.attributes["kv.geometry"] = ir.Attribute.parse(ATTRIBUTE.replace("recent = 4", "recent = 0"))
    with raises(LevelErrors.GEOMETRY, cause="kv.geometry is invalid: KV recent must be at least 1, got 0"):
        get_facts(module)


@pytest.mark.parametrize("level", ["1 : i64", '"schedule"', '"graf"'])
def test_unknown_levels_are_refused(level: str) -> None:
    module = ir.Module.create()
    module.operation.attributes["sscc.level"] = ir.Attribute.parse(level)
    with raises(LevelErrors.NO_LEVEL, attribute="sscc.level"):
        get_level(module)


def test_not_a_dump() -> None:
    module = ir.Module.create()
    assert passes_done(module) == ()
    assert get_kinds(module) is None
    with raises(LevelErrors.NO_LEVEL, level=""):
        get_level(module)
    with raises(LevelErrors.NO_FACTS):
        get_facts(module)


@pytest.mark.parametrize("value", ["3 : i64", "[1 : i64]"])
def test_damaged_passes_are_refused(value: str) -> None:
    module = ir.Module.create()
    module.operation.attributes["sscc.passes"] = ir.Attribute.parse(value)
    with raises(LevelErrors.DAMAGED, attribute="sscc.passes"):
        passes_done(module)


# ------------------------------------------------------------------------------------------------------- layers


def test_captured_layers_are_the_first_and_last_of_each_kind() -> None:
    assert LayerKinds("layers", (0, 0, 0, 0)).captured == (0, 3)
    assert LayerKinds("layers", (0, 1, 0, 1, 0, 5)).captured == (0, 1, 3, 4, 5)
    assert LayerKinds("layers", (0,)).captured == (0,)


def test_renaming_takes_whole_components() -> None:
    assert renamed("layers.1.w", "layers", 1, 12) == "layers.12.w"
    assert renamed("layers.1", "layers", 1, 0) == "layers.0"
    assert renamed("layers.10.w", "layers", 1, 2) == "layers.10.w"
    assert renamed("norm.w", "layers", 1, 2) == "norm.w"


# ------------------------------------------------------------------------------------------------------ legality

ILLEGAL = {
    "torch at graph": (
        "graph",
        "func.func private @f(%x: !torch.int) {\n%0 = torch.constant.int 1\nreturn\n}",
        "torch.constant.int",
    ),
    "linalg at import": (
        "import",
        "func.func @f(%x: tensor<2xf32>) {\n"
        "%0 = linalg.exp ins(%x : tensor<2xf32>) outs(%x : tensor<2xf32>) -> tensor<2xf32>\nreturn\n}",
        "linalg.exp",
    ),
    "assertions": (
        "graph",
        'func.func @f(%x: i1) {\ncf.assert %x, "no"\nreturn\n}',
        "cf.assert",
    ),
    "inside a loop": (
        "graph",
        'func.func @f(%n: index, %x: i1) {\nscf.for %i = %n to %n step %n {\ncf.assert %x, "no"\n}\nreturn\n}',
        "cf.assert",
    ),
}


@pytest.mark.parametrize(("level", "body", "op"), ILLEGAL.values(), ids=ILLEGAL)
def test_illegal_operations_are_named(level: str, body: str, op: str) -> None:
    with raises(LevelErrors.ILLEGAL_OPERATION, op=op, level=level):
        check_legal(module_of(body), level)


def literal(count: int, type_: str, values: str | None = None) -> ir.Module:
    listed = values or f"[{', '.join(str(i % 2) for i in range(count))}]"
    return module_of(f"func.func @f() {{\n%0 = arith.constant dense<{listed}> : tensor<{count}x{type_}>\nreturn\n}}")


@pytest.mark.parametrize(("count", "type_"), [(128, "i64"), (256, "i32"), (1024, "i8"), (1024, "i1")])
def test_small_literals_are_legal(count: int, type_: str) -> None:
    check_legal(literal(count, type_, None if type_ != "i1" else "true"), "graph")


@pytest.mark.parametrize(("count", "type_"), [(129, "i64"), (257, "i32"), (1025, "i8")])
def test_large_literals_are_not(count: int, type_: str) -> None:
    with raises(LevelErrors.LARGE_LITERAL, op="arith.constant", most=1024, elements=count):
        check_legal(literal(count, type_), "graph")


def test_large_splats_are_legal() -> None:
    check_legal(literal(10**6, "f32", "0.5"), "graph")


def test_resources_are_literals_too() -> None:
    text = "func.func @f() {\n%0 = arith.constant dense_resource<w> : tensor<1000xf32>\nreturn\n}"
    with raises(LevelErrors.LARGE_LITERAL, elements=1000):
        check_legal(module_of(text), "graph")


def test_invalid_ir_is_found_again() -> None:
    """If a pass builds invalid IR, the error names the operation's place."""
    row = '%0 = "kv.row"(%p, %p, %c) : (tensor<2xi64>, tensor<2xi64>, index) -> tensor<2xi64> loc("layers.0")'
    module = module_of(f"func.func @f(%p: tensor<2xi64>, %c: index) {{\n{row}\nreturn\n}}")
    del module.operation.attributes["kv.geometry"]
    with raises(LevelErrors.INVALID_IR, level="graph"):
        check_legal(module, "graph")


def test_walk_goes_outermost_first() -> None:
    loop = "scf.for %i = %n to %n step %n {\n%0 = arith.addi %i, %n : index\n}"
    module = module_of(f"func.func @f(%n: index) {{\n{loop}\nreturn\n}}")
    assert [op.name for op in walk(module)] == ["func.func", "scf.for", "arith.addi", "scf.yield", "func.return"]
