from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from warp_unlearning.errors import InputError
from warp_unlearning.models.own import check_network


def test_a_plain_module_is_taken() -> None:
    check_network(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    check_network(nn.ReLU())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: None, "it is a NoneType; give an nn.Module"),
        (lambda: nn.Linear, "it is a type; give an nn.Module"),
        (lambda: torch.jit.script(nn.Linear(2, 3)), "compiled RecursiveScriptModule; give the module"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
            r"1\.weight of it has no shape yet.*call",
        ),
        (lambda: nn.Linear(2, 3, device="meta"), "weight of it is on the device meta"),
    ],
)
def test_what_has_no_weights_to_change_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_network(make(), what="it")
