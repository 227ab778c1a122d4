"""What a recurrence computes at one point of a step, as CUDA text: for kernels with products and for those without.

A thread has, for each of its points, ``state`` (values that change from step to step), ``x`` (what is read anew in each
step), ``still`` (what is read once), ``gate`` (the products of a step), and ``y`` (what is stored of a step).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.codegen.cuda.expressions import affine_text, apply_text, literal, reach
from kernelwright.plan.expressions import Apply, Constant, Expression, Index, Load, Reduced, is_whole, walk
from kernelwright.plan.kernels import Recurrence, Store


class CellText:
    """The texts of one kernel. names: of the axes in indices, first that of steps."""

    def __init__(self, kernel: Recurrence, names: Sequence[str]) -> None:
        self.kernel, self.names = kernel, list(names)
        self.stores = [(f"y[{n}]", store) for n, store in enumerate(kernel.stores)]
        self.roots = [*(s.expression for s in kernel.stores), *kernel.updates]
        loads = [e for e in walk(*self.roots) if isinstance(e, Load)]
        self.moving = [load for load in loads if load.index.strides[0]]
        self.still = [load for load in loads if not load.index.strides[0]]
        domain = (kernel.steps, *kernel.shape)
        indices = [e.index for e in walk(*self.roots, *kernel.initial) if isinstance(e, Load)]
        self.long = any(max(map(abs, reach(index, domain))) >= 2**31 - 2**12
                        for index in (*indices, *(s.index for s in kernel.stores)))

    @property
    def constants(self) -> str:
        """How many values of each kind a point has; arrays have one element at least."""
        numbers = {"STATES": len(self.kernel.updates), "MOVING": len(self.moving), "STILL": len(self.still),
                   "STORES": len(self.stores)}
        return f"constexpr int {', '.join(f'{name} = {max(1, number)}' for name, number in numbers.items())};"

    def parameters(self, *, written: bool = True) -> list[str]:
        """The declarations of in0, ..., and of out0, ... where they are ``written``."""
        given = [f"const float* __restrict__ in{n}" for n in range(len(self.kernel.input_dtypes))]
        return given + [f"float* __restrict__ out{n}" for n in range(len(self.kernel.output_dtypes)) if written]

    def arguments(self) -> list[str]:
        """Their names."""
        return [part.rpartition(" ")[2] for part in self.parameters()]

    def place(self, index: Index, names: Sequence[str] | None = None) -> str:
        """The number of an element."""
        return affine_text(index.strides, names or self.names, index.offset, self.long)

    def reads(self, step: str, loads: Sequence[Load], array: str, there: str = "") -> list[str]:
        """Lines that read ``loads`` of a step into an array; zeros where it is not ``there``."""
        lines = []
        for n, load in enumerate(loads):
            text = f"in{load.buffer}[{self.place(load.index, [step, *self.names[1:]])}]"
            lines.append(f"{array}[{n}] = {f'{there} ? {text} : 0.0f' if there else text};")
        return lines

    def prefetches(self, step: str) -> list[str]:
        """Lines that ask for what a step reads anew, for the second-level cache."""
        return [f"kw_prefetch(in{load.buffer} + {self.place(load.index, [step, *self.names[1:]])});"
                for load in self.moving]

    def writes(self, step: str, array: str) -> list[str]:
        """Lines that store what a step gives, some of it in the last step alone."""
        def line(store: Store, number: int) -> str:
            return f"out{store.buffer}[{self.place(store.index, [step, *self.names[1:]])}] = {array}[{number}];"

        each = [line(s, n) for n, (_, s) in enumerate(self.stores) if s.index.strides[0]]
        last = [line(s, n) for n, (_, s) in enumerate(self.stores) if not s.index.strides[0]]
        return [*each, *([f"if ({step} == STEPS - 1) {{", *(f"  {text}" for text in last), "}"] if last else [])]

    def step(self) -> str:
        """The function ``step``, by which states become those after a step."""
        known: dict[Expression, str] = {
            **{load: f"x[{n}]" for n, load in enumerate(self.moving)},
            **{load: f"still[{n}]" for n, load in enumerate(self.still)},
            **{Reduced(0, s): f"state[{s}]" for s in range(len(self.kernel.updates))},
            **{Reduced(1, g): f"gate[{g}]" for g in range(self.kernel.gates)}}
        lines: list[str] = []
        texts = _defined(self.roots, known, lines)
        given = {"x": "MOVING", "still": "STILL", **({"gate": "GATES"} if self.kernel.gates else {})}
        used = "\n".join(lines) + " ".join(texts)
        lines = [f"(void){name};" for name in given if f"{name}[" not in used] + lines
        count = len(self.stores)
        lines += [f"{name} = {text};" for (name, _), text in zip(self.stores, texts, strict=False)]
        lines += [f"const float after{s} = {text};" for s, text in enumerate(texts[count:])]
        lines += [f"state[{s}] = after{s};" for s in range(len(texts) - count)]
        head = ", ".join([*(f"const float (&{name})[{size}]" for name, size in given.items()),
                          "float (&state)[STATES]", "float (&y)[STORES]"])
        return "\n".join([f"static __device__ __forceinline__ void step({head}) {{", *(f"  {x}" for x in lines), "}"])

    def initial(self, state: int) -> str:
        """The function ``initialS``, the value of a state before the first step."""
        expression = self.kernel.initial[state]
        loads = [e for e in walk(expression) if isinstance(e, Load)]
        known: dict[Expression, str] = {load: f"in{load.buffer}[{self.place(load.index, ['0', *self.names[1:]])}]"
                                        for load in loads}
        lines: list[str] = []
        (text,) = _defined([expression], known, lines)
        buffers = sorted({load.buffer for load in loads})
        names = [f"int {name}" if any(load.index.strides[n + 1] for load in loads) else "int"
                 for n, name in enumerate(self.names[1:])]
        head = ", ".join([*(f"const float* __restrict__ in{b}" for b in buffers), *names])
        return "\n".join([f"static __device__ __forceinline__ float initial{state}({head}) {{",
                          *(f"  {x}" for x in [*lines, f"return {text};"]), "}"])

    def initial_call(self, state: int, names: Sequence[str]) -> str:
        """Its call at a point with these names."""
        buffers = sorted({e.buffer for e in walk(self.kernel.initial[state]) if isinstance(e, Load)})
        return f"initial{state}({', '.join([*(f'in{b}' for b in buffers), *names])})"


def _defined(roots: Sequence[Expression], known: dict[Expression, str], lines: list[str]) -> list[str]:
    """The texts of values; appends the definitions that they need."""
    def text(node: Expression) -> str:
        return literal(node.value, "float") if isinstance(node, Constant) else known[node]

    for part in walk(*roots, into=lambda part: part not in known):
        if isinstance(part, Apply) and part not in known:
            kind = "long long" if is_whole(part) else "float"
            name = f"v{len(lines)}"
            lines.append(f"const {kind} {name} = {apply_text(part, [text(a) for a in part.arguments], 'float')};")
            known[part] = name
    return [text(root) for root in roots]
