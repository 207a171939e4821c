"""The schedule, the last level of IR: the typed program that the compiler emits and the interpreters execute.

A `Program` needs no MLIR to run. It holds

* **tensors**: named regions with a shape, a dtype, a memory tier and an address;
* **bodies**: what one firing of a stage computes, on tiles of fixed shape;
* **kernels**: what the machine loads and launches: control around *pipelines*, each a graph of stages joined by
  on-chip buffers of bounded depth;
* **entries** (`prefill`, `decode`): control (loops, branches, scalar arithmetic) around kernel launches, whose
  arguments are strided views of tensors.

Steps of the algorithm are records of `sscc.ir.operations`, and mean what the operations of the `kv` dialect do: a score
is the product of a query and a key times `scale`, capped where there is a `softcap`, and a softmax is also over the
head's number of `sink_logits`, if there are any.

The file form is canonical JSON (`Program.to_json`): keys sorted, no spaces, so that equal programs are
equal bytes. Unknown fields, kinds or operations are refused at load.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, Literal, Union, get_args

from sscc.ir.choices import ON_CHIP, Tier
from sscc.ir.errors import ErrorKind, InputError, quoted
from sscc.ir.file_form import decode, encode, shown
from sscc.ir.operations import OPERATIONS
from sscc.ir.opspec import Op


class ScheduleErrors(ErrorKind):
    """Schedules that cannot be read, and entries that they do not have."""

    NO_ENTRY = InputError, "the schedule has no entry {entry!r}, it has {entries!r}"
    NOT_JSON = InputError, "the schedule is not JSON: {cause}"
    FORMAT_VERSION = InputError, "the schedule has format version {version!r}, this sscc reads {known}"
    TOO_DEEP = InputError, "the schedule is malformed: its loops and branches are nested too deeply"


FORMAT_VERSION = 11
DTYPE_BYTES = {"f32": 4, "bf16": 2, "i64": 8, "i8": 1, "i1": 1}

Dtype = Literal["f32", "bf16", "i64", "i8", "i1"]
Role = Literal["weight", "constant", "input", "output", "state", "temporary"]
ParamAccess = Literal["read", "write", "update"]
When = Literal["each", "first", "last"]


# ---------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Tensor:
    """A named region. Roles: `weight` (bytes from a checkpoint), `constant` (bytes computed from the model's
    config), `input`/`output` (the caller's, per call), `state` (zero at the start, kept between calls),
    `temporary` (undefined at the start of a call; addresses may be shared).

    `sources` names the checkpoint's tensors (or constants) that make up a weight: one of this shape, or, for the
    layers of a looped kernel, N that are stacked to shape [N, ..]. Interpreters are given weights by `name`.

    `encoding` says how each source becomes the stored tensor: "" as it is (floating dtypes are converted), or a part of
    a weight format, as bytes of i8: "int8:32/values", "int4:32:zero-point/zeros", "Q4_K/blocks", each with
    "/transposed" where the source is [K, N], and with "/ordered" where the columns are stored in another order, which
    is the source with "#order" after its name, i64 [K]. `sscc.ir.weight_formats` has the formats.

    `cut` says which part of the whole weight or constant a rank has, as `sscc.ir.sharding.Cut` is written; "" for all
    of it. `shape` is that of the part.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    role: Role
    tier: Tier
    address: int
    sources: tuple[str, ...] = ()
    encoding: str = ""
    cut: str = ""

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]


# ---------------------------------------------------------------------------------------- control and views

ScalarOperand = Union[int, str]  # an integer literal, or the name of a scalar


@dataclass(frozen=True)
class View:
    """A strided window of a region: element (i0, i1, ..) sits at ``offset + sum(terms) + sum(i * stride)``.

    The region is a tensor (in a launch), a kernel's parameter or one slot of a buffer (in a stage's port), or a
    local (in a body). Offsets and strides count elements of the region, which is dense and row-major: of a parameter
    that a launch shows with other strides, ports take the whole. `terms` are (scalar name, coefficient) pairs, the
    only dynamic part.
    """

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Scalar:
    """``name = op(args)`` on 64-bit integers; comparisons give 0 or 1.

    Operations: add sub mul floordiv ceildiv mod min max eq ne lt le gt ge and or select; and lookup, of an index and
    the numbers of a table, which the index must be within.
    """

    kind: ClassVar[str] = "scalar"
    name: str
    op: str
    args: tuple[ScalarOperand, ...]


