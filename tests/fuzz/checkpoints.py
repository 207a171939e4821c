"""Damaged inputs of every form that the loaders read: each is opened, or refused with one of our errors.

A case takes one small input, damages one of its files, and does with it what `sscc compile` does before it exports
anything: opens it, reads every weight, admits the config and builds the model of it. What is no model (a machine, a
dump) is read in full. Whatever is raised besides an `SsccError` of exit code 2 to 6 is a finding, and so is code of a
pickle that runs.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import torch

from examples.own_decoder import Decoder, export
from sscc.compiler.driver.driver import compile_model
from sscc.compiler.driver.dumps import read_dump
from sscc.compiler.frontend.admission import check_config, check_modules
from sscc.compiler.frontend.checkpoint import check_names, open_checkpoint, pack
from sscc.compiler.frontend.construction import build_model
from sscc.compiler.frontend.model_config import model_context
from sscc.compiler.options.compile_options import CompileOptions
from sscc.ir.context import mlir
from sscc.ir.errors import SsccError
from sscc.ir.levels import get_facts, get_kinds, get_looping, get_target, passes_done
from sscc.ir.target import load_target
from tests.compiler.frontend.test_checkpoint import save_tokenizer, tiny_llama, write_gguf
from tests.fuzz.harness import Finding, Target

CONTEXT = 32
CLEAN = range(2, 7)  # exit codes that say what is wrong with an input
COMPILED = 0.03  # of the cases with a dump are compiled on from it, which takes a second
NUMBERS = (0, -1, 1, 2, 3, 7, 63, 2**31, 2**40, 2**50, 2**63, 2**70, 0.5, -0.0, 1e300, float("nan"), float("inf"))
VALUES: tuple[Any, ...] = (
    None, True, False, "", "x", "full_attention", "../../escape", "a\0b", "\ud800", [], {}, [[]], ["yarn"], {"a": 1}
)  # fmt: skip


class Checkpoints(Target):
    name: ClassVar[str] = "checkpoints"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.flag = folder / "code-has-run"
        self.bases = _make_bases(folder)

    def run(self, seed: int) -> str:
        rng = random.Random(seed)
        base = rng.choice(self.bases)
        case = self.folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(base, case)
        files = sorted(path for path in case.rglob("*") if path.is_file())
        victim = rng.choice([path for path in files if not path.name.startswith("beside-")])
        how = _damage(victim, rng, self.flag)
        try:
            _use(case, rng)
            outcome = "opened"
        except SsccError as error:
            if error.exit_code not in CLEAN:
                raise Finding(f"{base.name}/{victim.name} {how}: exit {error.exit_code}: {error}") from error
            outcome = f"refused {error.exit_code}"
        except Exception as error:
            raise Finding(f"{base.name}/{victim.name} {how}: {type(error).__name__}: {error}") from error
        if self.flag.exists():
            self.flag.unlink()
            raise Finding(f"{base.name}/{victim.name} {how}: code of the file has run")
        return f"{base.name}: {outcome}"


# --------------------------------------------------------------------------------------------------------- bases


def _make_bases(folder: Path) -> list[Path]:
    """Write a folder for each form of a checkpoint."""
    torch.manual_seed(0)
    names = ("folder", "shards", "bin", "pack", "bare", "gguf", "pt2", "config", "machine")
    bases = {name: folder / name for name in names}
    for path in bases.values():
        path.mkdir()
    model = tiny_llama()
    model.save_pretrained(bases["folder"])
    save_tokenizer(bases["folder"])
    (bases["folder"] / "generation_config.json").write_text(json.dumps({"eos_token_id": [26, 5]}))
    model.save_pretrained(bases["shards"], max_shard_size="40KB")
    model.config.save_pretrained(bases["bin"])
    torch.save(model.state_dict(), bases["bin"] / "pytorch_model.bin")
    pack(open_checkpoint(bases["folder"]), bases["pack"] / "model.pt")
    torch.save(model.state_dict(), bases["bare"] / "bare.pt", _use_new_zipfile_serialization=False)
    model.config.to_json_file(bases["bare"] / "beside-config.json")
    write_gguf(bases["gguf"] / "model.gguf", model)
    torch.export.save(export(Decoder()), bases["pt2"] / "own.pt2")
    model.config.to_json_file(bases["config"] / "config.json")
    (bases["machine"] / "machine.json").write_text(load_target("rdu").to_json())
    return [*bases.values(), *_make_dumps(bases["config"] / "config.json", folder)]


def _make_dumps(config: Path, folder: Path) -> list[Path]:
    """A dump of every level."""
    shape: dict[str, Any] = {"kv_sink": 1, "kv_recent": 4, "kv_topk": 3, "kv_obs": 2, "kv_pool": 3, "prefill_chunk": 8}
    bases = []
    for level in ("import", "graph", "kernels", "looped", "fused", "placed"):
        base = folder / level
        base.mkdir()
        source: dict[str, Any] = {"model": config, "max_context": CONTEXT, **shape}
        if bases:
            source = {"model": next(bases[-1].iterdir()), "compile_from": bases[-1].name}
        compile_model(CompileOptions(output=base / f"{level}.mlir", compile_to=level, weights="none", **source))
        bases.append(base)
    return bases


# -------------------------------------------------------------------------------------------------------- damage


def _damage(path: Path, rng: random.Random, flag: Path) -> str:
    """Damage a file, and return a description of the damage."""
    ways: list[Callable[[Path, random.Random], str]] = [_truncate, _flip, _splice]
    if path.suffix in (".json", ".jinja"):
        ways += [_edit_json] * 9 if path.suffix == ".json" else []
    elif path.suffix == ".safetensors":
        ways += [_edit_header] * 4
    elif path.suffix in (".pt", ".bin") and zipfile.is_zipfile(path):
        ways += [_edit_pickle] * 2 + [lambda file, source: _poison(file, source, flag)]
    elif path.suffix == ".pt2":
        ways += [_edit_archive] * 4
    elif path.suffix == ".mlir":
        ways += [_edit_text] * 6
    elif path.suffix == ".gguf":
        ways += [_flip_head] * 4
    return rng.choice(ways)(path, rng)


def _truncate(path: Path, rng: random.Random) -> str:
    data = path.read_bytes()
    length = rng.randrange(len(data) + 1)
    path.write_bytes(data[:length])
    return f"cut to {length} bytes"


def _flip(path: Path, rng: random.Random, within: int | None = None) -> str:
    data = bytearray(path.read_bytes())
    places = [rng.randrange(min(len(data), within or len(data))) for _ in range(rng.choice((1, 1, 4, 30)))]
    for place in places:
        data[place] = rng.randrange(256)
    path.write_bytes(data)
    return f"bytes changed at {places[:4]}"


def _flip_head(path: Path, rng: random.Random) -> str:
    return _flip(path, rng, 4096)


def _splice(path: Path, rng: random.Random) -> str:
    """Copy a piece of the file over another place, or insert it there."""
    data = path.read_bytes()
    start, place = rng.randrange(len(data)), rng.randrange(len(data))
    piece = data[start : start + rng.choice((1, 8, 64, 512))]
    rest = data[place + (len(piece) if rng.random() < 0.5 else 0) :]
    path.write_bytes(data[:place] + piece + rest)
    return f"{len(piece)} bytes of {start} put at {place}"


def _edit_json(path: Path, rng: random.Random) -> str:
    values = json.loads(path.read_bytes())
    how = _edit_values(values, rng)
    text = json.dumps(values)
    if rng.random() < 0.1 and isinstance(values, dict) and values:
        name = rng.choice(sorted(values))
        text = f"{text[:-1]}, {json.dumps(name)}: {json.dumps(_strange(rng))}}}"
        how = f"{name} given twice"
    path.write_text(text)
    return how


def _edit_values(values: Any, rng: random.Random) -> str:
    """Changes one value somewhere in a tree of JSON values."""
    place, names = values, []
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return "as it was"
        key = rng.choice(keys)
        names.append(str(key))
        if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.3:
            break
        place = place[key]
    where = ".".join(names)
    if rng.random() < 0.15:
        del place[key]
        return f"{where} removed"
    place[key] = _strange(rng)
    return f"{where} = {place[key]!r:.60}"


def _strange(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(NUMBERS)
    if kind < 0.9:
        return rng.choice(VALUES)
    nested: Any = 1
    for _ in range(rng.choice((10, 100, 400))):
        nested = [nested] if rng.random() < 0.5 else {"a": nested}
    return nested


def _edit_header(path: Path, rng: random.Random) -> str:
    """Changes the JSON header of a safetensors file, whose length stays true."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    how = _edit_values(header, rng)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return how


