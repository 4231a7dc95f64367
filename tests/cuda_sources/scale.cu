// y = x * w for a filter of one tap, in more steps than it needs: one of each kind a plan can have.

extern "C" {
__constant__ float factor[1];
}

// product += x * factor / 2, into a buffer that a memset cleared.
extern "C" __global__ void multiply(const float* x, float* product, float half, int n, int length) {
    extern __shared__ float staged[];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    staged[threadIdx.x] = i < n * length ? x[i] : 0.0f;
    __syncthreads();
    if (i < n * length) product[i] += staged[threadIdx.x] * factor[0] * half;
}

extern "C" __global__ void finish(const float* product, float* y, double twice, int n, long long length) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n * length) y[i] = static_cast<float>(product[i] * twice);
}

// The same by texture: one thread a pixel, with a ring of pixels around the image that must read as zero.
extern "C" __global__ void fetch(cudaTextureObject_t x, const float* w, float* y, int width, int height) {
    int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    if (column >= width || row >= height) return;
    float outside = tex2D<float>(x, -0.5f, row + 0.5f) + tex2D<float>(x, column + 0.5f, height + 0.5f);
    y[row * width + column] = (tex2D<float>(x, column + 0.5f, row + 0.5f) + outside) * w[0];
}
