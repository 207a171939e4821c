"""Options: contradictions are refused by name, and defaults fit the model."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sscc.compiler.options.compile_options import (
    CompileArguments,
    CompileOptions,
    OptionErrors,
    cache_options,
    compile_options_of,
)
from sscc.compiler.options.layer_topk import LayerTopkErrors
from sscc.ir.choices import OPT_LEVELS
from sscc.ir.errors import ErrorKind
from sscc.ir.geometry import Geometry, GeometryErrors
from sscc.ir.option import OptionRangeErrors
from sscc.ir.suggestions import ChoiceErrors
from sscc.ir.target import TargetErrors
from sscc.passes import pass_pipeline as pipeline
from tests.errors import raises

MODEL = Path("some/model-1.5b")


def options(**values: Any) -> CompileOptions:
    return CompileOptions(model=MODEL, **values)


Refusal = tuple[dict[str, Any], ErrorKind, dict[str, Any]]
REFUSED: dict[str, Refusal] = {
    "target": ({"target": "gpu"}, TargetErrors.UNKNOWN, {"target": "gpu"}),
    "opt-level": ({"opt_level": 3}, OptionErrors.NO_OPT_LEVEL, {"level": 3, "known": ["-O0", "-O1", "-O2"]}),
    "opt-level-below": ({"opt_level": -1}, OptionErrors.NO_OPT_LEVEL, {"level": -1}),
    "dtype": ({"dtype": "f16"}, ChoiceErrors.UNKNOWN, {"option": "--dtype", "value": "f16"}),
    "weights": ({"weights": "copy"}, ChoiceErrors.UNKNOWN, {"option": "--weights", "value": "copy"}),
    "compile-to": ({"compile_to": "tiled"}, ChoiceErrors.UNKNOWN, {"option": "--compile-to", "value": "tiled"}),
    "compile-from": (
        {"compile_from": "schedule"},
        ChoiceErrors.UNKNOWN,
        {"option": "--compile-from", "value": "schedule"},
    ),
    "batch": ({"batch": 0}, OptionRangeErrors.TOO_SMALL, {"option": "--batch", "value": 0, "least": 1}),
    "chunk": ({"prefill_chunk": 1}, OptionRangeErrors.TOO_SMALL, {"option": "--prefill-chunk", "value": 1, "least": 2}),
    "context": ({"max_context": 0}, OptionRangeErrors.TOO_SMALL, {"option": "--max-context", "value": 0, "least": 1}),
    "sink": ({"kv_sink": -1}, OptionRangeErrors.TOO_SMALL, {"option": "--kv-sink", "value": -1, "least": 0}),
    "recent": ({"kv_recent": 0}, OptionRangeErrors.TOO_SMALL, {"option": "--kv-recent", "value": 0, "least": 1}),
    "topk": ({"kv_topk": -3}, OptionRangeErrors.TOO_SMALL, {"option": "--kv-topk", "value": -3, "least": 0}),
    "budget": ({"kv_budget": 0}, OptionRangeErrors.TOO_SMALL, {"option": "--kv-budget", "value": 0, "least": 1}),
    "obs": ({"kv_obs": 0}, OptionRangeErrors.TOO_SMALL, {"option": "--kv-obs", "value": 0, "least": 1}),
    "sums-of-one-rank": ({"tp_sums": "model"}, OptionErrors.SUMS_WITHOUT_RANKS, {"sums": "model"}),
    "sums": ({"tp": 2, "tp_sums": "bf16"}, ChoiceErrors.UNKNOWN, {"option": "--tp-sums", "value": "bf16"}),
    "even-pool": ({"kv_pool": 4}, OptionErrors.EVEN_POOL, {"pool": 4}),
    "pool-mode": ({"kv_pool_mode": "sum"}, ChoiceErrors.UNKNOWN, {"option": "--kv-pool-mode", "value": "sum"}),
    "over-determined": (
        {"kv_budget": 64, "kv_sink": 4, "kv_recent": 8, "kv_topk": 20},
        OptionErrors.BUDGET_DIFFERS,
        {"budget": 64, "sink": 4, "recent": 8, "topk": 20, "rows": 32},
    ),
    "topk-per-layer-and-topk": (
        {"kv_topk_per_layer": "3,1", "kv_topk": 3},
        OptionErrors.BUDGET_PER_LAYER,
        {"option": "--kv-topk"},
    ),
    "topk-per-layer-and-budget": (
        {"kv_topk_per_layer": "pyramid:3,1", "kv_budget": 64},
        OptionErrors.BUDGET_PER_LAYER,
        {"option": "--kv-budget"},
    ),
    "golden-tokens": ({"golden_tokens": 4}, OptionErrors.NO_GOLDEN, {"option": "--golden-tokens"}),
    "golden-prompt": ({"golden_prompt_file": MODEL}, OptionErrors.NO_GOLDEN, {"option": "--golden-prompt-file"}),
    "no-golden-tokens": (
        {"save_golden": True, "golden_tokens": 0},
        OptionRangeErrors.TOO_SMALL,
        {"option": "--golden-tokens", "value": 0, "least": 1},
    ),
    "golden-without-weights": ({"save_golden": True, "weights": "none"}, OptionErrors.GOLDEN_WITHOUT_WEIGHTS, {}),
    "golden-without-artifact": (
        {"save_golden": True, "compile_to": "graph"},
        OptionErrors.GOLDEN_WITHOUT_ARTIFACT,
        {"level": "graph"},
    ),
    "checkpoint": ({"checkpoint": MODEL}, OptionErrors.ONLY_FOR_DUMPS, {"option": "--checkpoint"}),
    "backwards": (
        {"compile_from": "graph", "compile_to": "graph"},
        OptionErrors.LEVEL_NOT_BELOW,
        {"start": "graph", "end": "graph"},
    ),
    "geometry-of-a-dump": ({"compile_from": "graph", "kv_topk": 4}, OptionErrors.RECORDED, {"option": "--kv-topk"}),
    "layers-of-a-dump": (
        {"compile_from": "graph", "kv_topk_per_layer": "3,1"},
        OptionErrors.RECORDED,
        {"option": "--kv-topk-per-layer"},
    ),
    "context-of-a-dump": (
        {"compile_from": "graph", "max_context": 4},
        OptionErrors.RECORDED,
        {"option": "--max-context"},
    ),
    "weights-of-a-dump": ({"compile_from": "graph"}, OptionErrors.DUMP_WITHOUT_WEIGHTS, {}),
}


@pytest.mark.parametrize(("values", "kind", "fields"), REFUSED.values(), ids=REFUSED)
def test_contradictions_are_refused(values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]) -> None:
    with raises(kind, **fields):
        options(**values)


def test_every_level_of_optimisation_has_passes() -> None:
    assert tuple(pipeline.PIPELINES) == OPT_LEVELS


def test_everything_is_optimised_unless_told_otherwise() -> None:
    assert options().opt_level == max(OPT_LEVELS)


@pytest.mark.parametrize(
    ("model", "level", "expected"),
    [
        ("dir/SmolLM2-1.7B", "schedule", "SmolLM2-1.7B.rdu"),
        ("dir/model.Q4_1.gguf", "schedule", "model.Q4_1.rdu"),
        ("model.pt", "schedule", "model.rdu"),
        ("model.pt", "graph", "model.graph.mlir"),
    ],
)
def test_default_output(model: str, level: str, expected: str) -> None:
    assert CompileOptions(model=Path(model), compile_to=level).output_path == Path(expected)


def test_given_output_is_taken() -> None:
    assert options(output=Path("x.rdu")).output_path == Path("x.rdu")


class TestGeometry:
    def test_default_fits_a_long_context(self) -> None:
        assert options().resolve(131072).geometry == Geometry(4, 512, 8192 - 516, 32, 15, "avg", 131072)

    def test_default_for_a_usual_context(self) -> None:
        assert options().resolve(8192).geometry == Geometry(4, 256, 764, 32, 15, "avg", 8192)

    def test_budget_alone_is_split_as_defined(self) -> None:
        assert options(kv_budget=256).resolve(8192).geometry == Geometry(4, 64, 188, 32, 15, "avg", 8192)

    def test_budget_and_topk_leave_the_ring(self) -> None:
        assert options(kv_budget=64, kv_topk=20).resolve(8192).geometry.recent == 40

    def test_budget_recent_and_topk_leave_the_sinks(self) -> None:
        assert options(kv_budget=64, kv_topk=20, kv_recent=36).resolve(8192).geometry.sink == 8

    def test_topk_alone_keeps_the_default_ring(self) -> None:
        assert options(kv_topk=0).resolve(8192).geometry == Geometry(4, 512, 0, 32, 15, "avg", 8192)

    def test_everything_given_is_taken(self) -> None:
        chosen = options(kv_sink=1, kv_recent=8, kv_topk=3, kv_obs=2, kv_pool=1, kv_pool_mode="max", max_context=99)
        assert chosen.resolve(8192).geometry == Geometry(1, 8, 3, 2, 1, "max", 99)

    def test_layers_have_room_for_the_most(self) -> None:
        shape = options(kv_topk_per_layer="90,300,0").resolve(8192)
        assert shape.geometry == Geometry(4, 512, 300, 32, 15, "avg", 8192)
        assert shape.geometry_of(3) == replace(shape.geometry, layer_topk=(90, 300, 0))
        with raises(LayerTopkErrors.OTHER_LAYERS, numbers=3, layers=4):
            shape.geometry_of(4)

    def test_a_pyramid_is_of_as_many_layers_as_there_are(self) -> None:
        shape = options(kv_topk_per_layer="pyramid:30,10", kv_sink=1, kv_recent=8, max_context=99).resolve(8192)
        assert shape.geometry == Geometry(1, 8, 30, 32, 15, "avg", 99)
        assert shape.geometry_of(3).layer_topk == (30, 20, 10)
        assert shape.geometry_of(1) == shape.geometry

    def test_layers_that_select_alike_are_a_usual_cache(self) -> None:
        shape = options(kv_topk_per_layer="30,30", kv_recent=8).resolve(8192)
        assert shape.geometry_of(2) == options(kv_topk=30, kv_recent=8).resolve(8192).geometry

    def test_other_geometries_are_the_same_for_any_number_of_layers(self) -> None:
        shape = options(kv_topk=3).resolve(8192)
        assert shape.layer_topk is None
        assert shape.geometry_of(5) == shape.geometry

    @pytest.mark.parametrize(
        "geometry",
        [
            Geometry(1, 8, 30, 2, 3, "max", 99),
            Geometry(1, 8, 30, 2, 3, "max", 99, dtype="int8").with_layers([30, 0, 7]),
            Geometry(1, 8, 30, 2, 3, "max", 99, rows="indexed").with_layers([30, 2, 7]),
        ],
    )
    def test_options_that_ask_for_a_geometry_give_it(self, geometry: Geometry) -> None:
        assert options(**cache_options(geometry)).resolve(99).geometry_of(3) == geometry

    def test_full_cache(self) -> None:
        chosen = options(kv_sink=0, kv_recent=64, kv_topk=0, max_context=64)
        assert chosen.resolve(None).geometry.budget == 64

    @given(st.integers(1, 200_000))
    def test_defaults_fit_every_context(self, context: int) -> None:
        shape = options().resolve(context)
        assert shape.geometry.budget <= context
        assert shape.chunk >= 2

    @given(context=st.integers(1, 3000), sink=st.none() | st.integers(0, 40), recent=st.none() | st.integers(1, 900))
    def test_given_numbers_are_kept_or_refused(self, context: int, sink: int | None, recent: int | None) -> None:
        chosen = options(kv_sink=sink, kv_recent=recent)
        if (sink or 0) + (recent or 1) > context:
            with raises(GeometryErrors.EXCEEDS_CONTEXT, max_context=context):
                chosen.resolve(context)
            return
        geometry = chosen.resolve(context).geometry
        assert sink in (None, geometry.sink)
        assert recent in (None, geometry.recent)


@pytest.mark.parametrize(
    ("values", "kind", "fields"),
    [
        ({"kv_budget": 16}, GeometryErrors.BUDGET, {"budget": 16, "sink": 4, "recent": 39}),
        (
            {"kv_budget": 16, "kv_topk": 12},
            OptionErrors.BUDGET_TOO_SMALL,
            {"left": 0, "part": "the ring", "others": ["sink 4", "topk 12"]},
        ),
        (
            {"kv_budget": 16, "kv_topk": 12, "kv_recent": 5},
            OptionErrors.BUDGET_TOO_SMALL,
            {"left": -1, "part": "the sinks", "others": ["recent 5", "topk 12"]},
        ),
        ({"kv_budget": 200}, GeometryErrors.TOPK_EXCEEDS_CONTEXT, {"max_context": 100}),
        ({"kv_recent": 200}, GeometryErrors.EXCEEDS_CONTEXT, {"recent": 200, "max_context": 100}),
        ({"kv_topk_per_layer": "3,100"}, GeometryErrors.TOPK_EXCEEDS_CONTEXT, {"topk": 100, "max_context": 100}),
        ({"kv_topk_per_layer": "3,x"}, LayerTopkErrors.UNREADABLE, {}),
        ({"kv_topk_per_layer": "3,-1"}, LayerTopkErrors.NOT_NUMBERS, {"source": "3,-1"}),
        ({"max_context": 101}, OptionErrors.CONTEXT_TOO_LONG, {"context": 101, "longest": 100}),
    ],
)
def test_impossible_geometries_are_refused_with_the_numbers(
    values: dict[str, Any], kind: ErrorKind, fields: dict[str, Any]
) -> None:
    with raises(kind, **fields):
        options(**values).resolve(100)


def test_every_layer_of_an_indexed_cache_selects() -> None:
    shape = options(kv_topk_per_layer="3,0", kv_rows="indexed").resolve(100)
    with raises(GeometryErrors.INDEXED_WITHOUT_TOPK):
        shape.geometry_of(2)


def test_a_model_without_a_context_needs_one() -> None:
    with raises(OptionErrors.NO_CONTEXT):
        options().resolve(None)


def test_dtype_is_the_checkpoints_unless_given() -> None:
    assert options().resolve(100, "bf16").dtype == "bf16"
    assert options(dtype="f32").resolve(100, "bf16").dtype == "f32"


def test_arguments_of_python_are_the_options() -> None:
    """Each option by its name and type; paths may be text, and weights are words."""
    expected = {item.name: str(item.type) for item in fields(CompileOptions)}
    named = {name: kind.__forward_arg__ for name, kind in CompileArguments.__annotations__.items()}
    assert {"model": "Path", **named} == {
        name: "str | os.PathLike[str] | None" if kind == "Path | None" else kind for name, kind in expected.items()
    }


def test_arguments_of_python() -> None:
    checked = compile_options_of("a/model.pt", {"output": "b.rdu", "kv_budget": 64, "weights": "reference,int4"})
    assert (checked.model, checked.output_path) == (Path("a/model.pt"), Path("b.rdu"))
    assert (checked.weights, str(checked.weight_format)) == ("reference", "int4:32")
    arguments: Any = {"kv_buget": 64}
    with raises(OptionErrors.UNKNOWN, option="kv_buget", hint="; did you mean 'kv_budget'?"):
        compile_options_of("model.pt", arguments)
