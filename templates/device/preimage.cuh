// The padded positions that read one pixel under a border mode: the pixel itself (candidate 0) and those of the
// padding (candidates 1 to kPadLo + kPadHi) that the mode sends there.
constexpr int kNotAPreimage = -2147483647 - 1;

template <int kExtent, int kPadLo, Border kBorder>
__device__ __forceinline__ int preimage(int pixel, int candidate) {
    if (candidate == 0) return pixel;
    const int position = candidate <= kPadLo ? -candidate : kExtent - 1 + candidate - kPadLo;
    return source_index<kExtent, 1, kBorder>(position) == pixel ? position : kNotAPreimage;
}
