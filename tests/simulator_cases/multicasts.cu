// TMA multicast behind the device headers shared, shared_address, mbarrier, fence, tensor_map, cluster, cluster_mbarrier,
// cluster_multicast and cluster_multicast_im2col.
//
// All kernels run on 64 threads, in blocks of one cluster or several. The rows of x come in boxes of `bytes`; at every step
// each block of a cluster brings one box and multicasts it, so that all have all: a stage is a box of each rank. Warp 0
// brings boxes into a ring of two stages, warp 1 writes them into y, a row a block and step.
constexpr int kStages = 2, kBarriersAt = kStages * 8 * 2048;

#define BEGIN()                                                                                             \
    CONVGEN_SHARED(smem);                                                                                   \
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + kBarriersAt);             \
    unsigned long long* const empty = full + kStages;                                                       \
    const int rank = cluster_rank(), size = cluster_size(), stage_bytes = size * bytes;                     \
    const unsigned short all = (1 << size) - 1;                                                             \
    const int cluster = blockIdx.x / size;                                                                  \
    y += blockIdx.x * steps * stage_bytes / 2;

#define INIT(consumers)                                     \
    if (threadIdx.x == 0) {                                 \
        for (int stage = 0; stage < kStages; ++stage) {     \
            mbarrier_init(full + stage, 1);                 \
            mbarrier_init(empty + stage, consumers);        \
        }                                                   \
        fence_mbarrier_init();                              \
    }

// The box of a block at a step: rows of it, from those of the cluster's steps before on.
__device__ __forceinline__ void bring(unsigned char* smem, const TensorMap* map, unsigned long long* full, int bytes, int row, int stage, unsigned short to) {
    const int at[2] = {0, row};
    const int rank = cluster_rank(), size = cluster_size();
    cp_async_bulk_tensor_load_multicast(smem + (stage * size + rank) * bytes, map, at, full + stage, to);  // BRING
}

__device__ void write(const unsigned char* from, unsigned short* to, int bytes) {
    for (int i = threadIdx.x % 32; i < bytes / 2; i += 32) to[i] = reinterpret_cast<const unsigned short*>(from)[i];  // WRITE
}

// `consumers`: by how many blocks a stage must have been given back.
template <int kConsumers>
__device__ void ring(const TensorMap* map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(kConsumers ? kConsumers : size);
    cluster_sync();
    if (threadIdx.x == 0) {
        for (int step = 0; step < steps; ++step) {
            const int stage = step % kStages;
            mbarrier_wait_parity(empty + stage, (step / kStages & 1) ^ 1);
            mbarrier_arrive_expect_tx(full + stage, stage_bytes);
            bring(smem, map, full, bytes, ((cluster * steps + step) * size + rank) * rows, stage, all);
        }
    } else if (threadIdx.x >= 32) {
        for (int step = 0; step < steps; ++step) {
            const int stage = step % kStages;
            mbarrier_wait_parity(full + stage, step / kStages & 1);
            write(smem + stage * stage_bytes, y + step * stage_bytes / 2, stage_bytes);
            __syncwarp();
            if (kConsumers) {
                if (threadIdx.x == 32) mbarrier_arrive(empty + stage);
            } else if (threadIdx.x - 32 < size) {
                mbarrier_arrive_cluster(empty + stage, threadIdx.x - 32);
            }
        }
    }
    cluster_sync();
}

extern "C" __global__ void multicast(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    ring<0>(&map, y, bytes, rows, steps);
}

// The pixels of one tap of an image, the first block's, to all.
extern "C" __global__ void multicast_im2col(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        const int at[3] = {0, -1, cluster};
        const unsigned short shift[1] = {2};
        if (rank == 0) cp_async_bulk_tensor_load_im2col_multicast(smem, &map, at, shift, full, all);
    }
    mbarrier_wait_parity(full, 0);
    if (threadIdx.x < 32) write(smem, y, bytes);
    cluster_sync();
}

// Either fence will do after the initialisation; here each block has another.
extern "C" __global__ void fenced_either_way(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        rank == 0 ? fence_mbarrier_init() : fence_proxy_async();
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, stage_bytes);
        bring(smem, &map, full, bytes, rank * rows, 0, all);
    }
    mbarrier_wait_parity(full, 0);
    if (threadIdx.x >= 32) write(smem, y, stage_bytes);
    cluster_sync();
}

