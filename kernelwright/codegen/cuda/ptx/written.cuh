#ifndef KERNELWRIGHT_EMULATION
// The pointer; what this block wrote before a barrier is read through it afterwards.
template <typename T>
static __device__ __forceinline__ T* kw_written(T* pointer) {
  asm volatile("" : "+l"(pointer)::"memory");
  return pointer;
}
#endif
