"""A real Ray cluster of three nodes on this machine, one of which dies on the way.

The cluster and the driver live in a process of their own: Ray leaves threads and sockets behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from trial_work import Trial, expected, layered, results, sound

from warp_unlearning.errors import InputError
from warp_unlearning.runs import ray as module
from warp_unlearning.runs.drain import EngineError
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.local import packed
from warp_unlearning.runs.ray import drain_there, run_ray
from warp_unlearning.runs.store import Store

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")

WIDTH = 4
SLEEP = 0.4

DRIVER = f"""
import json, os, signal, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
from trial_work import Trial, Unloadable, layered, threads
from warp_unlearning.runs.drain import EngineError
from warp_unlearning.runs.jobs import Job
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.ray import run_ray
from warp_unlearning.runs.store import Store

folder = Path(sys.argv[1])
node = {{"num_cpus": 1, "object_store_memory": 80_000_000}}
cluster = Cluster(initialize_head=True, head_node_args=node | {{"include_dashboard": False}})
nodes = [cluster.add_node(**node) for _ in range(2)]
told = {{}}

def run(name, jobs, watch=None, work=None):
    marks = folder / f"{{name}}-marks"
    marks.mkdir(exist_ok=True)
    store = Store(folder / name)
    tell = None if watch is None else lambda failures: watch(store)
    outcome = run_ray(jobs, work or Trial(marks), store, address=cluster.address, watch=tell)
    told[name] = {{
        "done": len(outcome.done),
        "found": len(outcome.found),
        "failed": list(outcome.failed.values()),
        "blocked": len(outcome.blocked),
    }}

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

def kill_a_node(store):
    if len(store.digests()) < 3 or len(nodes) < 2:
        return
    node = nodes.pop()
    raylet = node.all_processes["raylet"][0].process.pid
    told["at the kill"] = list(store.digests())
    # With all that runs on it, as when a machine dies: a worker outlives its raylet by a moment otherwise.
    for pid in (raylet, *children(raylet)):
        os.kill(pid, signal.SIGKILL)
    cluster.remove_node(node, allow_graceful=False)

run("undisturbed", layered({WIDTH}, sleep={SLEEP}))
run("undisturbed", layered({WIDTH}, sleep={SLEEP}))
run("ills", [
    Job(Key("k", 1, {{"does": "raise"}})),
    Job(Key("k", 1, {{"after": "raise"}}), (Key("k", 1, {{"does": "raise"}}),)),
    Job(Key("k", 1, {{"does": "die once"}})),
])
run("threads", [Job(Key("k", 1, {{}}))], work=threads)
for name, work, gpus in (("unloadable", Unloadable(), 0.0), ("greedy", Unloadable(), 1.0)):
    try:
        run_ray([Job(Key("k", 1, {{}}))], work, Store(folder / name), address=cluster.address, gpus=gpus)
    except EngineError as error:
        told[name] = str(error)
run("killed", layered({WIDTH}, sleep={SLEEP}), kill_a_node)
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


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("name", ["undisturbed", "killed"])
def test_three_nodes_and_two_after_a_death_reach_the_same_bits(folder: Path, told: dict[str, Any], name: str) -> None:
    jobs, store = layered(WIDTH, sleep=SLEEP), Store(folder / name)
    assert results(store, jobs) == expected(jobs)
    assert not sound(store)
    assert told[name]["failed"] == []
    assert told["nodes left"] == 2


@needs_ray
@pytest.mark.slow
def test_nothing_that_had_finished_is_run_twice(folder: Path, told: dict[str, Any]) -> None:
    jobs = layered(WIDTH, sleep=SLEEP)
    undisturbed, killed = (Trial(folder / f"{name}-marks") for name in ("undisturbed", "killed"))
    assert all(undisturbed.begun(job.key) == 1 for job in jobs)
    assert len(undisturbed.processes()) >= 3
    assert told["undisturbed"]["found"] == len(jobs)
    assert 3 <= len(told["at the kill"]) < len(jobs)
    assert told["killed"]["done"] == len(jobs)
    begun = {job.key.digest: killed.begun(job.key) for job in jobs}
    assert all(begun[digest] == 1 for digest in told["at the kill"])
    # One job at most was under way on the node that died.
    assert len(jobs) <= sum(begun.values()) <= len(jobs) + 1


@needs_ray
@pytest.mark.slow
def test_ills_of_one_job_stay_with_it(told: dict[str, Any]) -> None:
    assert told["ills"] == {"done": 1, "found": 0, "failed": ["the lamp is out"], "blocked": 1}


@needs_ray
@pytest.mark.slow
def test_what_no_node_can_do_is_a_clear_error(told: dict[str, Any]) -> None:
    assert "cannot do jobs; install the same version" in told["unloadable"]
    assert "made in another process" in told["unloadable"]
    assert "asks for 1 cores and 1 GPUs" in told["greedy"]
    assert "has 3 and 0" in told["greedy"]


@needs_ray
@pytest.mark.slow
def test_a_task_has_one_thread(folder: Path) -> None:
    assert Store(folder / "threads").read(Key("k", 1, {})).read("threads.txt").startswith(b"1 1 ")


def test_a_machine_that_sees_another_store_refuses(tmp_path: Path) -> None:
    store, other = Store(tmp_path / "store"), Store(tmp_path / "other")
    (tmp_path / "marks").mkdir()
    job = Job(Key("k", 1, {}))
    plan = packed(Trial(tmp_path / "marks")), (job,)
    refusal = f"does not see the store {store.root} of the driver; put the store on a disk"
    assert refusal in drain_there(plan, store, other.identity, "run", 1, 1, None)
    assert store.identity
    assert refusal in drain_there(plan, store, other.identity, "run", 1, 1, None)
    assert not store.has(job.key)
    assert drain_there(plan, other, other.identity, "run", 1, 1, None) == ""
    assert other.has(job.key)


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(EngineError, match=r"needs the extra `ray` .* pip install 'warp-unlearning\[ray\]'"):
        run_ray([], Trial(tmp_path), Store(tmp_path / "store"))


@pytest.mark.parametrize("options", [{"cpus": -1}, {"threads": 0}, {"retries": -1}, {"cpus": 0}])
def test_bad_input(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"or more|give one of them"):
        run_ray([], Trial(tmp_path), Store(tmp_path / "store"), **options)  # type: ignore[arg-type]


class NoCluster:
    """Stands in for Ray: there is no cluster."""

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore.")


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
    monkeypatch.setattr(module, "import_module", lambda name: NoCluster())
    store = Store(tmp_path / "store")
    with pytest.raises(error) as told:
        run_ray([Job(Key("k", 1, {}))], Trial(tmp_path), store, address=address)
    assert words in str(told.value)
    done = Key("k", 1, {"i": 1})
    store.write(done, {})
    # What is finished needs no cluster.
    assert run_ray([Job(done)], Trial(tmp_path), store, address=address).complete
