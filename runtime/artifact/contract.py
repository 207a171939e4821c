"""The contract between an artifact's signature and its schedule: the tensors and entries that a session uses, and the
values with which it calls them.

Compiler and runtime check here that a schedule may be executed: the compiler before it is written, the runtime whenever
an artifact is opened, before any code is generated from it. Nothing in an artifact is trusted: its manifest and its
schedule must agree, and the validator proves the rest for every call that a session makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

from sscc.ir import operations
from sscc.ir import schedule as sch
from sscc.ir.cache_plan import LayerGroup
from sscc.ir.choices import CURSOR, FIRST, POSITION_ID, POSITION_IDS, RANK, REUSED, SCORE, STEPS, step_tensor
from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.layer_state.protocol import LayerState
from sscc.ir.target import Target
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import TensorSpec
from sscc.runtime.validator import EntryReport, Report, validate


class ContractKind(ErrorKind):
    """Base of the kinds of differences between a schedule and its manifest."""

    def __init__(self, message: str) -> None:
        super().__init__(InputError, "the schedule does not fit its manifest: " + message)


class ContractErrors(ContractKind):
    """Schedules that do not implement the signature of their artifact."""

    CURSOR = "entry 'prefill' with {scalars} returns {results!r}, but the cursor must be {cursor!r}"
    STATE_UNWRITTEN = "entry {entry!r} never writes to state {state!r}"
    OUTPUT_UNWRITTEN = "entry {entry!r}{call_hint} does not write every element of its output {output!r}"
    TENSOR_MISSING = "tensor {tensor!r} does not exist; it must be {expected}"
    TENSOR_DIFFERS = "tensor {tensor!r} must be {expected}, got {actual}"
    TENSOR_UNKNOWN = "{role} {tensor!r} is unknown to sessions"
    ENTRIES = "its entries must be {expected!r}, got {entries!r}"
    INPUTS = "the inputs of entry {entry!r} must be {expected!r}, got {actual!r}"
    OUTPUTS = "the outputs of entry {entry!r} must be {expected!r}, got {actual!r}"
    SCALAR_INPUTS = "the scalar inputs of entry {entry!r} must be {expected!r}, got {actual!r}"
    SCALAR_OUTPUTS = "entry {entry!r} must have {expected} scalar outputs, got {actual}"
    GEOMETRY = "body {body!r}, {step}: its {setting} is {actual!r}, but the geometry's is {expected!r}"
    LOOKUP = (
        "kernel {kernel!r}, scalar {scalar!r}: it looks up [{numbers}], which are neither numbers nor first rows of a "
        "group's top-K rows"
    )
    SELECTION = "kernel {kernel!r}, stage {stage!r} selects {selected} positions, but the geometry has {budgets}"
    SELECTION_VARIES = "kernel {kernel!r}, stage {stage!r} selects a number of positions that is not constant"


_OUTPUTS = {
    "prefill": ("prefill_logits",),
    **{name: (step_tensor(name, "logits"),) for name in STEPS},
    SCORE: ("logits",),
}


_Kind = tuple[str, str, tuple[int | None, ...]]
"""Role, dtype and shape of a tensor; None for a size that the signature does not determine."""


def prove(program: sch.Program, signature: Signature, target: Target | None = None) -> Report:
    """Prove that a session can run a schedule under its signature, in every call that it makes.

    Args:
        target: target whose capacities the schedule has to fit; None if they do not matter, as for an interpreter.

    Raises:
        InputError: schedule and signature differ, or the schedule is invalid; the message has the first fault.
    """
    _check_tensors(program, signature)
    _check_entries(program, signature)
    _check_geometry(program, signature)
    _check_budgets(program, signature)
    protocol = Protocol(signature, _ranks_of(program))
    report = validate(
        program,
        target,
        ranges=protocol.ranges(),
        samples={"prefill": list(protocol.samples()), **protocol.score_samples()},
        longest=max(signature.layers, signature.chunks(signature.geometry.max_context)),
    )
    protocol.check(report.entry("prefill"))
    for entry, tokens in signature.step_tokens.items():
        _check_written(report.entry(entry), 0)
        _check_kept(report.entry(entry), 0, _stepped(signature, tokens))
    for number, _ in enumerate(protocol.score_samples().get(SCORE, ())):
        _check_written(report.entry(SCORE), number)
    return report


class Protocol:
    """The calls that a session makes. `prefill` begins at phase 0, and each call continues where the last one stopped.
    `score` is called with any position from which on the prompt's scratch has at least as many positions as there are
    slots.

    Phases 0 .. L take a step per chunk of the prompt, phase L + 1 takes one. A call executes the given number of steps,
    or those that are left, and returns its cursor; (L + 2, 0) is the end.
    """

    def __init__(self, signature: Signature, ranks: int = 0) -> None:
        self._signature = signature
        # The simulated slots are the last ones, which belong to the last rank.
        self._last_rank = {RANK: ranks - 1} if ranks else {}

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Return the lowest and highest value of each scalar input."""
        s = self._signature
        longest = s.geometry.max_context
        ranks = {name: (0, last) for name, last in self._last_rank.items()}
        return ranks | {
            REUSED: (0, s.chunks(longest) - 1),
            **({FIRST: (0, s.scratch_tokens - s.batch)} if s.scores_prompts else {}),
            "length": (1, longest),
            "slot": (0, s.batch - 1),
            "phase": (0, s.layers + 1),
            "chunk": (0, s.chunks(longest) - 1),
            "steps": (1, s.prefill_steps(longest)),
        }

    def score_samples(self) -> dict[str, list[dict[str, int]]]:
        """Return the calls of `score` that are played, where there is that entry: the first and the last position."""
        s = self._signature
        return {SCORE: [{FIRST: 0}, {FIRST: s.scratch_tokens - s.batch}]} if s.scores_prompts else {}

    def samples(self) -> Iterator[dict[str, int]]:
        """Return calls to simulate: prompts around the edges of a chunk, one step at every kind of position; and the
        short prompts in one call, from beginning to end."""
        return ({**call, **self._last_rank} for call in self._calls())

    def _calls(self) -> Iterator[dict[str, int]]:
        s = self._signature
        longest, chunk = s.geometry.max_context, s.prefill_chunk
        lengths = sorted({min(n, longest) for n in (1, chunk, chunk + 1)} | {longest})
        for length in lengths:
            last = s.chunks(length) - 1
            slot = s.batch - 1
            places = {(0, 0), (0, last), (1, 0), (s.layers, last), (s.layers + 1, 0)}
            for cursor in sorted(places):
                yield s.prefill_scalars(length, slot, cursor, steps=1)
            if last:
                yield s.prefill_scalars(length, slot, (1, 0), steps=1, reused=last)
            if length <= chunk + 1:
                yield s.prefill_scalars(length, slot)

    def after(self, scalars: Mapping[str, int]) -> tuple[int, int]:
        """Return the cursor after a call."""
        reused = scalars.get(REUSED, 0)
        chunks = self._signature.chunks(scalars["length"]) - reused
        done = scalars["phase"] * chunks + scalars["chunk"] + scalars["steps"]
        if done >= self._signature.prefill_steps(scalars["length"], reused):
            return self._signature.layers + 2, 0
        return divmod(done, chunks)

    def check(self, report: EntryReport) -> None:
        """Check that simulated calls return the cursor, that those which finish a prompt write its logits, and that
        those which are a whole prompt write everything that a prompt leaves behind."""
        for number, run in enumerate(report.runs):
            after = self.after(run.scalars)
            if run.results != after:
                raise ContractErrors.CURSOR(scalars=_assigned(run.scalars), results=run.results, cursor=after)
            if after[0] == self._signature.layers + 2:
                _check_written(report, number)
            if run.scalars["steps"] == self._signature.prefill_steps(run.scalars["length"]):
                _check_kept(report, number, _kept(self._signature))


