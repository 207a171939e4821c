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
from sscc.compiler.options.compile_options import CompileArguments, CompileOptions
from sscc.compiler.tools.commands.cli import main
from sscc.compiler.tools.commands.parser import (
    FIRST,
    REMOVED,
    CommandLineErrors,
    Parser,
    build_parser,
    command_parsers,
)
from sscc.ir.option import (
    FINITE,
    OptionRangeErrors,
    check_options,
    described_fields,
    flag_of,
    option,
    option_like,
    options_of,
    records_of,
)
from sscc.ir.sizes import parse_bytes
from sscc.ir.suggestions import ChoiceErrors
from tests.errors import check, one_line, raises

PARSERS = command_parsers(build_parser())


@dataclass(frozen=True)
class Small:
    place: Path = option(dataclasses.MISSING, "a place", "PLACE", positional=True)
    count: int | None = option(None, "number of items", "N", default="few", least=2)
    share: float = option(0.5, "a share", "X", least=0, most=1, exclusive=True)
    size: int | None = option(None, "a size", "BYTES", parse=parse_bytes, least=0, most=FINITE)
    folder: Path | None = option(None, "a folder", "DIR", one_of="places")
    other: Path | None = option(None, "another folder", "DIR", one_of="places")
    names: tuple[str, ...] = option((), "names", "NAME")
    numbers: tuple[int, ...] = option((1, 2), "numbers", "N", words=True, least=1)
    more: tuple[int, ...] = option((), "more numbers", "N", words=True)
    kind: str | None = option(None, "a kind", "KIND", choices=("a", "b"), model_choices=("a",), model_default="a")
    shown: str | None = option(None, "a part", "PART", optional_value="all")
    quick: bool = option(False, "be quick")
    careful: bool = option(lambda: True, "be careless", flags=("-c", "--no-care"), inverted=True)
    plain: int = 3

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True)
class Alike:
    counts: tuple[int, ...] = option_like(Small, "count", (), words=True)


def parser_of(**settings: Any) -> Parser:
    parser = Parser(prog="sscc small", add_help=False)
    parser.add_options(Small, **settings)
    return parser


def parsed(*words: str, **settings: Any) -> dict[str, Any]:
    return vars(parser_of(**settings).parse_args(["here", *words]))


def test_a_record_is_an_option_of_its_type() -> None:
    empty = {
        "place": Path("here"), "count": None, "share": 0.5, "size": None, "folder": None, "other": None, "names": [],
        "numbers": (1, 2), "more": [], "kind": None, "shown": None, "quick": False,
    }  # fmt: skip
    assert parsed() == empty
    words = "--count 3 --share 0.25 --size 2K --folder x --names a --names b --numbers 4 5 --more 1 --more 2 3 --kind b"
    assert parsed(*words.split(), "--quick", "-c", "--shown") == {
        "place": Path("here"), "count": 3, "share": 0.25, "size": 2048, "folder": Path("x"), "other": None,
        "names": ["a", "b"], "numbers": [4, 5], "more": [1, 2, 3], "kind": "b", "shown": "all", "quick": True,
        "careful": False,
    }  # fmt: skip
    with raises(ChoiceErrors.UNKNOWN):
        parsed("--kind", "b", of_models=True)
    of_models = parsed(of_models=True)
    assert (of_models["share"], of_models["size"]) == (0.5, None)
    assert flag_of("careful", records_of(Small)["careful"]) == "--no-care"
    with raises(CommandLineErrors.INVALID):
        parsed("--folder", "x", "--other", "y")
    with raises(CommandLineErrors.INVALID):
        parser_of().parse_args([])


def test_a_parsed_command_line_gives_a_dataclass() -> None:
    parser = parser_of(names=[name for name in records_of(Small) if name != "kind"])
    args = parser.parse_args(["here", "--names", "a", "--size", "1K"])
    assert options_of(Small, args, plain=4) == Small(Path("here"), size=1024, names=("a",), plain=4)


def test_another_dataclass_may_have_a_record_too() -> None:
    record = records_of(Alike)["counts"]
    assert (record.help, record.least, record.flags) == ("number of items", 2, ("--count",))
    assert Alike().counts == ()


