// Instructions of a whole warp, behind the device headers mma, ldmatrix, cp_async and shared.

// Fragments as they are in global memory: registers of a lane side by side.
template <MmaType kType, typename Sum>
__device__ __forceinline__ void multiply(const unsigned* a, const unsigned* b, Sum* d) {
    const int lane = threadIdx.x;
    unsigned of_a[4], of_b[2];
    Sum sum[4];
    for (int i = 0; i < 4; ++i) of_a[i] = a[4 * lane + i];
    for (int i = 0; i < 2; ++i) of_b[i] = b[2 * lane + i];
    for (int i = 0; i < 4; ++i) sum[i] = d[4 * lane + i];
    mma<kType>(sum, of_a, of_b);
    for (int i = 0; i < 4; ++i) d[4 * lane + i] = sum[i];
}

extern "C" __global__ void mma_fp16(const unsigned* a, const unsigned* b, float* d) { multiply<kMmaFp16>(a, b, d); }
extern "C" __global__ void mma_int8(const unsigned* a, const unsigned* b, int* d) { multiply<kMmaInt8>(a, b, d); }
extern "C" __global__ void mma_uint8(const unsigned* a, const unsigned* b, int* d) { multiply<kMmaUint8>(a, b, d); }
#if defined(CONVGEN_SIM) || __CUDA_ARCH__ >= 800
extern "C" __global__ void mma_bf16(const unsigned* a, const unsigned* b, float* d) { multiply<kMmaBf16>(a, b, d); }
extern "C" __global__ void mma_tf32(const unsigned* a, const unsigned* b, float* d) { multiply<kMmaTf32>(a, b, d); }

extern "C" __global__ void round_to_tf32(const float* x, unsigned* y) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = to_tf32(x[i]);
}
#endif

// d = a * b by one warp: a[16][16], b either [n 8][k 16] or [k 16][n 8], d[16][8]; rows in shared memory are `pitch` bytes
// apart.
template <bool kAlongN>
__device__ __forceinline__ void multiply_tile(const unsigned short* a, const unsigned short* b, float* d, int pitch) {
    CONVGEN_SHARED(smem);
    const int lane = threadIdx.x;
    constexpr int kRowsB = kAlongN ? 16 : 8, kChunksB = kAlongN ? 1 : 2;  // chunks of 16 bytes a row
    unsigned char* const tile_b = smem + 16 * pitch;
    cp_async<16>(smem + lane / 2 * pitch + lane % 2 * 16, a + lane * 8);
    if (lane < kRowsB * kChunksB) cp_async<16>(tile_b + lane / kChunksB * pitch + lane % kChunksB * 16, b + lane * 8);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncwarp();
    unsigned of_a[4], of_b[2];
    ldmatrix(of_a[0], of_a[1], of_a[2], of_a[3], smem + lane % 16 * pitch + lane / 16 * 16);  // MARK a
    if (kAlongN)
        ldmatrix<true>(of_b[0], of_b[1], tile_b + lane % 16 * pitch);
    else
        ldmatrix(of_b[0], of_b[1], tile_b + lane % 8 * pitch + lane / 8 % 2 * 16);
    float sum[4] = {};
    mma<kMmaFp16>(sum, of_a, of_b);
    for (int i = 0; i < 4; ++i) d[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = sum[i];
}

extern "C" __global__ void tile_b_along_k(const unsigned short* a, const unsigned short* b, float* d, int pitch) {
    multiply_tile<false>(a, b, d, pitch);
}

extern "C" __global__ void tile_b_along_n(const unsigned short* a, const unsigned short* b, float* d, int pitch) {
    multiply_tile<true>(a, b, d, pitch);
}

// --- faults ---------------------------------------------------------------------------------------------

extern "C" __global__ void half_a_warp(const unsigned* a, const unsigned* b, float* d) {
    unsigned of_a[4] = {}, of_b[2] = {};
    float sum[4] = {};
    if (threadIdx.x < 16) mma<kMmaFp16>(sum, of_a, of_b);  // MARK divergent warp instruction
    d[threadIdx.x] = sum[0];
}

extern "C" __global__ void half_waits_elsewhere(const unsigned* a, const unsigned* b, float* d) {
    unsigned of_a[4] = {}, of_b[2] = {};
    float sum[4] = {};
    if (threadIdx.x % 2)
        __syncwarp();
    else
        mma<kMmaFp16>(sum, of_a, of_b);  // MARK deadlock
    d[threadIdx.x] = sum[0];
}

extern "C" __global__ void two_instructions(const unsigned* a, const unsigned* b, float* d) {
    unsigned of_a[4] = {}, of_b[2] = {};
    float sum[4] = {};
    if (threadIdx.x < 8) {
        __syncwarp(0xff);  // before and behind, so that no compiler makes one of the two
        mma<kMmaFp16>(sum, of_a, of_b);  // MARK divergent warp instruction
        __syncwarp(0xff);
        d[threadIdx.x] = 2.0f * sum[0];
    } else {
        mma<kMmaFp16>(sum, of_a, of_b);
        d[threadIdx.x] = sum[0];
    }
}

extern "C" __global__ void odd_rows(const unsigned* a, const unsigned* b, float* d) {
    CONVGEN_SHARED(smem);
    for (int i = threadIdx.x; i < 256; i += 32) reinterpret_cast<float*>(smem)[i] = 0.0f;
    __syncwarp();
    unsigned r[1];
    ldmatrix(r[0], smem + threadIdx.x * 24);  // MARK misaligned
    d[threadIdx.x] = static_cast<float>(r[0]);
}

extern "C" __global__ void unset_rows(const unsigned* a, const unsigned* b, float* d) {
    CONVGEN_SHARED(smem);
    unsigned r[1];
    ldmatrix(r[0], smem + threadIdx.x * 16);  // MARK uninitialised read
    d[threadIdx.x] = static_cast<float>(r[0]);
}

extern "C" __global__ void rows_of_other_lanes(const unsigned* a, const unsigned* b, float* d) {
    CONVGEN_SHARED(smem);
    for (int i = threadIdx.x; i < 256; i += 32) reinterpret_cast<float*>(smem)[i] = 0.0f;
    unsigned r[1];
    ldmatrix(r[0], smem + (7 - threadIdx.x % 8) * 16);  // MARK race
    d[threadIdx.x] = static_cast<float>(r[0]);
}

extern "C" __global__ void rows_beyond(const unsigned* a, const unsigned* b, float* d) {
    CONVGEN_SHARED(smem);
    for (int i = threadIdx.x; i < 256; i += 32) reinterpret_cast<float*>(smem)[i] = 0.0f;
    __syncwarp();
    unsigned r[1];
    ldmatrix(r[0], smem + (threadIdx.x + 57) * 16);  // MARK out of bounds
    d[threadIdx.x] = static_cast<float>(r[0]);
}
