"""Kits: what FLARE's provisioning makes for every party, with what a federation needs beside it.

A kit is a folder with a party's keys and certificates (``startup``, signed and not to be changed) and its own settings
(``local``). Whoever makes the kits holds the key of the project's authority; each party is sent its own kit and no other.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fedminimax.errors import InputError
from fedminimax.flare import labels
from fedminimax.flare.agreement import FEDERATION_FILE, STATE, Agreement

PROJECT_FILE, FILES, RUN = "project.yml", "fedminimax", "run"
_WRITTEN = "# Written from federation.toml, and written anew when that changes, unless you change this file ({digest})."
_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "operate", "shell_commands", "byoc")
_ROLES = ("project_admin", "org_admin", "lead", "member")
_NOBODY = {
    "format_version": "1.0",
    "permissions": {role: {"view": "any"} | dict.fromkeys(_RIGHTS, "none") for role in _ROLES},
}
"""What people may do at a site over FLARE: see whether it is there. Nobody may run a job there, or a command."""
_SECONDS = 120


def project(agreement: Agreement) -> str:
    """Return the project file of a federation, as FLARE's provisioning reads it."""
    server = agreement.server
    parties = [
        f"  - {{name: {server.host}, type: server, org: server, fed_learn_port: {server.port}}}",
        f"  - {{name: {labels.COORDINATOR}, type: client, org: server}}",
        *(f"  - {{name: {name}, type: client, org: {_organisation(name)}}}" for name in agreement.sites),
        f"  - {{name: {server.admin}, type: admin, org: server, role: project_admin}}",
    ]
    text = "\n".join(
        [
            "# Who takes part. `fedminimax federation kits` makes a kit with keys and certificates for each of them.",
            "api_version: 3",
            f"name: {agreement.name}",
            f"description: the federation {agreement.name}",
            "participants:",
            *parties,
            "builders:",
            "  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder",
            "    args: {template_file: [master_template.yml]}",
            "  - path: nvflare.lighter.impl.static_file.StaticFileBuilder",
            "    args: {config_folder: config, scheme: grpc}",
            "  - path: nvflare.lighter.impl.cert.CertBuilder",
            "  - path: nvflare.lighter.impl.signature.SignatureBuilder",
            "",
        ]
    )
    return f"{_WRITTEN.format(digest=_digest(text))}\n{text}"


def project_file(agreement: Agreement) -> Path:
    """Return the project file beside ``federation.toml``, written anew unless a person has changed it since.

    One that was changed must have the same parties, and the server's port.
    """
    path = agreement.folder / PROJECT_FILE
    head, _, text = path.read_text(encoding="utf-8").partition("\n") if path.exists() else ("", "", "")
    if not path.exists() or head == _WRITTEN.format(digest=_digest(text)):
        path.write_text(project(agreement), encoding="utf-8")
    elif _parties(text) != _parties(project(agreement)):
        raise InputError(
            f"{path} was changed, and has other parties, or another port of the server, than {FEDERATION_FILE}: change one of "
            "them, or remove the former to have it written anew."
        )
    return path


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parties(text: str) -> Any:
    """Return the names, kinds and ports of a project's parties; None: it cannot be read."""
    yaml: Any = importlib.import_module("yaml")  # which comes with FLARE
    try:
        return sorted((p["name"], p["type"], p.get("fed_learn_port", 0)) for p in yaml.safe_load(text)["participants"])
    except (yaml.YAMLError, LookupError, TypeError, AttributeError):
        return None


def _said(project: Path, about: Collection[str] = ("",)) -> list[str]:
    """Return a project file's lines that have one of some words, without comments; of no file none."""
    lines = project.read_text(encoding="utf-8").splitlines() if project.exists() else []
    return [line for line in lines if not line.startswith("#") and any(word in line for word in about)]


def _organisation(site: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in site)


