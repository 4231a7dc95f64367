"""Where a plan runs: `cuda` on a GPU, on the caller's arrays; `sim` in the CPU simulator, which reports what it did."""
