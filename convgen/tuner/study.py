"""A task's trials written out as an Optuna study, for optuna-dashboard and Optuna's own analyses."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from convgen.errors import OutputError, UsageError
from convgen.space import Value
from convgen.tuner.quiet import quiet_optuna


class TrialLike(Protocol):
    """What is read of a trial; `tuning_db.Trial` has it."""

    @property
    def strategy(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Value]: ...
    @property
    def status(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def seconds(self) -> float | None: ...
    @property
    def origin(self) -> str: ...


def export_study(trials: Sequence[TrialLike], storage_url: str, name: str) -> None:
    """Write trials, in their order, as a new study `name` in the storage at `storage_url` (`sqlite:///trials.db`).

    Parameters are categories: `strategy`, and `strategy.field` for each field of its configs. Values are microseconds;
    a trial without a time is a failed one. Attributes hold strategy, status, reason and origin. Raises UsageError if
    there is a study of that name or the URL is no storage, OutputError if it cannot be written.
    """
    import optuna

    categories = _categories(trials)
    distributions = {key: optuna.distributions.CategoricalDistribution(c) for key, c in categories.items()}
    states = optuna.trial.TrialState
    frozen = []
    for trial in trials:
        params = _params(trial)
        frozen.append(
            optuna.trial.create_trial(
                state=states.FAIL if trial.seconds is None else states.COMPLETE,
                value=None if trial.seconds is None else trial.seconds * 1e6,
                params=params,
                distributions={key: distributions[key] for key in params},
                user_attrs={
                    "strategy": trial.strategy,
                    "status": trial.status,
                    "reason": trial.reason,
                    "origin": trial.origin,
                },
            )
        )
    with quiet_optuna():
        try:
            study = optuna.create_study(storage=storage_url, study_name=name, direction="minimize")
            study.set_user_attr("unit", "microseconds")
            study.add_trials(frozen)
        except optuna.exceptions.DuplicatedStudyError as error:
            raise UsageError(f"study {name!r}: {storage_url} has one of that name; choose another") from error
        except Exception as error:  # each kind of storage raises errors of its own
            root = _root_of(error)
            if isinstance(root, sqlite3.OperationalError):
                raise OutputError(f"storage {storage_url!r} cannot be written: {root}; choose another") from error
            raise UsageError(
                f"storage {storage_url!r}: {str(error).splitlines()[0]}; expected a URL as sqlite:///trials.db"
            ) from error


def _root_of(error: BaseException) -> BaseException:
    return error if error.__cause__ is None else _root_of(error.__cause__)


def _params(trial: TrialLike) -> dict[str, Value]:
    return {"strategy": trial.strategy} | {f"{trial.strategy}.{key}": value for key, value in trial.config.items()}


def _categories(trials: Sequence[TrialLike]) -> dict[str, list[Value]]:
    """Every value of every parameter, sorted: a study knows one list for all its trials."""
    found: dict[str, dict[Value, None]] = {}
    for trial in trials:
        for key, value in _params(trial).items():
            found.setdefault(key, {})[value] = None
    return {key: sorted(values, key=_order) for key, values in found.items()}


def _order(value: Value) -> tuple[bool, Any]:
    return isinstance(value, str), value
