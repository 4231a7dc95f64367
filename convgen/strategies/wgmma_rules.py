"""The rules that configs of a product of patches keep, beside those of its block."""

from __future__ import annotations

from convgen.errors import ConfigError
from convgen.plan import MAX_CLUSTER
from convgen.strategies import rules, wgmma_block
from convgen.strategies.wgmma_patches import Patches
from convgen.target import Target
from convgen.tensor_map import MAX_BOX

MAX_SPLITS = 64
MAX_PARTIAL_BYTES = 1 << 30


def check(t: Patches, most_positions: int, target: Target) -> None:
    """Of a tiling whose warpgroups, channels and ways of pixels are legal: its stages, registers, parts and memory."""
    c = t.c
    if c.patches == "im2col" and t.positions > MAX_BOX:
        raise ConfigError(f"a tile of {t.positions} positions: patches=im2col loads at most {MAX_BOX} at once")
    if t.resident and c.parts > 1:
        raise ConfigError(f"w_stages={c.w_stages}: all tiles of w stay, those of {c.parts} parts of the sums do not")
    if c.x_stages < 2 and t.panels > 1:
        raise ConfigError("x_stages=1: expected at least 2, one is filled while another is multiplied")
    wgmma_block.check_stages(t)
    limit = c.registers[1]
    if t.registers > limit:
        raise ConfigError(f"{t.sums} sums of a thread and what goes with them take about {t.registers} registers, "
                          f"with {c.consumers} consumers a thread has {limit}")  # fmt: skip
    wgmma_block.check_instruction(c)
    _check_parts(t, target)
    rules.shared_fits("stages and results take", t.shared_bytes, target)
    wgmma_block.check_counts(t, most_positions)


def _check_parts(t: Patches, target: Target) -> None:
    c = t.c
    if c.cluster > 1 and c.split_k > 1:
        raise ConfigError(f"cluster={c.cluster} split_k={c.split_k}: sums are split in one of the ways")
    if c.cluster > MAX_CLUSTER:
        raise ConfigError(f"cluster={c.cluster}: a cluster has at most {MAX_CLUSTER} blocks")
    if c.split_k > MAX_SPLITS:
        raise ConfigError(f"split_k={c.split_k}: at most {MAX_SPLITS}, every part is written and read once more")
    if t.panels_of_part * (c.parts - 1) >= t.panels:
        way = f"cluster={c.cluster}" if c.cluster > 1 else f"split_k={c.split_k}"
        raise ConfigError(f"{way}: {t.panels} panels leave a part with none")
    if c.split_k > 1:
        _check_split(t, target)
    if c.cluster > 1:
        _check_cluster(t)


def _check_split(t: Patches, target: Target) -> None:
    split = t.c.split_k
    if t.g.batch is None:
        raise ConfigError(f"split_k={split}: which sums are split goes with the batch, and with it what an image's "
                          "results are rounded to; a batch known at run time has split_k=1")  # fmt: skip
    tiles = t.split_tiles(t.g.batch, target)
    if not tiles:
        raise ConfigError(f"split_k={split}: {t.tiles(t.g.batch_size)} tiles leave none of {target.sm_count} "
                          "multiprocessors idle")  # fmt: skip
    if split * tiles * t.part_bytes > MAX_PARTIAL_BYTES:
        raise ConfigError(f"split_k={split}: partial results of {split * tiles * t.part_bytes} bytes, more than "
                          f"{MAX_PARTIAL_BYTES}")  # fmt: skip


def _check_cluster(t: Patches) -> None:
    c = t.c
    if c.sharing != c.consumers:
        raise ConfigError(f"cluster={c.cluster} sharing={c.sharing}: a block of a cluster has one tile, so "
                          f"expected all {c.consumers} consumers")  # fmt: skip
    if t.g.batch is None:
        raise ConfigError(f"cluster={c.cluster}: a grid of a block for each part goes with the batch; a batch "
                          "known at run time has cluster=1")  # fmt: skip
    if t.cluster_bytes > t.staging_at:
        raise ConfigError(f"cluster={c.cluster}: a block's part of the sums has {t.cluster_bytes} bytes, the "
                          f"stages where it is left have {t.staging_at}")  # fmt: skip
