// "Valid" convolutions of one channel with a 5x5 filter: operands in global memory, filter in constant memory,
// input tile in shared memory, input through a texture.
constexpr int kTaps = 5;

#ifdef CONVGEN_SIM
#define CONVGEN_SHARED(name) unsigned char* name = static_cast<unsigned char*>(convgen_sim_shared())
#else
#define CONVGEN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

__device__ __forceinline__ float fma_acc(float a, float b, float acc) {
#ifdef CONVGEN_SIM
    convgen_sim_count_flops(2);
#endif
    return fmaf(a, b, acc);
}

extern "C" __constant__ float filter[kTaps * kTaps];

extern "C" __global__ void naive(const float* x, const float* w, float* y, int width, int out_width) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0.0f;
    for (int dy = 0; dy < kTaps; ++dy)
        for (int dx = 0; dx < kTaps; ++dx) sum = fma_acc(w[dy * kTaps + dx], x[(row + dy) * width + column + dx], sum);
    y[row * out_width + column] = sum;
}

extern "C" __global__ void constant_filter(const float* x, float* y, int width, int out_width) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0.0f;
    for (int dy = 0; dy < kTaps; ++dy)
        for (int dx = 0; dx < kTaps; ++dx) sum = fma_acc(filter[dy * kTaps + dx], x[(row + dy) * width + column + dx], sum);
    y[row * out_width + column] = sum;
}

template <int kTile>
__device__ __forceinline__ void tiled(float* tile, const float* x, float* y, int width, int out_width) {
    constexpr int kSide = kTile + kTaps - 1;
    const int row0 = blockIdx.y * kTile;
    const int column0 = blockIdx.x * kTile;
    for (int i = threadIdx.y * kTile + threadIdx.x; i < kSide * kSide; i += kTile * kTile)
        tile[i] = x[(row0 + i / kSide) * width + column0 + i % kSide];
    __syncthreads();
    float sum = 0.0f;
    for (int dy = 0; dy < kTaps; ++dy)
        for (int dx = 0; dx < kTaps; ++dx)
            sum = fma_acc(filter[dy * kTaps + dx], tile[(threadIdx.y + dy) * kSide + threadIdx.x + dx], sum);
    y[(row0 + threadIdx.y) * out_width + column0 + threadIdx.x] = sum;
}

extern "C" __global__ void tiled_16(const float* x, float* y, int width, int out_width) {
    CONVGEN_SHARED(smem);
    tiled<16>(reinterpret_cast<float*>(smem), x, y, width, out_width);
}

extern "C" __global__ void tiled_32(const float* x, float* y, int width, int out_width) {
    CONVGEN_SHARED(smem);
    tiled<32>(reinterpret_cast<float*>(smem), x, y, width, out_width);
}

extern "C" __global__ void texture(cudaTextureObject_t x, float* y, int unused, int out_width) {
    const int column = blockIdx.x * blockDim.x + threadIdx.x;
    const int row = blockIdx.y * blockDim.y + threadIdx.y;
    float sum = 0.0f;
    for (int dy = 0; dy < kTaps; ++dy)
        for (int dx = 0; dx < kTaps; ++dx)
            sum = fma_acc(filter[dy * kTaps + dx], tex2D<float>(x, column + dx + 0.5f, row + dy + 0.5f), sum);
    y[row * out_width + column] = sum;
}
