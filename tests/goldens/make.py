"""Final weights of short runs in float64 and the numbers of their certificates, which `tests/test_goldens.py` compares.

`python tests/goldens/make.py NAME...` records the cases whose names start with one of NAME and keeps the others.
Undefended methods were recorded from 7ddca7e; `srf_on`, `langevin` and all defended runs from 0cc5cb9.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from warp_unlearning import ChangeOfBasis, Conjugate, Warp, unlearn
from warp_unlearning.methods import make_method

FILE = Path(__file__).with_name("weights.npz")
CERTIFICATES = "numbers of the certificates"

SETTINGS: dict[str, dict[str, dict[str, object]]] = {
    "ngp": {
        "default": {},
        "odd": {"alpha": 0.9, "batch_size": 37, "anchor": 0.1, "saturate": True, "max_norm": 0.7, "norm_mode": "eval"},
    },
    "scrub": {
        "default": {},
        "odd": {
            "optimizer": "adam",
            "temperature": 2.0,
            "retain_batch_size": 37,
            "forget_batch_size": 7,
            "rewind": True,
        },
    },
    "salun": {"default": {}, "odd": {"keep": 0.3, "exclude_true_label": True, "batch_size": 37}},
    "pgu": {
        "default": {"epochs": 12},
        "odd": {
            "epochs": 12,
            "energy": 0.7,
            "rule": "singular_values",
            "batch_size": 11,
            "momentum": 0.5,
            "stop": False,
        },
    },
    "bad_teacher": {"default": {}, "odd": {"optimizer": "sgd", "lr": 0.05, "retain_share": 0.6, "batch_size": 37}},
    "retrain": {"default": {"epochs": 3}, "odd": {"epochs": 3, "batch_size": 37, "weight_decay": 0.0, "lr": 0.02}},
    "finetune": {"default": {}, "odd": {"batch_size": 37, "momentum": 0.0, "lr": 0.05}},
    "srf_on": {
        "default": {"iterations": 40},
        "odd": {"iterations": 40, "strict_mask": True, "fisher": "sample", "batch_size": 37},
    },
    "langevin": {"default": {}, "odd": {"noise": 0.01, "radius": 3.0, "alpha": 0.8, "batch_size": 37}},
}
DEFENSES: dict[str, Callable[[], object]] = {
    "cob": lambda: "cob",
    "cob_each_epoch": lambda: Warp(ChangeOfBasis(), every="epoch"),
    "conjugate": lambda: "conjugate",
    "conjugate_length": lambda: Conjugate(ChangeOfBasis(), match="length"),
    "warp": lambda: "warp",
    "warp_guarded": lambda: "warp_guarded",
    "fastwarp": lambda: "fastwarp",
}
DEFENDED = ("ngp", "scrub", "salun", "pgu")


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.conv(x)))


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 12, bias=False), nn.ReLU(), nn.Linear(12, 10)
    )


def conv() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 5, 3, padding=1, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        _Residual(5),
        nn.Conv2d(5, 6, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 10),
    )


NETWORKS = {"mlp": mlp, "conv": conv}
CASES = [
    *(f"{method}/{kind}/{network}" for network in NETWORKS for method in SETTINGS for kind in SETTINGS[method]),
    *(f"{defense}/{method}/{network}" for network in NETWORKS for defense in DEFENSES for method in DEFENDED),
]


def final_state(case: str) -> dict[str, Tensor]:
    """The state after the run `case` ("method/setting/network" or "defence/method/network"), and its certificates."""
    first, second, network = case.split("/")
    defended = first in DEFENSES
    method, setting = (second, "default") if defended else (first, second)
    x, y = _digits()
    result = unlearn(
        _trained(network),
        forget=(x[:24], y[:24]),
        retain=(x[24:160], y[24:160]),
        validation=(x[160:200], y[160:200]),
        method=make_method(method, **SETTINGS[method][setting]),
        defense=DEFENSES[first]() if defended else None,
        seed=3,
        defense_seed=5 if defended else None,
        device="cpu",
    )
    state = dict(result.model.state_dict())
    if defended:
        found = sorted(numbers([certificate.as_json() for certificate in result.teleports]))
        state[CERTIFICATES] = torch.tensor([value for _, value in found], dtype=torch.float64)
    return state


def numbers(json: object, at: str = "") -> Iterator[tuple[str, float]]:
    """Each number in a JSON value but the seconds, with its path."""
    if isinstance(json, bool | int | float):
        yield at, float(json)
    elif isinstance(json, dict):
        for key, value in json.items():
            yield from () if key == "seconds" else numbers(value, f"{at}/{key}")
    elif isinstance(json, list | tuple):
        for key, value in enumerate(json):
            yield from numbers(value, f"{at}/{key}")


@cache
def _digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x[200:400] / 8 - 1).reshape(-1, 1, 8, 8), torch.from_numpy(y[200:400]).long()


@cache
def _trained(network: str) -> nn.Module:
    """The network after 40 plain steps from weights that no version of torch draws differently."""
    draw = np.random.RandomState(0)
    model = NETWORKS[network]().double()
    x, y = (part[:160] for part in _digits())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            bound = parameter[0].numel() ** -0.5
            parameter.data.copy_(torch.from_numpy(draw.uniform(-bound, bound, size=tuple(parameter.shape))))
        elif parameter.std() > 0:  # biases of linear and convolutional layers; those of batch norm start constant
            nn.init.zeros_(parameter)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


def main() -> None:
    kept = dict(np.load(FILE)) if FILE.exists() else {}
    for case in CASES:
        if case.startswith(tuple(sys.argv[1:])):
            for name, value in final_state(case).items():
                kept[f"{case}/{name}"] = value.numpy()
    np.savez_compressed(FILE, **kept)


if __name__ == "__main__":
    main()