def _assigned(scalars: Mapping[str, int]) -> list[str]:
    return [f"{name} = {value}" for name, value in scalars.items()]


def _check_kept(report: EntryReport, number: int, states: Sequence[str]) -> None:
    """Refuse a state that a call only reads: it would stay zero, or have the contents of another prompt."""
    run = report.runs[number]
    missing = [name for name in states if name not in run.touched]
    if missing:
        raise ContractErrors.STATE_UNWRITTEN(entry=report.name, state=missing[0])


def _stepped(s: Signature, tokens: int) -> list[str]:
    """Return the names of the state tensors that a step of a number of tokens per slot writes."""
    every = ((state, tensor) for _, state in s.states for tensor in state.tensors())
    return [state.name_of(tensor) for state, tensor in every if tensor.stepped or (tensor.drafted and tokens > 1)]


def _kept(s: Signature) -> list[str]:
    """Return the tensors of states that a prompt is read and kept in, in every program."""
    every = ((state, tensor) for _, state in s.states for tensor in state.tensors())
    return [state.name_of(tensor) for state, tensor in every if not tensor.drafted and not tensor.optional]


def _check_written(report: EntryReport, number: int) -> None:
    run = report.runs[number]
    missing = [name for name in _OUTPUTS[report.name] if name not in run.written]
    if missing:
        call = f" with {', '.join(_assigned(run.scalars))}" if run.scalars else ""
        raise ContractErrors.OUTPUT_UNWRITTEN(entry=report.name, call_hint=call, output=missing[0])


