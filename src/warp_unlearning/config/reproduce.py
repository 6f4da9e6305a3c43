"""What the configuration of a study of the paper may hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from .schema import Section
from .shadow import SIX


class ReproduceConfig(Section):
    """Everything that decides the results of a study, and `shadows`, which may grow."""

    study: str = "table1"
    size: Literal["auto", "small", "small-images", "paper"] = Field(
        default="auto",
        description="digits in minutes, 5,000 images of Fashion-MNIST in hours, or CIFAR-10 with ResNet-18; auto is "
        "paper where there is a GPU, else small",
    )
    data_path: Path | None = Field(default=None, description="folder of the images, for all sizes but small")
    methods: list[str] = Field(default_factory=lambda: list(SIX), min_length=1, description="methods to study")
    defenses: list[str] | None = Field(
        default=None, min_length=1, description='defences to study, "none" among them; all of the study if null'
    )
    shadows: int | None = Field(
        default=None, ge=2, multiple_of=2, description="shadow models; those of the size if null"
    )
    forget_sets: int | None = Field(default=None, ge=1, description="forget sets of each shadow, for every method")
    pairs: int | None = Field(default=None, ge=0, description="shadows whose first models are attacked with weights")
    runs: int | None = Field(default=None, ge=2, description="timed runs of each arm of `runtime`; five if null")
    epochs: int | None = Field(default=None, ge=1, description="epochs of the originals; those of the size if null")
    recipes: Path | None = Field(default=None, description="the recipes.yaml of a `warp tune`")
    method_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description='settings by method, or by "method + defence"'
    )
    defense_options: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description='settings by defence ("kick" is the control), or by "method + defence"'
    )
    made_with: Literal["0.1"] | None = Field(
        default=None, description="the version whose stored results are read, with its names of defences"
    )
    seed: int = 0
    defense_seed: int = Field(default=0, ge=0, lt=2**63, description="what defences draw from: a study is repeatable")
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1, ...")
