from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.attacks.reconstruction.labels import inferred_labels, last_linear
from warp_unlearning.attacks.reconstruction.reading import read_targets

BLANK = torch.zeros(1, 1, 8, 8, dtype=torch.float64)


class Bare(nn.Module):
    """The classifier has no bias; features before it are not negative."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU()), nn.Linear(20, 10, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.mark.parametrize("build", ["net", "mlp", "bare"])
@pytest.mark.parametrize("ascent", [True, False])
def test_every_class_is_found_after_one_step(kit: Any, build: str, ascent: bool) -> None:
    model = kit.drawn(Bare) if build == "bare" else getattr(kit, build)()
    x, _ = kit.digits(10)
    threats = [
        kit.threat(
            model,
            kit.stepped(model, x[k : k + 1], torch.tensor([k]), rate=1e-3 if ascent else -1e-3),
            ascent=ascent,
        )
        for k in range(10)
    ]
    found = inferred_labels(model, BLANK, read_targets(threats, after="naive").values, count=1)
    assert found is not None
    assert found.tolist() == [[k] for k in range(10)]


def test_examples_forgotten_together_give_their_labels_in_order(kit: Any) -> None:
    model = kit.net()
    x, _ = kit.digits(3)
    y = torch.tensor([7, 2, 5])
    after = kit.stepped(model, x, y)
    targets = read_targets([kit.threat(model, after, count=3)], after="naive")
    assert inferred_labels(model, BLANK, targets.values, count=3).tolist() == [[2, 5, 7]]


def test_without_a_last_linear_layer_nothing_is_inferred(kit: Any) -> None:
    model = kit.drawn(lambda: nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))
    assert last_linear(model, BLANK) is None
    values = {name: p[None].detach() for name, p in model.named_parameters()}
    assert inferred_labels(model, BLANK, values, count=1) is None
    net = kit.net()
    assert last_linear(net, BLANK).name == "head.weight"
    assert inferred_labels(net, BLANK, {"first.weight": torch.ones(1, 6, 1, 3, 3)}, count=1) is None


def test_a_linear_layer_that_gives_no_logits_is_not_taken_for_the_last(kit: Any) -> None:
    # Its rows are hidden units; some have numbers that no class has.
    model = kit.drawn(
        lambda: nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Unflatten(1, (32, 1, 1)), nn.Conv2d(32, 10, 1), nn.Flatten()
        )
    )
    threats, _ = kit.threats(model, list(range(10)))
    found = inferred_labels(model, BLANK, read_targets(threats, after="naive").values, count=1)
    truth = torch.stack([t.labels for t in threats])
    assert found is None or torch.equal(found, truth)


def test_a_classifier_that_was_defined_first_is_still_the_last_layer(kit: Any) -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.body = nn.Linear(32, 10), nn.Linear(64, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.body(x.flatten(1))))

    model = kit.drawn(HeadFirst)
    threats, _ = kit.threats(model, list(range(10)))
    found = inferred_labels(model, BLANK, read_targets(threats, after="naive").values, count=1)
    truth = torch.stack([t.labels for t in threats])
    assert found is None or torch.equal(found, truth)
