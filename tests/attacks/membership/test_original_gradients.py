from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from warp_unlearning.attacks.membership import spare_memory
from warp_unlearning.attacks.membership.original_gradients import prepare_original
from warp_unlearning.errors import DataError, WarpError
from warp_unlearning.models.networks import MLP

Pair = tuple[Tensor, Tensor]


def pair(count: int, seed: int) -> Pair:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def model() -> nn.Module:
    return MLP(inputs=4, classes=3, hidden=(5,)).eval()


class Augmented(Dataset[tuple[Tensor, int]]):
    """Gives other numbers each time it is asked."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.asked += 1
        return torch.full((4,), float(self.asked)), index % 3


def test_all_sets_are_held_where_there_is_room() -> None:
    prepared = prepare_original(model(), candidates=pair(6, 1), background=pair(9, 2), calibration=pair(5, 3))
    assert prepared.held == {"candidates", "background", "calibration"}
    assert len(prepared.rows["calibration"]) == 5
    assert prepared.row_bytes == 4 * (4 * 5 + 5 + 5 * 3 + 3)


def test_the_background_is_held_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_memory, "CPU_HELD", 9 * 43 * 4 + 5 * 43 * 4)
    prepared = prepare_original(model(), candidates=pair(6, 1), background=pair(9, 2), calibration=pair(5, 3))
    assert prepared.held == {"background", "calibration"}


def test_the_model_is_kept_as_it_was() -> None:
    original = model()
    prepared = prepare_original(original, candidates=pair(6, 1), background=pair(9, 2), batch_size=4)
    before = prepared.rows["background"].part(0, 9).clone()
    with torch.no_grad():
        for p in original.parameters():
            p.zero_()
    computed = prepare_original(prepared.model, candidates=pair(6, 1), background=pair(9, 2))
    torch.testing.assert_close(computed.rows["background"].part(0, 9), before)


@pytest.mark.parametrize(
    "kind", [TensorDataset, lambda x, y: DataLoader(TensorDataset(x, y), batch_size=2), lambda x, y: [x, y]]
)
def test_what_users_have(kind: Callable[[Tensor, Tensor], object]) -> None:
    prepared = prepare_original(model(), candidates=kind(*pair(6, 1)), background=kind(*pair(9, 2)))
    assert torch.equal(prepared.sets["background"].x, pair(9, 2)[0])


def test_a_data_set_that_augments_is_read_once_for_all_models() -> None:
    prepared = prepare_original(model(), candidates=pair(6, 1), background=Augmented(4))
    examples = prepared.sets["background"]
    assert torch.equal(examples.x, examples.take(torch.arange(4)).x)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"background": pair(6, 1)}, "6 examples of the background set are also in the candidates set"),
        ({"calibration": pair(6, 1)}, "6 examples of the calibration set are also in the candidates set"),
        ({"calibration": pair(9, 2)}, "9 examples of the calibration set are also in the background set"),
        ({"background": (torch.empty(0, 4), torch.empty(0, dtype=torch.int64))}, "background set is empty"),
        ({"background": (torch.full((3, 4), torch.nan), torch.zeros(3, dtype=torch.int64))}, "not finite"),
        ({"calibration": (torch.zeros(3, 4), torch.full((3,), 7))}, "label 7"),
        ({"background": (torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64))}, "cannot take an example"),
        ({"background": 3}, "background set is a int"),
    ],
)
def test_bad_sets(sets: dict[str, object], said: str) -> None:
    given = {"candidates": pair(6, 1), "background": pair(9, 2), "calibration": pair(5, 3), **sets}
    with pytest.raises(WarpError, match=said):
        prepare_original(model(), **given)


def test_an_empty_data_set() -> None:
    with pytest.raises(DataError, match="background set is empty"):
        prepare_original(model(), candidates=pair(6, 1), background=Augmented(0))
