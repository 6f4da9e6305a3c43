"""What a configuration may hold. Unknown keys and values of the wrong kind are errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A section that knows its keys and does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DataConfig(Section):
    """Which examples."""

    name: str = Field(default="digits", description="digits, cifar10, fashion_mnist, npz or folder")
    path: Path | None = Field(default=None, description="where the files are; digits need none")
    fetch: bool = Field(default=False, description="bring CIFAR-10 to `path` if it is not there")
    size: tuple[int, int] | None = Field(
        default=None, description="height and width to which a folder's images are resized"
    )


class ModelConfig(Section):
    """Which network; a network of your own is given by --model on the command line."""

    name: str = Field(
        default="small_resnet", description="small_resnet, resnet18, mlp, or custom with --model FILE.py:build"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="its options; shapes are taken from the data")


class TrainingConfig(Section):
    """How it is trained: SGD with momentum under a cosine schedule."""

    recipe: Literal["small", "paper"] = Field(default="small", description="settings to start from")
    epochs: int = Field(default=20, ge=1)
    batch_size: int = Field(default=64, ge=1)
    lr: float = Field(default=0.05, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    crop_padding: int = Field(default=0, ge=0, description="pixels by which random crops may be shifted")
    flip: bool = Field(default=False, description="mirror images at random")
    precision: Literal["auto", "float32", "bf16"] = "auto"


class ForgetConfig(Section):
    """What is to be forgotten: one of the three."""

    fraction: float | None = Field(default=None, gt=0, lt=1, description="a random fraction of each class")
    label: int | None = Field(default=None, ge=0, description="every training example of this class")
    indices: Path | None = Field(default=None, description="an .npy file of positions in the training part of the data")
    again: bool = Field(default=False, description="forget what earlier requests asked for once more, too")


class MethodConfig(Section):
    """How it is forgotten."""

    name: str = "ngp"
    recipe: Literal["auto", "published", "small"] = Field(
        default="auto", description="settings to start from; auto is small below 5,000 training examples"
    )
    options: dict[str, Any] = Field(default_factory=dict, description="settings of the method, over the recipe's")


class DefenseConfig(Section):
    """What hides the trace, and where its randomness comes from."""

    name: str | None = Field(default=None, description="warp, fastwarp, cob or conjugate; none without it")
    options: dict[str, Any] = Field(default_factory=dict, description="settings of the defence and of its symmetry")
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="for experiments only: fixes what the operating system's entropy decides",
    )


class Config(Section):
    """Everything that decides a result."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    validation: float = Field(default=0.1, ge=0, lt=1, description="fraction of the training part held for validation")
    forget: ForgetConfig = ForgetConfig()
    method: MethodConfig = MethodConfig()
    defense: DefenseConfig = DefenseConfig()
    seed: int = 0
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