@dataclass(frozen=True)
class Launch:
    """One call of a kernel: a view per tensor parameter, an operand per scalar parameter, both in order."""

    kind: ClassVar[str] = "launch"
    kernel: str
    args: tuple[View, ...]
    scalars: tuple[ScalarOperand, ...] = ()


@dataclass(frozen=True)
class For:
    """``for index in range(lower, upper): body``."""

    kind: ClassVar[str] = "for"
    index: str
    lower: ScalarOperand
    upper: ScalarOperand
    body: tuple[Item, ...]


@dataclass(frozen=True)
class If:
    """``if condition != 0: body``."""

    kind: ClassVar[str] = "if"
    condition: ScalarOperand
    body: tuple[Item, ...]


Item = Union["Scalar", "Launch", "Pipeline", "For", "If"]
"""Launches stand in entries only, pipelines in kernels only."""


@dataclass(frozen=True)
class Entry:
    """What a caller can run. Inputs and outputs are tensor names; scalars are 64-bit integers."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalar_inputs: tuple[str, ...]
    scalar_outputs: tuple[ScalarOperand, ...]
    body: tuple[Item, ...]


# --------------------------------------------------------------------------------------- bodies and their steps


@dataclass(frozen=True)
class Param:
    """A tensor parameter of a kernel or of a body, always seen as a strided view of this shape."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    access: ParamAccess


