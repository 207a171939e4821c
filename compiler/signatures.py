"""Builds the signature of a program from its facts and its states, whose shapes give the widths of the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sscc.ir.cache_plan import CACHES, STREAMS, CachePlan, LayerGroup, Stream, state_name
from sscc.ir.errors import InputError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.runtime.artifact.signature import Signature

States = Mapping[str, tuple[int, ...]]


def program_signature(
    facts: ProgramFacts, geometry: Geometry, groups: Sequence[GroupFacts], states: States
) -> Signature:
    """Args:
        geometry: the one that was asked for.
        states: the shapes of the program's states, by name; of other tensors too, as may be.

    Raises InputError where a state is missing whose shape is needed.
    """
    known: list[LayerGroup] = []
    for group in groups:
        known.append(_group(group, known, states))
    return Signature(
        geometry=geometry,
        batch=facts.batch,
        prefill_chunk=facts.chunk,
        dtype=facts.dtype,
        vocab_size=facts.vocab_size,
        plan=CachePlan(tuple(known)),
        eos_token_ids=facts.eos,
    )


def _group(facts: GroupFacts, before: Sequence[LayerGroup], states: States) -> LayerGroup:
    """A group: its caches have its KV heads and widths, and one of the observation windows its query heads."""
    shapes = [_shape(states, facts.name, name) for name in CACHES]
    kv_heads = shapes[0][-3]
    g = facts.geometry
    widths = [g.row_format.numbers(shape[-1]) if g.encoded else shape[-1] for shape in shapes]
    streams = tuple(Stream(name, width) for name, width in zip(STREAMS, widths, strict=True))
    alike = (other.name for other in before if (other.kv_heads, other.streams) == (kv_heads, streams))
    windows = (name for name in (facts.name, *alike) if state_name("observed", name) in states)
    observed = _shape(states, next(windows, facts.name), "observed")
    return LayerGroup(facts.name, facts.layers, facts.geometry, observed[1], kv_heads, streams)


def _shape(states: States, group: str, name: str) -> tuple[int, ...]:
    """The shape of a state of a group. Raises InputError where there is none."""
    whole = state_name(name, group)
    if whole not in states:
        raise InputError(f"the module's entries have no state {whole}: it cannot be run")
    return states[whole]