def _members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _write_members(path: Path, members: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _edit_pickle(path: Path, rng: random.Random) -> str:
    """Saves other values under the same names: another type, a name that leaves the folder, a dictionary in itself."""
    values = torch.load(path, weights_only=True)
    holder = rng.choice([item for item in (values, *values.values()) if isinstance(item, dict)])
    key = rng.choice(sorted(holder))
    tensors = [torch.zeros(2, 2, dtype=torch.int8), torch.zeros(0)]
    odd: list[Any] = [*tensors, holder, {1: 2}, (1, 2), b"\xff", _strange(rng)]
    new_key = rng.choice((key, key, key, "../../escape", "a\0b", "", "a/b", 7))
    value = holder.pop(key) if new_key != key else rng.choice(odd)
    holder[new_key] = value
    torch.save(values, path)
    return f"{key!r} -> {new_key!r}: {type(value).__name__}"


def _poison(path: Path, rng: random.Random, flag: Path) -> str:
    """Puts a pickle into the archive that makes a file where it is loaded without care."""
    members = _members(path)
    name = next(name for name in members if name.endswith("data.pkl"))

    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (flag,)) if rng.random() < 0.5 else (exec, (f"open({str(flag)!r}, 'w')",))

    members[name] = pickle.dumps({"state_dict": Payload(), "config": {}}, protocol=2)
    _write_members(path, members)
    return "with code in its pickle"


