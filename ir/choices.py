"""Words that options, dumps and passes share. Nothing is imported here: the command line asks for them first."""

LEVELS = ("import", "graph", "kernels", "looped", "fused", "placed", "schedule")
"""The levels of the compiler, in the order in which a compilation passes through them."""
OPT_LEVELS = (0, 1, 2)
"""The values of the option ``-O``."""
DTYPES = ("f32", "bf16")
"""What activations and caches may be stored as."""
CURSOR = ("phase", "chunk")
"""The scalars that the entry `prefill` takes and returns: they say where the next call goes on."""
