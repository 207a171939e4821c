"""Executes a program that may be anything on both interpreters, and compares what they leave."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from sscc.ir.errors import ErrorKind, InputError, RankError, UsageError
from sscc.ir.kv_rows import INT4, INT8, RowFormat
from sscc.ir.schedule import Program, Tensor
from sscc.ir.target import load_target
from sscc.runtime.artifact.contract import prove
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import NUMPY_DTYPES, Array
from sscc.runtime.backends.collectives.group import ALONE, Group, run_ranks, thread_groups
from sscc.runtime.backends.cpu.interpreter import NativeInterpreter
from sscc.runtime.backends.cpu.plan.library import NativeCode
from sscc.runtime.backends.reference import ReferenceInterpreter
from sscc.runtime.backends.reference.arrays import to_array, to_tensors
from sscc.runtime.validator import validate
from tests.fuzz.harness import Finding


class CaseErrors(ErrorKind):
    """Cases that no session could run."""

    WEIGHTS = InputError, "the program's weights are not those of its base"


MACHINE = load_target("rdu")

DATA_BYTES = 64 << 20
"""A program with more weights than this has none: the files beside it are those of its base."""

CLOSE = {"f32": 1e-3, "bf16": 6e-2, "int8": 2e-2, "int4": 0.3}
"""Largest difference, of the largest number, by dtype, and by format of encoded rows (two codes): a mutation may cancel
what its base does not."""

ROUNDING = 2.0**-22
"""Bound on the change of a sum of products by another order of its terms, relative to the sum of their magnitudes."""

ORDERS = 3
"""Number of reference runs with sums in other orders."""

UNSUPPORTED = "run with --interpreter reference"


MOST_RANKS = 8
"""Maximum number of ranks that are run."""

RANKS_MEET = 3.0
"""Seconds in which ranks do, on a busy machine too."""

_OTHERS = "because of another rank: "

LONGEST = 16
"""Iterations of a loop, where no signature says how many there may be."""


@dataclass(frozen=True)
class EntryCall:
    entry: str
    scalars: Mapping[str, int]


@dataclass(frozen=True)
class Situation:
    """Inputs of the proofs of a program, and of its calls.

    Attributes:
        signature: of a whole program, as its artifact has it; None for any other, of which less is known.
        ranges, samples: of any other program, as `validate` takes them.
        undefined: states whose contents are not all defined (padding).
    """

    calls: tuple[EntryCall, ...]
    signature: Signature | None = None
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, int]]] = field(default_factory=dict)
    undefined: frozenset[str] = frozenset()


def admit(program: Program, situation: Situation) -> None:
    """Check a program before any part of it runs. Raises InputError."""
    if situation.signature is not None:
        prove(program, situation.signature, MACHINE)
    else:
        validate(program, MACHINE, ranges=situation.ranges, samples=situation.samples, longest=LONGEST)


# -------------------------------------------------------------------------------------------------------- data


def data_of(tensor: Tensor, salt: int = 0) -> Array:
    """Return random contents that depend only on a tensor's name, shape and dtype; integers are small, like indices."""
    rng = np.random.default_rng([zlib.crc32(tensor.name.encode()), salt])
    if tensor.dtype == "i64":
        low, high = (-1, 4) if "selected" in tensor.name else (0, 4)
        return rng.integers(low, high, tensor.shape, dtype=np.int64)
    if tensor.dtype == "i1":
        return rng.integers(0, 4, tensor.shape) > 0
    if tensor.dtype == "i8":
        return _rows(tensor, rng)
    values = rng.standard_normal(tensor.shape, dtype=np.float32) * np.float32(0.05 if "scales" in tensor.name else 0.5)
    return values.astype(NUMPY_DTYPES[tensor.dtype])


