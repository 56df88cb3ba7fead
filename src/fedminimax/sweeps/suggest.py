"""Optuna as the driver of a sweep: it suggests settings, a batch at a time, and hears how they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedminimax import checks
from fedminimax.errors import InputError
from fedminimax.metrics import LOWER
from fedminimax.sweeps.space import Choice, Distribution, LogUniform, Setting, Uniform

OPTUNA = "optuna"


@dataclass(frozen=True)
class Optuna:
    """Let Optuna (the extra ``optuna``) choose a sweep's samples; each batch is run side by side.

    Args:
        batch: how many settings are suggested before any of them is known.
        sampler: an Optuna sampler; by default its tree-structured Parzen estimator with the sweep's ``search_seed``. A sweep
            with a folder resumes only with a sampler that has a seed.
    """

    batch: int = 8
    sampler: Any = None

    def __post_init__(self) -> None:
        checks.integer("Optuna.batch", self.batch)

    def search(
        self,
        spaces: Mapping[str, Distribution],
        samples: int,
        seed: int,
        better: str,
        scores: Callable[[list[Setting]], np.ndarray],
    ) -> None:
        """Try ``samples`` settings.

        Args:
            spaces: where each hyper-parameter comes from.
            samples: how many settings.
            seed: of the default sampler.
            better: "lower" or "higher".
            scores: runs a batch of settings, and returns a number for each, not finite where it diverged.
        """
        optuna = _imported()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        direction = "minimize" if better == LOWER else "maximize"
        sampler = self.sampler or optuna.samplers.TPESampler(seed=seed, n_startup_trials=min(10, max(1, samples // 3)))
        study = optuna.create_study(direction=direction, sampler=sampler)
        forms = {name: _form(optuna, name, space) for name, space in spaces.items()}
        left = samples
        while left:
            trials = [study.ask(forms) for _ in range(min(self.batch, left))]
            settings = [{name: _value(spaces[name], trial.params[name]) for name in spaces} for trial in trials]
            for trial, score in zip(trials, scores(settings), strict=True):
                if np.isfinite(score):
                    study.tell(trial, float(score))
                else:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
            left -= len(trials)


def driver_of(driver: Any) -> Optuna:
    """Return the driver that is meant, or say which there are."""
    if isinstance(driver, Optuna):
        return driver
    if driver == OPTUNA:
        return Optuna()
    raise InputError(f"driver must be 'optuna' or Optuna(batch=..., sampler=...), not {driver!r}.")


def _imported() -> Any:
    try:
        import optuna
    except ImportError:
        raise InputError("Optuna is not installed: pip install 'fedminimax[optuna]', or leave driver= out.") from None
    return optuna


def _form(optuna: Any, name: str, space: Distribution) -> Any:
    """Return a distribution as Optuna has it; a choice by the numbers of its values, which may be anything."""
    if isinstance(space, Choice):
        return optuna.distributions.CategoricalDistribution(list(range(len(space.values))))
    if not isinstance(space, (Uniform, LogUniform)):
        raise InputError(f"Optuna does not know {type(space).__name__}, for {name!r}: use Uniform, LogUniform or Choice.")
    log = isinstance(space, LogUniform)
    if space.whole:
        return optuna.distributions.IntDistribution(int(space.low), int(space.high), log=log)
    return optuna.distributions.FloatDistribution(space.low, space.high, log=log)


def _value(space: Distribution, suggested: Any) -> Any:
    return space.values[suggested] if isinstance(space, Choice) else suggested
