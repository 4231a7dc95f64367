// What TMA knows of a tensor: a kernel parameter `const __grid_constant__ TensorMap`, encoded by the host.
struct __align__(64) TensorMap {
    unsigned char bits[128];
};

__device__ __forceinline__ void prefetch_tensormap(const TensorMap* map) {
#ifndef CONVGEN_SIM
    asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
#endif
}
