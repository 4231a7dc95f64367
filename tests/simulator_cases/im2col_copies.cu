// TMA's im2col mode behind the device headers shared, shared_address, mbarrier, fence, tensor_map and
// cp_async_bulk_tensor_im2col. 64 threads; what is loaded is copied to y as it lies.
template <int kRank>
__device__ void load(const TensorMap* map, unsigned char* y, int bytes, const int (&at)[kRank], const unsigned short (&shift)[kRank - 2]) {
    CONVGEN_SHARED(smem);
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + 32768);
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load_im2col(smem, map, at, shift, full);
    }
    __syncthreads();
    mbarrier_wait_parity(full, 0);
    for (int i = threadIdx.x; i < bytes; i += 64) y[i] = smem[i];
}

#define SHIFT(s) static_cast<unsigned short>(s)

extern "C" __global__ void load_3(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c, int w, int n, int s) {
    load<3>(&map, y, bytes, {c, w, n}, {SHIFT(s)});
}

extern "C" __global__ void load_4(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c, int w, int h, int n, int s, int r) {
    load<4>(&map, y, bytes, {c, w, h, n}, {SHIFT(s), SHIFT(r)});
}

extern "C" __global__ void load_5(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c, int w, int h, int d, int n, int s, int r, int t) {
    load<5>(&map, y, bytes, {c, w, h, d, n}, {SHIFT(s), SHIFT(r), SHIFT(t)});
}
