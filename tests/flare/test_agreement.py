"""What the parties agree on, and what a site brings: files that are read, checked and compared."""

import numpy as np
import pytest
from rich.console import Console

from fedminimax.commands import federation
from fedminimax.errors import InputError
from fedminimax.flare.agreement import Agreement, SiteFile


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
