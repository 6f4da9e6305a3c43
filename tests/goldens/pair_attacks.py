"""Scores in float64 of every attack on two models, after every pre-step, which `tests/test_goldens.py` compares.

`python tests/goldens/pair_attacks.py` records them with the networks: a perceptron that learned digits with random
labels by heart, and a residual network with batch norm; each took a step up the losses of some examples, behind a
change of basis. Recorded from f0bb349.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from warp_unlearning.attacks.membership.pair_scores import DEFAULT, PairScorer, as_attack
from warp_unlearning.attacks.undo import pre_steps
from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.models.networks import MLP, SmallResNet

FILE = Path(__file__).with_name("pair_attacks.npz")
NETWORKS = {
    "planted": lambda: MLP(inputs=64, classes=10, hidden=(64,)),
    "resnet": lambda: SmallResNet(width=6),
}
FORGOTTEN, CANDIDATES, BACKGROUND, LEARNED = 40, 100, 200, 700


def examples(network: str) -> TensorExamples:
    """40 examples to forget and 60 never seen, 100 of the background, then those learned."""
    x, y = load_digits(return_X_y=True)
    labels = np.random.RandomState(3).randint(0, 10, len(y)) if network == "planted" else y
    return TensorExamples(
        torch.from_numpy(x[:LEARNED] / 8 - 1).reshape(-1, 1, 8, 8), torch.from_numpy(labels[:LEARNED]).long()
    )


def part(data: TensorExamples, begin: int, end: int) -> TensorExamples:
    return data.select(torch.arange(begin, end))


def model(network: str, which: str) -> nn.Module:
    """One of the recorded networks, in float64."""
    built = NETWORKS[network]().double()
    with np.load(FILE) as file:
        prefix = f"{network}/{which}/"
        state = {k.removeprefix(prefix): torch.from_numpy(v) for k, v in file.items() if k.startswith(prefix)}
    built.load_state_dict(state)
    return built.eval()


def scores(network: str) -> dict[str, NDArray[np.float64]]:
    """The scores of the candidates by the name of the attack."""
    data = examples(network)
    scorer = PairScorer(
        model(network, "original"),
        candidates=part(data, 0, CANDIDATES),
        background=part(data, CANDIDATES, BACKGROUND),
        probes=part(data, BACKGROUND, BACKGROUND + 64),
    )
    attacks = [as_attack(name) for name in DEFAULT if name != "accuracy"]
    found, _ = scorer.score({"new": model(network, "new")}, attacks, steps=tuple(pre_steps()))
    # The norm of the gradient was recorded; now a flat loss scores high.
    return {each.name: each.scores["new"] * (-1 if each.name == "gradient norm" else 1) for each in found}


def _record_networks(kept: dict[str, NDArray[np.generic]]) -> None:
    from warp_unlearning import ChangeOfBasis, teleport
    from warp_unlearning.conformance.planted_leak import stepped_up
    from warp_unlearning.models.fresh import reinitialise
    from warp_unlearning.randomness import Streams
    from warp_unlearning.training.training import Recipe, Training, run_training

    for network in NETWORKS:
        data = examples(network)
        learned = TensorExamples(
            torch.cat([data.x[:FORGOTTEN], data.x[BACKGROUND:]]).float(),
            torch.cat([data.y[:FORGOTTEN], data.y[BACKGROUND:]]),
        )
        original = NETWORKS[network]()
        reinitialise(original, generator=Streams(7).generator("weights"))
        recipe = Recipe(epochs=60 if network == "planted" else 8, batch_size=64, lr=0.1, weight_decay=0.0)
        run_training(Training(original, learned, recipe=recipe, streams=Streams(7), fill=(-1.0,)))
        original = original.double().eval()
        retain = part(data, BACKGROUND, LEARNED)
        new = stepped_up(original, part(data, 0, FORGOTTEN), length=0.3)
        moved, _ = teleport(new, ChangeOfBasis(), retain=retain, seed=20)
        for which, found in (("original", original), ("new", moved)):
            for name, value in found.state_dict().items():
                # Rounded, so that the file is small; the numbers are then those of the rounded networks.
                kept[f"{network}/{which}/{name}"] = rounded(value)


def rounded(value: Tensor) -> NDArray[np.generic]:
    return value.half().numpy() if value.is_floating_point() else value.numpy()


def main() -> None:
    kept: dict[str, NDArray[np.generic]] = {}
    _record_networks(kept)
    np.savez_compressed(FILE, **kept)  # type: ignore[arg-type]
    for network in NETWORKS:
        kept |= {f"{network}/scores/{name}": values for name, values in scores(network).items()}
    np.savez_compressed(FILE, **kept)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
