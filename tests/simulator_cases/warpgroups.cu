// Warpgroups' means behind the device headers shared, named_barrier, setmaxnreg, elect and stmatrix.

// 256 threads: warpgroup 0 turns rows that warpgroup 1 writes; two barriers tell when they are full and empty.
extern "C" __global__ void hand_over(const int* x, int* y, int steps) {
    CONVGEN_SHARED(smem);
    int* const row = reinterpret_cast<int*>(smem);
    const int thread = threadIdx.x % 128;
    for (int step = 0; step < steps; ++step) {
        if (threadIdx.x >= 128) {
            if (step) bar_sync(2, 256);
            row[thread] = x[step * 128 + thread];
            bar_arrive(1, 256);
        } else {
            bar_sync(1, 256);
            y[step * 128 + thread] = row[127 - thread];
            if (step + 1 < steps) bar_arrive(2, 256);
        }
    }
}

extern "C" __global__ void no_second_barrier(const int* x, int* y, int steps) {
    CONVGEN_SHARED(smem);
    int* const row = reinterpret_cast<int*>(smem);
    const int thread = threadIdx.x % 128;
    for (int step = 0; step < steps; ++step) {
        if (threadIdx.x >= 128) row[thread] = x[step * 128 + thread];  // MARK race
        bar_sync(1, 256);
        if (threadIdx.x < 128) y[step * 128 + thread] = row[127 - thread];
    }
}

extern "C" __global__ void barrier_of_one_warpgroup(const int* x, int* y, int steps) {
    CONVGEN_SHARED(smem);
    int* const row = reinterpret_cast<int*>(smem);
    row[threadIdx.x] = x[threadIdx.x % 128];
    bar_sync(1 + threadIdx.x / 128, 128);
    y[threadIdx.x] = row[(threadIdx.x < 128 ? 127 : 255) - threadIdx.x];  // MARK race
}

extern "C" __global__ void too_few_come(const int* x, int* y, int steps) {
    if (threadIdx.x < 96) bar_sync(3, 128);  // MARK deadlock
    y[threadIdx.x] = steps;
}

extern "C" __global__ void barrier_zero(const int* x, int* y, int steps) {
    bar_sync(0, 256);  // MARK misuse of a barrier
    y[threadIdx.x] = steps;
}

extern "C" __global__ void counts_differ(const int* x, int* y, int steps) {
    bar_sync(1, threadIdx.x < 128 ? 256 : 128);  // MARK misuse of a barrier
    y[threadIdx.x] = steps;
}

// 256 registers a thread of 256: one warpgroup gives, the other has what it may have.
extern "C" __global__ void registers(const int* x, int* y, int steps) {
    if (threadIdx.x >= 128)
        setmaxnreg_dec<40>();
    else
        setmaxnreg_inc<256>();
    y[threadIdx.x] = steps;
}

// Of 384 threads with 168 each: 216 and 216 and 72 are as many.
extern "C" __global__ void registers_of_three(const int* x, int* y, int steps) {
    if (threadIdx.x >= 256)
        setmaxnreg_dec<72>();
    else
        setmaxnreg_inc<216>();
    y[threadIdx.x] = steps;
}

extern "C" __global__ void too_many_registers(const int* x, int* y, int steps) {
    if (threadIdx.x >= 256)
        setmaxnreg_dec<72>();
    else
        setmaxnreg_inc<224>();  // MARK deadlock
    y[threadIdx.x] = steps;
}

extern "C" __global__ void decrease_that_is_none(const int* x, int* y, int steps) {
    setmaxnreg_dec<240>();  // MARK misuse of setmaxnreg
    y[threadIdx.x] = steps;
}

extern "C" __global__ void registers_of_a_warp(const int* x, int* y, int steps) {
    if (threadIdx.x < 32) setmaxnreg_dec<40>();  // MARK deadlock
    y[threadIdx.x] = steps;
}

extern "C" __global__ void elects(const int* x, int* y, int steps) {
    y[threadIdx.x] = elect_sync();
}

// A warp's fragments x[matrix][lane] stored, and shared memory copied to y as it lies.
template <int kMatrices, bool kTransposed>
__device__ void store(const int* x, int* y) {
    CONVGEN_SHARED(smem);
    const int lane = threadIdx.x;
    void* const row = smem + lane % (8 * kMatrices) * 16;
    const unsigned* const r = reinterpret_cast<const unsigned*>(x) + lane;
    if constexpr (kMatrices == 1) stmatrix<kTransposed>(row, r[0]);
    if constexpr (kMatrices == 2) stmatrix<kTransposed>(row, r[0], r[32]);
    if constexpr (kMatrices == 4) stmatrix<kTransposed>(row, r[0], r[32], r[64], r[96]);
    __syncwarp();
    for (int i = lane; i < kMatrices * 32; i += 32) y[i] = reinterpret_cast<const int*>(smem)[i];
}
extern "C" __global__ void stmatrix_1(const int* x, int* y, int steps) { store<1, false>(x, y); }
extern "C" __global__ void stmatrix_2(const int* x, int* y, int steps) { store<2, false>(x, y); }
extern "C" __global__ void stmatrix_4(const int* x, int* y, int steps) { store<4, false>(x, y); }
extern "C" __global__ void stmatrix_1_transposed(const int* x, int* y, int steps) { store<1, true>(x, y); }
extern "C" __global__ void stmatrix_4_transposed(const int* x, int* y, int steps) { store<4, true>(x, y); }

extern "C" __global__ void stmatrix_at_odd_rows(const int* x, int* y, int steps) {
    CONVGEN_SHARED(smem);
    stmatrix(smem + threadIdx.x * 16 + 8, x[threadIdx.x], 1, 2, 3);  // MARK misaligned
    y[threadIdx.x] = steps;
}

// 128 threads. One of them has work before and after what all of them do together: compilers like to give it a path of its own.
extern "C" __global__ void one_thread_between(const int* x, int* y, int steps) {
    const int thread = threadIdx.x % 128;
    y[thread] = thread;
    for (int step = 0; step < steps; ++step) {
        if (thread == 32) y[0] += x[step];
        setmaxnreg_dec<40>();
        if (thread == 0) y[1] += x[step];
        setmaxnreg_inc<40>();
        if (thread == 32) y[2] += x[step];
    }
}
