// NVIDIA's own occupancy calculator (cuda_occupancy.h) as a filter: a line a question on stdin, blocks an SM on stdout.
// Fields: major minor threads_per_sm shared_per_sm shared_optin reserved sms threads registers shared_bytes
#include <climits>
#include <cstdio>

#include <cuda_occupancy.h>

int main() {
    int major, minor, per_sm, sms, threads, registers;
    size_t shared_sm, optin, reserved, shared;
    while (scanf("%d %d %d %zu %zu %zu %d %d %d %zu", &major, &minor, &per_sm, &shared_sm, &optin, &reserved, &sms,
                 &threads, &registers, &shared) == 10) {
        cudaOccDeviceProp properties;
        properties.computeMajor = major;
        properties.computeMinor = minor;
        properties.maxThreadsPerBlock = 1024;
        properties.maxThreadsPerMultiprocessor = per_sm;
        properties.regsPerBlock = 65536;
        properties.regsPerMultiprocessor = 65536;
        properties.warpSize = 32;
        properties.sharedMemPerBlock = 49152;
        properties.sharedMemPerMultiprocessor = shared_sm;
        properties.numSms = sms;
        properties.sharedMemPerBlockOptin = optin;
        properties.reservedSharedMemPerBlock = reserved;
        cudaOccFuncAttributes attributes;
        attributes.maxThreadsPerBlock = INT_MAX;
        attributes.numRegs = registers;
        attributes.sharedSizeBytes = 0;
        attributes.partitionedGCConfig = PARTITIONED_GC_OFF;
        attributes.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
        attributes.maxDynamicSharedSizeBytes = optin;
        attributes.numBlockBarriers = 1;
        cudaOccDeviceState state;
        cudaOccResult result;
        cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &properties, &attributes, &state, threads, shared);
        printf("%d\n", error == CUDA_OCC_SUCCESS ? result.activeBlocksPerMultiprocessor : -1);
    }
    return 0;
}
