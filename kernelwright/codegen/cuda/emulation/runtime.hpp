// What host code calls: the runtime's functions, and the macros of `support.py`.

// ------------------------------------------------------------------------------------------ runtime functions
// "Device" memory is the process's own; all operations are synchronous.

KW_MACHINE cudaError_t cudaGetLastError();
KW_MACHINE cudaError_t cudaPeekAtLastError();
// The runtime's text, followed by what the emulation knows about the last such error of this thread.
KW_MACHINE const char* cudaGetErrorString(cudaError_t error);
KW_MACHINE cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
namespace kw_emulation {
KW_MACHINE int processors();
KW_MACHINE cudaError_t set_attribute(const void* kernel, cudaFuncAttribute attribute, int value);
}  // namespace kw_emulation
// Of the contract's macros, below.
KW_MACHINE const char* kw_failure(const char* where, const char* call, cudaError_t error);
KW_MACHINE const char* kw_launch_failure(const char* where, const char* kernel, dim3 grid, dim3 block,
                                         size_t shared_bytes, cudaError_t error);

#if defined(KW_DEFINES_MACHINE)
KW_MACHINE cudaError_t cudaGetLastError() {
  const cudaError_t error = kw_emulation::last_error;
  kw_emulation::last_error = cudaSuccess;
  return error;
}
KW_MACHINE cudaError_t cudaPeekAtLastError() { return kw_emulation::last_error; }
#endif
static inline const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    default: return "cudaErrorUnknown";
  }
}
#if defined(KW_DEFINES_MACHINE)
KW_MACHINE const char* cudaGetErrorString(cudaError_t error) {
  const char* text = "unknown error";
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: text = "invalid argument"; break;
    case cudaErrorMemoryAllocation: text = "out of memory"; break;
    case cudaErrorInvalidConfiguration: text = "invalid configuration argument"; break;
    case cudaErrorInvalidDevice: text = "invalid device ordinal"; break;
    case cudaErrorLaunchFailure: text = "unspecified launch failure"; break;
    default: break;
  }
  if (error != kw_emulation::detailed_error || !kw_emulation::detail[0]) return text;
  snprintf(kw_emulation::error_text, sizeof(kw_emulation::error_text), "%s (%s)", text, kw_emulation::detail);
  return kw_emulation::error_text;
}
#endif
static inline cudaError_t cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
static inline cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : kw_emulation::set_error(cudaErrorInvalidDevice, "the emulation has one device");
}
static inline cudaError_t cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
static inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
static inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return *pointer || !bytes ? cudaSuccess : kw_emulation::set_error(cudaErrorMemoryAllocation, "");
}
template <typename T>
static inline cudaError_t cudaMalloc(T** pointer, size_t bytes) {
  return cudaMalloc(reinterpret_cast<void**>(pointer), bytes);
}
static inline cudaError_t cudaFree(void* pointer) { free(pointer); return cudaSuccess; }
static inline cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  if (bytes && !pointer) return kw_emulation::set_error(cudaErrorInvalidValue, "cudaMemset of a null pointer");
  if (bytes) memset(pointer, value, bytes);
  return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void* pointer, int value, size_t bytes, cudaStream_t = nullptr) {
  return cudaMemset(pointer, value, bytes);
}
static inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes && (!to || !from)) return kw_emulation::set_error(cudaErrorInvalidValue, "cudaMemcpy of a null pointer");
  if (bytes) memmove(to, from, bytes);
  return cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                          cudaStream_t = nullptr) {
  return cudaMemcpy(to, from, bytes, kind);
}
#if defined(KW_DEFINES_MACHINE)
namespace kw_emulation {
KW_MACHINE int processors() {
  const char* const text = getenv("KERNELWRIGHT_EMULATION_PROCESSORS");
  return text && *text ? std::max(1, atoi(text)) : 132;
}
}  // namespace kw_emulation
KW_MACHINE cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) return kw_emulation::set_error(cudaErrorInvalidDevice, "the emulation has one device");
  switch (attribute) {  // an H200
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY:
      *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 * 1024; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMultiProcessorCount: *value = kw_emulation::processors(); break;
    case cudaDevAttrL2CacheSize: *value = 50 * 1024 * 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 * 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 227 * 1024; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = 32; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    default: return kw_emulation::set_error(cudaErrorInvalidValue, "an attribute that the emulation lacks");
  }
  return cudaSuccess;
}
KW_MACHINE cudaError_t kw_emulation::set_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout ||
      attribute == cudaFuncAttributeNonPortableClusterSizeAllowed)
    return cudaSuccess;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > kw_emulation::kOptInShared)
    return kw_emulation::set_error(
        cudaErrorInvalidValue,
        kw_emulation::format("%d bytes of dynamic shared memory; a block may have 0..%zu", value,
                             kw_emulation::kOptInShared).c_str());
  kw_emulation::Machine& m = kw_emulation::machine();
  const std::lock_guard<std::mutex> lock(m.mutex);
  m.dynamic_limit[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}
#endif
template <typename Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute attribute, int value) {
  return kw_emulation::set_attribute(reinterpret_cast<const void*>(kernel), attribute, value);
}

// ------------------------------------------------------------------------------------------ the contract's macros

#if defined(KW_DEFINES_MACHINE)
KW_MACHINE const char* kw_failure(const char* where, const char* call, cudaError_t error) {
  (void)cudaGetLastError();
  snprintf(kw_emulation::failure_text, sizeof(kw_emulation::failure_text), "%s: %s failed: %s (CUDA error %d)", where,
           call, cudaGetErrorString(error), static_cast<int>(error));
  return kw_emulation::failure_text;
}
KW_MACHINE const char* kw_launch_failure(const char* where, const char* kernel, dim3 grid, dim3 block,
                                         size_t shared_bytes, cudaError_t error) {
  snprintf(kw_emulation::launch_text, sizeof(kw_emulation::launch_text),
           "launch of %s<<<(%u, %u, %u), (%u, %u, %u), %zu>>>", kernel, grid.x, grid.y, grid.z, block.x, block.y,
           block.z, shared_bytes);
  return kw_failure(where, kw_emulation::launch_text, error);
}
#endif
static inline dim3 kw_extent(dim3 extent) { return extent; }
static inline dim3 kw_extent(long long extent) {
  return dim3(extent > 0 && extent <= 2147483647LL ? static_cast<unsigned>(extent) : 0u);
}

#define KW_CHECK(where, call)                                                           \
  do {                                                                                  \
    const cudaError_t kw_error_ = (call);                                               \
    if (kw_error_ != cudaSuccess) return kw_failure(where, #call, kw_error_);           \
  } while (0)

#define KW_LAUNCH(where, kernel, grid, block, shared_bytes, stream, ...)                \
  do {                                                                                  \
    const dim3 kw_grid_ = kw_extent(grid);                                              \
    const dim3 kw_block_ = kw_extent(block);                                            \
    const size_t kw_shared_ = (shared_bytes);                                           \
    kw_emulation::launch(#kernel, kernel, kw_grid_, kw_block_, kw_shared_, (stream), ##__VA_ARGS__); \
    const cudaError_t kw_error_ = cudaGetLastError();                                   \
    if (kw_error_ != cudaSuccess)                                                       \
      return kw_launch_failure(where, #kernel, kw_grid_, kw_block_, kw_shared_, kw_error_); \
  } while (0)

#define KW_DYNAMIC_SHARED(type, name) type* name = reinterpret_cast<type*>(kw_emulation::machine().dynamic_data)
