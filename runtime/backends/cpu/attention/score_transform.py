"""What makes scores of products of queries and keys: a factor, and where a model caps them a hyperbolic tangent."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.operations import (
    AttendChosen,
    CachedAttention,
    CausalAttention,
    ChooseRows,
    ChunkAttention,
    DecodeAttention,
    FetchRows,
    LandmarkScores,
    ObservationScores,
    QueryAttention,
)
from sscc.runtime.backends.cpu.codegen.approximations import tanh
from sscc.runtime.backends.cpu.codegen.mlir import Function, Value

Scored = (
    AttendChosen
    | CachedAttention
    | CausalAttention
    | ChooseRows
    | ChunkAttention
    | DecodeAttention
    | FetchRows
    | LandmarkScores
    | ObservationScores
    | QueryAttention
)


@dataclass(frozen=True)
class Scoring:
    """A score is `left` times the bounded product of a query and a key.

    Attributes:
        scale: the step's.
        softcap: what caps scores; None where nothing does.
    """

    scale: float
    softcap: float | None

    @classmethod
    def of(cls, step: Scored) -> Scoring:
        return cls(step.scale, step.softcap)

    @property
    def inner(self) -> float:
        """What a product is multiplied by before it is bounded."""
        return self.scale if self.softcap is None else self.scale / self.softcap

    @property
    def left(self) -> float:
        """What a bounded product is to be multiplied by. Where nothing caps scores, bounding leaves it alone."""
        return self.scale if self.softcap is None else self.softcap

    @property
    def tag(self) -> str:
        """In the names of kernels that bound products: what they are made for."""
        return "" if self.softcap is None else f"_capped_{self.inner.hex()}"

    def bounded(self, f: Function, products: Value) -> Value:
        """Lanes of products, bounded."""
        return products if self.softcap is None else tanh(f, products * self.inner)
