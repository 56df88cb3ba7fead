"""What all parties of a federation agree on, as one file, and what a site adds to it.

``federation.toml`` is the same for everybody: who takes part, what a row looks like, which study is run. From it alone the
server and every site make the same problem and the same method; no row is needed for that. ``site.toml`` stays at its site: it
says where the site's data are.

Nothing here needs JAX, which a site's FLARE client does not load.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedminimax.errors import InputError, nearest
from fedminimax.experiments.kinds import find_file, own
from fedminimax.flare import labels

if TYPE_CHECKING:
    import pandas as pd

FEDERATION_FILE, SITE_FILE, LOG_FILE, STATE = "federation.toml", "site.toml", "worker.log", "state"
"""What all agree on; what a site adds; and at a site, what went wrong there, and what it remembers, which do not leave it."""
FAIR = "fair"
"""The function of a study that is `fedminimax fair` among the sites: its settings are the question, and it needs no row."""
_STRICT = ConfigDict(extra="forbid", frozen=True)
_Count = Annotated[int, Field(ge=1)]
_Seconds = Annotated[float, Field(gt=0)]
_Factor = Annotated[
    Annotated[float, Field(gt=0, strict=True)] | None, BeforeValidator(lambda value: None if value is False else value)
]


class RowField(BaseModel):
    """One field of a row: the shape of one entry, and its numbers."""

    model_config = _STRICT
    shape: list[_Count] = []
    dtype: str

    @field_validator("dtype")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            numeric = np.dtype(value).kind in "fiub"
        except TypeError:
            numeric = False
        if not numeric:
            raise ValueError("give a type of numbers, such as float32 or int32")
        return value


class Server(BaseModel):
    """Where FLARE's server is: a host name that all sites can reach, and its one port."""

    model_config = _STRICT
    host: str = "localhost"
    port: Annotated[int, Field(ge=1024, le=65535)] = 28002
    admin: str = "admin@federation.local"


class SecureTerms(BaseModel):
    """How sums over sites hide each of them; None is as in :class:`fedminimax.engines.federated.Secure`."""

    model_config = _STRICT
    least: Annotated[int, Field(ge=2)] | None = None
    threshold: Annotated[int, Field(ge=2)] | None = None
    bits: _Count | None = None
    limit: Annotated[float, Field(gt=0)] | None = None
    open_numbers: Annotated[int, Field(ge=0)] | None = None


class Terms(BaseModel):
    """What is run, how long anybody is waited for, and whose replies do not count.

    ``outliers``, ``loss_outliers`` and ``on_lost_state`` are as in :class:`fedminimax.engines.federated.Federation`; false
    in the file: no reply is refused for that. The guard is the study's own (``Study(guard=...)``).
    """

    model_config = _STRICT
    function: str
    rounds: _Count
    seed: int = 0
    eval_every: _Count | None = None
    checkpoint_every: _Count | str = "10s"
    timeout: _Seconds = 60.0
    min_replies: _Count = 1
    outliers: _Factor = 1e4
    loss_outliers: _Factor = 1e3
    on_lost_state: Literal["refuse", "restart"] = "refuse"
    x64: bool = False
    secure: bool | SecureTerms = False
    settings: dict[str, Any] = {}