def _rows(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Return codes, followed by a scale if they could be encoded rows."""
    codes: Array = rng.integers(-8, 8, tensor.shape, dtype=np.int8)
    format_ = _row_format(tensor)
    if format_ is not None:
        scales = rng.uniform(0.01, 0.1, (*tensor.shape[:-1], 1))
        stored = scales.astype(np.float32 if format_ == INT8 else ml_dtypes.bfloat16).view(np.int8)
        codes[..., -stored.shape[-1] :] = stored
    return codes


@dataclass(frozen=True)
class RunResult:
    """Result of the calls on an interpreter: the reason of a refusal, or scalars and tensors after each call."""

    refusal: str = ""
    scalars: tuple[tuple[int, ...], ...] = ()
    tensors: tuple[Mapping[str, Array], ...] = ()


def weights_of(program: Program, rank: int = 0) -> dict[str, Array]:
    """Weights and constants; of those that are cut each rank has other contents."""
    external = [t for t in program.tensors if t.role in ("weight", "constant")]
    if any(size < 0 for t in external for size in t.shape) or sum(t.nbytes for t in external) > DATA_BYTES:
        raise CaseErrors.WEIGHTS()
    return {t.name: data_of(t, _salt(rank) if t.cut else 0) for t in external}


def _salt(rank: int) -> int:
    """Return a number that makes a rank's inputs differ from those of all others; 0 for the first rank."""
    return rank << 32


def run_reference(
    program: Program,
    situation: Situation,
    precision: str = "f32",
    *,
    checked: bool = True,
    within: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> RunResult:
    """`checked`: undefined memory is NaN. `within`: how torch is to compute, in every rank's thread."""

    def run(group: Group) -> RunResult:
        weights = to_tensors(weights_of(program, group.rank))
        interpreter = ReferenceInterpreter(program, weights, precision=precision, checked=checked, group=group)
        for tensor in program.tensors:
            if tensor.role == "state":
                value = to_tensors({"x": data_of(tensor, _salt(group.rank))})["x"]
                interpreter.tensor(tensor.name).copy_(value)
        scalars, tensors = [], []
        for number, call in enumerate(situation.calls):
            inputs = to_tensors(_inputs(program, call, number))
            outputs, results = interpreter.run(call.entry, inputs, call.scalars)
            states = {name: interpreter.tensor(name) for name in _states(program)}
            scalars.append(results)
            tensors.append({name: _plain(value) for name, value in (outputs | states).items()})
        return RunResult("", tuple(scalars), tuple(tensors))

    def run_within(group: Group) -> RunResult:
        with within():
            return run(group)

    return _on_ranks(program, run_within)


def run_native(program: Program, situation: Situation, code: NativeCode, threads: int) -> RunResult:
    """Undefined memory is NaN here too, so that what it reaches shows."""

    def run(group: Group) -> RunResult:
        weights = weights_of(program, group.rank)
        interpreter = NativeInterpreter(program, weights, code=code, threads=threads, group=group)
        interpreter._memory.fill(0xFF)
        for tensor in program.tensors:
            if tensor.role == "state":
                interpreter.tensor(tensor.name)[...] = data_of(tensor, _salt(group.rank))
        scalars, tensors = [], []
        for number, call in enumerate(situation.calls):
            outputs, results = interpreter.run(call.entry, _inputs(program, call, number), call.scalars)
            states = {name: interpreter.tensor(name).copy() for name in _states(program)}
            scalars.append(results)
            tensors.append(outputs | states)
        return RunResult("", tuple(scalars), tuple(tensors))

    return _on_ranks(program, run)


def _on_ranks(program: Program, run: Callable[[Group], RunResult]) -> RunResult:
    """Return the results of the calls on all ranks, each a thread: scalars one after another, tensors [ranks, ..].
    Raises Finding for a deadlock."""
    if program.ranks > MOST_RANKS:
        return RunResult(f"{program.ranks} ranks are not tried")
    if program.ranks == 1:
        return _refusing(lambda: run(ALONE))

    def of_rank(group: Group) -> RunResult:
        result = _refusing(lambda: run(group))
        if result.refusal:
            group.end(group.rank)
        return result

    results = run_ranks(thread_groups(program.ranks, RANKS_MEET), of_rank)
    reasons = [result.refusal for result in results if result.refusal]
    own = [reason for reason in reasons if not reason.startswith(_OTHERS)]
    if own:
        return RunResult(own[0])
    if reasons:
        raise Finding(f"accepted, but its ranks do not meet: {reasons[0]}")
    scalars = tuple(sum(several, ()) for several in zip(*(result.scalars for result in results), strict=True))
    by_call = zip(*(result.tensors for result in results), strict=True)
    tensors = tuple({name: np.stack([own[name] for own in several]) for name in several[0]} for several in by_call)
    return RunResult("", scalars, tensors)


def _refusing(run: Callable[[], RunResult]) -> RunResult:
    try:
        return run()
    except RankError as error:
        return RunResult(f"{_OTHERS}{error}")
    except (InputError, UsageError) as error:
        return RunResult(str(error))


def _plain(value: torch.Tensor) -> Array:
    """An array; of f64 where the interpreter computes in it."""
    return value.clone().numpy() if value.dtype is torch.float64 else to_array(value.clone())


def _states(program: Program) -> list[str]:
    return [tensor.name for tensor in program.tensors if tensor.role == "state"]


def _inputs(program: Program, call: EntryCall, salt: int) -> dict[str, Array]:
    declared = {tensor.name: tensor for tensor in program.tensors}
    return {name: data_of(declared[name], salt) for name in program.entry(call.entry).inputs if name in declared}


# -------------------------------------------------------------------------------------------------- comparison


def judge(reference: RunResult, native: RunResult, program: Program, situation: Situation) -> str:
    """The outcome of a case that was accepted. Raises Finding where the two disagree."""
    if native.refusal.endswith(UNSUPPORTED):
        return "not for native"
    if reference.refusal and native.refusal:
        return "both refused"
    if reference.refusal or native.refusal:
        who, why = ("reference", reference.refusal) if reference.refusal else ("native", native.refusal)
        raise Finding(f"accepted, but the {who} interpreter alone refuses: {why}")
    difference = next(differences(reference, native, program, situation), None)
    if difference is None:
        return "agrees"
    if any(_differs(other, reference, program, situation) for other in _as_right(program, situation)):
        return "ill-conditioned"
    raise Finding(f"accepted, but native differs from reference: {difference}")


def _as_right(program: Program, situation: Situation) -> Iterator[RunResult]:
    """Yield the reference's results with other roundings, and with other contents of undefined memory: differences
    among these are no findings. Native code's exponential is 0 for results below the normal numbers of f32."""
    yield run_reference(program, situation, "f64")
    yield run_reference(program, situation, checked=False)
    yield run_reference(program, situation, within=_denormals_flushed)
    for seed in range(ORDERS):
        yield run_reference(program, situation, within=partial(OtherOrder, seed))


@contextmanager
def _denormals_flushed() -> Iterator[None]:
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def _differs(other: RunResult, reference: RunResult, program: Program, situation: Situation) -> bool:
    return bool(other.refusal) or next(differences(other, reference, program, situation), None) is not None


class OtherOrder(TorchFunctionMode):
    """Every sum of products is off by what another order of its terms may cost, at random: scores that are as good as
    equal change places, and differences of numbers too large for them come out as noise."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = torch.Generator().manual_seed(seed)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function not in _PRODUCTS:
            return result
        with torch._C.DisableTorchFunction():
            sizes = torch.matmul(args[0].abs(), args[1].abs())
            noise = torch.rand(sizes.shape, generator=self._random, dtype=sizes.dtype) * 2 - 1
            return result.add_(torch.where(sizes.isfinite(), sizes * noise * ROUNDING, 0.0))


_PRODUCTS = (torch.matmul, torch.mm, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__)


def differences(one: RunResult, other: RunResult, program: Program, situation: Situation) -> Iterator[str]:
    """In words; elements that are not finite in `one` may be anything in `other`."""
    declared = {tensor.name: tensor for tensor in program.tensors}
    for number, call in enumerate(situation.calls):
        where = f"call {number} ({call.entry})"
        if one.scalars[number] != other.scalars[number]:
            yield f"{where}: scalar outputs {one.scalars[number]} and {other.scalars[number]}"
        for name, expected in one.tensors[number].items():
            if name not in situation.undefined:
                words = _difference(expected, other.tensors[number][name], declared[name])
                yield from [f"{where}: {name!r}: {words}"] if words else []


def _difference(a: Any, b: Any, tensor: Tensor) -> str:
    format_ = _row_format(tensor)
    if tensor.dtype in ("i64", "i1") or (tensor.dtype == "i8" and format_ is None):
        wrong = np.argwhere(a != b)
        return f"{len(wrong)} of {a.size} differ, the first at {wrong[0].tolist()}" if len(wrong) else ""
    if format_ is not None:
        a, b = format_.decode(a), format_.decode(b)
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    defined = np.isfinite(x)
    if not defined.any():
        return ""
    with np.errstate(all="ignore"):
        distance = np.where(defined, np.abs(x - y), 0.0)
    largest = float(np.abs(x[defined]).max())
    far = ~(distance <= CLOSE[tensor.dtype if format_ is None else format_.name] * largest + 1e-30)
    if not far.any():
        return ""
    place = tuple(np.argwhere(far)[0].tolist())
    return f"{int(far.sum())} of {a.size} differ, at {list(place)} {x[place]:g} and {y[place]:g}"


def _row_format(tensor: Tensor) -> RowFormat | None:
    """Return a format in which the rows of a state could be encoded. Rows of 4 bits have 4 numbers in 4 bytes, like the
    heads of the corpus."""
    if tensor.dtype != "i8" or tensor.role != "state" or not tensor.shape or tensor.shape[-1] < INT4.width(4):
        return None
    return INT4 if tensor.shape[-1] == INT4.width(4) else INT8
