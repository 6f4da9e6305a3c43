from hashlib import sha256

import numpy as np
import pytest
from warp_unlearning.data.digest import array_digest

from warp_unlearning.errors import DataError


def test_digest_is_sha256_of_type_shape_and_bytes() -> None:
    array = np.array([[1, 2, 3]], dtype=np.int64)
    by_hand = sha256(b"<i8(1, 3);" + b"".join(v.to_bytes(8, "little") for v in (1, 2, 3))).hexdigest()
    assert array_digest(array) == by_hand


def test_type_shape_order_and_grouping_change_the_digest() -> None:
    a = np.arange(6, dtype=np.int64)
    variants = [
        array_digest(a),
        array_digest(a.astype(np.int32)),
        array_digest(a.view(np.uint64)),
        array_digest(a.reshape(2, 3)),
        array_digest(a[::-1]),
        array_digest(a[:3], a[3:]),
        array_digest(),
        array_digest(a[:0]),
    ]
    assert len(set(variants)) == len(variants)


def test_memory_order_and_byte_order_do_not_change_the_digest() -> None:
    a = np.arange(6, dtype=np.int64).reshape(2, 3)
    assert array_digest(np.asfortranarray(a)) == array_digest(a)
    assert array_digest(a.astype(">i8")) == array_digest(a)


def test_python_objects_are_refused() -> None:
    with pytest.raises(DataError, match="type object"):
        array_digest(np.array([{}], dtype=object))
