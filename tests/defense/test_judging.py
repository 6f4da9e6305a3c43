"""The judges' logits are the model's own, however they are computed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from warp_unlearning.defense import judging
from warp_unlearning.defense.judging import Judging

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def sets() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, 6, generator=generator).to(DEVICE) for n in (5, 3)]


@torch.no_grad()
def test_each_time_it_is_the_model_as_it_stands() -> None:
    model, asked = nn.Linear(6, 4).to(DEVICE), Judging()
    for _ in range(5):
        model.weight.mul_(0.9)
        for found, x in zip(asked.logits(model, sets()), sets(), strict=True):
            torch.testing.assert_close(found, model(x))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
@torch.no_grad()
def test_a_graph_is_made_once_and_again_for_other_shapes() -> None:
    model, asked = nn.Linear(6, 4).to(DEVICE), Judging()
    graphs = []
    for given in [sets()] * 5 + [[sets()[0]]] * 2:
        asked.logits(model, given)
        graphs.append(asked._graph)
    assert graphs[:2] == [None, None]
    assert graphs[2] is graphs[4] is not None
    assert graphs[5] is graphs[6] is not graphs[2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU, and there is none")
@torch.no_grad()
def test_a_model_whose_values_the_host_reads_is_asked_as_before() -> None:
    class Reads(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (2 if float(self.weight.sum()) > 0 else 1)

    model, asked = Reads(6, 4).to(DEVICE), Judging()
    for _ in range(4):
        for found, x in zip(asked.logits(model, sets()), sets(), strict=True):
            torch.testing.assert_close(found, model(x))


class Captured:
    """Stands in for a graph."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self._model, self._shape, self.calls = model, x.shape, 0

    def suits(self, x: Tensor) -> bool:
        return x.shape == self._shape

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.as_tensor(self._model(x))


@torch.no_grad()
def test_what_is_made_ready_is_asked_by_the_graph_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "CapturedLogits", Captured)
    monkeypatch.setattr(judging, "may_be_captured", lambda x: True)
    model, given = nn.Linear(6, 4), [x.cpu() for x in sets()]
    asked, ready = Judging(), Judging()
    ready.make_ready(model, given)
    for time in range(1, 4):
        for one in (asked, ready):
            for found, x in zip(one.logits(model, given), given, strict=True):
                torch.testing.assert_close(found, model(x))
        assert isinstance(ready._graph, Captured)
        assert ready._graph.calls == time
        assert (asked._graph is None) == (time < 3)
    ready.make_ready(model, given)
    assert ready._graph.calls == 3


def test_on_a_cpu_nothing_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("captured")

    monkeypatch.setattr(judging, "CapturedLogits", never)
    model, asked = nn.Linear(6, 4), Judging()
    for _ in range(4):
        asked.logits(model, [x.cpu() for x in sets()])
        asked.make_ready(model, [x.cpu() for x in sets()])
