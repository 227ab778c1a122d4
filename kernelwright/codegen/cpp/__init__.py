"""The target cpp: C++ with OpenMP and vector loops, for CPUs."""

#: See :func:`kernelwright.codegen.device_kind.device_kind`.
DEVICE_KIND = "cpu"
