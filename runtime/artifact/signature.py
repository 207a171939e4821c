"""What a caller must know about a compiled program: sizes, what its layers keep, tokens that end a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from sscc.ir.cache_plan import CachePlan, LayerGroup
from sscc.ir.choices import CURSOR, REUSED
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.protocol import LayerState
from sscc.ir.layer_state.rows import Rows
from sscc.ir.layer_state.state_tensors import ProgramSizes
from sscc.ir.sizes import format_bytes


@dataclass(frozen=True)
class ProgramIdentity:
    """What the bits of a slot depend on besides its prompt.

    Attributes:
        program: sha256 of schedule.json.
        weights: digest of the weights that run (`weights_digest`).
    """

    program: str
    weights: str


@dataclass(frozen=True)
class Signature:
    """The model signature of an artifact.

    Attributes:
        geometry: the rows that were asked for, which govern the layers without a window, and the longest sequence.
        batch: slots that decode together (B).
        prefill_chunk: prompt tokens per prefill step (C).
        dtype: of activations and caches, "f32" or "bf16".
        vocab_size: tokens are 0 .. vocab_size - 1.
        plan: which layers keep which rows, of how many heads and numbers.
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
        """Decoder layers (L)."""
        return self.plan.layers

    @property
    def sizes(self) -> ProgramSizes:
        """The sizes that the shapes of states depend on."""
        return ProgramSizes(self.batch, self.prefill_chunk, self.dtype, self.geometry.max_context)

    def rows(self, group: LayerGroup) -> Rows:
        """Return the rows that the layers of a group of the plan keep."""
        return group.rows(self.sizes, self.plan.scratch(group))

    @cached_property
    def states(self) -> tuple[tuple[LayerGroup, LayerState], ...]:
        """The groups of layers, in the plan's order, and the state that their layers keep. A layer that keeps several
        is in several groups."""
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
        """The part ("cache", "store", ..) of each tensor that layers keep from one decode step to the next, by name."""
        every = ((state, tensor) for state in self._every for tensor in state.tensors())
        return {state.name_of(tensor): tensor.part for state, tensor in every if tensor.part}

    @property
    def scratch_tokens(self) -> int:
        """T: max_context rounded up to whole chunks; prompts are zero-padded to it."""
        return self.sizes.scratch_rows

    def chunks(self, length: int) -> int:
        """Chunks of a prompt of `length` tokens."""
        return -(-length // self.prefill_chunk)

    def prefill_steps(self, length: int, reused: int = 0) -> int:
        """Chunk steps that a prompt of `length` tokens takes, `reused` chunks of which are there: every phase over the
        others, and the head."""
        return (self.layers + 1) * (self.chunks(length) - reused) + 1

    def prefill_scalars(
        self, length: int, slot: int = 0, cursor: tuple[int, int] = (0, 0), steps: int | None = None, reused: int = 0
    ) -> dict[str, int]:
        """The scalars of a call of `prefill`, in the order of the entry's: of a prompt of `length` tokens `steps` chunk
        steps, all that it takes if None, from `cursor` on."""
        scalars = {"length": length, "slot": slot, **dict(zip(CURSOR, cursor, strict=True))}
        scalars["steps"] = self.prefill_steps(length, reused) if steps is None else steps
        return scalars | {REUSED: reused}

    @property
    def scores_prompts(self) -> bool:
        """True if the program has the entry `score`: prompts have as many positions as there are slots."""
        return self.batch <= self.scratch_tokens

    def reusable_chunks(self, length: int) -> int:
        """Return how many chunks of a prompt of `length` tokens need not be prefilled where their rows are there. The
        last position is always prefilled, for its logits, and so are all positions that observe."""
        needed = max(state.observed_tokens(length) for state in self._every)
        return (length - needed) // self.prefill_chunk

    @property
    def chunk_bytes(self) -> int:
        """Bytes of what prefill leaves of the positions of a whole chunk for prompts that begin alike, on one rank: K
        and V of all layers, as they are before a cache encodes them, and landmarks; and queries where all of them
        select (at -O0 4 bytes more for each)."""
        return sum(state.chunk_bytes() for state in self._every)

    @property
    def carried_bytes(self) -> int:
        """Bytes of what prefill leaves of a chunk for the next chunk alone, on one rank: recurrent states and the last
        inputs of convolutions."""
        return sum(state.carried_bytes() for state in self._every)

    @property
    def read_bytes(self) -> int:
        """Bytes of K and V, and of landmarks, that a decode step reads of one sequence whose rows are all in use; rows
        that layers share are read by each of them."""
        return self.read_bytes_of(self.geometry.max_context)

    def read_bytes_of(self, tokens: int) -> int:
        """The same of a sequence of so many tokens, nearly all of them from its prompt."""
        return sum(state.read_bytes(tokens) * group.readers for group, state in self.states)

    def step_row_bytes(self, slots: int, tokens: int) -> float:
        """The same of a decode step of so many slots; where ranks divide the slots, in the mean of ranks."""
        each = (
            state.read_bytes(tokens) * group.readers / self.sharing_slots(group) for group, state in self.states
        )
        return slots * sum(each)

    def sharing_slots(self, group: LayerGroup) -> int:
        """How many ranks, one after another, divide the slots of a group of layers; 1 where each has those of all."""
        return 1 if group.slots is None else self.batch // group.slots

    @property
    def held_bytes(self) -> int:
        """Bytes that one sequence owns: K and V of its cache, and where the selected rows are indexed of its prompt, or
        of all its positions where queries choose; and landmarks."""
        return sum(state.held_bytes() for state in self._every)

    def full_kv_bytes(self, tokens: int, ranks: int | None = None) -> int:
        """Bytes of K and V of `tokens` tokens in caches that are neither compressed nor encoded; layers that attend
        within a window hold no more than that. Of one rank that has the sequence, or of so many together."""
        return sum(
            state.uncompressed_bytes(tokens) * (1 if ranks is None else ranks // self.sharing_slots(group))
            for group, state in self.states
        )

    def in_words(self) -> str:
        """The sizes that a caller asks for first."""
        g = self.geometry
        slots = f"{self.batch} slot{'s' if self.batch > 1 else ''} of {g.max_context} tokens"
        return f"{self.layers} layers, {self.dtype}, {slots}, cache of {g.most_in_words(g.budget)} rows"

    def kv_in_words(self) -> str:
        """What one sequence holds, what a decode step reads of it, and what an uncompressed cache would be."""
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
        """The geometry that describes the cache in one line: the requested one, or that of the model's own index where
        an index chooses the rows of every layer but windows."""
        main = self.plan.main.geometry
        return main if main.by_index else self.geometry

    def groups_in_words(self) -> list[str]:
        """What each group of layers keeps, a line each."""
        return [f"{self._which(group)}: {state.in_words()}" for group, state in self.states]

    def _which(self, group: LayerGroup) -> str:
        which = "all layers" if len(group.layers) == self.layers else f"{len(group.layers)} of {self.layers} layers"
        return which + (f", whose rows {len(group.sharers)} others share" if group.sharers else "")
