"""Writer of the artifact of a compiled program, and of the report about it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import torch

from sscc.compiler.driver.quantization_report import quantization_report
from sscc.compiler.driver.referred_checkpoints import check_referable, remember
from sscc.compiler.driver.weight_cache import Progress, pack_weights, packed_ahead
from sscc.compiler.emit.listing import list_program
from sscc.compiler.frontend.checkpoint import Checkpoint
from sscc.compiler.frontend.checkpoint_tensors import checkpoint_reader, to_arrays
from sscc.compiler.options.compile_options import CompileOptions
from sscc.compiler.options.versions import own_version, tool_versions
from sscc.ir.errors import ErrorKind, InternalError
from sscc.ir.layer_state.rows import selector_of
from sscc.ir.levels import ProgramFacts
from sscc.ir.looping import Looping
from sscc.ir.schedule import Program, launches
from sscc.ir.sizes import format_bytes
from sscc.ir.stopwatch import timed
from sscc.ir.target import FAMILY, load_target
from sscc.ir.weight_formats.registry import Encoding
from sscc.runtime.artifact.artifact_files import MACHINE, SCHEDULE
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.manifest import Manifest, WeightsRecord
from sscc.runtime.artifact.proofs import remember_proof
from sscc.runtime.artifact.signature import Signature
from sscc.runtime.artifact.tensor_files import Reader, digest_of, layout_of, reading
from sscc.runtime.artifact.writer import ArtifactWriter
from sscc.runtime.backends.backend import Backend
from sscc.runtime.backends.registry import DEFAULT_BACKEND, backend


class PackagingErrors(ErrorKind):
    UNKNOWN_CONSTANT = (
        InternalError,
        "the value of the constant {constant!r}, a part of the tensor {tensor!r}, is unknown",
    )


def write_artifact(
    options: CompileOptions,
    program: Program,
    facts: ProgramFacts,
    signature: Signature,
    checkpoint: Checkpoint | None,
    constants: Mapping[str, torch.Tensor],
    golden: Golden | None,
    looping: Sequence[Looping] = (),
    packed: Callable[[], str] | None = None,
) -> list[str]:
    """Write OUT.rdu atomically, and return the lines of the report.

    Args:
        program: a proved program (`sscc.runtime.artifact.contract.prove`).
        signature: sizes and geometry for which the program was compiled.
        checkpoint: source of the weights and the tokenizer; None without one.
        constants: values by name, including all constants that the program uses.
        looping: outcome of looping each run of equal layers.
        packed: function that waits until the weights that the artifact refers to are packed, and returns their digest.

    Raises:
        InputError: the checkpoint lacks a tensor of the program, or has it in another shape.
        OutputError: the artifact cannot be written; nothing is left behind.
        UnsafeCacheError: native code cannot be cached, because other users could have written to the cache.
    """
    packer = backend(options.pack_for, program)
    with ArtifactWriter(options.output_path) as writer:
        writer.write_program(program, list_program(program))
        writer.write_text(MACHINE, load_target(options.target).to_json())
        _write_constants(writer, program, constants)
        if checkpoint is not None:
            for name, data in sorted(checkpoint.tokenizer.items()):
                writer.write_bytes(f"tokenizer/{name}", data)
        if golden is not None:
            golden.save(writer)
        with timed("native code"):
            native = [f"native code: {packer.lower()}"] if options.native_code else []
        with timed("weights"):
            weights = _write_weights(writer, options, checkpoint, program, packer, packed)
        config = json.loads(facts.config)
        writer.finish(Manifest(own_version(), tool_versions(), FAMILY, config, signature, weights, tuple(looping)))
        remember_proof(writer.digest(SCHEDULE), signature)
    layout = layout_of(program, "weight")
    with timed("report of quantization"):
        quantized = quantization_report(layout, facts.dtype, _reader(checkpoint), *_stored_forms(checkpoint))
    return [*_report(program, signature, weights, checkpoint), *native, *quantized]


def packing_weights(program: Program, checkpoint: Checkpoint) -> AbstractContextManager[Callable[[], str]]:
    """Pack a checkpoint's weights into the user's cache during the block, in the layout for a run of the program. The
    block gets a function that waits for the end and returns their digest; it raises the errors of `pack_weights`."""
    layout, read = layout_of(program, "weight"), checkpoint_reader(checkpoint, str(checkpoint.path))
    whole = {name: stack.whole for name, stack in layout.items()}

    def pack(progress: Progress) -> str:
        packings = {} if program.grid else backend(DEFAULT_BACKEND, program).packings
        return pack_weights(whole, read, progress, packings)

    return packed_ahead(pack)


def _write_weights(
    writer: ArtifactWriter,
    options: CompileOptions,
    checkpoint: Checkpoint | None,
    program: Program,
    packer: Backend,
    packed: Callable[[], str] | None,
) -> WeightsRecord:
    """Embed the weights, or return their digest and record the path of the checkpoint in the user's cache."""
    read = _reader(checkpoint)
    if checkpoint is None or read is None:
        return WeightsRecord("reference", "")
    layout = layout_of(program, "weight")
    if options.weights == "embed" and program.grid:  # unsharded and unpacked: each rank reads its part and packs it
        return WeightsRecord("embedded", writer.write_weights(layout, read))
    if options.weights == "embed":
        digest = writer.write_weights(layout, read, packer.packings)
        return WeightsRecord("embedded", digest, packer.packer, tuple(sorted(packer.packings)))
    check_referable(checkpoint.path)
    digest = digest_of(layout, read) if packed is None else packed()
    remember(digest, checkpoint.path)
    return WeightsRecord("reference", digest)


