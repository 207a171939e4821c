"""Which dimension of a body's steps runs through the positions of a chunk, so that padding is left out.

A prompt's last chunk has fewer positions than the chunk is long. Products with packed weights have a row per position;
what is computed from their results, element by element, has such a dimension too, and is found here.
"""

from __future__ import annotations

from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest


class Positions:
    """Learns from nests in the order in which they run.

    Args:
        count: C, positions of a chunk.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._strides: dict[str, int] = {}  # elements from a position to the next, of regions that have positions

    def product(self, nest: Nest, rows: tuple[int, ...]) -> int:
        """How many of a product's rows, its dimensions `rows`, belong to each position: 0 where rows are not positions,
        more than 1 where dimensions inside one of the step as it was written, that of the positions, are merged."""
        if len(rows) != 1:
            return 0
        (dim,), extent = rows, nest.dims[rows[0]]
        outermost = (divisor for d, divisor, size in nest.original if d == dim and size == self.count)
        apart = next((divisor for divisor in (1, *outermost) if divisor * self.count == extent), 0)
        if apart:
            self._mark(nest.output, dim, apart)
        return apart

    def dimension(self, nest: Nest) -> int | None:
        """The dimension of another nest that runs through positions; None where there is none."""
        for access in nest.inputs:
            stride = self._strides.get(access.region)
            for d, (extent, step) in enumerate(zip(nest.dims, access.coefficients, strict=True)):
                if extent == self.count and step == stride and d not in nest.reduce and self._separate(nest, access, d):
                    self._mark(nest.output, d)
                    return d
        return None

    def _mark(self, output: LinearAccess, dim: int, indices: int = 1) -> None:
        """Notes a region whose positions are so many `indices` of a dimension apart."""
        stride = output.coefficients[dim] * indices
        if self._strides.setdefault(output.region, stride) != stride:
            self._strides[output.region] = 0  # two steps write it in different layouts, so none is known

    def _separate(self, nest: Nest, access: LinearAccess, dim: int) -> bool:
        """Whether index i of a dimension stays within position i, whatever the other indices are."""
        stride = access.coefficients[dim]
        whole = stride * self.count
        inside = access.constant % whole
        for d, (extent, step) in enumerate(zip(nest.dims, access.coefficients, strict=True)):
            if d != dim and step % whole:
                inside += step * (extent - 1)
        return 0 <= inside < stride
