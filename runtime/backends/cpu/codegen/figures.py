"""What the code for CPUs takes a CPU to be: sizes of its caches, and how much work is worth what it costs.

They are measured on the CPUs that docs/results/index.md names. None of them changes a result, but for the order of sums
that `SLICES`, `ATTENTION_UNITS` and `SPLIT_ROWS` decide.
"""

LINE = 64
"""Bytes of a cache line, and of a vector of f32."""
L1_ROWS_BYTES = 16 << 10
"""Packed rows that stay in half of a first-level cache."""
L2_BYTES = 1 << 20
"""What fits a core's second-level cache beside what streams through it."""
PACKED_ROWS_BYTES = 16 << 20
"""Packed rows of a product that a thread keeps while it goes over the weights, at most: in memory or a cache that is
shared, from which parts of them come to the second-level one."""
PACKED_AT_ONCE = 1 << 20
"""Elements of a weight that are brought into panels at once, when it is packed."""

ACCUMULATORS = 28
"""Of 32 wide registers, those that a product's tile sums in."""
WIDENING_ACCUMULATORS = 24
"""The same where pairs of bf16 are widened, which takes registers too."""
NARROW_TILE_ROWS = 5
"""Rows of the largest tile of a product where there are 16 registers of 256 bits."""
STREAMED_ROWS = 8
"""Rows with which a product waits for its weights rather than for arithmetic, at most."""
LONG_UNITS = 512
"""Units of a panel so long that its sums are better spread over several panels than follow one another."""
QUANTISED_TILE_ROWS = {"dot": 8, "pairs": 8, "plain": 4}
"""Rows of a tile of a product with codes, by how products are summed; half of it where registers are not wide, a
quarter where 32 of them have 128 bits."""

FLOAT8_TILE_ROWS = 8
"""Rows of a tile of a product with floats of 8 or 16 bits where registers are wide; a quarter of it elsewhere."""

AHEAD_UNITS = 64
"""Units of 64 bytes of a panel that a prefetch is ahead of the loads."""
AHEAD_BYTES = 4 << 10
"""Bytes that a prefetch is ahead of the loads of quantised panels: a page, where the processor's own prefetch stops."""
LANDMARK_AHEAD_BYTES = 2 << 10
"""Bytes that a prefetch is ahead of the loads of landmarks."""

STREAMED_LINES = 8
"""Lines of the next stage's weights that are asked for while 32 landmarks are scored, at most."""

ENOUGH = 2
"""Units that a barrier is never worth having more than: a stage fires many tiles, each with its own units."""
REPLICATED_ELEMENTS = 1 << 14
"""A stage that writes no more than this is computed by every thread for itself: cheaper than to wait for another."""
ROW_BLOCK = 32
"""Rows that a unit of a copying phase moves."""

ATTENTION_UNITS = 32
"""Units that a step's attention has at least, where there are rows enough."""
SPLIT_ROWS = 128
"""Rows of the smallest split of a cache."""
ADDRESSES = 8
"""Addresses of rows that are computed at once."""
AHEAD_ROWS = 96
"""Cached rows that lie anywhere are asked for so many rows before their turn."""
FOLDED_ROWS = 4
"""Cached rows whose scores are computed together."""
UNROLLED_ROWS = 8
"""Cached rows whose values are added in one round of a loop."""

LARGEST_QUERY_BLOCK = 96
"""Queries of a prefill block, at most."""
LARGEST_BLOCK_ROWS = 256
"""Query rows of a prefill block, all heads of a group, at most."""
LARGEST_LATENT_BLOCK = 512
"""Queries of a prefill block over latent rows, at most: each makes keys and values of all rows again."""
KEY_WALK_ROWS = 12
"""What walking the keys once more costs, in query rows."""
SLICES = 16
"""Slices of a prompt whose observation scores are units by themselves."""
GRAIN = 256
"""Positions that slices are made of; a multiple of the block of keys, and of 16."""
