"""The compiled module (runtime/backends/cpu/native/, built by CMakeLists.txt): what the machine offers; the native
interpreter; the sampler."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

compiler: str
"""Which C++ compiler built the module, e.g. "GNU 12.2.0"."""

def architecture() -> str:
    """"x86_64", "aarch64" or "unknown"."""

def cpu_features() -> list[str]:
    """Vector extensions that the CPU has and the operating system saves, named as in /proc/cpuinfo. Tile registers
    (AMX) are asked for, for this process, and are no features where Linux refuses them."""

def affinity_threads() -> int:
    """CPUs in the affinity mask of the calling thread, at least 1."""

def cpu_quota() -> float | None:
    """CPUs' worth of time that the cgroups (v2 or v1) of this process allow; None where unlimited."""

def usable_threads() -> int:
    """Threads worth starting: the affinity mask cut to the quota (rounded up), at least 1."""

def cache_sizes() -> dict[str, int]:
    """Bytes of the caches that one CPU sees, keys "l1d", "l2", "l3"; an unknown level has no key."""

def page_size() -> int:
    """Bytes."""

def total_memory() -> int:
    """Bytes of physical memory."""

def memory_limit() -> int | None:
    """Bytes that the cgroups of this process allow; None where that is no less than the physical memory."""

def read_bandwidth(threads: int, nbytes: int, repeats: int = 3) -> float:
    """GB/s (1e9 bytes/s) at which `threads` threads together read `nbytes` bytes once; the best of `repeats` passes.

    Raises ValueError for a count below 1 or a buffer below 64 bytes per thread, MemoryError, and RuntimeError
    where no more threads can be started.
    """

def pack_panels(
    parts: Sequence[NDArray[np.uint8]],
    panels: NDArray[np.uint8],
    rows: int,
    sizes: NDArray[np.int32],
    runs: NDArray[np.int32],
    heads: NDArray[np.int32],
    planes: NDArray[np.int32],
    kind: int,
) -> None:
    """Pack the stored parts of a quantized weight, [rows, bytes] each, into zeroed panels [count, blocks, block_bytes].

    The tables are those of `quantised_packing`. Raises UsageError if arrays and tables
    do not fit together.
    """

def unpack_panels(
    panels: NDArray[np.uint8],
    parts: Sequence[NDArray[np.uint8]],
    rows: int,
    sizes: NDArray[np.int32],
    runs: NDArray[np.int32],
    heads: NDArray[np.int32],
    planes: NDArray[np.int32],
    kind: int,
) -> None:
    """Write the zeroed parts, [rows, bytes] each, from which `pack_panels` made panels. Raises as it does."""

class Team:
    """Threads that do the same job at the same time; the one that brings it is one of them.

    One job at a time; any thread may bring it. Those of a core are its `team`.
    """

    def __init__(self, threads: int, *, pin: bool | None = None, spin_us: float = 50.0) -> None:
        """Starts the threads; arguments and errors are those of a `Core`."""

    @property
    def threads(self) -> int: ...

class Meeting:
    """Where the ranks of a program meet: in memory that all of them see, be they threads or processes."""

    def __init__(self, address: int, rank: int, ranks: int, *, timeout: float = 6.0, spin_us: float = 0.0) -> None:
        """A rank among several.

        Args:
            address: of `nbytes` bytes that are the same for all ranks and were zero at first, at a cache line's start.
            timeout: seconds that a rank waits for another one, before it ends the meetings of all.
            spin_us: how long it spins before it sleeps, in microseconds.

        Raises InputError for a rank that there is not, and an address that does not fit.
        """

    @staticmethod
    def nbytes(ranks: int) -> int:
        """Bytes that a meeting of so many ranks needs."""

    def meet(self) -> None:
        """Returns when all ranks have called it as often as this one. Raises RankError if one of them is gone."""

    def fail(self, rank: int) -> None:
        """Ends all meetings, of all ranks, with the error that `rank` has failed; the first call of one rank counts."""

    def stall(self, rank: int) -> None:
        """The same, with the error that it does not answer."""

    def leave(self, rank: int) -> None:
        """The same, with the error that it has ended."""

