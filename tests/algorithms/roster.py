"""The contract suite's table: one row a method. Adding a method is adding its row."""

from __future__ import annotations

from typing import Any

import fedminimax as fm
from fedminimax.testing import Subject


class Row(Subject):
    """A method as the contract suite runs it, with a name for the table of tests."""

    @property
    def name(self) -> str:
        solver = getattr(self.algorithm, "solver", None)
        extra = "-momentum" if isinstance(getattr(self.algorithm, "momentum", None), float) else ""
        extra += "" if solver is None or type(solver).__name__ in ("Plain", "Momentum") else f"-{type(solver).__name__}"
        extra += "-one-cohort" if getattr(self.algorithm, "same_cohort", False) else ""
        extra += f"-{keep}" if (keep := getattr(self.algorithm, "keep", None)) else ""
        steps = getattr(self.algorithm, "local_steps", 1)
        return type(self.algorithm).__name__ + extra + ("" if isinstance(steps, int) else f"-{type(steps).__name__}")


_common: dict[str, Any] = {"lr_x": 0.02, "lr_y": 0.02}
_local: dict[str, Any] = {**_common, "local_steps": 3, "batch_size": 4, "cohort_size": 3}
_model: dict[str, Any] = {"lr_x": 0.02, "local_steps": 3, "batch_size": 4, "cohort_size": 3}

ROSTER = [
    Row(fm.LocalSGDA(**_local)),
    Row(fm.LocalSGDA(**_local, momentum=0.5), variant=True),
    Row(fm.LocalSGDAPlus(**_local, snapshot_every=2)),
    Row(fm.LocalSGDAPlus(**_local, snapshot_every=2, momentum=0.5), variant=True),
    Row(fm.FSGDA(**_local, server_lr_x=1.5, server_lr_y=0.5), variant=True),
    Row(fm.SAGDA(**_local, server_lr_x=1.5, server_lr_y=0.5)),
    Row(fm.ParallelSGDA(**_common, batch_size=4, cohort_size=3)),
    Row(fm.FessGDA(**_local, server_lr_x=1.5, server_lr_y=0.5, p=0.5, beta=0.3), boxed={"p": 0.0}),  # which holds x back
    Row(fm.SmoothedAGDA(**_common, p=0.5, beta=0.3, batch_size=4, cohort_size=3), variant=True, boxed={"p": 0.0}),
    Row(fm.FedSGDAM(**_local, alpha=0.3, beta=0.4)),
    Row(fm.FedNormSGDA(**{**_local, "local_steps": fm.UniformSteps(2, 5)}, server_lr_x=1.5)),
    Row(fm.FedNormSGDA(**_local, solver=fm.Momentum(0.5)), variant=True),
    Row(fm.FedNormSGDA(**_local, solver=fm.Proximal(0.3)), variant=True),
    Row(fm.FedNormSGDA(**_local, solver=fm.Weighted((1.0, 0.5, 0.25))), variant=True),
    Row(fm.FedNormSGDAPlus(**{**_local, "local_steps": fm.UniformSteps(1, 2, unit="epochs")}, snapshot_every=3)),
    Row(fm.CDMA(**_local), variant=True),
    Row(fm.CDMAGE(**_local)),
    Row(fm.CDMAGE(**_local, same_cohort=True), variant=True),
    Row(fm.CDMAGEPlus(**_local, alpha=0.4)),
    Row(fm.ExtraStepLocalSGD(**_local, fresh_batch=True)),
    Row(fm.CODAPlus(**_local, theta=0.5, restart_every=5, stage_decay=0.5), variant=True),
    Row(fm.CODASCA(**_local, theta=0.5, restart_every=5, stage_decay=0.5, server_lr_x=1.1, server_lr_y=0.9)),
    Row(fm.CatalystScaffoldS(**_local, theta=0.5, restart_every=5), variant=True),
    Row(fm.CatalystScaffoldS(**_local, theta=0.5, restart_every=5, keep="clients"), variant=True),
    Row(fm.FedAvg(**_model, server_lr_x=1.5), rates=("lr_x",)),
    Row(fm.FedProx(**_model, mu=0.5), variant=True, rates=("lr_x",)),
    Row(fm.Scaffold(**_model, server_lr_x=0.9), rates=("lr_x",)),
    Row(fm.QFedAvg(**_model, q=0.5), rates=("lr_x",)),
    Row(fm.DeltaFL(**_model, alpha=0.6), rates=("lr_x",)),
    Row(fm.AFL(0.02, 0.02, local_steps=3, batch_size=4), rates=("lr_x", "lr_w")),
    Row(fm.DRFA(**_model, lr_w=0.01), rates=("lr_x", "lr_w")),
    Row(
        fm.ScaffPD(0.02, 0.02, mu_x=0.2, local_steps=3, batch_size=4),
        rates=("tau", "sigma"),
        boxed={"tau": 0.3, "lr_x": 0.06},
    ),
    Row(
        fm.ScaffPDStale(0.02, 0.02, mu_x=0.2, local_steps=3, batch_size=4),
        rates=("tau", "sigma"),
        boxed={"tau": 0.3, "lr_x": 0.06},
    ),
]

NODES = [
    Row(fm.LocalTraining(**_common, local_steps=3, batch_size=4), variant=True),
    Row(fm.DecentralizedExtraGradient(**_common, batch_size=4), variant=True),
    Row(fm.Sliding(0.05, 0.3, inner_steps=3, batch_size=4), rates=("gamma",)),
    Row(fm.SlidingNN(**_common, momentum=0.5, personal="u", local_steps=3, batch_size=4)),
    Row(fm.LocalExtraStep(0.02, 0.4, batch_size=4), rates=("gamma",)),
    Row(fm.LocalNN(**_common, momentum=0.5, local_steps=3, batch_size=4), variant=True),
]

CLASSES = {type(row.algorithm): row for row in reversed([*ROSTER, *NODES])}
"""The first row of each method."""
KINDS = [CLASSES[kind] for kind in (fm.CDMAGE, fm.Scaffold, fm.ScaffPD, fm.Sliding)]
"""A row of each kind: two phases, clients with states, weights on clients, nodes."""
