"""How fast this machine trains, defends and attacks, each beside a plain PyTorch loop in the same run: `warp bench`."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..data.files import write_atomically
from ..data.preprocess import ImageData, load_data
from ..errors import InputError
from ..models.modes import choose_device
from ..models.networks import build_model, suggest_options
from ..randomness import Streams
from ..runs.directory import RunDirectory
from ..studies.gradient_test_speed import GradientTestSpeed, gradient_test_speed
from ..studies.study import NEEDS_DATA, SIZES, Size
from ..studies.training_speed import Speed, Workload, training_speeds
from ..training.recipe import Recipe
from ..unlearning.record import now, versions

RESULTS, TABLE = "results.json", "table.md"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class BenchRequest:
    """What to time and where the numbers go. `at_once` are sizes of fleets; `workers` processes of the plain loop's
    loader.
    """

    out: Path
    size: str = "auto"
    data_path: Path | None = None
    at_once: Sequence[int] = (1, 8)
    workers: int | None = None
    plain_updates: int = 30
    device: str = "auto"


def bench(request: BenchRequest) -> dict[str, Any]:
    """Time training and the gradient-difference test, and write the numbers and a table."""
    device = choose_device(request.device)
    name = request.size if request.size != "auto" else ("paper" if device.type == "cuda" else "small")
    if name not in SIZES:
        raise InputError(f"there is no size {name!r}; give {', '.join(SIZES)} or auto")
    if any(count < 1 for count in request.at_once):
        raise InputError(f"models at once are {list(request.at_once)}; give numbers from 1 on")
    size = SIZES[name]
    work = _workload(size, _data(name, request.data_path), device)
    # Where jobs take turns in one process, only a GPU gains from several.
    fleets = request.at_once if device.type == "cuda" else (1,)
    workers = min(8, os.cpu_count() or 1) if request.workers is None else request.workers
    speeds = training_speeds(work, at_once=fleets, workers=workers, plain_updates=request.plain_updates)
    test = gradient_test_speed(
        work.network(0).to(device),
        work.examples,
        count=min(size.pair_examples, len(work.examples) // 2),
        generator=Streams(0, "bench").generator("noise"),
    )
    results = _results(name, size, speeds, test, device)
    request.out.mkdir(parents=True, exist_ok=True)
    RunDirectory(request.out, "bench").write_json(RESULTS, results)
    write_atomically(request.out / TABLE, bench_markdown(results).encode())
    return results


def _workload(size: Size, data: ImageData, device: torch.device) -> Workload:
    half = (len(data.train) - size.validation) // 2
    options = {**suggest_options(size.network, data.shape, len(data.classes)), **size.network_options}

    def network(seed: int) -> torch.nn.Module:
        return build_model(size.network, generator=Streams(seed, "bench").generator("weights"), **options)

    order = torch.randperm(len(data.train), generator=Streams(0, "bench").generator("half"))
    return Workload(network, data.train.select(order[:half]).to(device), Recipe(**size.training), data.fill)


def _data(name: str, path: Path | None) -> ImageData:
    if name in NEEDS_DATA and path is None:
        raise InputError(f"the size {name} needs {NEEDS_DATA[name]}, or give --size small")
    return load_data(**SIZES[name].data, path=path if name in NEEDS_DATA else None)


def _results(
    name: str, size: Size, speeds: Sequence[Speed], test: GradientTestSpeed, device: torch.device
) -> dict[str, Any]:
    plain = speeds[0].seconds_an_update
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": "bench",
        "size": name,
        "data": size.data["name"],
        "network": size.network,
        "training": [{**asdict(s), "faster": plain / s.seconds_an_update} for s in speeds],
        "gradient_test": {**asdict(test), "faster": test.faster},
        "date": now(),
        "versions": versions(),
        "hardware": {
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count() or 0,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        },
    }


def bench_markdown(results: dict[str, Any]) -> str:
    """The numbers as Markdown tables."""
    lines = [
        f"{results['network']} on {results['data']}, {results['hardware']['device']}, torch "
        f"{results['versions']['torch']}",
        "",
        "| training | ms an update | seconds a model | times the plain loop | share of the matrix rate |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name']} | {1e3 * row['seconds_an_update']:.3f} | {row['seconds_a_model']:.1f} | "
        f"{row['faster']:.2f} | {100 * row['utilisation']:.1f} % |"
        for row in results["training"]
    ]
    test = results["gradient_test"]
    lines += [
        "",
        f"Gradient-difference test of {test['examples']} examples: {test['seconds']:.2f} s; the gradients alone, one "
        f"by one in a plain loop, {test['faster']:.1f} times as long.",
        "",
    ]
    return "\n".join(lines)
