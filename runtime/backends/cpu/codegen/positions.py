"""The dimension of a body's steps that runs over the positions of a chunk, so that padding can be skipped.

The last chunk of a prompt has fewer positions than the chunk's length. Products with packed weights have a row per
position; steps that process their results element by element have a dimension over positions too, which is found here.
"""

from __future__ import annotations

from sscc.runtime.backends.cpu.codegen.nests import LinearAccess, Nest


class Positions:
    """Finds positions in nests, given in the order in which they run.

    Args:
        count: C, number of positions of a chunk.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._strides: dict[str, int] = {}  # elements from one position to the next, for regions that have positions

    def product(self, nest: Nest, rows: tuple[int, ...]) -> int:
        """Return the number of a product's rows (its dimensions `rows`) per position: 0 if rows are not positions, more
        than 1 if dimensions inside of the dimension of positions are merged with it."""
        if len(rows) != 1:
            return 0
        (dim,), extent = rows, nest.dims[rows[0]]
        outermost = (divisor for d, divisor, size in nest.original if d == dim and size == self.count)
        rows_per_position = next((divisor for divisor in (1, *outermost) if divisor * self.count == extent), 0)
        if rows_per_position:
            self._mark(nest.output, dim, rows_per_position)
        return rows_per_position

    def dimension(self, nest: Nest) -> int | None:
        """Return the dimension of a non-product nest that runs over positions; None if there is none."""
        for access in nest.inputs:
            stride = self._strides.get(access.region)
            for d, (extent, step) in enumerate(zip(nest.dims, access.coefficients, strict=True)):
                if extent == self.count and step == stride and d not in nest.reduce and self._separate(nest, access, d):
                    self._mark(nest.output, d)
                    return d
        return None

    def _mark(self, output: LinearAccess, dim: int, indices: int = 1) -> None:
        """Record a region whose positions are `indices` of a dimension apart."""
        stride = output.coefficients[dim] * indices
        if self._strides.setdefault(output.region, stride) != stride:
            self._strides[output.region] = 0  # two steps write it in different layouts, so it has no known one

    def _separate(self, nest: Nest, access: LinearAccess, dim: int) -> bool:
        """Return True if index i of a dimension stays within position i, for all other indices."""
        stride = access.coefficients[dim]
        whole = stride * self.count
        inside = access.constant % whole
        for d, (extent, step) in enumerate(zip(nest.dims, access.coefficients, strict=True)):
            if d != dim and step % whole:
                inside += step * (extent - 1)
        return 0 <= inside < stride
