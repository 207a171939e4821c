"""Selectors: the choice of positions that stay, besides attention sinks and the ring of recent ones."""

from __future__ import annotations

from dataclasses import dataclass

from sscc.ir.choices import PLAIN_BITS
from sscc.ir.geometry import Geometry
from sscc.ir.layer_state.state_tensors import Contents, Extent, ProgramSizes, StateTensor
from sscc.ir.quantized_keys import SCALE_BYTES, code_bytes, quantized_key_width
from sscc.ir.schedule import DTYPE_BYTES

QUANTIZED_KEYS = ("quantized_keys", "quantized_key_scales")
QUANTIZED_KEY_SCRATCHES = ("quantized_key_scratch", "quantized_key_scale_scratch")
"""States of quantized keys, by which queries select: those of every slot, and those of the prompt in progress.
Quantized keys that are keys have no scales."""
RESIDENT, RESIDENT_PLACES = "resident", "resident_places"
"""States of resident rows, `[L, B, Hkv, topk]`: their positions in ascending order, then -1; and the row index of each,
followed by the free row indices."""
SELECTED = "selected"
"""State with the positions selected at the end of a prompt."""
OBSERVED, LOG_SUM_EXP = "observed", "log_sum_exp"
"""States of the observation window of the prompt in progress: its queries, and the log-sum-exp that attention computed
for each. If attention is fused with its use, the program has only the first."""


@dataclass(frozen=True)
class RowSelector:
    """The selection of rows in one layer and KV head. The members of this class describe a layer without selection.

    Attributes:
        observes: True if the last queries of a prompt are kept.
        by_rule: True if a user's rule scores the positions of a prompt.
        keeps_quantized_keys: True if a step's query selects among all positions by their quantized keys.
        rounds_keys: True if rows are selected by rounded keys.
        key_bits: bits per number of a quantized key; 0 without quantized keys.
        fetch: maximum number of rows that a step copies from the store; None for no limit, or without a store.
    """

    geometry: Geometry

    @property
    def key_bits(self) -> int:
        return 0

    @property
    def fetch(self) -> int | None:
        return None

    @property
    def observes(self) -> bool:
        return False

    @property
    def by_rule(self) -> bool:
        return False

    @property
    def keeps_quantized_keys(self) -> bool:
        return False

    @property
    def rounds_keys(self) -> bool:
        return False

    def tensors(
        self, heads: int, kv_heads: int, key_width: int, query_width: int | None, sizes: ProgramSizes
    ) -> list[StateTensor]:
        """Return the tensors of the selection, besides rows.

        Args:
            heads: query heads.
            key_width: numbers of a key.
            query_width: numbers of a query of prefill; None if only the model knows them.
        """
        return []

    def quantized_key_bytes(self, key_width: int, dtype: str) -> int:
        """Return the bytes of one quantized key."""
        return 0

    def picks(self, prompt_len: int) -> int:
        """Return the part of a program's short name that describes the selection, or ""."""
        return 0

    def observed_tokens(self, prompt_len: int) -> int:
        """Return how many of a prompt's last tokens have to be prefilled although their rows are there."""
        return 1

    def in_name(self) -> str:
        """Return what a short name of a program says of it, or ""."""
        return ""

    def in_words(self) -> str:
        """Return a description of the choice."""
        g = self.geometry
        return f"observation window {g.obs}, {g.pool_mode} pool {g.pool}"


@dataclass(frozen=True)
class NoSelection(RowSelector):
    """No selection: sinks and ring only, as in StreamingLLM, or the ring of a windowed layer."""


@dataclass(frozen=True)
class ModelSelection(RowSelector):
    """Selection by the model's learned index, for every token."""

    def in_words(self) -> str:
        return "the model's own index"


