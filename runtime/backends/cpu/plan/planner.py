"""Translation of a schedule to a plan and the code that it calls.

Launches are replaced by the bodies of their kernels, and the iterations of a pipeline run one after another. In an
iteration, each stage fires its whole grid before the next stage starts. The buffers allow this order, because here they
have a slot for each write of an iteration. There is a barrier only where a thread may access data of another thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import Entry, For, If, Item, Launch, Pipeline, Program, Scalar
from sscc.runtime.backends.cpu.codegen.features import Features
from sscc.runtime.backends.cpu.codegen.mlir import Module
from sscc.runtime.backends.cpu.plan import plan as plans
from sscc.runtime.backends.cpu.plan.barriers import Pending
from sscc.runtime.backends.cpu.plan.draft import PlanDraft, Track
from sscc.runtime.backends.cpu.plan.pipelines import KernelCall, plan_pipeline
from sscc.runtime.backends.cpu.plan.storage import Packings
from sscc.runtime.backends.cpu.plan.weights import packed_weights


class NativePlannerErrors(ErrorKind):
    LAUNCH_IN_KERNEL = InputError, "the schedule is malformed: a kernel launches kernel {kernel!r}"
    PIPELINE_OUTSIDE = InputError, "the schedule is malformed: pipeline {pipeline!r} is outside a kernel"


@dataclass(frozen=True)
class Native:
    """Plan and code of a program. The weights are separate, packed as `packed_weights` decides.

    Attributes:
        plan: control flow, memory and calls.
        module: functions that the plan calls.
    """

    plan: plans.NativePlan
    module: Module


def plan_program(
    program: Program, features: Features, module: Module | None = None, packings: Packings | None = None
) -> Native:
    """Return the plan of all entries of a program.

    Args:
        program: schedule.
        features: CPU features that the code may use.
        module: empty module for the functions; None for a new `Module`.
        packings: packings of the weights; None for the result of `packed_weights`.

    Raises InputError for a schedule that native execution does not support, with the name of the stage or kernel.
    """
    packed = packed_weights(program) if packings is None else packings
    draft = PlanDraft(program, features, Module() if module is None else module, packed)
    entries = tuple(_entry(draft, entry) for entry in program.entries)
    return Native(draft.finish(entries), draft.module)


def _entry(draft: PlanDraft, entry: Entry) -> plans.PlanEntry:
    env = {name: draft.register() for name in entry.scalar_inputs}
    rank = None if draft.windows is None else draft.register()
    inputs = (*env.values(), *(() if rank is None else (rank,)))
    track = Track(draft, rank)
    body = _Control(track).block(entry.body, env)
    outputs = tuple(draft.operand(o, env) for o in entry.scalar_outputs)
    return plans.PlanEntry(entry.name, inputs, outputs, (*track.preface, *body))


class _Control:
    """Translation of control flow to items of the plan."""

    def __init__(self, track: Track) -> None:
        self.track = track
        self.draft = track.draft

    def block(self, items: Sequence[Item], env: dict[str, int], call: KernelCall | None = None) -> list[plans.Item]:
        """Translate items in order. `env` maps scalars to registers and is extended; `call` is the enclosing kernel."""
        out: list[plans.Item] = []
        for item in items:
            match item:
                case Scalar():
                    out.append(self.track.scalar(item, env))
                case For():
                    out += self._for(item, env, call)
                case If():
                    out.append(self._if(item, env, call))
                case Launch():
                    if call is not None:
                        raise NativePlannerErrors.LAUNCH_IN_KERNEL(kernel=item.kernel)
                    out += self._launch(item, env)
                case Pipeline():
                    if call is None:
                        raise NativePlannerErrors.PIPELINE_OUTSIDE(pipeline=item.name)
                    out += plan_pipeline(self.track, call, item, env)
        return out

    def _for(self, item: For, env: dict[str, int], call: KernelCall | None) -> list[plans.Item]:
        lower, upper = self.draft.operand(item.lower, env), self.draft.operand(item.upper, env)
        index = self.draft.register()
        return self.track.loop(index, lower, upper, lambda: self.block(item.body, {**env, item.index: index}, call))

    def _if(self, item: If, env: dict[str, int], call: KernelCall | None) -> plans.Item:
        register = self.draft.operand(item.condition, env)
        skipped = Pending(set(self.track.pending.reads), set(self.track.pending.writes))
        body = self.block(item.body, dict(env), call)
        self.track.pending = self.track.pending.joined(skipped)
        return plans.Branch(register, tuple(body))

    def _launch(self, launch: Launch, env: dict[str, int]) -> list[plans.Item]:
        kernel = self.draft.kernels[launch.kernel]
        inner = {n: self.draft.operand(o, env) for n, o in zip(kernel.scalars, launch.scalars, strict=True)}
        views = dict(zip((p.name for p in kernel.params), launch.args, strict=True))
        terms = {n: tuple((self.draft.operand(s, env), c) for s, c in view.terms) for n, view in views.items()}
        return self.block(kernel.body, inner, KernelCall(kernel, views, terms))
