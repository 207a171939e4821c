"""Running the model eagerly at compile time: a probe against the untouched model, and golden outputs."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer
from torch.export import ExportedProgram

from sscc.compiler.checkpoint_tensors import to_arrays
from sscc.compiler.frontend.capture import build_model
from sscc.compiler.frontend.checkpoint import Checkpoint
from sscc.compiler.frontend.eager import make_golden
from sscc.compiler.frontend.operator import context_limit
from sscc.compiler.options import DEFAULT_GOLDEN_TOKENS
from sscc.ir.errors import InputError, UnsupportedError, UsageError
from sscc.ir.geometry import Geometry
from sscc.ir.levels import ProgramFacts
from sscc.ir.weight_format import Encoding
from sscc.runtime.golden import Golden
from sscc.runtime.quantization import round_trip
from sscc.runtime.tensor_files import Layout
from sscc.runtime.text import encode, read_prompt

PROBE_TOKENS = 24
PROBE_SEED = 0
# Normwise tolerance of the probe. f32: summation order only, far above 24 tokens' rounding. bf16: both runs round
# every operation to 8 bits of mantissa in another order, which adds up over the layers; where it adds up to more, f32
# decides.
PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


def load_model(checkpoint: Checkpoint, dtype: torch.dtype) -> torch.nn.Module:
    """The untouched transformers model with the checkpoint's weights, calling our attention operator.

    Weights that have `dtype` already stay memory-mapped.
    """
    assert checkpoint.config is not None
    model = build_model(checkpoint.config, dtype)
    held = checkpoint.names()
    wanted = [name for name, _ in model.named_parameters() if name in held]
    state = {name: checkpoint.tensor(name).to(dtype) for name in wanted}
    model.load_state_dict(state, strict=False, assign=True)
    if isinstance(model, transformers.PreTrainedModel):
        model.tie_weights()
    left = [name for name, parameter in model.named_parameters() if parameter.device.type == "meta"]
    if left:
        raise InputError(f"{checkpoint.path} lacks {len(left)} parameters, the first is {left[0]!r}")
    return model.requires_grad_(False)


def quantize_model(model: torch.nn.Module, layout: Layout) -> None:
    """Replaces the parameters that `layout` has quantised by what they stand for, in their own dtype.

    An embedding whose rows are looked up keeps its own, also where the head, which is tied to it, is quantised.
    """
    encodings = {
        source: Encoding.parse(stack.encoding)
        for stack in layout.values()
        if stack.encoding
        for source in stack.sources
    }
    plain = {source for stack in layout.values() if not stack.encoding for source in stack.sources}
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    replaced: dict[str, torch.nn.Parameter] = {}
    for module in model.modules():
        for slot, parameter in list(module.named_parameters(recurse=False)):
            name = names[id(parameter)]
            if name not in encodings or (name in plain and isinstance(module, torch.nn.Embedding)):
                continue
            if name not in replaced:
                made = round_trip(parameter.detach().float().numpy(), encodings[name])
                replaced[name] = torch.nn.Parameter(torch.from_numpy(made).to(parameter.dtype), requires_grad=False)
            setattr(module, slot, replaced[name])


def probe(checkpoint: Checkpoint, dtype: torch.dtype, geometry: Geometry) -> None:
    """Compares the model as it is captured (our attention operator, no mask) with the untouched model.

    A mask or a bias that got lost on the way shows here. In bf16 some models round so much that it might hide; these
    are compared in f32, which takes twice the memory. An exported program is its own definition and has no untouched
    model to compare with.

    Raises:
        UnsupportedError: the logits of a short random text differ, with max abs, normwise and the tolerance.
    """
    if checkpoint.config is None:
        return
    count = min(PROBE_TOKENS, geometry.max_context)
    vocabulary = int(checkpoint.config.vocab_size)
    ids = torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(PROBE_SEED))
    for used in dict.fromkeys((dtype, torch.float32)):
        ours, theirs = _both(checkpoint, used, ids, geometry.max_context)
        difference = (ours - theirs).norm() / theirs.norm()
        if difference <= PROBE_TOLERANCE[used]:
            return
    raise UnsupportedError(
        f"captured with sscc's attention, the model computes something else than untouched: over {count} tokens its "
        f"logits differ by {difference:.2e} normwise ({(ours - theirs).abs().max():.2e} max abs), at most "
        f"{PROBE_TOLERANCE[used]:.0e} is rounding; it uses a feature that sscc cannot see"
    )


def _both(
    checkpoint: Checkpoint, dtype: torch.dtype, ids: torch.Tensor, limit: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [1, n, V] f32 with our attention, and with the model's own."""
    model = load_model(checkpoint, dtype)
    with torch.no_grad(), context_limit(limit):
        ours = _logits(model, ids)
        model.set_attn_implementation("eager")  # type: ignore[operator]
        return ours, _logits(model, ids)


def _logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(ids.shape[1])[None]
    logits: torch.Tensor = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    return logits.float()


def golden_for(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    geometry: Geometry,
    facts: ProgramFacts,
    layout: Layout,
    prompt_file: Path | None,
    tokens: int | None,
) -> Golden:
    """Runs eager PyTorch with a SnapStream cache and records what `sscc run --check` compares with.

    Args:
        layout: the program's weights. Those that are quantised are what they stand for in the recorded run too, so it
            differs from the program by rounding alone.
        prompt_file: text to tokenize; without one a fixed random prompt longer than the cache, where it fits.
        tokens: how many tokens to generate.

    Raises:
        UsageError: the prompt and the new tokens do not fit the context, or there is no tokenizer for the text; or the
            weights of an exported program are quantised.
    """
    count = DEFAULT_GOLDEN_TOKENS if tokens is None else tokens
    if count >= geometry.max_context:
        raise UsageError(f"--golden-tokens {count} leaves no room for a prompt in {geometry.max_context} tokens")
    if prompt_file is None:
        prompt = _default_prompt(geometry, facts.vocab_size, count)
    else:
        prompt = _tokenize(checkpoint, prompt_file)
    model: ExportedProgram | torch.nn.Module | None = checkpoint.program
    if checkpoint.config is not None:
        model = load_model(checkpoint, dtype)
        quantize_model(model, layout)
    elif any(stack.encoding for stack in layout.values()):
        raise UsageError("--save-golden cannot quantise the weights of an exported program: leave one of them out")
    assert model is not None
    _, new_tokens, tensors = make_golden(model, geometry, prompt, count)
    return Golden(tuple(prompt), tuple(new_tokens), to_arrays(tensors))


def _default_prompt(geometry: Geometry, vocab_size: int, new_tokens: int) -> list[int]:
    """Random tokens, a quarter more of them than the cache has rows where the context allows."""
    length = min(geometry.budget + geometry.budget // 4 + 1, geometry.max_context - new_tokens)
    generator = torch.Generator().manual_seed(PROBE_SEED)
    return [int(token) for token in torch.randint(0, vocab_size, (length,), generator=generator)]


def _tokenize(checkpoint: Checkpoint, prompt_file: Path) -> list[int]:
    data = checkpoint.tokenizer.get("tokenizer.json")
    if data is None:
        raise UsageError(f"{checkpoint.path} has no tokenizer: the prompt {prompt_file} cannot become tokens")
    return encode(Tokenizer.from_str(data.decode()), read_prompt(prompt_file))