class Agreement(BaseModel):
    """What the parties of a federation agreed on: ``federation.toml``.

    Attributes:
        name: of the project.
        server: where the server is.
        study: what is run.
        sites: their names, in the order of the clients' numbers.
        row: by name, the fields of a row; of a fair study none, whose columns are found out.
        folder: where the file is; the study's own file is beside it.
    """

    model_config = _STRICT
    name: str
    server: Server = Server()
    study: Terms
    sites: Annotated[list[str], Field(min_length=1)]
    row: dict[str, RowField] = {}
    folder: Path = Path()

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        return _checked_name(value)

    @field_validator("sites")
    @classmethod
    def _named(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("two sites have the same name")
        for name in value:
            if _checked_name(name) in (labels.SERVER, labels.COORDINATOR):
                raise ValueError(f"{name!r} is the name of another party: call the site otherwise")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.study.min_replies > len(self.sites):
            raise ValueError(f"min_replies is {self.study.min_replies}, but there are {len(self.sites)} sites: ask for fewer")
        return self

    @model_validator(mode="after")
    def _described(self) -> Self:
        if not self.row and not self.is_fair:
            raise ValueError("[row] is missing: say what one row looks like")
        return self

    @model_validator(mode="after")
    def _carried_out(self) -> Self:
        if self.is_fair and self.study.x64:
            raise ValueError("study.x64 is not for a fair study, which computes in float32: leave it out")
        if self.is_fair and self.study.secure is not False:
            raise ValueError(
                "study.secure hides sites in sums, but in a fair study each site tells its own numbers: leave secure out, or "
                "run a study of your own"
            )
        fixed = sorted({"outliers", "loss_outliers", "on_lost_state"} & self.study.model_fields_set)
        if self.is_fair and fixed:
            raise ValueError(
                f"study.{fixed[0]} is not for a fair study, which refuses outliers as it does by default: leave it out, or run "
                "a study of your own"
            )
        return self

    @property
    def is_fair(self) -> bool:
        """Whether the study is `fedminimax fair`."""
        return self.study.function == FAIR

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the federation of a file, or say what is wrong with it."""
        return _read(cls, path, folder=path.resolve().parent)

    @classmethod
    def check(cls, text: str) -> None:
        """Say what is wrong with what would be the text of a federation's file."""
        _parsed(cls, text, FEDERATION_FILE)

    @property
    def fingerprint(self) -> str:
        """A digest of all that a site must have in common with the server: the terms, the sites, the row, the study's file."""
        told = self.model_dump(mode="json", include={"name", "study", "sites", "row"})
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode() + self._code()).hexdigest()[:32]

    def _code(self) -> bytes:
        module = self.study.function.partition(":")[0]
        path = find_file(module, [self.folder]) if module.endswith(".py") else None
        return b"" if path is None else path.read_bytes()

    def checked(self, rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return a site's rows in the agreed types, or say how they differ from what was agreed."""
        if set(rows) != set(self.row):
            raise InputError(f"The data have the fields {sorted(rows)}, but {sorted(self.row)} were agreed on.")
        for key, one in self.row.items():
            shape = np.shape(rows[key])
            if not shape or list(shape[1:]) != one.shape:
                raise InputError(f"{key} has the shape {list(shape)}, but {one.shape} was agreed on for one row.")
        return {key: np.asarray(rows[key]).astype(one.dtype) for key, one in self.row.items()}


class SiteFile(BaseModel):
    """What a site adds: ``site.toml``, which stays there.

    Attributes:
        name: of the site, as in the project.
        data: a file (.npz, .csv, .parquet), or a function of the site's own, "data.py:load", which is given ``config`` and
            returns a dict of arrays.
        held_out: by name, such as "test", rows to measure on and not to train on; each as ``data``.
        config: what the function is given; of a table the name of its ``label`` column; in a fair study ``least``, the rows
            that a category, class or group must have to be named outside of the site.
        budget: where the study adds noise to what sites send, the epsilon beyond which this one does not reply any more.
        measures: how often at most it tells its part of a metric, by the name of the metric's class; without it any, and none
            where the study adds noise.
        agreement: the file beside this one.
        folder: where the file is.
    """

    model_config = _STRICT
    name: str
    data: str
    held_out: dict[str, str] = {}
    config: dict[str, Any] = {}
    budget: float | None = None
    measures: dict[str, int] | None = None
    agreement: Agreement
    folder: Path = Path()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the file of a site, with that of its federation beside it, or say what is wrong with them."""
        agreement = Agreement.read(path.resolve().parent / FEDERATION_FILE)
        site = _read(cls, path, agreement=agreement, folder=path.resolve().parent)
        if site.name not in agreement.sites:
            raise InputError(
                f"{path}: there is no site {site.name!r} in {FEDERATION_FILE}: it has {', '.join(agreement.sites)}."
            )
        if agreement.is_fair and site.budget is not None:
            raise InputError(
                f"{path}: a fair study adds no noise that a budget of epsilon could be spent on: leave budget out, or take no "
                "part in it."
            )
        if agreement.is_fair and site.held_out:
            raise InputError(f"{path}: a fair study keeps test rows of its own apart from the data: leave held_out out.")
        return site

    @property
    def state(self) -> Path:
        """Where the site's worker keeps its state."""
        return self.folder / STATE

    @property
    def socket(self) -> Path:
        """Where the worker listens."""
        return self.folder / "worker.sock"

    def rows(self, source: str | None = None) -> dict[str, np.ndarray]:
        """Return rows of the site by field, as they were agreed on: its data, or those of a source in ``held_out``."""
        return self.agreement.checked(self._stored(self.data if source is None else source))

    def check_sources(self) -> None:
        """Say so if a file that the site names is not there; no rows are loaded."""
        for source in (self.data, *self.held_out.values()):
            file, _, function = source.partition(":")
            if not function or file.endswith(".py"):  # otherwise it is a module's function
                self._found(file)

    def _found(self, source: str) -> Path:
        path = find_file(source, [self.folder])
        if path is None:
            raise InputError(f"{self.name}: there is no file {source} in {self.folder}: give the path of the site's data.")
        return path

    def table(self) -> pd.DataFrame:
        """Return the site's rows as a table, for a fair study: of a file, or of a function's arrays by column."""
        from fedminimax.fedfair.tables import table_of

        return table_of(self.data, self.folder, self.config)

    def _stored(self, source: str) -> dict[str, np.ndarray]:
        if ":" in source:
            return dict(own(source, [self.folder])(self.config))
        path = self._found(source)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as stored:
                return {key: stored[key] for key in stored.files}
        return _of_table(path, str(self.config.get("label", "")))


def _of_table(path: Path, label: str) -> dict[str, np.ndarray]:
    """Return a table of numbers as "inputs" and, where a column is named as such, "labels"."""
    import pandas as pd

    if path.suffix not in (".csv", ".parquet"):
        raise InputError(f"{path.name} is no .npz, .csv or .parquet: give one of these, or a function such as data.py:load.")
    try:
        frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    except ImportError:
        raise InputError(f'{path.name} takes pyarrow to read: pip install "fedminimax[parquet]".') from None
    if label and label not in frame.columns:
        raise InputError(f"{path.name} has no column {label!r}, which site.toml names as the label.")
    inputs = frame.drop(columns=label) if label else frame
    words = [name for name in inputs.columns if not pd.api.types.is_numeric_dtype(inputs[name])]
    if words:
        raise InputError(f"Column {words[0]!r} of {path.name} has no numbers: encode it first, or give a function.")
    return {"inputs": inputs.to_numpy()} | ({"labels": frame[label].to_numpy()} if label else {})


_F = TypeVar("_F", bound=BaseModel)


def _read(cls: type[_F], path: Path, **known: Any) -> _F:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"There is no {path}: `fedminimax federation init` writes one.") from None
    return _parsed(cls, text, path, **known)


def _parsed(cls: type[_F], text: str, path: Path | str, **known: Any) -> _F:
    try:
        return cls.model_validate(tomllib.loads(text) | known)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not TOML ({error}).") from None
    except ValidationError as error:
        raise InputError(f"{path}: {_mistake(cls, error)}.") from None


def _mistake(cls: type[BaseModel], error: ValidationError) -> str:
    """Return what is wrong first: a key that nobody knows, with the nearest one that there is, before what is then missing."""
    found = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")[0]
    where = ".".join(str(part) for part in found["loc"]) or "the file"
    if found["type"] != "extra_forbidden":
        return f"{where}: {found['msg'].removeprefix('Value error, ')}"
    *tables, key = found["loc"]
    known = list(cls.model_fields)
    for table in tables:
        part: Any = cls.model_fields[str(table)].annotation if str(table) in cls.model_fields else None
        known = list(getattr(part, "model_fields", known))
    return f"there is no key {where}{nearest(key, known)}"


def _checked_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}", value):
        raise ValueError(f"{value!r} cannot be a name in a project: use letters, digits, - and _")
    return value