@dataclass(frozen=True)
class PromptSelection(RowSelector):
    """Selection once, at the end of a prompt, by SnapKV's scores or those of a user's rule.

    Attributes:
        per_slot: True if the selected positions are kept for every slot, because steps read rows through them.
    """

    per_slot: bool

    @property
    def observes(self) -> bool:
        return True

    @property
    def by_rule(self) -> bool:
        return self.geometry.rule is not None

    def tensors(
        self, heads: int, kv_heads: int, key_width: int, query_width: int | None, sizes: ProgramSizes
    ) -> list[StateTensor]:
        g = self.geometry
        extent = Extent.SLOTS if self.per_slot else Extent.LAST_PROMPT
        return [
            observed(g, heads, query_width, sizes),
            StateTensor(LOG_SUM_EXP, Extent.PROMPT, "f32", (heads, g.obs, 1), optional=True),
            StateTensor(SELECTED, extent, "i64", (kv_heads, g.topk), contents=Contents.SELECTED),
        ]

    def picks(self, prompt_len: int) -> int:
        return self.geometry.selected(prompt_len)

    def observed_tokens(self, prompt_len: int) -> int:
        return min(self.geometry.obs, prompt_len)

    def in_words(self) -> str:
        rule = "" if self.geometry.rule is None else "the rule {} (sha256 {:.16}), ".format(*self.geometry.rule)
        return f"{rule}{super().in_words()}"


@dataclass(frozen=True)
class QuerySelection(RowSelector):
    """Selection at every step by its query, among all positions, using their quantized keys."""

    @property
    def key_bits(self) -> int:
        return self.geometry.key_bits

    @property
    def fetch(self) -> int | None:
        return self.geometry.fetch

    @property
    def keeps_quantized_keys(self) -> bool:
        return True

    @property
    def rounds_keys(self) -> bool:
        return self.geometry.key_bits < PLAIN_BITS

    @property
    def observes(self) -> bool:
        """True with resident rows: the last query of a prompt selects the initial ones."""
        return self.geometry.fetch is not None

    def tensors(
        self, heads: int, kv_heads: int, key_width: int, query_width: int | None, sizes: ProgramSizes
    ) -> list[StateTensor]:
        g, bits = self.geometry, self.geometry.key_bits
        rows = (kv_heads, sizes.scratch_rows)
        kinds = [(sizes.dtype if bits == PLAIN_BITS else "i8", quantized_key_width(key_width, bits)), ("bf16", 1)]
        names = QUANTIZED_KEYS[:1] if bits == PLAIN_BITS else QUANTIZED_KEYS
        found = [
            StateTensor(name, Extent.SLOTS, dtype, (*rows, width), stepped=True, part="quantized keys")
            for name, (dtype, width) in zip(names, kinds, strict=False)
        ]
        if g.fetch is not None:
            resident, places = Contents.ASCENDING, Contents.PLACES
            for name, contents in ((RESIDENT, resident), (RESIDENT_PLACES, places)):
                shape = (kv_heads, g.topk)
                found.append(StateTensor(name, Extent.SLOTS, "i64", shape, stepped=True, contents=contents))
            found.append(observed(g, heads, query_width, sizes))
        return found

    def quantized_key_bytes(self, key_width: int, dtype: str) -> int:
        bits = self.geometry.key_bits
        return key_width * DTYPE_BYTES[dtype] if bits == PLAIN_BITS else code_bytes(key_width, bits) + SCALE_BYTES

    def in_name(self) -> str:
        g = self.geometry
        return f" {g.key_bits}-bit{'' if g.fetch is None else f' fetch {g.fetch}'}"

    def in_words(self) -> str:
        g = self.geometry
        copies = "keys (16 bits)"
        by = copies if g.key_bits == PLAIN_BITS else f"quantized keys of {g.key_bits} bits"
        limit = "" if g.fetch is None else f"; it fetches at most {g.fetch} rows, {g.topk} are resident"
        return f"every step's query, by {by}{limit}"


def observed(geometry: Geometry, heads: int, query_width: int | None, sizes: ProgramSizes) -> StateTensor:
    """Return the state of a prompt's last queries."""
    return StateTensor(OBSERVED, Extent.PROMPT, sizes.dtype, (heads, geometry.obs, query_width))
