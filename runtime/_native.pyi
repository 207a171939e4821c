"""The compiled module (runtime/native/, built by CMakeLists.txt): what the machine offers, and how fast it reads."""

compiler: str
"""Which C++ compiler built the module, e.g. "GNU 12.2.0"."""

def architecture() -> str:
    """"x86_64", "aarch64" or "unknown"."""

def cpu_features() -> list[str]:
    """Vector extensions that the CPU has and the operating system saves, named as in /proc/cpuinfo."""

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