def _inputs(s: Signature) -> dict[str, dict[str, _Kind]]:
    """Return the inputs of each entry, in order."""
    entries: dict[str, dict[str, _Kind]] = {SCORE: {}} if s.scores_prompts else {}
    entries["prefill"] = dict.fromkeys(("tokens", POSITION_IDS), ("input", "i64", (1, s.scratch_tokens)))
    for entry, each in s.step_tokens.items():
        tokens = s.batch * each
        kinds: dict[str, _Kind] = {
            "token": ("input", "i64", (tokens, 1)),
            POSITION_ID: ("input", "i64", (tokens, 1)),
            "position": ("input", "i64", (tokens,)),
            "base": ("input", "i64", (tokens,)),
            "active": ("input", "i1", (tokens,)),
        }
        entries[entry] = {step_tensor(entry, name): kind for name, kind in kinds.items()}
    return entries


def _tensors(s: Signature) -> dict[str, _Kind]:
    """Return every tensor that the signature determines: inputs, outputs, caches, and the states of a prompt in
    progress."""
    known: dict[str, _Kind] = {
        "prefill_logits": ("output", s.dtype, (1, s.vocab_size)),
    }
    for entry, each in s.step_tokens.items():
        known[step_tensor(entry, "logits")] = ("output", s.dtype, (s.batch * each, s.vocab_size))
    for group, state in s.states:
        known |= _tensors_of(s, group, state)
    return known | {name: kind for entry in _inputs(s).values() for name, kind in entry.items()}


def states_of(signature: Signature) -> dict[str, TensorSpec]:
    """Return shapes and dtypes of the states with the slots' rows, by name."""
    kinds: dict[str, _Kind] = {}
    for group, state in signature.states:
        kinds |= _tensors_of(signature, group, state)
    return {name: TensorSpec(shape, dtype) for name, (_, dtype, shape) in kinds.items() if _known(shape)}


def _known(shape: tuple[int | None, ...]) -> TypeGuard[tuple[int, ...]]:
    return None not in shape


def _tensors_of(s: Signature, group: LayerGroup, state: LayerState) -> dict[str, _Kind]:
    """Return the tensors of a group's state."""
    slots = s.batch if group.slots is None else group.slots
    return {
        state.name_of(tensor): ("state", tensor.dtype, tensor.entry_shape(len(group.layers), slots))
        for tensor in state.tensors()
    }


def _check_tensors(program: sch.Program, signature: Signature) -> None:
    kinds: dict[str, _Kind] = {tensor.name: (tensor.role, tensor.dtype, tensor.shape) for tensor in program.tensors}
    known = _tensors(signature)
    optional = {state.name_of(each) for _, state in signature.states for each in state.tensors() if each.optional}
    for name, expected in known.items():
        if name not in kinds and name in optional:
            continue
        if name not in kinds:
            raise ContractErrors.TENSOR_MISSING(tensor=name, expected=_spelled(expected))
        if not _is(kinds[name], expected):
            raise ContractErrors.TENSOR_DIFFERS(
                tensor=name, actual=_spelled(kinds[name]), expected=_spelled(expected)
            )
    for name, (role, _, _) in kinds.items():
        if role in ("input", "output") and name not in known:
            raise ContractErrors.TENSOR_UNKNOWN(role=role, tensor=name)


def _is(kind: _Kind, expected: _Kind) -> bool:
    shapes = kind[2], expected[2]
    same_shape = len(shapes[0]) == len(shapes[1]) and all(b in (None, a) for a, b in zip(*shapes, strict=True))
    return kind[:2] == expected[:2] and same_shape


def _spelled(kind: _Kind) -> str:
    role, dtype, shape = kind
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"{role} {dtype} [{sizes}]"


def _ranks_of(program: sch.Program) -> int:
    """Return the number of ranks if prefill depends on the rank that runs it; otherwise 0."""
    taken = any(RANK in entry.scalar_inputs for entry in program.entries if entry.name == "prefill")
    return program.ranks if taken and program.grid else 0


