// Loads of 8 x 8 matrices of 16-bit elements from shared memory into the layout of device/mma.cuh. All 32 lanes call.
//
// Row i of matrix m is the 16 bytes at the address that lane 8 * m + i gives, 16-byte aligned; all lanes give an address
// of shared memory, also where only the first 8 or 16 are used. Lane l receives of each matrix the elements
// [l / 4][2 * (l % 4)] and the next in that row; with kTransposed, [2 * (l % 4)][l / 4] and the next in that column.
// (A space behind the brace of an asm operand list: a brace and a percent sign would be a tag of the templates.)
// An element of 8 or 32 bits is half or two of 16: transposed, it would be torn.

template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix(unsigned& r0, const void* row) {
#ifdef CONVGEN_SIM
    unsigned registers[1];
    convgen_sim_ldmatrix(registers, row, 1, kTransposed);
    r0 = registers[0];
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 { %0}, [%1];" : "=r"(r0) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 { %0}, [%1];" : "=r"(r0) : "r"(address) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix(unsigned& r0, unsigned& r1, const void* row) {
#ifdef CONVGEN_SIM
    unsigned registers[2];
    convgen_sim_ldmatrix(registers, row, 2, kTransposed);
    r0 = registers[0];
    r1 = registers[1];
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 { %0, %1}, [%2];"
                     : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 { %0, %1}, [%2];"
                     : "=r"(r0), "=r"(r1) : "r"(address) : "memory");
#endif
}

template <bool kTransposed = false>
__device__ __forceinline__ void ldmatrix(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const void* row) {
#ifdef CONVGEN_SIM
    unsigned registers[4];
    convgen_sim_ldmatrix(registers, row, 4, kTransposed);
    r0 = registers[0];
    r1 = registers[1];
    r2 = registers[2];
    r3 = registers[3];
#else
    const unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(row));
    if constexpr (kTransposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { %0, %1, %2, %3}, [%4];"
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];"
                     : "=r"(r0), "=r"(r1), "=r"(r2), "=r"(r3) : "r"(address) : "memory");
#endif
}