class Kits:
    """The kits of a federation in a folder.

    Args:
        agreement: what the parties agreed on.
        folder: where the kits are, one folder for each party.
    """

    def __init__(self, agreement: Agreement, folder: Path):
        self.agreement, self.folder = agreement, folder

    @property
    def server(self) -> Path:
        """The server's kit."""
        return self.folder / self.agreement.server.host

    @property
    def coordinator(self) -> Path:
        """The kit of the client that keeps the server's job company, on the server's host."""
        return self.folder / labels.COORDINATOR

    @property
    def admin(self) -> Path:
        """The kit of whoever submits jobs."""
        return self.folder / self.agreement.server.admin

    def site(self, name: str) -> Path:
        """A site's kit."""
        return self.folder / name

    @classmethod
    def provisioned(cls, agreement: Agreement, work: Path) -> Kits:
        """Let FLARE make the kits in a folder; :meth:`furnish` adds to each what a federation needs.

        Args:
            agreement: what the parties agreed on.
            work: where to work; its ``state`` then holds the authority's key, and stays with whoever runs the project.
        """
        work = work.resolve()  # FLARE runs in it
        work.mkdir(parents=True, exist_ok=True)
        file = project_file(agreement).resolve()
        before = len(list((work / agreement.name).glob("prod_*")))
        command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(file), "-w", str(work), "--force"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=_SECONDS, check=False)
        made = sorted((work / agreement.name).glob("prod_*"))
        if done.returncode or len(made) == before:
            raise InputError(f"FLARE made no kits: {(done.stderr or done.stdout).strip().splitlines()[-1:]}.")
        shutil.copy(file, made[-1] / PROJECT_FILE)
        return cls(agreement, made[-1])

    @property
    def are_of_now(self) -> bool:
        """Whether they were made of the project file as it is now; its comments do not matter."""
        return _said(self.folder / PROJECT_FILE) == _said(project_file(self.agreement))

    def take_over(self, before: Kits) -> None:
        """Go on with what was begun with other kits of the same sites: the run in the server's, the state in each site's."""
        sites = {"type: client"}
        if _said(before.folder / PROJECT_FILE, sites) != _said(self.folder / PROJECT_FILE, sites):
            return
        for run in before.folder.glob(f"*/{RUN}"):
            shutil.copytree(run, self.server / RUN)
        for site in self.agreement.sites:
            state = Path("local", FILES, STATE)
            if (before.site(site) / state).is_dir():
                shutil.copytree(before.site(site) / state, self.site(site) / state)

    def furnish(self) -> None:
        """Write into every kit's ``local`` folder what a federation needs there, on top of FLARE's defaults."""
        _furnish(self.server, self._server_resources)
        _furnish(self.coordinator, _coordinator_resources)
        for name in self.agreement.sites:
            _furnish(self.site(name), _site_resources)
            (self.site(name) / "local" / "authorization.json").write_text(json.dumps(_NOBODY, indent=2), encoding="utf-8")
        for kit in (self.server, *map(self.site, self.agreement.sites)):
            self._copy_files(kit / "local" / FILES)

    def _copy_files(self, target: Path) -> None:
        """Copy the agreement and the study's own file, where it has one: the same bytes for everybody."""
        target.mkdir(exist_ok=True)
        source = self.agreement.folder
        module = self.agreement.study.function.partition(":")[0]
        for name in (FEDERATION_FILE, module if module.endswith(".py") else ""):
            if name:
                shutil.copy(source / name, target / Path(name).name)

    def _server_resources(self, resources: dict[str, Any]) -> None:
        _allow(resources, "fedminimax.flare.coordinator.Coordinator")
        # By default FLARE keeps jobs in a shared folder of the system's.
        stores = {part["id"]: part for part in resources["components"]}
        stores["job_manager"]["args"]["uri_root"] = str(self.server / "jobs")
        resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(self.server / "snapshots")


def _furnish(kit: Path, change: Any) -> None:
    """Write a kit's resources.json: FLARE's default with a change."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    change(resources)
    (local / "resources.json").write_text(json.dumps(resources, indent=2), encoding="utf-8")


def _allow(resources: dict[str, Any], name: str) -> None:
    resources["class_allow_list"] = [name]


def _coordinator_resources(resources: dict[str, Any]) -> None:
    """Let the coordinator keep the server's job company, and nothing else."""
    _allow(resources, "fedminimax.flare.idle.Idle")
    _keep_logs(resources)


def _keep_logs(resources: dict[str, Any]) -> None:
    """Send no logs. FLARE would also add a component to every job for it, which is not among those that are allowed."""
    resources["allow_log_streaming"] = False
    resources["components"] = [part for part in resources["components"] if part["id"] != "site_log_streamer"]


def _site_resources(resources: dict[str, Any]) -> None:
    """Let a site answer a federation, run no job of anybody's, and send no logs."""
    resources["class_allow_list"] = []
    _keep_logs(resources)
    resources["components"].append({"id": FILES, "path": "fedminimax.flare.site.Site", "args": {"folder": FILES}})
