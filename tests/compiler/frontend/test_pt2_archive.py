"""Archives that would run code in torch's reader: each is refused in words, at once, and nothing of it runs."""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from sscc.compiler.frontend.checkpoint import open_checkpoint
from sscc.compiler.frontend.pt2_archive import Pt2Errors
from sscc.compiler.frontend.pt2_expressions import NotASize, parse_size
from sscc.compiler.frontend.pt2_operators import ATEN, find_operator
from sscc.compiler.frontend.pt2_program import Pt2ProgramErrors
from sscc.compiler.frontend.stored_zip import StoredZip, StoredZipErrors
from sscc.compiler.tools.commands import cli
from sscc.ir.errors import ErrorKind, SsccError
from sscc.ir.files import FileErrors
from tests.compiler.frontend.pt2_files import CONSTANTS, PROGRAM, WEIGHTS, edited, members, save_own, with_edit, write
from tests.errors import check, raises

MOST_SECONDS = 1.0
MOST_MEMORY = 256 << 20


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = save_own(tmp_path_factory.mktemp("pt2") / "own.pt2")
    open_checkpoint(path)  # imports what is slow
    return path


class Payload:
    """A pickle that makes a file where it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def call(marker: Path) -> str:
    """A text that makes a file where Python evaluates it."""
    return f"__import__('pathlib').Path({str(marker)!r}).touch()"


_events: list[str] | None = None


def _note(event: str, arguments: Any) -> None:
    if _events is not None and event in ("exec", "os.system", "subprocess.Popen", "ctypes.dlopen", "pickle.find_class"):
        _events.append(f"{event} {arguments!r:.200}")


sys.addaudithook(_note)


@contextmanager
def refused_at_once(marker: Path) -> Iterator[pytest.ExceptionInfo[SsccError]]:
    """Expect an error, within bounds of time and memory, and nothing executed: no code object, no library, no pickle,
    and no file at `marker`."""
    global _events
    began, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _events = []
    try:
        with pytest.raises(SsccError) as caught:
            yield caught
        seen = _events
    finally:
        _events = None
    assert not seen
    assert not marker.exists()
    assert time.process_time() - began < MOST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10 < MOST_MEMORY


# ------------------------------------------------------------------------------------------------ the four routes


def _first_size(program: Any, text: str) -> None:
    values = program["graph_module"]["graph"]["tensor_values"]
    values["ids"]["sizes"][0]["as_expr"]["expr_str"] = text


WRAPPED = ("{}", "Mul(Integer(2), {})", "Symbol('s0', {})", "Integer({})", "[{}]", "f'{{{}}}'")


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_symbolic_sizes_are_not_evaluated(own: Path, tmp_path: Path, wrapped: str) -> None:
    marker = tmp_path / "ran"
    text = wrapped.format(call(marker))
    path = with_edit(own, tmp_path / "a.pt2", PROGRAM, lambda program: _first_size(program, text))
    with refused_at_once(marker) as caught:
        open_checkpoint(path)
    check(caught.value, Pt2ProgramErrors.SIZE, where=_where("graph.tensor_values.ids.sizes"), text=text)
    assert "--trust-pt2" in str(caught.value)


def _where(rest: str) -> str:
    return f"{PROGRAM}: graph_module.{rest}"


@pytest.mark.parametrize("table", ["sym_int_values", "sym_bool_values", "tensor_values"])
def test_no_table_of_symbols_is_evaluated(own: Path, tmp_path: Path, table: str) -> None:
    marker = tmp_path / "ran"
    expression = {"as_expr": {"expr_str": call(marker), "hint": None}}

    def change(program: Any) -> None:
        graph = program["graph_module"]["graph"]
        if table == "tensor_values":
            graph[table]["ids"]["strides"][0] = expression
        else:
            graph[table]["another"] = expression

    with refused_at_once(marker) as caught:
        open_checkpoint(with_edit(own, tmp_path / "a.pt2", PROGRAM, change))
    assert caught.value.kind is Pt2ProgramErrors.SIZE


@pytest.mark.parametrize("name", ["model/a.so", "model/wrapper.so", "evil/x.cpp", "model/weights_config.json"])
def test_no_library_is_opened(own: Path, tmp_path: Path, name: str) -> None:
    contents = members(own) | {f"data/aotinductor/{name}": b"\x7fELF"}
    with refused_at_once(tmp_path / "ran") as caught:
        open_checkpoint(write(tmp_path / "a.pt2", contents))
    check(caught.value, Pt2Errors.MEMBER_UNKNOWN, name=f"data/aotinductor/{name}")


@pytest.mark.parametrize("name", ["opaque_obj_0", "custom_obj_0", "tensor_0"])
@pytest.mark.parametrize("pickled", [True, False])
def test_no_constant_is_unpickled(own: Path, tmp_path: Path, name: str, pickled: bool) -> None:
    marker = tmp_path / "ran"
    contents = members(own) | {f"data/constants/{name}": pickle.dumps(Payload(marker), protocol=2)}
    with edited(contents, CONSTANTS) as config:
        first = config["config"]["frequencies"]
        first |= {"path_name": name, "use_pickle": pickled}
        first["tensor_meta"] = first["tensor_meta"] if name == "tensor_0" else None
    with refused_at_once(marker):
        open_checkpoint(write(tmp_path / "a.pt2", contents))


def test_no_weight_is_unpickled(own: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    contents = members(own) | {"data/weights/weight_0": pickle.dumps(Payload(marker), protocol=2)}
    with edited(contents, WEIGHTS) as config:
        config["config"]["embed.weight"]["use_pickle"] = True
    path = write(tmp_path / "a.pt2", contents)
    for program in (True, False):
        with refused_at_once(marker) as caught:
            open_checkpoint(path, program=program)
        check(caught.value, Pt2Errors.PICKLED, tensor="embed.weight")


@pytest.mark.parametrize(
    "name", ["data/sample_inputs/model.PT", "models/model.PT", "data/weights/model.pt", "data/constants/model.pt"]
)
def test_members_of_older_forms_and_in_another_case_are_not_read(own: Path, tmp_path: Path, name: str) -> None:
    marker = tmp_path / "ran"
    contents = members(own) | {name: pickle.dumps(Payload(marker), protocol=2)}
    with refused_at_once(marker):
        open_checkpoint(write(tmp_path / "a.pt2", contents))


def test_sample_inputs_are_not_read(own: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    contents = members(own) | {"data/sample_inputs/model.pt": pickle.dumps(Payload(marker), protocol=2)}
    assert open_checkpoint(write(tmp_path / "a.pt2", contents)).program is not None
    assert not marker.exists()


# ---------------------------------------------------------------------------------------- other parts of a program


def _node(program: Any) -> Any:
    return program["graph_module"]["graph"]["nodes"][2]


CHANGES: dict[str, tuple[Callable[[Any, str], Any], ErrorKind]] = {
    "a function of torch": (
        lambda program, code: _node(program).update(target="torch.hub.load"),
        Pt2ProgramErrors.OPERATOR,
    ),
    "a builtin": (lambda program, code: _node(program).update(target="_operator.call"), Pt2ProgramErrors.OPERATOR),
    "a file": (
        lambda program, code: _node(program).update(target="torch.ops.aten.from_file.default"),
        Pt2ProgramErrors.OPERATOR,
    ),
    "a list's product": (
        lambda program, code: _node(program).update(target="torch.ops.aten.mul.left_t"),
        Pt2ProgramErrors.OPERATOR,
    ),
    "code as a target": (lambda program, code: _node(program).update(target=code), Pt2ProgramErrors.OPERATOR),
    "code as a node's name": (lambda program, code: _node(program).update(name=code), Pt2ProgramErrors.VALUE),
    "an extension": (lambda program, code: _node(program).update(target="#x:y"), Pt2ProgramErrors.OPERATOR),
    "code as a parameter's name": (
        lambda program, code: program["graph_module"]["signature"]["input_specs"][0]["parameter"].update(
            parameter_name=code
        ),
        Pt2ProgramErrors.VALUE,
    ),
    "code as the name of an argument": (
        lambda program, code: program["graph_module"]["module_call_graph"][0]["signature"].update(
            forward_arg_names=[code, "positions"]
        ),
        Pt2ProgramErrors.VALUE,
    ),
    "code as a tree": (
        lambda program, code: program["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec=json.dumps([1, {"type": code, "context": "null", "children_spec": []}])
        ),
        Pt2ProgramErrors.VALUE,
    ),
    "an enum as a tree's key": (
        lambda program, code: program["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec=json.dumps(
                [1, {"type": "builtins.dict", "context": '[{"__enum__": true, "fqn": "os:x"}]', "children_spec": []}]
            )
        ),
        Pt2ProgramErrors.VALUE,
    ),
    "a custom object": (
        lambda program, code: program["graph_module"]["graph"].update(custom_obj_values={"x": {}}),
        Pt2ProgramErrors.VALUE,
    ),
    "a verifier": (lambda program, code: program.update(verifiers=["os"]), Pt2ProgramErrors.VALUE),
    "a range of code": (
        lambda program, code: program.update(range_constraints={code: {"min_val": 1, "max_val": 2}}),
        Pt2ProgramErrors.VALUE,
    ),
    "an unknown field": (lambda program, code: program.update(extra=code), Pt2ProgramErrors.FIELD_UNKNOWN),
    "no graph": (lambda program, code: program["graph_module"].pop("graph"), Pt2ProgramErrors.FIELD_MISSING),
    "a device": (
        lambda program, code: program["graph_module"]["graph"]["tensor_values"]["ids"]["device"].update(type="cuda"),
        Pt2ProgramErrors.VALUE,
    ),
    "a result that nothing computes": (
        lambda program, code: program["graph_module"]["graph"]["outputs"][0]["as_tensor"].update(name="nowhere"),
        Pt2ProgramErrors.NAME_UNKNOWN,
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_torch_would_look_up_or_paste_into_python(own: Path, tmp_path: Path, name: str) -> None:
    change, kind = CHANGES[name]
    marker = tmp_path / "ran"
    path = with_edit(own, tmp_path / "a.pt2", PROGRAM, lambda program: change(program, call(marker)))
    with refused_at_once(marker) as caught:
        open_checkpoint(path)
    assert caught.value.kind is kind, str(caught.value)


def test_notes_and_guards_are_text_or_left_out(own: Path, tmp_path: Path) -> None:
    """Guards are Python source, and notes name functions; neither is used, so neither is refused."""
    marker = tmp_path / "ran"

    def change(program: Any) -> None:
        program["guards_code"] = [call(marker)]
        for node in program["graph_module"]["graph"]["nodes"]:
            node["metadata"]["source_fn_stack"] = f"x,torch.hub.load;y,{call(marker).replace(',', '')}"
            node["metadata"]["stack_trace"] = f'File "a.py", line 3, in forward\n  x\n{call(marker)}'
            node["metadata"]["custom"] = "{}"

    program: Any = open_checkpoint(with_edit(own, tmp_path / "a.pt2", PROGRAM, change)).program
    program.module()(torch.zeros(1, 3, dtype=torch.int64), torch.arange(3)[None])
    assert not marker.exists()
    node = next(node for node in program.graph.nodes if node.op == "call_function" and node.meta.get("stack_trace"))
    assert node.meta["stack_trace"] == 'File "a.py", line 3, in forward'
    assert "source_fn_stack" not in node.meta


def test_whole_numbers_do_not_grow_without_bound(own: Path, tmp_path: Path) -> None:
    def change(program: Any) -> None:
        graph = program["graph_module"]["graph"]
        name = "sym_size_int_5" if "sym_size_int_5" in graph["sym_int_values"] else next(iter(graph["sym_int_values"]))
        for step in range(40):
            argument = {"name": "", "arg": {"as_sym_int": {"as_name": name}}, "kind": 1}
            name = f"squared_{step}"
            graph["sym_int_values"][name] = graph["sym_int_values"][next(iter(graph["sym_int_values"]))]
            outputs = [{"as_sym_int": {"as_name": name}}]
            node = {"target": "_operator.mul", "inputs": [argument] * 2, "outputs": outputs, "metadata": {}}
            graph["nodes"].append(node)

    with refused_at_once(tmp_path / "ran") as caught:
        open_checkpoint(with_edit(own, tmp_path / "a.pt2", PROGRAM, change))
    assert caught.value.kind is Pt2ProgramErrors.BITS


@pytest.mark.parametrize(
    ("sizes", "strides", "offset"),
    [([16, 17], [17, 1], 0), ([16, 16], [16, 1], 1), ([2**40, 16], [0, 1], 0), ([16, 16], [2**62, 1], 0)],
)
def test_tensors_stay_within_their_bytes(
    own: Path, tmp_path: Path, sizes: list[int], strides: list[int], offset: int
) -> None:
    def change(config: Any) -> None:
        meta = config["config"]["embed.weight"]["tensor_meta"]
        meta["sizes"], meta["strides"] = ([{"as_int": value} for value in values] for values in (sizes, strides))
        meta["storage_offset"] = {"as_int": offset}

    path = with_edit(own, tmp_path / "a.pt2", WEIGHTS, change)
    with raises(Pt2Errors.OUT_OF_BOUNDS, tensor="embed.weight", sizes=sizes, elements=256):
        open_checkpoint(path)


# ------------------------------------------------------------------------------------------------------- the zip


def test_members_twice_or_in_another_case(own: Path, tmp_path: Path) -> None:
    for second in (PROGRAM, PROGRAM.upper(), "models/Model.json"):
        path = tmp_path / "a.pt2"
        path.write_bytes(own.read_bytes())
        with zipfile.ZipFile(path, "a") as archive, pytest.warns() if second == PROGRAM else _nothing():
            archive.writestr(f"own/{second}", b"{}")
        with refused_at_once(tmp_path / "ran") as caught:
            open_checkpoint(path)
        check(caught.value, StoredZipErrors.TWICE, name=f"own/{second}")


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@pytest.mark.parametrize("name", ["../x", "own/../../x", "/etc/x", "own//x", "own/a\\b", "own/\u00e9", "own/a\nb"])
def test_names_that_leave_the_archive(own: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, b"x")
    with refused_at_once(tmp_path / "ran") as caught:
        open_checkpoint(path)
    assert caught.value.kind is StoredZipErrors.NAME


def test_a_bomb_is_not_unpacked(own: Path, tmp_path: Path) -> None:
    contents = {PROGRAM: b"[" * (100 << 20)}
    path = write(tmp_path / "a.pt2", contents, method=zipfile.ZIP_DEFLATED)
    with refused_at_once(tmp_path / "ran") as caught:
        open_checkpoint(path)
    check(caught.value, StoredZipErrors.NOT_STORED, name=f"own/{PROGRAM}")


def test_brackets_without_end(own: Path, tmp_path: Path) -> None:
    contents = members(own)
    path = write(tmp_path / "a.pt2", contents | {PROGRAM: b"[" * 900_000})
    with refused_at_once(tmp_path / "ran") as caught:
        open_checkpoint(path)
    assert caught.value.kind is Pt2Errors.JSON
    path = write(tmp_path / "a.pt2", contents | {PROGRAM: b"[" + b"{}," * 9_000_000 + b"{}]"})
    with refused_at_once(tmp_path / "ran") as caught:
        open_checkpoint(path)
    assert caught.value.kind is Pt2Errors.JSON_TOO_LARGE


def test_headers_and_directory_must_agree(own: Path, tmp_path: Path) -> None:
    """A reader that goes by local headers would see other members than one that goes by the directory."""
    data = bytearray(own.read_bytes())
    start = data.index(b"own/models/model.json")
    data[start : start + 21] = b"own/models/other.json"
    path = tmp_path / "a.pt2"
    path.write_bytes(data)
    with refused_at_once(tmp_path / "ran") as caught:
        open_checkpoint(path)
    check(caught.value, StoredZipErrors.HEADER_DIFFERS, name="own/models/model.json")


def test_sizes_of_64_bits_must_agree_with_those_of_32(own: Path, tmp_path: Path) -> None:
    data = bytearray(own.read_bytes())
    end64 = data.rindex(b"PK\x06\x06")
    data[end64 + 32 : end64 + 40] = (7).to_bytes(8, "little")
    (tmp_path / "a.pt2").write_bytes(data)
    with raises(StoredZipErrors.NO_END):
        open_checkpoint(tmp_path / "a.pt2")
    data = bytearray(own.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = (0).to_bytes(4, "little")
    (tmp_path / "a.pt2").write_bytes(data)
    with raises(StoredZipErrors.NO_END):
        open_checkpoint(tmp_path / "a.pt2")


def test_members_that_share_bytes(own: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt2", {"a": b"x" * 100, "b": b"y" * 100})
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42 : second + 46] = (0).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(SsccError) as caught, StoredZip(path):
        pass
    assert caught.value.kind in (StoredZipErrors.OVERLAPS, StoredZipErrors.HEADER_DIFFERS)


def test_sizes_beyond_the_file(own: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt2", {"a": b"x" * 100})
    data = bytearray(path.read_bytes())
    entry = data.rindex(b"PK\x01\x02")
    for place in (20, 24):
        data[entry + place : entry + place + 4] = (2**31).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(SsccError), StoredZip(path):
        pass


def test_pipes_and_folders(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt2")
    with refused_at_once(tmp_path / "ran"):
        open_checkpoint(tmp_path / "a.pt2")
    with raises(FileErrors.NOT_REGULAR):
        StoredZip(tmp_path / "a.pt2")
    with raises(FileErrors.NOT_REGULAR):
        StoredZip(tmp_path)


def test_an_archive_of_python_s_own_zipfile(own: Path, tmp_path: Path) -> None:
    """Its payloads are not aligned, so they are copied; the values are the same."""
    ours, theirs = open_checkpoint(write(tmp_path / "a.pt2", members(own))), open_checkpoint(own)
    assert ours.names() == theirs.names()
    assert all(torch.equal(ours.tensor(name), theirs.tensor(name)) for name in ours.names())
    reference: Any = torch.export.load(own)
    assert all(torch.equal(ours.tensor(name), value) for name, value in reference.state_dict.items())


# -------------------------------------------------------------------------------------------------- the exception


def test_what_trusting_a_file_means(own: Path, tmp_path: Path) -> None:
    """With --trust-pt2 torch reads the archive, and so code in it runs: that is what the option is for."""
    marker = tmp_path / "ran"
    path = with_edit(own, tmp_path / "a.pt2", PROGRAM, lambda program: _first_size(program, call(marker)))
    words = ["compile", str(path), "--max-context", "64", "-o", str(tmp_path / "a.rdu")]
    assert cli.main(words) == 3
    assert not marker.exists()
    assert cli.main([*words, "--trust-pt2"]) != 0  # the text is no size
    assert marker.exists()
    assert open_checkpoint(own, trust_pt2=True).program is not None


def test_weights_are_read_from_what_only_a_trusted_program_is(own: Path, tmp_path: Path) -> None:
    """`sscc run --checkpoint` needs no program, so it needs no trust either."""
    marker = tmp_path / "ran"
    path = with_edit(own, tmp_path / "a.pt2", PROGRAM, lambda program: _first_size(program, call(marker)))
    opened = open_checkpoint(path, program=False)
    assert opened.program is None
    assert opened.tensor("embed.weight").equal(open_checkpoint(own).tensor("embed.weight"))
    assert not marker.exists()


# --------------------------------------------------------------------------------------------------------- pieces


def test_sizes_that_are_read() -> None:
    size = "Symbol('s18', positive=True, integer=True)"
    assert str(parse_size(size)) == "s18"
    assert str(parse_size(f"Mul(Integer(64), {size})")) == "64*s18"
    assert str(parse_size(f"Add({size}, Integer(-1))")) == "s18 - 1"
    assert str(parse_size(f"FloorDiv({size}, Integer(2))")) == "(s18//2)"
    assert str(parse_size(f"Max(Integer(1), Pow({size}, Integer(2)))")) in ("Max(1, s18**2)", "s18**2")
    assert str(parse_size(f"GreaterThan({size}, Integer(2))", truth=True)) == "s18 >= 2"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s0",
        "Integer(1",
        "Integer(1))",
        "Integer(10**9)",
        "Integer(99999999999999999999)",
        "Symbol('x', integer=True)",
        "Symbol('s0')",
        "Symbol('s0', commutative=False)",
        "Symbol('s0', integer=False)",
        "Pow(Integer(9), Integer(9))",
        "Pow(Symbol('s0', integer=True), Integer(99))",
        "Pow(Symbol('s0', integer=True), Integer(-1))",
        "FloorDiv(Integer(1), Integer(0))",
        "Lambda(Integer(1), Integer(1))",
        "Add(Integer(1))",
        "Mul(" * 30 + "Integer(1)",
        "Add(" + ", ".join(["Integer(1)"] * 400) + ")",
        "GreaterThan(Integer(1), Integer(2))",
        "Integer(1)\n#",
        "Integer(\u0661)",
        "Float('1.5', precision=53)",
    ],
)
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(NotASize):
        parse_size(text)


def test_operators_are_found_by_name_and_nothing_else() -> None:
    assert find_operator("torch.ops.aten.add.Tensor") is torch.ops.aten.add.Tensor
    assert find_operator("torch.ops.sscc.attention.default") is torch.ops.sscc.attention.default
    for name in ("torch.load", "torch.ops.aten.add.out", "torch.ops.aten.add", "torch.ops.load_library", "add", ""):
        assert find_operator(name) is None
    for name in ("torch.ops.aten.pow.int", "torch.ops.aten.rand.default", "torch.ops.aten.add.__class__"):
        assert find_operator(name) is None
    assert all(hasattr(torch.ops.aten, name) for name in ATEN)


def test_a_damaged_payload_is_found(own: Path, tmp_path: Path) -> None:
    data = bytearray(own.read_bytes())
    data[70] ^= 1
    (tmp_path / "a.pt2").write_bytes(data)
    with raises(StoredZipErrors.CHECKSUM, name="own/data/weights/weight_0"):
        open_checkpoint(tmp_path / "a.pt2")
