"""The target c: plain C11 for one core, without OpenMP and without vector types."""

#: See :func:`kernelwright.codegen.device_kind.device_kind`.
DEVICE_KIND = "cpu"
