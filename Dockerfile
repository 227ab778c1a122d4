# kernelwright with what it needs: Python, PyTorch and a C++ compiler.
#   docker build -t kernelwright .
#   docker build -t kernelwright-cuda --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 .    # with nvcc, for a GPU
#   docker run --rm -v "$PWD:/models" kernelwright optimize model.py
#   docker run --rm --gpus all -v "$PWD:/models" kernelwright-cuda optimize model.py
ARG BASE=ubuntu:24.04
FROM ${BASE}
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
 && rm -rf /var/lib/apt/lists/*
# For a smaller PyTorch without CUDA: --build-arg PIP_EXTRA_INDEX_URL=, its index of packages for CPUs.
ARG PIP_EXTRA_INDEX_URL
COPY . /source
RUN python3 -m venv /venv && /venv/bin/pip install --no-cache-dir -c /source/constraints.txt /source && rm -r /source
ENV PATH=/venv/bin:$PATH KERNELWRIGHT_CACHE=/models/.kernelwright
WORKDIR /models
ENTRYPOINT ["kernelwright"]
