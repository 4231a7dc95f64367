// Access patterns with known counts, for one warp. table and x hold 32 * 32 floats or more.
#ifdef CONVGEN_SIM
#define CONVGEN_SHARED(name) unsigned char* name = static_cast<unsigned char*>(convgen_sim_shared())
#else
#define CONVGEN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#endif

extern "C" __constant__ float table[1024];

extern "C" __global__ void global_stride(const float* x, float* y, int stride, int offset) {
    y[threadIdx.x] = x[threadIdx.x * stride + offset];  // MARK global
}

extern "C" __global__ void shared_stride(const float* x, float* y, int stride, int offset) {
    CONVGEN_SHARED(smem);
    float* tile = reinterpret_cast<float*>(smem);
    for (int i = threadIdx.x; i < 1056; i += 32) tile[i] = i;
    __syncthreads();
    y[threadIdx.x] = tile[threadIdx.x * stride + offset];  // MARK shared
}

extern "C" __global__ void shared_stride_wide(const float* x, float* y, int stride, int offset) {
    CONVGEN_SHARED(smem);
    float* tile = reinterpret_cast<float*>(smem);
    for (int i = threadIdx.x; i < 1056; i += 32) tile[i] = i;
    __syncthreads();
    const float* at = tile + threadIdx.x * stride + offset;
#ifdef CONVGEN_SIM
    convgen_sim_access(at, 16, 0);  // MARK shared
#endif
    const float4 v = *reinterpret_cast<const float4*>(at);
    y[threadIdx.x] = v.x + v.w;
}

extern "C" __global__ void constant_stride(const float* x, float* y, int stride, int offset) {
    y[threadIdx.x] = table[threadIdx.x * stride + offset];  // MARK constant
}
