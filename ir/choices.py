"""Words that options, dumps and passes share. Nothing is imported here: the command line asks for them first."""

LEVELS = ("import", "graph", "kernels", "looped", "fused", "placed", "schedule")
"""Of the compiler, in the order in which a compilation passes through them."""
OPT_LEVELS = (0, 1, 2)
"""``-O``."""
DTYPES = ("f32", "bf16")
"""Of activations and caches."""
CURSOR = ("phase", "chunk")
"""What the entry `prefill` takes and gives back: where the next call goes on."""
