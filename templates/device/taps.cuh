// How many of a window's kTaps positions, kSpread apart from `first` on, lie in [low, high).
template <int kTaps, int kSpread>
__device__ __forceinline__ int taps_between(int first, int low, int high) {
    const int before = first < low ? (low - first + kSpread - 1) / kSpread : 0;
    const int until = first < high ? (high - first + kSpread - 1) / kSpread : 0;
    return max(min(until, kTaps) - before, 0);
}
