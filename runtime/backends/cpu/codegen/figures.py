"""Assumptions about CPUs in generated code: sizes of caches, and the amount of work that justifies an overhead.

They are measured on the CPUs that docs/results/index.md names. None of them changes a result, but for the order of sums
that `SLICES`, `ATTENTION_UNITS` and `SPLIT_ROWS` decide.
"""

LINE = 64
"""Bytes of a cache line, and of a vector of f32."""
L1_ROWS_BYTES = 16 << 10
"""Bytes of packed rows that stay in half of a first-level cache."""
L2_BYTES = 1 << 20
"""Bytes that fit in a core's second-level cache beside the data that streams through it."""
PACKED_ROWS_BYTES = 16 << 20
"""Limit on the packed rows that a thread keeps while it goes over the weights of a product, in bytes. They are in
memory or a shared cache, from which parts of them move to the second-level cache."""
PACKED_AT_ONCE = 1 << 20
"""Elements of a weight that are packed into panels at a time."""

ACCUMULATORS = 28
"""Accumulators of a product's tile, out of 32 wide registers."""
WIDENING_ACCUMULATORS = 24
"""Accumulators if pairs of bf16 are widened, which needs registers too."""
NARROW_TILE_ROWS = 5
"""Rows of the largest tile of a product on CPUs with 16 registers of 256 bits."""
STREAMED_ROWS = 8
"""Limit on the rows of a product whose time is that of loading weights rather than of arithmetic."""
LONG_UNITS = 512
"""Units of a panel that is long enough to sum several panels at once instead of one after the other."""
QUANTIZED_TILE_ROWS = {"dot": 8, "bytes": 8, "pairs": 8, "plain": 4}
"""Rows of a tile of a product with codes, by the way products are summed; half as many if registers are not wide, a
quarter if there are 32 of 128 bits."""

FLOAT8_TILE_ROWS = 8
"""Rows of a tile of a product with floats of 8 or 16 bits on CPUs with wide registers; a quarter as many elsewhere."""

AHEAD_UNITS = 64
"""Distance between prefetches and loads of a panel, in units of 64 bytes."""
AHEAD_BYTES = 4 << 10
"""Distance between prefetches and loads of quantized panels, in bytes: a page, because the CPU's own prefetcher stops
at its end."""
KEY_AHEAD_BYTES = 2 << 10
"""Distance between prefetches and loads of quantized keys, in bytes."""

STREAMED_LINES = 8
"""Limit on the lines of the next stage's weights that are prefetched while 32 quantized keys are scored."""

ENOUGH = 2
"""Number of units above which a barrier does not pay: a stage fires many tiles, each with units of its own."""
REPLICATED_ELEMENTS = 1 << 14
"""Limit on the elements that a stage writes if every thread computes the whole stage: that is cheaper than waiting for
another thread."""
ROW_BLOCK = 32
"""Rows per unit of a copying phase."""

ATTENTION_UNITS = 32
"""Minimum of units of a step's attention, if there are enough rows."""
SPLIT_ROWS = 128
"""Rows of the smallest split of a cache."""
ADDRESSES = 8
"""Number of row addresses that are computed at once."""
AHEAD_ROWS = 96
"""Distance between prefetches and loads of scattered cached rows, in rows."""
FOLDED_ROWS = 4
"""Cached rows whose scores are computed together."""
UNROLLED_ROWS = 8
"""Cached rows whose values are added in one iteration of a loop."""

LARGEST_QUERY_BLOCK = 96
"""Limit on the queries of a prefill block."""
LARGEST_BLOCK_ROWS = 256
"""Limit on the query rows of a prefill block, over all heads of a group."""
LARGEST_LATENT_BLOCK = 512
"""Limit on the queries of a prefill block over latent rows: each block recomputes the keys and values of all rows."""
KEY_WALK_ROWS = 12
"""Cost of one more pass over the keys, in query rows."""
SLICES = 16
"""Slices of a prompt whose observation scores are computed as separate units."""
GRAIN = 256
"""Granularity of slices in positions; a multiple of 16 and of the block of keys."""
