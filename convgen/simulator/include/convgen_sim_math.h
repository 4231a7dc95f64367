// Device math functions, from the host's C library. Fast-math intrinsics are the exact functions here.
#pragma once

extern "C" {
float fmaf(float, float, float);
double fma(double, double, double);
float fminf(float, float);
float fmaxf(float, float);
float fabsf(float);
float sqrtf(float);
float expf(float);
float exp2f(float);
float logf(float);
float log2f(float);
float powf(float, float);
float sinf(float);
float cosf(float);
float tanhf(float);
float erff(float);
float floorf(float);
float ceilf(float);
float truncf(float);
float rintf(float);
float fmodf(float, float);
float roundf(float);
float copysignf(float, float);
float expm1f(float);
float log1pf(float);
double fabs(double);
double sqrt(double);
double exp(double);
double log(double);
double fmin(double, double);
double fmax(double, double);
int abs(int);
}

#define CONVGEN_SIM_MIN_MAX(R, A, B)                                                                 \
    static inline R min(A a, B b) { R c = a, d = b; return c < d ? c : d; }                              \
    static inline R max(A a, B b) { R c = a, d = b; return c > d ? c : d; }
CONVGEN_SIM_MIN_MAX(int, int, int)
CONVGEN_SIM_MIN_MAX(unsigned, unsigned, unsigned)
CONVGEN_SIM_MIN_MAX(unsigned, int, unsigned)
CONVGEN_SIM_MIN_MAX(unsigned, unsigned, int)
CONVGEN_SIM_MIN_MAX(long, long, long)
CONVGEN_SIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
CONVGEN_SIM_MIN_MAX(long long, long long, long long)
CONVGEN_SIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
#undef CONVGEN_SIM_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __expf(float x) { return expf(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

static inline int __float_as_int(float v) { return __builtin_bit_cast(int, v); }
static inline unsigned __float_as_uint(float v) { return __builtin_bit_cast(unsigned, v); }
static inline float __int_as_float(int v) { return __builtin_bit_cast(float, v); }
static inline float __uint_as_float(unsigned v) { return __builtin_bit_cast(float, v); }
static inline int __float2int_rn(float v) { return static_cast<int>(rintf(v)); }
static inline int __float2int_rd(float v) { return static_cast<int>(floorf(v)); }
static inline int __float2int_ru(float v) { return static_cast<int>(ceilf(v)); }
static inline int __float2int_rz(float v) { return static_cast<int>(v); }
static inline float __int2float_rn(int v) { return static_cast<float>(v); }
static inline float __uint2float_rn(unsigned v) { return static_cast<float>(v); }

static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz(static_cast<unsigned>(v)) : 32; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (static_cast<uint64_t>(a) * b) >> 32; }
static inline int __mulhi(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) * b) >> 32); }
static inline int __mul24(int a, int b) { return a * b; }
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 32; i += 8) c += static_cast<signed char>(a >> i) * static_cast<signed char>(b >> i);
    return c;
}
