"""Builds the signature of a program from its facts and its states, whose shapes give the widths of the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mlir import ir

from sscc.ir.cache_plan import CACHES, STREAMS, CachePlan, LayerGroup, Stream, state_name
from sscc.ir.dialects import kv
from sscc.ir.errors import InputError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import GroupFacts, ProgramFacts, walk
from sscc.runtime.artifact.signature import Signature

States = Mapping[str, tuple[int, ...]]


def program_signature(
    facts: ProgramFacts, geometry: Geometry, groups: Sequence[GroupFacts], heads: Mapping[str, int], states: States
) -> Signature:
    """Args:
        geometry: the one that was asked for.
        heads: query heads by group (`query_heads`).
        states: the shapes of the program's states, by name; of other tensors too, as may be.

    Raises InputError where a state is missing whose shape is needed, or a group's query heads are not known.
    """
    known = [_group(group, heads, states) for group in groups]
    return Signature(
        geometry=geometry,
        batch=facts.batch,
        prefill_chunk=facts.chunk,
        dtype=facts.dtype,
        vocab_size=facts.vocab_size,
        plan=CachePlan(tuple(known)),
        eos_token_ids=facts.eos,
    )


def query_heads(module: ir.Module) -> dict[str, int]:
    """The query heads of each group of layers, by its name: those of what attends in the module."""
    attending = (op for op in walk(module) if op.name in kv.SPECS and "query" in kv.SPECS[op.name].inputs)
    return {kv.group_of(op): int(kv.operand_of(op, "query").type.shape[1]) for op in attending}


def _group(facts: GroupFacts, heads: Mapping[str, int], states: States) -> LayerGroup:
    """A group: its caches have its KV heads and widths."""
    if facts.name not in heads:
        raise InputError(f"nothing in the module attends in the layers {list(facts.layers)}: it cannot be run")
    shapes = [_shape(states, facts.name, name) for name in CACHES]
    kv_heads = shapes[0][-3]
    g = facts.geometry
    widths = [g.row_format.numbers(shape[-1]) if g.encoded else shape[-1] for shape in shapes]
    streams = tuple(Stream(name, width) for name, width in zip(STREAMS, widths, strict=True))
    return LayerGroup(facts.name, facts.layers, facts.geometry, heads[facts.name], kv_heads, streams)


def _shape(states: States, group: str, name: str) -> tuple[int, ...]:
    """The shape of a state of a group. Raises InputError where there is none."""
    whole = state_name(name, group)
    if whole not in states:
        raise InputError(f"the module's entries have no state {whole}: it cannot be run")
    return states[whole]
