// Discrete Fourier transforms of a few points in registers: exp(-2 pi i), unscaled, in natural order. The inverse is
// the same transform with real and imaginary parts exchanged before and after.
struct __align__(8) Complex {
    float x, y;
};

__device__ __forceinline__ void count_flops(int flops) {
#ifdef CONVGEN_SIM
    convgen_sim_count_flops(flops);
#endif
}

__device__ __forceinline__ Complex operator+(Complex a, Complex b) {
    count_flops(2);
    return {a.x + b.x, a.y + b.y};
}

__device__ __forceinline__ Complex operator-(Complex a, Complex b) {
    count_flops(2);
    return {a.x - b.x, a.y - b.y};
}

__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
    count_flops(2);
    return {fma_acc(a.x, b.x, -(a.y * b.y)), fma_acc(a.x, b.y, a.y * b.x)};
}

// acc + a * b.
__device__ __forceinline__ Complex fma_acc(Complex a, Complex b, Complex acc) {
    return {fma_acc(-a.y, b.y, fma_acc(a.x, b.x, acc.x)), fma_acc(a.y, b.x, fma_acc(a.x, b.y, acc.y))};
}

// acc + a * b, and a * b, of a real factor.
__device__ __forceinline__ Complex scaled_acc(Complex a, float b, Complex acc) {
    return {fma_acc(a.x, b, acc.x), fma_acc(a.y, b, acc.y)};
}

__device__ __forceinline__ Complex scaled(Complex a, float b) {
    count_flops(2);
    return {a.x * b, a.y * b};
}

// Products with powers of the eighth root of unity (1 - i) / sqrt 2.
constexpr float kHalfRoot = 0.707106781f;
__device__ __forceinline__ Complex quarter_turn(Complex v) { return {v.y, -v.x}; }
__device__ __forceinline__ Complex eighth_turn(Complex v) { return scaled(v + quarter_turn(v), kHalfRoot); }
__device__ __forceinline__ Complex three_eighths_turn(Complex v) { return scaled(quarter_turn(v) - v, kHalfRoot); }
__device__ __forceinline__ Complex half_turn(Complex v) { return {-v.x, -v.y}; }

__device__ __forceinline__ Complex exchanged(Complex v) { return {v.y, v.x}; }

{% for b in butterflies %}
{% if b.radix == 2 %}
__device__ __forceinline__ void dft(Complex (&v)[2]) {
    const Complex difference = v[0] - v[1];
    v[0] = v[0] + v[1];
    v[1] = difference;
}
{% elif b.first == 1 %}
__device__ __forceinline__ void dft(Complex (&v)[{{ b.radix }}]) {
{% for j in range(1, b.radix // 2 + 1) %}
    const Complex sum{{ j }} = v[{{ j }}] + v[{{ b.radix - j }}], difference{{ j }} = v[{{ j }}] - v[{{ b.radix - j }}];
{% endfor %}
{% for k in range(1, b.radix // 2 + 1) %}
    const Complex even{{ k }} = {% for j in range(b.radix // 2, 0, -1) %}scaled_acc(sum{{ j }}, {{ b.cosines[k - 1][j - 1] }}, {% endfor %}v[0]{{ ")" * (b.radix // 2) }};
    const Complex odd{{ k }} = quarter_turn({% for j in range(b.radix // 2, 1, -1) %}scaled_acc(difference{{ j }}, {{ b.sines[k - 1][j - 1] }}, {% endfor %}scaled(difference1, {{ b.sines[k - 1][0] }}){{ ")" * (b.radix // 2) }};
{% endfor %}
    v[0] = v[0]{% for j in range(1, b.radix // 2 + 1) %} + sum{{ j }}{% endfor %};
{% for k in range(1, b.radix // 2 + 1) %}
    v[{{ k }}] = even{{ k }} + odd{{ k }};
    v[{{ b.radix - k }}] = even{{ k }} - odd{{ k }};
{% endfor %}
}
{% else %}
// {{ b.second }} transforms of {{ b.first }} points, rotations, {{ b.first }} transforms of {{ b.second }}.
__device__ __forceinline__ void dft(Complex (&v)[{{ b.radix }}]) {
    Complex columns[{{ b.second }}][{{ b.first }}];
    #pragma unroll
    for (int j = 0; j < {{ b.second }}; ++j) {
        #pragma unroll
        for (int i = 0; i < {{ b.first }}; ++i) columns[j][i] = v[i * {{ b.second }} + j];
        dft(columns[j]);
    }
{% for r in b.rotations %}
{% set point = "columns[%d][%d]" | format(r.index % b.second, r.index // b.second) %}
    {{ point }} = {{ point ~ " * Complex{" ~ r.real ~ ", " ~ r.imaginary ~ "}" if r.kind == "any" else r.kind ~ "(" ~ point ~ ")" }};
{% endfor %}
    #pragma unroll
    for (int i = 0; i < {{ b.first }}; ++i) {
        Complex row[{{ b.second }}];
        #pragma unroll
        for (int j = 0; j < {{ b.second }}; ++j) row[j] = columns[j][i];
        dft(row);
        #pragma unroll
        for (int j = 0; j < {{ b.second }}; ++j) v[j * {{ b.first }} + i] = row[j];
    }
}
{% endif %}

{% endfor %}
