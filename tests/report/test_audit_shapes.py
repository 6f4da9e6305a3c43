import pytest

from warp_unlearning.errors import DataError


@pytest.mark.parametrize(
    ("part", "value", "says"),
    [
        ("roc", {"fpr": [0, 1], "tpr": [0, 0.5, 1]}, "as many values"),
        ("roc", {"fpr": [0, 1.2], "tpr": [0, 1]}, "between 0 and 1"),
        ("histogram", {"edges": [0, 1, 2], "forgotten": [1], "never": [1, 2]}, "one value fewer"),
        ("histogram", {"edges": [0, 2, 1], "forgotten": [1, 1], "never": [1, 2]}, "rising"),
        ("risk", {"gradient_norm": [1.0], "score": []}, "as many scores"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused(data, read, part, value, says):
    data["arms"][2][part] = value
    with pytest.raises(DataError, match=rf"arms\[2\]\.{part}.*{says}"):
        read(data)


def test_risks_that_are_unknown_are_left_out(data, read):
    data["arms"][0]["risk"] = {"gradient_norm": [1.0, None, 3.0], "score": [0.1, 0.2, None]}
    assert read(data).arms[0].risk.x == (1.0,)
