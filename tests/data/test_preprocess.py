from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.data.examples import TensorExamples
from warp_unlearning.data.files import array_digest
from warp_unlearning.data.preprocess import (
    ImageData,
    Pixels,
    Preprocess,
    image_data,
    image_digests,
    load_data,
    moments,
    pixels_of,
    readings,
    table_examples,
)
from warp_unlearning.data.table import Layout, Table
from warp_unlearning.errors import DataError, InputError


def table(shape: tuple[int, ...] = (30, 5, 4, 3), layout: Layout = "nhwc", train: int = 24, **more: Any) -> Table:
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    return Table(x, np.arange(len(x)) % 3, train, ("a", "b", "c"), layout=layout, **more)


# Of the software before the table was: the digest, and a digest of the normalised values of both parts.
GOLDEN = {
    "digits": (
        "2ab58d21a0156647c67bd0659233604f2ead9323bac96e5e1c180790c983a741",
        "4f6afc99a22f9103e7c58a6e205a6f9fca231ed5101aaed84e288f310770dc8b",
    ),
    "digits, the first 100": (
        "812e9f3f80c53dfbfc4dbd1e55204cb92d436d2e86a2a71b179adaae476c5b4c",
        "a38bf19655aefd1d7de409e3c16dd036f0a8f4b7a10348821b1a49b85d6aa320",
    ),
    "grey, a fifth held out": (
        "b9ff7233005ef4e7e42ee6a4144615cab0ef525a267e6d29f7b09a42fcd6988f",
        "9e4057d16c94b2cf0ade9f92733b182e32ad96e0753fa6861be6f08ca7fd4f5d",
    ),
    "colour with a test part": (
        "b8f15342551df228724de11110746369f628b68dea855367655a490cccb89d5a",
        "172ae59ff62422012fce90e916d3404eca9920ce169744130d5b9f14cc4ab140",
    ),
    "features": ("d3cd0b297add6c774d564107bab420746b9b3f19967fc0bec849e7ae7ba38563",) * 2,
}


def test_digests_and_values_are_those_of_earlier_results(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)

    def npz(**arrays: np.ndarray) -> ImageData:
        np.savez(tmp_path / "x.npz", **arrays)
        return load_data("npz", path=tmp_path / "x.npz")

    def pixels(*shape: int) -> np.ndarray:
        return draw.integers(0, 256, shape, dtype=np.uint8)

    torch.manual_seed(1)
    found = {
        "digits": load_data(),
        "digits, the first 100": load_data(examples=100),
        "grey, a fifth held out": npz(x=pixels(40, 5, 6), y=np.tile(np.arange(4), 10)),
        "colour with a test part": npz(
            x=pixels(12, 6, 6, 3), y=np.arange(12) % 3, x_test=pixels(5, 6, 6, 3), y_test=np.array([0, 1, 2, 1, 0])
        ),
        "features": npz(x=draw.normal(size=(30, 7)).astype(np.float32), y=np.arange(30) % 2),
    }
    for name, data in found.items():
        values = array_digest(*(v.numpy() for part in (data.train, data.test) for v in (part.x, part.y)))
        assert (name, data.digest, values) == (name, *GOLDEN[name])


def test_the_first_examples_are_those_of_the_whole_and_pixels_their_raw_values() -> None:
    whole, some = load_data(), load_data(examples=1000)
    assert (len(some.train), len(some.test), len(load_data(examples=100).test)) == (1000, 397, 100)
    assert torch.equal(some.train.x, whole.train.x[:1000])
    assert torch.equal(some.train.y, whole.train.y[:1000])
    assert len({found.digest for found in (whole, some, load_data(examples=999))}) == 3
    with pytest.raises(InputError, match="1401 of the 1400 training examples of digits; give 1 to all"):
        load_data(examples=1401)
    pixels = pixels_of(whole)
    assert pixels.shape == (1, 8, 8)
    raw = pixels.images(whole.train.x[:50]).double() * 16
    torch.testing.assert_close(raw, raw.round(), atol=1e-4, rtol=0)
    flat = Table(np.ones((5, 64)), np.zeros(5, dtype=np.int64), 4, ("a",), name="mine")
    with pytest.raises(InputError, match=r"mine has shape \(64,\)"):
        pixels_of(image_data(flat))


