"""Targets: limits from NVIDIA's table of compute capabilities, names, look-ups and the recognition of a GPU."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from convgen import target as module
from convgen.errors import DeviceError, UsageError
from convgen.target import DEFAULT_TARGET, Rates, Target, compute_capability, presets

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": shared memory of an SM and a block in
# KB, threads and blocks of an SM.
GUIDE = {
    "t4": (64, 64, 1024, 16),
    "a100": (164, 163, 2048, 32),
    "a10": (100, 99, 1536, 16),
    "orin": (164, 163, 1536, 16),
    "l4": (100, 99, 1536, 24),
    "h200": (228, 227, 2048, 32),
    "b200": (228, 227, 2048, 32),
    "rtx5090": (100, 99, 1536, 24),
}


@pytest.mark.parametrize(("name", "limits"), GUIDE.items())
def test_limits_are_those_of_the_programming_guide(name: str, limits: tuple[int, int, int, int]) -> None:
    t = Target.preset(name)
    assert (t.shared_per_sm >> 10, t.shared_per_block >> 10, t.max_threads_per_sm, t.max_blocks_per_sm) == limits
    assert (t.registers_per_sm, t.max_registers_per_thread, t.max_threads_per_block) == (65536, 255, 1024)
    assert (t.constant_bytes, t.warp) == (65536, 32)


@pytest.mark.parametrize("t", presets().values(), ids=lambda t: t.name)
def test_data_sheet_fp32_is_two_flops_a_core_and_clock(t: Target) -> None:
    cores = {(7, 5): 64, (8, 0): 64}.get(t.compute_capability, 128)
    assert t.peak.fp32 == pytest.approx(2 * cores * t.sm_count * t.clock_hz, rel=0.02)


@pytest.mark.parametrize("t", presets().values(), ids=lambda t: t.name)
def test_nothing_attains_more_than_its_peak(t: Target) -> None:
    for field in dataclasses.fields(Rates):
        assert getattr(t.attainable, field.name) <= getattr(t.peak, field.name)


def test_the_h200_carries_measured_rates() -> None:
    t = Target.preset(DEFAULT_TARGET)
    assert (t.name, t.arch, t.sm_count, t.measured) == ("h200", "sm_90a", 132, True)
    assert t.attainable.bandwidth == 4.21e12
    assert [t.attainable.of(d) for d in ("bf16", "fp16", "tf32", "fp32")] == [755e12, 729e12, 396e12, 50.2e12]
    assert t.fp32_flops == pytest.approx(67e12, rel=0.01)
    assert t.bandwidth == 4.8e12


def test_a_dtype_without_tensor_cores_runs_at_the_fma_rate() -> None:
    t4 = Target.preset("t4")
    assert t4.peak.of("bf16") == t4.peak.of("tf32") == t4.peak.fp32
    assert t4.peak.of("uint8") == t4.peak.int8
    with pytest.raises(UsageError, match="fp64"):
        t4.peak.of("fp64")


def test_lookup_by_name_and_arch() -> None:
    assert Target.preset("H200") is Target.preset("h200")
    assert Target.for_arch("sm_86").name == "a10"
    assert Target.for_arch("sm_90").arch == "sm_90"
    assert Target.for_arch("sm_90").sm_count == Target.for_arch("sm_90a").sm_count
    with pytest.raises(UsageError, match=r"'v100'.*h200.*t4"):
        Target.preset("v100")
    assert Target.for_arch("sm_120f").arch == "sm_120f"
    with pytest.raises(
        UsageError, match=r"sm_75, sm_80, sm_86, sm_87, sm_89, sm_90, sm_90a, sm_100, sm_100a, sm_100f,"
    ):
        Target.for_arch("sm_999")
    for arch in ("sm_75a", "sm_90f", "sm_70", "90", "sm_", "compute_90"):
        with pytest.raises(UsageError, match="sm_75"):
            Target.for_arch(arch)


@pytest.mark.parametrize(
    ("arch", "expected"), [("sm_75", (7, 5)), ("sm_90a", (9, 0)), ("sm_100a", (10, 0)), ("sm_121", (12, 1))]
)
def test_compute_capability(arch: str, expected: tuple[int, int]) -> None:
    assert compute_capability(arch) == expected


@pytest.mark.parametrize(
    ("reported", "capability", "sms", "name"),
    [
        ("NVIDIA H200", (9, 0), 132, "h200"),
        ("NVIDIA H100 80GB HBM3", (9, 0), 132, "h100"),
        ("NVIDIA A100-SXM4-80GB", (8, 0), 108, "a100"),
        ("NVIDIA GeForce RTX 4090", (8, 9), 128, "rtx4090"),
        ("NVIDIA L40S", (8, 9), 142, "l40s"),
        ("Tesla T4", (7, 5), 40, "t4"),
    ],
)
def test_a_known_gpu_is_recognised(reported: str, capability: tuple[int, int], sms: int, name: str) -> None:
    assert module._recognise(reported, capability, sms, 1e9) == Target.preset(name)


def test_an_unknown_gpu_is_scaled_from_its_architecture() -> None:
    pcie = module._recognise("NVIDIA H100 PCIe", (9, 0), 114, 1.755e9)
    assert (pcie.name, pcie.arch, pcie.sm_count, pcie.measured) == ("nvidia-h100-pcie", "sm_90a", 114, False)
    assert pcie.peak.fp32 == pytest.approx(114 * 128 * 2 * 1.755e9, rel=0.01)
    newer = module._recognise("NVIDIA GB10", (12, 1), 48, 2.4e9)
    assert (newer.arch, newer.shared_per_block) == ("sm_121", 99 << 10)
    with pytest.raises(DeviceError, match=r"7\.0"):
        module._recognise("Tesla V100", (7, 0), 80, 1.5e9)


def test_targets_are_hashable_values() -> None:
    assert len({*presets().values(), dataclasses.replace(Target.preset("l4"))}) == len(presets())


def test_importing_targets_imports_no_cuda() -> None:
    code = "import sys, convgen.target; print([m for m in ('cupy', 'cuda', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.gpu
def test_the_current_gpu() -> None:
    t = Target.current()
    assert t.compute_capability >= (7, 5)
    assert t.shared_per_block <= t.shared_per_sm
    if t.name in presets():
        assert t == Target.preset(t.name)
