"""The structure of llama.cpp's sequence state (format 3), checked before an engine is given bytes from elsewhere.

llama.cpp itself trusts counts and sizes in what it reads. Here a state is walked header by header, without touching
K/V, and has to have the very shape that this model's own state has: layers, types, row sizes, positions, length.

    attention   u32 streams (1), u32 cells; per cell i32 position, u32 sequences (1), [12 bytes], i32 sequence;
                u32 V transposed, u32 layers; per layer i32 K type, u64 row bytes, rows; then V in the same way
                (transposed: i32 type, u32 element bytes, u32 width, width x cells elements)
    recurrent   u32 cells; per cell i32 position, u32 sequences (0); u32, u32 layers;
                then i32 type, u64 row bytes, rows, to the end

Source: llama_kv_cache::state_write and llama_memory_recurrent::state_write. Whatever does not fit this is refused.
"""

import struct
from dataclasses import dataclass
from itertools import product

from .errors import Bad, Refused

Buffer = bytes | bytearray | memoryview

PREFIX_BYTES = 8  # io magic and sequence id, which get_data puts before a state and files do not have
EXTENSION_BYTES = 12
LAYER_LIMIT = 65536


@dataclass(frozen=True)
class Rows:
    """One K or V of one layer: its ggml type, and the bytes that a cell takes in it."""

    type: int
    cell_bytes: int


@dataclass(frozen=True)
class CellShape:
    """The shape of an attention section."""

    extension_bytes: int
    v_transposed: int
    layers: int
    keys: tuple[Rows, ...]
    values: tuple[Rows, ...]


@dataclass(frozen=True)
class RecurrentShape:
    """The shape of a recurrent section, which is always the last."""

    layers: int
    rows: tuple[Rows, ...]


@dataclass(frozen=True)
class Shape:
    """The sections of a whole state; those from `part_from` on are what a part holds."""

    sections: tuple[CellShape | RecurrentShape, ...]
    part_from: int


class Walk:
    """A position in a state; every read is bounded by what is there."""

    def __init__(self, data: Buffer) -> None:
        self._view = memoryview(data).cast("B")
        self.at = 0

    @property
    def left(self) -> int:
        return len(self._view) - self.at

    def skip(self, size_bytes: int, what: str) -> memoryview:
        if not 0 <= size_bytes <= self.left:
            raise Bad(f"the state ends inside {what}")
        self.at += size_bytes
        return self._view[self.at - size_bytes : self.at]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.skip(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.skip(8, what), "little")


def learn(whole: Buffer, *, has_rows: bool, has_parts: bool, recurrent: bool, window: bool) -> Shape | None:
    """The shape of this model's own state, from one with cells in it; None where it is none of the known ones."""
    kinds = [False] * has_rows + [False] * (window and has_parts) + [True] * recurrent
    part_from = 1 if has_rows else 0
    for extension, with_values in product((0, EXTENSION_BYTES), (True, False)):
        walk = Walk(whole)
        walk.skip(PREFIX_BYTES, "its prefix")
        try:
            found = tuple(
                _learn_recurrent(walk) if is_recurrent else _learn_cells(walk, extension, with_values)
                for is_recurrent in kinds
            )
        except Bad:
            continue
        if not walk.left:
            return Shape(found, part_from if has_parts else len(found))
    return None


def _learn_cells(walk: Walk, extension: int, with_values: bool) -> CellShape:
    cells = _cell_count(walk)
    if not cells:
        raise Bad("nothing can be learnt from an empty state")
    walk.skip(cells * (12 + extension), "its cells")
    transposed, layers = walk.u32("its V flag"), walk.u32("its layers")
    if transposed > 1 or not 0 < layers < LAYER_LIMIT:
        raise Bad("its layers are none")
    keys = tuple(_plain_rows(walk, cells) for _ in range(layers))
    read = _transposed_rows if transposed else _plain_rows
    values = tuple(read(walk, cells) for _ in range(layers)) if with_values else ()
    return CellShape(extension, transposed, layers, keys, values)


def _learn_recurrent(walk: Walk) -> RecurrentShape:
    cells = walk.u32("its recurrent cells")
    walk.skip(8 * cells, "its recurrent cells")
    if walk.u32("its flag"):
        raise Bad("a transposed recurrent state")
    layers, rows = walk.u32("its layers"), []
    while walk.left:
        rows.append(_plain_rows(walk, cells))
    return RecurrentShape(layers, tuple(rows))


