"""NVRTC without a GPU: every architecture, errors a person can act on, and the cache in front."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from convgen import compiler as module
from convgen.cache import DiskCache
from convgen.compiler import Binary, Job, compile_cuda, compile_many, header_directory, nvrtc_version
from convgen.errors import CompileError, DeviceError, UsageError
from convgen.target import Target

pytest.importorskip("cuda.bindings.nvrtc")

SOURCE = (Path(__file__).parent / "cuda_sources" / "resources.cu").read_text(encoding="utf-8")
KERNELS = {"plain_half", "static_shared", "indexed_array", "spilling", "unbounded"}


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100"])
def test_every_architecture_compiles_without_a_gpu(arch: str, cache: DiskCache) -> None:
    binary = compile_cuda(SOURCE, arch, cache=cache)
    assert {kernel.name for kernel in binary.kernels} == KERNELS
    assert binary.cubin[:4] == b"\x7fELF"
    assert int.from_bytes(binary.cubin[18:20], "little") == 190  # EM_CUDA
    assert f".target {arch}" in binary.ptx
    assert not binary.cached


def test_a_target_stands_for_its_arch(cache: DiskCache) -> None:
    assert compile_cuda(SOURCE, Target.preset("l4"), cache=cache).arch == "sm_89"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ("NVRTC_ERROR_OUT_OF_MEMORY", r"convgen\.cu: NVRTC has too little memory"),
        ("NVRTC_ERROR_BUILTIN_OPERATION_FAILURE", r"NVRTC cannot load its own library of builtins: pip install"),
    ],
)
def test_what_nvrtc_lacks_is_not_the_sources_fault(
    result: str, said: str, cache: DiskCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvrtc = types.SimpleNamespace(**vars(module._nvrtc()))
    nvrtc.nvrtcCompileProgram = lambda *_: (getattr(nvrtc.nvrtcResult, result),)
    monkeypatch.setattr(module, "_nvrtc", lambda: nvrtc)
    with pytest.raises(DeviceError, match=said):
        compile_cuda(SOURCE, "sm_80", cache=cache)


def test_the_second_compile_is_a_hit_with_equal_contents(cache: DiskCache) -> None:
    first = compile_cuda(SOURCE, "sm_80", cache=cache)
    second = compile_cuda(SOURCE, "sm_80", cache=cache)
    assert second.cached
    assert (second.cubin, second.ptx, second.log) == (first.cubin, first.ptx, first.log)
    assert (second.kernels, second.key, second.arch) == (first.kernels, first.key, first.arch)


def test_whatever_changes_the_cubin_changes_the_key(cache: DiskCache) -> None:
    base = compile_cuda(SOURCE, "sm_80", cache=cache).key
    others = [
        compile_cuda(SOURCE + "\n", "sm_80", cache=cache).key,
        compile_cuda(SOURCE, "sm_86", cache=cache).key,
        compile_cuda(SOURCE, "sm_80", ["--maxrregcount=64"], cache=cache).key,
        compile_cuda(SOURCE, "sm_80", name="other.cu", cache=cache).key,
    ]
    assert len({base, *others}) == 5


def test_the_headers_are_part_of_the_key(cache: DiskCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def digest(directory: Path) -> str:
        monkeypatch.setattr(module, "header_directory", lambda: directory)
        module._digest_of.cache_clear()
        return module._header_digest("#include <cuda_fp16.h>\n")

    for name, text in (("old", "1"), ("new", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cuda_fp16.h").write_text(text)
    old, new = digest(tmp_path / "old"), digest(tmp_path / "new")
    module._digest_of.cache_clear()
    assert old != new
    assert module._header_digest("int x;") == ""


def test_damaged_and_foreign_entries_are_compiled_again(cache: DiskCache) -> None:
    first = compile_cuda(SOURCE, "sm_80", cache=cache)
    cache.path(first.key).write_bytes(b"garbage")
    assert not compile_cuda(SOURCE, "sm_80", cache=cache).cached
    cache.put(first.key, b'{"cubin": 3, "kernels": [], "unheard": 1}\0abc')
    assert not compile_cuda(SOURCE, "sm_80", cache=cache).cached
    assert compile_cuda(SOURCE, "sm_80", cache=cache).cached


def test_equal_keys_give_equal_bytes_from_any_folder(tmp_path: Path) -> None:
    code = (
        "import sys, hashlib; from pathlib import Path; from convgen.compiler import compile_cuda; "
        "from convgen.cache import DiskCache; "
        "b = compile_cuda(Path(sys.argv[1]).read_text(), 'sm_80', cache=DiskCache(Path('cache').absolute())); "
        "print(b.cached, b.key, hashlib.sha256(b.cubin).hexdigest())"
    )
    source = Path(__file__).parent / "cuda_sources" / "resources.cu"
    root = str(Path(__file__).resolve().parents[1])
    answers = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", code, str(source)],
            cwd=tmp_path / folder,
            env={**os.environ, "PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(done.stdout)
    assert answers[0].startswith("False ")
    assert answers[0] == answers[1]


def test_a_refused_source_is_shown_with_its_surroundings(cache: DiskCache) -> None:
    source = 'extern "C" __global__ void f(float* y) {\n    float a = 1;\n    y[0] = b;\n    y[1] = a;\n}\n'
    with pytest.raises(CompileError) as caught:
        compile_cuda(source, "sm_80", name="broken.cu", cache=cache)
    message = str(caught.value)
    assert 'broken.cu(3): error: identifier "b" is undefined' in message
    assert ">    3 |     y[0] = b;" in message
    assert "     2 |     float a = 1;" in message
    assert "/convgen/" not in message
    assert "ptxas info" not in message


def test_a_kernel_over_the_shared_memory_limit_is_refused_with_its_name(cache: DiskCache) -> None:
    source = (
        'extern "C" __global__ void huge(float* y) {\n    __shared__ float t[80000];\n'
        "    t[threadIdx.x] = y[0];\n    y[threadIdx.x] = t[threadIdx.x ^ 1];\n}\n"
    )
    with pytest.raises(CompileError, match=r"(?s)sm_90a.*huge.*shared"):
        compile_cuda(source, "sm_90a", cache=cache)


@pytest.mark.parametrize("arch", ["sm_70", "sm_90b", "90", "sm_999"])
def test_an_unknown_arch_is_named_with_those_there_are(arch: str, cache: DiskCache) -> None:
    with pytest.raises(UsageError, match=rf"{arch}.*sm_75.*sm_90"):
        compile_cuda(SOURCE, arch, cache=cache)


def test_an_unknown_option_is_named(cache: DiskCache) -> None:
    with pytest.raises(UsageError, match="--no-such-option"):
        compile_cuda(SOURCE, "sm_80", ["--no-such-option"], cache=cache)


def test_a_failure_is_not_cached(cache: DiskCache) -> None:
    with pytest.raises(CompileError):
        compile_cuda("nonsense", "sm_80", cache=cache)
    assert cache.total_bytes() == 0


def test_many_sources_at_once_in_order_with_errors_as_results(cache: DiskCache) -> None:
    template = 'extern "C" __global__ void k{0}(float* y) {{ y[0] = {0}; }}'
    jobs = [Job(template.format(i), "sm_80") for i in range(6)]
    jobs.insert(3, Job("nonsense", "sm_80"))
    results = compile_many(jobs, workers=2, cache=cache)
    assert isinstance(results.pop(3), CompileError)
    assert [r.kernels[0].name for r in results if isinstance(r, Binary)] == [f"k{i}" for i in range(6)]


def test_missing_nvrtc_names_the_extra(monkeypatch: pytest.MonkeyPatch, cache: DiskCache) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc_version.cache_clear()
    try:
        with pytest.raises(DeviceError, match=r"convgen\[cuda13\]"):
            compile_cuda(SOURCE, "sm_80", cache=cache)
    finally:
        nvrtc_version.cache_clear()


def test_missing_headers_name_the_extra(monkeypatch: pytest.MonkeyPatch, cache: DiskCache) -> None:
    monkeypatch.setattr(module, "header_directory", lambda: None)
    module._digest_of.cache_clear()
    with pytest.raises(DeviceError, match=r"cuda_fp16\.h.*convgen\[cuda13\]"):
        compile_cuda(SOURCE, "sm_80", cache=cache)


def test_headers_are_found() -> None:
    directory = header_directory()
    assert directory is not None
    assert (directory / "cuda_bf16.h").is_file()
