"""The signature of a program: what its facts say, and its cache plan, of which its states show the widths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sscc.ir.cache_plan import CachePlan, LayerGroup, Stream
from sscc.ir.errors import InputError
from sscc.ir.geometry import Geometry
from sscc.ir.kv_rows import decoded_width
from sscc.ir.levels import GroupFacts, ProgramFacts
from sscc.runtime.artifact.signature import Signature

States = Mapping[str, tuple[int, ...]]


def program_signature(
    facts: ProgramFacts, geometry: Geometry, groups: Sequence[GroupFacts], states: States
) -> Signature:
    """Args:
        geometry: the one that was asked for.
        states: the shapes of the program's states, by name; of other tensors too, as may be.

    Raises InputError where a state is missing that tells it.
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
    bare = LayerGroup(facts.name, facts.layers, facts.geometry, 0, 0, ())
    shapes = [states.get(bare.state(name)) for name in ("k_cache", "v_cache")]
    for name, shape in zip(("k_cache", "v_cache"), shapes, strict=True):
        if shape is None:
            raise InputError(f"the module's entries have no state {bare.state(name)}: it cannot be run")
    stored = [(shape[-3], shape[-1]) for shape in shapes if shape is not None]
    widths = [decoded_width(width) if facts.geometry.encoded else width for _, width in stored]
    streams = tuple(Stream(name, width) for name, width in zip("kv", widths, strict=True))
    observed = states.get(bare.state("observed"))
    for other in before:
        alike = (other.kv_heads, other.streams) == (stored[0][0], streams)
        observed = observed or (states.get(other.state("observed")) if alike else None)
    if observed is None:
        raise InputError(f"the module's entries have no state {bare.state('observed')}: it cannot be run")
    return LayerGroup(facts.name, facts.layers, facts.geometry, observed[1], stored[0][0], streams)
