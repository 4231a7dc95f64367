// Stores of 8 x 8 matrices of 16-bit elements to shared memory (sm_90): ldmatrix.cuh the other way. All 32 lanes call.
//
// Row i of matrix m goes to the 16 bytes at the address that lane 8 * m + i gives, 16-byte aligned. Lane l holds of each
// matrix the elements [l / 4][2 * (l % 4)] and the next in that row; with kTransposed, [2 * (l % 4)][l / 4] and the next in
// that column. The accumulators of mma and wgmma, two neighbours packed to 32 bits, lie so.

template <bool kTransposed = false>
__device__ __forceinline__ void stmatrix(void* row, unsigned r0) {
#ifdef CONVGEN_SIM
    const unsigned registers[1] = {r0};
    convgen_sim_stmatrix(row, registers, 1, kTransposed);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], { %1};"
                     :: "r"(address), "r"(r0) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], { %1};"
                     :: "r"(address), "r"(r0) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void stmatrix(void* row, unsigned r0, unsigned r1) {
#ifdef CONVGEN_SIM
    const unsigned registers[2] = {r0, r1};
    convgen_sim_stmatrix(row, registers, 2, kTransposed);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], { %1, %2};"
                     :: "r"(address), "r"(r0), "r"(r1) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], { %1, %2};"
                     :: "r"(address), "r"(r0), "r"(r1) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void stmatrix(void* row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
#ifdef CONVGEN_SIM
    const unsigned registers[4] = {r0, r1, r2, r3};
    convgen_sim_stmatrix(row, registers, 4, kTransposed);
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], { %1, %2, %3, %4};"
                     :: "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4};"
                     :: "r"(address), "r"(r0), "r"(r1), "r"(r2), "r"(r3) : "memory");
#endif
}
