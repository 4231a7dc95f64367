"""From an address in a built library to lines of the emitted source, by its DWARF debug information."""

from __future__ import annotations

import bisect
import io
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Inlined:
    """Where code of a call that was inlined lies, and the place of the call."""

    begin: int
    end: int
    depth: int
    place: tuple[str, int]


class LineTable:
    """Source lines of a library's code. Without the `pyelftools` package it knows none, and warns."""

    def __init__(self, library: bytes) -> None:
        self._rows: list[tuple[int, str, int]] = []
        self._inlined: list[_Inlined] = []
        try:
            from elftools.elf.elffile import ELFFile
        except ModuleNotFoundError:
            warnings.warn("source lines are not known without pyelftools: pip install 'convgen[sim]'", stacklevel=2)
            return
        dwarf = ELFFile(io.BytesIO(library)).get_dwarf_info()
        for unit in dwarf.iter_CUs():
            program = dwarf.line_program_for_CU(unit)
            if program is None:
                continue
            # Files count from 1 before DWARF 5.
            names = [""] * (program["version"] < 5) + [entry.name.decode() for entry in program["file_entry"]]
            for entry in program.get_entries():
                # Line 0 is code that the compiler merged: the line before is the best there is.
                if entry.state is not None and entry.state.end_sequence:
                    self._rows.append((entry.state.address, "", 0))
                elif entry.state is not None and entry.state.line:
                    self._rows.append((entry.state.address, names[entry.state.file], entry.state.line))
            self._collect(dwarf, unit, unit.get_top_DIE(), names, 0)
        self._rows.sort(key=lambda row: (row[0], row[2] != 0))  # one sequence may begin where another ends
        self._inlined.sort(key=lambda call: -call.depth)

    def _collect(self, dwarf: Any, unit: Any, parent: Any, names: list[str], depth: int) -> None:
        for die in parent.iter_children():
            if die.tag == "DW_TAG_inlined_subroutine":
                place = (names[die.attributes["DW_AT_call_file"].value], die.attributes["DW_AT_call_line"].value)
                self._inlined += [_Inlined(begin, end, depth, place) for begin, end in _ranges(dwarf, unit, die)]
            self._collect(dwarf, unit, die, names, depth + 1)

    def find(self, pc: int, file: str) -> tuple[int, ...]:
        """Lines of `file`: of the instruction before the return address `pc`, then of the inlined calls around it."""
        address = pc - 1
        index = bisect.bisect_right(self._rows, address, key=lambda row: row[0]) - 1
        places = [self._rows[index][1:]] if index >= 0 else []
        places += [call.place for call in self._inlined if call.begin <= address < call.end]
        return tuple(line for name, line in places if name == file)


def _ranges(dwarf: Any, unit: Any, die: Any) -> Iterator[tuple[int, int]]:
    low, high = die.attributes.get("DW_AT_low_pc"), die.attributes.get("DW_AT_high_pc")
    if low and high:
        yield low.value, high.value if high.form == "DW_FORM_addr" else low.value + high.value
    elif ranges := die.attributes.get("DW_AT_ranges"):
        base_attribute = unit.get_top_DIE().attributes.get("DW_AT_low_pc")
        base = base_attribute.value if base_attribute else 0
        for entry in dwarf.range_lists().get_range_list_at_offset(ranges.value, unit):
            if hasattr(entry, "base_address"):
                base = entry.base_address
            else:
                offset = 0 if getattr(entry, "is_absolute", False) else base
                yield entry.begin_offset + offset, entry.end_offset + offset
