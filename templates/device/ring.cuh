// Stages of shared memory that are filled and emptied in turn: where one stands, and the parity of its mbarriers' phases.
template <int kStages>
struct Ring {
    int stage = 0;
    unsigned parity = 0;

    __device__ __forceinline__ void next() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }

    // As so many times next().
    __device__ __forceinline__ void skip(int steps) {
        stage += steps;
        parity ^= stage / kStages & 1;
        stage %= kStages;
    }
};
