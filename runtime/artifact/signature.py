"""The signature of a compiled program for its callers: sizes, rows that layers keep, tokens that end a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sscc.ir.cache_plan import CachePlan, LayerGroup
from sscc.ir.choices import CURSOR, DECODE, REUSED, VERIFY
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.protocol import LayerState
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.state_tensors import ProgramSizes
from sscc.ir.sizes import format_bytes


@dataclass(frozen=True)
class ProgramIdentity:
    """Identity of the computation behind a slot's bits, besides its prompt.

    Attributes:
        program: sha256 of schedule.json.
        weights: digest of the weights in use (`weights_digest`).
    """

    program: str
    weights: str


@dataclass(frozen=True)
class Signature:
    """The model signature of an artifact.

    Attributes:
        geometry: requested geometry, which applies to the layers without a window, and the longest sequence.
        batch: slots that decode together (B).
        prefill_chunk: prompt tokens per prefill step (C).
        dtype: dtype of activations and caches, "f32" or "bf16".
        vocab_size: tokens are 0 .. vocab_size - 1.
        plan: groups of layers with their rows, heads and widths.
        eos_token_ids: tokens that end a text; may be empty.
    """

    geometry: Geometry
    batch: int
    prefill_chunk: int
    dtype: str
    vocab_size: int
    plan: CachePlan
    eos_token_ids: tuple[int, ...] = ()

    @property
    def layers(self) -> int:
        """Number of decoder layers (L)."""
        return self.plan.layers

    @property
    def drafted(self) -> int:
        """Maximum number V of drafted tokens of a slot that a step of the entry `verify` takes, behind the slot's next
        token; 0 for a program without that entry."""
        return self.geometry.spare

    @property
    def accumulates(self) -> bool:
        """True if steps of one token cannot be taken back (`LayerState.accumulates`)."""
        return any(state.accumulates for state in self._every)

    @property
    def reads_twice(self) -> bool:
        """True if a step may read the last token of a prompt again (`LayerState.reads_twice`)."""
        return all(state.reads_twice for state in self._every)

    @cached_property
    def step_tokens(self) -> dict[str, int]:
        """Number of tokens that a step feeds to each slot, by entry."""
        return {DECODE: 1} | ({VERIFY: self.drafted + 1} if self.drafted else {})

    @property
    def sizes(self) -> ProgramSizes:
        """Sizes on which the shapes of states depend."""
        return ProgramSizes(self.batch, self.prefill_chunk, self.dtype, self.geometry.max_context)

    def rows(self, group: LayerGroup) -> Rows:
        """Return the rows that the layers of a group of the plan keep."""
        return group.rows(self.sizes, self.plan.scratch(group))

    @cached_property
    def states(self) -> tuple[tuple[LayerGroup, LayerState], ...]:
        """States of the groups of layers, in the plan's order. A layer that keeps several is in several groups."""
        return tuple((group, self.rows(group)) for group in self.plan)

    def states_of(self, layer: int) -> list[tuple[LayerState, int]]:
        """Return the states that a layer reads, and its place among the layers of the group of each."""
        states = {group.name: state for group, state in self.states}
        return [(states[group.name], index) for group, index in self.plan.all_of(layer)]

    @property
    def _every(self) -> Iterator[LayerState]:
        return (state for _, state in self.states)

    @cached_property
    def state_parts(self) -> dict[str, str]:
        """Part ("cache", "store", ..) of each tensor that layers keep from one decode step to the next, by name."""
        every = ((state, tensor) for state in self._every for tensor in state.tensors())
        return {state.name_of(tensor): tensor.part for state, tensor in every if tensor.part}

    @property
    def scratch_tokens(self) -> int:
        """T: max_context rounded up to whole chunks; prompts are zero-padded to it."""
        return self.sizes.scratch_rows

    def chunks(self, length: int) -> int:
        """Return the number of chunks of a prompt of `length` tokens."""
        return -(-length // self.prefill_chunk)

    def prefill_steps(self, length: int, reused: int = 0) -> int:
        """Return the number of chunk steps of a prompt of `length` tokens, `reused` chunks of which are cached: every
        phase over the other chunks, and the head."""
        return (self.layers + 1) * (self.chunks(length) - reused) + 1

    def prefill_scalars(
        self, length: int, slot: int = 0, cursor: tuple[int, int] = (0, 0), steps: int | None = None, reused: int = 0
    ) -> dict[str, int]:
        """Return the scalars of a call of `prefill`, in the order of the entry, for a prompt of `length` tokens and
        `steps` chunk steps (None for all) from `cursor` on."""
        scalars = {"length": length, "slot": slot, **dict(zip(CURSOR, cursor, strict=True))}
        scalars["steps"] = self.prefill_steps(length, reused) if steps is None else steps
        return scalars | {REUSED: reused}

    @property
    def scores_prompts(self) -> bool:
        """True if the program has the entry `score`: prompts have at least as many positions as there are slots."""
        return self.batch <= self.scratch_tokens

    def reusable_chunks(self, length: int) -> int:
        """Return the number of chunks of a prompt of `length` tokens that need not be prefilled if their rows are
        cached. The last position is always prefilled, for its logits, and so are all positions of the observation
        window."""
        needed = max(state.observed_tokens(length) for state in self._every)
        return (length - needed) // self.prefill_chunk

    @property
    def chunk_bytes(self) -> int:
        """Bytes that prefill leaves for the positions of one chunk, for prompts with a common prefix, on one rank: K
        and V of all layers before a cache encodes them, and quantized keys; also queries if all of them select (at -O0
        4 bytes more for each)."""
        return sum(state.chunk_bytes() for state in self._every)

    @property
    def carried_bytes(self) -> int:
        """Bytes that prefill leaves of a chunk only for the next chunk, on one rank: recurrent states and the last
        inputs of convolutions."""
        return sum(state.carried_bytes() for state in self._every)

    @property
    def read_bytes(self) -> int:
        """Bytes of K and V, and of quantized keys, that a decode step reads of one sequence whose rows are all in use.
        Rows that layers share are counted for each of them."""
        return self.read_bytes_of(self.geometry.max_context)

    def read_bytes_of(self, tokens: int) -> int:
        """Return the same for a sequence of `tokens` tokens, nearly all of them from its prompt."""
        return sum(state.read_bytes(tokens) * group.readers for group, state in self.states)

    def step_row_bytes(self, slots: int, tokens: int) -> float:
        """Return the same for a decode step of `slots` slots; if ranks divide the slots, the mean over ranks."""
        each = (
            state.read_bytes(tokens) * group.readers / self.sharing_slots(group) for group, state in self.states
        )
        return slots * sum(each)

    def sharing_slots(self, group: LayerGroup) -> int:
        """Return the number of consecutive ranks that divide the slots of a group of layers; 1 if each has all slots.
        """
        return 1 if group.slots is None else self.batch // group.slots

    @property
    def held_bytes(self) -> int:
        """Bytes of one sequence in memory: K and V of its cache, and of its prompt if the selected rows are indexed, or
        of all its positions if queries select; and quantized keys."""
        return sum(state.held_bytes() for state in self._every)

    @property
    def spare_bytes(self) -> int:
        """Part of `held_bytes` that only steps of several tokens need: rows of tokens that may be rejected."""
        return sum(state.spare_bytes() for state in self._every)

    def full_kv_bytes(self, tokens: int, ranks: int | None = None) -> int:
        """Return the bytes of K and V of `tokens` tokens in caches that are neither compressed nor encoded. Layers with
        a window are limited to it. For `ranks` ranks together."""
        return sum(
            state.uncompressed_bytes(tokens) * (1 if ranks is None else ranks // self.sharing_slots(group))
            for group, state in self.states
        )

    def in_words(self) -> str:
        """Return the most important sizes."""
        g = self.geometry
        slots = f"{self.batch} slot{'s' if self.batch > 1 else ''} of {g.max_context} tokens"
        return f"{self.layers} layers, {self.dtype}, {slots}, cache of {g.most_in_words(g.budget)} rows"

    def kv_in_words(self) -> str:
        """Return the bytes of one sequence: those in memory, those that a decode step reads, and those of an
        uncompressed cache."""
        read, full = self.read_bytes, self.full_kv_bytes(self.geometry.max_context)
        seen = sum(state.read_bytes(self.geometry.max_context) for state in self._every)
        held, plain = self.held_bytes, f"{format_bytes(full)} uncompressed ({full / seen:.1f}x)"
        far = Counter[str]()
        for state in self._every:
            far.update(state.far_bytes())
        if not far:
            reads = "" if held == read else f", of which a step reads {format_bytes(read)}"
            reads = reads if read == seen else f", and a step reads {format_bytes(read)}, as layers share rows"
            return f"{format_bytes(held)} a sequence{reads}, {plain}"
        main = self.rows(self.plan.main).store
        parts = {main.near_in_words(): held - far.total(), **far}
        listed = ", ".join(f"{format_bytes(nbytes)} of {name}" for name, nbytes in parts.items())
        reads = main.reads_in_words(format_bytes(read))
        return f"{format_bytes(held)} a sequence ({listed}), of which a step reads {reads}; {plain}"

    @property
    def cache_geometry(self) -> Geometry:
        """Geometry that describes the cache in one line: the requested one, or that of the model's index if an index
        selects the rows of every layer without a window."""
        main = self.plan.main.geometry
        return main if main.by_index else self.geometry

    def groups_in_words(self) -> list[str]:
        """Return the rows of each group of layers, one line each."""
        return [f"{self._which(group)}: {state.in_words()}" for group, state in self.states]

    def _which(self, group: LayerGroup) -> str:
        which = "all layers" if len(group.layers) == self.layers else f"{len(group.layers)} of {self.layers} layers"
        return which + (f", whose rows {len(group.sharers)} others share" if group.sharers else "")
