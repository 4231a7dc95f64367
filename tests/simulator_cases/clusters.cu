// Clusters behind the device headers shared, shared_address, mbarrier, fence, vector, cluster and cluster_mbarrier. All
// kernels run on 64 threads and 1024 bytes of shared memory: a tile of an int a thread in each of two stages, then mbarriers.
constexpr int kStages = 2;

#define BEGIN()                                                                                       \
    CONVGEN_SHARED(smem);                                                                             \
    int* const tile = reinterpret_cast<int*>(smem);                                                   \
    unsigned long long* const full = reinterpret_cast<unsigned long long*>(smem + kStages * 256);     \
    unsigned long long* const empty = full + kStages;                                                 \
    const int i = threadIdx.x;                                                                        \
    const unsigned rank = cluster_rank(), next = (rank + 1) % cluster_size();                         \
    const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;                 \
    y += block * 64;

#define INIT()                                              \
    if (i == 0) {                                           \
        for (int stage = 0; stage < kStages; ++stage) {     \
            mbarrier_init(full + stage, 64);                \
            mbarrier_init(empty + stage, 64);               \
        }                                                   \
        fence_mbarrier_init();                              \
    }

// --- right ------------------------------------------------------------------------------------------------------

extern "C" __global__ void ranks(const int* x, int* y, int steps) {
    BEGIN();
    y[i] = rank * 100 + cluster_size();
}

// Each block reads the tile of the next.
extern "C" __global__ void pull(const int* x, int* y, int steps) {
    BEGIN();
    tile[i] = x[block * 64 + i];
    cluster_sync();
    const int value = cluster_map(tile, next)[63 - i];
    cluster_sync();
    y[i] = value;
}

// Four at a time, with other work between the halves of the cluster's barrier.
extern "C" __global__ void pull_packs(const int* x, int* y, int steps) {
    BEGIN();
    tile[i] = x[block * 64 + i];
    cluster_arrive();
    const int own = x[block * 64 + i];
    cluster_wait();
    if (i < 16) store_pack<4>(tile + 64 + 4 * i, load_pack<4>(cluster_map(tile, next) + 4 * (15 - i)));
    cluster_sync();
    y[i] = tile[64 + i] - own;
}

// Each block writes the tile of the next.
extern "C" __global__ void push(const int* x, int* y, int steps) {
    BEGIN();
    cluster_sync();
    cluster_map(tile, next)[63 - i] = x[block * 64 + i];
    cluster_sync();
    y[i] = tile[i];
}

// All threads of the cluster add to one counter.
extern "C" __global__ void adds(const int* x, int* y, int steps) {
    BEGIN();
    if (i == 0) tile[0] = 0;
    cluster_sync();
    atomicAdd(cluster_map(tile, 0), x[block * 64 + i]);
    cluster_sync();
    y[i] = rank == 0 ? tile[0] : -1;
}

// Threads that end are not waited for.
extern "C" __global__ void some_end(const int* x, int* y, int steps) {
    BEGIN();
    tile[i] = x[block * 64 + i];
    cluster_sync();
    if (i >= 32) return;
    const int value = cluster_map(tile, next)[i];
    cluster_sync();
    y[i] = value;
    cluster_sync();
}

// Nor are those that have come and end without waiting counted twice.
extern "C" __global__ void some_come_and_end(const int* x, int* y, int steps) {
    BEGIN();
    if (i >= 32) return cluster_arrive();
    tile[i] = x[block * 64 + i];
    cluster_sync();
    const int value = cluster_map(tile, next)[i];
    cluster_sync();
    y[i] = value;
}

// The first block fills the stages of the second, which adds them up.
template <bool kRelease>
__device__ void produce(const int* x, int* tile, unsigned long long* full, unsigned long long* empty, int steps) {
    const int i = threadIdx.x;
    for (int step = 0; step < steps; ++step) {
        const int stage = step % kStages;
        mbarrier_wait_parity(empty + stage, (step / kStages & 1) ^ 1);
        cluster_map(tile, 1)[stage * 64 + i] = x[step * 64 + i];  // FILL
        if (kRelease)
            mbarrier_arrive_release_cluster(full + stage, 1);
        else
            mbarrier_arrive_cluster(full + stage, 1);
    }
}

