"""What a compilation says about quantised weights: their bytes, and how far they are from the checkpoint's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import prod

from sscc.ir.errors import InputError
from sscc.ir.schedule import DTYPE_BYTES
from sscc.ir.sizes import format_bytes
from sscc.ir.weight_format import Encoding
from sscc.runtime.artifact.tensor_files import Layout, Reader, Stack
from sscc.runtime.quantization import Error, measure_error

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_MATRIX = 2


def quantization_report(layout: Layout, dtype: str, read: Reader | None) -> list[str]:
    """Lines about the weights of a program: a summary, one line per kind (layers are alike), and what stays as it is.

    Args:
        dtype: in which the weights would be stored otherwise.
        read: gives the checkpoint's tensors; None where there are none, and no error is measured.

    Returns:
        no line where no weight is quantised.
    """
    encoded = {name: stack for name, stack in layout.items() if stack.encoding}
    values = [stack for stack in encoded.values() if _encoding(stack).part == "values"]
    if not values:
        return []
    elements = sum(len(stack.sources) * prod(stack.source.shape) for stack in values)
    stored = sum(stack.spec.nbytes for stack in encoded.values())
    before = elements * DTYPE_BYTES[dtype]
    summary = (
        f"quantised: {_encoding(values[0]).format}, {format_bytes(stored)} instead of {format_bytes(before)}, "
        f"{8 * stored / elements:.2f} bits a weight"
    )
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
    """Sources, with what they are a part of, by their names without the layers' numbers."""
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
            raise InputError(f"tensor {source!r}: {error}") from None
    return errors


def _left(layout: Layout) -> Iterator[str]:
    """Matrices that are stored as they are, and why."""
    encoded = {source: stack for stack in layout.values() if stack.encoding for source in stack.sources}
    group = next(_encoding(stack).format.group for stack in encoded.values())
    for kind, sources in _kinds([stack for stack in layout.values() if not stack.encoding]).items():
        name, stack = sources[0]
        shape = stack.source.shape
        if len(shape) < _MATRIX:
            continue
        if name in encoded:
            reason = "it is not only read by products, which read a quantised copy"
        elif any(size % group for size in shape):
            reason = f"it is not only read by products, or groups of {group} do not fit into {list(shape)}"
        else:
            reason = "it is not only read by products"
        yield f"  {kind} stays {stack.spec.dtype}: {reason}"
