"""The schedule, the last level of IR: the typed program that the compiler emits and the interpreters execute.

A `Program` can be executed without MLIR. It holds

* **tensors**: named regions with a shape, a dtype, a memory tier and an address;
* **bodies**: the computation of one firing of a stage, on tiles of fixed shape;
* **kernels**: the units that the machine loads and launches: control flow around *pipelines*, each a graph of stages
  joined by on-chip buffers of bounded depth;
* **entries** (`prefill`, `decode`): control flow (loops, branches, scalar arithmetic) around kernel launches, whose
  arguments are strided views of tensors.

Steps of the algorithm are records of `sscc.ir.operations` and have the semantics of the `kv` dialect's operations: a
score is the product of a query and a key times `scale`, capped with a `softcap`, and a softmax includes the head's
entry of `sink_logits`, if there are any.

The file form is canonical JSON (`Program.to_json`): keys sorted, no spaces, so that equal programs have equal bytes.
Unknown fields, kinds and operations are refused at load time.
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
    """Schedules that cannot be read, and entries that they lack."""

    NO_ENTRY = InputError, "the schedule has no entry {entry!r}; its entries are {entries!r}"
    NOT_JSON = InputError, "the schedule is not JSON: {cause}"
    FORMAT_VERSION = InputError, "the schedule has format version {version!r}; this sscc reads {known}"
    TOO_DEEP = InputError, "the schedule is malformed: its loops and branches are nested too deeply"


FORMAT_VERSION = 13
DTYPE_BYTES = {"f32": 4, "bf16": 2, "i64": 8, "i8": 1, "i1": 1}

Dtype = Literal["f32", "bf16", "i64", "i8", "i1"]
Role = Literal["weight", "constant", "input", "output", "state", "temporary"]
ParamAccess = Literal["read", "write", "update"]
When = Literal["each", "first", "last"]


# ---------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class Tensor:
    """A named region. Roles: `weight` (bytes from a checkpoint), `constant` (bytes computed from the model's config),
    `input`/`output` (the caller's, per call), `state` (zero at the start, kept between calls), `temporary` (undefined
    at the start of a call; addresses may be shared).

    `sources` names the tensors of the checkpoint (or constants) from which a weight is made: one of this shape, or, for
    the layers of a looped kernel, N tensors that are stacked to shape [N, ..]. Interpreters get weights by `name`.

    `encoding` is the conversion of each source to the stored tensor: "" for a copy (floating dtypes are converted), or
    a part of a weight format, as bytes of i8: "int8:32/values", "int4:32:zero-point/zeros", "Q4_K/blocks". A suffix
    "/transposed" means that the source is [K, N]. A suffix "/ordered" means that the columns are stored in another
    order, given by the source with "#order" behind its name, i64 [K]. `sscc.ir.weight_formats` has the formats.

    `cut` is the part of the whole weight or constant that a rank holds, in the form of `sscc.ir.sharding.Cut`; "" for
    all of it. `shape` is the shape of the part.
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
    """A strided window of a region: element (i0, i1, ..) is at ``offset + sum(terms) + sum(i * stride)``.

    The region is a tensor (in a launch), a kernel's parameter or one slot of a buffer (in a stage's port), or a local
    (in a body). Offsets and strides count elements of the region, which is dense and row-major. If a launch passes a
    parameter with other strides, ports must use the whole parameter. `terms` are (scalar name, coefficient) pairs, the
    only dynamic part.
    """

    tensor: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    terms: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Scalar:
    """``name = op(args)`` on 64-bit integers; comparisons return 0 or 1.

    Operations: add sub mul floordiv ceildiv mod min max eq ne lt le gt ge and or select; and lookup, whose operands are
    an index and the numbers of a table; the index must be within the table.
    """

    kind: ClassVar[str] = "scalar"
    name: str
    op: str
    args: tuple[ScalarOperand, ...]


@dataclass(frozen=True)
class Launch:
    """A call of a kernel: one view per tensor parameter, one operand per scalar parameter, both in order."""

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
"""An item of control flow. Only entries contain launches, only kernels contain pipelines."""


@dataclass(frozen=True)
class Entry:
    """An entry point of the program. Inputs and outputs are names of tensors; scalars are 64-bit integers."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scalar_inputs: tuple[str, ...]
    scalar_outputs: tuple[ScalarOperand, ...]
    body: tuple[Item, ...]


# --------------------------------------------------------------------------------------- bodies and their steps


@dataclass(frozen=True)
class Param:
    """A tensor parameter of a kernel or of a body, always a strided view of this shape."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    access: ParamAccess


@dataclass(frozen=True)
class Local:
    """A value within one firing of a body, passed between its steps: dense, undefined at the start."""

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
    """An affine access map: the element of `param` for each point of the iteration space.

    `param` names a parameter, a local or a window of the body. `map` has one row per dimension of `param`: a
    coefficient per iteration dimension, then a constant. With `indirect` the index along one axis is read from a tensor
    instead, and the row of that axis is zero. Only the second operand of a product may have it; vector programs use
    `load`, whose indices they can compute.
    """

    param: str
    map: tuple[tuple[int, ...], ...]
    indirect: Indirect | None = None


@dataclass(frozen=True)
class Indirect:
    """An index along `axis` that is read from the i64 tensor `index`, which itself has no indirect axis. A run ends
    with an error if the index is not one of 0 .. size - 1 of the axis."""

    axis: int
    index: Access


@dataclass(frozen=True)
class Instr:
    """One scalar operation of a vector program, named as in MLIR's arith and math dialects.

    `args` name inputs (``in0``..), earlier results, scalar parameters of the body, or are literals.
    Special operations: ``index`` (args: an iteration dimension; gives i64), ``load`` (args: a parameter's
    name, then one i64 index per dimension), ``const`` (args: a literal). `type` is the result's dtype.
    Integer division by 0 is division by 1. `fptosi` and `fptoui` round towards zero and saturate; NaN gives 0.
    """

    name: str
    op: str
    args: tuple[Union[int, float, str], ...]
    type: str


@dataclass(frozen=True)
class Vector:
    """An element-wise program over `dims`: out = result(body(inputs)) at every point.

    Each point is written once. With loads in the body it is a gather.
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

    `b` may have an indirect axis, as in a mixture of experts, where a tensor has the number of each row's expert:
    out[s, n] = sum over k of a[s, k] * b[expert[s], n, k]. Only the named slices of b are read.
    """

    kind: ClassVar[str] = "product"
    dims: tuple[int, ...]
    reduce: tuple[int, ...]
    a: Access
    b: Access
    output: Access


@dataclass(frozen=True)
class AllReduce:
    """total = the sum of `part` over the ranks of a group, in their order, accumulated in f32 (or wider) and rounded
    once on writing.

    `part` and `total` are parameters, locals or windows of one shape and dtype. A group consists of the ranks that
    differ only in their coordinates along `axes` of the program's grid.
    """

    kind: ClassVar[str] = "all_reduce"
    part: str
    total: str
    axes: tuple[int, ...]


@dataclass(frozen=True)
class ReduceScatter:
    """piece = this rank's part (`AllSlice`, along the dimension `axis`) of the sum of `part` over the ranks of a group
    (`AllReduce`)."""

    kind: ClassVar[str] = "reduce_scatter"
    part: str
    piece: str
    axis: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class AllGather:
    """whole = `part` of the ranks of a group (`AllReduce`), concatenated along the dimension `axis`."""

    kind: ClassVar[str] = "all_gather"
    part: str
    whole: str
    axis: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class AllSlice:
    """part = this rank's part of `whole`, cut along the dimension `axis` in equal parts, one per rank of a group
    (`AllReduce`) in their order. There is no communication."""

    kind: ClassVar[str] = "all_slice"
    whole: str
    part: str
    axis: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class AllToAll:
    """joined = this rank's parts (`AllSlice`, along the dimension `split`) of `part` of all ranks of a group
    (`AllReduce`), concatenated along the dimension `axis`."""

    kind: ClassVar[str] = "all_to_all"
    part: str
    joined: str
    split: int
    axis: int
    axes: tuple[int, ...]


Collective = AllReduce | ReduceScatter | AllGather | AllSlice | AllToAll
"""Communication between ranks. All ranks execute the same collectives in the same order."""

Step = Union[Vector, Reduction, Product, AllReduce, ReduceScatter, AllGather, AllSlice, AllToAll, Op]
"""One step of a body: one of these, or an operation of `sscc.ir.operations` that has a `kind`."""
STEPS: tuple[type, ...] = (*(kind for kind in get_args(Step) if kind is not Op), *(r for r in OPERATIONS if r.kind))
"""The records of all steps."""


@dataclass(frozen=True)
class Body:
    """Computation of one firing: tensor parameters (tiles), scalar parameters (names), locals, windows, and steps in
    order. Parameters, locals, windows and scalars share one namespace."""

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
    """A stream between stages: `depth` slots, each a dense region of `shape`, consecutive from `address` on.

    A slot is filled by its producer, complete when that has fired `per` times on it (`Port.per`), and free again when
    all its readers have read it. Slots are numbered from 0 through all iterations; slot s is at place s mod depth. Tier
    "sram": an address in the kernel's on-chip memory; "hbm": a spilled buffer, at an address of the arena.
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
    """The view that a stage's body has of one of its parameters.

    `view` is a window of a kernel's parameter (`per` = 0: memory, not synchronised) or of a slot of a buffer.
    Firing f of the stage, counted from 0 through all iterations, uses slot f // per + lag. A producer in iteration i
    with lag 1 fills the slot that consumers read in iteration i + 1: a value carried on chip.
    """

    view: View
    per: int = 0
    lag: int = 0


@dataclass(frozen=True)
class Stage:
    """A part of the machine that fires a body repeatedly.

    Attributes:
        body: name of the body.
        grid: firings per iteration, row-major over the indices ``t0``, ``t1``, ..; () is one firing.
        ports: one per parameter of the body, in order; terms of their views may name the scalars of the kernel and
            of the pipeline, its index, and the stage's ``t0``, ``t1``, ..
        scalars: one operand per scalar of the body, in order.
        waits: buffers that it waits for before each firing: for the slot to be complete if it reads it, for the place
            to be free if it writes it. A schedule is valid only if a stage waits for every buffer that it touches.
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
    """A loop whose iterations overlap: ``for index in range(lower, upper)``, which may be empty.

    Per iteration, `scalars` are computed from the index and the outer scalars, and every stage with when="each" fires
    its grid. The order of firing: round after round over `stages` in order; in its turn a stage fires as often as its
    waits (and its number of firings: prod(grid) per iteration) allow. A round in which no stage fires before all are
    done is a deadlock.

    A valid pipeline gives the same result in sequential order too: "first" stages, then iteration after iteration, in
    each of them stage after stage, with a stage's firings in parallel, then "last" stages. So no stage reads a slot
    that is filled later in that order, and accesses to shared memory are ordered by the slots that are filled and read,
    not by the depths of buffers.
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
    """The unit that the machine loads and launches: tensor parameters, scalar parameters (names), and control flow
    around pipelines. Pipelines run one after another, so their buffers may share addresses."""

    name: str
    params: tuple[Param, ...]
    scalars: tuple[str, ...]
    body: tuple[Item, ...]
    location: str = ""


# -------------------------------------------------------------------------------------------------- program


@dataclass(frozen=True)
class Program:
    """A complete program, without the bytes of weights and constants.

    Attributes:
        arena_bytes: size of the region of inputs, outputs, states and temporaries (addresses below it); weights and
            constants follow.
        grid: number of ranks along each axis of the grid of ranks that run the program together, numbered in row-major
            order, each with its own tensors; () for one rank.
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
        """Return a summary: number of kernels, entries, and ranks if there are several."""
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
        """Parse and type-check the file form. Raises InputError naming the first mismatch."""
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
    """Yield every launch among `items` once, including those in loops and branches."""
    return (item for item in _flat(items) if isinstance(item, Launch))


def pipelines(items: Sequence[Item]) -> Iterator[Pipeline]:
    """Yield every pipeline among `items` once, including those in loops and branches."""
    return (item for item in _flat(items) if isinstance(item, Pipeline))


def scalars(items: Sequence[Item]) -> Iterator[Scalar]:
    """Yield every scalar among `items` once, including those in loops, branches and pipelines."""
    for item in _flat(items):
        yield from item.scalars if isinstance(item, Pipeline) else (item,) if isinstance(item, Scalar) else ()


def _flat(items: Sequence[Item]) -> Iterator[Item]:
    """Yield `items`, and the items of loops and branches among them, in order."""
    for item in items:
        yield item
        if isinstance(item, For | If):
            yield from _flat(item.body)