def test_each_pixel_is_scaled_and_normalised_by_its_channel() -> None:
    t = table()
    read = Preprocess(255.0, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "nhwc")
    expected = (np.asarray(t.x) / 255 - read.mean) / read.std
    found = read.inputs(t.x[np.arange(30)])
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-6)
    data = image_data(t, read)
    np.testing.assert_array_equal(data.test.x.numpy(), found[24:].numpy())
    assert data.fill == pytest.approx((-2.5, -0.4 / 0.3, -0.75))


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((30, 5, 4, 3), "nhwc"), ((30, 3, 5, 4), "nchw"), ((30, 5, 4), "nhw"), ((900, 200, 200), "nhw")],
)
def test_moments_are_those_of_the_rows_learned_from(shape: tuple[int, ...], layout: Layout) -> None:
    t = table(shape, layout, held=np.array([3, 5]))
    x = np.asarray(t.x)[t.learned] / 255
    axes = {"nhwc": (0, 1, 2), "nchw": (0, 2, 3), "nhw": (0, 1, 2)}[layout]
    standard = Preprocess.standard(t)
    assert standard.mean == pytest.approx(np.atleast_1d(x.mean(axes)))
    assert standard.std == pytest.approx(np.atleast_1d(x.std(axes)))
    rows = x.reshape(len(x), -1)[:, :6]
    flat = Table(rows, t.y[t.learned], 20, t.classes)
    np.testing.assert_allclose(moments(flat, np.arange(20), 1.0), (rows[:20].mean(0), rows[:20].std(0)))
    assert Preprocess.standard(flat) == Preprocess(layout="nd")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": 0.0}, "scale 0.0"),
        ({"mean": (0.0,), "std": (0.0,)}, "above 0"),
        ({"mean": (float("nan"),), "std": (1.0,)}, "finite"),
        ({"mean": (0.0, 0.0), "std": (1.0,)}, r"std \(1\.0,\) are no normalisation"),
        ({"mean": (0.0, 0.0), "std": (1.0, 1.0), "layout": "nhwc"}, "2 means for inputs of 3 channels"),
        (
            {"function": lambda raw: raw[:3].float(), "spec": "mine.py:read"},
            r"mine\.py:read gave \(3, 5, 4, 3\) for 30",
        ),
        ({"function": lambda raw: None}, "gave NoneType"),
    ],
)
def test_preprocessing_that_cannot_be_done_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Preprocess(**given).inputs(np.asarray(table().x))


def test_preprocessing_is_remembered_as_plain_data_and_leaves_raw_rows_as_they_are() -> None:
    given = Preprocess(255.0, (0.5,), (0.25,), "nhw")
    assert Preprocess.from_plain(given.describe()) == given
    mine = Preprocess(layout="nhwc", function=lambda raw: raw.float() / 3, spec="mine.py:read")
    again = Preprocess.from_plain(mine.describe(), mine.function)
    raw = np.asarray(table().x)
    assert torch.equal(again.inputs(raw), torch.from_numpy(raw).float() / 3)
    with pytest.raises(InputError, match=r"read by mine\.py:read; give that function"):
        Preprocess.from_plain(mine.describe())
    x = np.ones((3, 2), dtype=np.float32)
    for same in (x, torch.from_numpy(x)):
        Preprocess(scale=2.0, mean=(1.0,), std=(1.0,)).inputs(same).zero_()
        Preprocess().inputs(same).zero_()
    assert x.sum() == 6


