// CUDA's built-in vector types, with their alignment.
#pragma once

#define CONVGEN_SIM_VECTOR(T, name, align2, align4)                                                  \
    struct name##1 { T x; };                                                                         \
    struct __align__(align2) name##2 { T x, y; };                                                    \
    struct name##3 { T x, y, z; };                                                                   \
    struct __align__(align4) name##4 { T x, y, z, w; };                                              \
    static inline name##2 make_##name##2(T x, T y) { return name##2{x, y}; }                         \
    static inline name##3 make_##name##3(T x, T y, T z) { return name##3{x, y, z}; }                 \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4{x, y, z, w}; }

CONVGEN_SIM_VECTOR(signed char, char, 2, 4)
CONVGEN_SIM_VECTOR(unsigned char, uchar, 2, 4)
CONVGEN_SIM_VECTOR(short, short, 4, 8)
CONVGEN_SIM_VECTOR(unsigned short, ushort, 4, 8)
CONVGEN_SIM_VECTOR(int, int, 8, 16)
CONVGEN_SIM_VECTOR(unsigned int, uint, 8, 16)
CONVGEN_SIM_VECTOR(long long, longlong, 16, 16)
CONVGEN_SIM_VECTOR(unsigned long long, ulonglong, 16, 16)
CONVGEN_SIM_VECTOR(float, float, 8, 16)
CONVGEN_SIM_VECTOR(double, double, 16, 16)
#undef CONVGEN_SIM_VECTOR

typedef uint3 dim3;
