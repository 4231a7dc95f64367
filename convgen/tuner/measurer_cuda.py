"""Measuring on a GPU: every build verified against float64, then timed on rotating buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from convgen.errors import DeviceError
from convgen.measure import BufferSets, Replay, Rounds, SharedWorkspace, Stage, Timing, adaptive, repeat
from convgen.plan import Numerics
from convgen.problem import Problem
from convgen.processes import Announce
from convgen.runtime.cuda import CudaProgram, load
from convgen.runtime.nvml import Nvml
from convgen.target import Target
from convgen.tuner.builder import Build
from convgen.tuner.cuda_faults import CudaFault, classified
from convgen.tuner.measurer import Finals, Info, Verdict
from convgen.tuner.outcome import Outcome, refusal
from convgen.verify import Settings
from convgen.verify import cuda as verify
from convgen.verify.oracle import Oracle, Oracles, input_kinds

FINALS_SECONDS = 5.0
LEAST_FINALS = 7
"""Where so many rounds as were asked for would take longer than that, there are fewer, but at least so many."""


class CudaMeasurer:
    """See `Measurer`. Holds the only CUDA context there is, on one device, and does all its work on one stream.

    Raises DeviceError if there is no GPU or CuPy.
    """

    def __init__(self, target: Target, device: int) -> None:
        self._xp = xp = verify.array_module()
        self._target = target
        self._device = xp.cuda.Device(device)
        self._device.use()
        self._stream = xp.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._nvml = Nvml(self._device.pci_bus_id)
        self._sets: BufferSets | None = None
        self._oracles: Oracles | None = None

    def start(self, problem: Problem, seed: int) -> None:
        xp = self._xp
        self._sets = self._oracles = None
        xp.get_default_memory_pool().free_all_blocks()
        self._settings = Settings(self._target, "cuda", seed)
        self._oracles = Oracles(self._settings, xp)
        self._oracles.prepare(problem, verify.is_whole)
        self._kind, *_ = input_kinds(problem, self._settings)
        oracle = self._oracles.of(problem, self._kind)
        self._sets = BufferSets(oracle.problem, oracle.arrays, self._target.l2_bytes, xp)
        if int(xp.arange(1000).sum()) != 499500:
            raise DeviceError(f"{self._target.name} does not add up: the GPU or its driver is broken")

    def measure(self, build: Build, incumbent: float | None, announce: Announce) -> Verdict:
        assert build.plan is not None
        assert build.binary is not None
        assert self._oracles is not None
        try:
            with load(build.plan, build.binary) as program:
                result = verify.verify_program(program, self._settings, self._oracles, announce)
                if result.status != "ok":
                    # It may have written anywhere: what the next one is held against can no longer be trusted.
                    return Verdict(refusal(result, build.source_key), trusted=False)
                found = self._timed(program, incumbent, announce)
            if isinstance(found, str):
                return Verdict(Outcome("wrong_result", found, source_key=build.source_key), trusted=False)
            timing, stage = found
            outcome = Outcome("ok", "", timing, stage, result.max_error, result.bound, build.source_key)
            return Verdict(outcome)
        except Exception as error:
            fault = self._after(error)
            return Verdict(Outcome(fault.status, fault.reason, source_key=build.source_key), fault.trusted)
        finally:
            self._let_go()

    def finals(self, builds: Sequence[Build], rounds: int, announce: Announce) -> Finals:
        seconds: list[list[float]] = [[] for _ in builds]
        workspace = SharedWorkspace()
        replays: dict[str, Replay] = {}
        try:
            with ExitStack() as programs:
                for position, build in enumerate(builds):
                    assert build.plan is not None
                    assert build.binary is not None
                    announce("load")
                    program = programs.enter_context(load(build.plan, build.binary))
                    run = self._run_on(program, workspace)
                    try:
                        run(0)
                        announce("run")
                        self._stream.synchronize()
                        announce("time")
                        replays[str(position)], _ = repeat(self._stream, run, self._count)
                    except Exception as error:
                        if not self._after(error).trusted:
                            raise
                if replays:
                    self._interleaved(replays, rounds, seconds, announce)
                replays.clear()  # the graphs go before the code that they run
        except Exception as error:
            self._after(error)
            return Finals([[] for _ in builds], trusted=False)
        finally:
            self._let_go()
        return Finals(seconds)

    def info(self) -> Info:
        runtime = self._xp.cuda.runtime
        number = runtime.runtimeGetVersion()
        clocks = self._nvml.reading() or {}
        return Info(
            device=runtime.getDeviceProperties(self._device.id)["name"].decode(),
            driver=self._nvml.driver or "",
            cuda=f"{number // 1000}.{number % 1000 // 10}",
            sm_mhz=clocks.get("sm_mhz"),
            celsius=clocks.get("celsius"),
        )

    # --- timing -----------------------------------------------------------------------------------------

    @property
    def _count(self) -> int:
        assert self._sets is not None
        return len(self._sets)

    def _run_on(self, program: CudaProgram, workspace: SharedWorkspace) -> Callable[[int], None]:
        sets = self._sets
        assert sets is not None

        def run(index: int) -> None:
            with workspace.one_call():
                program.run(sets.inputs[index], sets.outputs[index], stream=self._stream)

        return run

    def _timed(self, program: CudaProgram, incumbent: float | None, announce: Announce) -> tuple[Timing, Stage] | str:
        """The time and its stage; or why the answer was wrong after all."""
        announce("time")
        run = self._run_on(program, SharedWorkspace())
        replay, known = repeat(self._stream, run, self._count)
        rounds = Rounds(self._stream, {"": replay})

        def next_round() -> float:
            announce("time")
            return rounds.next()[""]

        timing, stage = adaptive(next_round, incumbent, replay.seconds * replay.repetitions, known)
        wrong = self._wrong_after(program.plan.numerics, run, announce) if stage == "confirm" else ""
        return wrong or (timing, stage)

    def _wrong_after(self, numerics: Numerics, run: Callable[[int], None], announce: Announce) -> str:
        """What is wrong with one more run, now that there were many: what they left behind must not matter."""
        assert self._sets is not None
        last = self._count - 1
        self._sets.refill(last)
        run(last)
        announce("run")
        self._stream.synchronize()
        announce("verify")
        oracle = self._oracle
        comparison = verify.judge(oracle, numerics, self._sets.outputs[last], self._settings.seed)
        return "" if comparison.ok else f"wrong when run again: {comparison.report()}"

    def _interleaved(
        self, replays: dict[str, Replay], rounds: int, seconds: list[list[float]], announce: Announce
    ) -> None:
        session = Rounds(self._stream, replays)
        together = sum(replay.seconds * replay.repetitions for replay in replays.values())
        affordable = max(LEAST_FINALS, int(FINALS_SECONDS / max(together, 1e-9)))
        for number in range(min(rounds, affordable) + 1):
            announce("time")
            for position, value in session.next().items():
                if number > 0:  # the first warms up
                    seconds[int(position)].append(value)

    # --- what is left behind ------------------------------------------------------------------------------

    @property
    def _oracle(self) -> Oracle:
        assert self._oracles is not None
        assert self._sets is not None
        return self._oracles.of(self._sets.problem, self._kind)

    def _after(self, error: Exception) -> CudaFault:
        """What an error was, and whether the context has survived it."""
        fault = classified(error)
        try:
            self._stream.synchronize()
        except Exception as later:
            return classified(later) if fault.trusted else fault
        return fault

    def _let_go(self) -> None:
        with contextlib.suppress(Exception):  # of a context that is lost, which is known by now
            self._xp.get_default_memory_pool().free_all_blocks()
