"""Damaged artifacts: each is refused in one line, or makes the tokens that it made before."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sscc.ir.errors import SsccError
from sscc.ir.sizes import format_bytes
from sscc.runtime.session.artifact import Artifact
from tests.fuzz.harness import Finding, Target

PROMPT = (5, 3, 250, 17, 44, 9, 9, 81, 200, 33, 7, 12, 60, 2, 31, 8, 77, 104, 1, 250)
NEW_TOKENS = 4
TEXT = "What is damaged?"
REFUSALS = range(2, 7)
"""Exit codes of input that is refused."""

LONGEST_MESSAGE = 2000

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    2**31,
    2**63,
    2**200,
    0.5,
    1e308,
    float("nan"),
    "",
    "x",
    "../x",
    "a\0b",
    "f32",
    "int8",
    "\ud800",
    "x" * 10_000,
    [],
    {},
    [[]],
    [1, 2, 3],
    {"x": 1},
)

Json = dict[str, Any] | list[Any]
Damage = Callable[["DamagedArtifact"], bool]
"""Damages an artifact. Returns whether what it makes may be other than before: somebody else's, and whole."""


class DamagedArtifact:
    """A copy of an artifact, and a generator of random numbers to damage it by."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)

    def file(self, *names: str) -> Path:
        """One of the files, or one of those named that are there."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        named = [path for path in files if str(path.relative_to(self.folder)) in names]
        return self.random.choice(named or files)

    def data(self) -> Path:
        """One of the files that are neither the manifest nor the program."""
        kept = ("manifest.json", "schedule.json")
        return self.random.choice([path for path in sorted(self.folder.rglob("*")) if self._is_data(path, kept)])

    def vouch(self, path: Path) -> None:
        """Writes size and digest of a file into the manifest, so that what lies behind these checks is reached."""
        manifest = json.loads((self.folder / "manifest.json").read_text())
        data = path.read_bytes()
        record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        if "files" in manifest:  # a change before this one may have renamed it
            manifest["files"][str(path.relative_to(self.folder))] = record
        (self.folder / "manifest.json").write_text(json.dumps(manifest))

    def flip(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        for _ in range(self.random.choice((1, 1, 1, 2, 8))):
            data[self.random.randrange(len(data))] ^= 1 << self.random.randrange(8)
        path.write_bytes(data)

    def mutate(self, value: Json) -> Json:
        """A JSON value with one to three places changed."""
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            places = list(_places(value))
            if places:
                self._change(*self.random.choice(places))
        return value

    def _change(self, inside: Any, key: Any) -> None:
        kind = self.random.randrange(5)
        if kind == 0:
            del inside[key]
        elif kind == 1 and isinstance(inside, dict):
            inside[self.random.choice(("x", "", "a/b", "../x", "native/x", f"{key} "))] = inside[key]
        elif kind == 2:
            other, place = self.random.choice(list(_places(inside)))
            inside[key] = other[place]
        elif kind == 3 and type(inside[key]) is int:
            inside[key] += self.random.choice((-1, 1, 64, -64, 2**40))
        else:
            inside[key] = self.random.choice(VALUES)

    @staticmethod
    def _is_data(path: Path, kept: tuple[str, ...]) -> bool:
        return path.is_file() and path.name not in kept


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) below a JSON value."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


# ------------------------------------------------------------------------------------------------------- damages


def flipped(damaged: DamagedArtifact) -> bool:
    damaged.flip(damaged.file())
    return False


def cut(damaged: DamagedArtifact) -> bool:
    path = damaged.file()
    os.truncate(path, damaged.random.randrange(path.stat().st_size))
    return False


def grown(damaged: DamagedArtifact) -> bool:
    path = damaged.file()
    with path.open("ab") as file:
        file.write(damaged.random.randbytes(damaged.random.choice((1, 7, 4096))))
    return False


def swollen(damaged: DamagedArtifact) -> bool:
    """Terabytes, which take no room on the disk."""
    path = damaged.file()
    os.truncate(path, 2**42)
    if damaged.random.random() < 0.5 and path.name != "manifest.json" and path.suffix != ".safetensors":
        manifest = json.loads((damaged.folder / "manifest.json").read_text())
        manifest["files"][str(path.relative_to(damaged.folder))]["bytes"] = 2**42
        (damaged.folder / "manifest.json").write_text(json.dumps(manifest))
    return False


def swapped(damaged: DamagedArtifact) -> bool:
    first, second = damaged.file(), damaged.file()
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    return False


def replaced(damaged: DamagedArtifact) -> bool:
    """Another thing stands in the place of a file."""
    path = damaged.file()
    kind = damaged.random.randrange(5)
    moved = path.rename(damaged.folder / "moved")
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(moved)
    elif kind == 3:
        path.symlink_to("/dev/zero")
    return False


def relinked(damaged: DamagedArtifact) -> bool:
    """Replace a folder by a link."""
    folder = damaged.random.choice(sorted(path for path in damaged.folder.iterdir() if path.is_dir()))
    folder.rename(damaged.folder / "moved")
    folder.symlink_to(damaged.random.choice(("moved", "/dev", "/nowhere", ".")))
    return False


def manifest(damaged: DamagedArtifact) -> bool:
    path = damaged.folder / "manifest.json"
    path.write_text(json.dumps(damaged.mutate(json.loads(path.read_text()))))
    return False


def document(damaged: DamagedArtifact) -> bool:
    """A JSON file with places changed that the manifest vouches for."""
    names = ("machine.json", "golden/golden.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json")
    path = damaged.file(*names)
    path.write_text(json.dumps(damaged.mutate(json.loads(path.read_text()))))
    damaged.vouch(path)
    return False


