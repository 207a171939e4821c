"""Plan under construction: its registers, regions, functions and runs, and the items of each entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Program, Scalar, ScalarOperand, Tensor
from sscc.ir.sizes import ALIGNMENT, align, dense_strides
from sscc.runtime.backends.cpu.codegen.bodies import NativeBody, Variant, lower_body
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import Module
from sscc.runtime.backends.cpu.plan import plan as plans
from sscc.runtime.backends.cpu.plan.barriers import Pending, Span
from sscc.runtime.backends.cpu.plan.collectives import windows_of
from sscc.runtime.backends.cpu.plan.storage import Packings
from sscc.runtime.backends.cpu.plan.weights import aliased_params

WORKSPACE, PRIVATE, OUTBOX, INBOX = "workspace", "private", "outbox", "inbox"
"""Regions besides `plan.MEMORY`: buffers and scratch of stages, private memory of each thread and, with several ranks,
the windows for sending and receiving."""


class PlanDraftErrors(ErrorKind):
    SCALAR_NOT_SET = InputError, "the schedule is malformed: scalar {scalar!r} is used before it is set"
    TABLE_NOT_CONSTANT = InputError, "the schedule is malformed: a lookup reads a table that is not constant"


class PlanDraft:
    """Parts of a plan that its entries share.

    Args:
        program: schedule.
        features: CPU features that the code may use.
        module: module to which functions are added.
        packed: packings of the weights.
    """

    def __init__(self, program: Program, features: Features, module: Module, packed: Packings) -> None:
        self.program = program
        self.features = features
        self.module = module
        self.packed = packed
        self.tensors = {t.name: t for t in program.tensors}
        self.bodies = {b.name: b for b in program.bodies}
        self.kernels = {k.name: k for k in program.kernels}
        self.aliased = aliased_params(program)
        self.workspace_bytes = self.private_bytes = self.scratch_bytes = ALIGNMENT
        self.runs: list[plans.PlanRun] = []
        memory = plans.PlanRegion(plans.MEMORY, "arena", program.arena_bytes)
        self._regions: dict[str, plans.PlanRegion] = {plans.MEMORY: memory}
        for tensor in program.tensors:
            if tensor.role in ("weight", "constant"):
                self._regions[tensor.name] = plans.PlanRegion(tensor.name, "external", self._stored_bytes(tensor))
        self.windows = windows_of(program.grid, program.kernels, program.bodies)
        boxes = () if self.windows is None else (OUTBOX, INBOX)
        self._region_numbers = {name: i for i, name in enumerate([*self._regions, WORKSPACE, PRIVATE, *boxes])}
        self._registers = 0
        self._constants: dict[int, int] = {}
        self._tables: dict[tuple[int, ...], int] = {}
        self._functions: dict[str, int] = {}
        self._labels: dict[str, int] = {}
        self._codes: dict[Variant, NativeBody] = {}
        self._grid: list[int] = []

    def finish(self, entries: tuple[plans.PlanEntry, ...]) -> plans.NativePlan:
        """Return the plan with these entries."""
        shared = plans.PlanRegion(WORKSPACE, "arena", self.workspace_bytes)
        private = plans.PlanRegion(PRIVATE, "private", self.private_bytes)
        exchanged: tuple[plans.PlanRegion, ...] = ()
        if self.windows is not None:
            nbytes, ranks = self.windows.nbytes, self.windows.ranks
            exchanged = plans.PlanRegion(OUTBOX, "outbox", nbytes), plans.PlanRegion(INBOX, "inbox", nbytes * ranks)
        return plans.NativePlan(
            regions=(*self._regions.values(), shared, private, *exchanged),
            functions=tuple(self._functions),
            labels=tuple(self._labels),
            runs=tuple(self.runs),
            constants=(
                *((register, value) for value, register in self._constants.items()),
                *((first + i, value) for table, first in self._tables.items() for i, value in enumerate(table)),
            ),
            registers=self._registers,
            scratch_bytes=self.scratch_bytes,
            entries=entries,
        )

    def _stored_bytes(self, tensor: Tensor) -> int:
        packing = self.packed.get(tensor.name)
        return tensor.nbytes if packing is None else packing.stored_bytes(tensor.elements)

    # -- registers

    def register(self) -> int:
        """Return a new register."""
        self._registers += 1
        return self._registers - 1

    def constant(self, value: int) -> int:
        """Return the register that holds a constant."""
        if value not in self._constants:
            self._constants[value] = self.register()
        return self._constants[value]

    def operand(self, operand: ScalarOperand, env: Mapping[str, int]) -> int:
        """Return the register of a constant or of a named scalar. Raises InputError for a scalar that is not set."""
        if isinstance(operand, int):
            return self.constant(operand)
        if operand not in env:
            raise PlanDraftErrors.SCALAR_NOT_SET(scalar=operand)
        return env[operand]

    def table(self, numbers: Sequence[ScalarOperand]) -> int:
        """Return the first of the consecutive registers that hold `numbers`. Raises InputError if a number is not
        constant."""
        key = tuple(number for number in numbers if isinstance(number, int))
        if len(key) < len(numbers):
            raise PlanDraftErrors.TABLE_NOT_CONSTANT()
        if key not in self._tables:
            self._tables[key] = self._registers
            self._registers += len(key)
        return self._tables[key]

    def compute(self, op: str, *arguments: int) -> plans.Compute:
        """Return an operation whose result is a new register."""
        return plans.Compute(op, self.register(), arguments)

    def grid(self, rank: int) -> list[int]:
        """Return the registers with a firing's indices in a grid, which all runs share."""
        while len(self._grid) < rank:
            self._grid.append(self.register())
        return self._grid[:rank]

    # -- names

    def region(self, name: str) -> int:
        return self._region_numbers[name]

    def function(self, name: str) -> int:
        return self._functions.setdefault(name, len(self._functions))

    def label(self, name: str) -> int:
        return self._labels.setdefault(name, len(self._labels))

    def code(self, variant: Variant) -> NativeBody:
        """Return the functions of a body variant, generated on the first call."""
        if variant not in self._codes:
            code = lower_body(self.module, f"{variant.body.name}.v{len(self._codes)}", variant, self.features)
            self.scratch_bytes = max(self.scratch_bytes, align(code.private_bytes))
            self._codes[variant] = code
        return self._codes[variant]