// --- wrong: one step, of which rank 0 brings the box for all ----------------------------------------------------

// A stage is brought again when its own block has given it back, whatever the others do.
extern "C" __global__ void asks_its_own_block(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    ring<1>(&map, y, bytes, rows, steps);
}

extern "C" __global__ void not_expected(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    cluster_sync();
    if (threadIdx.x == 0) {
        if (rank == 0) {
            mbarrier_arrive_expect_tx(full, bytes);
            bring(smem, &map, full, bytes, 0, 0, all);
        } else {
            mbarrier_arrive(full);
        }
    }
    mbarrier_wait_parity(full, 0);  // MARK deadlock
    if (threadIdx.x >= 32) write(smem, y, bytes);
    cluster_sync();
}

extern "C" __global__ void no_mbarrier_there(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    if (rank == 0) INIT(1);
    cluster_sync();
    if (rank == 0) {
        if (threadIdx.x == 0) {
            mbarrier_arrive_expect_tx(full, bytes);
            bring(smem, &map, full, bytes, 0, 0, all);  // MARK misuse of an mbarrier
        }
        mbarrier_wait_parity(full, 0);
    }
    cluster_sync();
    if (threadIdx.x >= 32) y[threadIdx.x] = 0;
}

// The last to come to its mbarrier sees that of the others, but not their fence's barrier.
extern "C" __global__ void no_sync_after_init(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        if (rank == 1) bring(smem, &map, full, bytes, 0, 0, all);  // MARK misuse of an mbarrier
    }
    mbarrier_wait_parity(full, 0);
    cluster_sync();
    if (threadIdx.x >= 32) y[threadIdx.x] = 0;
}

extern "C" __global__ void not_fenced(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    if (threadIdx.x == 0) {
        mbarrier_init(full, 1);
        if (rank == 0) fence_mbarrier_init();
    }
    cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        if (rank == 0) bring(smem, &map, full, bytes, 0, 0, all);  // MARK missing
    }
    mbarrier_wait_parity(full, 0);
    cluster_sync();
    if (threadIdx.x >= 32) y[threadIdx.x] = 0;
}

// Written by the ordinary way before, in the other block.
extern "C" __global__ void not_fenced_memory(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    smem[threadIdx.x] = 0;
    __syncthreads();
    if (rank == 0) fence_proxy_async();
    cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        if (rank == 0) bring(smem, &map, full, bytes, 0, 0, all);  // MARK missing
    }
    mbarrier_wait_parity(full, 0);
    cluster_sync();
    if (threadIdx.x >= 32) y[threadIdx.x] = 0;
}

extern "C" __global__ void to_a_block_that_ends(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    cluster_sync();
    if (threadIdx.x >= 32) y[threadIdx.x] = 0;
    if (rank) return;
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        bring(smem, &map, full, bytes, 0, 0, all);  // MARK misuse of a cluster
    }
    mbarrier_wait_parity(full, 0);
}

// Nobody of the other block waits for what comes there.
extern "C" __global__ void ends_meanwhile(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        if (rank == 0) bring(smem, &map, full, bytes, 0, 0, all);  // MARK illegal copy
    }
    if (threadIdx.x >= 32) y[threadIdx.x] = 0;
    cluster_sync();
    if (rank == 0) mbarrier_wait_parity(full, 0);
}

extern "C" __global__ void to_no_block(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        if (rank == 0) bring(smem, &map, full, bytes, 0, 0, all | 16);  // MARK illegal copy
    }
    mbarrier_wait_parity(full, 0);
    cluster_sync();
    if (threadIdx.x >= 32) y[threadIdx.x] = 0;
}

extern "C" __global__ void no_wait(const __grid_constant__ TensorMap map, unsigned short* y, int bytes, int rows, int steps) {
    BEGIN();
    INIT(1);
    cluster_sync();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(full, bytes);
        if (rank == 0) bring(smem, &map, full, bytes, 0, 0, all);
    }
    if (rank == 0) mbarrier_wait_parity(full, 0);
    __syncthreads();
    if (threadIdx.x >= 32) write(smem, y, bytes);
    mbarrier_wait_parity(full, 0);
    cluster_sync();
}