def test_other_readings_are_the_usual_mistakes() -> None:
    t = table((30, 4, 4, 3))
    given = Preprocess(255.0, layout="nhwc")
    x = given.inputs(np.asarray(t.x))
    found = {name: read.inputs(np.asarray(t.x)) for name, read in readings(t, given).items()}
    assert len(found) == 6
    torch.testing.assert_close(found["x"], x * 255)
    torch.testing.assert_close(found["x/127.5 - 1"], 2 * x - 1)
    torch.testing.assert_close(found["in the order BGR"], x[:, [2, 1, 0]])
    torch.testing.assert_close(found["transposed"], x.transpose(2, 3))
    own = next(values for name, values in found.items() if "training rows" in name)
    torch.testing.assert_close(own[:24].mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    assert "x/255" in readings(t, Preprocess.standard(t))
    flat = Table(np.ones((5, 2)), np.zeros(5, dtype=np.int64), 5, ("a",))
    assert list(readings(flat, Preprocess())) == ["(x - mean)/std of the training rows"]


def test_rows_are_examples_in_memory_or_read_by_batch() -> None:
    t, index = table(), np.array([20, 3, 7, 25])
    given = Preprocess.standard(t)
    kept, later = table_examples(t, index, given), table_examples(t, index, given, keep=100)
    assert isinstance(kept, TensorExamples)
    assert not isinstance(later, TensorExamples)
    expected = given.inputs(np.asarray(t.x)[index])
    for examples in (kept, later.to("cpu")):
        batch = examples.take(torch.tensor([2, 0]))
        assert torch.equal(batch.x, expected[[2, 0]])
        assert (batch.y.tolist(), examples.y.tolist(), len(examples)) == ([1, 2], [2, 0, 1, 1], 4)
    with pytest.raises(DataError, match="no rows to test on"):
        image_data(table(train=30))


@given(
    given_moments=st.lists(st.tuples(st.floats(-2, 2), st.floats(0.05, 3)), min_size=1, max_size=4),
    lead=st.lists(st.integers(1, 3), max_size=3),
    seed=st.integers(0, 2**16),
)
def test_pixels_are_normalised_channel_by_channel_and_images_are_the_way_back(
    given_moments: list[tuple[float, float]], lead: list[int], seed: int
) -> None:
    mean, std = zip(*given_moments, strict=True)
    pixels = Pixels((len(mean), 2, 3), mean, std)
    shape = (*lead, len(mean), 2, 3)
    images = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    inputs = pixels.inputs(images)
    for c, (m, s) in enumerate(given_moments):
        torch.testing.assert_close(inputs[..., c, :, :], (images[..., c, :, :] - m) / s)
    torch.testing.assert_close(pixels.images(inputs), images)


@pytest.mark.parametrize(
    ("shape", "mean", "std", "match"),
    [
        ((8, 8), (0.0,), (1.0,), r"\(8, 8\)"),
        ((0, 8, 8), (), (), r"\(0, 8, 8\)"),
        ((3, 8, 8), (0.0,), (1.0,), "1 means for 3 channels"),
        ((1, 8, 8), (0.0,), (-1.0,), "above 0"),
        ((1, 8, 8), (float("inf"),), (1.0,), "inf"),
    ],
)
def test_moments_that_make_no_image_are_refused(
    shape: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...], match: str
) -> None:
    with pytest.raises(InputError, match=match):
        Pixels(shape, mean, std)


def test_a_first_use_in_inference_mode_leaves_later_ones_differentiable() -> None:
    pixels, images = Pixels((1, 2, 2), (0.4321,), (0.9876,)), torch.zeros(1, 2, 2, requires_grad=True)
    with torch.inference_mode():
        pixels.inputs(torch.zeros(1, 2, 2))
    (slope,) = torch.autograd.grad(pixels.inputs(images).sum(), images)
    torch.testing.assert_close(slope, torch.full((1, 2, 2), 1 / 0.9876))


def test_an_image_is_known_again_after_any_normalisation() -> None:
    raw = np.random.default_rng(0).integers(0, 256, (5000, 3, 4, 4), dtype=np.uint8)
    exact = torch.from_numpy(raw.astype(np.float64) / 255)
    expected = image_digests(exact)
    assert len(set(expected)) == 5000
    for mean, std in ((0.0, 1.0), (0.4734, 0.2513), (-3.0, 7.1)):
        pixels = Pixels((3, 4, 4), (mean,) * 3, (std,) * 3)
        assert image_digests(pixels.images(pixels.inputs(exact.float()))) == expected


@pytest.mark.parametrize("scale", [16, 255])
def test_one_value_place_or_shape_makes_another_image_and_rounding_none(scale: int) -> None:
    exact = torch.arange(scale + 1, dtype=torch.float64)[:, None, None, None] / scale
    expected = image_digests(exact)
    assert len({*expected}) == scale + 1
    for error in (-1e-6, 1e-6):
        assert image_digests(exact + error) == expected
    image, moved = torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8)
    image[0, 0, 0, 0] = moved[0, 0, 1, 0] = 1
    found = [image_digests(i)[0] for i in (image, moved, image.reshape(1, 1, 4, 4), image.reshape(1, 2, 1, 8))]
    assert [len(digest) for digest in {*found}] == [16] * 4
