// TMA behind the device headers shared, shared_address, mbarrier, fence, tensor_map, cp_async_bulk and
// cp_async_bulk_tensor. All kernels run on 64 threads; the mbarrier lies behind the boxes.
constexpr int kBarrierAt = 32768;

#define BEGIN()                                                                                                 \
    CONVGEN_SHARED(smem);                                                                                       \
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + kBarrierAt);                  \
    if (threadIdx.x == 0) {                                                                                     \
        mbarrier_init(full, 1);                                                                                 \
        mbarrier_init(full + 1, 1);                                                                             \
        fence_mbarrier_init();                                                                                  \
    }                                                                                                           \
    __syncthreads();

__device__ void dump(const unsigned char* smem, unsigned char* y, int bytes) {
    for (int i = threadIdx.x; i < bytes; i += 64) y[i] = smem[i];  // DUMP
}

template <int kRank>
__device__ void load(const TensorMap* map, unsigned char* y, int bytes, const int (&at)[kRank]) {
    BEGIN();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, map, at, full);
    }
    mbarrier_wait_parity(full, 0);
    dump(smem, y, bytes);
}

extern "C" __global__ void load_1(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0) {
    load<1>(&map, y, bytes, {c0});
}

extern "C" __global__ void load_2(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1) {
    load<2>(&map, y, bytes, {c0, c1});
}

extern "C" __global__ void load_3(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1, int c2) {
    load<3>(&map, y, bytes, {c0, c1, c2});
}

extern "C" __global__ void load_4(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1, int c2, int c3) {
    load<4>(&map, y, bytes, {c0, c1, c2, c3});
}

extern "C" __global__ void load_5(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1, int c2, int c3, int c4) {
    load<5>(&map, y, bytes, {c0, c1, c2, c3, c4});
}

// One lane of each warp waits for the box, the others for that lane.
extern "C" __global__ void one_lane_waits(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    if (threadIdx.x == 0) {
        const int at[2] = {0, 0};
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, &map, at, full);
    }
    if (threadIdx.x % 32 == 1) mbarrier_wait_parity(full, 0);
    __syncwarp();
    dump(smem, y, bytes);
}

__device__ void fill(unsigned char* smem, int bytes) {
    for (int i = threadIdx.x; i < bytes; i += 64) smem[i] = static_cast<unsigned char>(i * 7 + i / 256);  // FILL
}

// A box of known bytes into y at (c0, c1).
extern "C" __global__ void store(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1) {
    CONVGEN_SHARED(smem);
    fill(smem, bytes);
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        const int at[2] = {c0, c1};
        cp_async_bulk_tensor_store(&map, at, smem);
        cp_async_bulk_commit_group();
        cp_async_bulk_wait_group<0>();
    }
}

extern "C" __global__ void no_fence(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1) {
    CONVGEN_SHARED(smem);
    fill(smem, bytes);
    __syncthreads();
    if (threadIdx.x == 0) {
        const int at[2] = {c0, c1};
        cp_async_bulk_tensor_store(&map, at, smem);  // MARK missing
        cp_async_bulk_commit_group();
        cp_async_bulk_wait_group<0>();
    }
}

extern "C" __global__ void no_barrier(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1) {
    CONVGEN_SHARED(smem);
    fill(smem, bytes);
    fence_proxy_async();
    if (threadIdx.x == 63) {
        const int at[2] = {c0, c1};
        cp_async_bulk_tensor_store(&map, at, smem);  // MARK race
        cp_async_bulk_commit_group();
        cp_async_bulk_wait_group<0>();
    }
}

// Written again while the store may still read.
extern "C" __global__ void no_store_wait(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1) {
    CONVGEN_SHARED(smem);
    fill(smem, bytes);
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        const int at[2] = {c0, c1};
        cp_async_bulk_tensor_store(&map, at, smem);
        cp_async_bulk_commit_group();
    }
    __syncthreads();
    smem[threadIdx.x] = 0;  // MARK race
    if (threadIdx.x == 0) cp_async_bulk_wait_group_read<0>();
}

extern "C" __global__ void ends_while_storing(const __grid_constant__ TensorMap map, unsigned char* y, int bytes, int c0, int c1) {
    CONVGEN_SHARED(smem);
    fill(smem, bytes);
    fence_proxy_async();
    __syncthreads();
    if (threadIdx.x == 0) {
        const int at[2] = {c0, c1};
        cp_async_bulk_tensor_store(&map, at, smem);  // MARK illegal copy
        cp_async_bulk_commit_group();
    }
}

extern "C" __global__ void no_wait(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    const int at[2] = {0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, &map, at, full);
    }
    __syncthreads();
    dump(smem, y, bytes);
    mbarrier_wait_parity(full, 0);
}

extern "C" __global__ void expects_too_much(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    const int at[2] = {0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes + 16);
        cp_async_bulk_tensor_load(smem, &map, at, full);
    }
    mbarrier_wait_parity(full, 0);  // MARK deadlock
    dump(smem, y, bytes);
}

// Two boxes, of which one is expected.
extern "C" __global__ void expects_too_little(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    const int at[2] = {0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, &map, at, full);
        cp_async_bulk_tensor_load(smem + bytes, &map, at, full);  // SECOND
    }
    mbarrier_wait_parity(full, 0);
    dump(smem + bytes, y, bytes);
}

extern "C" __global__ void not_fenced_init(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    CONVGEN_SHARED(smem);
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + kBarrierAt);
    if (threadIdx.x == 0) mbarrier_init(full, 1);
    __syncthreads();
    const int at[2] = {0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, &map, at, full);  // MARK missing
    }
    mbarrier_wait_parity(full, 0);
    dump(smem, y, bytes);
}

extern "C" __global__ void odd_place(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    const int at[2] = {0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem + 64, &map, at, full);  // MARK illegal copy
    }
    mbarrier_wait_parity(full, 0);
}

extern "C" __global__ void other_rank(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    const int at[3] = {0, 0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, &map, at, full);  // MARK illegal copy
    }
    mbarrier_wait_parity(full, 0);
}

extern "C" __global__ void beyond_shared(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    const int at[2] = {0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem + kBarrierAt + 128, &map, at, full);  // MARK out of bounds
    }
    mbarrier_wait_parity(full, 0);
}

// A ring of two boxes whose first threads' reads are not waited for.
extern "C" __global__ void released_too_early(const __grid_constant__ TensorMap map, unsigned char* y, int bytes) {
    BEGIN();
    const int at[2] = {0, 0};
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, &map, at, full);
    }
    mbarrier_wait_parity(full, 0);
    __syncwarp();
    if (threadIdx.x == 32) mbarrier_arrive(full + 1);
    if (threadIdx.x == 0) {
        mbarrier_wait_parity(full + 1, 0);
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_tensor_load(smem, &map, at, full);  // REFILL
    }
    if (threadIdx.x >= 32) y[threadIdx.x] = smem[threadIdx.x];  // READ
    mbarrier_wait_parity(full, 1);
}

// `bytes` there and back.
extern "C" __global__ void bulk(const unsigned char* x, unsigned char* y, int bytes) {
    BEGIN();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        cp_async_bulk_load(smem, x, bytes, full);
        mbarrier_wait_parity(full, 0);
        cp_async_bulk_store(y, smem, bytes);
        cp_async_bulk_commit_group();
        cp_async_bulk_wait_group<0>();
    }
}