def bytes_(damaged: DamagedArtifact) -> bool:
    """Flipped or cut bytes that the manifest vouches for."""
    path = damaged.data()
    if damaged.random.random() < 0.7:
        damaged.flip(path)
    else:
        os.truncate(path, damaged.random.randrange(path.stat().st_size))
    damaged.vouch(path)
    return True


def header(damaged: DamagedArtifact) -> bool:
    """A header of a safetensors file that the manifest vouches for."""
    path = damaged.random.choice(sorted(damaged.folder.rglob("*.safetensors")))
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    text = json.dumps(damaged.mutate(json.loads(data[8 : 8 + size]))).encode()
    length = damaged.random.choice((len(text), len(text), len(text), 0, 2**31, 2**63, len(text) + 1))
    path.write_bytes(length.to_bytes(8, "little") + text + data[8 + size :])
    damaged.vouch(path)
    return True


def nested(damaged: DamagedArtifact) -> bool:
    path = damaged.file("manifest.json", "machine.json", "golden/golden.json", "tokenizer/tokenizer_config.json")
    path.write_text("[" * 10**5)
    if path.name != "manifest.json":
        damaged.vouch(path)
    return False


DAMAGES: tuple[Damage, ...] = (
    flipped,
    cut,
    grown,
    swollen,
    swapped,
    replaced,
    relinked,
    manifest,
    manifest,
    manifest,
    document,
    document,
    document,
    bytes_,
    header,
    header,
    nested,
)


# ------------------------------------------------------------------------------------------------------- targets


class Artifacts(Target):
    """An artifact of a tiny model with tokenizer, chat template and goldens, damaged in one way."""

    name = "artifacts"

    def __init__(self, folder: Path) -> None:
        self._base = compiled(folder / "base")
        self._folder = folder / "case.rdu"
        self._tokens = self._execute(self._base)

    def run(self, seed: int) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._base, self._folder)
        damaged = DamagedArtifact(self._folder, seed)
        damage = damaged.random.choice(DAMAGES)
        foreign = damage(damaged)
        try:
            tokens = self._execute(self._folder)
        except SsccError as error:
            return f"{damage.__name__}: {refusal(error)}"
        if tokens != self._tokens and not foreign:
            raise Finding(f"{damage.__name__}: makes {tokens} instead of {self._tokens}")
        return f"{damage.__name__}: {'the same' if tokens == self._tokens else 'others'}"

    def _execute(self, path: Path) -> list[int]:
        """Run an artifact as `sscc run`, `serve` and `inspect` do. Returns its tokens."""
        from sscc.compiler.driver.sessions import open_session
        from sscc.compiler.tools.commands.engines import tokenizer_and_template
        from sscc.compiler.tools.inspection.inspection import inspect_artifact
        from sscc.runtime.text.tokenizer import decode, encode

        artifact = Artifact.load(path)
        tokenizer, template = tokenizer_and_template(artifact)
        encode(tokenizer, TEXT)
        if template is not None:
            template.encode(tokenizer, [{"role": "user", "content": TEXT}])
        inspect_artifact(artifact, artifact.target)
        artifact.golden()
        session = open_session(artifact, threads=1)
        tokens = list(session.generate(PROMPT, NEW_TOKENS, eos=()))
        decode(tokenizer, tokens)
        return tokens


class ShardBytes(Target):
    """Flipped bytes in weight shards, every one of which must be found."""

    name = "weights"

    def __init__(self, folder: Path) -> None:
        from tests.runtime.test_artifact import write

        self._path = folder / "base.rdu"
        write(self._path, shard_bytes=64)
        self._shards = sorted(self._path.glob("weights/model-*"))
        Artifact.load(self._path).weights()

    def run(self, seed: int) -> str:
        damaged = DamagedArtifact(self._path, seed)
        path = damaged.random.choice(self._shards)
        data = path.read_bytes()
        flips = {damaged.random.randrange(len(data)): damaged.random.randrange(1, 256)}
        path.write_bytes(bytes(byte ^ flips.get(place, 0) for place, byte in enumerate(data)))
        try:
            Artifact.load(self._path).weights()
        except SsccError as error:
            return refusal(error)
        finally:
            path.write_bytes(data)
        raise Finding(f"{path.name} with other bytes at {[*flips]} is taken for whole")


def refusal(error: SsccError) -> str:
    """An error as an outcome. Raises Finding where it is not a refusal of bad input in one short line."""
    message = str(error)
    if error.exit_code not in REFUSALS:
        raise Finding(f"exit code {error.exit_code}: {message}") from error
    if "\n" in message or len(message) > LONGEST_MESSAGE:
        raise Finding(f"the message has {format_bytes(len(message))} in {message.count(chr(10)) + 1} lines") from error
    return f"exit code {error.exit_code}"


def compiled(folder: Path, **options: Any) -> Path:
    """The artifact of a tiny model with all that an artifact can hold.

    Args:
        options: of the compilation, besides.
    """
    from sscc.compiler.driver.driver import compile_model
    from sscc.compiler.options.compile_options import CompileOptions
    from tests.models.tiny_llama import byte_tokenizer, save_tiny_llama

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    save_tiny_llama(folder / "model", tokenizer=byte_tokenizer(), max_position_embeddings=64, bos_token_id=1, **sizes)
    template = "{% for message in messages %}{{ bos_token }}{{ message['content'] }}{% endfor %}"
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|end|>", "chat_template": template}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(about))
    compile_options = CompileOptions(
        folder / "model",
        folder / "base.rdu",
        kv_budget=12,
        kv_recent=6,
        kv_obs=2,
        kv_pool=3,
        prefill_chunk=8,
        batch=2,
        save_golden=True,
        golden_tokens=2,
        native_code=True,
        **options,
    )
    return compile_model(compile_options).path
