"""Options and markers shared by all tests."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from gpu_arrays import Arrays, CupyArrays, TorchArrays


def pytest_configure() -> None:
    # A shell starts what runs in its background deaf to Ctrl-C, and tests that interrupt would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="accept the text that the strategies emit now")
    parser.addoption("--draws", type=int, default=60, help="random problems drawn for each strategy")


def _has_gpu() -> bool:
    try:
        import cupy

        return bool(cupy.cuda.runtime.getDeviceCount())
    except Exception:  # no CuPy, no driver, no device: CuPy has a different error for each
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU"))


@pytest.fixture(scope="session")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="session")
def torch() -> Any:
    module = pytest.importorskip("torch")
    if not module.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return module


@pytest.fixture(params=["cupy", "torch"])
def arrays(request: pytest.FixtureRequest) -> Arrays:
    """Each array library that a GPU is used through."""
    module = request.getfixturevalue(request.param)
    return CupyArrays(module) if request.param == "cupy" else TorchArrays(module)
