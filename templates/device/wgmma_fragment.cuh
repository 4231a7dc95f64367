// The operand a of a wgmma of 32-bit elements in registers (wgmma.cuh), from a tile that TMA has swizzled in rows of 128
// bytes, as the descriptor of the same tile would tell: `tile`, a multiple of 128, then `stride` bytes from 8 rows to the
// next 8; `bytes` along the rows. A warp reads 8 rows of 16 bytes at a time, each from banks of its own.
__device__ __forceinline__ void load_fragment(float (&a)[4], const unsigned char* tile, int stride, int bytes) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned char* const row = tile + (warp * 2 + i % 2) * stride + lane / 4 * 128;
        const unsigned piece = (bytes + i / 2 * 16) ^ (shared_address(row) >> 7 & 7) << 4;
        a[i] = load_pack<1>(reinterpret_cast<const float*>(row + piece + lane % 4 * 4)).lane[0];
    }
}
