"""The tables that the fairness literature uses, from their official files."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from fedminimax.data.datasets import check_sum, download, folder_of, reason_of
from fedminimax.data.federation import CLASSIFICATION, REGRESSION
from fedminimax.data.tabular import Table
from fedminimax.data.values import is_number
from fedminimax.errors import InputError


def load_table(name: str, folder: str | os.PathLike[str] | None = None, client: str | None = None) -> Table:
    """Return a published table by name.

    Args:
        name: "communities_crime", "adult", "compas" or "german_credit"; hyphens will do too.
        folder: where the official files are, in ``communities-crime/``, ``adult/``, ``compas/`` and ``german-credit/``, and
            where they are put when they have to be downloaded. By default the folder that the environment variable
            FEDMINIMAX_DATA names, and otherwise the user's cache.
        client: the column whose values are the clients; each table has a default.

    Returns:
        The table, without the columns that are no features.
    """
    key = name.replace("-", "_")
    if key not in TABLES:
        raise InputError(f"There is no table {name!r}: choose one of {', '.join(TABLES)}.")
    return TABLES[key](folder_of(folder), client)


def communities_crime(folder: Path, client: str | None = None) -> Table:
    """Communities and Crime: violent crime in 1,994 US communities, regression; clients are the 46 states."""
    client = _choice("communities_crime", client, ("state",))
    contents = _contents(folder, "communities-crime/communities.data")
    frame = pd.read_csv(io.BytesIO(contents), header=None, names=_COMMUNITIES.split(), na_values="?")
    frame = frame.drop(columns=["county", "community", "communityname", "fold"])
    return Table("communities_crime", frame, "ViolentCrimesPerPop", client, REGRESSION)


def adult(folder: Path, client: str | None = None) -> Table:
    """Adult: is an income over $50,000, 32,561 + 16,281 people; clients by education, race or sex."""
    client = _choice("adult", client, ("education", "race", "sex"))
    parts = []
    for file in ("adult/adult.data", "adult/adult.test"):
        # The test file opens with a line that begins with a bar.
        source = io.BytesIO(_contents(folder, file))
        part = pd.read_csv(source, header=None, names=_ADULT.split(), na_values="?", skipinitialspace=True, comment="|")
        part["income"] = part["income"].str.rstrip(".")  # as the test file's labels end
        # The weight is of the survey, not of the person; education-num is education, in numbers.
        parts.append(part.drop(columns=["fnlwgt", *(["education-num"] if client == "education" else [])]))
    return Table("adult", parts[0], "income", client, CLASSIFICATION, parts[1])


def compas(folder: Path, client: str | None = None) -> Table:
    """COMPAS: is a defendant charged again within two years, 6,172 people; clients by race, sex or age_cat."""
    client = _choice("compas", client, ("race", "sex", "age_cat"))
    frame = pd.read_csv(io.BytesIO(_contents(folder, "compas/compas-scores-two-years.csv")))
    # ProPublica's own filter: the score belongs to this arrest, the case was found, it is no traffic offence, it was scored.
    keep = frame["days_b_screening_arrest"].between(-30, 30) & (frame["is_recid"] != -1)
    keep &= (frame["c_charge_degree"] != "O") & frame["score_text"].notna()
    # What was known at the arrest, without names and scores; the other columns tell what came after.
    return Table("compas", frame.loc[keep, _COMPAS.split()].reset_index(drop=True), "two_year_recid", client, CLASSIFICATION)


def german_credit(folder: Path, client: str | None = None) -> Table:
    """German credit: is a credit good or bad, 1,000 people; clients by purpose, housing, job or another category."""
    # The values keep the file's codes, such as A43: what some of them mean is disputed (Groemping, South German Credit
    # data: correcting a widely used data set, 2019).
    contents = _contents(folder, "german-credit/german.data")
    frame = pd.read_csv(io.BytesIO(contents), sep=" ", header=None, names=_GERMAN.split())
    others = [str(column) for column in frame if column != "purpose" and not is_number(frame[column])]
    client = _choice("german_credit", client, ("purpose", *others))
    frame["credit"] = frame["credit"].map({1: "good", 2: "bad"})
    return Table("german_credit", frame, "credit", client, CLASSIFICATION)


def _choice(name: str, client: str | None, choices: Sequence[str]) -> str:
    """Return the client column, by default the first choice."""
    if client is not None and client not in choices:
        raise InputError(f"The clients of {name} cannot be by {client!r}: choose one of {', '.join(choices)}.")
    return client or choices[0]


def _contents(folder: Path, file: str) -> bytes:
    """Return an official file, downloaded if it is not in the folder."""
    url, md5, sha256 = _FILES[file]
    path = folder / file
    if not path.exists():
        download(url, path, md5)
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({reason_of(error)}): check that it is a file and may be read.") from error
    check_sum(str(path), contents, sha256)
    return contents


# The official place of each file, its md5, by which a download is checked, and its sha256, by which every file is.
_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a/"
_FILES = {
    "communities-crime/communities.data": (
        _UCI + "communities/communities.data",
        "ce564679a46f4313b9e8d17e1dad0ceb",
        "09e0b5c07eae24c1efab19b2edee05e160e7f5743b6f31e31eec3d73624da2ea",
    ),
    "adult/adult.data": (
        _UCI + "adult/adult.data",
        "5d7c39d7b8804f071cdd1f2a7c460872",
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    ),
    "adult/adult.test": (
        _UCI + "adult/adult.test",
        "35238206dfdf7f1fe215bbb874adecdc",
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
    ),
    "compas/compas-scores-two-years.csv": (
        _PROPUBLICA + "compas-scores-two-years.csv",
        "9165d40c400bba93a8cffece2b74622b",
        "c451db85908b2f7fef1d83203bedf6b71ecda0d5af468d82ae62178f91d0cc7d",
    ),
    "german-credit/german.data": (
        _UCI + "statlog/german/german.data",
        "6b94c2e35480e671545e52a808a8a549",
        "b21f3d81db8071257d5ff1deaeba1fd4303b62712e6fcc9715c7a86202cb5871",
    ),
}

# The columns, in the files' order where the file does not name them.
_ADULT = """
age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain capital-loss
hours-per-week native-country income
"""
_COMPAS = """
age sex race age_cat juv_fel_count juv_misd_count juv_other_count priors_count c_charge_degree two_year_recid
"""
_GERMAN = """
checking_account months credit_history purpose amount savings employment_since installment_rate personal_status_sex
other_debtors residence_since property age other_installment_plans housing existing_credits job dependents telephone
foreign_worker credit
"""
_COMMUNITIES = """
state county community communityname fold population householdsize racepctblack racePctWhite racePctAsian racePctHisp
agePct12t21 agePct12t29 agePct16t24 agePct65up numbUrban pctUrban medIncome pctWWage pctWFarmSelf pctWInvInc pctWSocSec
pctWPubAsst pctWRetire medFamInc perCapInc whitePerCap blackPerCap indianPerCap AsianPerCap OtherPerCap HispPerCap
NumUnderPov PctPopUnderPov PctLess9thGrade PctNotHSGrad PctBSorMore PctUnemployed PctEmploy PctEmplManu PctEmplProfServ
PctOccupManu PctOccupMgmtProf MalePctDivorce MalePctNevMarr FemalePctDiv TotalPctDiv PersPerFam PctFam2Par PctKids2Par
PctYoungKids2Par PctTeen2Par PctWorkMomYoungKids PctWorkMom NumIlleg PctIlleg NumImmig PctImmigRecent PctImmigRec5
PctImmigRec8 PctImmigRec10 PctRecentImmig PctRecImmig5 PctRecImmig8 PctRecImmig10 PctSpeakEnglOnly PctNotSpeakEnglWell
PctLargHouseFam PctLargHouseOccup PersPerOccupHous PersPerOwnOccHous PersPerRentOccHous PctPersOwnOccup PctPersDenseHous
PctHousLess3BR MedNumBR HousVacant PctHousOccup PctHousOwnOcc PctVacantBoarded PctVacMore6Mos MedYrHousBuilt
PctHousNoPhone PctWOFullPlumb OwnOccLowQuart OwnOccMedVal OwnOccHiQuart RentLowQ RentMedian RentHighQ MedRent
MedRentPctHousInc MedOwnCostPctInc MedOwnCostPctIncNoMtg NumInShelters NumStreet PctForeignBorn PctBornSameState
PctSameHouse85 PctSameCity85 PctSameState85 LemasSwornFT LemasSwFTPerPop LemasSwFTFieldOps LemasSwFTFieldPerPop
LemasTotalReq LemasTotReqPerPop PolicReqPerOffic PolicPerPop RacialMatchCommPol PctPolicWhite PctPolicBlack PctPolicHisp
PctPolicAsian PctPolicMinor OfficAssgnDrugUnits NumKindsDrugsSeiz PolicAveOTWorked LandArea PopDens PctUsePubTrans
PolicCars PolicOperBudg LemasPctPolicOnPatr LemasGangUnitDeploy LemasPctOfficDrugUn PolicBudgPerPop ViolentCrimesPerPop
"""

TABLES: dict[str, Callable[[Path, str | None], Table]] = {
    "communities_crime": communities_crime,
    "adult": adult,
    "compas": compas,
    "german_credit": german_credit,
}
"""The tables by name: functions of the folder that has them and the column that says who holds a row."""
