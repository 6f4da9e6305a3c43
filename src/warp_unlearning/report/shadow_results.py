"""The results of a shadow audit (kind "shadow", schema version 1) as plain dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .fields import Field, Pairs
from .shadow_arm import Arm, read_arm


@dataclass(frozen=True)
class Audited:
    """What was audited."""

    data: str
    model: str
    classes: tuple[str, ...]
    shadows: int
    forget_sets: int
    points: int
    forgotten_share: float
    forget_set_size: int
    training_examples: int
    seed: int


@dataclass(frozen=True)
class Stage:
    """The jobs of one stage and the seconds they took together."""

    name: str
    jobs: int
    done: int
    failed: int
    seconds: float | None


@dataclass(frozen=True)
class ShadowResults:
    """A shadow audit, as its results file tells it."""

    kind: ClassVar[str] = "shadow"
    date: str
    audited: Audited
    threat: tuple[str, ...]
    arms: tuple[Arm, ...]
    stages: tuple[Stage, ...]
    failures: Pairs
    notes: tuple[str, ...]
    not_tested: tuple[str, ...]
    configuration: Pairs
    digests: Pairs
    versions: Pairs
    hardware: Pairs

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods in the order of the file."""
        return tuple(dict.fromkeys(arm.method for arm in self.arms))

    @property
    def missing(self) -> int:
        """Unlearned models that could not be made."""
        return sum(arm.missing for arm in self.arms)

    @property
    def complete(self) -> bool:
        """Whether everything that was planned was done."""
        unfinished = any(stage.failed or stage.done < stage.jobs for stage in self.stages)
        return not (self.missing or self.failures or unfinished) and all(
            arm.complete and not arm.problem for arm in self.arms
        )

    def arms_of(self, method: str) -> tuple[Arm, ...]:
        """The arms of one method, in the order of the file."""
        return tuple(arm for arm in self.arms if arm.method == method)


def read_shadow(field: Field) -> ShadowResults:
    """The results from the whole of a file."""
    arms = tuple(read_arm(arm) for arm in field["arms"])
    if not arms:
        field["arms"].wrong("at least one combination of method and defence")
    return ShadowResults(
        field["date"].text(),
        _audited(field["audited"]),
        field["threat"].texts(),
        arms,
        tuple(_stage(stage) for stage in field["stages"]),
        tuple((failure["job"].text(), failure["reason"].text()) for failure in field["failures"]),
        field["notes"].texts(),
        field["not_tested"].texts(),
        *(field[name].pairs() for name in ("configuration", "digests", "versions", "hardware")),
    )


def _audited(field: Field) -> Audited:
    return Audited(
        field["data"].text(),
        field["model"].text(),
        field["classes"].texts(),
        field["shadows"].count(),
        field["forget_sets"].count(),
        field["points"].count(),
        field["forgotten_share"].number(),
        field["forget_set_size"].count(),
        field["training_examples"].count(),
        field["seed"].count(),
    )


def _stage(field: Field) -> Stage:
    jobs, done, failed = (field[name].count() for name in ("jobs", "done", "failed"))
    return Stage(field["name"].text(), jobs, done, failed, field["seconds"].maybe_number())
