"""Texts that a confined process runs to show that a candidate could live there. Standard library only."""

from __future__ import annotations

#: Files, programs, threads and /proc work; status 0 says so.
TRIAL = """
import os, subprocess, sys, tempfile, threading
with open("/proc/self/stat") as file:
    assert int(file.read().split()[0]) == os.getpid(), "/proc shows other processes than its own"
with tempfile.TemporaryFile() as file:
    file.write(b"x")
thread = threading.Thread(target=int)
thread.start()
thread.join()
subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True, stdin=subprocess.DEVNULL)
"""

#: A context on the first device, memory on it, and a copy there and back, through the driver's own interface.
CUDA_TRIAL = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
def must(code):
    assert code == 0, code
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
must(driver.cuInit(0))
must(driver.cuDeviceGet(ctypes.byref(device), 0))
must(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
must(driver.cuCtxSetCurrent(context))
must(driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1 << 20)))
there, back = ctypes.create_string_buffer(b"kernel", 8), ctypes.create_string_buffer(8)
must(driver.cuMemcpyHtoD_v2(memory, there, ctypes.c_size_t(8)))
must(driver.cuMemcpyDtoH_v2(back, memory, ctypes.c_size_t(8)))
assert back.raw == there.raw
pinned = ctypes.c_void_p()
must(driver.cuMemAllocHost_v2(ctypes.byref(pinned), ctypes.c_size_t(1 << 20)))
"""
