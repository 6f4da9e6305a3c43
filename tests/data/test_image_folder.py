from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from warp_unlearning.data.image_folder import load_image_folder

from warp_unlearning.errors import DataError


def put(path: Path, pixels: np.ndarray, *, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(path)


def grey(value: int, height: int = 4, width: int = 3) -> np.ndarray:
    return np.full((height, width), value, dtype=np.uint8)


def two_classes(root: Path, count: int = 5) -> None:
    for i in range(count):
        put(root / "cat" / f"{i}.png", grey(10 * i))
        put(root / "dog" / f"{i}.bmp", grey(10 * i + 5))


def raw_values(x: np.ndarray, mean: float, std: float) -> list[int]:
    return np.rint((x * std + mean) * 255).astype(int).tolist()


def test_each_folder_is_a_class_and_a_fifth_is_the_test_part(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    (tmp_path / ".cache").mkdir()
    data = load_image_folder(tmp_path)
    assert data.classes == ("cat", "dog")
    assert data.shape == (1, 4, 3)
    assert sorted(data.test.y.tolist()) == [0, 1]
    values = {
        (value, label)
        for part in (data.train, data.test)
        for value, label in zip(
            raw_values(part.x[:, 0, 0, 0].numpy(), data.mean[0], data.std[0]), part.y.tolist(), strict=True
        )
    }
    assert values == {(10 * i, 0) for i in range(5)} | {(10 * i + 5, 1) for i in range(5)}


def test_train_and_test_folders_are_kept_apart(tmp_path: Path) -> None:
    two_classes(tmp_path / "train")
    put(tmp_path / "test" / "dog" / "a.png", grey(255))
    data = load_image_folder(tmp_path)
    assert (len(data.train), data.test.y.tolist(), data.classes) == (10, [1], ("cat", "dog"))
    assert raw_values(data.test.x[0, 0, 0].numpy(), data.mean[0], data.std[0]) == [255, 255, 255]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    two_classes(tmp_path)
    put(tmp_path / "train" / "a.png", grey(1))
    assert load_image_folder(tmp_path).classes == ("cat", "dog", "train")


@pytest.mark.parametrize("name", ["c.jpg", "c.JPEG", "c.webp", "c.png"])
def test_one_colour_image_makes_all_of_them_colour(tmp_path: Path, name: str) -> None:
    two_classes(tmp_path)
    colour = np.zeros((4, 3, 3), dtype=np.uint8)
    colour[..., 0] = 200
    put(tmp_path / "dog" / name, colour)
    data = load_image_folder(tmp_path)
    assert data.shape == (3, 4, 3)
    whole = np.concatenate([data.train.x.numpy(), data.test.x.numpy()])
    raw = np.rint((whole * np.array(data.std)[:, None, None] + np.array(data.mean)[:, None, None]) * 255)
    spread = np.ptp(raw, axis=1).max(axis=(1, 2))
    assert (spread > 150).sum() == 1
    assert (spread == 0).sum() == 10


def test_palette_transparency_and_single_bit_images_are_read(tmp_path: Path) -> None:
    two_classes(tmp_path)
    put(tmp_path / "dog" / "bit.png", grey(255), mode="1")
    assert load_image_folder(tmp_path).shape[0] == 1
    palette = Image.fromarray(grey(3)).convert("P")
    palette.save(tmp_path / "dog" / "palette.png", transparency=bytes([0, 100]))
    assert load_image_folder(tmp_path).shape[0] == 3


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    two_classes(tmp_path)
    put(tmp_path / "dog" / "z.png", grey(7, height=8, width=8))
    with pytest.raises(DataError, match=r"z\.png is \(8, 8\).*give a size"):
        load_image_folder(tmp_path)
    assert load_image_folder(tmp_path, size=(6, 5)).shape == (1, 6, 5)


@pytest.mark.parametrize("content", [b"", b"no image", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_an_image_that_cannot_be_decoded_is_named(tmp_path: Path, content: bytes) -> None:
    two_classes(tmp_path)
    (tmp_path / "cat" / "bad.png").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.png cannot be decoded"):
        load_image_folder(tmp_path)


def test_an_image_that_is_cut_off_is_named(tmp_path: Path) -> None:
    two_classes(tmp_path)
    path = tmp_path / "cat" / "cut.png"
    put(path, np.random.default_rng(0).integers(0, 256, (40, 40), dtype=np.uint8))
    path.write_bytes(path.read_bytes()[:-400])
    with pytest.raises(DataError, match=r"cut\.png cannot be decoded"):
        load_image_folder(tmp_path, size=(4, 4))


def test_sixteen_bit_images_are_refused(tmp_path: Path) -> None:
    two_classes(tmp_path)
    put(tmp_path / "cat" / "deep.png", grey(0).astype(np.uint16))
    with pytest.raises(DataError, match=r"deep\.png has more than 8 bits"):
        load_image_folder(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_huge_image_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two_classes(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    with pytest.raises(DataError, match=r"cannot be decoded.*bomb"):
        load_image_folder(tmp_path)


def test_folders_that_do_not_fit_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no folder"):
        load_image_folder(tmp_path / "none")
    with pytest.raises(DataError, match="has no folders"):
        load_image_folder(tmp_path)
    two_classes(tmp_path / "train")
    put(tmp_path / "test" / "bird" / "a.png", grey(1))
    with pytest.raises(DataError, match="bird is a class without training images; the classes are cat, dog"):
        load_image_folder(tmp_path)
    (tmp_path / "train" / "bird").mkdir()
    with pytest.raises(DataError, match="bird has no images"):
        load_image_folder(tmp_path)
