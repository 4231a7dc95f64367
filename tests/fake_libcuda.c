/*
 * A CUDA driver without a GPU: device memory is host memory, the kernels of cuda_sources/scale.cu are C functions, and
 * any other kernel does nothing. Calls that matter are written to the file FAKE_CUDA_LOG. If FAKE_CUDA_RESULT names a
 * file, its bytes appear in allocation number FAKE_CUDA_RESULT_ALLOCATION when the program synchronises.
 */
#include <cuda.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float constant_memory[16];
static CUdeviceptr allocations[64];
static int allocated, live;

static CUresult say(const char *format, ...)
{
    const char *path = getenv("FAKE_CUDA_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        va_list arguments;
        va_start(arguments, format);
        vfprintf(file, format, arguments);
        va_end(arguments);
        fputc('\n', file);
        fclose(file);
    }
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { (void)device; *context = NULL; return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRelease(CUdevice device) { (void)device; return say("live allocations %d", live); }
CUresult cuCtxSetCurrent(CUcontext context) { (void)context; return CUDA_SUCCESS; }
CUresult cuStreamSynchronize(CUstream stream) { (void)stream; return say("wait"); }

CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes)
{
    *pointer = (CUdeviceptr)aligned_alloc(512, (bytes + 511) / 512 * 512);
    allocations[allocated++] = *pointer;
    ++live;
    return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr pointer) { free((void *)pointer); --live; return CUDA_SUCCESS; }
CUresult cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return CUDA_SUCCESS; }
CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t bytes) { memcpy(to, (void *)from, bytes); return CUDA_SUCCESS; }

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    (void)stream;
    memcpy((void *)to, (void *)from, bytes);
    return say("copy %zu", bytes);
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream stream)
{
    (void)stream;
    memset((void *)to, value, bytes);
    return say("memset %d %zu", value, bytes);
}

CUresult cuCtxSynchronize(void)
{
    const char *path = getenv("FAKE_CUDA_RESULT");
    if (path) {
        FILE *file = fopen(path, "rb");
        char *to = (char *)allocations[atoi(getenv("FAKE_CUDA_RESULT_ALLOCATION"))];
        size_t got;
        while (file && (got = fread(to, 1, 4096, file)) > 0)
            to += got;
        if (file)
            fclose(file);
    }
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    *module = NULL;
    return memcmp(image, "\x7f" "ELF", 4) ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { (void)module; return say("unload"); }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    (void)module;
    *function = (CUfunction)strdup(name);
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    (void)bytes, (void)module;
    *pointer = (CUdeviceptr)constant_memory;
    return say("symbol %s", name);
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    return say("attribute %s %d %d", (const char *)function, attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, value);
}
CUresult cuTexObjectCreate(CUtexObject *texture, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *sampling,
                           const CUDA_RESOURCE_VIEW_DESC *view)
{
    CUDA_RESOURCE_DESC *copy = malloc(sizeof *copy);
    *copy = *resource;
    *texture = (CUtexObject)copy;
    return say("texture %d %zu %zu %zu border %d flags %u view %d", resource->res.pitch2D.format, resource->res.pitch2D.width,
               resource->res.pitch2D.height, resource->res.pitch2D.pitchInBytes,
               sampling->addressMode[0] == CU_TR_ADDRESS_MODE_BORDER, sampling->flags, view != NULL);
}
CUresult cuTexObjectDestroy(CUtexObject texture) { free((void *)texture); return say("destroy"); }
CUresult cuGetErrorName(CUresult status, const char **name) { *name = status ? "AN_ERROR" : "CUDA_SUCCESS"; return CUDA_SUCCESS; }

static void multiply(void **a)
{
    const float *x = *(const float **)a[0];
    float *product = *(float **)a[1], half = *(float *)a[2];
    for (int i = 0; i < *(int *)a[3] * *(int *)a[4]; ++i)
        product[i] += x[i] * constant_memory[0] * half;
}
static void finish(void **a)
{
    const float *product = *(const float **)a[0];
    float *y = *(float **)a[1];
    for (long long i = 0; i < *(int *)a[3] * *(long long *)a[4]; ++i)
        y[i] = (float)(product[i] * *(double *)a[2]);
}
static void fetch(void **a)
{
    CUDA_RESOURCE_DESC *texture = *(CUDA_RESOURCE_DESC **)a[0];
    const char *image = (const char *)texture->res.pitch2D.devPtr;
    float w = **(float **)a[1], *y = *(float **)a[2];
    for (size_t row = 0; row < texture->res.pitch2D.height; ++row)
        for (size_t column = 0; column < texture->res.pitch2D.width; ++column)
            *y++ = ((const float *)(image + row * texture->res.pitch2D.pitchInBytes))[column] * w;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
                        unsigned int bz, unsigned int shared, CUstream stream, void **arguments, void **extra)
{
    const char *name = (const char *)function;
    (void)stream, (void)extra;
    if (!strcmp(name, "multiply"))
        multiply(arguments);
    if (!strcmp(name, "finish"))
        finish(arguments);
    if (!strcmp(name, "fetch"))
        fetch(arguments);
    return say("launch %s %u %u %u %u %u %u %u", name, gx, gy, gz, bx, by, bz, shared);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)
{
    const CUlaunchAttribute *cluster = config->attrs;
    if (config->numAttrs != 1 || cluster->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        return CUDA_ERROR_INVALID_VALUE;
    say("cluster %u %u %u", cluster->value.clusterDim.x, cluster->value.clusterDim.y, cluster->value.clusterDim.z);
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY,
                          config->blockDimZ, config->sharedMemBytes, config->hStream, arguments, extra);
}
