"""Artifacts that name files elsewhere: nothing outside of them is opened, and nothing is executed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

from sscc.ir.errors import SsccError
from sscc.runtime.session.artifact import Artifact
from tests.fuzz.artifacts import NEW_TOKENS, PROMPT, DamagedArtifact, compiled, refusal
from tests.fuzz.harness import Finding, Target
from tests.fuzz.opened_files import opened_files

ELSEWHERE = (Path("/dev/zero"), Path("/dev/full"), Path("/etc/passwd"))


class _Code:
    """Unpickled, it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.mark,)


def lay_bait(folder: Path, mark: Path) -> Sequence[Path]:
    """Make files that nobody may open: code, a pipe, a model, a secret, links to devices."""
    folder.mkdir(parents=True)
    data = pickle.dumps(_Code(mark))
    for name in ("evil.pt2", "evil.pt", "evil.bin", "evil.pkl", "secret.txt", "x.gguf", "config.json"):
        (folder / name).write_bytes(data)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    os.mkfifo(folder / "pipe")
    os.mkfifo(folder / "pipe.gguf")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "loop").symlink_to("loop")
    return sorted(path for path in folder.iterdir())


class References(Target):
    """An artifact without weights whose words name files inside it and outside, in one way or several.

    Outside lies a folder of bait, which the kernel watches. The checkpoint that the user compiled the base from may be
    opened, as the user's cache remembers it.
    """

    name = "references"
    memory: ClassVar[int] = 256 << 20
    seconds: ClassVar[float] = 1.0

    def __init__(self, folder: Path) -> None:
        self._base = compiled(folder / "base", weights="reference")
        self._folder = folder / "case" / "case.rdu"
        self._outside, self._mark = folder / "outside", folder / "executed"
        self._bait = lay_bait(self._outside, self._mark)
        (folder / "case").mkdir()
        self._tokens = self._session(self._base)  # which packs the weights, compiles native code, and imports
        for use in self._uses().values():
            use(self._base)

    def run(self, seed: int) -> str:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._base, self._folder)
        case = _Case(self._folder, seed, self._bait, self._base.parent / "model")
        done = [damage(case) for damage in case.random.choices(DAMAGES, k=case.random.choice((1, 1, 1, 2, 3)))]
        names = "+".join(sorted({damage.__name__ for damage in done}))
        inside = [path for path in (self._folder / "inside",) if path.is_dir()]
        use = case.random.choice(sorted(self._uses()))
        with opened_files(self._outside, *inside) as opened:
            outcome = self._outcome(use)
        named = case.named_inside() if inside else set()
        watched = [name for name in opened.watched if name not in named]
        if watched:
            raise Finding(f"{names}, {use}: opens {watched[:5]}, and ends as {outcome}")
        elsewhere = tuple(map(str, (self._outside, *ELSEWHERE)))
        foreign = [path for path in opened.paths if path.startswith(elsewhere)]
        if foreign:
            raise Finding(f"{names}, {use}: opens {foreign[:5]}, and ends as {outcome}")
        if opened.code or self._mark.exists():
            self._mark.unlink(missing_ok=True)
            raise Finding(f"{names}, {use}: executes {opened.code[:5]}, and ends as {outcome}")
        return f"{use}: {outcome}"

    def _outcome(self, use: str) -> str:
        try:
            tokens = self._uses()[use](self._folder)
        except SsccError as error:
            return refusal(error)
        if tokens is not None and tokens != self._tokens:
            raise Finding(f"{use}: makes {tokens} instead of {self._tokens}")
        return "the same" if tokens else "served"

    def _uses(self) -> dict[str, Callable[[Path], list[int] | None]]:
        return {"session": self._session, "describe": _describe, "needed": _needed, "print": _print}

    def _session(self, path: Path) -> list[int]:
        from sscc.compiler.driver.sessions import open_session

        session = open_session(Artifact.load(path), threads=1)
        try:
            return list(session.generate(PROMPT, NEW_TOKENS, eos=()))
        finally:
            session.close()


def _describe(path: Path) -> None:
    from sscc.compiler.tools.commands.engines import tokenizer_and_template
    from sscc.compiler.tools.inspection.inspection import inspect_artifact

    artifact = Artifact.load(path)
    tokenizer_and_template(artifact)
    inspect_artifact(artifact, artifact.target)
    artifact.golden()


def _needed(path: Path) -> None:
    from sscc.compiler.tools.inspection.needed import checkpoint_of

    checkpoint_of(Artifact.load(path), None)


def _print(path: Path) -> None:
    from sscc.compiler.tools.commands import cli

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as err:
        code = cli.main(["print", str(path)])
    if code not in (0, *range(2, 7)):
        raise Finding(f"sscc print ends with {code}: {err.getvalue()}")


# ------------------------------------------------------------------------------------------------------- damages


