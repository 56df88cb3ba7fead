"""What the processes of a mesh tell each other when something goes wrong, with a service in memory in place of JAX's."""

import atexit
import os
import threading
import time

import jax
import numpy as np
import pytest

from fedminimax import distributed
from fedminimax.engines.mesh import Mesh
from fedminimax.engines.mesh import channel as channels
from fedminimax.engines.mesh import watch as watching
from fedminimax.engines.mesh.placement import device_mesh
from fedminimax.engines.mesh.saving import Saving
from fedminimax.engines.mesh.watch import Lost, Watch
from fedminimax.engines.rows import OwnStates
from fedminimax.errors import InputError


class Service:
    """JAX's coordination service, as far as it is asked here."""

    def __init__(self):
        self.kept, self._news = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self._news:
            self.kept[key] = value
            self._news.notify_all()

    def key_value_delete(self, key):
        self.kept.pop(key, None)

    def key_value_try_get(self, key):
        return self.kept[key]

    def key_value_dir_get(self, folder):
        return [(key, value) for key, value in list(self.kept.items()) if key.startswith(folder)]

    def blocking_key_value_get(self, key, milliseconds):
        with self._news:
            if not self._news.wait_for(lambda: key in self.kept, milliseconds / 1000):
                raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED")
            return self.kept[key]


@pytest.fixture
def two(monkeypatch):
    """Return what makes this process one of two, whose other is only what the service knows of it."""
    service, started = Service(), []
    monkeypatch.setattr(distributed, "service", lambda: service)
    monkeypatch.setattr(atexit, "register", lambda work: work)
    monkeypatch.setattr(watching, "_BEAT", 0.02)

    def make(process, patience=5.0):
        place = distributed.Place(process, 2, patience)
        monkeypatch.setattr(distributed, "place", lambda: place)
        started.append(Watch(place))
        monkeypatch.setattr(channels, "watch", lambda: started[-1])
        return channels.Channel(device_mesh(1)), started[-1], service

    yield make
    for watch in started:
        watch._over.set()
        for thread in watch._threads:
            thread.join(5)


def beats(service, watch):
    """Show for a while that the other process lives."""

    def beat():
        for count in range(500):
            if watch._over.wait(0.01):
                return
            service.key_value_set("fedminimax/beat/1", f"{count} 0")

    threading.Thread(target=beat, daemon=True).start()


def said(service):
    return [value for key, value in sorted(service.kept.items()) if key.startswith("fedminimax/said/")]


def test_what_goes_wrong_between_collectives_is_said_to_those_who_listen(two):
    channel, watch, service = two(0)
    beats(service, watch)
    with pytest.raises(InputError, match="is locked"), channel.leading():
        raise InputError("The folder is locked.")
    assert said(service) == ["failed Process 0 ended the run: The folder is locked."]
    assert watch.verdict is None


def test_what_goes_wrong_in_a_collective_ends_those_who_wait_in_it(two):
    channel, watch, service = two(0)
    beats(service, watch)
    with pytest.raises(MemoryError), channel.leading(), channel.meeting():
        raise MemoryError("no room")
    assert watch.verdict is not None
    assert watch.verdict.startswith("Process 0 failed (MemoryError: no room)")


def test_an_error_of_one_process_is_told_whatever_it_is(two):
    channel, watch, service = two(1)
    threading.Timer(0.1, lambda: service.key_value_set("fedminimax/verdict", "The end.")).start()
    with pytest.raises(InputError, match="wrong share"), channel.in_step():
        raise InputError("wrong share")
    assert service.kept["fedminimax/failed/1"] == "InputError: wrong share"
    assert watch.verdict == "The end."


def test_an_error_that_all_know_of_is_told_no_further(two):
    channel, _, service = two(1)
    service.key_value_set(f"fedminimax/said/{channels.Channel._said}", "failed The folder is locked.")
    with pytest.raises(InputError, match="is locked"), channel.in_step():
        channel.hear()
    assert "fedminimax/failed/1" not in service.kept


def test_who_listens_to_a_process_0_that_has_ended_hears_of_it(two):
    channel, _, service = two(1)
    service.key_value_set("fedminimax/beat/0", "left")
    before = time.monotonic()
    with pytest.raises(Lost, match="Process 0 ended before the run was over"):
        channel.hear()
    assert time.monotonic() - before < 3


