"""The emulation of barriers with phases, bulk copies and warpgroup products: what is wrong says what is wrong."""

from __future__ import annotations

import ctypes
import re
import sys

import pytest
from places import ROOT

from kernelwright.codegen.cuda.emulation.compile import compile_emulated
from kernelwright.codegen.cuda.support.snippets import snippets

sys.path.append(str(ROOT / "benchmarks"))
from contractions_probes import TEXT, probe

# Each body runs in 128 threads with 16 KB of shared memory; `data` holds 4096 bytes.
_BODIES = {
    "never": ("kw_barrier_wait(barrier, 0);", r"deadlock: 128 threads wait for phases.*parity 0 of that at byte 9216"),
    "not_initialised": ("kw_barrier_wait(barrier + 64, 0);", "shared address 9280 was not initialised"),
    "too_many": ("kw_barrier_expect(barrier, 16);", "one arrival too many"),
    "odd_copy": ("if (threadIdx.x == 0) kw_bulk_copy(base, data, 24, barrier);", "multiples of 16"),
    "far_copy": ("if (threadIdx.x == 0) kw_bulk_copy(base + 16376, data, 16, barrier);", "no multiple of 16"),
    "outside": ("if (threadIdx.x == 0) kw_bulk_copy(base + 16384, data, 16, barrier);", "outside of the block's"),
    "unawaited": ("if (threadIdx.x == 0) kw_bulk_copy(base, data, 16, barrier);", "1 bulk copies on their way"),
    "no_fence": ("kw_wgmma_f16(sums, kw_operand(base, 1024), kw_operand(base, 128), 0);", "without a fence"),
    "no_wait": ("kw_wgmma_fence(); kw_wgmma_f16(sums, kw_operand(base, 1024), kw_operand(base, 128), 0);"
                " kw_wgmma_commit();", "without waiting for its products"),
    "swizzled": ("kw_wgmma_fence(); kw_wgmma_f16(sums, kw_operand(base, 1024) | 2ull << 62, kw_operand(base, 128), 0);"
                 " kw_wgmma_commit(); kw_wgmma_wait<0>();", "bits that an operand of neither layout has"),
    "beyond": ("kw_wgmma_fence(); kw_wgmma_f16(sums, kw_operand(base + 16000, 1024), kw_operand(base, 128), 0);"
               " kw_wgmma_commit(); kw_wgmma_wait<0>();", "an operand of 16 bytes at shared address"),
    "part": ("if (threadIdx.x < 64) kw_part_sync(3, 96);", "64 threads wait at named barriers.*number 3"),
    "parts_differ": ("kw_part_sync(2, threadIdx.x < 32 ? 64 : 96);", "is for 96 and for 64 threads"),
    "right": ("if (threadIdx.x == 0) kw_bulk_copy(base, data, 4096, barrier); "
              "if (threadIdx.x == 0) kw_barrier_expect(barrier, 4096); kw_barrier_wait(barrier, 0); "
              "kw_part_sync(1, 128); "
              "kw_wgmma_fence(); kw_wgmma_f16(sums, kw_operand(base, 1024), kw_operand(base + 2048, 128), 0); "
              "kw_wgmma_commit(); kw_wgmma_wait<0>(); kw_wgmma_hold(sums); "
              "if (sums[0] != 0.0f) kw_barrier_wait(barrier, 1);", None),
}
_KERNEL = """
static __global__ void {0}_kernel(const char* data) {{
  KW_DYNAMIC_SHARED(char, shared);
  const unsigned base = kw_shared(shared), barrier = base + 8192;
  float sums[4] = {{}};
  if (threadIdx.x == 0) kw_barrier_init(barrier, 1);
  kw_barriers_ready();
  __syncthreads();
  {1}
  (void)sums, (void)data;
}}
extern "C" const char* {0}(const char* data) {{
  KW_LAUNCH("{0}", {0}_kernel, 1, 128, 16384, nullptr, data);
  return nullptr;
}}
"""


@pytest.fixture(scope="module")
def library():
    return compile_emulated(snippets({"tensor_core"}) + "".join(_KERNEL.format(n, b) for n, (b, _) in _BODIES.items()))


@pytest.mark.parametrize("name", _BODIES)
def test_says_what_is_wrong(name, library):
    data = (ctypes.c_char * 8192)()
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    start = -ctypes.addressof(data) % 16
    message = function(ctypes.c_void_p(ctypes.addressof(data) + start))
    expected = _BODIES[name][1]
    if expected is None:
        assert message is None, message
    else:
        assert message is not None
        assert re.search(expected, message.decode()), message


@pytest.fixture(scope="module")
def probes():
    return compile_emulated(TEXT)


@pytest.mark.parametrize("name", ["product", "copies", "copies in a cluster"])
def test_what_the_device_is_asked_is_as_documented(name, probes):
    """The probes that benchmarks/contractions.py runs on a device."""
    assert probe(name, probes, "cpu")["pass"]
