from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from warp_unlearning.errors import InputError, WeightsError
from warp_unlearning.models.generator import ConvGenerator, load_prior, save_prior, saw, seen_header
from warp_unlearning.models.weights import save_weights

OPTIONS = {"shape": [1, 8, 8], "latent": 5, "width": 2, "classes": None}
IMAGES = torch.rand(50, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def header(positions: list[int]) -> dict[str, object]:
    index = np.array(positions, dtype=np.int64)
    return seen_header(IMAGES[index], index, data="mine", data_digest="d")


@pytest.mark.parametrize("classes", [None, 3])
def test_a_prior_comes_back_as_it_was(tmp_path: Path, classes: int | None) -> None:
    generator = ConvGenerator(shape=(1, 8, 8), latent=5, width=2, classes=classes)
    save_prior(tmp_path / "prior.safetensors", generator, header={**header([1, 2]), "seed": 3})
    z, labels = torch.randn(2, 5, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1])
    for path in (tmp_path, tmp_path / "prior.safetensors"):
        again, about = load_prior(path)
        assert torch.equal(again(z, labels), generator(z, labels))
        assert not again.training
        assert not any(p.requires_grad for p in again.parameters())
        assert about["kind"] == "prior"
        assert about["seed"] == 3
        assert saw(about, images=IMAGES).tolist() == [1, 2]


@given(st.sets(st.integers(0, 49)), st.lists(st.integers(0, 49), unique=True))
def test_what_was_seen_is_told_by_position_and_by_image(known: set[int], asked: list[int]) -> None:
    about = header(sorted(known))
    index = np.array(asked, dtype=np.int64)
    expected = [row for row, position in enumerate(asked) if position in known]
    assert saw(about, positions=index, data_digest="d").tolist() == expected
    assert saw(about, images=IMAGES[index]).tolist() == expected
    assert saw(about, positions=index, data_digest="d", images=IMAGES[index]).tolist() == expected


def test_positions_and_images_each_count() -> None:
    about = header([0, 1, 2])
    index = np.array([2, 7, 9])
    # The image at place 9 is a copy of one that was seen.
    images = IMAGES[[5, 6, 1]]
    assert saw(about, positions=index, data_digest="d", images=images).tolist() == [0, 2]
    assert saw(about, positions=index, data_digest="other", images=images).tolist() == [2]


def test_neighbours_are_written_as_runs() -> None:
    assert header([0, 1, 2, 7, 9, 10])["positions"] == [[0, 2], [7, 7], [9, 10]]
    assert header([])["positions"] == []
    assert header([])["digests"] == ""


def test_questions_that_have_no_answer() -> None:
    about = header([0])
    index = np.array([0])
    for given_ in ({}, {"positions": index}, {"data_digest": "d", "images": IMAGES}):
        with pytest.raises(InputError, match="give images, or positions with the data_digest"):
            saw(about, **given_)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"trained on other data \(mine, digest d\).*give the images themselves"):
        saw(about, positions=index, data_digest="e")
    with pytest.raises(InputError, match="50 images and 1 positions"):
        seen_header(IMAGES, index, data="mine", data_digest="d")


@pytest.mark.parametrize("damage", [{"digests": None}, {"digests": "abc"}, {"positions": None}, {"positions": [1]}])
def test_a_header_that_does_not_say(damage: dict[str, object]) -> None:
    about = {**header([0]), **damage}
    with pytest.raises(WeightsError, match="does not say which images it has seen; train it again"):
        saw(about, positions=np.array([0]), data_digest="d", images=IMAGES)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({}, "holds no generator of `warp train-prior`"),
        ({"kind": "prior"}, "holds no generator"),
        ({"kind": "model", "options": OPTIONS}, "holds no generator"),
        ({"kind": "prior", "options": {"shape": [1, 8, 8], "latent": 5}}, "has the options .*damaged"),
        ({"kind": "prior", "options": {**OPTIONS, "latent": 6}}, "of another shape"),
    ],
)
def test_a_file_that_is_no_prior(tmp_path: Path, about: dict[str, object], message: str) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(path, ConvGenerator(shape=(1, 8, 8), latent=5, width=2), header=about)
    with pytest.raises(WeightsError, match=message):
        load_prior(path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"prior\.safetensors does not exist"):
        load_prior(tmp_path)
