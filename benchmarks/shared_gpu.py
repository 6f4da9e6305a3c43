"""Processes that share one GPU under NVIDIA's MPS: `python benchmarks/shared_gpu.py DATA.npz --shares 25 100`.

Each process unlearns models of the paper's table, arms in the proportions of the study, in lanes side by side, starting
from one ResNet-18 (ImageNet stem) trained for a few epochs on images of an .npz. For every share of the GPU that a
process may use (`CUDA_MPS_ACTIVE_THREAD_PERCENTAGE`), prints updates and teleports per second of all processes between
`--warm-up` and `--seconds` after their start. MPS must run (`nvidia-cuda-mps-control -d`), or all shares are alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from time import time

import numpy as np
import torch

from warp_unlearning.defense.registry import make_defense
from warp_unlearning.gpu.precision import lay_out
from warp_unlearning.methods.base import Task
from warp_unlearning.methods.registry import make_method
from warp_unlearning.models.fresh import reinitialise
from warp_unlearning.models.networks import ResNet18
from warp_unlearning.randomness import Streams
from warp_unlearning.runs.jobs import Job, Steps
from warp_unlearning.runs.keys import Key
from warp_unlearning.runs.local import Lanes, run_here
from warp_unlearning.runs.store import Store
from warp_unlearning.studies.study import Asked, study_settings
from warp_unlearning.studies.workplace import Workplace
from warp_unlearning.training.training import RECIPES, Training, run_training
from warp_unlearning.unlearning.driver import drive, working_copy
from warp_unlearning.workflows.engines import GpuLane

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class TimeIsUp(BaseException):
    """Ends a run in the middle of a job."""


class Load:
    """Unlearns one model after another, and notes when."""

    def __init__(self, options: argparse.Namespace, end: float) -> None:
        self.place = Workplace({"name": "npz", "path": options.data}, options.device)
        self.end, self.seed = end, options.child
        asked = Asked(device=options.device, defenses=("none", "warp"))
        self.mix = [arm for arm in study_settings("table1", "paper", asked).arms for _ in range(arm.sets)]
        Random(options.child).shuffle(self.mix)
        self.original = ResNet18(classes=10, stem="imagenet")
        self.original.load_state_dict(torch.load(options.original))
        self.original = lay_out(self.original.to(self.place.device)).eval()
        self.updates: list[float] = []
        self.teleports: list[float] = []

    def __call__(self, job: Job, store: Store) -> Steps:
        """One model."""
        number = job.key.ingredients["i"]
        arm, place = self.mix[number % len(self.mix)], self.place
        place.tidy()
        order = np.random.default_rng([self.seed, number]).permutation(len(place.train))
        tenth, held = len(order) // 10, len(order) // 20
        parts = (order[:tenth], order[tenth:-held], order[-held:])
        forget, retain, validation = (place.points(np.sort(part)) for part in parts)
        original = working_copy(self.original, place.device).requires_grad_(False).eval()
        task = Task(forget, retain, validation, original, 10, Streams(number, "load"), place.compute())
        updates = drive(
            working_copy(self.original, place.device),
            task,
            make_method(arm.method, **arm.method_settings),
            defense=None if arm.defense is None else make_defense(arm.defense, **arm.defense_settings),
            secret=Streams.secret(number),
            interval=100,
        )
        every = arm.defense_settings.get("every")
        for update in updates:
            self.updates.append(time())
            if arm.defense is not None and (update.ends_epoch if every is None else update.step % every == 0):
                self.teleports.append(time())
            if time() > self.end:
                raise TimeIsUp
            yield
        return {"done": b""}


def child(options: argparse.Namespace) -> None:
    began = time()
    load = Load(options, began + options.seconds)
    jobs = [Job(Key("load", 1, {"i": i})) for i in range(1000)]
    with tempfile.TemporaryDirectory() as folder, suppress(TimeIsUp):
        lanes = Lanes(options.lanes, GpuLane(options.device))
        run_here(jobs, load, Store(Path(folder) / "store"), lanes=lanes)
    times = (load.updates, load.teleports)
    counted = [sum(options.warm_up <= t - began < options.seconds for t in each) for each in times]
    print(json.dumps(counted), flush=True)


def train(options: argparse.Namespace) -> None:
    place = Workplace({"name": "npz", "path": options.data}, options.device)
    model = ResNet18(classes=10, stem="imagenet")
    reinitialise(model, generator=Streams(0).generator("weights"))
    recipe = replace(RECIPES["paper"], epochs=options.epochs)
    training = Training(
        model.to(place.device), place.train, recipe=recipe, streams=Streams(0, "load"), fill=place.data.fill
    )
    run_training(training)
    torch.save({name: value.cpu() for name, value in training.model.state_dict().items()}, options.original)


def measured(options: argparse.Namespace, share: int) -> list[list[int]]:
    environment = {**os.environ, SHARE: str(share), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *sys.argv[1:], "--original", str(options.original)]
    children = [
        subprocess.Popen([*command, "--child", str(i)], env=environment, stdout=subprocess.PIPE, text=True)
        for i in range(1, options.processes + 1)
    ]
    said = [process.communicate()[0] for process in children]
    return [json.loads(text.splitlines()[-1]) for text in said if text.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--lanes", type=int, default=2)
    parser.add_argument("--shares", type=int, nargs="+", default=[25, 100])
    parser.add_argument("--seconds", type=float, default=46)
    parser.add_argument("--warm-up", type=float, default=20)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--original", type=Path)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.original is None:
            options.original = Path(folder) / "original.pt"
            train(options)
        window = options.seconds - options.warm_up
        for share in options.shares:
            counted = measured(options, share)
            updates, teleports = (sum(each) / window for each in zip(*counted, strict=True))
            print(
                f"share {share} %: {updates:.1f} updates and {teleports:.2f} teleports a second "
                f"by {len(counted)} of {options.processes} processes",
                flush=True,
            )


if __name__ == "__main__":
    main()
