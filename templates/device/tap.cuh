// The tap through which result `t` of a thread reads input `i` of the thread along one axis; negative if it does not.
template <int kStep, int kSpread, int kTaps>
__device__ __forceinline__ constexpr int tap_between(int t, int i) {
    const int distance = i - t * kStep - (kSpread < 0 ? (1 - kTaps) * kSpread : 0);
    return distance % kSpread == 0 && distance / kSpread < kTaps ? distance / kSpread : -1;
}