__device__ int consume(const int* tile, unsigned long long* full, unsigned long long* empty, int steps) {
    int sum = 0;
    for (int step = 0; step < steps; ++step) {
        const int stage = step % kStages;
        mbarrier_wait_parity_cluster(full + stage, step / kStages & 1);
        sum += tile[stage * 64 + 63 - threadIdx.x];  // DRAIN
        mbarrier_arrive_cluster(empty + stage, 0);
    }
    return sum;
}

extern "C" __global__ void ring(const int* x, int* y, int steps) {
    BEGIN();
    INIT();
    cluster_sync();
    if (rank == 0) produce<true>(x, tile, full, empty, steps);
    if (rank == 1) y[i] = consume(tile, full, empty, steps);
    cluster_sync();
}

// One thread releases what all of its block have written. What they read then is given back by each.
extern "C" __global__ void one_releases(const int* x, int* y, int steps) {
    BEGIN();
    if (i == 0) {
        mbarrier_init(full, 1);
        mbarrier_init(empty, 64);
        fence_mbarrier_init();
    }
    tile[64 + i] = i;
    cluster_sync();
    if (rank == 0) {
        cluster_map(tile, 1)[i] = x[i];
        __syncthreads();
        if (i == 0) mbarrier_arrive_release_cluster(full, 1);
        __syncthreads();
        y[i] = cluster_map(tile, 1)[64 + i];
        mbarrier_arrive_cluster(empty, 1);
    } else {
        mbarrier_wait_parity_cluster(full, 0);
        y[i] = tile[63 - i];
        mbarrier_wait_parity(empty, 0);
        tile[64 + i] = 0;
    }
    cluster_sync();
}

// All threads of each of two blocks read one element of the other, which is written again when kReaders have told.
template <int kReaders>
__device__ void read_by_all(const int* x, int* y, int* tile, unsigned long long* full) {
    const int i = threadIdx.x;
    const unsigned other = cluster_rank() ^ 1;
    tile[i] = x[i];
    if (i == 0) {
        mbarrier_init(full, kReaders);
        fence_mbarrier_init();
    }
    cluster_sync();
    const int value = cluster_map(tile, other)[5];
    if (i < kReaders) mbarrier_arrive_cluster(full, other);
    if (i == 7) {
        mbarrier_wait_parity(full, 0);
        tile[5] = 0;  // AGAIN
    }
    cluster_sync();
    y[i] = value;
}

extern "C" __global__ void read_and_written(const int* x, int* y, int steps) {
    BEGIN();
    read_by_all<64>(x + block * 64, y, tile, full);
}

// What threads wrote to another block their own block may know of without a release to the cluster.
extern "C" __global__ void tells_its_own_block(const int* x, int* y, int steps) {
    BEGIN();
    INIT();
    cluster_sync();
    cluster_map(tile, next)[i] = x[block * 64 + i];
    mbarrier_arrive_cluster(full, rank);
    mbarrier_wait_parity(full, 0);
    y[i] = cluster_map(tile, next)[63 - i];
    cluster_sync();
}

// --- wrong ------------------------------------------------------------------------------------------------------

extern "C" __global__ void no_sync_before(const int* x, int* y, int steps) {
    BEGIN();
    tile[i] = x[block * 64 + i];
    const int value = cluster_map(tile, next)[63 - i];  // MARK too early
    cluster_sync();
    y[i] = value;
}

// A barrier of the block is none of the cluster.
extern "C" __global__ void block_sync_before(const int* x, int* y, int steps) {
    BEGIN();
    cluster_sync();
    tile[i] = x[block * 64 + i];
    __syncthreads();
    const int value = cluster_map(tile, next)[63 - i];  // MARK too early
    cluster_sync();
    y[i] = value;
}

extern "C" __global__ void pushes_before_start(const int* x, int* y, int steps) {
    BEGIN();
    cluster_map(tile, next)[i] = x[block * 64 + i];  // MARK misuse of a cluster
    cluster_sync();
    y[i] = tile[i];
}

