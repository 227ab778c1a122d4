"""The device kernels that a loop kernel becomes, and the host function that launches them."""

from __future__ import annotations

from math import prod

from kernelwright.codegen.cuda.expressions import C_TYPES
from kernelwright.codegen.cuda.host import alignment_check, head
from kernelwright.codegen.cuda.loops.accumulators import RESULT_NAMES
from kernelwright.codegen.cuda.loops.chosen import pointwise, reducing, walks
from kernelwright.codegen.cuda.loops.comment import describe
from kernelwright.codegen.cuda.loops.device import (
    Buffers,
    DeviceKernel,
    backwards,
    finish_kernel,
    points_kernel,
    reduction_kernel,
)
from kernelwright.codegen.cuda.loops.emitter import Buffer
from kernelwright.codegen.cuda.loops.forms import along_row, only_row, reading, taking_last, used_later
from kernelwright.codegen.cuda.loops.normal_form import passes
from kernelwright.codegen.cuda.loops.schedule import COMPONENTS, Schedule, column_parts, takes_columns
from kernelwright.codegen.cuda.loops.tiles import TileSchedule, tiles_kernel
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.source import KernelSource
from kernelwright.codegen.terms import plus
from kernelwright.plan.kernels import LoopKernel


class Launches:
    """The device kernels of one loop kernel, in the order of their launches, and its workspace. Every other one that
    walks over its inputs goes backwards, the first one if ``backwards``."""

    def __init__(self, name: str, buffers: Buffers, backwards: bool = False) -> None:
        self.name = name
        self.buffers = buffers
        self.backwards = backwards
        self.devices: list[DeviceKernel] = []
        self.workspace: list[tuple[Buffer, int]] = []
        self.bytes = 0

    def _next(self) -> str:
        return f"k{len(self.devices)}_{self.name}"

    def _add(self, device: DeviceKernel) -> None:
        """Add a kernel that walks over the inputs."""
        self.devices.append(backwards(device) if self.backwards and device.grid > 1 else device)
        self.backwards = not self.backwards

    def _reserve(self, name: str, c_type: str, count: int) -> Buffer:
        buffer = Buffer(name, c_type)
        self.workspace.append((buffer, self.bytes))
        self.bytes += -(-count * (4 if c_type == "float" else 8) // 256) * 256
        return buffer

    def points(
        self,
        kernel: LoopKernel,
        schedule: Schedule | TileSchedule | None = None,
        buffers: Buffers | None = None,
    ) -> None:
        """Add a pointwise kernel."""
        kernel, chosen = pointwise(kernel)
        schedule = schedule or chosen
        buffers = buffers or self.buffers
        comment = describe(kernel, buffers)
        if isinstance(schedule, Schedule) and schedule.family == "rows":
            kernel = along_row(kernel)
            self._add(reduction_kernel(kernel, [], [], schedule, buffers, self._next(), comment))
            return
        if isinstance(schedule, TileSchedule):
            self._add(tiles_kernel(kernel, schedule, buffers, self._next(), comment))
        else:
            self._add(points_kernel(kernel, schedule, buffers, self._next(), comment))

    def reduce(self, kernel: LoopKernel, schedule: Schedule | None) -> None:
        """Add the kernels of a kernel with reductions, whose axes are normal."""
        given, schedule = schedule, schedule or reducing(kernel)
        plain = given is None and not schedule.keep and not schedule.window
        taken = plain and takes_columns(kernel, schedule.family)
        if schedule.splits == 1 and not taken:
            comment = describe(kernel, self.buffers)
            kept = walks(kernel)[1]
            self._add(reduction_kernel(kernel, passes(kernel), kept, schedule, self.buffers, self._next(), comment))
        else:
            self._split(kernel, schedule, taken)

    def _split(self, kernel: LoopKernel, schedule: Schedule, taken: bool) -> None:
        """Several parts per row: for each pass their states, then the merge; row stores come last.

        ``taken``: neighbouring threads take the last row axis, whatever ``schedule`` says.
        """
        outer = prod(kernel.outer)
        if taken:
            schedule = column_parts(taking_last(kernel))
        parts = schedule.splits * (kernel.row[-1] if taken else 1)
        known: dict[tuple[int, int], int] = {}
        buffers = self.buffers
        found = passes(kernel)
        for number, current in enumerate(found):
            last = number == len(found) - 1
            restricted = reading(kernel, known)
            width = sum(COMPONENTS[kernel.reductions[n].kind] for n in current.reductions)
            partial = self._reserve(f"partial{number}", "double", outer * parts * width)
            walked = taking_last(restricted) if taken else restricted
            comment = f"Part {number}: {parts} parts of every row.\n" + describe(
                walked, buffers, current.reductions
            )
            self._add(
                reduction_kernel(
                    walked, [current], [], schedule, buffers, self._next(), comment, partial, int(taken)
                )
            )
            later = used_later(kernel, found, number)
            results = {
                key: self._reserve(
                    f"{RESULT_NAMES[kernel.reductions[key[0]].kind][key[1]]}{key[0]}_of",
                    C_TYPES[kernel.compute],
                    outer,
                )
                for key in later
            }
            stores = restricted.outer_stores if last else ()
            self.devices.append(
                finish_kernel(
                    restricted,
                    current,
                    parts,
                    buffers,
                    partial,
                    results,
                    stores,
                    self._next(),
                    f"Merge of the parts{', and what is stored once per row' if stores else ''}.",
                )
            )
            for key, buffer in results.items():
                known[key] = len(buffers.inputs)
                buffers = Buffers((*buffers.inputs, buffer), buffers.outputs)
        if kernel.row_stores:
            self.points(only_row(reading(kernel, known)), None, buffers)

    def source(self, kernel: LoopKernel) -> KernelSource:
        """The definition: device kernels, then the host function."""
        vectors = {name for device in self.devices for name in device.vectors}
        names = [b.name for b in (*self.buffers.inputs, *self.buffers.outputs)]
        lines = [head(self.name, kernel.input_dtypes, kernel.output_dtypes)]
        lines += [f"  {line}" for line in alignment_check(self.name, [name for name in names if name in vectors])]
        for buffer, offset in self.workspace:
            place = plus("static_cast<char*>(workspace)", f"{offset}LL" if offset else 0)
            lines.append(f"  {buffer.c_type}* {buffer.name} = reinterpret_cast<{buffer.c_type}*>({place});")
        if not self.workspace:
            lines.append("  (void)workspace;")
        if not self.devices:
            lines += [f"  (void){name};" for name in (*names, "stream")]
        for device in self.devices:
            where = f'"{self.name}"'
            if device.shared_bytes:  # 48 KiB are there without asking, which static arrays count against as well
                lines.append(
                    f"  KW_CHECK({where}, cudaFuncSetAttribute({device.name}, "
                    f"cudaFuncAttributeMaxDynamicSharedMemorySize, {device.shared_bytes}));"
                )
            lines.append(
                f"  KW_LAUNCH({where}, {device.name}, {device.grid}, {device.threads}, {device.shared_bytes}, stream, "
                f"{', '.join(device.arguments)});"
            )
        lines += ["  return nullptr;", "}", ""]
        definition = "\n".join([*(device.text for device in self.devices), "\n".join(lines)])
        return KernelSource(self.name, definition, self.bytes, ("check", *sorted(snippets_of(definition))))
