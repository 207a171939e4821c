"""Words shared by options, dumps, schedules and passes. This module imports nothing of sscc, because the command line
imports it first."""

from typing import Literal, get_args

LEVELS = ("import", "graph", "kernels", "looped", "fused", "placed", "schedule")
"""Levels of the IR, in the order in which a compilation passes through them."""
OPT_LEVELS = (0, 1, 2)
"""The values of the option ``-O``."""
DTYPES = ("f32", "bf16")
"""Storage dtypes of activations and caches."""
PRECISIONS = ("f32", "f64")
"""Precisions of the torch interpreters: "f32" computes in each tensor's own dtype, "f64" stores and computes all floats
in f64."""
CURSOR = ("phase", "chunk")
"""Inputs and outputs of the entry `prefill`: the position at which the next call continues."""
REUSED = "reused"
"""Scalar of `prefill`: the number of leading chunks of the prompt whose rows are already cached."""
SCORE, FIRST = "score", "first"
"""The entry that returns logits for positions of a prompt, and its scalar: the first of these positions."""
DECODE, VERIFY = "decode", "verify"
"""The entries that feed tokens to all slots at once: one to each, or several to each, which follow one another."""
STEPS = (DECODE, VERIFY)
POSITION_IDS, POSITION_ID = "position_ids", "position_id"
"""Additional inputs of `prefill` and `decode`: positions in the text, which rotary embeddings use. Rows of the cache
are counted in the tokens that were prefilled and fed."""
RANK = "rank"
"""Additional input of an entry in which ranks do different work: the number of the rank that runs it."""
SUMS = ("f32", "model")
"""Dtypes of partial sums that ranks exchange: f32 (as accumulated), or the model's dtype."""
PLAIN_BITS = 16
"""Bits per number of keys that are not quantized: unrotated, in the program's dtype, with exact products."""
KEY_BITS = (1, 2, 4, PLAIN_BITS)
"""Bits per number of the key copies by which a query selects rows (`sscc.ir.quantized_keys`)."""


def step_tensor(entry: str, name: str) -> str:
    """Return the program's name of an input or output of one of `STEPS`: that of `decode`, or with the entry's name
    before it, because their shapes differ."""
    return name if entry == DECODE else f"{entry}_{name}"


Tier = Literal["sram", "hbm", "ddr"]
"""Memory levels, as schedules name them, nearest first."""
TIERS: tuple[Tier, ...] = get_args(Tier)
ON_CHIP, MAIN = TIERS[:2]
"""The tier of buffers, and the tier of tensors as long as they fit."""
ROW_CODES = {"int8": 8, "int4": 4}
"""Encodings of cache rows (`sscc.ir.kv_rows`), and the bits of a code."""