class Core:
    """The native interpreter: a plan (`plan`), the memory that it names, and a team of threads.

    One call at a time: what comes while an entry runs, from another thread or a hook, raises UsageError, apart from
    `region` and `registers`. A core does not work in a child process made by fork().
    """

    def __init__(
        self,
        plan: bytes,
        functions: Sequence[int],
        externals: Sequence[tuple[str, int, int]],
        threads: int,
        *,
        pin: bool | None = None,
        spin_us: float = 50.0,
        windows: tuple[int, int, int, Meeting | Callable[[int, int], object]] | None = None,
        guarded: bool = False,
    ) -> None:
        """Makes a core.

        Args:
            plan: an encoded NativePlan.
            functions: addresses, in the plan's order; they must stay valid as long as the core lives.
            externals: (name, address, bytes) of every external region; likewise.
            threads: at most 1024. The thread that calls `run` is one of them.
            pin: whether each worker stays on a CPU of its own; None pins where there are as many threads as CPUs.
                Ignored where threads are more than CPUs.
            spin_us: how long a thread that waits spins before it sleeps, in microseconds; 0 where threads are more
                than CPUs.
            windows: where ranks of one program exchange what they have, and how they meet: (address of twice as many
                windows as there are ranks, which rank this is, ranks, meeting). A meeting that is a function is called
                with bytes and turn (0 or 1), and returns when the windows of that turn are those of all ranks.
            guarded: for tests: every region has pages around it that nobody can touch; external ones are copied.

        Raises:
            InputError: a malformed plan, which is named; functions or externals that are not what it needs.
            MemoryError: too large a plan for this machine.
            RuntimeError: a thread could not be started.
        """

    def run(self, entry: str, scalars: Sequence[int] = ()) -> list[int]:
        """Executes an entry and returns its outputs. Other Python threads run meanwhile.

        Raises:
            InputError: an unknown entry, a wrong number of scalars, a division by 0, a scalar beyond 64 bits, or a
                pointer that leaves its region. Memory then holds whatever was written until then; the core can go on.
            RankError: another rank of the program is gone; the core cannot go on.
            KeyboardInterrupt, or what else a signal handler or a hook raises; likewise.
        """

    def region(self, name: str, thread: int = 0) -> tuple[int, int]:
        """Address and bytes of a region; of a private one, the copy of a thread.

        The memory lives as long as the core. Raises InputError for an unknown name or thread.
        """

    def reset(self, regions: Sequence[str] | None = None) -> None:
        """Zeroes these regions, or all that are not external. Raises InputError for an unknown or external one."""

    def registers(self) -> list[int]:
        """The registers of the calling thread, as they are in a hook or were at the end of an entry."""

    def trace(self, on: bool, capacity: int = 65536) -> None:
        """Begins a new trace that keeps the latest `capacity` events of each thread, or ends it.

        While it is on, every run of a plan takes some 50 ns more per thread.
        """

    def events(self) -> list[tuple[int, int, int, int]]:
        """(label, thread, start, end) of the trace by start, in ns of `time.monotonic_ns`.

        A label is an index into `labels`; -1 is a wait at a barrier, -2 one for other ranks.
        """

    def totals(self) -> list[tuple[int, int, int, int]]:
        """(label, thread, count, ns) of everything that was traced, also of what `events` keeps no longer."""

    def set_hook(self, labels: Sequence[str] | None, hook: Callable[[str, int], object] | None) -> None:
        """Has ``hook(label, run)`` called after every run of these stages (None: of all), while all threads wait.

        A run is an index into the plan's runs. None in place of the hook takes it away. Raises InputError for a stage
        that the plan does not have.
        """

    @property
    def allocated_bytes(self) -> int:
        """Of the arena and of what every thread has for itself; only what was touched is resident."""

    @property
    def threads(self) -> int: ...
    @property
    def team(self) -> Team:
        """Its threads, for whoever has work between two entries: `run` waits for the end of that."""

    @property
    def labels(self) -> list[str]: ...

