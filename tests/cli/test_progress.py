import io
import sys

import pytest
import torch
from warp_unlearning.cli.progress import Progress

from warp_unlearning.training.update import Update


class Loss:
    """A loss that counts how often it is read."""

    def __init__(self) -> None:
        self.read = 0

    def __float__(self) -> float:
        self.read += 1
        return 1.25


def update(step: int, *, ends: bool, loss: object = None) -> Update:
    return Update(step, 4, (step - 1) // 2, ends, {"train": torch.tensor(1.25) if loss is None else loss})


def test_without_a_terminal_there_is_one_line_an_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress("train") as progress:
        for step in range(1, 5):
            progress(update(step, ends=step % 2 == 0))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "train: epoch 1, update 2/4  train 1.2500\ntrain: epoch 2, update 4/4  train 1.2500\n"


def test_losses_are_read_only_at_the_end_of_an_epoch() -> None:
    loss = Loss()
    progress = Progress("train")
    progress(update(1, ends=False, loss=loss))
    assert loss.read == 0
    progress(update(2, ends=True, loss=loss))
    assert loss.read == 1


def test_on_a_terminal_there_is_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")

    def two_updates_and_an_error() -> None:
        with Progress("train") as progress:
            progress(update(1, ends=False))
            progress(update(2, ends=True))
            assert progress._bar is not None
            (task,) = progress._bar.tasks
            assert (task.completed, task.total, task.fields["loss"]) == (2, 4, "train 1.2500")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        two_updates_and_an_error()
    # The cursor is shown again, also after an error.
    assert screen.getvalue().rindex("\x1b[?25h") > screen.getvalue().rindex("\x1b[?25l")
    assert "epoch" not in screen.getvalue()
