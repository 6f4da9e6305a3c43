import pickle
import struct
from collections.abc import Callable

import numpy as np
import pytest
from warp_unlearning.data.cifar10_pickle import pickled_records

from warp_unlearning.errors import DataError


def text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value


def python2_batch(labels: list[int], pixels: bytes, *, last: bool = False) -> bytes:
    """A batch as the cPickle of Python 2 wrote it: a dictionary, in either order, with an array of bytes."""
    numbers = text(b"labels") + b"q\x04]q\x05(" + b"".join(b"K" + bytes([v]) for v in labels) + b"e"
    shape = b"K" + bytes([len(labels)]) + b"M\x00\x0c\x86q\x0b"
    array = (
        text(b"data")
        + b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\x09(K\x01"
        + shape
        + b"cnumpy\ndtype\nq\x0aU\x02u1K\x00K\x01\x87R"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + (b"T" + struct.pack("<I", len(pixels)) + pixels)
        + b"tb"
    )
    names = text(b"filenames") + b"](" + b"".join(text(b"name_%d.png" % i) for i in range(len(labels))) + b"e"
    parts = [array, names, numbers] if last else [numbers, array, names]
    label = text(b"batch_label") + b"q\x02" + text(b"training batch 1 of 5") + b"q\x03"
    return b"\x80\x02}q\x01(" + label + b"".join(parts) + b"u."


LABELS = [6, 9, 0, 255]
PIXELS = np.random.default_rng(0).integers(0, 256, 4 * 3072, dtype=np.uint8)
RECORDS = np.concatenate([np.array(LABELS, dtype=np.uint8)[:, None], PIXELS.reshape(4, 3072)], axis=1)


@pytest.mark.parametrize("last", [True, False])
def test_python_2_batches_give_the_official_records(last: bool) -> None:
    records = pickled_records(python2_batch(LABELS, PIXELS.tobytes(), last=last), what="f")
    np.testing.assert_array_equal(records, RECORDS)


@pytest.mark.parametrize("key", [str, str.encode])
@pytest.mark.parametrize("protocol", [3, 4])
def test_python_3_batches_give_the_official_records(protocol: int, key: Callable[[str], str | bytes]) -> None:
    batch = {key("labels"): LABELS, key("data"): PIXELS.tobytes(), key("filenames"): ["é", "日"]}
    np.testing.assert_array_equal(pickled_records(pickle.dumps(batch, protocol=protocol), what="f"), RECORDS)


def test_nothing_is_carried_out() -> None:
    call = b"cwarp_no_such_module\ncall\n(tR0"
    batch = python2_batch(LABELS, PIXELS.tobytes())
    np.testing.assert_array_equal(pickled_records(batch[:2] + call + batch[2:], what="f"), RECORDS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f is not a whole pickle"),
        (python2_batch(LABELS, PIXELS.tobytes())[:-1], "f is not a whole pickle"),
        (python2_batch(LABELS, PIXELS.tobytes())[:5000], "f is not a whole pickle"),
        (python2_batch(LABELS[:3], PIXELS.tobytes()), "f holds 3 labels and 12288 bytes"),
        (python2_batch(LABELS, PIXELS.tobytes()[:-1]), "f holds 4 labels and 12287 bytes"),
        (pickle.dumps({"labels": [300], "data": bytes(3072)}, protocol=4), "f holds 1 labels"),
        (pickle.dumps({}), "f holds 0 labels and 0 bytes"),
    ],
)
def test_a_batch_that_is_not_whole_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        pickled_records(data, what="f")