class BatchSampler:
    """Picks tokens as `sscc.runtime.session.sampling` defines them, which checks what it gives.

    One call at a time: what comes while another thread is in a function raises UsageError.
    """

    def __init__(self, slots: int, vocab_size: int, *, team: Team | None = None, width: int = 16) -> None:
        """Makes a sampler for logits [slots, vocab_size].

        Args:
            team: shares the slots of a pick that is worth it. Where it does another job, or belongs to the parent of
                this process, the calling thread picks alone. Either gives the same results.
            width: at most so many f32 are in a vector of the CPU: 16, 8 or 4. Each gives the same results.

        Raises UsageError for a size below 1 and for a vocabulary that does not fit in 31 bits, MemoryError for one too
        large for this machine.
        """

    def start(
        self,
        slot: int,
        prompt: NDArray[np.int64],
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        seed: int,
        logit_bias: Sequence[tuple[int, float]],
        logprobs: int | None,
    ) -> None:
        """Begins a sequence in a slot. Raises UsageError for a slot, a token or `logprobs` out of range."""

    def stop(self, slot: int) -> None:
        """Ends the slot's sequence, if any. Raises UsageError for a slot out of range."""

    def pick(
        self,
        logits: NDArray[np.float32] | NDArray[np.uint16],
        active: NDArray[np.bool_],
        tokens: NDArray[np.int64],
        allowed: NDArray[np.uint32] | None = None,
        constrained: NDArray[np.bool_] | None = None,
    ) -> int | None:
        """Write the next token of every active slot, and -1 for the others, into `tokens`.

        `logits` of uint16 are the bits of bf16. All arrays are C-contiguous. Other Python threads run meanwhile.

        Args:
            allowed: [slots, ceil(vocab_size / 32)]; bit t % 32 of word t // 32 allows token t to a constrained slot.
            constrained: [slots]; given where `allowed` is.

        Returns:
            None; or the first active slot whose largest logit is NaN or infinite, and nothing was picked.

        Raises:
            UsageError: other shapes, an active slot without a sequence, or a constrained one that may pick no token.
        """

    def kept(self, slot: int, logits: NDArray[np.float32] | NDArray[np.uint16]) -> list[tuple[int, float]]:
        """The tokens, rising, that the slot's next draw chooses from, with their weights; the likeliest has 1.

        Of a greedy slot its one token. Raises UsageError as `pick` does, InputError for logits that are not finite.
        """

    def logprobs(self, slot: int) -> tuple[int, float, list[tuple[int, float]]] | None:
        """Token, logprob and the likeliest tokens of the slot's last pick; None where there are none."""

class TokenTable:
    """The tokens that slots of an engine have made, in arrays that Python has too; a step is one call."""

    def __init__(
        self, history: NDArray[np.int32], counts: NDArray[np.int64], next_tokens: NDArray[np.int64]
    ) -> None:
        """Works on `history` [B, N], `counts` [B] (tokens of each slot in it) and `next_tokens` [B] (the newest ones).

        Raises UsageError for arrays of other sizes.
        """

    def start(self, slot: int, most: int, ends: list[int]) -> None:
        """A sequence begins in a slot: it ends with one of the tokens `ends`, or with its token number `most`.

        Raises UsageError for a slot out of range and for more tokens than N.
        """

    def append(
        self,
        tokens: NDArray[np.int64],
        given: NDArray[np.bool_],
        now: float,
        gaps: NDArray[np.float64],
        finish: NDArray[np.int8],
    ) -> tuple[int, int]:
        """Gives the slots in `given` [B] their `tokens` [B].

        Sets the beginning of `gaps` [B] to what passed between each one's newest token before and `now`, and all of
        `finish` [B]: 1 where the token ends the sequence, 2 where the limit does, else 0.
        Returns how many slots were given a token, and how many have ended. Raises UsageError for arrays of other
        sizes, and where a slot has all its tokens already.
        """