@dataclass(frozen=True)
class Local:
    """A value that lives inside one firing of a body, between two of its steps: dense, undefined at the start."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True)
class Window:
    """Another name for a strided view of a local or of a dense parameter of a body; without dynamic terms."""

    name: str
    view: View


@dataclass(frozen=True)
class Access:
    """An affine access map: which element of `param` a point of the iteration space touches.

    `param` names a parameter, a local or a window of the body. `map` has one row per dimension of it: a
    coefficient per iteration dimension, then a constant. With `indirect` the place along one axis is read from a tensor
    instead, and that axis has a row of zeros. Only the second operand of a product may have it; vector programs have
    `load`, whose indices they may compute.
    """

    param: str
    map: tuple[tuple[int, ...], ...]
    indirect: Indirect | None = None


@dataclass(frozen=True)
class Indirect:
    """Where a point of the iteration space is along `axis` of what it touches: at the number that it finds in an i64
    tensor by `index`, which has no indirect axis itself. A run in which the number is not one of 0 .. size - 1 of the
    axis ends with an error."""

    axis: int
    index: Access


@dataclass(frozen=True)
class Instr:
    """One scalar operation of a vector program, named as in MLIR's arith and math dialects.

    `args` name inputs (``in0``..), earlier results, scalar parameters of the body, or are literals.
    Special operations: ``index`` (args: an iteration dimension; gives i64), ``load`` (args: a parameter's
    name, then one i64 index per dimension), ``const`` (args: a literal). `type` is the result's dtype.
    Integer division by 0 is division by 1. `fptosi` and `fptoui` round towards zero; beyond the integers of the type
    they give the nearest one, and 0 for NaN.
    """

    name: str
    op: str
    args: tuple[Union[int, float, str], ...]
    type: str


@dataclass(frozen=True)
class Vector:
    """An element-wise program over `dims`: out = result(body(inputs)) at every point.

    Written once per point; with loads in the body it is a gather.
    """

    kind: ClassVar[str] = "vector"
    dims: tuple[int, ...]
    inputs: tuple[Access, ...]
    output: Access
    body: tuple[Instr, ...]
    result: str


@dataclass(frozen=True)
class Reduction:
    """A vector program whose results are combined over the dimensions in `reduce`, starting from `init`.

    `combine` is addf, mulf, maximumf or minimumf; accumulation is in f32 (or wider).
    """

    kind: ClassVar[str] = "reduction"
    dims: tuple[int, ...]
    reduce: tuple[int, ...]
    inputs: tuple[Access, ...]
    output: Access
    body: tuple[Instr, ...]
    result: str
    combine: str
    init: float


@dataclass(frozen=True)
class Product:
    """out[..] = sum over `reduce` of a[..] * b[..], accumulated in f32 (or wider), rounded once on writing.

    `b` may have an indirect axis, as where each row goes through the expert whose number a tensor has:
    out[s, n] = sum over k of a[s, k] * b[expert[s], n, k]. Only the slices of b that are named are read.
    """

    kind: ClassVar[str] = "product"
    dims: tuple[int, ...]
    reduce: tuple[int, ...]
    a: Access
    b: Access
    output: Access


@dataclass(frozen=True)
class AllReduce:
    """total = the sum of what the ranks of a group have in `part`, in their order, accumulated in f32 (or wider) and
    rounded once on writing.

    `part` and `total` are parameters, locals or windows of one shape and dtype. Which ranks are a group, `axes` says:
    those that differ in their places along these axes of the program's grid alone.
    """

    kind: ClassVar[str] = "all_reduce"
    part: str
    total: str
    axes: tuple[int, ...]


@dataclass(frozen=True)
class ReduceScatter:
    """piece = of the sum of what the ranks of a group have in `part` (`AllReduce`) that which is this rank's
    (`AllSlice`, along the dimension `axis`)."""

    kind: ClassVar[str] = "reduce_scatter"
    part: str
    piece: str
    axis: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class AllGather:
    """whole = what the ranks of a group (`AllReduce`) have in `part`, joined along the dimension `axis`."""

    kind: ClassVar[str] = "all_gather"
    part: str
    whole: str
    axis: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class AllSlice:
    """part = of as many equal parts of `whole` along the dimension `axis` as there are ranks in a group (`AllReduce`),
    in their order, that of this rank. Nothing is exchanged."""

    kind: ClassVar[str] = "all_slice"
    whole: str
    part: str
    axis: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class AllToAll:
    """joined = of what the ranks of a group (`AllReduce`) have in `part` that which is this rank's (`AllSlice`, along
    the dimension `split`), joined along the dimension `axis`."""

    kind: ClassVar[str] = "all_to_all"
    part: str
    joined: str
    split: int
    axis: int
    axes: tuple[int, ...]


Collective = AllReduce | ReduceScatter | AllGather | AllSlice | AllToAll
"""What ranks do together: each of them comes to the same ones in the same order."""

Step = Union[Vector, Reduction, Product, AllReduce, ReduceScatter, AllGather, AllSlice, AllToAll, Op]
"""One step of a body. The operations of the algorithm that have a `kind` are steps (`sscc.ir.operations`)."""
STEPS: tuple[type, ...] = (*(kind for kind in get_args(Step) if kind is not Op), *(r for r in OPERATIONS if r.kind))
"""The records of all steps."""


@dataclass(frozen=True)
class Body:
    """What one firing computes: tensor parameters (tiles), scalar parameters (names), locals, windows, and steps
    in order. Parameters, locals, windows and scalars share one space of names."""

    name: str
    params: tuple[Param, ...]
    scalars: tuple[str, ...]
    locals: tuple[Local, ...]
    windows: tuple[Window, ...]
    steps: tuple[Step, ...]
    location: str = ""


# --------------------------------------------------------------------------- kernels: pipelines, stages, buffers


@dataclass(frozen=True)
class Buffer:
    """A stream between stages: `depth` slots, each a dense region of `shape`, one after another at `address`.

    A slot is filled by its producer, complete when that has fired `per` times on it (`Port.per`), and free again
    when every stage that will read it has. Slots are numbered from 0 through all iterations; number s lies in
    place s mod depth. Tier "sram": an address in the kernel's on-chip memory; "hbm": a spilled buffer, at an
    address of the arena.
    """

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    tier: Tier
    address: int
    depth: int

    @property
    def on_chip(self) -> bool:
        return self.tier == ON_CHIP

    @property
    def slot_bytes(self) -> int:
        return prod(self.shape) * DTYPE_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        return self.depth * self.slot_bytes


@dataclass(frozen=True)
class Port:
    """What a stage's body sees as one of its parameters.

    `view` is a window of a kernel's parameter (`per` = 0: memory, not synchronised) or of a slot of a buffer.
    Firing number f of the stage, counted from 0 through all iterations, uses slot f // per + lag. A producer in
    iteration i with lag 1 makes what consumers read in iteration i + 1: a value carried on chip.
    """

    view: View
    per: int = 0
    lag: int = 0


@dataclass(frozen=True)
class Stage:
    """A part of the machine that fires a body again and again.

    Attributes:
        body: name of the body.
        grid: firings per iteration, row-major over the indices ``t0``, ``t1``, ..; () is one firing.
        ports: one per parameter of the body, in order; terms of their views may name the scalars of the kernel and
            of the pipeline, its index, and the stage's ``t0``, ``t1``, ..
        scalars: one operand per scalar of the body, in order.
        waits: buffers it waits for before each firing: for the slot to be complete where it reads, for the place to
            be free where it writes. A schedule is valid only if it waits for every buffer that it touches.
        when: "each" iteration; once, for the "first" (a prologue) or the "last" (an epilogue).
        pcus: compute units that the stage occupies.
    """

    name: str
    body: str
    grid: tuple[int, ...]
    ports: tuple[Port, ...]
    scalars: tuple[ScalarOperand, ...]
    waits: tuple[str, ...]
    when: When = "each"
    pcus: int = 0

    @property
    def trips(self) -> int:
        """Firings per iteration."""
        return prod(self.grid)


@dataclass(frozen=True)
class Pipeline:
    """A loop whose iterations overlap: ``for index in range(lower, upper)``, nothing where that is empty.

    Per iteration, `scalars` are computed from the index and the scalars around, and every stage with when="each"
    fires its grid. The order of firing: round after round over `stages` in order; in its turn a stage fires as
    often as its waits (and its firings: prod(grid) per iteration) allow. A round in which no stage fires before
    all are done is a deadlock.

    A valid pipeline gives the same in another order too: what fires first, then iteration after iteration, in each of
    them stage after stage, a stage's firings side by side, then what fires last. So nothing reads a slot that is
    filled later in that order, and memory that stages share is ordered by the slots that are filled and read, not by
    the depths of buffers.
    """

    kind: ClassVar[str] = "pipeline"
    name: str
    index: str
    lower: ScalarOperand
    upper: ScalarOperand
    scalars: tuple[Scalar, ...]
    buffers: tuple[Buffer, ...]
    stages: tuple[Stage, ...]


@dataclass(frozen=True)
class Kernel:
    """What the machine loads and launches: tensor parameters, scalar parameters (names), and control around
    pipelines, which run one after another, so that their buffers may share addresses."""

    name: str
    params: tuple[Param, ...]
    scalars: tuple[str, ...]
    body: tuple[Item, ...]
    location: str = ""


# -------------------------------------------------------------------------------------------------- program


@dataclass(frozen=True)
class Program:
    """Everything an interpreter needs besides the bytes of weights and constants.

    Attributes:
        arena_bytes: bytes of the region that holds inputs, outputs, states and temporaries (addresses below
            it); weights and constants follow.
        grid: the ranks that run the program together, each with its own tensors: how many there are along each axis of
            a grid, in which they are numbered in row-major order; () where there is one.
    """

    tensors: tuple[Tensor, ...]
    bodies: tuple[Body, ...]
    kernels: tuple[Kernel, ...]
    entries: tuple[Entry, ...]
    arena_bytes: int
    version: int = field(default=FORMAT_VERSION)
    grid: tuple[int, ...] = ()

    @property
    def ranks(self) -> int:
        return prod(self.grid)

    def in_words(self) -> str:
        """How many kernels there are, which entries, and the ranks where there are several."""
        kernels = f"{len(self.kernels)} kernel{'' if len(self.kernels) == 1 else 's'}"
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{kernels}, entries {', '.join(entry.name for entry in self.entries)}{ranks}"

    def entry(self, name: str) -> Entry:
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise ScheduleErrors.NO_ENTRY(entry=name, entries=[entry.name for entry in self.entries])

    def to_json(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Program:
        """Parses and type-checks the file form. Raises InputError naming the first thing that does not fit."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ScheduleErrors.NOT_JSON(cause=quoted(error)) from None
        if not isinstance(data, dict) or data.get("version") != FORMAT_VERSION:
            version = data.get("version") if isinstance(data, dict) else None
            raise ScheduleErrors.FORMAT_VERSION(version=shown(version), known=FORMAT_VERSION)
        try:
            program: Program = decode(data, cls, "program")
        except RecursionError:
            raise ScheduleErrors.TOO_DEEP() from None
        return program


def launches(items: Sequence[Item]) -> Iterator[Launch]:
    """Every launch among `items` once, loops and branches entered."""
    return (item for item in _flat(items) if isinstance(item, Launch))


def pipelines(items: Sequence[Item]) -> Iterator[Pipeline]:
    """Every pipeline among `items` once, loops and branches entered."""
    return (item for item in _flat(items) if isinstance(item, Pipeline))


def scalars(items: Sequence[Item]) -> Iterator[Scalar]:
    """Every scalar among `items` once, loops, branches and pipelines entered."""
    for item in _flat(items):
        yield from item.scalars if isinstance(item, Pipeline) else (item,) if isinstance(item, Scalar) else ()


def _flat(items: Sequence[Item]) -> Iterator[Item]:
    """`items` and what loops and branches among them hold, in order."""
    for item in items:
        yield item
        if isinstance(item, For | If):
            yield from _flat(item.body)