class _Case(DamagedArtifact):
    """A copy of an artifact, bait outside of it, and the checkpoint it was compiled from."""

    def __init__(self, folder: Path, seed: int, bait: Sequence[Path], checkpoint: Path) -> None:
        super().__init__(folder, seed)
        self.bait, self.checkpoint = bait, checkpoint
        self.manifest_path = folder / "manifest.json"

    def target(self) -> Path:
        """A file that nobody may open; sometimes inside of the artifact, unnamed there."""
        if self.random.random() < 0.3:
            inside = self.folder / "inside"
            if not inside.exists():
                lay_bait(inside, self.bait[0].parent.parent / "executed")
            return inside / self.random.choice(self.bait).name
        return self.random.choice((*self.bait, self.bait[0].parent, *ELSEWHERE))

    def word(self, path: Path) -> str:
        """A way to write a path."""
        from_here = os.path.relpath(path, self.folder)
        likely = (str(path), from_here, f"file://{path}", f"./{from_here}")
        return self.random.choice((*likely, *likely, f"{path}/", f"{path}\0x", "~/x", "$HOME", "|id"))

    def named_inside(self) -> set[str]:
        """Names of the bait in the artifact that the manifest has among its files, and so may be read."""
        names = json.loads(self.manifest_path.read_text())["files"]
        return {"the folder itself", *(name.rpartition("/")[2] for name in names if name.startswith("inside/"))}

    def edit(self, change: Callable[[dict[str, Any]], None]) -> None:
        manifest = json.loads(self.manifest_path.read_text())
        change(manifest)
        self.manifest_path.write_text(json.dumps(manifest))

    def link(self, name: str, path: Path) -> None:
        """Put a link in the place of a file, with a record that fits what it leads to."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        file.symlink_to(path)
        data = path.read_bytes() if path.is_file() else b""
        record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        self.edit(lambda manifest: manifest["files"].__setitem__(name, record))


Damage = Callable[[_Case], Callable[..., Any]]


def source(case: _Case) -> Callable[..., Any]:
    """As earlier versions named the checkpoint, with every mode."""
    word = case.word(case.random.choice((case.target(), case.checkpoint)))
    weights = {"source": word, "mode": case.random.choice(("reference", "reference", "embedded"))}
    case.edit(lambda manifest: manifest["weights"].update(weights))
    return source


def digest(case: _Case) -> Callable[..., Any]:
    """The digest names files of the user's cache."""
    word = case.word(case.target())
    digests = ("", "0" * 64, "f" * 63, "../" * 8 + word, word, f"../checkpoints/{'0' * 64}", "a" * 64 + "/x", "A" * 64)
    case.edit(lambda manifest: manifest["weights"].update(digest=case.random.choice(digests)))
    return digest


def words(case: _Case) -> Callable[..., Any]:
    """A path in the place of any text of the manifest, or beside it."""
    word = case.word(case.target())

    def change(manifest: dict[str, Any]) -> None:
        fields = ("source", "path", "checkpoint", "_name_or_path", "auto_map", "tokenizer", "base", "golden", "policy")
        inside = case.random.choice((manifest, manifest["weights"], manifest["model"], manifest["geometry"]))
        if case.random.random() < 0.5:
            inside[case.random.choice(fields)] = word
        else:
            texts = [key for key, value in inside.items() if isinstance(value, str)]
            if texts:
                inside[case.random.choice(texts)] = word

    case.edit(change)
    return words


def files(case: _Case) -> Callable[..., Any]:
    """The manifest names a file elsewhere, with its true size and digest."""
    path = case.target()
    data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
    record = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    prefix = case.random.choice(("", "", "weights/", "tokenizer/", "golden/", "native/"))
    name = f"{prefix}{case.word(path)}"
    case.edit(lambda manifest: manifest["files"].__setitem__(name, record))
    return files


def link(case: _Case) -> Callable[..., Any]:
    """A link to a file elsewhere in the place of one of the artifact's, or as another one."""
    present = [str(path.relative_to(case.folder)) for path in case.folder.rglob("*") if path.is_file()]
    others = ("weights/model-00001-of-00001.safetensors", "tokenizer/tokenizer.model", "golden/golden.json")
    name = case.random.choice((*sorted(name for name in present if name != "manifest.json"), *others))
    if not name.startswith("inside/"):
        case.link(name, case.target())
    return link


def machine(case: _Case) -> Callable[..., Any]:
    """The machine's description names its base."""
    path = case.folder / "machine.json"
    if path.is_symlink() or not path.is_file():
        return machine
    record = json.loads(path.read_text())
    record["base"] = case.word(case.target())
    path.write_text(json.dumps(record))
    case.vouch(path)
    return machine


def tokenizer(case: _Case) -> Callable[..., Any]:
    """The tokenizer's files name others."""
    path = case.folder / "tokenizer" / case.random.choice(("tokenizer_config.json", "tokenizer.json"))
    if path.is_symlink() or not path.is_file():
        return tokenizer
    record = json.loads(path.read_text())
    fields = ("tokenizer_file", "vocab_file", "merges_file", "name_or_path", "auto_map", "chat_template", "include")
    record[case.random.choice(fields)] = case.random.choice(
        (case.word(case.target()), {"default": case.word(case.target())})
    )
    if case.random.random() < 0.3:
        record["chat_template"] = "{% include '" + case.word(case.target()).replace("\0", "") + "' %}"
    path.write_text(json.dumps(record))
    case.vouch(path)
    return tokenizer


DAMAGES: tuple[Damage, ...] = (source, source, source, digest, words, files, files, link, link, machine, tokenizer)


