"""The levels of the compiler and what is legal at each, as data.

Every module carries its level, its cache geometry and the facts of its program, so that a dump stands alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torch_mlir import ir

from sscc.ir.dialects.kv import GEOMETRY, geometry_attribute
from sscc.ir.errors import InputError, InternalError
from sscc.ir.geometry import Geometry

LEVELS = ("import", "graph", "kernels", "schedule")
LEVEL = "sscc.level"
PROGRAM = "sscc.program"
PASSES = "sscc.passes"
MAX_LITERAL_BYTES = 1024

_GRAPH = frozenset({"builtin", "func", "linalg", "tensor", "arith", "math", "scf", "kv"})
LEGAL_DIALECTS: dict[str, frozenset[str]] = {
    "import": frozenset({"builtin", "func", "torch", "torch_c", "kv"}),
    "graph": _GRAPH,
    "kernels": _GRAPH,
}


@dataclass(frozen=True)
class ProgramFacts:
    """What the passes and the backend must know of the program around the IR.

    Attributes:
        batch: decode slots B.
        chunk: prefill chunk C, in tokens.
        dtype: activation and cache dtype, "f32" or "bf16".
        layers: decoder layers L.
        vocab_size: token ids run from 0 to vocab_size - 1.
        config: the model's Hugging Face config as canonical JSON, "{}" for an exported program.
        digest: sha256 of the checkpoint, "" without weights.
        eos: token ids that end a text.
    """

    batch: int
    chunk: int
    dtype: str
    layers: int
    vocab_size: int
    config: str
    digest: str
    eos: tuple[int, ...]

    def scratch_rows(self, geometry: Geometry) -> int:
        """T: max_context rounded up to whole chunks."""
        return -(-geometry.max_context // self.chunk) * self.chunk


def set_facts(module: ir.Module, facts: ProgramFacts, geometry: Geometry) -> None:
    """Writes geometry and facts as attributes of `module`."""
    i64 = ir.IntegerType.get_signless(64)
    values: dict[str, ir.Attribute] = {}
    for name, value in asdict(facts).items():
        text = json.dumps(value) if isinstance(value, (list, tuple)) else value
        values[name] = ir.StringAttr.get(text) if isinstance(text, str) else ir.IntegerAttr.get(i64, text)
    module.operation.attributes[PROGRAM] = ir.DictAttr.get(values)
    module.operation.attributes[GEOMETRY] = geometry_attribute(geometry)


def get_facts(module: ir.Module) -> tuple[ProgramFacts, Geometry]:
    """Reads what `set_facts` wrote.

    Raises:
        InputError: when the module does not carry it (it is not a dump of this compiler).
    """
    attributes = module.operation.attributes
    if PROGRAM not in attributes or GEOMETRY not in attributes:
        raise InputError(f"the module has no {PROGRAM} and {GEOMETRY}: it is not a dump of sscc")
    values = {entry.name: entry.attr.value for entry in attributes[PROGRAM]}
    geometry = Geometry.from_dict({entry.name: entry.attr.value for entry in attributes[GEOMETRY]})
    try:
        return ProgramFacts(**{**values, "eos": tuple(json.loads(values["eos"]))}), geometry
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"the module's {PROGRAM} is damaged: {error}") from None


def set_level(module: ir.Module, level: str) -> None:
    module.operation.attributes[LEVEL] = ir.StringAttr.get(level)


def get_level(module: ir.Module) -> str:
    attributes = module.operation.attributes
    level = attributes[LEVEL].value if LEVEL in attributes else ""
    if level not in LEVELS:
        raise InputError(f"the module has no known {LEVEL} (found {level!r}): it is not a dump of sscc")
    return str(level)


def record_pass(module: ir.Module, name: str) -> None:
    """Notes that pass `name` has run, so that a dump can be compiled on from exactly where it stands."""
    done = [ir.StringAttr.get(other) for other in passes_done(module)]
    module.operation.attributes[PASSES] = ir.ArrayAttr.get([*done, ir.StringAttr.get(name)])


def passes_done(module: ir.Module) -> tuple[str, ...]:
    attributes = module.operation.attributes
    return tuple(item.value for item in attributes[PASSES]) if PASSES in attributes else ()


def walk(op: Any) -> Iterator[ir.Operation]:
    """All operations inside `op`, outermost first, in program order."""
    for region in op.operation.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield inner.operation
                yield from walk(inner)


def check_legal(module: ir.Module, level: str) -> None:
    """Verifies the module and that it holds only what `level` may hold.

    Raises:
        InternalError: naming the operation and its location; a pass produced illegal IR.
    """
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        messages = "; ".join(f"{d.location}: {d.message}" for d in error.error_diagnostics)
        raise InternalError(f"invalid IR at level {level}: {messages or error}") from None
    legal = LEGAL_DIALECTS[level]
    for op in walk(module):
        dialect = op.name.partition(".")[0]
        if dialect not in legal:
            raise InternalError(f"{op.location}: '{op.name}' is not legal at level {level}")
        for name in op.attributes:
            _check_literal(op, op.attributes[name])


def _check_literal(op: ir.Operation, attribute: ir.Attribute) -> None:
    if not isinstance(attribute, (ir.DenseElementsAttr, ir.DenseResourceElementsAttr)) or attribute.is_splat:
        return
    shaped = ir.RankedTensorType(attribute.type)
    elements = 1
    for size in shaped.shape:
        elements *= size
    if elements * 8 > MAX_LITERAL_BYTES and elements * _width(shaped) > MAX_LITERAL_BYTES:
        raise InternalError(
            f"{op.location}: '{op.name}' holds a literal of {elements} elements, over {MAX_LITERAL_BYTES} bytes"
        )


def _width(shaped: ir.RankedTensorType) -> int:
    element = shaped.element_type
    return max(1, (getattr(element, "width", 64) + 7) // 8)
