from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import pytest
import torch
from torch import nn

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.training.scoring import accuracy, logits, losses

Network = Callable[..., nn.Sequential]
Points = Callable[..., TensorExamples]


def test_scores_are_those_of_single_examples_in_eval_mode(network: Network, points: Points) -> None:
    model, data = network(), points()
    model.train()
    model[2].eval()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    found = [logits(model, data, batch_size=size) for size in (7, 512)]
    each, share = losses(model, data), accuracy(model, data)
    assert [m.training for m in model.modules()] == [True, True, True, False, True]
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    model.eval()
    right = 0
    with torch.no_grad():
        for i in range(len(data)):
            row = model(data.x[i : i + 1])[0]
            label = int(data.y[i])
            for table in found:
                torch.testing.assert_close(table[i], row)
            values = row.tolist()
            expected = log(sum(exp(v) for v in values)) - values[label]
            assert float(each[i]) == pytest.approx(expected)
            right += values.index(max(values)) == label
    assert share == right / len(data)
    assert not found[0].requires_grad


def test_a_network_that_changes_its_inputs_leaves_the_examples() -> None:
    x = torch.tensor([[-1.0, 2.0], [3.0, -4.0]])
    examples = TensorExamples(x.clone(), torch.tensor([0, 1]))
    found = logits(nn.Sequential(nn.ReLU(inplace=True)), examples)
    assert found.tolist() == [[0, 2], [3, 0]]
    assert torch.equal(examples.x, x)
