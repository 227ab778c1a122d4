"""The target cuda: CUDA, for GPUs of NVIDIA."""

#: See :func:`kernelwright.codegen.device_kind.device_kind`.
DEVICE_KIND = "cuda"
