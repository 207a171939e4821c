"""Signature of a program from its facts and its states, whose shapes give the widths of the caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch_mlir import ir

from sscc.ir.cache_plan import STATELESS, CachePlan, LayerGroup, stateless_group
from sscc.ir.dialects import kv
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.codecs import codec_of
from sscc.ir.layer_state.kinds import kind_of
from sscc.ir.layer_state.row_streams import CACHES, STORES, STREAMS_OF_A_GROUP, state_name, streams_of
from sscc.ir.levels import GroupFacts, ProgramFacts, walk
from sscc.runtime.artifact.signature import Signature

States = Mapping[str, tuple[int, ...]]


class ProgramSignatureErrors(ErrorKind):
    NO_ATTENTION = InputError, "the module has no attention in the layers {layers}: it cannot be run"
    NO_STATE = InputError, "the entries of the module have no state {state}: it cannot be run"


def program_signature(
    facts: ProgramFacts, geometry: Geometry, groups: Sequence[GroupFacts], heads: Mapping[str, int], states: States
) -> Signature:
    """Return the signature of a program.

    Args:
        geometry: the requested geometry.
        heads: query heads by group (`query_heads`).
        states: shapes of the program's states, by name; other tensors are ignored.

    Raises InputError if a needed state is missing, or a group's query heads are unknown.
    """
    known = [_group(group, heads, states, facts.batch) for group in groups]
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
    """Return the query heads of each group of layers, by its name: those of attention in prefill. In a step ranks may
    have other heads for different slots."""
    of_prefill = {"query", "start"}, {"query", "chosen"}
    known = {name: {*spec.inputs, *spec.numbers} for name, spec in kv.SPECS.items()}
    specs = {name: kv.SPECS[name] for name, operands in known.items() if any(of <= operands for of in of_prefill)}
    specs = {name: spec for name, spec in specs.items() if "out" in spec.results and "scale" in spec.attributes}
    attending = (op for op in walk(module) if op.name in specs)
    return {kv.group_of(op): int(kv.operand_of(op, "query").type.shape[1]) for op in attending}


def _group(facts: GroupFacts, heads: Mapping[str, int], states: States, batch: int) -> LayerGroup:
    """Return a group's part of the signature, with its KV heads and widths."""
    if facts.name == STATELESS:
        return stateless_group(facts.layers, facts.geometry)
    g = facts.geometry
    names = [state_name(name, facts.name) for name in (STORES if _is_stored(facts, states) else CACHES)]
    streams = streams_of(names, states, codec_of(g))
    if tuple(stream.name for stream in streams) not in STREAMS_OF_A_GROUP:
        missing = next(name for name in names if name not in states)
        raise ProgramSignatureErrors.NO_STATE(state=missing)
    if facts.name not in heads and kind_of(streams).attends:
        raise ProgramSignatureErrors.NO_ATTENTION(layers=facts.layers)
    slots, kv_heads, _, _ = next(states[name] for name in names if name in states)[-4:]
    return LayerGroup(
        facts.name, facts.layers, facts.geometry, heads.get(facts.name, kv_heads), kv_heads, streams, facts.sharers,
        slots=None if slots == batch else slots, beside=facts.beside,
    )  # fmt: skip


def _is_stored(facts: GroupFacts, states: States) -> bool:
    """Return True if no cache has rows of a group, because a store has all."""
    return facts.geometry.by_index and not any(state_name(name, facts.name) in states for name in CACHES)
