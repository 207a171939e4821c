"""The compiled module (runtime/backends/cpu/native/, built by CMakeLists.txt): facts about the machine, the native
interpreter, and the sampler."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

compiler: str
"""Name of the C++ compiler that built the module, such as "GNU 12.2.0"."""

def architecture() -> str:
    """Return "x86_64", "aarch64" or "unknown"."""

def cpu_features() -> list[str]:
    """Return the vector extensions that the CPU has and the operating system saves, named as in /proc/cpuinfo. Requests
    tile registers (AMX) for this process; they are included only if Linux grants them."""

def affinity_threads() -> int:
    """Return the number of CPUs in the affinity mask of the calling thread, at least 1."""

def cpu_quota() -> float | None:
    """Return the CPU time in CPUs that the cgroups (v2 or v1) of this process allow; None if unlimited."""

def usable_threads() -> int:
    """Return the useful number of threads: the affinity mask limited to the quota (rounded up), at least 1."""

def cache_sizes() -> dict[str, int]:
    """Return the bytes of the caches that one CPU sees, with keys "l1d", "l2", "l3"; an unknown level has no key."""

def page_size() -> int:
    """Return the size of a memory page in bytes."""

def total_memory() -> int:
    """Return the bytes of physical memory."""

def memory_limit() -> int | None:
    """Return the bytes that the cgroups of this process allow; None if that is not less than the physical memory."""

def read_bandwidth(threads: int, nbytes: int, repeats: int = 3) -> float:
    """Return the rate in GB/s (1e9 bytes/s) at which `threads` threads together read `nbytes` bytes once, the best of
    `repeats` passes.

    Raises ValueError for a count below 1 or a buffer below 64 bytes per thread; MemoryError; and RuntimeError if no
    more threads can be started.
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

    The tables are those of `quantized_packing`. Raises UsageError if arrays and tables do not match.
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
    """Write the stored parts of packed panels into zeroed arrays [rows, bytes]: the inverse of `pack_panels`, with the
    same errors."""

class Team:
    """Threads that execute the same job at the same time, including the calling thread.

    A team runs one job at a time, which any thread may submit. `Core.team` is the team of a core.
    """

    def __init__(self, threads: int, *, pin: bool | None = None, spin_us: float = 50.0) -> None:
        """Start the threads. Arguments and errors are those of `Core`."""

    @property
    def threads(self) -> int: ...

class Meeting:
    """Meetings (barriers) of the ranks of a program in memory that all of them share, as threads or processes."""

    def __init__(self, address: int, rank: int, ranks: int, *, timeout: float = 6.0, spin_us: float = 0.0) -> None:
        """Join the meetings as one of several ranks.

        Args:
            address: address of `nbytes` bytes of shared memory, zeroed at the start and aligned to a cache line.
            timeout: seconds that a rank waits for another one before it ends the meetings of all.
            spin_us: time in microseconds that it spins before it sleeps.

        Raises InputError for a rank out of range, and an invalid address.
        """

    @staticmethod
    def nbytes(ranks: int) -> int:
        """Return the bytes that meetings of `ranks` ranks need."""

    def meet(self) -> None:
        """Return when all ranks have made the same number of calls. Raises RankError if one of them is gone."""

    def fail(self, rank: int) -> None:
        """End all meetings of all ranks with the error that `rank` has failed; only the first such call has an
        effect."""

    def stall(self, rank: int) -> None:
        """End all meetings with the error that `rank` does not answer, like `fail`."""

    def leave(self, rank: int) -> None:
        """End all meetings with the error that `rank` has ended, like `fail`."""

class Core:
    """The native interpreter: a plan (`plan`), its memory, and a team of threads.

    One call at a time: a call from another thread or a hook while an entry runs raises UsageError, except `region` and
    `registers`. A core does not work in a child process made by fork().
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
        """Create a core.

        Args:
            plan: encoded NativePlan.
            functions: addresses of the functions, in the plan's order; they must stay valid as long as the core lives.
            externals: (name, address, bytes) of every external region, which must stay valid too.
            threads: number of threads, at most 1024, including the thread that calls `run`.
            pin: True to keep each worker on a CPU of its own; None to do so if there are as many threads as CPUs.
                Ignored if there are more threads than CPUs.
            spin_us: time in microseconds that a waiting thread spins before it sleeps; 0 if there are more threads than
                CPUs.
            windows: exchange between the ranks of a program: (address of twice as many windows as ranks, number of this
                rank, number of ranks, meeting). A meeting that is a function is called with bytes and turn (0 or 1),
                and returns when all ranks have written the windows of that turn.
            guarded: for tests: surround every region with inaccessible pages, and copy external regions.

        Raises:
            InputError: the plan is malformed, with the place; or functions or externals do not match the plan.
            MemoryError: the plan is too large for this machine.
            RuntimeError: a thread could not be started.
        """

    def run(self, entry: str, scalars: Sequence[int] = ()) -> list[int]:
        """Execute an entry and return its outputs. Other Python threads can run in the meantime.

        Raises:
            InputError: an unknown entry, a wrong number of scalars, a division by 0, a scalar beyond 64 bits, or a
                pointer outside of its region. Memory keeps what was written before, and the core stays usable.
            RankError: another rank of the program is gone; the core is no longer usable.
            KeyboardInterrupt, or any exception of a signal handler or a hook; the core is no longer usable.
        """

    def region(self, name: str, thread: int = 0) -> tuple[int, int]:
        """Return the address and the bytes of a region; for a private region, of the copy of a thread.

        The memory lives as long as the core. Raises InputError for an unknown name or thread.
        """

    def reset(self, regions: Sequence[str] | None = None) -> None:
        """Zero these regions, or all that are not external. Raises InputError for an unknown or external region."""

    def registers(self) -> list[int]:
        """Return the registers of the calling thread: in a hook the current values, otherwise those at the end of an
        entry."""

    def trace(self, on: bool, capacity: int = 65536) -> None:
        """Start a new trace that keeps the latest `capacity` events of each thread, or stop tracing.

        Tracing adds about 50 ns per thread to every run of a plan.
        """

    def events(self) -> list[tuple[int, int, int, int]]:
        """Return the events of the trace in order of start: (label, thread, start, end), in ns of `time.monotonic_ns`.

        A label is an index into `labels`; -1 is a wait at a barrier, -2 a wait for other ranks.
        """

    def totals(self) -> list[tuple[int, int, int, int]]:
        """Return (label, thread, count, ns) of all traced events, including those that `events` no longer has."""

    def set_hook(self, labels: Sequence[str] | None, hook: Callable[[str, int], object] | None) -> None:
        """Set a function ``hook(label, run)`` to be called after every run of these stages (None: all), while all
        threads wait.

        A run is an index into the plan's runs. A hook of None removes the hook. Raises InputError for a stage that the
        plan does not have.
        """

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the arena and of all threads' private memory; only touched pages are resident."""

    @property
    def threads(self) -> int: ...
    @property
    def team(self) -> Team:
        """Threads of the core, for work between two entries: `run` waits until that work is done."""

    @property
    def labels(self) -> list[str]: ...