def _edit_archive(path: Path, rng: random.Random) -> str:
    """Changes a member of an exported program, whose checksum stays true."""
    members = _members(path)
    name = rng.choice(sorted(name for name in members if members[name]))
    data = members[name]
    try:
        values = json.loads(data)
        how = _edit_values(values, rng)
        members[name] = json.dumps(values).encode()
    except (ValueError, TypeError):
        place = rng.randrange(len(data))
        members[name], how = data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :], f"byte {place}"
    _write_members(path, members)
    return f"{name}: {how}"


def _edit_text(path: Path, rng: random.Random) -> str:
    """Change a number, a word or a line of a dump, as in an editor."""
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    words = lines[at].split(" ")
    spot = rng.randrange(len(words))
    way = rng.choice(("number", "number", "swap", "drop", "double", "move", "nest"))
    if way == "number":
        digits = [index for index, word in enumerate(words) if any(c.isdigit() for c in word)]
        spot = rng.choice(digits) if digits else spot
        number = str(rng.choice((0, 1, -1, 2, 64, 2**31, 2**45, 2**63, 2**64)))
        words[spot] = "".join(number if c.isdigit() else c for c in words[spot])[:200]
        lines[at] = " ".join(words)
    elif way == "swap":
        other = rng.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif way == "drop":
        del lines[at]
    elif way == "double":
        lines.insert(at, lines[at])
    elif way == "move":
        words.insert(rng.randrange(len(words)), words.pop(spot))
        lines[at] = " ".join(words)
    else:
        depth = rng.choice((50, 500, 20_000))
        lines.insert(at, "scf.if %true { " * depth + "}" * depth)
    path.write_text("\n".join(lines) + "\n")
    return f"line {at + 1}: {way}"


# ----------------------------------------------------------------------------------------------------------- use


def _use(case: Path, rng: random.Random) -> None:
    """Process the input as `sscc compile` does."""
    form = sorted(path for path in case.iterdir() if not path.name.startswith("beside-"))[0]
    if form.suffix == ".mlir":
        return _use_dump(form, rng)
    if form.name == "machine.json":
        load_target(f"rdu:{form}").to_json()
        return None
    single = form if form.suffix in (".pt", ".gguf", ".pt2") or form.name == "config.json" else case
    single = case if (case / "model.safetensors").exists() or len(list(case.iterdir())) > 2 else single
    beside = case / "beside-config.json"
    return _use_checkpoint(single, beside if beside.exists() else None)


def _use_checkpoint(path: Path, config_file: Path | None) -> None:
    weights = path.suffix != ".json"
    checkpoint = open_checkpoint(path, config=config_file, weights=weights)
    config = checkpoint.config
    context = CONTEXT
    if config is not None:
        context = model_context(config) or CONTEXT
        check_config(config, context)
    options = CompileOptions(path, weights="embed" if weights else "none")
    options.resolve(context, str(checkpoint.default_dtype).removeprefix("torch."))
    shapes = {name: tensor[0] for name, tensor in checkpoint.names().items()}
    if config is not None:
        model = build_model(config, torch.float32)
        check_modules(config, model)
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if weights:
        check_names(checkpoint, shapes)
        for name in shapes:
            hashlib.sha256(checkpoint.tensor(name).contiguous().view(torch.uint8).numpy()).digest()
        assert len(checkpoint.digest) == 64
    if path.suffix != ".gguf":  # whose tokenizer takes seconds
        assert isinstance(checkpoint.tokenizer, dict)
    assert all(token >= 0 for token in checkpoint.eos_token_ids)


def _use_dump(path: Path, rng: random.Random) -> None:
    level = path.stem
    if rng.random() < COMPILED:
        output = path.with_suffix(".rdu")
        compile_model(CompileOptions(path, output, compile_from=level, weights="none", native_code=False))
        return
    with mlir():
        module = read_dump(path)
        get_facts(module), get_kinds(module), get_looping(module), get_target(module), passes_done(module)
