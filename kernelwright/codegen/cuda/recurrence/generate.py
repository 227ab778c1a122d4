"""A recurrence for CUDA: a :class:`kernelwright.plan.kernels.Recurrence` to one launch for all of its steps.

What a step takes on a cluster of blocks: each block's weights times each row of its part of the batch, from registers
and shared memory (one multiply-add for each weight and row, 128 a cycle on a multiprocessor), sums over the threads
that share an element, what the step computes of these, and new states stored to the shared memory of all blocks of the
cluster, where a barrier counts their bytes. Each warp does all of this by itself, and goes on when states are there.
What a step reads from memory besides is asked for ahead. The idea of weights that stay on the chip is that of G. Diamos
et al., "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML 2016.

Rows of the batch do not depend on each other, so clusters wait for no other cluster. Where a cluster does not hold the
weights, a grid of blocks that all run at once does, and new states go through global memory, each with the number of
its step. Without products every element goes through all steps by itself
(:mod:`kernelwright.codegen.cuda.recurrence.pointwise`).
"""

from __future__ import annotations

from typing import NamedTuple

from kernelwright.codegen.cuda.host import head
from kernelwright.codegen.cuda.math import snippets_of
from kernelwright.codegen.cuda.recurrence import pointwise
from kernelwright.codegen.cuda.recurrence.cell import CellText
from kernelwright.codegen.cuda.recurrence.layout import PORTABLE, Layout, choose
from kernelwright.codegen.source import KernelSource, Unsuitable, text_beside
from kernelwright.codegen.template import fill
from kernelwright.plan.kernels import Recurrence

#: A step takes about as long as memory does to answer, and no step must wait for it.
_AHEAD = 4


class _Meeting(NamedTuple):
    """How the blocks that share a row hand each other new states: the lines in which they do, in the order of these in
    the text. ``who`` and ``after``: what its comment says."""

    who: str
    after: str
    rank: str
    meet: str
    wait: str
    send: str
    sent: str
    turn: str
    snippets: tuple[str, ...]


_ALONE = _Meeting(
    "A block computes", "After each step\n// it writes all of them.", "0", "  __syncthreads();\n", "",
    "        next[own_row * PADDED + first + own_unit] = own_state[e][0];\n", "", "    __syncthreads();\n",
    ("tensor_core",))
_IN_CLUSTER = _Meeting(
    "A cluster of {0} blocks computes",
    "New states go to\n// the shared memory of all blocks, where a barrier counts their bytes, so that each warp goes "
    "on as soon as they are\n// there. The barrier's next phase begins two steps later, when all have what they waited "
    "for.",
    "static_cast<int>(kw_cluster_rank())", """\
  // Of states of even steps and of odd ones.
  const unsigned barriers = kw_shared(states + SHARED_STATES + SHARED_SUMS), bytes = 4 * HIDDEN * rows;
  if (thread == 0) {
    kw_barrier_init(barriers, 1);
    kw_barrier_init(barriers + 8, 1);
    kw_barriers_ready();
    if (STEPS > 1) kw_barrier_expect(barriers + 8, bytes);
    if (STEPS > 2) kw_barrier_expect(barriers, bytes);
  }
  kw_cluster_sync();
""", """\
    if (n > 0) {
      kw_cluster_await(barriers + n % 2 * 8, (n - 1) / 2 % 2);
      if (thread == 0 && n + 2 < STEPS) kw_barrier_expect(barriers + n % 2 * 8, bytes);
    }
""", "", """\
    if (n + 1 < STEPS) {
      // They are put together: it takes as long to send four as to send one.
      __syncwarp();
#pragma unroll
      for (int e = 0; e < EACH; ++e)
        if (lane + 32 * e < PAIRS) sums[lane + 32 * e] = own_state[e][0];
      __syncwarp();
#pragma unroll
      for (int place = lane; place < PAIRS / WIDE * CLUSTER; place += 32) {
        const int pair = place % (PAIRS / WIDE) * WIDE, own_row = pair / WARP_UNITS;
        const int own_unit = first_unit + pair % WARP_UNITS;
        if (own_row < rows && own_unit < count)
          kw_cluster_store<WIDE>(next + own_row * PADDED + first + own_unit, sums + pair, barriers + (n + 1) % 2 * 8,
                                 place / (PAIRS / WIDE));
      }
    }
""", "", ("tensor_core", "cluster"))
_IN_MEMORY = _Meeting(
    "All {0} blocks compute", "After each step\n// every block writes its elements to global memory, with the step's "
    "number, and waits for those of the others there.", "static_cast<int>(blockIdx.x)", "  __syncthreads();\n", "",
    """\
        kw_tagged_store(exchange + (n + 1) % 2 * WORDS + own_row * HIDDEN + first + own_unit, own_state[e][0], n + 1);
""", "", """\
    __syncthreads();
    if (n + 1 < STEPS) receive(exchange + (n + 1) % 2 * WORDS, n + 1, next);
    __syncthreads();
""", ("tensor_core", "together"))
_WORDS = """
constexpr int WORDS = (BATCH * HIDDEN + 1) / 2 * 2;  // of a step, in global memory; they are read in pairs

"""
_WIDE = """
constexpr int LEAST = HIDDEN | UNITS | WARP_UNITS;
constexpr int WIDE = LEAST % 4 == 0 ? 4 : LEAST % 2 == 0 ? 2 : 1;  // states that are sent together
static_assert(4 * HIDDEN * ROWS < 1 << 20, "a barrier counts the bytes of a step");
"""


