"""Records of a pass run: changes and statistics; the spelling of a pass and its options; and broken IR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from torch_mlir import ir

from sscc.ir.context import mlir, parse_module
from sscc.ir.errors import ErrorKind
from sscc.passes.base import Observer, Pass, PassErrors, count, options_of, run_passes, step_text
from tests.errors import raises


@pytest.fixture(autouse=True)
def _context() -> Iterator[None]:
    with mlir():
        yield


@dataclass(frozen=True)
class Renaming(Pass):
    """A pass that gives the module's functions longer names, or changes nothing."""

    name: ClassVar[str] = "renaming"
    takes: ClassVar[tuple[str, ...]] = ()
    level: ClassVar[str] = "graph"

    ending: str = ""
    loud_voice: bool = False

    def run(self, module: ir.Module) -> None:
        count("runs")
        for function in module.body.operations:
            count("functions")
            count("letters", len(self.ending))
            function.attributes["sym_name"] = ir.StringAttr.get(function.name.value + self.ending)


class Watching(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, bool | None]] = []
        self.texts: list[str] = []

    def before(self, name: str, text: str) -> None:
        self.seen.append((name, None))
        self.texts.append(text)

    def after(self, name: str, text: str, changed: bool) -> None:
        self.seen.append((name, changed))
        self.texts.append(text)


def two_functions() -> ir.Module:
    functions = "func.func private @a() func.func private @b()"
    return parse_module(f'module attributes {{sscc.level = "graph"}} {{ {functions} }}', "the test")


def test_what_a_pass_did() -> None:
    watching = Watching()
    times = run_passes(two_functions(), [Renaming("xyz"), Renaming(), Renaming("q")], [watching])
    counted = {"runs": 1, "functions": 2}
    assert [time.statistics for time in times] == [counted | {"letters": n} for n in (6, 0, 2)]
    assert all(time.name == "renaming" and 0 <= time.seconds < 60 for time in times)
    assert watching.texts[1::2][:-1] == watching.texts[2::2]
    assert "@axyz" in watching.texts[1]
    assert watching.seen == [("renaming", each) for time in times for each in (None, time.changed)]
    assert times[0].changed
    count("nothing")  # where no pass runs


def test_without_observers_everything_may_have_changed() -> None:
    assert [time.changed for time in run_passes(two_functions(), [Renaming()])] == [True]


def test_how_a_pass_is_written() -> None:
    assert options_of(Renaming) == {"ending": (str, ""), "loud-voice": (bool, False)}
    assert step_text(Renaming()) == "renaming"
    assert step_text(Renaming(loud_voice=True)) == "renaming{loud-voice=true}"
    assert step_text(Renaming("x", loud_voice=True)) == "renaming{ending=x loud-voice=true}"


@pytest.mark.parametrize(
    ("each", "kind", "fields"),
    [(True, PassErrors.ILLEGAL_IR, {"name": "breaking"}), (False, PassErrors.ILLEGAL_IR, {"name": "renaming"})],
)
def test_a_pass_that_leaves_invalid_ir_is_named(each: bool, kind: ErrorKind, fields: dict[str, Any]) -> None:
    class Breaking(Renaming):
        name: ClassVar[str] = "breaking"

        def run(self, module: ir.Module) -> None:
            for function in module.body.operations:
                function.attributes["sym_name"] = ir.StringAttr.get("same")

    with raises(kind, **fields):
        run_passes(two_functions(), [Breaking(), Renaming()], verify_each=each)