def _cell_count(walk: Walk) -> int:
    if walk.u32("its streams") != 1:
        raise Bad("the state has more than one stream")
    return walk.u32("its cells")


def _plain_rows(walk: Walk, cells: int) -> Rows:
    rows = Rows(walk.u32("a type"), walk.u64("a row size"))
    walk.skip(rows.cell_bytes * cells, "its rows")
    return rows


def _transposed_rows(walk: Walk, cells: int) -> Rows:
    type_, element, width = walk.u32("a type"), walk.u32("an element size"), walk.u32("a width")
    walk.skip(element * width * cells, "its rows")
    return Rows(type_, element * width)


def check_state(
    shape: Shape | None, state: Buffer, start: int, end: int, *, part: bool = False, whole: bool = False
) -> int:
    """Where the state ends. Raises Bad where it cannot be that of tokens [start, end).

    A part holds what cannot be cut by position; `whole` is a state of [0, end) without prefix, as files have it, and
    something may follow it; else it is rows followed by an empty part. Raises Refused where this model's state has
    a shape that cannot be checked.
    """
    if shape is None:
        raise Refused("the state of this model cannot be checked, so none from elsewhere is used", reason="foreign")
    walk = Walk(state)
    if not whole:
        walk.skip(PREFIX_BYTES, "its prefix")
    first = shape.part_from if part else 0
    for number, section in enumerate(shape.sections[first:], first):
        is_part = number >= shape.part_from
        empty = is_part and not part and not whole
        if isinstance(section, RecurrentShape):
            _check_recurrent(walk, section, end, empty)
        else:
            _check_cells(walk, section, start, end, exact=not is_part, empty=empty)
    if walk.left and not whole:
        raise Bad(f"the state has {walk.left} bytes more than its counts say")
    return walk.at


def _check_cells(walk: Walk, shape: CellShape, start: int, end: int, *, exact: bool, empty: bool) -> None:
    cells = _cell_count(walk)
    wanted = 0 if empty else end - start
    if cells > wanted or (exact and cells != wanted):
        raise Bad(f"the state has {cells} cells for {wanted} tokens")
    if not cells:
        return
    _check_positions(walk.skip(cells * (12 + shape.extension_bytes), "its cells"), shape, start, end, cells)
    if (walk.u32("its V flag"), walk.u32("its layers")) != (shape.v_transposed, shape.layers):
        raise Bad("the state has other layers, or V the other way round, than this model and configuration")
    for rows in shape.keys:
        _check_plain(walk, rows, cells, "K")
    for rows in shape.values:
        if shape.v_transposed:
            _check_transposed(walk, rows, cells)
        else:
            _check_plain(walk, rows, cells, "V")


def _check_positions(view: memoryview, shape: CellShape, start: int, end: int, cells: int) -> None:
    form = "<iI12xi" if shape.extension_bytes else "<iIi"
    positions = set()
    for position, sequences, _ in struct.iter_unpack(form, view):
        if sequences != 1 or not start <= position < end:
            raise Bad(f"the state has a cell at position {position}, outside of [{start}, {end})")
        positions.add(position)
    if len(positions) != cells:
        raise Bad("the state has two cells at one position")


def _check_recurrent(walk: Walk, shape: RecurrentShape, end: int, empty: bool) -> None:
    cells = walk.u32("its recurrent cells")
    if cells != (0 if empty else 1):
        raise Bad(f"the state has {cells} recurrent cells")
    for position, sequences in struct.iter_unpack("<iI", walk.skip(8 * cells, "its recurrent cells")):
        if sequences or position != end - 1:
            raise Bad(f"the recurrent state stands at {position} instead of {end - 1}")
    if (walk.u32("its flag"), walk.u32("its layers")) != (0, shape.layers):
        raise Bad("the recurrent state has other layers than this model")
    for rows in shape.rows:
        _check_plain(walk, rows, cells, "recurrent")


def _check_plain(walk: Walk, rows: Rows, cells: int, what: str) -> None:
    if (walk.u32("a type"), walk.u64("a row size")) != (rows.type, rows.cell_bytes):
        raise Bad(f"the state has {what} of another type or row size than this model and configuration")
    walk.skip(rows.cell_bytes * cells, "its rows")


def _check_transposed(walk: Walk, rows: Rows, cells: int) -> None:
    type_, element, width = walk.u32("a type"), walk.u32("an element size"), walk.u32("a width")
    if (type_, element * width) != (rows.type, rows.cell_bytes):
        raise Bad("the state has V of another type or row size than this model and configuration")
    walk.skip(rows.cell_bytes * cells, "its rows")