class Track:
    """State of an entry under construction: the pending memory accesses since the last barrier, and registers with the
    rank's position.

    Args:
        draft: plan under construction.
        rank: register with the number of this rank, an extra input of entries with several ranks; None for one rank.
    """

    def __init__(self, draft: PlanDraft, rank: int | None) -> None:
        self.draft = draft
        self.pending = Pending()
        self._rank = rank
        self._first: dict[tuple[int, ...], int] = {}
        self._places: dict[tuple[int, ...], int] = {}
        self.preface: list[plans.Item] = []
        """Items before all others, which compute the registers with this rank's position in the grid."""

    def first_rank(self, axes: Sequence[int]) -> int | None:
        """Return the register with the first rank of this rank's group along `axes`; None if it is 0 on all ranks."""
        grid, key = self.draft.program.grid, tuple(axes)
        if self._rank is None or len(axes) == len(grid):
            return None
        if key not in self._first:
            total = self.draft.constant(0)
            for axis, (size, stride) in enumerate(zip(grid, dense_strides(grid), strict=True)):
                if axis not in axes:
                    row = self._before("floordiv", self._rank, self.draft.constant(stride))
                    place = self._before("mod", row, self.draft.constant(size))
                    total = self._before("add", total, self._before("mul", place, self.draft.constant(stride)))
            self._first[key] = total
        return self._first[key]

    def place(self, axes: Sequence[int]) -> int:
        """Return the register with this rank's index in its group along `axes`."""
        assert self._rank is not None  # a program of one rank has no collectives
        key = tuple(axes)
        if key not in self._places:
            grid = self.draft.program.grid
            ranks, total = dense_strides(grid), self.draft.constant(0)
            for axis, step in zip(axes, dense_strides([grid[axis] for axis in axes]), strict=True):
                row = self._before("floordiv", self._rank, self.draft.constant(ranks[axis]))
                at = self._before("mod", row, self.draft.constant(grid[axis]))
                total = self._before("add", total, self._before("mul", at, self.draft.constant(step)))
            self._places[key] = total
        return self._places[key]

    def _before(self, op: str, *arguments: int) -> int:
        """Add an operation to the preface. Return the register of its result."""
        item = self.draft.compute(op, *arguments)
        self.preface.append(item)
        return item.target

    def meet(self, nbytes: int) -> list[plans.Item]:
        """Return a meeting of all ranks, which is also a barrier of their threads."""
        self.pending = Pending()
        return [plans.Meet(nbytes)]

    def scalar(self, item: Scalar, env: dict[str, int]) -> plans.Item:
        """Return the computation of a scalar of the schedule, and record its register in `env`."""
        if item.op == "lookup":
            index, *table = item.args
            compute = self.draft.compute("lookup", self.draft.operand(index, env), self.draft.table(table), len(table))
        else:
            compute = self.draft.compute(item.op, *(self.draft.operand(a, env) for a in item.args))
        env[item.name] = compute.target
        return compute

    def touch(self, reads: set[Span], writes: set[Span]) -> list[plans.Item]:
        """Record accesses. Return the barrier that they require before them, if any."""
        items = self.settle() if self.pending.conflicts(reads, writes) else []
        self.pending.add(reads, writes)
        return items

    def settle(self) -> list[plans.Item]:
        """Return a barrier if there has been an access since the last one."""
        if not self.pending:
            return []
        self.pending = Pending()
        return [plans.Barrier()]

    def loop(self, index: int, lower: int, upper: int, make: Callable[[], list[plans.Item]]) -> list[plans.Item]:
        """Return a loop with a barrier before it and at the end of its body, so that accesses of different iterations
        need not be compared."""
        before = self.settle()
        body = make()
        return [*before, plans.PlanLoop(index, lower, upper, (*body, *self.settle()))]
