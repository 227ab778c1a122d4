import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = "torch::Tensor reduce_rows(torch::Tensor x, torch::Tensor bias);"

cuda_source = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

__global__ void reduce_rows_kernel(const float* x, const float* bias, float* out, int channels, long long spatial) {
    const float* row = x + blockIdx.x * spatial;
    float sum = 0.0f;
    for (long long i = threadIdx.x; i < spatial; i += blockDim.x) sum += row[i];
    for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x == 0) out[blockIdx.x] = sum / spatial + bias[blockIdx.x % channels];
}

torch::Tensor reduce_rows(torch::Tensor x, torch::Tensor bias) {
    x = x.contiguous();
    auto out = torch::empty({x.size(0), x.size(1)}, x.options());
    reduce_rows_kernel<<<x.size(0) * x.size(1), 32, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(), x.size(1), x.size(2) * x.size(3));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

reduce_rows = load_inline(
    name="reduce_rows",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["reduce_rows"],
)


class ModelNew(nn.Module):
    """The transposed convolution stays; the mean and the bias are one kernel."""

    def __init__(self, in_channels, out_channels, kernel_size, bias_shape):
        super(ModelNew, self).__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels,
