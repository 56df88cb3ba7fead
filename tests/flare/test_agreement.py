"""What the parties agree on, and what a site brings: files that are read, checked and compared."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from fedminimax import wire
from fedminimax.commands import fair_sites, federation
from fedminimax.commands.fair import Request
from fedminimax.commands.fair_sites import write_federation
from fedminimax.engines.federated.worker import Worker, logger
from fedminimax.errors import InputError
from fedminimax.fedfair import FairSite, Question
from fedminimax.flare.agreement import Agreement, SiteFile
from fedminimax.flare.kits import project_file


@pytest.fixture
def folder(tmp_path):
    federation.init(tmp_path / "f", ["north", "south"])
    return tmp_path / "f"


def own(folder):
    return folder / "sites" / "south"


def bring(folder, **fields):
    rows = {"inputs": np.ones((5, 64)), "labels": np.arange(5)} | fields
    np.savez(own(folder) / "rows.npz", **{key: v for key, v in rows.items() if v is not None})
    return SiteFile.read(own(folder) / "site.toml")


def changed(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_what_is_written_can_be_read_and_is_the_same_for_everybody(folder):
    agreement = Agreement.read(folder / "federation.toml")
    assert agreement.sites == ["north", "south"]
    assert agreement.study.min_replies == 1
    assert {path.name for path in own(folder).iterdir()} == {"federation.toml", "study.py", "site.toml", "README.md"}
    assert bring(folder).agreement.fingerprint == agreement.fingerprint
    with pytest.raises(InputError, match="there already"):
        federation.init(folder, ["north"])


def test_every_party_has_a_readme_and_flare_its_project_file(folder):
    readmes = {path.parent.relative_to(folder).as_posix() for path in folder.rglob("README.md")}
    assert readmes == {".", "server", "admin", "sites/north", "sites/south"}
    for party, word in (("server", "start.sh"), ("admin", "federation resume admin@federation.local"), (".", "kits .")):
        assert word in (folder / party / "README.md").read_text()
    assert "worker.log" in (own(folder) / "README.md").read_text()
    project = (folder / "project.yml").read_text()
    assert all(f"{{name: {name}, type: client" in project for name in ("north", "south", "coordinator"))


def test_a_fair_study_has_the_same_files(tmp_path):
    write_federation(tmp_path / "f", Question("ill"), {"north": "", "south": ""})
    readmes = {path.parent.relative_to(tmp_path / "f").as_posix() for path in (tmp_path / "f").rglob("README.md")}
    assert readmes == {".", "server", "admin", "sites/north", "sites/south"}
    assert "`least`" in (tmp_path / "f" / "sites" / "north" / "README.md").read_text()
    assert "study.py" not in "".join(path.read_text() for path in (tmp_path / "f").rglob("README.md"))
    assert (tmp_path / "f" / "project.yml").exists()
    with pytest.raises(InputError, match="there already"):
        write_federation(tmp_path / "f", Question("ill"), {"north": "", "south": ""})


def test_a_fair_study_is_written_down_and_then_submitted_with_the_newest_kit(tmp_path, monkeypatch):
    """`fedminimax fair --federation FOLDER`: first without the folder, then with kits."""
    folder, console, sent = tmp_path / "f", Console(record=True, width=400), []
    monkeypatch.setattr(fair_sites, "submit", lambda kit, console: sent.append(kit))
    ask = lambda **more: fair_sites.fair_among_sites(Request(federation=str(folder), **more), tmp_path / "out", console)
    with pytest.raises(InputError, match="two sites or more"):
        ask(label="ill", sites=["north=north.csv"])
    assert not folder.exists()
    ask(label="ill", sites=["north=north.csv", "south="], least=7)
    agreement = Agreement.read(folder / "federation.toml")
    assert (agreement.sites, agreement.study.settings["label"]) == (["north", "south"], "ill")
    assert "least = 7" in (folder / "sites" / "south" / "site.toml").read_text()
    assert "north.csv" in (folder / "sites" / "north" / "site.toml").read_text()
    assert f"fedminimax fair --federation {folder}" in console.export_text()
    with pytest.raises(InputError, match=r"no kits in .*make them first"):
        ask()
    for nth in (0, 1):
        (folder / "kits" / "fair" / f"prod_0{nth}").mkdir(parents=True)
    with pytest.raises(InputError, match="leave other options out"):
        ask(label="ill")
    assert sent == []
    ask()
    assert sent == [folder / "kits" / "fair" / "prod_01" / "admin@federation.local"]
    assert "run/fair of the server's kit" in console.export_text()
    assert not (tmp_path / "out").exists()
    federation.init(tmp_path / "own", ["north", "south"])
    with pytest.raises(InputError, match="another study: start it with `fedminimax federation submit`"):
        fair_sites.fair_among_sites(Request(federation=str(tmp_path / "own")), tmp_path / "out", console)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "server", 'q"'])
def test_names_are_checked_before_anything_is_written(tmp_path, name):
    for write in (
        lambda: federation.init(tmp_path / "f", ["north", name]),
        lambda: write_federation(tmp_path / "f", Question("ill"), {"north": "", name: ""}),
    ):
        with pytest.raises(InputError):
            write()
    assert list(tmp_path.iterdir()) == []


def test_the_project_file_follows_the_agreement_unless_a_person_has_changed_it(folder):
    pytest.importorskip("yaml")
    path = folder / "project.yml"
    changed(folder / "federation.toml", "port = 28002", "port = 28003")
    assert project_file(Agreement.read(folder / "federation.toml")) == path
    assert "fed_learn_port: 28003" in path.read_text()
    changed(path, "org: north", "org: clinic")
    project_file(Agreement.read(folder / "federation.toml"))
    assert "org: clinic" in path.read_text()
    changed(folder / "federation.toml", '["north", "south"]', '["north", "south", "west"]')
    with pytest.raises(InputError, match=r"project\.yml was changed, and has other parties"):
        project_file(Agreement.read(folder / "federation.toml"))


@pytest.mark.parametrize(
    ("file", "line", "said"),
    [
        ("federation.toml", "secure = true", "study.secure hides sites in sums, but in a fair study.*leave secure out"),
        ("federation.toml", "secure = {least = 3}", "leave secure out"),
        ("federation.toml", "loss_outliers = 50", "study.loss_outliers is not for a fair study.*leave it out"),
        ("federation.toml", "x64 = true", "computes in float32: leave it out"),
        ("site.toml", "budget = 3.0", "adds no noise that a budget of epsilon could be spent on: leave budget out"),
        ("site.toml", 'held_out = {test = "rows.csv"}', "leave held_out out"),
    ],
)
def test_what_a_fair_study_does_not_do_is_refused(tmp_path, file, line, said):
    write_federation(tmp_path, Question("ill"), {"north": "", "south": ""})
    path = own(tmp_path) / file
    SiteFile.read(own(tmp_path) / "site.toml")
    if file == "site.toml":
        path.write_text(f"{line}\n{path.read_text()}")
    else:
        changed(path, "[study]\n", f"[study]\n{line}\n")
    with pytest.raises(InputError, match=said):
        SiteFile.read(own(tmp_path) / "site.toml")


@pytest.mark.parametrize(
    ("file", "old", "new"), [("study.py", "tau=0.7", "tau=0.9"), ("federation.toml", "rho = 0.1", "rho = 0.2")]
)
def test_a_site_with_other_terms_or_another_study_has_another_fingerprint(folder, file, old, new):
    before = bring(folder).agreement.fingerprint
    changed(own(folder) / file, old, new)
    assert bring(folder).agreement.fingerprint != before


def test_where_the_server_is_may_differ(folder):
    before = bring(folder).agreement.fingerprint
    changed(own(folder) / "federation.toml", 'host = "localhost"', 'host = "elsewhere.example"')
    assert bring(folder).agreement.fingerprint == before


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('["north", "south"]', '["north", "north"]', "same name"),
        ('["north", "south"]', '["north", "server"]', "another party"),
        ('["north", "south"]', '["north", "so/uth"]', "cannot be a name"),
        ("rounds = 50", "rounds = 0", "study.rounds"),
        ("rounds = 50", "rouns = 50", r"no key study\.rouns \(did you mean 'rounds'"),
        ("min_replies = 1", "min_replies = 3", "min_replies is 3, but there are 2 sites"),
        ("outliers = 1e4", "outliers = 0", r"study\.outliers.*greater than 0"),
        ("loss_outliers = 1e3", "loss_outliers = true", r"study\.loss_outliers"),
        ('"refuse"', '"forget"', r"study\.on_lost_state.*'refuse' or 'restart'"),
        ('dtype = "int32"', 'dtype = "words"', "type of numbers"),
        ("[server]", "[server", "not TOML"),
    ],
)
def test_what_is_wrong_is_said(folder, old, new, said):
    changed(folder / "federation.toml", old, new)
    with pytest.raises(InputError, match=said):
        Agreement.read(folder / "federation.toml")


def test_a_sites_rows_are_as_agreed_on(folder):
    rows = bring(folder).rows()
    assert rows["inputs"].dtype == np.float32
    assert rows["labels"].dtype == np.int32
    assert rows["inputs"].shape == (5, 64)
    with pytest.raises(InputError, match=r"\[5, 3\], but \[64\]"):
        bring(folder, inputs=np.ones((5, 3))).rows()
    with pytest.raises(InputError, match="fields"):
        bring(folder, labels=None).rows()


def test_rows_come_from_a_function_of_the_sites_own(folder):
    (own(folder) / "data.py").write_text(
        "import numpy as np\n"
        "def load(config):\n"
        "    return {'inputs': np.full((config['rows'], 64), 2.0), 'labels': np.zeros(config['rows'])}\n"
    )
    (own(folder) / "site.toml").write_text('name = "south"\ndata = "data.py:load"\n[config]\nrows = 7\n')
    rows = SiteFile.read(own(folder) / "site.toml").rows()
    assert rows["inputs"].shape == (7, 64)
    assert rows["inputs"][0, 0] == 2


def test_rows_come_from_a_table(folder):
    lines = [",".join([*(f"c{k}" for k in range(64)), "kind"])] + [",".join(["0.5"] * 64 + [str(k)]) for k in range(3)]
    (own(folder) / "rows.csv").write_text("\n".join(lines))
    (own(folder) / "site.toml").write_text('name = "south"\ndata = "rows.csv"\n[config]\nlabel = "kind"\n')
    site = SiteFile.read(own(folder) / "site.toml")
    assert site.rows()["labels"].tolist() == [0, 1, 2]
    changed(own(folder) / "rows.csv", "0.5,0\n", "yes,0\n")
    with pytest.raises(InputError, match=r"'c63' of rows\.csv has no numbers"):
        site.rows()


def test_rows_come_from_a_parquet_file_if_it_can_be_read(folder, monkeypatch):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({f"c{k}": [0.5, 1.5, 2.5] for k in range(64)} | {"kind": [2, 0, 1]})
    frame.to_parquet(own(folder) / "rows.parquet")
    (own(folder) / "site.toml").write_text('name = "south"\ndata = "rows.parquet"\n[config]\nlabel = "kind"\n')
    site = SiteFile.read(own(folder) / "site.toml")
    rows = site.rows()
    assert rows["labels"].tolist() == [2, 0, 1]
    assert rows["inputs"][:, 7].tolist() == [0.5, 1.5, 2.5]
    assert site.table()["c3"].tolist() == [0.5, 1.5, 2.5]

    def lacking(path):
        raise ImportError("no engine")

    monkeypatch.setattr(pd, "read_parquet", lacking)
    with pytest.raises(InputError, match=r"rows\.parquet takes pyarrow to read: pip install .fedminimax\[parquet\]"):
        site.rows()


def test_what_goes_wrong_at_a_site_is_in_its_log_and_does_not_leave(folder):
    """Run as its FLARE client runs it: a study whose settings do not fit."""
    pytest.importorskip("cryptography")
    bring(folder)
    changed(own(folder) / "federation.toml", "rho = 0.1", "rhoo = 0.1")
    command = [sys.executable, "-m", "fedminimax.flare.worker", str(own(folder))]
    assert subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 1
    log = own(folder) / "worker.log"
    assert "the worker does not start: [study.settings] does not fit study.py:study" in log.read_text()
    assert oct(log.stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize("kind", ["fair", "own"])
def test_a_request_that_fails_leaves_type_text_and_traceback_at_the_site(tmp_path, kind, monkeypatch):
    pytest.importorskip("cryptography")
    from fedminimax.flare.worker import log_to

    def fails(*_):
        raise ValueError("row 7 is secret")

    if kind == "fair":
        site = FairSite("north", pd.DataFrame({"ill": ["no"] * 5}), Question("ill"))
        monkeypatch.setattr(FairSite, "_answers", {"sketch": fails})
        request = wire.encode({"id": "x", "fair": "sketch"})
    else:
        site = Worker(None, None, {"inputs": np.ones((2, 1))})
        monkeypatch.setattr(Worker, "_hello", fails)
        request = wire.encode({"id": "x", "hello": True})
    before = list(logger.handlers)
    log_to(tmp_path / "worker.log")
    try:
        reply = site.handle(request)
    finally:
        for handler in set(logger.handlers) - set(before):
            logger.removeHandler(handler)
            handler.close()
    assert b"secret" not in reply
    assert wire.decode(reply)["failed"] == {"kind": "error", "type": "ValueError"}
    said = (tmp_path / "worker.log").read_text()
    assert "ValueError: row 7 is secret" in said
    assert "in fails" in said


def test_a_site_that_is_none(folder):
    changed(own(folder) / "site.toml", "south", "west")
    with pytest.raises(InputError, match="no site 'west'"):
        SiteFile.read(own(folder) / "site.toml")


def test_check_says_what_is_run_and_what_is_told(folder):
    bring(folder)
    console = Console(record=True, width=200)
    federation.check(own(folder), console)
    said = console.export_text()
    assert "south has 5 rows" in said
    assert "ScaffPD" in said
    assert Agreement.read(folder / "federation.toml").fingerprint in said


def test_settings_that_the_study_does_not_take_are_said(folder):
    bring(folder)
    changed(own(folder) / "federation.toml", "rho = 0.1", "rhoo = 0.1")
    with pytest.raises(InputError, match=r"settings.*study\.py:study.*rho"):
        federation.check(own(folder), Console(quiet=True))


def test_a_file_that_is_not_there_is_named_with_its_site(folder):
    site = bring(folder)
    site.check_sources()
    (own(folder) / "rows.npz").unlink()
    with pytest.raises(InputError, match=r"south: there is no file rows\.npz"):
        site.check_sources()