class BatchSampler:
    """Sampler of tokens, as `sscc.runtime.session.sampling` defines them, which also checks the arguments.

    One call at a time: a call while another thread is in a method raises UsageError.
    """

    def __init__(self, slots: int, vocab_size: int, *, team: Team | None = None, width: int = 16) -> None:
        """Create a sampler for logits [slots, vocab_size].

        Args:
            team: threads that share the slots of a large pick. If the team is busy, or belongs to the parent of this
                process, the calling thread picks alone, with the same results.
            width: maximum number of f32 in a vector of the CPU: 16, 8 or 4. The results are the same.

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
        """Begin a sequence in a slot. Raises UsageError for a slot, a token or `logprobs` out of range."""

    def stop(self, slot: int) -> None:
        """End the slot's sequence, if any. Raises UsageError for a slot out of range."""

    def pick(
        self,
        logits: NDArray[np.float32] | NDArray[np.uint16],
        active: NDArray[np.bool_],
        tokens: NDArray[np.int64],
        allowed: NDArray[np.uint32] | None = None,
        constrained: NDArray[np.bool_] | None = None,
    ) -> int | None:
        """Write the next token of every active slot, and -1 for the others, into `tokens`.

        `logits` of uint16 are the bits of bf16. All arrays are C-contiguous. Other Python threads can run in the
        meantime.

        Args:
            allowed: [slots, ceil(vocab_size / 32)]; bit t % 32 of word t // 32 allows token t to a constrained slot.
            constrained: [slots], True for constrained slots; required with `allowed`.

        Returns:
            None; or the first active slot whose largest logit is NaN or infinite. Nothing is picked then.

        Raises:
            UsageError: other shapes, an active slot without a sequence, or a constrained one that may pick no token.
        """

    def kept(self, slot: int, logits: NDArray[np.float32] | NDArray[np.uint16]) -> list[tuple[int, float]]:
        """Return the tokens, in ascending order, from which the slot's next draw chooses, with their weights; the most
        likely has 1.

        A greedy slot has one token. Raises UsageError as `pick` does, InputError for logits that are not finite.
        """

    def logprobs(self, slot: int) -> tuple[int, float, list[tuple[int, float]]] | None:
        """Return token, logprob and the most likely tokens of the slot's last pick; None if there are none."""

class TokenTable:
    """Generated tokens of an engine's slots, in arrays shared with Python; a step is one call."""

    def __init__(
        self, history: NDArray[np.int32], counts: NDArray[np.int64], next_tokens: NDArray[np.int64]
    ) -> None:
        """Use `history` [B, N], `counts` [B] (the number of tokens of each slot in it) and `next_tokens` [B] (the
        newest ones).

        Raises UsageError for arrays of other sizes.
        """

    def start(self, slot: int, most: int, ends: list[int]) -> None:
        """Begin a sequence in a slot. It ends with one of the tokens `ends`, or after `most` tokens.

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
        """Append `tokens` [B] to the slots in `given` [B].

        Writes the time from each of these slots' previous token to `now` to the beginning of `gaps` [B], and all of
        `finish` [B]: 1 if the token ends the sequence, 2 if the limit does, otherwise 0. Returns the number of slots
        with a new token, and the number of those that have ended. Raises UsageError for arrays of other sizes, and if a
        slot has reached its limit already.
        """


def look_up(
    tokens: NDArray[np.int32],
    counts: NDArray[np.int64],
    most: NDArray[np.int64],
    longest: int,
    expected: NDArray[np.int64],
    draft: NDArray[np.int64],
    drafted: NDArray[np.int64],
    matched: NDArray[np.int64],
) -> None:
    """Draft the next tokens of sequences: those that followed where the sequence has the longest suffix in common with
    its end, at most `longest` tokens; of several such positions the one closest to an expected one.

    Args:
        tokens: [B, T], the sequences; a negative token separates texts.
        counts: [B], number of tokens of each sequence.
        most: [B], number of tokens to draft at most; 0 for none.
        expected: [B], position of the token that the last one is expected to repeat; -1 for none, which stands for the
            latest. Without a common suffix the draft begins behind this position. Replaced by the position that was
            taken, or -1.
        draft: [B, V], into which the drafted tokens are written.
        drafted: [B], into which their numbers are written.
        matched: [B], into which the lengths of the suffixes are written; 0 without a place.

    Raises UsageError for arrays of other sizes.
    """

