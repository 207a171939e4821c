"""Bisection of passes: the outputs of a model after every pass, compared with those of the first runnable level."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch_mlir import ir

from sscc.compiler.emit.emit import emit_program
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.interpret.module import is_runnable, module_session, signature_of, stored_layout
from sscc.ir.collectives import grid_of
from sscc.ir.errors import CheckError, ErrorKind, InputError, UnsupportedError, UsageError
from sscc.ir.levels import get_level
from sscc.ir.weight_formats.registry import Encoding
from sscc.passes.base import Pass, run_passes, step_text
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Array, KeepingReader, Layout, layout_of, reading, stack_tensors
from sscc.runtime.backends.backend import Conditions
from sscc.runtime.backends.collectives.group import ALONE, Group, run_ranks, thread_groups
from sscc.runtime.backends.reference.arrays import to_tensors
from sscc.runtime.backends.reference.backend import Reference
from sscc.runtime.session.golden_replay import Difference, compare
from sscc.runtime.session.session import Session


class BisectionErrors(ErrorKind):
    BAD_STEPS = UsageError, "--steps must be at least 0, got {steps}"
    TOO_LONG = UsageError, (
        "{prompt_tokens} prompt tokens and {steps} steps do not fit: the prompt needs at least 1 token, both together "
        "at most {max_context} (max-context)"
    )
    RANKS_DIFFER = CheckError, "the logits of rank {rank} differ from those of rank 0: {difference}"
    NOT_EVALUATED = UnsupportedError, "after {step}: {cause}"
    NOT_FINITE = CheckError, "the logits after {step}, with which the others are compared, are not finite"

SCHEDULE = "schedule"
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Trial:
    """Input of the run after every pass: a prompt, then fixed tokens instead of the model's choices, so that a
    different choice does not change everything after it.

    Attributes:
        prompt: at least one token id.
        tokens: fed one by one after the prompt.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    @classmethod
    def random(cls, signature: Signature, prompt_tokens: int | None, steps: int, seed: int) -> Trial:
        """Return a trial of random tokens; by default its prompt is a quarter longer than the cache, if the context has
        room.

        Raises:
            UsageError: prompt and steps exceed the context, or the prompt has no token.
        """
        g = signature.geometry
        if steps < 0:
            raise BisectionErrors.BAD_STEPS(steps=steps)
        room = g.max_context - steps
        count = min(g.budget + g.budget // 4 + 1, room) if prompt_tokens is None else prompt_tokens
        if not 1 <= count <= room:
            raise BisectionErrors.TOO_LONG(prompt_tokens=count, steps=steps, max_context=g.max_context)
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, signature.vocab_size, (count + steps,), generator=generator).tolist()
        return cls(tuple(tokens[:count]), tuple(tokens[count:]))

    def logits(self, session: Session) -> Array:
        """Return the logits [1 + len(tokens), V] after the prompt, which is prefilled in two calls, and after each
        token.

        The last slot of the batch is used; the others stay empty.
        """
        slot = session.signature.batch - 1
        session.start_prefill(slot, self.prompt)
        half = -(-session.signature.prefill_steps(len(self.prompt)) // 2)
        while not session.step_prefill(half):
            pass
        rows = [session.prefill_logits]
        rows += [session.decode({slot: token})[slot] for token in self.tokens]
        return np.stack(rows)


@dataclass(frozen=True)
class StepOutcome:
    """Effect of a step of the compilation on the outputs.

    Attributes:
        name: pass, "schedule" for emission, or file.
        level: level of the module after the step.
        difference: difference from the first outputs; None for the first ones themselves.
        problem: reason why there are no outputs: an operation does something undefined, a weight is not one of the
            model's, or the schedule is malformed; "" if there are outputs.
    """

    name: str
    level: str
    difference: Difference | None
    problem: str = ""

    @property
    def error(self) -> float:
        """Largest ||a - b|| / ||b|| of a step's logits; infinite without outputs."""
        if self.problem:
            return math.inf
        return 0.0 if self.difference is None else self.difference.rowwise


Opening = Callable[[Sequence[Group]], Sequence[Session]]
"""Opens a session for each of these ranks."""


def _logits(trial: Trial, ranks: int, sessions: Opening) -> Array:
    """Return the logits that the ranks of a program compute together. Raises CheckError if ranks differ."""
    if ranks == 1:
        (session,) = sessions([ALONE])
        return trial.logits(session)
    groups = thread_groups(ranks)
    opened = sessions(groups)
    by_rank = run_ranks(groups, lambda group: trial.logits(opened[group.rank]))
    for rank, logits in enumerate(by_rank):
        if not np.array_equal(logits, by_rank[0], equal_nan=True):
            raise BisectionErrors.RANKS_DIFFER(rank=rank, difference=str(compare(logits, by_rank[0])))
    return by_rank[0]


class Bisection:
    """Comparison of the outputs of modules and programs, all with the same weights and the same trial. The ranks of
    sharded ones run concurrently, each in a thread.

    Args:
        tensors: returns every source of the weights and constants of the first runnable module.
        trial: returns the trial for the signature of the first runnable module.
        precision: "f32" computes in the program's own dtypes, "f64" everything in float64.
        kept: as in `KeepingReader`, for weights that are stored in formats of the program.
    """

    def __init__(
        self,
        tensors: Callable[[Layout, Layout], Tensors],
        trial: Callable[[Signature], Trial],
        precision: str = "f32",
        kept: Callable[[str, Encoding], Array | None] = lambda source, encoding: None,
    ) -> None:
        self._open, self._trial_of, self._precision, self._kept = tensors, trial, precision, kept
        self._tensors: Tensors | None = None
        self._trial: Trial | None = None
        self._first: Array | None = None

    def passes(self, module: ir.Module, passes: Sequence[Pass]) -> Iterator[StepOutcome]:
        """Run `passes` on `module` and yield an outcome after each pass that leaves it runnable.

        Raises:
            UnsupportedError: an operation that cannot be evaluated, with its location and the pass before it.
            CheckError: the first outputs are not finite, or computing them does something undefined.
        """
        for item in passes:
            run_passes(module, [item])
            if is_runnable(module):
                yield self.module(step_text(item), module)

    def module(self, name: str, module: ir.Module) -> StepOutcome:
        """Return the outcome of a module in its current form."""

        def sessions(groups: Sequence[Group]) -> list[Session]:
            weights = to_tensors(self._stored(stored_layout(module, "weight"), stored_layout(module, "constant")))
            return [module_session(module, weights, precision=self._precision, group=group) for group in groups]

        return self._outcome(name, get_level(module), prod(grid_of(module)), sessions, signature_of(module))

    def schedule(self, module: ir.Module) -> StepOutcome:
        """Return the outcome of the schedule that is emitted for `module`, on the reference interpreter."""
        program, signature = emit_program(module), signature_of(module)

        def session(group: Group) -> Session:
            layouts = [layout_of(program, role, group.rank) for role in ("weight", "constant")]
            conditions = Conditions(precision=self._precision, group=group)
            return Session(signature, Reference(program).open(self._stored(*layouts), conditions))

        return self._outcome(SCHEDULE, SCHEDULE, program.ranks, lambda groups: list(map(session, groups)), signature)

    def _stored(self, weights: Layout, constants: Layout) -> dict[str, Array]:
        if self._tensors is None:
            self._tensors = self._open(weights, constants)
        read = KeepingReader(reading(to_arrays(self._tensors), "the model"), self._kept)
        return stack_tensors({**weights, **constants}, read)

    def _outcome(
        self, name: str, level: str, ranks: int, sessions: Opening, signature: Signature
    ) -> StepOutcome:
        if self._trial is None:
            self._trial = self._trial_of(signature)
        try:
            logits = _logits(self._trial, ranks, sessions)
        except UnsupportedError as error:
            raise BisectionErrors.NOT_EVALUATED(step=name, cause=error) from None
        except (CheckError, InputError) as error:
            if self._first is None:
                raise
            return StepOutcome(name, level, None, problem=str(error))
        if self._first is None:
            if not np.isfinite(logits).all():
                raise BisectionErrors.NOT_FINITE(step=name)
            self._first = logits
            return StepOutcome(name, level, None)
        return StepOutcome(name, level, compare(logits, self._first))
