"""The signature of a program: what its facts and its geometry say, and the widths of heads that its states show."""

from __future__ import annotations

from collections.abc import Mapping

from sscc.ir.errors import InputError
from sscc.ir.geometry import Geometry
from sscc.ir.kv_rows import decoded_width
from sscc.ir.levels import ProgramFacts
from sscc.runtime.artifact.signature import Signature


def program_signature(facts: ProgramFacts, geometry: Geometry, states: Mapping[str, tuple[int, ...]]) -> Signature:
    """Args:
        states: the shapes of the program's states, by name; of other tensors too, as may be.

    Raises InputError where a state is missing that tells it.
    """
    for name in ("k_cache", "v_cache", "observed"):
        if name not in states:
            raise InputError(f"the module's entries have no state {name}: it cannot be run")
    _, heads, _, head_dim = states["observed"]
    stored = states["v_cache"][-1]
    return Signature(
        geometry=geometry,
        batch=facts.batch,
        prefill_chunk=facts.chunk,
        dtype=facts.dtype,
        layers=facts.layers,
        heads=heads,
        kv_heads=states["k_cache"][2],
        head_dim=head_dim,
        value_dim=decoded_width(stored) if geometry.encoded else stored,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos,
    )
