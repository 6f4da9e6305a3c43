from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from warp_unlearning.attacks.reconstruction.assessment import assess
from warp_unlearning.attacks.reconstruction.blind import BlindGuess
from warp_unlearning.attacks.reconstruction.image_metrics import psnr
from warp_unlearning.errors import InputError


def images(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, 1, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**16), count=st.integers(2, 3))
def test_images_forgotten_together_are_matched_one_to_one_for_the_least_error(seed: int, count: int) -> None:
    truth, found = images(2, count, seed=seed), images(2, count, seed=seed + 1)
    blind = {"grey": BlindGuess("grey", torch.full((2 * count, 1, 8, 8), 0.5))}
    same = torch.zeros(2, count, dtype=torch.long)
    scores = assess(found, truth, blind=blind, labels=same, found_labels=same)
    for i in range(2):
        best = min(
            itertools.permutations(range(count)),
            key=lambda order: float((found[i][list(order)] - truth[i]).square().sum()),
        )
        torch.testing.assert_close(scores.images.reshape(2, count, 1, 8, 8)[i], found[i][list(best)])


def test_images_in_another_order_are_put_back(kit: Any) -> None:
    truth = images(4, 3)
    orders = torch.tensor([[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 2, 1]])
    mixed = torch.stack([t[o] for t, o in zip(truth, orders, strict=True)])
    blind = {"grey": BlindGuess("grey", torch.full((12, 1, 8, 8), 0.5))}
    labels = torch.arange(3).repeat(4, 1)
    result = assess(mixed, truth, blind=blind, labels=labels, found_labels=orders)
    torch.testing.assert_close(result.images, truth.flatten(0, 1))
    assert float(result.scores.psnr.min()) == 100


def test_labels_come_before_the_error(kit: Any) -> None:
    truth, labels = images(5, 2), torch.tensor([[3, 4]]).repeat(5, 1)
    blind = {"grey": BlindGuess("grey", torch.full((10, 1, 8, 8), 0.5))}
    decoys = (images(40, seed=9), torch.arange(40) % 2 + 3)
    turned = assess(truth.flip(1), truth, blind=blind, labels=labels, found_labels=labels, decoys=decoys)
    torch.testing.assert_close(turned.images, truth.flip(1).flatten(0, 1))
    assert turned.identification is not None
    # Where labels are alike the error decides, and decoys are no fair comparison any more.
    alike = torch.full((5, 2), 3)
    matched = assess(truth.flip(1), truth, blind=blind, labels=alike, found_labels=alike, decoys=decoys)
    torch.testing.assert_close(matched.images, truth.flatten(0, 1))
    assert matched.identification is None
    with pytest.raises(InputError, match="told apart by their labels"):
        assess(truth, truth, blind=blind)


def test_single_images_stay_in_their_order_and_blind_guesses_are_scored_beside() -> None:
    truth = images(6, 1)
    noisy = (truth + 0.01).clamp(0, 1)
    guess = torch.full((6, 1, 8, 8), 0.5)
    result = assess(noisy, truth, blind={"grey": BlindGuess("grey", guess)})
    torch.testing.assert_close(torch.as_tensor(result.scores.psnr), psnr(noisy[:, 0], truth[:, 0]))
    torch.testing.assert_close(torch.as_tensor(result.blind["grey"].psnr), psnr(guess.double(), truth[:, 0]))
    assert result.beyond.verdict == "beyond the prior"
    swapped = assess(truth.flip(0), truth, blind={"grey": BlindGuess("grey", guess)})
    torch.testing.assert_close(swapped.images, truth.flip(0)[:, 0])
    assert swapped.beyond.verdict != "beyond the prior"


def test_decoys_and_labels_give_identification_and_it_is_in_the_plain_data() -> None:
    truth, labels = images(12, 1), (torch.arange(12) % 2)[:, None]
    decoys = (images(40, seed=9), torch.arange(40) % 2)
    guess = BlindGuess("grey", torch.full((12, 1, 8, 8), 0.5))
    result = assess(truth, truth, blind={"grey": guess}, labels=labels, decoys=decoys)
    assert result.identification is not None
    assert result.identification.share.value == 1
    told = json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert "identification" in json.dumps(told)
    assert set(told) >= {"scores", "blind", "beyond"}
    assert assess(truth, truth, blind={"grey": guess}).identification is None


def test_shapes_that_differ_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(2, 1, 1, 8, 8\) and the truth \(3, 1, 1, 8, 8\)"):
        assess(images(2, 1), images(3, 1))
