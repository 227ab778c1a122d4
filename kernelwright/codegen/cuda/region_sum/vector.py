"""Neighbours of a row in one register of a region sum: how they are read and added."""

from __future__ import annotations

from dataclasses import dataclass

from kernelwright.codegen.terms import plus, times


@dataclass(frozen=True, slots=True)
class Vector:
    """``width`` neighbours in one register: CUDA's vector types; 16-bit numbers lie in pairs in unsigned words."""

    scalar: str
    width: int

    @property
    def narrow(self) -> bool:
        """Whether the elements have 16 bits."""
        return self.scalar.startswith("kw_")

    @property
    def words(self) -> list[str]:
        """What selects each word of the register."""
        count = -(-self.width // 2) if self.narrow else self.width
        return [".x", ".y", ".z", ".w"][:count] if count > 1 else [""]

    @property
    def c_type(self) -> str:
        """The register's C type."""
        if self.narrow and self.width == 1:
            return "unsigned short"
        element = "unsigned" if len(self.words) == 1 else "uint"
        element = element if self.narrow else self.scalar
        return element if len(self.words) == 1 else f"{element}{len(self.words)}"

    @property
    def zero(self) -> str:
        """A register of zeros."""
        return "0" if len(self.words) == 1 else f"make_{self.c_type}({', '.join(['0'] * len(self.words))})"

    def element(self, register: str, number: int) -> str:
        """The value of one element."""
        if not self.narrow:
            return register + self.words[number]
        word = register + self.words[number // 2]
        return f"{self.scalar}_value({f'{word} >> 16' if number % 2 else word})"

    def load(self, register: str, number: int, address: str) -> str:
        """Statement that reads one element into a register of zeros."""
        if not self.narrow:
            return f"{register}{self.words[number]} = __ldg({address});"
        return f"{register}{self.words[number // 2]} |= unsigned(({address})->bits) << {number % 2 * 16};"


def adds_text(rows: int, vector: Vector) -> str:
    """Lines that add the loaded rows, pairwise, to the sums."""
    lines = []
    width = vector.width
    for number in range(width):
        terms = [vector.element(f"value[{row}][v]", number) for row in range(rows)]
        while len(terms) > 1:
            terms = [f"({a} + {b})" for a, b in zip(terms[::2], terms[1::2], strict=True)]
        lines.append(f"      sums[{plus(times('v', width), number)}] += {terms[0]};")
    return "\n".join(lines)


def ragged_text(vector: Vector) -> str:
    """Statement that reads the last elements of a row, fewer than a vector; nothing where a vector is one element."""
    if vector.width == 1:
        return ""
    loads = [
        f"    if ({plus('column', i)} < limit) " + vector.load("value", i, plus("row", "column", i))
        for i in range(vector.width)
    ]
    return "\n".join([" else if (ragged) {", *loads, "  }"])
