"""What a caller must know about a compiled program: sizes, what its layers keep, tokens that end a text."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.cache_plan import CachePlan, LayerGroup
from sscc.ir.choices import CURSOR, PLAIN_BITS, REUSED
from sscc.ir.geometry import Geometry
from sscc.ir.landmarks import SCALE_BYTES, code_bytes
from sscc.ir.schedule import DTYPE_BYTES
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
    def scratch_tokens(self) -> int:
        """T: max_context rounded up to whole chunks; prompts are zero-padded to it."""
        return self.chunks(self.geometry.max_context) * self.prefill_chunk

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
        return scalars | ({REUSED: reused} if self.continues else {})

    @property
    def continues(self) -> bool:
        """Whether a prompt can go on from another's rows, in every layer."""
        return all(group.geometry.continues for group in self.plan)

    @property
    def prefix_bytes(self) -> int:
        """Bytes of what prefill writes of a position, where prompts can go on from it: K and V of all layers, as they
        are before a ring encodes them, and landmarks; 0 where they cannot."""
        if not self.continues:
            return 0
        return sum(
            len(group.layers) * (self.row_bytes(group) if group.geometry.encodes_prompts else self._plain_row(group))
            + self.landmark_bytes(group, 1)
            for group in self.plan
        )

    @property
    def read_bytes(self) -> int:
        """Bytes of K and V, and of landmarks, that a decode step reads of one sequence whose rows are all in use; rows
        that layers share are read by each of them."""
        return self.read_bytes_of(self.geometry.max_context)

    def read_bytes_of(self, tokens: int) -> int:
        """The same of a sequence of so many tokens, nearly all of them from its prompt."""
        return sum(self._seen_bytes(group, tokens) * group.readers for group in self.plan)

    def step_row_bytes(self, slots: int, tokens: int) -> float:
        """The same of a decode step of so many slots; where ranks divide the slots, in the mean of ranks."""
        each = (self._seen_bytes(group, tokens) * group.readers / self.sharing_slots(group) for group in self.plan)
        return slots * sum(each)

    def sharing_slots(self, group: LayerGroup) -> int:
        """How many ranks, one after another, divide the slots of a group of layers; 1 where each has those of all."""
        return 1 if group.slots is None else self.batch // group.slots

    def _seen_bytes(self, group: LayerGroup, tokens: int) -> int:
        """Bytes that the layers of a group may see of one sequence of so many tokens."""
        candidates = max(0, tokens - self.geometry.sink_recent)
        rows = sum(min(budget, tokens) for budget in group.budgets)
        return self.row_bytes(group) * rows + self.landmark_bytes(group, candidates)

    @property
    def held_bytes(self) -> int:
        """Bytes that one sequence owns: K and V of its cache, and where the selected rows are indexed of its prompt, or
        of all its positions where queries choose; and landmarks."""
        rows = sum(self.row_bytes(group) * self.held_rows(group) for group in self.plan)
        return rows + sum(self.landmark_bytes(group, self.scratch_tokens) for group in self.plan)

    def held_rows(self, group: LayerGroup) -> int:
        """Rows of K and V that a sequence owns in all layers of a group, per KV head."""
        g, layers = group.geometry, len(group.layers)
        rows = g.packed_rows if g.packed else layers * (g.cache_rows + self._resident_rows(group))
        return rows + (layers * self.scratch_tokens if g.indexed else 0)

    def _resident_rows(self, group: LayerGroup) -> int:
        return 0 if group.geometry.fetch is None else group.geometry.topk

    def landmark_bytes(self, group: LayerGroup, rows: int) -> int:
        """Bytes of the landmarks of so many positions, in all layers and KV heads of a group."""
        if not group.geometry.by_query:
            return 0
        width, bits = group.key.width, group.geometry.landmark_bits
        landmark = width * DTYPE_BYTES[self.dtype] if bits == PLAIN_BITS else code_bytes(width, bits) + SCALE_BYTES
        return len(group.layers) * group.kv_heads * rows * landmark

    def row_bytes(self, group: LayerGroup) -> int:
        """Bytes of a row of one layer as it is stored, in all KV heads and streams of a group."""
        if not group.geometry.encoded:
            return self._plain_row(group)
        return group.kv_heads * sum(group.geometry.row_format.width(stream.width) for stream in group.streams)

    def full_kv_bytes(self, tokens: int, ranks: int | None = None) -> int:
        """Bytes of K and V of `tokens` tokens in caches that are neither compressed nor encoded; layers that attend
        within a window hold no more than that. Of one rank that has the sequence, or of so many together."""
        windows = ((group, group.geometry.window or tokens) for group in self.plan)
        return sum(
            len(group.layers) * self._plain_row(group) * min(tokens, window)
            * (1 if ranks is None else ranks // self.sharing_slots(group))
            for group, window in windows
        )  # fmt: skip

    def _plain_row(self, group: LayerGroup) -> int:
        return group.kv_heads * group.width * DTYPE_BYTES[self.dtype]

    def in_words(self) -> str:
        """The sizes that a caller asks for first."""
        g, most = self.geometry, "up to " if self.geometry.layer_topk else ""
        slots = f"{self.batch} slot{'s' if self.batch > 1 else ''} of {g.max_context} tokens"
        return f"{self.layers} layers, {self.dtype}, {slots}, cache of {most}{g.budget} rows"

    def kv_in_words(self) -> str:
        """What one sequence holds, what a decode step reads of it, and what an uncompressed cache would be."""
        read, full = self.read_bytes, self.full_kv_bytes(self.geometry.max_context)
        seen = sum(self._seen_bytes(group, self.geometry.max_context) for group in self.plan)
        plain = f"{format_bytes(full)} uncompressed ({full / seen:.1f}x)"
        if not self.geometry.indexed:
            reads = "" if self.held_bytes == read else f", of which a step reads {format_bytes(read)}"
            reads = reads if read == seen else f", and a step reads {format_bytes(read)}, as layers share rows"
            return f"{format_bytes(self.held_bytes)} a sequence{reads}, {plain}"
        stores = {group: len(group.layers) * self.scratch_tokens for group in self.plan if group.geometry.indexed}
        store = sum(self.row_bytes(group) * rows for group, rows in stores.items())
        landmarks = sum(self.landmark_bytes(group, self.scratch_tokens) for group in self.plan)
        near = "sinks, ring and resident rows" if self.geometry.fetch else "sinks and ring"
        ring = f"{format_bytes(self.held_bytes - store - landmarks)} of {near}"
        if self.geometry.by_query:
            return (
                f"{format_bytes(self.held_bytes)} a sequence ({ring}, {format_bytes(landmarks)} of landmarks, "
                f"{format_bytes(store)} of store), of which a step reads at most {format_bytes(read)}; {plain}"
            )
        return (
            f"{format_bytes(self.held_bytes)} a sequence ({ring}, {format_bytes(store)} of prompt), of which a step "
            f"reads the {format_bytes(read)} that compact rows would take; {plain}"
        )

    def groups_in_words(self) -> list[str]:
        """What each group of layers keeps, a line each."""
        return [_in_words(group, self.layers) for group in self.plan]


def _in_words(group: LayerGroup, layers: int) -> str:
    g = group.geometry
    which = "all layers" if len(group.layers) == layers else f"{len(group.layers)} of {layers} layers"
    if group.sharers:
        which += f", whose rows {len(group.sharers)} others share"
    heads = group.heads_in_words("/")
    if g.window:
        what = f"the rows of a chunk of {g.window}" if g.sees.chunked else f"the last {g.window} rows (sliding window)"
        return f"{which}: {heads}, {what}"
    if g.layer_topk:
        return (
            f"{which}: {heads}, {min(group.budgets)} to {max(group.budgets)} rows: sink {g.sink}, recent {g.recent}, "
            f"top-K by layer {' '.join(map(str, g.layer_topk))}"
        )
    return f"{which}: {heads}, {g.budget} rows: sink {g.sink}, recent {g.recent}, top-K {g.topk}"