def test_a_process_0_that_takes_no_signs_of_life_is_lost(two, monkeypatch):
    freed, keep = threading.Event(), Service.key_value_set
    _, watch, service = two(1, patience=0.2)
    time.sleep(0.5)
    assert watch.verdict is None
    monkeypatch.setattr(service, "key_value_set", lambda *given, **more: (freed.wait(30), keep(service, *given, **more)))
    assert watch._known.wait(10)
    freed.set()
    assert "Process 0, through which all others know of each other, was lost: it has not answered for" in watch.verdict


def test_who_keeps_the_others_waiting_is_named(two, monkeypatch, capfd):
    channel, watch, service = two(0, patience=0.2)
    service.key_value_set("fedminimax/who/1", "pid 4711 on node-7")
    beats(service, watch)
    with channel.leading(), channel.meeting():
        time.sleep(0.6)
    assert "Process 1 (pid 4711 on node-7) did not come for" in capfd.readouterr().err
    assert watch.verdict is None


# -- who else is there ----------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """Return what a process is told by a launcher, and by nobody else."""
    monkeypatch.setattr(distributed, "_JOINED", [])
    monkeypatch.setattr(distributed, "_APART", [])
    for name in [name for name in os.environ if name.startswith(("FEDMINIMAX_PROCESS", "SLURM_", "OMPI_", "PMI_"))]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_one_of_many_processes_that_has_not_joined_is_told_so(alone):
    Mesh()
    alone.setenv("SLURM_NTASKS", "4")
    Mesh()  # a shell of the job, in which nothing was started with srun
    alone.setenv("SLURM_PROCID", "0")
    alone.setenv("SLURM_STEP_NODELIST", "node[1-2]")
    with pytest.raises(InputError, match="one of 4 processes"):
        Mesh()
    alone.setenv("SLURM_STEP_NUM_TASKS", "1")
    Mesh()
    alone.delenv("SLURM_STEP_NODELIST")
    alone.setenv("OMPI_COMM_WORLD_RANK", "1")
    alone.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(InputError, match=r"one of 2 processes.*distributed\.join\(\)"):
        Mesh()
    distributed.join(processes=1)
    Mesh()


def test_processes_watch_each_other_from_the_start_and_wait_for_each_other_at_the_end(alone):
    given, began = {}, []
    alone.setattr(distributed, "service", lambda: None)
    alone.setattr(jax.distributed, "initialize", lambda **more: given.update(more))
    alone.setattr(jax.config, "update", lambda name, value: None)
    alone.setattr(jax, "process_count", lambda: 2)
    alone.setattr(watching, "watch", lambda: began.append(distributed.place()))
    distributed.join("127.0.0.1:1", 2, 0, patience=3)
    assert began == [distributed.Place(0, 2, 3)]
    assert given["shutdown_timeout_seconds"] >= 3600


def test_a_port_that_is_taken_is_named(alone):
    def taken(**more):
        raise RuntimeError("UNKNOWN: Failed to start RPC server")

    alone.setattr(distributed, "service", lambda: None)
    alone.setattr(jax.distributed, "initialize", taken)
    alone.setattr(jax.config, "update", lambda name, value: None)
    with pytest.raises(InputError, match=r"127\.0\.0\.1:23456: the port is taken, .* FEDMINIMAX_COORDINATOR"):
        distributed.join("127.0.0.1:23456", 2, 0)


# -- checkpoints by all ---------------------------------------------------------------------------------------------------


def own(first, last):
    return OwnStates(first, 7, {"c": np.arange(first, last, dtype=np.float32)})


def test_process_0_waits_for_what_the_others_write_and_fails_once_all_have_answered(two, tmp_path):
    channel, watch, service = two(0)
    beats(service, watch)
    lead, other = channel.saving, Saving(distributed.Place(1, 2), watch)
    other.write(own(4, 7), tmp_path, 3)
    assert [part[:3] for part in lead.together(own(0, 4), tmp_path, 3)()] == [
        (0, 4, "clients-0-4.rows"),
        (4, 7, "clients-4-7.rows"),
    ]
    other.write(own(4, 7), tmp_path / "none", 4)
    with pytest.raises(OSError, match=r"process 1: .*all processes must see the folder"):
        lead.together(own(0, 4), tmp_path, 4)()
    threading.Timer(0.3, lambda: other.write(own(4, 7), tmp_path, 5)).start()
    with pytest.raises(OSError, match="process 0: "):
        lead.together(own(0, 4), tmp_path / "none", 5)()
    assert not [key for key in service.kept if "/saved/" in key]  # the other has answered, and was heard
    other.close()
    lead.close()
