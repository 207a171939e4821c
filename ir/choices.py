"""Words that options, dumps, schedules and passes share. Nothing of sscc is imported here: the command
line asks for them first."""

from typing import Literal, get_args

LEVELS = ("import", "graph", "kernels", "looped", "fused", "placed", "schedule")
"""The levels of the compiler, in the order in which a compilation passes through them."""
OPT_LEVELS = (0, 1, 2)
"""The values of the option ``-O``."""
DTYPES = ("f32", "bf16")
"""What activations and caches may be stored as."""
PRECISIONS = ("f32", "f64")
"""What the interpreters in torch compute in: f32, every dtype is itself; f64, every float is held and computed so."""
CURSOR = ("phase", "chunk")
"""What the entry `prefill` takes and gives back: where the next call goes on."""
REUSED = "reused"
"""A scalar of `prefill`: the number of the prompt's first chunks whose rows are there already."""
SCORE, FIRST = "score", "first"
"""The entry that gives logits after positions of a prompt, and its scalar: the first of these positions."""
POSITION_IDS, POSITION_ID = "position_ids", "position_id"
"""What `prefill` and `decode` take besides: where tokens stand in their text, which is what the model rotates by. Rows
of the cache are counted in the tokens that were prefilled and fed."""
RANK = "rank"
"""What an entry takes besides, where ranks do different things: the number of the rank that runs it."""
SUMS = ("f32", "model")
"""As what ranks exchange their parts of a sum: as they are accumulated, or rounded to the model's dtype before."""
PLAIN_BITS = 16
"""Landmarks of so many bits are the keys themselves, unrotated, in the dtype of the program: exact products."""
LANDMARK_BITS = (1, 2, 4, PLAIN_BITS)
"""Of a number of a key's copy by which a query chooses rows (`sscc.ir.landmarks`)."""

Tier = Literal["sram", "hbm", "ddr"]
"""Levels of memory, as schedules call them, the nearest first."""
TIERS: tuple[Tier, ...] = get_args(Tier)
ON_CHIP, MAIN = TIERS[:2]
"""Where buffers are, and where tensors are as long as there is room."""
ROW_CODES = {"int8": 8, "int4": 4}
"""What rows of a cache may be encoded as (`sscc.ir.kv_rows`), and the bits of a code."""
