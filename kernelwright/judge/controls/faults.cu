// A fault for each tool of compute-sanitizer, by which the tool shows that it sees faults in this process. Results are
// nothing to anybody, and so is what the device says of the launch.
#include <cstring>
#include <cuda_runtime.h>

// Beyond the end of an allocation of n elements.
__global__ void kernelwright_control_memcheck(float* y, int n) { y[n + threadIdx.x] = 1.0f; }

// Elements of other warps are read without a barrier.
__global__ void kernelwright_control_racecheck(float* y) {
  __shared__ float row[128];
  row[threadIdx.x] = y[threadIdx.x];
  y[threadIdx.x] = row[127 - threadIdx.x];
}

// Nothing has written x.
__global__ void kernelwright_control_initcheck(const float* x, float* y) { y[threadIdx.x] = 2.0f * x[threadIdx.x]; }

// The mask leaves out lanes that call.
__global__ void kernelwright_control_synccheck(float* y, unsigned mask) {
  if (threadIdx.x < 2) __syncwarp(mask);
  y[threadIdx.x] = 1.0f;
}

// Launches the fault for `tool` on `values`, device memory of n >= 128 floats. Returns the error of that.
extern "C" int kernelwright_control(const char* tool, float* values, int n) {
  if (!strcmp(tool, "memcheck")) kernelwright_control_memcheck<<<1, 1>>>(values, n);
  if (!strcmp(tool, "racecheck")) kernelwright_control_racecheck<<<1, 128>>>(values);
  if (!strcmp(tool, "synccheck")) kernelwright_control_synccheck<<<1, 32>>>(values, 1u);
  if (!strcmp(tool, "initcheck")) {
    float* never = nullptr;
    cudaMalloc(&never, 128 * sizeof(float));
    kernelwright_control_initcheck<<<1, 128>>>(never, values);
  }
  return static_cast<int>(cudaDeviceSynchronize());
}