def _check_entries(program: sch.Program, signature: Signature) -> None:
    inputs = _inputs(signature)
    if sorted(entry.name for entry in program.entries) != sorted(inputs):
        raise ContractErrors.ENTRIES(entries=[entry.name for entry in program.entries], expected=list(inputs))
    prefill = (*signature.prefill_scalars(1), *([RANK] if _ranks_of(program) else []))
    scalars: dict[str, tuple[tuple[str, ...], int]] = {
        "prefill": (prefill, len(CURSOR)), **dict.fromkeys(STEPS, ((), 0)), SCORE: ((FIRST,), 0)
    }
    for entry in program.entries:
        takes, gives = scalars[entry.name]
        for kind, actual, expected in (
            (ContractErrors.INPUTS, entry.inputs, tuple(inputs[entry.name])),
            (ContractErrors.OUTPUTS, entry.outputs, _OUTPUTS[entry.name]),
            (ContractErrors.SCALAR_INPUTS, entry.scalar_inputs, takes),
            (ContractErrors.SCALAR_OUTPUTS, len(entry.scalar_outputs), gives),
        ):
            if actual != expected:
                raise kind(entry=entry.name, actual=actual, expected=expected)


def _check_geometry(program: sch.Program, signature: Signature) -> None:
    """Check that steps of the algorithm have the settings of the geometry: each step all those of one of the groups."""
    every = [state for _, state in signature.states]
    for body in program.bodies:
        for step in body.steps:
            settings = (state.settings(step).items() for state in every)
            wrong = [[item for item in items if getattr(step, item[0]) != item[1]] for items in settings]
            if all(wrong):
                name, setting = min(wrong, key=len)[0]
                raise ContractErrors.GEOMETRY(
                    body=body.name, step=step.kind, setting=name, actual=getattr(step, name), expected=setting
                )


def _check_budgets(program: sch.Program, signature: Signature) -> None:
    """Check that the tables of looped kernels have a group's numbers for its layers: the number of selected positions,
    and first rows. Windows of a cache that layers share may overlap in the schedule; only this check separates their
    contents. Also check that each layer selects the number of positions of a group: rows that stay empty would count as
    valid."""
    every = [state for _, state in signature.states]
    tables = [table for state in every for table in state.tables()]
    for kernel in program.kernels:
        for scalar in sch.scalars(kernel.body):
            if scalar.op == "lookup" and not any(_is_part(scalar.args[1:], table) for table in tables):
                raise ContractErrors.LOOKUP(kernel=kernel.name, scalar=scalar.name, numbers=scalar.args[1:])
    budgets = {count for state in every for count in state.selected_counts()}
    for kernel_name, stage, selected in _selected(program):
        if not selected <= budgets:
            raise ContractErrors.SELECTION(
                kernel=kernel_name, stage=stage, selected=sorted(selected - budgets), budgets=sorted(budgets)
            )


def _selected(program: sch.Program) -> Iterator[tuple[str, str, set[int]]]:
    """Yield kernel, stage and numbers of positions that it may select, for each stage that selects any."""
    bodies = {body.name: body for body in program.bodies}
    launched: dict[str, list[tuple[sch.ScalarOperand, ...]]] = {}
    for entry in program.entries:
        for launch in sch.launches(entry.body):
            launched.setdefault(launch.kernel, []).append(launch.scalars)
    for kernel in program.kernels:
        tables = {scalar.name: scalar.args[1:] for scalar in sch.scalars(kernel.body) if scalar.op == "lookup"}
        for stage in (stage for pipeline in sch.pipelines(kernel.body) for stage in pipeline.stages):
            body = bodies.get(stage.body)
            for step in () if body is None else body.steps:
                if not isinstance(step, operations.Select | operations.DecodeAttention):
                    continue
                operand = dict(zip(body.scalars, stage.scalars, strict=False)).get(step.topk) if body else None
                passed: list[sch.ScalarOperand | None] = [operand]
                if operand in tables:
                    passed = list(tables[str(operand)])
                elif operand in kernel.scalars:
                    place = kernel.scalars.index(str(operand))
                    passed = [scalars[place] for scalars in launched.get(kernel.name, ()) if place < len(scalars)]
                if any(not isinstance(number, int) for number in passed):
                    raise ContractErrors.SELECTION_VARIES(kernel=kernel.name, stage=stage.name)
                yield kernel.name, stage.name, {number for number in passed if isinstance(number, int)}


def _is_part(numbers: Sequence[sch.ScalarOperand], table: Sequence[int]) -> bool:
    """Return True if numbers are a contiguous part of a table."""
    starts = range(len(table) - len(numbers) + 1)
    return any(tuple(numbers) == tuple(table[start : start + len(numbers)]) for start in starts)
