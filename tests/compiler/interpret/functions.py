"""One function of IR text, evaluated."""

from __future__ import annotations

import torch
from torch import Tensor

from sscc.compiler.interpret.module import Functions
from sscc.compiler.interpret.types import Types
from sscc.ir.context import mlir, parse_module
from sscc.ir.dialects.kv import GEOMETRY, geometry_attribute
from sscc.ir.geometry import Geometry

SMALL = Geometry(sink=1, recent=3, topk=2, obs=2, pool=3, pool_mode="avg", max_context=16)


def evaluate(text: str, *values: Tensor | float, geometry: Geometry = SMALL, precision: str = "f32") -> list[Tensor]:
    """Call @f of the functions in `text`; a Python number is a scalar argument, an integer an index."""
    with mlir():
        attribute = f"{GEOMETRY} = {geometry_attribute(geometry)}"
        module = parse_module(f"module attributes {{{attribute}}} {{\n{text}\n}}", "the test")
        function = Functions(module, Types(precision))("f")
    del module
    return function(*[value if isinstance(value, Tensor) else torch.tensor(value) for value in values])


def body(operation: str, operands: str, result: str) -> str:
    """Return a function @f that applies one operation, given in MLIR's generic form without operands and types."""
    names = [f"%a{i}" for i in range(len(operands.split(", ")))]
    arguments = ", ".join(f"{name}: {type_}" for name, type_ in zip(names, operands.split(", "), strict=True))
    applied = operation.replace("()", f"({', '.join(names)})", 1)
    return f"""func.func @f({arguments}) -> {result} {{
      %r = {applied} : ({operands}) -> {result}
      return %r : {result}
    }}"""
