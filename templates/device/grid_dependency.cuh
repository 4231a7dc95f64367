// Programmatic dependent launch (sm_90): a kernel that begins before the one before it on the stream has ended.
//
// It may when every block of the one before has ended or called grid_dependency_launch. Until grid_dependency_wait returns,
// when all before has ended and is seen, it touches no global memory. Without such a launch both do nothing.

__device__ __forceinline__ void grid_dependency_wait() {
#ifndef CONVGEN_SIM
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may begin as soon as there is room for it.
__device__ __forceinline__ void grid_dependency_launch() {
#ifndef CONVGEN_SIM
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
