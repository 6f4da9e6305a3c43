"""What the configuration of a prior may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from .schema import DataConfig, Section


class GeneratorConfig(Section):
    """How large the generator is."""

    latent: int | None = Field(
        default=None, ge=1, description="numbers in a latent; by default 32 up to 16x16, else 128"
    )
    width: int | None = Field(
        default=None, ge=1, description="channels at full size; by default 16 up to 16x16, else 64"
    )
    conditional: bool = Field(default=False, description="whether it takes labels")


class PriorTrainingConfig(Section):
    """How it is trained: Adam under a cosine schedule."""

    epochs: int = Field(default=60, ge=1)
    batch_size: int = Field(default=32, ge=1)
    lr: float = Field(default=3e-3, gt=0)
    noise: float = Field(default=0.05, gt=0, description="pixel noise; less of it lets latents tell more of an image")
    edges: float = Field(default=0.5, ge=0, description="weight of the Laplacian pyramid")
    flip: bool = Field(default=False, description="mirror images at random")
    precision: Literal["auto", "float32", "bf16"] = "auto"


class PriorConfig(Section):
    """Everything that decides a prior."""

    data: DataConfig = DataConfig()
    exclude: list[Path] = Field(default_factory=list, description=".npy files of positions not to learn from")
    for_run: Path | None = Field(
        default=None, description="a run of `warp unlearn` whose forgotten images are left out"
    )
    held_out: float = Field(default=0.1, ge=0, lt=1, description="fraction on which reconstruction is measured")
    generator: GeneratorConfig = GeneratorConfig()
    training: PriorTrainingConfig = PriorTrainingConfig()
    seed: int = 0
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
