// Activations, in fp32. gelu is the exact one (erf), as PyTorch's default.
enum Activation { kNone, kRelu, kRelu6, kGelu, kSilu, kHardswish, kLeakyRelu };

template <Activation kActivation>
__device__ __forceinline__ float activate(float v, float slope) {
    if constexpr (kActivation == kRelu) return v > 0.0f ? v : v != v ? v : 0.0f;
    if constexpr (kActivation == kRelu6) return v != v ? v : fminf(fmaxf(v, 0.0f), 6.0f);
    if constexpr (kActivation == kGelu) return 0.5f * v * (1.0f + erff(v * 0.70710678f));
    if constexpr (kActivation == kSilu) return v / (1.0f + expf(-v));
    if constexpr (kActivation == kHardswish) return v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
    if constexpr (kActivation == kLeakyRelu) return v > 0.0f ? v : v * slope;
    return v;
}
