"""Scores and weighted sums of panels by tile registers (AMX_BF16).

A tile is 32 keys, or columns of values, by 32 query rows. Registers 0 .. 3 hold sums, [key half][row half]; 4 and 5
hold 16 keys or columns each, 32 bf16 of every one; 6 and 7 hold the same 16 words of 16 query rows each. Keys are read
in place; packed queries and the weights of pairs of keys already have the form of a right operand. Values are
transposed to [columns][pairs of keys].

The instruction sums the products of even elements and of odd elements separately, which is another order than that of
AVX512_BF16, so the bits differ from those of a CPU without tile registers.
"""

from __future__ import annotations

from sscc.runtime.backends.cpu.codegen.features import LANES
from sscc.runtime.backends.cpu.codegen.figures import LINE
from sscc.runtime.backends.cpu.codegen.mlir import F32, TILE_ROW, Function, Value, vector

REGISTERS = ((LANES, TILE_ROW),) * 8
"""Rows, and bytes per row, of each register."""
UNIT = 16
"""Number of words of a row that a register holds."""
_HALVES = range(2)
_KEYS = 2 * LANES
_LEFT, _RIGHT = 4, 6
_LANESF = vector(F32, LANES)


def matrix_scores(f: Function, words: int, row_bytes: int) -> None:
    """Compute `scoring.panel_products` for rows of a multiple of 16 words."""
    staged = f.stack(_KEYS * words * 4)
    with f.loop(0, f["count"]) as tile:
        first = tile.index * _KEYS
        scores = f["scores"] + first * row_bytes
        lies = first + (_KEYS - 1) <= f["last"]
        with f.when(lies):
            _scores_of(f, f["key"] + first * f["stride"], f["stride"], words, scores, row_bytes)
        with f.when(lies.eq(0)):
            with f.loop(0, _KEYS) as row:
                source = f["key"] + f.min(first + row.index, f["last"]) * f["stride"]
                for at in range(0, words * 4, LINE):
                    f.store(f.load(source + at, _LANESF), staged + (row.index * (words * 4) + at))
            _scores_of(f, staged, f.constant(words * 4), words, scores, row_bytes)


def _scores_of(f: Function, key: Value, stride: Value, words: int, scores: Value, row_bytes: int) -> None:
    """Write the scores of 32 keys."""
    for register in range(_LEFT):
        f.zero_tile(register)
    with f.loop(0, words, UNIT) as word:
        keys = key + word.index * 4
        _multiply(f, [keys, keys + stride * LANES], stride, f["query"] + word.index * row_bytes, row_bytes)
    for half in _HALVES:
        for part in _HALVES:
            f.store_tile(2 * half + part, scores + (half * LANES * row_bytes + part * LINE), LANES, row_bytes)


def _multiply(f: Function, left: list[Value], stride: Value, right: Value, row_bytes: int) -> None:
    """Add the products of 16 words: of 16 or 32 rows at `left` and 16 rows at `right`."""
    for part in _HALVES:
        f.load_tile(_RIGHT + part, right + part * LINE, UNIT, stride=row_bytes)
    for half, rows in enumerate(left):
        f.load_tile(_LEFT + half, rows, LANES, stride=stride)
        for part in _HALVES:
            f.dot_tiles(2 * half + part, _LEFT + half, _RIGHT + part)


def matrix_sums(f: Function, columns: int, row_bytes: int) -> None:
    """Compute `combination.panel_sums` for a number of steps that is a multiple of 16. Columns up to the next multiple
    of 16 are summed too."""
    shrink = [f.load(f["shrink"] + part * LINE, _LANESF) for part in _HALVES]
    groups = -(-columns // LANES)
    with f.loop(0, groups * LANES) as column:
        for part, factor in enumerate(shrink):
            place = f["sums"] + (column.index * row_bytes + part * LINE)
            f.store(f.load(place, _LANESF) * factor, place)
    with f.loop(0, groups // 2) as pair:
        _sums_of(f, pair.index * _KEYS, 2, row_bytes)
    if groups % 2:
        _sums_of(f, f.constant((groups - 1) * LANES), 1, row_bytes)


def _sums_of(f: Function, first: Value, halves: int, row_bytes: int) -> None:
    """Add to the sums of 16 or 32 columns from `first` on."""
    places = [
        (2 * half + part, f["sums"] + (first + half * LANES) * row_bytes + part * LINE)
        for half in range(halves)
        for part in _HALVES
    ]
    for register, place in places:
        f.load_tile(register, place, LANES, stride=row_bytes)
    values = f["value"] + first * f["stride"]
    with f.loop(0, f["count"], UNIT) as step:
        left = [values + (step.index * 4 + f["stride"] * (half * LANES)) for half in range(halves)]
        _multiply(f, left, f["stride"], f["weights"] + step.index * row_bytes, row_bytes)
    for register, place in places:
        f.store_tile(register, place, LANES, row_bytes)
