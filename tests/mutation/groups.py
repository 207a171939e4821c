"""Which tests are to notice faults in which files, the quickest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MutantGroup:
    """Files, and stages of tests: words for pytest. Before these stages come the file's own tests, where it has some.

    Attributes:
        files, own: patterns; in `own`, NAME is the file's name and DASHED the same with dashes.
    """

    files: tuple[str, ...]
    own: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]

    def sources(self, root: Path) -> list[str]:
        names = {str(path.relative_to(root)) for pattern in self.files for path in root.glob(pattern)}
        return sorted(name for name in names if not name.endswith("__init__.py"))

    def tests(self, root: Path, file: str) -> Iterator[tuple[str, ...]]:
        """The stages for one file."""
        name = Path(file).stem
        patterns = [words.replace("NAME", name).replace("DASHED", name.replace("_", "-")) for words in self.own]
        own = sorted({str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern)})
        yield from [tuple(own)] if own else []
        yield from self.stages


GROUPS: dict[str, MutantGroup] = {
    "passes": MutantGroup(
        ("passes/*.py",),
        ("tests/passes/DASHED*.mlir", "tests/passes/test_NAME.py"),
        (
            ("tests/passes",),
            ("tests/compiler/backend",),
            ("tests/fuzz/test_graphs.py", "-k", "seeds"),
            ("tests/test_levels.py", "-k", "taking-turns or llama3-rope or gpt2"),
        ),
    ),
    "backend": MutantGroup(
        ("compiler/emit/*.py",),
        ("tests/compiler/backend/test_NAME.py",),
        (
            ("tests/compiler/backend",),
            ("tests/fuzz/test_graphs.py", "-k", "seeds"),
            ("tests/test_levels.py", "-k", "taking-turns or llama3-rope"),
        ),
    ),
    "validator": MutantGroup(
        ("runtime/validator/*.py",),
        ("tests/runtime/test_validator_NAME.py", "tests/runtime/test_NAME.py"),
        (
            ("tests/runtime/test_validator_bodies.py", "tests/runtime/test_validator_indexed.py",
             "tests/runtime/test_validator_memory.py", "tests/runtime/test_validator_samples.py",
             "tests/runtime/test_validator_kernels.py", "tests/runtime/test_contract.py"),
            ("tests/runtime/test_validator.py",),
            ("tests/fuzz/test_verdicts.py",),
        ),
    ),
    "admission": MutantGroup(
        tuple(f"compiler/frontend/{name}.py" for name in ("admission", "checkpoint", "gguf/config", "gguf/weights",
                                                          "naming", "sources",
                                                          "tokenizer_files")),
        ("tests/compiler/frontend/test_NAME*.py", "tests/compiler/test_NAME*.py"),
        (
            ("tests/compiler/frontend/test_admission.py", "tests/compiler/frontend/test_checkpoint.py",
             "tests/compiler/frontend/test_checkpoint_contents.py", "tests/compiler/frontend/test_gguf_config.py",
             "tests/compiler/frontend/test_sources.py", "tests/compiler/frontend/test_tokenizer_files.py",
             "-k", "not full_disk"),
            ("tests/compiler/frontend/test_naming.py", "tests/compiler/frontend/test_bad_configs.py",
             "-k", "not endless"),
        ),
    ),
    "engine": MutantGroup(
        ("runtime/serving/engine/*.py",),
        ("tests/runtime/engine/test_NAME.py",),
        (
            ("tests/runtime/engine/test_engine.py", "tests/runtime/engine/test_executor.py",
             "tests/runtime/engine/test_async.py", "tests/runtime/engine/test_prompt_store.py",
             "tests/runtime/engine/test_slots.py", "tests/runtime/engine/test_transcript.py"),
            ("tests/runtime/engine/test_company.py", "tests/runtime/engine/test_example.py"),
        ),
    ),
}  # fmt: skip