def _stored_forms(checkpoint: Checkpoint | None) -> tuple[dict[str, str], Callable[[str, Encoding], bool]]:
    """Return descriptions of the formats of the checkpoint's quantized weights, by name, and a predicate: True if
    the checkpoint stores a weight in an encoding."""
    if checkpoint is None:
        return {}, lambda name, encoding: False
    forms = {name: checkpoint.stored_form(name) for name in checkpoint.names()}
    return {name: form.text for name, form in forms.items() if form is not None}, checkpoint.stores


def _reader(checkpoint: Checkpoint | None) -> Reader | None:
    """Return a reader of the checkpoint's tensors; None without a checkpoint."""
    if checkpoint is None or not checkpoint.has_weights:
        return None
    return checkpoint_reader(checkpoint, str(checkpoint.path))


def _write_constants(writer: ArtifactWriter, program: Program, constants: Mapping[str, torch.Tensor]) -> None:
    layout = layout_of(program, "constant")
    for name, stack in layout.items():
        for source in stack.sources:
            if source not in constants:
                raise PackagingErrors.UNKNOWN_CONSTANT(constant=source, tensor=name)
    writer.write_constants(layout, reading(to_arrays(constants), "the model"))


def _report(
    program: Program, signature: Signature, record: WeightsRecord, checkpoint: Checkpoint | None
) -> list[str]:
    g = signature.cache_geometry
    weights = sum(tensor.nbytes for tensor in program.tensors if tensor.role == "weight")
    referred = "none" if checkpoint is None or not record.digest else f"read from {checkpoint.path}"
    held = {"embedded": "embedded", "reference": referred}[record.mode]
    decode = sum(1 for _ in launches(program.entry("decode").body))
    return [
        f"cache: {g.budget} rows (sink {g.sink} + recent {g.recent} + topk {g.topk}) for a context of "
        f"{g.max_context} tokens; {selector_of(g).in_words()}",
        f"KV: {signature.kv_in_words()}; batch {signature.batch}, prefill chunk {signature.prefill_chunk}, "
        f"{signature.dtype}",
        f"schedule: {len(program.kernels)} kernels, {decode} launches per decode step; "
        f"weights {format_bytes(weights)} ({held})",
        *([f"ranks: {program.ranks}; the sizes of weights and KV are per rank"] if program.grid else []),
    ]
