"""LPIPS: a distance between images in the features of a network trained on ImageNet, weighted to agree with people.

With f_l the features of slice l, each pixel's vector divided by its length, h and w running over its pixels, and v_l
the weights of its linear head,

    LPIPS(a, b) = Σ_l mean_hw Σ_c v_lc (f_l(a) − f_l(b))²_chw.

Images in [0, 1] are taken to [−1, 1] and then to the scale of ImageNet's channels; one with a single channel is
repeated. The weights of the network are not part of this package: they are read from a file that the user names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from ...errors import InputError, WeightsError, nearest
from ...models.modes import full_precision
from ...models.weights import read_weights
from .image_metrics import checked_images

_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)
_EPS = 1e-8


@dataclass(frozen=True)
class _Network:
    """The layers called `features` in torchvision's network: (channels, kernel, stride, padding) of a convolution, each
    followed by a ReLU, and (kernel, stride) of a max-pool. Slice l ends before layer `ends[l]`.
    """

    layers: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]
    smallest: int

    def features(self) -> nn.Sequential:
        found: list[nn.Module] = []
        before = 3
        for layer in self.layers:
            if len(layer) == 2:
                found.append(nn.MaxPool2d(layer[0], stride=layer[1]))
                continue
            found += [nn.Conv2d(before, layer[0], layer[1], stride=layer[2], padding=layer[3]), nn.ReLU()]
            before = layer[0]
        return nn.Sequential(*found)

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels of every slice."""
        stack = self.features()
        return tuple(int(stack[end - 2].out_channels) for end in self.ends)  # type: ignore[arg-type]


def _vgg_block(channels: int, depth: int) -> tuple[tuple[int, ...], ...]:
    return ((channels, 3, 1, 1),) * depth


_ALEX = _Network(
    ((64, 11, 4, 2), (3, 2), (192, 5, 1, 2), (3, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1)),
    (2, 5, 8, 10, 12),
    31,
)
_VGG = _Network(
    (
        *(*_vgg_block(64, 2), (2, 2)),
        *(*_vgg_block(128, 2), (2, 2)),
        *(*_vgg_block(256, 3), (2, 2)),
        *(*_vgg_block(512, 3), (2, 2)),
        *_vgg_block(512, 3),
    ),
    (4, 9, 16, 23, 30),
    16,
)
_NETWORKS: Mapping[str, _Network] = MappingProxyType({"alex": _ALEX, "vgg": _VGG})


@dataclass(frozen=True, eq=False)
class Lpips:
    """The distance, ready to be called; `heads` has v_l, (channels,), for each slice of `features`."""

    network: str
    features: nn.Sequential
    heads: tuple[Tensor, ...]

    def to(self, device: torch.device | str) -> Lpips:
        """The same distance, computed on `device`; the features are moved, not copied."""
        return Lpips(self.network, self.features.to(device), tuple(head.to(device) for head in self.heads))

    def __call__(self, found: Tensor, truth: Tensor, *, batch_size: int = 64) -> Tensor:
        """LPIPS of every pair of images, (n,), in float64 on the truth's device."""
        if batch_size < 1:
            raise InputError(f"the batch size is {batch_size}; give at least 1")
        one, other = checked_images(found, truth)
        _check_size(one, self.network)
        with torch.no_grad(), full_precision():
            parts = [
                self._distance(a, b)
                for a, b in zip(torch.split(one, batch_size), torch.split(other, batch_size), strict=True)
            ]
        return torch.cat(parts).to(one.device)

    def _distance(self, one: Tensor, other: Tensor) -> Tensor:
        total = torch.zeros(len(one), dtype=torch.float64, device=self.heads[0].device)
        slices = zip(self._slices(one), self._slices(other), self.heads, strict=True)
        for a, b, head in slices:
            total += ((a - b).square() * head[:, None, None]).sum(1).mean((1, 2)).double()
        return total

    def _slices(self, images: Tensor) -> list[Tensor]:
        head = self.heads[0]
        x = images.to(head.device, head.dtype).expand(-1, 3, -1, -1) * 2 - 1
        shift, scale = (torch.tensor(v, device=x.device, dtype=x.dtype)[:, None, None] for v in (_SHIFT, _SCALE))
        x = (x - shift) / scale
        found, start = [], 0
        for end in _NETWORKS[self.network].ends:
            x, start = self.features[start:end](x), end
            found.append(x / (x.square().sum(1, keepdim=True) + _EPS).sqrt())
        return found


def load_lpips(backbone: Path, *, network: str = "vgg", heads: Path | None = None) -> Lpips:
    """LPIPS from weight files: `backbone` is torchvision's state dict of "vgg" (VGG-16) or "alex" (AlexNet), with or
    without its classifier; `heads` holds lin0.model.1.weight to lin4.model.1.weight, and is the file that comes with
    torchmetrics where it is left out.
    """
    if network not in _NETWORKS:
        raise InputError(f"there is no LPIPS network {network!r}; {nearest(network, _NETWORKS)}")
    design = _NETWORKS[network]
    stack = design.features()
    wanted = {f"features.{name}": tuple(value.shape) for name, value in stack.state_dict().items()}
    state = _fitting(Path(backbone), wanted, what=f"torchvision's weights of LPIPS network {network!r}")
    stack.load_state_dict({name.removeprefix("features."): value for name, value in state.items()})
    names = {f"lin{i}.model.1.weight": (1, width, 1, 1) for i, width in enumerate(design.widths)}
    place = _default_heads(network) if heads is None else Path(heads)
    linear = _fitting(place, names, what=f"the linear heads of LPIPS network {network!r}")
    # float32 whatever the files hold: halves are too coarse for the squares.
    return Lpips(network, stack.float().eval().requires_grad_(False), tuple(linear[n].float().flatten() for n in names))


def _fitting(path: Path, wanted: Mapping[str, tuple[int, ...]], *, what: str) -> dict[str, Tensor]:
    state = {n: t for n, t in read_weights(path).state.items() if not n.startswith("classifier.")}
    missing, unknown = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    shapes = [n for n in wanted if n in state and tuple(state[n].shape) != wanted[n]]
    fault = ""
    if missing or unknown:
        names = [f"lacks {missing[0]!r}"] if missing else []
        names += [f"holds {unknown[0]!r}"] if unknown else []
        fault = f"{' and '.join(names)}, of {len(missing)} missing and {len(unknown)} unknown names"
    elif shapes:
        fault = f"has {shapes[0]!r} of shape {tuple(state[shapes[0]].shape)}, which should be {wanted[shapes[0]]}"
    if fault:
        raise WeightsError(f"{path} {fault}; give {what}")
    return state


def _default_heads(network: str) -> Path:
    """Found without importing torchmetrics, which is slow."""
    spec = find_spec("torchmetrics")
    if spec is None or not spec.submodule_search_locations:
        raise WeightsError("the linear heads of LPIPS come with torchmetrics, which is not installed; give `heads`")
    return Path(spec.submodule_search_locations[0]) / "functional" / "image" / "lpips_models" / f"{network}.pth"


def _check_size(images: Tensor, network: str) -> None:
    channels, *sides = images.shape[1:]
    if channels not in (1, 3):
        raise InputError(f"images have {channels} channels; LPIPS is defined for 1 or 3")
    if min(sides) < _NETWORKS[network].smallest:
        raise InputError(
            f"images are {sides[0]} by {sides[1]} pixels and LPIPS with {network!r} needs at least "
            f"{_NETWORKS[network].smallest} by {_NETWORKS[network].smallest}; leave LPIPS out"
        )
