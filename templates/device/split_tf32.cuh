// x = big + small as tensor cores take them (sm_80), but for 2^-23 of it: big is x rounded to TF32, and of the 12 bits that
// are then left wgmma cuts the last. An infinity has a big part only: its small one is NaN.
__device__ __forceinline__ void split_tf32(float x, unsigned& big, unsigned& small) {
#ifdef CONVGEN_SIM
    big = x - x != 0 ? __float_as_uint(x) & 0xffffe000u : (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
#else
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(big) : "f"(x));
#endif
    small = __float_as_uint(x - __uint_as_float(big));
}
