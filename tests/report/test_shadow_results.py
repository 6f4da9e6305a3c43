import pytest

from warp_unlearning.errors import DataError


def test_an_audit_without_arms_is_refused(data, read):
    with pytest.raises(DataError, match="at least one combination"):
        read(data | {"arms": []})


def test_what_makes_an_audit_incomplete(data, read):
    for change in (
        {"failures": [{"job": "a", "reason": "b"}]},
        {"stages": [{"name": "train", "jobs": 3, "done": 2, "failed": 0, "seconds": None}]},
        {"arms": [data["arms"][0] | {"missing": 1}]},
        {"arms": [data["arms"][0] | {"complete": False}]},
    ):
        assert not read(data | change).complete