def generate(kernel: Recurrence, name: str, layout: Layout | None = None) -> KernelSource:
    """The text of the kernel and of its host function ``name``. ``layout`` replaces the chosen one, of a kernel with
    weights.

    Raises Unsuitable where no layout holds the weights, or the states.
    """
    if not kernel.weights:
        return pointwise.generate(kernel, name)
    batch, hidden = kernel.shape
    layout = layout or choose(kernel.gates, batch, hidden)
    if layout is None:
        raise Unsuitable(f"a state of {hidden} elements needs more than all multiprocessors hold")
    meeting = _IN_MEMORY if layout.grid else _IN_CLUSTER if layout.cluster > 1 else _ALONE
    cell = CellText(kernel, ["n", "row", "unit"])
    parameters, arguments = cell.parameters(), cell.arguments()
    if layout.grid:
        parameters.append("unsigned long long* exchange")
        arguments.append("exchange")
    weights = [f"in{w.buffer}" for w in kernel.weights]
    begin = ["#pragma unroll", "for (int s = 0; s < STATES; ++s) own_state[e][s] = 0.0f;", "if (there) {",
             *(f"  own_state[e][{s}] = {cell.initial_call(s, ['row', 'unit'])};"
               for s in range(len(kernel.updates))),
             "}", *cell.reads("0", cell.still, "still[e]", "there"),
             *cell.reads("0", cell.moving, "x[e]", "there")]
    text = fill(text_beside(__file__, "recurrence.cuh"), {
        "NAME": name, "COMMENT": f"{kernel.steps} steps, batch {batch}, a state of {hidden}.",
        "STEPS": kernel.steps, "BATCH": batch, "HIDDEN": hidden, "GATES": kernel.gates, "CONSTANTS": cell.constants,
        "WHO": meeting.who.format(layout.cluster), "AFTER": meeting.after,
        "CLUSTER": layout.cluster, "THREADS": layout.threads, "UNITS": layout.units, "SLICES": layout.slices,
        "QUADS": layout.quads, "HELD": layout.held, "OWN": layout.own, "ROWS": layout.rows,
        "TOGETHER": layout.together, "BUFFERS": layout.buffers,
        "WEIGHTS_GIVEN": ", ".join(f"const float* {w}" for w in weights), "WEIGHTS": ", ".join(weights),
        "WEIGHTS_FROM": _weights(kernel), "STEP": cell.step(),
        "INITIAL": "\n".join(cell.initial(s) for s in range(len(kernel.updates))),
        "RECEIVE": _WORDS + text_beside(__file__, "receive.cuh") if layout.grid else
                   _WIDE if layout.cluster > 1 else "",
        "BARRIER_BYTES": " + 16" if layout.barriers else "",
        "PARAMETERS": ", ".join(parameters), "RANK": meeting.rank,
        "FIRST_STATE": cell.initial_call(0, ["first_row + row", "k"]), "BEGIN": _lines(begin, 4),
        "MEET": meeting.meet, "AWAIT": meeting.wait, "SEND": meeting.send, "SENT": meeting.sent, "TURN": meeting.turn,
        "WRITE": _lines(cell.writes("n", "y[e]"), 8), "READ": _lines(cell.reads("(n + 1)", cell.moving, "x[e]"), 10),
        "AHEAD": _AHEAD, "PREFETCH": _lines(cell.prefetches("(n + AHEAD)"), 10),
        "HEAD": head(name, kernel.input_dtypes, kernel.output_dtypes),
        "LAUNCH": _lines(_launch(name, layout, kernel.gates, ", ".join(arguments)), 2),
    })
    workspace = 2 * 8 * (batch * hidden + batch * hidden % 2) if layout.grid else 0
    return KernelSource(name, text, workspace, ("check", *meeting.snippets, *sorted(snippets_of(text))))


def _weights(kernel: Recurrence) -> str:
    """The pointer to the weights of an element's gate."""
    text, gate = "", kernel.gates
    for weight in reversed(kernel.weights):
        gate -= weight.gates
        own = f"in{weight.buffer} + (static_cast<long long>({f'gate - {gate}' if gate else 'gate'}) * HIDDEN + unit) " \
              "* HIDDEN"
        text = f"gate < {gate + weight.gates} ? {own} : {text}" if text else own
    return text


def _launch(name: str, layout: Layout, gates: int, passed: str) -> list[str]:
    def checked(call: str) -> str:
        return f'KW_CHECK("{name}", {call});'

    def attribute(word: str, value: str) -> str:
        return checked(f"cudaFuncSetAttribute({name}_core, cudaFuncAttribute{word}, {value})")

    more = [attribute("MaxDynamicSharedMemorySize", "SHARED_BYTES")] if layout.shared_bytes(gates) > 48 * 1024 else []
    if layout.grid:
        return ["auto* exchange = static_cast<unsigned long long*>(workspace);", "// No step has this number.",
                checked("cudaMemsetAsync(exchange, 0, 2 * 8 * WORDS, stream)"), *more,
                checked(f"kw_launch_together({name}_core, dim3(CLUSTER), dim3(THREADS), SHARED_BYTES, stream, "
                        f"{passed})")]
    if layout.cluster == 1:
        return ["(void)workspace;", *more,
                f'KW_LAUNCH("{name}", {name}_core, CLUSTERS, THREADS, SHARED_BYTES, stream, {passed});']
    if layout.cluster > PORTABLE:
        more.append(attribute("NonPortableClusterSizeAllowed", "1"))
    return ["(void)workspace;", *more,
            checked(f"kw_launch_clusters({name}_core, CLUSTER, dim3(CLUSTERS * CLUSTER), dim3(THREADS), SHARED_BYTES, "
                    f"stream, {passed})")]


def _lines(lines: list[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)
