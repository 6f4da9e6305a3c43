from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from warp_unlearning.attacks.reconstruction.lpips import load_lpips
from warp_unlearning.errors import InputError, WeightsError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchmetrics.functional.image import lpips as reference


def alexnet() -> nn.Sequential:
    """The stack called `features` in torchvision's AlexNet, layer by layer."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2),
    )


def vgg16() -> nn.Sequential:
    """The stack called `features` in torchvision's VGG-16."""
    layers: list[nn.Module] = []
    before = 3
    for width in [64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0]:
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()] if width else [nn.MaxPool2d(2)]
        before = width or before
    return nn.Sequential(*layers)


def drawn(stack: nn.Sequential) -> nn.Sequential:
    generator = torch.Generator().manual_seed(20)
    for p in stack.parameters():
        fan = p[0].numel() if p.dim() > 1 else 100
        nn.init.normal_(p, std=(2 / fan) ** 0.5, generator=generator)
    return stack.requires_grad_(False)


def state(stack: nn.Sequential) -> dict[str, torch.Tensor]:
    return {f"features.{name}": value for name, value in stack.state_dict().items()}


@pytest.fixture(scope="module")
def alex() -> nn.Sequential:
    return drawn(alexnet())


@pytest.fixture(scope="module")
def alex_file(alex, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "alexnet.safetensors"
    save_file({**state(alex), "classifier.1.weight": torch.zeros(2, 3)}, path)
    return path


def pair(n: int, channels: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(21)
    one, other = (torch.rand(n, channels, side, side + 3, generator=generator) for _ in range(2))
    return one, other


@pytest.mark.parametrize(("network", "build", "side"), [("alex", alexnet, 33), ("vgg", vgg16, 18)])
def test_it_is_what_torchmetrics_computes_of_the_same_weights(monkeypatch, tmp_path, network, build, side) -> None:
    stack = drawn(build())
    torch.save(state(stack), tmp_path / "backbone.pth")
    monkeypatch.setattr(reference, "_get_tv_model_features", lambda *_: stack)
    other = reference._LPIPS(net=network, pnet_rand=True)
    found, truth = pair(3, 3, side)
    own = load_lpips(tmp_path / "backbone.pth", network=network)
    wanted = other(found, truth, normalize=True).flatten()
    assert float(wanted.min()) > 0.01
    torch.testing.assert_close(own(found, truth, batch_size=2), wanted.double(), rtol=1e-5, atol=1e-7)


def test_it_is_the_sum_over_slices_written_out(alex, alex_file, tmp_path) -> None:
    widths = [64, 192, 384, 256, 256]
    heads = {i: torch.rand(width, generator=torch.Generator().manual_seed(i)) for i, width in enumerate(widths)}
    save_file(
        {f"lin{i}.model.1.weight": v[None, :, None, None].clone() for i, v in heads.items()}, tmp_path / "h.safetensors"
    )
    found, truth = pair(2, 3, 40)
    own = load_lpips(alex_file, network="alex", heads=tmp_path / "h.safetensors")
    mean, std = torch.tensor([-0.03, -0.088, -0.188]).double(), torch.tensor([0.458, 0.448, 0.45]).double()
    total = torch.zeros(2, dtype=torch.float64)
    values = [(2 * v.double() - 1 - mean[:, None, None]) / std[:, None, None] for v in (found, truth)]
    stack = drawn(alexnet())[:12].double()
    slices = {1: 0, 4: 1, 7: 2, 9: 3, 11: 4}
    for layer, module in enumerate(stack):
        values = [module(v) for v in values]
        if layer in slices:
            one, other = (F.normalize(v, dim=1, eps=1e-4) for v in values)
            head = heads[slices[layer]].double()
            total += torch.einsum("nchw,c->nhw", (one - other) ** 2, head).mean((1, 2))
    torch.testing.assert_close(own(found, truth), total, rtol=1e-4, atol=1e-6)


def test_the_same_image_is_at_distance_0_and_grey_is_repeated(alex_file) -> None:
    own = load_lpips(alex_file, network="alex")
    found, truth = pair(2, 1, 32)
    assert own(truth, truth).tolist() == [0, 0]
    torch.testing.assert_close(own(found, truth), own(found.repeat(1, 3, 1, 1), truth.repeat(1, 3, 1, 1)))
    torch.testing.assert_close(own(found * 3 - 1, truth), own((found * 3 - 1).clamp(0, 1), truth))
    assert own.to("cpu")(found, truth).shape == (2,)


def test_the_smallest_sizes_are_those_that_pass_through(alex_file, tmp_path) -> None:
    own = load_lpips(alex_file, network="alex")
    image = torch.rand(1, 3, 31, 31)
    assert own(image, 1 - image).isfinite().all()
    with pytest.raises(RuntimeError):
        alexnet()[:12](image[..., :30])
    with pytest.raises(InputError, match="30 by 31 pixels"):
        own(image[..., :30, :], image[..., :30, :])
    with pytest.raises(InputError, match="4 channels"):
        own(torch.rand(1, 4, 40, 40), torch.rand(1, 4, 40, 40))
    with pytest.raises(InputError, match="batch size is 0"):
        own(image, image, batch_size=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("features.3.bias"), "lacks 'features.3.bias', of 1 missing and 0 unknown"),
        (lambda s: s.update({"features.99.weight": torch.zeros(1)}), "holds 'features.99.weight'"),
        (lambda s: s.update({"features.0.weight": torch.zeros(64, 3, 7, 7)}), r"\(64, 3, 7, 7\), which should be"),
    ],
)
def test_a_backbone_that_does_not_fit_is_one_clear_error(alex, tmp_path, change, message) -> None:
    weights = dict(state(alex))
    change(weights)
    torch.save(weights, tmp_path / "backbone.pt")
    with pytest.raises(WeightsError, match=message):
        load_lpips(tmp_path / "backbone.pt", network="alex")


def test_files_that_are_missing_or_of_another_network_are_refused(alex_file, tmp_path) -> None:
    with pytest.raises(WeightsError, match="there is no weight file"):
        load_lpips(tmp_path / "none.pt", network="alex")
    with pytest.raises(WeightsError, match="give torchvision's weights of LPIPS network 'vgg'"):
        load_lpips(alex_file, network="vgg")
    with pytest.raises(WeightsError, match="the linear heads"):
        load_lpips(alex_file, network="alex", heads=alex_file)
    with pytest.raises(InputError, match="did you mean 'alex'"):
        load_lpips(alex_file, network="alexx")


def test_heads_must_be_given_without_torchmetrics(alex_file, monkeypatch) -> None:
    monkeypatch.setattr("warp_unlearning.attacks.reconstruction.lpips.find_spec", lambda _: None)
    with pytest.raises(WeightsError, match="give `heads`"):
        load_lpips(alex_file, network="alex")


def test_torchmetrics_is_not_imported_before_it_is_used() -> None:
    code = (
        "import sys, warp_unlearning; from warp_unlearning.attacks.reconstruction import image_scores, beyond_prior;"
        "sys.exit('torchmetrics' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
