// An operand's tile in shared memory, and its way into the fragments of device/mma.cuh.
//
// The tile is kExtent x kDepth: the depth is the summed index, the extent the other one. Its lines lie along the depth
// (kAlongDepth) or along the extent, as its elements do in global memory. A line is chunks of 16 bytes, and the chunks of
// line l change places: chunk c lies where c ^ swizzle(l) would, so that the chunks that a load of fragments reads at
// once lie in different banks:
//
//     line 0 | 0 1 2 3 4 5 6 7 |        128-byte lines along the depth; ldmatrix reads one column of eight chunks
//     line 1 | 1 0 3 2 5 4 7 6 |
//     line 2 | 2 3 0 1 6 7 4 5 |
//
// Lanes and loops each set bits of their own in a chunk's number, so an address is a lane's part, exclusive-or a constant
// within the line, plus whole lines. Elements of 32 bits whose lines lie along the extent are read one by one, the rest by
// ldmatrix (transposing along the extent). A step is 32 bytes of depth, what one mma takes.
template <typename T, int kExtent, int kDepth, bool kAlongDepth>
struct MmaTile {
    static constexpr int kSize = sizeof(T);
    static constexpr int kBytes = kExtent * kDepth * kSize;
    static constexpr int kLine = kAlongDepth ? kDepth : kExtent;
    static constexpr int kLineBytes = kLine * kSize;
    static constexpr int kChunks = kLineBytes / 16;
    static constexpr int kStepDepth = 32 / kSize;
    static constexpr int kSteps = kDepth / kStepDepth;
    static constexpr bool kByElement = !kAlongDepth && kSize == 4;
    static_assert(kChunks >= 2 && (kAlongDepth || kSize != 1) && (!kByElement || kChunks >= 4), "");

    __device__ __forceinline__ static constexpr int swizzle(int line) {
        const int turn = kChunks >= 8 ? line : line / (8 / kChunks);
        return kByElement ? turn % (kChunks >= 8 ? 4 : 2) * 2 : turn % (kChunks >= 8 ? 8 : kChunks);
    }

    // Bytes from the tile's start to an element.
    __device__ __forceinline__ static constexpr int offset(int extent, int depth) {
        const int line = kAlongDepth ? extent : depth, at = kAlongDepth ? depth : extent;
        return line * kLineBytes + ((at * kSize / 16) ^ swizzle(line)) * 16 + at * kSize % 16;
    }

    // The lane's part of the address of fragments from `extent` (a multiple of 16) on. As the a operand a register is 8
    // extents after the one before it, and two of them 16 bytes of depth; as the b operand the other way round.
    template <bool kIsA>
    __device__ __forceinline__ static int lane_offset(int lane, int extent) {
        if constexpr (kByElement) return offset(extent + lane / 4, lane % 4);
        const int near = lane / 8 % 2 * 8, far = lane / 16 * 8;
        const int across = kIsA ? near : far, along = kIsA ? far : near;
        if constexpr (kAlongDepth) return offset(extent + across + lane % 8, along * 2 / kSize);
        return offset(extent + across, along + lane % 8);
    }

    // Four registers of 16 extents, `index` of them further on, at the depth of `step`.
    template <bool kIsA>
    __device__ __forceinline__ static void load(
        unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, const unsigned char* tile, int lane_offset, int index, int step
    ) {
        if constexpr (kByElement) {
            const unsigned char* const at = tile + step * 8 * kLineBytes;
            const int near = lane_offset ^ index * 64, far = near ^ 32;
            r0 = *reinterpret_cast<const unsigned*>(at + near);
            (kIsA ? r1 : r2) = *reinterpret_cast<const unsigned*>(at + far);
            (kIsA ? r2 : r1) = *reinterpret_cast<const unsigned*>(at + near + 4 * kLineBytes);
            r3 = *reinterpret_cast<const unsigned*>(at + far + 4 * kLineBytes);
        } else if constexpr (kAlongDepth) {
            ldmatrix(r0, r1, r2, r3, tile + ((lane_offset ^ step * 32) + index * 16 * kLineBytes));
        } else {
            ldmatrix<true>(r0, r1, r2, r3, tile + ((lane_offset ^ index * 32) + step * 16 * kLineBytes));
        }
    }
};
