// Texture reads: point sampling, unnormalised coordinates, zero outside.
#pragma once

#include "../include/convgen_sim_half.h"
#include "hooks.h"

extern "C" float convgen_sim_texture(unsigned long long handle, float x, float y) {
    Worker* w = this_worker();
    const Texture& texture = w->launch->textures[handle - 1];
    const float column = __builtin_floorf(x), row = __builtin_floorf(y);
    if (!(column >= 0 && row >= 0 && column < static_cast<float>(texture.width) && row < static_cast<float>(texture.height)))
        return 0.0f;
    const uint32_t bytes = texture.is_half ? 2 : 4;
    const uint64_t address = texture.base + static_cast<uint64_t>(row) * texture.pitch + static_cast<uint64_t>(column) * bytes;
    if (w->launch->check) {
        const Buffer& buffer = w->launch->buffers[texture.buffer];
        if (buffer.touched) buffer.touched[(address - buffer.base) >> buffer.granule_bits] = 1;
        count(w, w->current, Touch{address, image_offset(CALLER), bytes, false, false}, kTexture);
    }
    if (!texture.is_half) return *reinterpret_cast<const float*>(address);
    return convgen_sim_half_to_float(*reinterpret_cast<const uint16_t*>(address));
}
