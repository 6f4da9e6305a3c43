"""The small audit on a real Ray cluster of three nodes on this machine, one of them killed in the middle.

The cluster and the driver live in a process of their own: Ray leaves threads and sockets behind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from warp_unlearning.config import ShadowConfig, resolve_as
from warp_unlearning.runs.local import run_local
from warp_unlearning.workflows.audit_shadow import ShadowRequest, carry_out, prepare_shadows

DRIVER = """
import json, os, signal, sys
from pathlib import Path
from ray.cluster_utils import Cluster
from warp_unlearning.config import ShadowConfig, resolve_as
from functools import partial
from warp_unlearning.runs.ray import run_ray
from warp_unlearning.workflows.audit_shadow import ShadowRequest, carry_out, prepare_shadows

folder = Path(sys.argv[1])
node = {"num_cpus": 1, "object_store_memory": 80_000_000}
cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
nodes = [cluster.add_node(**node) for _ in range(2)]
told = {}
for name in ("undisturbed", "killed"):
    prepared = prepare_shadows(ShadowRequest(resolve_as(ShadowConfig, file=folder / "config.yaml"), folder / name))

    def watch(failures):
        if name == "killed" and len(prepared.store.digests()) >= 15 and len(nodes) == 2:
            gone = nodes.pop()
            os.kill(gone.all_processes["raylet"][0].process.pid, signal.SIGKILL)
            cluster.remove_node(gone, allow_graceful=False)

    results = carry_out(prepared, partial(run_ray, address=cluster.address), watch=watch)
    told[name] = {
        "digest": results["digests"]["results"],
        "failures": results["failures"],
        "finished": len(prepared.store.digests()),
        "jobs": len(prepared.plan.jobs),
    }
told["nodes left"] = 1 + len(nodes)
(folder / "told.json").write_text(json.dumps(told))
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_a_cluster_reaches_the_same_results_and_loses_a_node_in_between(blobs: Path, tmp_path: Path) -> None:
    settings = {
        "data": {"name": "npz", "path": str(blobs)},
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "training": {"epochs": 2, "batch_size": 16},
        "methods": ["ngp"],
        "method_options": {"ngp": {"epochs": 1, "batch_size": 16}},
        "defenses": ["cob"],
        "shadows": 4,
        "forget_sets": 2,
        "share": 0.5,
        "device": "cpu",
        "defense_seed": 20,
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings))
    local = carry_out(
        prepare_shadows(ShadowRequest(resolve_as(ShadowConfig, base=settings), tmp_path / "local")),
        partial(run_local, workers=2),
    )
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["nodes left"] == 2
    for name in ("undisturbed", "killed"):
        assert told[name]["digest"] == local["digests"]["results"]
        assert told[name]["failures"] == []
        assert told[name]["finished"] == told[name]["jobs"] == 42
