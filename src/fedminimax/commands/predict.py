"""``fedminimax predict``: a saved model's predictions for the rows of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from fedminimax.data.reading import read_frame
from fedminimax.errors import InputError, nearest
from fedminimax.saved import load_model
from fedminimax.saved.judge import judge
from fedminimax.saved.model import Model
from fedminimax.saved.outputs import Floats

ROW, PREDICTED = "row", "predicted"
_SHARES = ("accuracy", "balanced accuracy", "auc", "recall", "precision")


def predict(
    folder: Path, rows: Path, out: Path, keep: Sequence[str] = (), strict: bool = False, console: Console | None = None
) -> pd.DataFrame:
    """Write the predictions for the rows of a file, and say what was noticed.

    Args:
        folder: of the model.
        rows: the file, .csv, .tsv or .parquet, with the columns of the training table.
        out: the file to write, .csv or .parquet.
        keep: columns of the rows to write beside the predictions; without any, rows are numbered from 1.
        strict: make an error of what is unlike the training rows.
        console: where to say it.
    """
    console = console or Console()
    check_out(out, rows)
    model = load_model(folder)
    if model.encoder is None:
        raise InputError(f"The model in {folder} takes arrays of inputs, not rows of a table: use it in Python.")
    frame, notes = read_frame(rows)
    _check_keep(keep, frame, rows)
    inputs, noticed = model.inputs(frame)
    if noticed and strict:
        raise InputError(f"{' '.join(noticed)} (An error because of --strict.)")
    scores = model.apply(inputs)
    found = predictions(model, scores, frame, keep)
    _write(found, out)
    say = lambda text: console.print(text, highlight=False, markup=False, soft_wrap=True)
    say(_line(model, found, rows))
    if model.encoder.label in frame.columns and frame[model.encoder.label].notna().any():
        say(_judged(model, frame, scores))
    for note in [*notes, *noticed]:
        say(f"Note: {note}")
    say(f"Written: {out}")
    return found


def predictions(model: Model, scores: Floats, frame: pd.DataFrame, keep: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row for each of the rows: what is kept of it, the probabilities, and what is predicted."""
    found = frame[list(keep)].copy() if keep else pd.DataFrame({ROW: range(1, len(frame) + 1)}, index=frame.index)
    taken = list(found.columns)
    made: dict[str, pd.Series[Any]] = {}
    if model.classes is not None:
        shown = model.classes if model.positive is None else [model.positive]
        shares = model.likelihood(scores, frame.index)
        made |= {f"probability of {name}": shares[name] for name in shown}
    made[PREDICTED] = model.decide(scores, frame.index)
    for name, values in made.items():
        if name in taken:
            raise InputError(f"--keep {name} has the name of a column of predictions: rename it in the file.")
        found[name] = values
    return found


def check_out(out: Path, rows: Path) -> None:
    """Say why predictions cannot be written there, before anything is read."""
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out is {out}: give a .csv or .parquet file.")
    if out.is_dir():
        raise InputError(f"--out is {out}, which is a folder: give a file in it, such as {out / 'scores.csv'}.")
    if not out.parent.is_dir():
        raise InputError(f"--out is {out}, but there is no folder {out.parent}: make it, or give another.")
    if out.resolve() == rows.resolve():
        raise InputError(f"--out is {out}, the file of the rows themselves: give another.")


def _check_keep(keep: Sequence[str], frame: pd.DataFrame, rows: Path) -> None:
    known = [str(name) for name in frame.columns]
    for name in keep:
        if name not in known:
            raise InputError(f"{rows} has no column {name!r} to --keep{nearest(name, known)}: it has {', '.join(known)}.")


def _write(found: pd.DataFrame, out: Path) -> None:
    try:
        found.to_csv(out, index=False) if out.suffix.lower() == ".csv" else found.to_parquet(out, index=False)
    except ImportError:
        raise InputError(f"{out} is a Parquet file, which takes pyarrow to write: pip install pyarrow.") from None
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}): give another file.") from None


def _line(model: Model, found: pd.DataFrame, rows: Path) -> str:
    start = f"{rows.name}: {len(found):,} rows"
    if not len(found):
        return f"{start}."
    if model.classes is None:
        return f"{start}, predicted {found[PREDICTED].mean():.4g} on average."
    counts = found[PREDICTED].value_counts()
    if model.positive is not None:
        called, limit = int(counts.get(model.positive, 0)), model.threshold
        rule = "" if limit is None else f", where its probability is {limit:.3g} or more"
        return f"{start}, {called:,} predicted {model.positive} ({100 * called / len(found):.1f}%){rule}."
    return f"{start}, predicted " + ", ".join(f"{name} {count:,}" for name, count in counts.items()) + "."


def _judged(model: Model, frame: pd.DataFrame, scores: Floats) -> str:
    assert model.encoder is not None
    measured = judge(model, frame, scores)
    count = int(measured.pop("rows"))
    title = lambda name: name.upper() if name in ("auc", "rmse", "mae") else name
    show = lambda name, value: f"{100 * value:.1f}%" if name in _SHARES else f"{value:.4g}"
    listed = ", ".join(f"{title(name)} {show(name, value)}" for name, value in measured.items())
    return f"Against the column {model.encoder.label} of {count:,} rows: {listed}."
