"""Groups of source files with the tests that should notice faults in them, the fastest first."""

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


CPU = "tests/runtime/backends/cpu"
_OPERATIONS = ("tests/runtime/test_operations.py",)
_PROGRAMS = (
    "tests/runtime/backends/reference/test_pipelines.py",
    "tests/runtime/backends/reference/test_interpreter.py",
)
_MODELS = ("tests/test_native.py", "-k", "llama or taking")


def _cpu_room(room: str, *stages: str) -> MutantGroup:
    """A folder of the CPU backend. `stages` names its test files, which run before those of operations, small programs
    and compiled models."""
    names = tuple(f"{CPU}/{name}.py" for name in stages)
    own = (f"{CPU}/test_NAME.py", f"{CPU}/native/test_NAME.py")
    return MutantGroup((f"runtime/backends/cpu/{room}/*.py",), own, (names, _OPERATIONS, _PROGRAMS, _MODELS))


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
    "codegen": _cpu_room("codegen", "test_elementwise", "test_nests", "test_partition", "test_checks", "test_features",
                         "test_gather_rows", "test_encoded_rows", "test_products", "test_weights"),
    "plan": _cpu_room("plan", "test_planner", "test_stages", "test_weights", "test_indirect", "test_library",
                      "test_positions"),
    "products": _cpu_room("products", "test_products", "test_quantized_products", "test_packing", "test_weights"),
    "attention": _cpu_room("attention", "test_selection", "test_query_attention", "test_learned_index",
                           "test_decode_attention", "test_prefill_attention", "test_latent_prefill"),
    "options": MutantGroup(
        ("compiler/options/*.py",),
        ("tests/compiler/test_NAME*.py",),
        (
            ("tests/compiler/test_options.py", "tests/compiler/test_option.py", "tests/compiler/test_policy.py",
             "tests/compiler/test_layer_topk.py", "tests/compiler/frontend/test_gguf_parts.py"),
            ("tests/compiler/test_cli.py", "tests/compiler/test_driver.py"),
        ),
    ),
}  # fmt: skip
