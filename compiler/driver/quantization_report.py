"""Report of a compilation on quantized weights: their size, and their error relative to the checkpoint's weights."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from math import prod

from sscc.ir.errors import ErrorKind, InputError
from sscc.ir.schedule import DTYPE_BYTES
from sscc.ir.sizes import format_bytes
from sscc.ir.weight_formats.registry import Encoding
from sscc.runtime.artifact.tensor_files import Layout, Reader, Stack
from sscc.runtime.support.quantization import Error, measure_error

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_MATRIX = 2


class QuantizationReportErrors(ErrorKind):
    TENSOR = InputError, "tensor {tensor!r}: {cause}"


def quantization_report(
    layout: Layout, dtype: str, read: Reader | None, stored: Mapping[str, str], kept: Callable[[str, Encoding], bool]
) -> list[str]:
    """Return lines about the weights of a program: weights kept as stored, dequantized weights, a summary of quantized
    weights with one line per kind (equal layers together), and the matrices that are not quantized.

    Args:
        dtype: dtype of the program's weights without quantization.
        read: returns the checkpoint's tensors; None without a checkpoint, in which case no error is measured.
        stored: description of the format of each quantized weight in the checkpoint, by source.
        kept: returns True if the checkpoint stores a source in the given encoding.

    Returns:
        no lines if neither the checkpoint nor the program has quantized weights.
    """
    encoded = {name: stack for name, stack in layout.items() if stack.encoding}
    as_stored = {n: s for n, s in encoded.items() if all(kept(source, _encoding(s)) for source in s.sources)}
    kept_sources = {source for stack in as_stored.values() for source in stack.sources}
    rounded = {name: stack for name, stack in encoded.items() if name not in as_stored}
    lines = [_summary("kept", as_stored, dtype)] if as_stored else []
    lines += _dequantized(layout, stored, kept_sources)
    return [*lines, *_quantized(layout, rounded, dtype, read)] if rounded else lines


def _dequantized(layout: Layout, stored: Mapping[str, str], kept: Collection[str]) -> list[str]:
    """Return a line about sources that were dequantized, possibly to be quantized again: their size in the program, and
    the options that reduce it."""
    sources = {source for stack in layout.values() for source in stack.sources} - set(kept)
    counts = Counter(stored[source] for source in sources if source in stored)
    if not counts:
        return []
    listed = ", ".join(f"{count} stored as {text}" for text, count in sorted(counts.items()))
    sizes: Counter[str] = Counter()
    for stack in layout.values():
        if not stack.encoding and any(source in stored for source in stack.sources):
            sizes[stack.spec.dtype] += stack.spec.nbytes
    held = ", ".join(f"{format_bytes(nbytes)} in {dtype}" for dtype, nbytes in sorted(sizes.items()))
    grown = f"; they take {held}, or less with --weights int8 or int4" if held else ""
    return [f"dequantized: weights of the checkpoint, {listed}{grown}"]


def _summary(word: str, encoded: Layout, dtype: str) -> str:
    """Return a line with the formats of weights and their size."""
    values = [stack for stack in encoded.values() if _encoding(stack).is_first]
    elements = sum(len(stack.sources) * prod(stack.source.shape) for stack in values)
    nbytes = sum(stack.spec.nbytes for stack in encoded.values())
    formats = ", ".join(dict.fromkeys(str(_encoding(stack).format) for stack in values))
    return (
        f"{word}: {formats}, {format_bytes(nbytes)} instead of {format_bytes(elements * DTYPE_BYTES[dtype])}, "
        f"{8 * nbytes / elements:.2f} bits per weight"
    )


def _quantized(layout: Layout, encoded: Layout, dtype: str, read: Reader | None) -> list[str]:
    values = [stack for stack in encoded.values() if _encoding(stack).is_first]
    summary = _summary("quantized", encoded, dtype)
    kinds = _kinds(values)
    if read is None:
        return [summary, *_left(layout)]
    errors = {kind: _errors(stacks, read) for kind, stacks in kinds.items()}
    total = sum((error for by_source in errors.values() for error in by_source.values()), Error())
    lines = [f"{summary}; ||W' - W|| / ||W|| = {total.normwise:.2e}, by kind of weight:"]
    width = max(map(len, kinds))
    for kind, by_source in errors.items():
        worst = max(by_source, key=lambda name: by_source[name].normwise)
        line = f"  {kind:{width}}  {sum(by_source.values(), Error()).normwise:.2e}"
        lines.append(line if len(by_source) == 1 else f"{line}, at most {by_source[worst].normwise:.2e} ({worst})")
    return [*lines, *_left(layout)]


def _encoding(stack: Stack) -> Encoding:
    return Encoding.parse(stack.encoding)


def _kinds(stacks: list[Stack]) -> dict[str, list[tuple[str, Stack]]]:
    """Group sources, with their stacks, by their names without layer numbers."""
    kinds: dict[str, list[tuple[str, Stack]]] = defaultdict(list)
    for stack in stacks:
        for source in stack.sources:
            kinds[_NUMBER.sub("*", source)].append((source, stack))
    return kinds


def _errors(sources: list[tuple[str, Stack]], read: Reader) -> Mapping[str, Error]:
    errors = {}
    for source, stack in sources:
        weight, encoding = read(source, stack.source), _encoding(stack)
        try:
            errors[source] = measure_error(
                weight.swapaxes(-1, -2) if encoding.transposed else weight, encoding.format
            )
        except InputError as error:
            raise QuantizationReportErrors.TENSOR(tensor=source, cause=error) from None
    return errors


def _left(layout: Layout) -> Iterator[str]:
    """Yield a line with the reason for each kind of matrices that is not quantized."""
    encoded = {source: stack for stack in layout.values() if stack.encoding for source in stack.sources}
    group = next(_encoding(stack).format.block for stack in encoded.values())
    for kind, sources in _kinds([stack for stack in layout.values() if not stack.encoding]).items():
        name, stack = sources[0]
        shape = stack.source.shape
        if len(shape) < _MATRIX:
            continue
        if name in encoded:
            reason = "it is used for look-ups; matmuls use a quantized copy"
        elif any(size % group for size in shape):
            reason = f"it is not only used in matmuls, or groups of {group} do not divide {list(shape)}"
        else:
            reason = "it is not only used in matmuls"
        yield f"  {kind} stays {stack.spec.dtype}: {reason}"