def test_bounds_and_choices() -> None:
    assert Small(Path(), count=2, kind="a").careful
    with raises(OptionRangeErrors.TOO_SMALL, option="--count", value=1, least=2):
        Small(Path(), count=1)
    with raises(OptionRangeErrors.NOT_ABOVE, option="--share", value=0, least=0, most=1):
        Small(Path(), share=0)
    with raises(OptionRangeErrors.NOT_ABOVE, option="--share", value="nan"):
        parsed("--share", "nan")
    with raises(OptionRangeErrors.OUT_OF_RANGE, option="--size", value="inf"):
        Small(Path(), size=10**400)
    with raises(OptionRangeErrors.TOO_SMALL, option="--numbers", value=0, least=1):
        parsed("--numbers", "1", "0")
    with raises(ChoiceErrors.UNKNOWN):
        Small(Path(), kind="c")


def test_descriptions() -> None:
    texts = {name: text for name, _, text in described_fields(Small)}
    assert texts["count"] == "number of items (default: few)"
    assert texts["careful"] == "False: be careless"
    assert texts["share"] == "a share (default: 0.5)"
    assert "plain" not in texts
    assert records_of(Small)["kind"].described(of_models=True) == "a kind (default: a)"


def test_every_option_of_a_compilation_has_a_record_and_a_type_for_editors() -> None:
    names = {field.name for field in dataclasses.fields(CompileOptions)}
    assert {*records_of(CompileOptions)} == names - {"weight_format"}
    assert {*CompileArguments.__annotations__} == names - {"model"}
    actions = {action.dest for action in PARSERS["compile"]._actions}
    assert {*records_of(CompileOptions)} <= actions
    assert {*OF_MODELS} <= {action.dest for action in PARSERS["serve"]._actions}


def own_actions(command: str) -> list[argparse.Action]:
    """The options and arguments of a command beside those of every command."""
    common = ("-h", "--help-all", "--traceback")
    return [action for action in PARSERS[command]._actions if not {*action.option_strings} & {*common}]


@pytest.mark.parametrize("command", PARSERS)
def test_every_option_of_a_command_has_a_record(command: str) -> None:
    parser = PARSERS[command]
    assert isinstance(parser, Parser)
    assert {action.dest for action in own_actions(command)} == {*parser._records}


NOT_A_NOUN_OR_VERB = {
    "of", "then", "and", "with", "how", "what", "which", "where", "whether", "that", "as", "by", "for", "on", "in",
    "from", "the", "a", "also", "more", "these", "those", "its", "when", "if",
}  # fmt: skip


@pytest.mark.parametrize("command", PARSERS)
def test_help_begins_with_a_noun_or_a_verb(command: str) -> None:
    for action in own_actions(command):
        first = str(action.help).split()[0]
        name = max(action.option_strings, key=len, default=action.dest)
        assert first[0].isalpha(), f"{command} {name}: {action.help}"
        assert first.lower().rstrip(",:") not in NOT_A_NOUN_OR_VERB, f"{command} {name}: {action.help}"


@pytest.mark.parametrize("removed", REMOVED)
def test_a_removed_option_is_refused_with_its_replacement(removed: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, _, option_ = removed.rpartition(" ")
    for name in [command] if command else ["compile", "run", "serve", "bisect", "eval"]:
        assert option_ not in PARSERS[name]._option_string_actions
        words = ["x", "-o", "x"] if name == "eval" else ["x", "y"] if name == "diff" else ["x"]
        error = one_line([name, *words, f"{option_}=1"], capsys)
        check(error, CommandLineErrors.REMOVED, option=option_, replacement=REMOVED[removed])


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
        assert len(own_actions(command)) <= 10
        return
    assert texts["--help-all"] == every
    listed = [line for line in texts["--help"].partition("examples:")[0].splitlines() if line.startswith("  -")]
    shown = {word.rstrip(",") for line in listed for word in line.split()}
    hidden = [action for action in own if action not in first and action.dest not in ("help", argparse.SUPPRESS)]
    assert all(shown.isdisjoint(action.option_strings) for action in hidden)
    assert f"{len(hidden)} more options: sscc {command} --help-all{os.linesep}" in texts["--help"]
