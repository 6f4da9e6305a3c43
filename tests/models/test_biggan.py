"""A BigGAN-deep of reduced size, its file made at random in the published layout, against a forward pass written from
that layout alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from warp_unlearning.errors import InputError, WarpError, WeightsError
from warp_unlearning.models.biggan import load_biggan
from warp_unlearning.models.staged import check_generator, condition_of, features_at, generate, generate_from
from warp_unlearning.models.weights import save_weights

NOISE, EMBEDDING, CLASSES, WIDTH, STEPS = 3, 5, 4, 8, 5
# (doubles the resolution, channels in, channels out) in multiples of WIDTH; attention stands before number 2.
BLOCKS = [(False, 4, 4), (True, 4, 2), (False, 2, 2), (True, 2, 1)]
ATTENTION = 2

State = dict[str, Tensor]


def published_state(seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    state: State = {}

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def spectral(name: str, *shape: int, bias: bool = True) -> None:
        weight = draw(*shape)
        v = F.normalize(draw(weight[0].numel()), dim=0)
        u = F.normalize(weight.flatten(1) @ v, dim=0)
        state.update({f"{name}.weight_orig": weight, f"{name}.weight_u": u, f"{name}.weight_v": v})
        if bias:
            state[f"{name}.bias"] = 0.1 * draw(shape[0])

    def statistics(name: str, channels: int) -> None:
        state[f"{name}.running_means"] = draw(STEPS, channels)
        state[f"{name}.running_vars"] = draw(STEPS, channels).square() + 0.5

    condition = NOISE + EMBEDDING
    state["embeddings.weight"] = draw(EMBEDDING, CLASSES)
    spectral("generator.gen_z", 16 * BLOCKS[0][1] * WIDTH, condition)
    place = 0
    for number, (_, inside, outside) in enumerate(BLOCKS):
        if number == ATTENTION:
            at = f"generator.layers.{place}"
            channels = inside * WIDTH
            for name, out in (("theta", channels // 8), ("phi", channels // 8), ("g", channels // 2)):
                spectral(f"{at}.snconv1x1_{name}", out, channels, 1, 1, bias=False)
            spectral(f"{at}.snconv1x1_o_conv", channels, channels // 2, 1, 1, bias=False)
            state[f"{at}.gamma"] = torch.tensor([0.7])
            place += 1
        at = f"generator.layers.{place}"
        channels, out, middle = inside * WIDTH, outside * WIDTH, inside * WIDTH // 4
        sizes = [(channels, middle, 1), (middle, middle, 3), (middle, middle, 3), (middle, out, 1)]
        for i, (a, b, kernel) in enumerate(sizes):
            spectral(f"{at}.bn_{i}.scale", a, condition, bias=False)
            spectral(f"{at}.bn_{i}.offset", a, condition, bias=False)
            statistics(f"{at}.bn_{i}", a)
            spectral(f"{at}.conv_{i}", b, a, kernel, kernel)
        place += 1
    statistics("generator.bn", WIDTH)
    state["generator.bn.weight"], state["generator.bn.bias"] = draw(WIDTH), draw(WIDTH)
    spectral("generator.conv_to_rgb", WIDTH, WIDTH, 3, 3)
    return state


def reference(state: State, z: Tensor, labels: Tensor, statistic: Callable[[Tensor], Tensor]) -> Tensor:
    """Colours in [−1, 1] in float64, `statistic` choosing a row of the stored ones."""
    s = {name: tensor.double() for name, tensor in state.items()}

    def weight(name: str) -> Tensor:
        w, u, v = (s[f"{name}.weight_{k}"] for k in ("orig", "u", "v"))
        return w / torch.einsum("i,ij,j->", u, w.reshape(len(u), -1), v)

    def normalised(name: str, x: Tensor) -> Tensor:
        mean, variance = (statistic(s[f"{name}.running_{k}"])[None, :, None, None] for k in ("means", "vars"))
        return (x - mean) / (variance + 1e-4).sqrt()

    def doubled(x: Tensor) -> Tensor:
        return x.repeat_interleave(2, 2).repeat_interleave(2, 3)

    c = torch.cat([z.double(), s["embeddings.weight"][:, labels].T], 1)
    x = (c @ weight("generator.gen_z").T + s["generator.gen_z.bias"]).reshape(len(z), 4, 4, -1).movedim(3, 1)
    place = 0
    for number, (up, inside, outside) in enumerate(BLOCKS):
        if number == ATTENTION:
            at = f"generator.layers.{place}.snconv1x1_"
            theta, phi, g = (F.conv2d(x, weight(at + k)) for k in ("theta", "phi", "g"))
            phi, g = (F.max_pool2d(t, 2).flatten(2) for t in (phi, g))
            share = torch.softmax(torch.einsum("ncq,nck->nqk", theta.flatten(2), phi), 2)
            mixed = torch.einsum("nck,nqk->ncq", g, share).reshape(len(x), -1, *x.shape[2:])
            x = x + 0.7 * F.conv2d(mixed, weight(at + "o_conv"))
            place += 1
        at = f"generator.layers.{place}"
        h = x
        for i in range(4):
            name = f"{at}.bn_{i}"
            h = normalised(name, h) * (1 + c @ weight(f"{name}.scale").T)[:, :, None, None]
            h = (h + (c @ weight(f"{name}.offset").T)[:, :, None, None]).clamp(min=0)
            h = doubled(h) if up and i == 1 else h
            h = F.conv2d(h, weight(f"{at}.conv_{i}"), s[f"{at}.conv_{i}.bias"], padding=int(i in (1, 2)))
        short = x if inside == outside else x[:, : x.shape[1] // 2]
        x = h + (doubled(short) if up else short)
        place += 1
    scale, shift = (s[f"generator.bn.{k}"][None, :, None, None] for k in ("weight", "bias"))
    x = (normalised("generator.bn", x) * scale + shift).clamp(min=0)
    x = F.conv2d(x, weight("generator.conv_to_rgb"), s["generator.conv_to_rgb.bias"], padding=1)
    return torch.tanh(x[:, :3])


@pytest.fixture(scope="module")
def state() -> State:
    return published_state()


@pytest.fixture(scope="module")
def file(state: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("biggan") / "pytorch_model.bin"
    torch.save(state, path)
    return path


def draws(count: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(count, NOISE, generator=torch.Generator().manual_seed(1)), torch.arange(count) % CLASSES


@pytest.mark.parametrize(
    ("truncation", "statistic"),
    [
        (1.0, lambda table: table[4]),
        (0.5, lambda table: table[2]),
        (0.3, lambda table: 0.8 * table[1] + 0.2 * table[2]),
        (0.05, lambda table: 0.8 * table[0] + 0.2 * table[1]),
    ],
)
def test_images_are_those_of_the_published_network(
    state: State, file: Path, truncation: float, statistic: Callable[[Tensor], Tensor]
) -> None:
    model = load_biggan(file, truncation=truncation).double()
    latents, labels = draws()
    expected = (reference(state, truncation * latents, labels, statistic) + 1) / 2
    assert expected.shape == (3, 3, 16, 16)
    assert float(expected.std()) > 0.1
    # The file is rounded to float32 when it is read, and random weights make much of that.
    torch.testing.assert_close(model(latents.double(), labels), expected, atol=1e-3, rtol=0)


def test_stages_compose_to_the_whole_and_the_condition_stays(file: Path) -> None:
    model = load_biggan(file)
    latents, labels = draws()
    whole = generate(model, latents, labels)
    assert torch.equal(whole, model(latents, labels))
    assert len(model.stages) == 1 + len(BLOCKS) + 1 + 1
    condition = condition_of(model, latents, labels)
    sides = []
    for stage in range(len(model.stages)):
        features = features_at(model, latents, stage, condition=condition)
        sides.append(features.shape[-1])
        assert torch.equal(generate_from(model, features, stage, condition=condition), whole)
    assert sides == [NOISE, 4, 4, 8, 8, 8, 16]
    check_generator(model, shape=(3, 16, 16))
    assert not any(p.requires_grad for p in model.parameters())


def test_gradients_reach_latents_through_every_block(file: Path) -> None:
    model = load_biggan(file).double()
    latents, labels = draws()
    latents = latents.double().requires_grad_()
    (gradient,) = torch.autograd.grad(generate(model, latents, labels).sum(), latents)
    assert bool((gradient != 0).all())
    one_by_one = torch.func.vmap(lambda z, y: generate(model, z[None], y[None])[0])(latents.detach(), labels)
    torch.testing.assert_close(one_by_one, generate(model, latents.detach(), labels))


def test_images_can_be_reduced_by_averages(file: Path) -> None:
    latents, labels = draws()
    large, small = load_biggan(file)(latents, labels), load_biggan(file, size=8)
    expected = (large[..., ::2, ::2] + large[..., 1::2, ::2] + large[..., ::2, 1::2] + large[..., 1::2, 1::2]) / 4
    torch.testing.assert_close(small(latents, labels), expected)
    assert small.image_shape == (3, 8, 8)
    check_generator(small, shape=(3, 8, 8))


def test_safetensors_are_read_as_well(state: State, file: Path, tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", state)
    latents, labels = draws()
    assert torch.equal(load_biggan(tmp_path / "w.safetensors")(latents, labels), load_biggan(file)(latents, labels))


def test_the_published_sizes_follow_from_their_shapes() -> None:
    """The layers of biggan-deep-256 as shapes without data, and the resolution they mean."""
    from warp_unlearning.models.biggan import _layout_of

    pairs = [(16, 16), (16, 16), (16, 16), (16, 8), (8, 8), (8, 8), (8, 8), (8, 4), (4, 4), (4, 2), (2, 2), (2, 1)]
    shapes = {"embeddings.weight": (128, 1000), "generator.gen_z.weight": (4 * 4 * 16 * 128, 256)}
    for place, (a, b) in enumerate(pairs):
        at = f"generator.layers.{place + (place >= 8)}"
        shapes |= {f"{at}.conv_0.weight": (32 * a, 128 * a, 1, 1), f"{at}.conv_3.weight": (128 * b, 32 * a, 1, 1)}
    meta = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    layout = _layout_of(meta | {"generator.layers.8.gamma": torch.zeros(1)}, "file")
    assert (layout.size, layout.noise, layout.classes, layout.channels) == (256, 128, 1000, (2048, 128))
    assert layout.layers[8] is None
    assert len(layout.layers) == 13


def without(name: str) -> Callable[[State], State]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def with_(name: str, value: Tensor) -> Callable[[State], State]:
    return lambda state: {**state, name: value}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without("generator.layers.1.conv_2.weight_v"),
            r"conv_2\.weight_v in .* is missing and should have 72 numbers",
        ),
        (with_("generator.gen_z.weight_u", torch.ones(3)), r"gen_z\.weight_u in .* has shape \(3,\)"),
        (without("generator.layers.0.conv_0.weight_orig"), r"layers\.0\.conv_0\.weight in .* is missing"),
        (without("generator.layers.3.bn_1.running_vars"), r"1 missing: generator\.layers\.3\.bn_1\.running_vars"),
        (with_("generator.bn.bias", torch.zeros(9)), r"generator\.bn\.bias is \(9,\) and should be \(8,\)"),
        (with_("generator.other", torch.zeros(9)), r"1 unexpected: generator\.other"),
        (
            with_("generator.bn.running_means", torch.zeros(8)),
            r"running_means in .* has shape \(8,\); it should hold a",
        ),
        (with_("generator.gen_z.weight_u", torch.zeros(512)), r"gen_z\.weight in .* has the spectral norm 0\.0"),
        (with_("embeddings.weight", torch.zeros(8, 4)), r"embeddings of 8 numbers and a gen_z that takes 8"),
        (lambda state: {"fc.weight": torch.zeros(2, 2)}, r"has no generator\.layers; it is no BigGAN"),
    ],
)
def test_files_that_do_not_fit(state: State, tmp_path: Path, change: Callable[[State], State], message: str) -> None:
    torch.save(change(state), tmp_path / "w.pt")
    with pytest.raises(WeightsError, match=message):
        load_biggan(tmp_path / "w.pt")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"truncation": 0.0}, "truncation is 0.0; give a number above 0 and at most 1"),
        ({"truncation": 1.5}, "truncation is 1.5"),
        ({"size": 32}, "16 by 16 pixels cannot be reduced to 32; give 1 to 16"),
        ({"size": 0}, "cannot be reduced to 0"),
    ],
)
def test_options_that_cannot_be(file: Path, options: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_biggan(file, **options)  # type: ignore[arg-type]


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(WarpError, match="does not exist"):
        load_biggan(tmp_path / "none.bin")
