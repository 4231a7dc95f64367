// Where a padded position reads along one axis.
enum Border { kZeros, kReplicate, kReflect, kCircular };

// Index into [0, kExtent) that `position` reads, or a negative number where there is none.
template <int kExtent, int kDivisor, Border kBorder>
__device__ __forceinline__ int source_index(int position) {
    if constexpr (kDivisor > 1) {
        if (position % kDivisor != 0) return -1;
        position /= kDivisor;
    }
    if constexpr (kBorder == kReplicate) {
        position = min(max(position, 0), kExtent - 1);
    } else if constexpr (kBorder == kReflect) {
        position = position < 0 ? -position : position;
        position = position >= kExtent ? 2 * (kExtent - 1) - position : position;
    } else if constexpr (kBorder == kCircular) {
        position = position < 0 ? position + kExtent : position;
        position = position >= kExtent ? position - kExtent : position;
    }
    return static_cast<unsigned>(position) < static_cast<unsigned>(kExtent) ? position : -1;
}
