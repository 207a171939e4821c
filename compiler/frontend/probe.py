"""Eager runs of the model at compile time: a probe against the untouched model, and golden outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch.export import ExportedProgram

from sscc.compiler.frontend.algorithm import Softmax, causal_attention
from sscc.compiler.frontend.checkpoint import Checkpoint
from sscc.compiler.frontend.checkpoint_tensors import to_arrays
from sscc.compiler.frontend.construction import set_attention
from sscc.compiler.frontend.distinct import only_captured
from sscc.compiler.frontend.eager import NO_SOURCES, Forward, make_golden, model_forward, plain_forward
from sscc.compiler.frontend.frequencies import fix_frequencies, fixed_frequencies
from sscc.compiler.frontend.headless import Headed, around
from sscc.compiler.frontend.operator import context_limit, observing
from sscc.compiler.frontend.quiet import one_line, quiet_libraries
from sscc.compiler.frontend.stateful import computing
from sscc.compiler.frontend.untouched_model import affordable, load_model
from sscc.compiler.options.compile_options import DEFAULT_GOLDEN_TOKENS
from sscc.compiler.options.policy import Rule
from sscc.ir.errors import ErrorKind, SsccError, UnsupportedError, UsageError, quoted
from sscc.ir.geometry import Geometry, Span
from sscc.ir.levels import LayerKinds
from sscc.runtime.artifact.golden import Golden
from sscc.runtime.artifact.tensor_files import Layout

PROBE_TOKENS = 24
PROBE_SEED = 0
PROBE_LOGITS = 2048
"""Minimum number of tokens whose logits are compared if the head is quantized, spread over the vocabulary."""
# Normwise tolerance of the probe. f32: summation order only, far above 24 tokens' rounding. bf16: both runs round
# every operation to 8 bits of mantissa in another order, which adds up over the layers; where it adds up to more, f32
# decides.
PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class ProbeErrors(ErrorKind):
    CAPTURED_DIFFERS = UnsupportedError, (
        "captured with sscc's attention, the model computes other results than the untouched one: over {tokens} "
        "tokens its "
        "logits differ by {difference}; it uses a feature that sscc cannot see"
    )
    PIECES_DIFFER = UnsupportedError, (
        "run in pieces, with the K and V of earlier tokens, the model computes other results than in one piece: over "
        "{tokens} tokens its logits differ by {difference}; it counts positions itself, or keeps a state besides K "
        "and V"
    )
    PROGRAM_FAILS = UnsupportedError, (
        "{path}: the exported program does not run: {cause}; run the model eagerly, in the dtype of the export, before "
        "exporting it"
    )
    UNTOUCHED_FAILS = UnsupportedError, (
        "transformers' own attention cannot run the model of this config, so there is nothing to compare it with: "
        "{form}: {cause}"
    )
    CONTEXT = UsageError, (
        "--max-context {context} exceeds the positions of the model, whose tables end before position {position}: "
        "lower --max-context"
    )
    GOLDEN_TOKENS = UsageError, "--golden-tokens {tokens} leaves no room for a prompt in {context} tokens"
    GOLDEN_QUANTIZED = UsageError, (
        "--save-golden cannot quantize the weights of an exported program: leave out --save-golden or the format"
    )


def probe(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    geometry: Geometry,
    vocabulary: int,
    kinds: LayerKinds | None = None,
) -> None:
    """Compare the model as captured with the untouched model on a short random text.

    Windows are cut down so that the text is longer than a window, and so are other lengths beyond which a feature
    shows. For a text decoder that is a model without a head, the untouched model is the composite model on this text.

    A mask or a bias that was lost at capture shows when the same text runs through our attention operator. Positions
    that the model counts itself, and a state besides K and V, show when it then runs in pieces, as a compiled program
    does. In bf16 some models round so much that this might be hidden; these are compared in f32, which takes twice the
    memory. An exported program is its own definition: only its run in pieces is compared with its run in one piece.

    Args:
        vocabulary: token ids of the text are 0 .. vocabulary - 1.
        kinds: run only the captured layers, from which the program is made; None for all layers.

    Raises:
        UnsupportedError: the logits differ; the message has the maximum and normwise differences and the tolerance.
    """
    count = min(PROBE_TOKENS, geometry.max_context)
    ids = torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(PROBE_SEED))
    complaint = None
    # The numbers of quantized weights are recomputed for each run, and f32 decides in the end.
    quantized = kinds is not None and checkpoint.is_quantized
    if quantized and kinds is not None:
        kinds = affordable(checkpoint, torch.float32, kinds)
    for used in (torch.float32,) if quantized else dict.fromkeys((dtype, torch.float32)):
        with quiet_libraries():
            tokens = _tokens(ids, vocabulary) if quantized else None
            complaint = _complaint(checkpoint, used, ids, geometry.max_context, kinds, tokens)
        if complaint is None:
            return
        if checkpoint.program is not None:
            break  # its dtype is its own
    assert complaint is not None
    raise complaint


def _tokens(ids: torch.Tensor, vocabulary: int) -> list[int]:
    """Return the tokens whose rows of the embedding and of the head take part."""
    spread = range(0, vocabulary, max(1, vocabulary // PROBE_LOGITS))
    return sorted({0, *ids.flatten().tolist(), *spread})


def _complaint(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    ids: torch.Tensor,
    limit: int,
    kinds: LayerKinds | None,
    tokens: Sequence[int] | None,
) -> SsccError | None:
    """Return an error that says which logits differ by more than the tolerance; None if all agree."""
    model: torch.nn.Module
    if checkpoint.program is not None:
        model = checkpoint.program.module()
        forward = _running(checkpoint, plain_forward(model))
    else:
        model = load_model(checkpoint, dtype, max(ids.shape[1] // 3, 1), limit, kinds=kinds, tokens=tokens)
        forward = model_forward(model, slice(None))
        if tokens is not None and model.get_input_embeddings().weight.shape[0] == len(tokens):  # type: ignore[operator]
            ids = torch.searchsorted(torch.tensor(tokens), ids)
    with only_captured(model, None if checkpoint.program is not None else kinds):
        return _compared(checkpoint, model, forward, dtype, ids, limit)


def _compared(
    checkpoint: Checkpoint, model: torch.nn.Module, forward: Forward, dtype: torch.dtype, ids: torch.Tensor, limit: int
) -> SsccError | None:
    with torch.no_grad(), context_limit(limit), fixed_frequencies(model, ids.shape[1]):
        _check_last_position(forward, limit)
        whole = forward(ids, torch.arange(ids.shape[1])[None]).float()
        pieces = _in_pieces(forward, ids)
    if checkpoint.program is None:
        with torch.no_grad():
            set_attention(model, "eager")
            model.set_experts_implementation("eager")  # type: ignore[operator]
            if isinstance(model, Headed):
                whole_model = around(model, checkpoint.whole)
                theirs = _untouched(lambda ids, positions: whole_model(input_ids=ids, use_cache=False).logits, ids)
            else:
                theirs = _untouched(forward, ids)
        differs = difference(whole, theirs, PROBE_TOLERANCE[dtype])
        if differs:
            return ProbeErrors.CAPTURED_DIFFERS(tokens=ids.shape[1], difference=differs)
    differs = difference(pieces, whole, PROBE_TOLERANCE.get(dtype, PROBE_TOLERANCE[torch.float32]))
    return ProbeErrors.PIECES_DIFFER(tokens=ids.shape[1], difference=differs) if differs else None


def _running(checkpoint: Checkpoint, forward: Forward) -> Forward:
    """Return `forward` of an exported program. Its exceptions are reported as errors of the program, whose dtypes or
    shapes do not match."""

    def run(ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        try:
            return forward(ids, positions)
        except (SsccError, IndexError):
            raise
        except Exception as error:
            raise ProbeErrors.PROGRAM_FAILS(path=checkpoint.path, cause=quoted(one_line(error))) from error

    return run


def _untouched(forward: Forward, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of the untouched model. Raises UnsupportedError if transformers cannot run it."""
    try:
        return forward(ids, torch.arange(ids.shape[1])[None]).float()
    except Exception as error:  # any exception of torch or the class about shapes that do not fit
        raise ProbeErrors.UNTOUCHED_FAILS(form=type(error).__name__, cause=quoted(one_line(error))) from error


