"""Forms of convolutions that come out wrong are found out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from warp_unlearning.kernels import trusted
from warp_unlearning.kernels.convolution import convolve

pytestmark = pytest.mark.gpu
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPES = {
    "stem": ((4, 3, 16, 16), (8, 3, 7, 7), (2, 2), (3, 3)),
    "one pixel": ((4, 8, 1, 1), (6, 8, 3, 3), (1, 1), (1, 1)),
}


def case(name: str, *, slope: bool, half: bool = False) -> trusted.Case:
    images, kernels, stride, padding = SHAPES[name]
    x = torch.zeros(images, device=DEVICE, requires_grad=slope).contiguous(memory_format=torch.channels_last)
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=half):
        return trusted.case_of(x, torch.zeros(kernels, device=DEVICE), stride=stride, padding=padding)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_right_forms_agree(name: str, half: bool) -> None:
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16, enabled=half), torch.no_grad():
        assert trusted.agrees(case(name, slope=name != "stem", half=half))


class Spoiled(torch.autograd.Function):
    """The identity, but for one of its values, or of its slopes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: float, slope: float) -> Tensor:
        ctx.slope = slope
        return _with(x, value)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        return _with(slope, ctx.slope), None, None


def _with(x: Tensor, value: float) -> Tensor:
    if value == 0:
        return x.clone()
    changed = x.clone()
    changed.view(-1)[0] = value
    return changed


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e4])
@pytest.mark.parametrize("where", ["value", "slope of the kernels", "slope of the images"])
def test_a_form_with_wrong_numbers_does_not(monkeypatch: pytest.MonkeyPatch, wrong: float, where: str) -> None:
    def spoiled(x: Tensor, weight: Tensor, bias: Tensor | None, **how: Any) -> Tensor:
        weight = Spoiled.apply(weight, 0.0, wrong if where == "slope of the kernels" else 0.0)  # type: ignore[no-untyped-call]
        x = Spoiled.apply(x, 0.0, wrong if where == "slope of the images" else 0.0)  # type: ignore[no-untyped-call]
        found = convolve(x, weight, bias, **how)
        return Spoiled.apply(found, wrong if where == "value" else 0.0, 0.0)  # type: ignore[no-untyped-call, no-any-return]

    monkeypatch.setattr(trusted, "convolve", spoiled)
    assert not trusted.agrees(case("one pixel", slope=True))


def test_cases_differ_in_all_that_decides_a_kernel() -> None:
    cases = [case(name, slope=slope, half=half) for name in SHAPES for slope in (False, True) for half in (False, True)]
    assert len(set(cases)) == len(cases)


def test_a_cpu_is_trusted_without_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trusted, "agrees", lambda case: pytest.fail("tried"))
    assert trusted.trusted(torch.zeros(2, 3, 1, 1), torch.zeros(4, 3, 3, 3), stride=(1, 1), padding=(1, 1))


def test_while_a_graph_is_captured_only_what_was_tried_before_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    capturing, tried = [True], []
    given: Any = SimpleNamespace(is_cuda=True), None
    monkeypatch.setattr(trusted, "_found", {})
    monkeypatch.setattr(trusted, "case_of", lambda *_, **how: tuple(how.items()))
    monkeypatch.setattr(trusted, "agrees", lambda case: tried.append(case) is None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    how = {"stride": (1, 1), "padding": (1, 1)}
    assert not trusted.trusted(*given, **how)
    assert not tried
    capturing[0] = False
    assert trusted.trusted(*given, **how)
    capturing[0] = True
    assert trusted.trusted(*given, **how)
    assert not trusted.trusted(*given, stride=(2, 2), padding=(1, 1))
    assert len(tried) == 1


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA device")
def test_a_case_is_tried_once_and_said_to_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[trusted.Case] = []
    monkeypatch.setattr(trusted, "_found", {})
    monkeypatch.setattr(trusted, "agrees", lambda case: tried.append(case) is not None)
    given = torch.zeros(2, 3, 1, 1, device=DEVICE), torch.zeros(4, 3, 3, 3, device=DEVICE)
    with pytest.warns(UserWarning, match="come out wrong here"):
        assert not trusted.trusted(*given, stride=(1, 1), padding=(1, 1))
    assert not trusted.trusted(*given, stride=(1, 1), padding=(1, 1))
    assert len(tried) == 1
