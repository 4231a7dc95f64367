// How wgmma (sm_90a) finds a tile in shared memory: 64 bits of start address, two distances and the swizzle.
//
// A tile is 64 rows (of a; as many as the accumulators have columns, of b) by 32 bytes of k. In the layouts of TMA, where
// a row of the swizzle is 32, 64 or 128 bytes, its 16-byte pieces changing places by address:
//     k along the row (K-major)    8 rows one after the other; `stride` bytes from 8 rows to the next 8; `leading` unused
//     rows along (MN-major)        8 k's one after the other, `stride` bytes to the next 8; `leading` bytes from one
//                                  row of the swizzle's worth of m or n to the next
// Without a swizzle pieces of 16 bytes lie in blocks of 8, 128 bytes: K-major `stride` bytes to the next 8 rows, `leading`
// to the other 16 bytes of k; MN-major `stride` to the next 8 of m or n, `leading` to the next 8 of k.
// The next 32 bytes of a K-major row are the start moved by 32; rows may start at any multiple of their size, and groups of
// 8 lie any multiple of 128 bytes apart: the swizzle follows absolute addresses and the base offset is 0 (measured).
enum WgmmaSwizzle { kWgmmaSwizzleNone, kWgmmaSwizzle128, kWgmmaSwizzle64, kWgmmaSwizzle32 };

template <WgmmaSwizzle kSwizzle>
__device__ __forceinline__ unsigned long long wgmma_descriptor(const void* start, unsigned leading, unsigned stride) {
    unsigned long long descriptor = static_cast<unsigned long long>(kSwizzle) << 62;
    descriptor |= static_cast<unsigned long long>(stride >> 4 & 0x3fffu) << 32;
    descriptor |= static_cast<unsigned long long>(leading >> 4 & 0x3fffu) << 16;
    return descriptor | (shared_address(start) >> 4 & 0x3fffu);
}

// The descriptor of a tile `bytes` further on, a multiple of 16.
__device__ __forceinline__ unsigned long long wgmma_advance(unsigned long long descriptor, int bytes) {
    return descriptor + (bytes >> 4);
}
