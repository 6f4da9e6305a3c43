from pathlib import Path

import matplotlib as mpl
import pytest
import torch
from torch import nn

from warp_unlearning.bounds.floor import reconstruction_floor
from warp_unlearning.bounds.report import ReconstructionFloor
from warp_unlearning.errors import InputError
from warp_unlearning.report.bounds_plots import plot_floor


@pytest.fixture(scope="module")
def found() -> ReconstructionFloor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    data = torch.randn(40, 3), torch.arange(40) % 2
    return reconstruction_floor(model, data=data, coordinates=10, draws=50, spread=(0.4, 0.2))


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_figure_is_a_file_of_its_kind_and_always_the_same(
    found: ReconstructionFloor, tmp_path: Path, kind: str, start: bytes
) -> None:
    before = dict(mpl.rcParams)
    contents = []
    for name in ("one", "two"):
        plot_floor(found, tmp_path / f"{name}.{kind}")
        contents.append((tmp_path / f"{name}.{kind}").read_bytes())
    assert contents[0].startswith(start)
    assert contents[0] == contents[1]
    assert dict(mpl.rcParams) == before


def test_the_figure_says_what_it_is(found: ReconstructionFloor, tmp_path: Path) -> None:
    plot_floor(found, tmp_path / "floor.svg")
    text = (tmp_path / "floor.svg").read_text()
    for words in ("as drawn", "energy-matched", "spread of the lognormal factors", "no guarantee", "by quadrature"):
        assert words in text


def test_an_unknown_ending_is_named(found: ReconstructionFloor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"floor\.gif has no known ending; give one of \.png, \.svg, \.pdf"):
        plot_floor(found, tmp_path / "floor.gif")
    assert not list(tmp_path.iterdir())
