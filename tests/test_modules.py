from __future__ import annotations

from torch import nn

from warp_unlearning.modules import modes_of, restore_modes, set_mode


class Frozen(nn.Sequential):
    """One whose layers stay as they are in train mode."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        for child in self:
            child.eval()
        return self


def test_modes_are_set_and_brought_back() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).eval(), nn.Sequential(nn.Dropout()))
    before = modes_of(model)
    for training in (True, False):
        set_mode(model, training=training)
        assert {module.training for module in model.modules()} == {training}
    restore_modes(before)
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
    frozen = Frozen(nn.Dropout())
    set_mode(frozen, training=False)
    set_mode(frozen, training=True)
    assert [module.training for module in frozen.modules()] == [True, False]
