"""Whatever is wrong with a schedule: it is planned, or refused with an error of ours, and at once."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from sscc.ir.errors import InputError, InternalError
from sscc.runtime.codegen.features import GENERIC
from sscc.runtime.codegen.plan import NativePlan
from sscc.runtime.codegen.planner import plan_program
from sscc.runtime.schedule import Program
from tests.runtime.broken import bases
from tests.runtime.broken.mutations import BROKEN, Broken

BASES = (bases.streamed_product, bases.looped_layers, bases.chunked_prefill, bases.chained_launches)
Path = tuple[Any, ...]


def plan_or_refuse(make: Callable[[], Program]) -> bool:
    """Whether there is a plan. One that is made can be stored."""
    start = time.perf_counter()
    planned = False
    with contextlib.suppress(InputError, InternalError):
        plan = plan_program(make(), GENERIC).plan
        assert NativePlan.decode(plan.encode()) == plan
        planned = True
    assert time.perf_counter() - start < 5
    return planned


@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.name)
def test_broken_schedules(broken: Broken) -> None:
    plan_or_refuse(broken.program)


@pytest.mark.parametrize("base", BASES, ids=lambda b: b.__name__)
def test_what_is_in_a_schedule_may_be_anything(base: Callable[[], Program]) -> None:
    """Numbers, names and lists changed at random, one or two at a time."""
    draw, text = random.Random(base.__name__), base().to_json()
    assert plan_or_refuse(base)
    refused = 0
    for _ in range(150):
        data = json.loads(text)
        for _ in range(draw.randint(1, 2)):
            _change(data, draw)
        refused += not plan_or_refuse(partial(Program.from_json, json.dumps(data)))
    assert refused > 20


def _change(data: Any, draw: random.Random) -> None:
    paths = [path for path in _paths(data) if path]
    *inside, last = draw.choice(paths)
    holder = _at(data, tuple(inside))
    old = holder[last]
    if isinstance(old, str):
        names = [_at(data, path) for path in paths if path[-1] == last]
        holder[last] = draw.choice([*(name for name in names if isinstance(name, str)), "", "lost"])
    elif isinstance(old, list):
        holder[last] = draw.choice([old[:-1], old[1:], old + old[:1]])
    else:
        holder[last] = draw.choice([0, 1, -1, 2, old + 1, old - 1, old * 2, 1 << 40])


def _paths(node: Any, path: Path = ()) -> Iterator[Path]:
    """Of every number, name and list."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _paths(value, (*path, key))
        return
    yield path
    if isinstance(node, list):
        for number, value in enumerate(node):
            yield from _paths(value, (*path, number))


def _at(node: Any, path: Path) -> Any:
    for key in path:
        node = node[key]
    return node
