"""Thread block clusters on the simulator: what blocks exchange is right, planted faults found and named."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from device_cases import fault_at, library, marked, unit
from test_simulator import compiler as compiler  # a fixture
from test_simulator import launch

from convgen.compiler import compile_cuda
from convgen.errors import SimulatorFault
from convgen.simulator import FaultKind, Mode, Report

FILE = "clusters.cu"
HEADERS = ("shared", "shared_address", "mbarrier", "fence", "vector", "cluster", "cluster_mbarrier")
SHARED, STEPS = 1024, 7
Triple = tuple[int, int, int]


def inputs(blocks: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(blocks).integers(-1000, 1000, max(blocks, STEPS) * 64).astype(np.int32)


def run(
    name: str, mode: Mode, compiler: str, grid: Triple = (2, 1, 1), cluster: Triple = (2, 1, 1), **options: Any
) -> tuple[Report, npt.NDArray[np.int32]]:
    """Report and y, a row a block in linear order."""
    blocks = int(np.prod(grid))
    arguments = {"x": inputs(blocks), "y": (blocks * 64, np.int32), "steps": STEPS}
    built = library(FILE, HEADERS, mode, compiler)
    report, out = launch(built, name, grid, (64,), arguments, shared=SHARED, cluster=cluster, **options)
    return report, out["y"].reshape(blocks, 64)


def by_rank(grid: Triple, cluster: Triple) -> npt.NDArray[np.int64]:
    """Linear indices of the blocks of each cluster, a row a cluster, by rank: x runs fastest in both."""
    blocks = np.arange(np.prod(grid)).reshape(grid[::-1])
    x, y, z = cluster
    split = blocks.reshape(grid[2] // z, z, grid[1] // y, y, grid[0] // x, x)
    return split.transpose(0, 2, 4, 1, 3, 5).reshape(-1, x * y * z)


SHAPES = [
    ((2, 1, 1), (1, 1, 1)),
    ((4, 1, 1), (2, 1, 1)),
    ((4, 2, 1), (1, 2, 1)),
    ((4, 4, 1), (2, 2, 1)),
    ((3, 2, 4), (3, 1, 2)),
    ((8, 1, 2), (8, 1, 1)),
]


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("grid", "cluster"), SHAPES)
def test_ranks_run_along_x_first(grid: Triple, cluster: Triple, mode: Mode, compiler: str) -> None:
    report, got = run("ranks", mode, compiler, grid, cluster)
    for blocks in by_rank(grid, cluster):
        for rank, block in enumerate(blocks):
            assert (got[block] == rank * 100 + np.prod(cluster)).all()
    assert report.faults == ()
    assert report.blocks_run == report.blocks == np.prod(grid)


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("grid", "cluster"), SHAPES)
@pytest.mark.parametrize("name", ["pull", "pull_packs", "push", "some_end", "some_come_and_end"])
def test_blocks_reach_the_tile_of_the_next(name: str, grid: Triple, cluster: Triple, mode: Mode, compiler: str) -> None:
    report, got = run(name, mode, compiler, grid, cluster)
    x = inputs(len(got))[: len(got) * 64].reshape(-1, 64)
    for blocks in by_rank(grid, cluster):
        following = np.roll(blocks, -1)
        if name == "pull":
            np.testing.assert_array_equal(got[blocks], x[following][:, ::-1])
        elif name == "pull_packs":
            expected = x[following].reshape(-1, 16, 4)[:, ::-1].reshape(-1, 64)
            np.testing.assert_array_equal(got[blocks], expected - x[blocks])
        elif name == "push":
            np.testing.assert_array_equal(got[following], x[blocks][:, ::-1])
        else:
            np.testing.assert_array_equal(got[blocks, :32], x[following, :32])
    assert report.faults == ()


@pytest.mark.parametrize("mode", Mode)
def test_atomics_reach_another_block(mode: Mode, compiler: str) -> None:
    report, got = run("adds", mode, compiler, (8, 1, 1), (4, 1, 1))
    sums = inputs(8)[: 8 * 64].reshape(2, -1).sum(axis=1)
    np.testing.assert_array_equal(got[::4], np.repeat(sums, 64).reshape(2, 64))
    assert report.faults == ()


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("name", "steps"), [("ring", STEPS), ("one_releases", 1)])
def test_a_block_fills_the_memory_of_another(name: str, steps: int, mode: Mode, compiler: str) -> None:
    report, got = run(name, mode, compiler)
    np.testing.assert_array_equal(got[1], inputs(2).reshape(-1, 64)[:steps].sum(axis=0)[::-1])
    assert report.faults == ()


@pytest.mark.parametrize("mode", Mode)
def test_an_element_is_read_by_all_and_written_again(mode: Mode, compiler: str) -> None:
    report, got = run("read_and_written", mode, compiler)
    np.testing.assert_array_equal(got, np.repeat(inputs(2).reshape(-1, 64)[[1, 0], 5:6], 64, axis=1))
    assert report.faults == ()


@pytest.mark.parametrize("mode", Mode)
def test_a_block_knows_what_it_wrote_to_another(mode: Mode, compiler: str) -> None:
    report, got = run("tells_its_own_block", mode, compiler)
    np.testing.assert_array_equal(got, inputs(2).reshape(-1, 64)[:2, ::-1])
    assert report.faults == ()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_clusters_are_shared_among_workers(workers: int, compiler: str) -> None:
    report, got = run("pull", Mode.CHECK, compiler, (12, 1, 1), (2, 1, 1), workers=workers)
    x = inputs(12).reshape(6, 2, 64)
    np.testing.assert_array_equal(got.reshape(6, 2, 64), x[:, ::-1, ::-1])
    assert report.faults == ()


def test_a_sample_of_blocks_takes_their_clusters_along(compiler: str) -> None:
    """Blocks 3, 6 and 9 of 4 x 4 in clusters of 2 x 2: the clusters of 2, 3, 6, 7 and of 8, 9, 12, 13."""
    report, got = run("ranks", Mode.CHECK, compiler, (4, 4, 1), (2, 2, 1), blocks=[3, 6, 9])
    assert sorted(np.flatnonzero((got != -1).all(axis=1))) == [2, 3, 6, 7, 8, 9, 12, 13]
    assert (report.blocks_run, report.blocks) == (8, 16)


def test_launches_with_and_without_clusters_take_turns(compiler: str) -> None:
    for cluster in ((8, 1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 1, 1)):
        report, got = run("pull", Mode.CHECK, compiler, (8, 1, 1), cluster)
        assert report.faults == ()
        for blocks in by_rank((8, 1, 1), cluster):
            np.testing.assert_array_equal(got[blocks], inputs(8).reshape(8, 64)[np.roll(blocks, -1)][:, ::-1])


FAULTS = [
    (
        "no_sync_before",
        "too early",
        FaultKind.UNINITIALISED,
        "read of 4 bytes at shared memory offset 252 of 1024 of rank 1",
    ),
    (
        "no_sync_before",
        "too early",
        FaultKind.RACE,
        "read of 4 bytes at shared memory offset 252 of 1024 of rank 0, which thread 63 of rank 0 accessed with no",
    ),
    ("no_sync_before", "too early", FaultKind.CLUSTER, "the block of rank 1 may not have started"),
    ("block_sync_before", "too early", FaultKind.RACE, "read of 4 bytes at shared memory offset 252 of 1024 of rank 1"),
    ("pushes_before_start", "misuse", FaultKind.CLUSTER, "the block of rank 1 may not have started"),
    ("ends_too_early", "misuse", FaultKind.CLUSTER, "the block of rank 1 may have ended before this access"),
    ("past_the_window", "out", FaultKind.OUT_OF_BOUNDS, "read of 4 bytes at shared memory offset 1024 of 1024 of rank"),
    ("no_such_rank", "misuse", FaultKind.CLUSTER, "rank 2 of a cluster of 2 blocks"),
    ("arrives_twice", "misuse", FaultKind.CLUSTER, "cluster_arrive a second time"),
    ("waits_unarrived", "misuse", FaultKind.CLUSTER, "cluster_wait without a cluster_arrive before it"),
    ("no_mbarrier_there", "misuse", FaultKind.MBARRIER, "no mbarrier at shared memory offset 512 of rank 1"),
    (
        "initialised_meanwhile",
        "misuse",
        FaultKind.MBARRIER,
        "the initialisation of the mbarrier at shared memory offset 512 of rank 0 by another thread",
    ),
    ("ends_before_the_ring", "misuse", FaultKind.CLUSTER, "the block of rank 0 may have ended before this access"),
]


@pytest.mark.parametrize(("name", "mark", "kind", "detail"), FAULTS, ids=[f"{f[0]}-{f[2].name}" for f in FAULTS])
def test_planted_faults_are_found_and_named(name: str, mark: str, kind: FaultKind, detail: str, compiler: str) -> None:
    report, _ = run(name, Mode.CHECK, compiler)
    assert fault_at(report, kind, marked(unit(FILE, HEADERS), name, f"MARK {mark}")).detail.startswith(detail)


@pytest.mark.parametrize(
    ("name", "function", "mark", "detail"),
    [
        ("written_again", "read_by_all", "AGAIN", "write of 4 bytes at shared memory offset 20 of 1024 of rank 0, "),
        ("not_released", "consume", "DRAIN", "read of 4 bytes at shared memory offset 252 of 1024 of rank 1, "),
        ("given_back_too_early", "produce", "FILL", "write of 4 bytes at shared memory offset "),
    ],
)
def test_races_in_spite_of_mbarriers_are_found(name: str, function: str, mark: str, detail: str, compiler: str) -> None:
    report, _ = run(name, Mode.CHECK, compiler)
    assert {fault.kind for fault in report.faults} == {FaultKind.RACE}
    lines = {line for fault in report.faults for line in fault.lines}
    assert marked(unit(FILE, HEADERS), function, mark) in lines
    assert any(fault.detail.startswith(detail) for fault in report.faults)


@pytest.mark.parametrize("mode", [Mode.FAST, Mode.CHECK])
def test_a_deadlock_tells_how_every_block_stands(mode: Mode, compiler: str) -> None:
    report, _ = run("waits_for_each_other", mode, compiler)
    states = "; ".join(
        f"mbarrier at {512 + 8 * place} of rank {rank}: "
        + ("phase 1, 64 of 64" if (rank, place) == (1, 1) else "phase 0, 64 of 64")
        + " arrivals and 0 bytes pending"
        for rank in (0, 1)
        for place in (0, 2, 1, 3)
    )
    name = "waits_for_each_other"
    alone = fault_at(report, FaultKind.DEADLOCK, marked(unit(FILE, HEADERS), name, "MARK deadlock"))
    assert alone.detail == (
        "rank 1 of the cluster: waits for parity 0 of the mbarrier at shared memory offset 512 of rank 1, whose phase "
        f"never ends; {states}"
    )
    others = fault_at(report, FaultKind.DEADLOCK, marked(unit(FILE, HEADERS), name, "MARK barrier"))
    assert others.detail == (
        "rank 0 of the cluster: waits at the cluster's barrier, to which 127 of 128 threads have come and 0 have ended "
        f"before; {states}"
    )


def test_launches_that_no_gpu_accepts_are_refused(compiler: str) -> None:
    with pytest.raises(SimulatorFault, match=r"ranks: cluster \(4, 4, 1\), expected 1 to 8 blocks"):
        run("ranks", Mode.FAST, compiler, (4, 4, 1), (4, 4, 1))
    with pytest.raises(SimulatorFault, match=r"ranks: grid \(3, 1, 1\), expected a multiple of the cluster, \(2, 1"):
        run("ranks", Mode.FAST, compiler, (3, 1, 1), (2, 1, 1))


def test_the_wrappers_compile() -> None:
    binary = compile_cuda(unit(FILE, HEADERS).source, "sm_90a")
    for instruction in (
        "%cluster_ctarank",
        "%cluster_nctarank",
        "mapa.u64",
        "barrier.cluster.arrive",
        "barrier.cluster.wait",
        "mbarrier.arrive.shared::cluster.b64",
        "mbarrier.arrive.release.cluster.shared::cluster.b64",
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
    ):
        assert instruction in binary.ptx
