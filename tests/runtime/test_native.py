"""Facts about the machine from the compiled module, compared with those that Python can read."""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

import pytest

from sscc.runtime.support import _native as native

MIB = 1 << 20


def test_architecture_is_the_one_python_sees() -> None:
    assert native.architecture() == {"arm64": "aarch64"}.get(platform.machine(), platform.machine())


def test_features_are_those_of_cpuinfo() -> None:
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        pytest.skip("no /proc/cpuinfo here")
    lines = [line for line in cpuinfo.read_text().splitlines() if line.lower().startswith(("flags", "features"))]
    if not lines:
        pytest.skip("/proc/cpuinfo lists no features")
    known = set(lines[0].partition(":")[2].split())
    features = native.cpu_features()
    assert len(features) == len(set(features))
    assert set(features) <= known
    for name in ("fma", "avx2", "avx512f", "asimd", "sve"):
        assert (name in features) == (name in known), name
    if "amx_tile" in known and "amx_tile" not in features:
        pytest.skip("the kernel keeps tile registers from this process")


def test_threads_follow_the_affinity_mask() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinity masks here")
    mask = os.sched_getaffinity(0)
    seen: list[tuple[int, int]] = []

    def pinned() -> None:
        os.sched_setaffinity(0, {min(mask)})  # of this thread only
        seen.append((native.affinity_threads(), native.usable_threads()))

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()
    assert native.affinity_threads() == len(mask)
    assert seen == [(1, 1)]


def test_usable_threads_respect_the_quota() -> None:
    quota = native.cpu_quota()
    assert quota is None or quota > 0
    assert 1 <= native.usable_threads() <= native.affinity_threads()
    if quota is not None:
        assert native.usable_threads() < quota + 1


def test_sizes_are_plausible() -> None:
    assert native.page_size() == os.sysconf("SC_PAGE_SIZE")
    assert native.total_memory() == os.sysconf("SC_PHYS_PAGES") * native.page_size()
    limit = native.memory_limit()
    assert limit is None or 0 < limit < native.total_memory()
    caches = native.cache_sizes()
    assert set(caches) <= {"l1d", "l2", "l3", "l4"}
    sizes = [caches[name] for name in sorted(caches)]
    assert sizes == sorted(sizes)
    assert all(size >= 4096 for size in sizes)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bandwidth_is_measured(threads: int) -> None:
    speed = native.read_bandwidth(threads, 8 * MIB + 200, 2)  # a size that no slice divides
    assert 0.05 < speed < 10_000


@pytest.mark.parametrize(("threads", "nbytes", "repeats"), [(0, MIB, 1), (-1, MIB, 1), (1, MIB, 0), (2, 127, 1)])
def test_impossible_measurements_are_refused(threads: int, nbytes: int, repeats: int) -> None:
    with pytest.raises(ValueError, match=r"at least|smaller than"):
        native.read_bandwidth(threads, nbytes, repeats)


def test_memory_that_is_not_there_is_refused() -> None:
    with pytest.raises(MemoryError):
        native.read_bandwidth(1, 1 << 60, 1)


def test_other_threads_run_during_a_measurement() -> None:
    ticks = 0
    done = threading.Event()

    def count() -> None:
        nonlocal ticks
        while not done.wait(0.001):
            ticks += 1

    thread = threading.Thread(target=count)
    thread.start()
    native.read_bandwidth(1, 128 * MIB, 3)
    done.set()
    thread.join()
    assert ticks > 0