def _check_last_position(forward: Forward, limit: int) -> None:
    """Refuse a context whose last position the model cannot look up."""
    try:
        forward(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([[limit - 1]]))
    except IndexError as error:
        raise ProbeErrors.CONTEXT(context=limit, position=limit - 1) from error


def difference(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> str:
    """Return the distance of two tensors of logits in words; "" within the tolerance."""
    distance = (ours - theirs).norm() / theirs.norm()
    if distance <= tolerance:
        return ""
    return f"{distance:.2e} normwise ({(ours - theirs).abs().max():.2e} max abs), at most {tolerance:.0e} is rounding"


def _in_pieces(forward: Forward, ids: torch.Tensor) -> torch.Tensor:
    """Return logits [1, n, V] f32 of a text that is fed as two chunks and a last token, each attending to all earlier
    tokens."""
    count = ids.shape[1]
    ends = sorted({count, max(count - 1, 1), max(2 * count // 3, 1)})
    rows: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layer: int, scale: float, window: Span, softmax: Softmax
    ) -> torch.Tensor:
        before = rows.get(layer)
        keys, values = (k, v) if before is None else (torch.cat([before[0], k], 2), torch.cat([before[1], v], 2))
        rows[layer] = keys, values
        # The last queries of causal attention over all tokens so far; earlier queries are not needed.
        padding = q.new_zeros(*q.shape[:2], keys.shape[2] - q.shape[2], q.shape[3])
        out = causal_attention(torch.cat([padding, q], 2)[0], keys[0], values[0], scale, window, softmax)
        return out[None, :, padding.shape[2] :]

    logits = []
    with observing(attend), computing(lambda operator: operator.in_pieces()):
        for start, end in zip([0, *ends], ends, strict=False):
            logits.append(forward(ids[:, start:end], torch.arange(start, end)[None]).float())
    return torch.cat(logits, 1)


def golden_for(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    geometry: Geometry,
    vocabulary: int,
    layout: Layout,
    prompt: Sequence[int] | None,
    tokens: int | None,
    latent: Collection[int] = (),
    sources: Mapping[int, int] = NO_SOURCES,
    rule: Rule | None = None,
) -> Golden:
    """Run eager PyTorch with the cache of this geometry, and record the golden for `sscc run --check`.

    Args:
        vocabulary: token ids of the prompt are 0 .. vocabulary - 1.
        layout: weights of the program. Quantized weights are dequantized in the recorded run too, so it differs from
            the program only by rounding.
        prompt: tokens; if empty, a fixed random prompt that is longer than the cache, if it fits.
        tokens: number of tokens to generate.
        latent: layers that cache latent rows.
        sources: layers that read the rows of others.
        rule: user's rule that scores prompts (`EagerSnapStream`).

    Raises:
        UsageError: the prompt and the new tokens do not fit the context, or the weights of an exported program are
            quantized.
    """
    count = DEFAULT_GOLDEN_TOKENS if tokens is None else tokens
    if count >= geometry.max_context:
        raise ProbeErrors.GOLDEN_TOKENS(tokens=count, context=geometry.max_context)
    if prompt is None:
        prompt = _default_prompt(geometry, vocabulary, count)
    model: ExportedProgram | torch.nn.Module | None = checkpoint.program
    if checkpoint.config is not None:
        model = load_model(checkpoint, dtype, layout=layout)
        fix_frequencies(model, geometry.max_context)
    elif any(stack.encoding for stack in layout.values()):
        raise ProbeErrors.GOLDEN_QUANTIZED()
    assert model is not None
    with quiet_libraries():
        _, new_tokens, tensors = make_golden(model, geometry, prompt, count, latent, sources, rule)
    return Golden(tuple(prompt), tuple(new_tokens), to_arrays(tensors))


def _default_prompt(geometry: Geometry, vocab_size: int, new_tokens: int) -> list[int]:
    """Return random tokens, a quarter more than the cache has rows if the context allows it."""
    length = min(geometry.budget + geometry.budget // 4 + 1, geometry.max_context - new_tokens)
    generator = torch.Generator().manual_seed(PROBE_SEED)
    return [int(token) for token in torch.randint(0, vocab_size, (length,), generator=generator)]
