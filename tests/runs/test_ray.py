"""The Ray engine on a real cluster of three nodes on this machine, one of them killed in the middle.

The cluster and the driver live in a process of their own: Ray leaves threads and sockets behind.
"""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from trial_work import Trial, expected, layered, results
from warp_unlearning.runs.engine import EngineError
from warp_unlearning.runs.events import ignore
from warp_unlearning.runs.job_work import pack
from warp_unlearning.runs.local_engine import LocalEngine
from warp_unlearning.runs.ray_engine import RayEngine
from warp_unlearning.runs.ray_task import attempt_there

from warp_unlearning.errors import InputError
from warp_unlearning.runs import ray_engine
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.store import Store

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")

WIDTH = 4
SLEEP = 0.4

DRIVER = f"""
import json, os, signal, sys, time
from collections import Counter
from pathlib import Path
from threading import Thread
from ray.cluster_utils import Cluster
from trial_work import Trial, Unloadable, layered, threads
from warp_unlearning.runs.engine import EngineError
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.ray_engine import RayEngine
from warp_unlearning.runs.store import Store

folder = Path(sys.argv[1])
node = {{"num_cpus": 1, "object_store_memory": 80_000_000}}
cluster = Cluster(initialize_head=True, head_node_args=node | {{"include_dashboard": False}})
nodes = [cluster.add_node(**node) for _ in range(2)]
engine = RayEngine(address=cluster.address)
told = {{}}

def run(name, jobs, watch=None, work=None):
    store = Store(folder / name)
    marks = folder / f"{{name}}-marks"
    marks.mkdir(exist_ok=True)
    events = []
    def tell(event):
        events.append(event.as_json())
        if watch:
            watch(event, store, marks)
    outcome = engine.run(jobs, work=work or Trial(marks), store=store, watch=tell)
    told[name] = {{
        "events": events,
        "finished": len(outcome.finished),
        "skipped": len(outcome.skipped),
        "failed": {{key.digest: reason for key, reason in outcome.failed.items()}},
        "blocked": len(outcome.blocked),
    }}

def begun(marks):
    return Counter(mark.name.split(".")[0] for mark in marks.iterdir())

def children(of):
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == of:
            found.add(int(stat.parent.name))
    return found

def under_way(store, marks, raylet):
    mine = children(raylet)
    young = (mark.name.split(".") for mark in marks.iterdir() if time.time() - mark.stat().st_mtime < {SLEEP} / 2)
    return any(int(pid) in mine and digest not in store.digests() for digest, pid, _ in young)

def kill_a_node(store, marks):
    node = nodes.pop()
    raylet = node.all_processes["raylet"][0].process.pid
    while not under_way(store, marks, raylet):
        time.sleep(0.01)
    told["at the kill"] = {{"finished": list(store.digests()), "begun": begun(marks)}}
    # With all that runs on it, as when a machine dies: a worker outlives its raylet by a moment otherwise.
    for pid in (raylet, *children(raylet)):
        os.kill(pid, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)

killers = []

def kill(event, store, marks):
    if event.what == "finished" and len(store.digests()) >= 5 and not killers:
        killers.append(Thread(target=kill_a_node, args=(store, marks)))
        killers[0].start()

run("undisturbed", layered({WIDTH}, sleep={SLEEP}))
run("undisturbed", layered({WIDTH}, sleep={SLEEP}))
told["again"] = told["undisturbed"]
run("ills", [
    Job(Key("k", 1, {{"does": "raise"}})),
    Job(Key("k", 1, {{"after": "raise"}}), (Key("k", 1, {{"does": "raise"}}),)),
    Job(Key("k", 1, {{"does": "die once"}})),
])
run("threads", [Job(Key("k", 1, {{}}))], work=threads)
for name, wrong, jobs in (
    ("unloadable", engine, [Job(Key("k", 1, {{}}))]),
    ("greedy", RayEngine(address=cluster.address, gpus=1.0), [Job(Key("k", 1, {{}}))]),
):
    try:
        wrong.run(jobs, work=Unloadable(), store=Store(folder / name), watch=print)
    except EngineError as error:
        told[name] = str(error)
run("killed", layered({WIDTH}, sleep={SLEEP}), kill)
killers[0].join()
told["at the end"] = begun(folder / "killed-marks")
told["nodes left"] = 1 + len(nodes)
(folder / "told.json").write_text(json.dumps(told))
cluster.shutdown()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    variables = {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    command = [sys.executable, "-c", DRIVER, str(folder)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "told.json").read_text()))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same jobs on the local engine."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "marks").mkdir()
    store = Store(folder / "store")
    jobs = layered(WIDTH, sleep=SLEEP)
    assert LocalEngine().run(jobs, work=Trial(folder / "marks"), store=store, watch=ignore).complete
    return store


def what(events: list[dict[str, Any]], kind: str) -> list[str]:
    return [event["key"] for event in events if event["what"] == kind]


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("name", ["undisturbed", "killed"])
def test_three_nodes_and_two_after_a_death_reach_the_bits_of_the_local_engine(
    folder: Path, local: Store, told: dict[str, Any], name: str
) -> None:
    jobs = layered(WIDTH, sleep=SLEEP)
    store = Store(folder / name)
    assert results(store, jobs) == expected(jobs)
    for job in jobs:
        assert store.read(job.key).read_all() == local.read(job.key).read_all()
    assert told[name]["failed"] == {}
    assert told["nodes left"] == 2


@needs_ray
@pytest.mark.slow
def test_nothing_that_had_finished_is_run_twice(folder: Path, told: dict[str, Any]) -> None:
    jobs = layered(WIDTH, sleep=SLEEP)
    undisturbed = Trial(folder / "undisturbed-marks")
    assert all(undisturbed.begun(job.key) == 1 for job in jobs)
    assert len(undisturbed.processes()) >= 3
    assert told["again"]["skipped"] == len(jobs)
    before, after = told["at the kill"], told["at the end"]
    assert 5 <= len(before["finished"]) < len(jobs)
    assert all(after[digest] == before["begun"][digest] for digest in before["finished"])
    assert told["killed"]["finished"] == len(jobs)
    # One job was under way on the node that died, so it alone was begun again.
    retried = what(told["killed"]["events"], "retried")
    assert len(retried) == 1
    assert {digest for digest, count in after.items() if count > 1} == {*retried}
    assert sum(after.values()) == len(jobs) + 1


@needs_ray
@pytest.mark.slow
def test_ills_of_one_job_stay_with_it(told: dict[str, Any]) -> None:
    ills = told["ills"]
    assert list(ills["failed"].values()) == ["the lamp is out"]
    assert (ills["finished"], ills["blocked"]) == (1, 1)
    assert len(what(ills["events"], "retried")) == 1
    assert len(what(ills["events"], "blocked")) == 1


@needs_ray
@pytest.mark.slow
def test_what_no_node_can_do_is_a_clear_error(told: dict[str, Any]) -> None:
    assert "cannot do jobs; install the same version" in told["unloadable"]
    assert "made in another process" in told["unloadable"]
    assert "asks for 1 cores and 1 GPUs" in told["greedy"]
    assert "has 3 and 0" in told["greedy"]


@needs_ray
@pytest.mark.slow
def test_a_job_has_one_thread(folder: Path, told: dict[str, Any]) -> None:
    assert told["threads"]["finished"] == 1
    assert Store(folder / "threads").read(Key("k", 1, {})).read("threads.txt").startswith(b"1 1 ")


def test_a_machine_that_sees_another_store_refuses(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    (tmp_path / "marks").mkdir()
    work = pack(Trial(tmp_path / "marks"))
    job = Job(Key("k", 1, {}))
    refused = attempt_there(job, work, store, other.identity, 1)
    assert refused.end == "unusable"
    assert f"does not see the store {store.root} of the driver; put the store on a disk" in refused.reason
    assert attempt_there(job, work, Store(tmp_path / "other"), other.identity, 1).end == "finished"
    assert store.identity
    (store.root / "store.json").unlink()
    assert attempt_there(job, work, store, other.identity, 1).end == "unusable"
    assert not store.has(job.key)


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(ray_engine, "import_module", missing)
    with pytest.raises(EngineError, match=r"needs the extra `ray` .* pip install 'warp-unlearning\[ray\]'"):
        RayEngine().run([], work=Trial(tmp_path), store=Store(tmp_path / "store"), watch=ignore)


class NoCluster:
    """Stands in for Ray: there is no cluster."""

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        raise builtins.ConnectionError("Could not find any running Ray instance.\nMore.")


@pytest.mark.parametrize(
    ("address", "error", "words"),
    [
        ("127.0.0.1:1", EngineError, "reached at '127.0.0.1:1': Connection refused; start one with `ray start --head`"),
        ("ray://127.0.0.1:1", EngineError, "Connection refused; start one"),
        ("auto", EngineError, "reached at 'auto': Could not find any running Ray instance.; start one"),
        ("nonsense", InputError, "is 'nonsense'; give HOST:PORT"),
        ("host:port", InputError, "is 'host:port'; give HOST:PORT"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, error: type[Exception], words: str
) -> None:
    monkeypatch.setattr(ray_engine, "import_module", lambda name: NoCluster())
    store = Store(tmp_path / "store")
    with pytest.raises(error) as told:
        RayEngine(address=address).run([Job(Key("k", 1, {}))], work=Trial(tmp_path), store=store, watch=ignore)
    assert words in str(told.value)
    done = Key("k", 1, {"i": 1})
    store.write(done, {})
    # What is finished needs no cluster.
    assert RayEngine(address=address).run([Job(done)], work=Trial(tmp_path), store=store, watch=ignore).complete


@pytest.mark.parametrize("options", [{"cpus": -1}, {"gpus": -1}, {"threads": 0}, {"retries": -1}, {"cpus": 0}])
def test_numbers_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="give"):
        RayEngine(**options)
