"""Records of options: command line, checks, references and keys of caches derive from them."""

from __future__ import annotations

import argparse
import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sscc.compiler.driver.model_cache import OF_MODELS
from sscc.compiler.options.compile_options import CompileArguments, CompileOptions, OptionErrors
from sscc.compiler.options.option import add_options, check_options, described_fields, flag_of, option, records_of
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.parser import FIRST, Parser, build_parser, command_parsers
from sscc.ir.suggestions import ChoiceErrors
from tests.errors import raises

PARSERS = command_parsers(build_parser())


@dataclass(frozen=True)
class Small:
    count: int | None = option(None, "how many", "N", default="few", least=2)
    share: float = option(0.5, "a share", "X")
    folder: Path | None = option(None, "a folder", "DIR")
    names: tuple[str, ...] = option((), "names", "NAME")
    kind: str | None = option(None, "a kind", "KIND", choices=("a", "b"), model_choices=("a",), model_default="a")
    quick: bool = option(False, "be quick")
    careful: bool = option(lambda: True, "be careless", flags=("-c", "--no-care"), inverted=True)
    plain: int = 3

    def __post_init__(self) -> None:
        check_options(self, OptionErrors.TOO_SMALL)


def parsed(*words: str, **settings: Any) -> dict[str, Any]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, Small, list(records_of(Small)), **settings)
    return vars(parser.parse_args(words))


def test_a_record_is_an_option_of_its_type() -> None:
    empty = {"count": None, "share": 0.5, "folder": None, "names": [], "kind": None, "quick": False}
    assert parsed() == empty
    words = "--count 3 --share 0.25 --folder x --names a --names b --kind b --quick -c"
    assert parsed(*words.split()) == {
        "count": 3, "share": 0.25, "folder": Path("x"), "names": ["a", "b"], "kind": "b", "quick": True,
        "careful": False,
    }  # fmt: skip
    with pytest.raises(argparse.ArgumentError):
        parsed("--kind", "b", of_models=True)
    assert parsed(of_models=True)["share"] is None
    assert flag_of("careful", records_of(Small)["careful"]) == "--no-care"


def test_bounds_and_choices() -> None:
    assert Small(count=2, kind="a").careful
    with raises(OptionErrors.TOO_SMALL, option="--count", value=1, least=2):
        Small(count=1)
    with raises(ChoiceErrors.UNKNOWN):
        Small(kind="c")


def test_descriptions() -> None:
    texts = {name: text for name, _, text in described_fields(Small)}
    assert texts["count"] == "how many (default: few)"
    assert texts["careful"] == "False: be careless"
    assert "plain" not in texts
    assert records_of(Small)["kind"].described(of_models=True) == "a kind (default: a)"


def test_every_option_of_a_compilation_has_a_record_and_a_type_for_editors() -> None:
    names = {field.name for field in dataclasses.fields(CompileOptions)} - {"model"}
    assert {*records_of(CompileOptions)} == names - {"weight_format"}
    assert {*CompileArguments.__annotations__} == names | {"policy"}
    actions = {action.dest for action in PARSERS["compile"]._actions}
    assert {*records_of(CompileOptions)} <= actions
    assert {*OF_MODELS} <= {action.dest for action in PARSERS["run"]._actions}


def test_what_a_dump_holds_is_of_the_program() -> None:
    records = records_of(CompileOptions)
    assert all(record.identity for record in records.values() if record.in_dump or record.of_models)
    assert all(record.in_dump for record in records.values() if record.rows)


@pytest.mark.parametrize("command", PARSERS)
def test_help_shows_ten_options_at_most(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = PARSERS[command]
    assert isinstance(parser, Parser)
    own = [action for action in parser._actions if action.option_strings and action.help is not argparse.SUPPRESS]
    first = [action for action in own if {*action.option_strings} & {*FIRST.get(command, ())}]
    assert len(first) == len(FIRST.get(command, ())) <= 10
    texts = {}
    for word in ("--help", "--help-all") if first else ("--help",):
        with pytest.raises(SystemExit) as end:
            main([command, word])
        assert end.value.code == 0
        texts[word] = capsys.readouterr().out
    every = parser.format_help()
    longest = {action.dest: max(action.option_strings, key=len) for action in own}
    assert all(name in every for name in longest.values())
    if not first:
        assert texts["--help"] == every
        assert len(own) <= 13
        return
    assert texts["--help-all"] == every
    listed = [line for line in texts["--help"].partition("examples:")[0].splitlines() if line.startswith("  -")]
    shown = {word.rstrip(",") for line in listed for word in line.split()}
    hidden = [action for action in own if action not in first and action.dest not in ("help", argparse.SUPPRESS)]
    assert all(shown.isdisjoint(action.option_strings) for action in hidden)
    assert f"{len(hidden)} more options: sscc {command} --help-all{os.linesep}" in texts["--help"]