extern "C" __global__ void ends_too_early(const int* x, int* y, int steps) {
    BEGIN();
    tile[i] = x[block * 64 + i];
    cluster_sync();
    y[i] = cluster_map(tile, next)[63 - i];  // MARK misuse of a cluster
}

extern "C" __global__ void written_again(const int* x, int* y, int steps) {
    BEGIN();
    read_by_all<63>(x + block * 64, y, tile, full);
}

extern "C" __global__ void past_the_window(const int* x, int* y, int steps) {
    BEGIN();
    tile[i] = x[block * 64 + i];
    cluster_sync();
    const int value = cluster_map(tile, next)[i + 193];  // MARK out of bounds
    cluster_sync();
    y[i] = value;
}

extern "C" __global__ void no_such_rank(const int* x, int* y, int steps) {
    BEGIN();
    cluster_sync();
    y[i] = *cluster_map(tile, cluster_size());  // MARK misuse of a cluster
}

extern "C" __global__ void arrives_twice(const int* x, int* y, int steps) {
    BEGIN();
    cluster_arrive();
    if (i == 3) cluster_arrive();  // MARK misuse of a cluster
    cluster_wait();
    y[i] = 0;
}

extern "C" __global__ void waits_unarrived(const int* x, int* y, int steps) {
    BEGIN();
    if (i == 3) cluster_wait();  // MARK misuse of a cluster
    cluster_sync();
    y[i] = 0;
}

extern "C" __global__ void no_mbarrier_there(const int* x, int* y, int steps) {
    BEGIN();
    if (rank == 0) INIT();
    cluster_sync();
    if (i == 0 && rank == 0) mbarrier_arrive_cluster(full, 1);  // MARK misuse of an mbarrier
    cluster_sync();
    y[i] = 0;
}

extern "C" __global__ void initialised_meanwhile(const int* x, int* y, int steps) {
    BEGIN();
    cluster_sync();
    INIT();
    __syncthreads();
    if (i == 0 && rank == 1) mbarrier_arrive_cluster(full, 0);  // MARK misuse of an mbarrier
    cluster_sync();
    y[i] = 0;
}

// The tile is not to be seen yet when its mbarrier is.
extern "C" __global__ void not_released(const int* x, int* y, int steps) {
    BEGIN();
    INIT();
    cluster_sync();
    if (rank == 0) produce<false>(x, tile, full, empty, steps);
    if (rank == 1) y[i] = consume(tile, full, empty, steps);
    cluster_sync();
}

extern "C" __global__ void given_back_too_early(const int* x, int* y, int steps) {
    BEGIN();
    INIT();
    cluster_sync();
    if (rank == 0) produce<true>(x, tile, full, empty, steps);
    int sum = 0;
    for (int step = 0; step < steps && rank == 1; ++step) {
        const int stage = step % kStages;
        mbarrier_wait_parity_cluster(full + stage, step / kStages & 1);
        mbarrier_arrive_cluster(empty + stage, 0);
        sum += tile[stage * 64 + 63 - i];
    }
    cluster_sync();
    y[i] = sum;
}

// The last stages are given back to a block that may be gone.
extern "C" __global__ void ends_before_the_ring(const int* x, int* y, int steps) {
    BEGIN();
    INIT();
    cluster_sync();
    if (rank == 0) produce<true>(x, tile, full, empty, steps);
    int sum = 0;
    for (int step = 0; step < steps && rank == 1; ++step) {
        const int stage = step % kStages;
        mbarrier_wait_parity_cluster(full + stage, step / kStages & 1);
        sum += tile[stage * 64 + 63 - i];
        mbarrier_arrive_cluster(empty + stage, 0);  // MARK misuse of a cluster
    }
    y[i] = sum;
}

extern "C" __global__ void waits_for_each_other(const int* x, int* y, int steps) {
    BEGIN();
    INIT();
    cluster_sync();
    if (rank == 0) mbarrier_arrive_cluster(full + 1, 1);
    if (rank == 1 && i == 0) mbarrier_wait_parity(full, 0);  // MARK deadlock
    cluster_sync();  // MARK barrier
    y[i] = 0;
}
