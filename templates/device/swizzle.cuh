// Where TMA, told to swizzle rows of kBytes (32, 64 or 128), puts what would lie at `at` in shared memory: its 16-byte piece
// changes places with others of the row, by the address of the 128 bytes it lies in.
template <int kBytes>
__device__ __forceinline__ unsigned char* swizzled(unsigned char* at) {
    const unsigned address = shared_address(at);
    return at + (static_cast<int>(address ^ (address >> 7 & (kBytes / 16 - 1)) << 4) - static_cast<int>(address));
}
