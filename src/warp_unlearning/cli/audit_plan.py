"""`warp audit plan`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .options import Json
from .show import finish


def plan(
    points: Annotated[int, typer.Option(min=1, help="Audited points.")],
    half_width: Annotated[float, typer.Option(help="Half width of the interval that is wanted.")],
    training_seconds: Annotated[float, typer.Option(help="Seconds to train a shadow.")],
    unlearning_seconds: Annotated[float, typer.Option(help="Seconds of one unlearning.")],
    fpr: Annotated[float, typer.Option(help="The smallest false-positive rate to resolve.")] = 0.01,
    tpr: Annotated[
        float | None, typer.Option(help="True-positive rate expected there; the interval is then its, not the AUC's.")
    ] = None,
    forget_sets: Annotated[int, typer.Option(min=1, help="Disjoint forget sets of each shadow.")] = 4,
    share: Annotated[float, typer.Option(help="Share of a shadow's training half that they cover.")] = 1.0,
    jobs: Annotated[int, typer.Option(min=1, help="Models made at once.")] = 1,
    as_json: Json = False,
) -> None:
    """Say how many shadows an audit needs for a false-positive rate and a width, and how many hours they take."""
    from ..stats import planning

    found = planning.plan(
        fpr=fpr,
        half_width=half_width,
        points=points,
        forget_sets=forget_sets,
        training_seconds=training_seconds,
        unlearning_seconds=unlearning_seconds,
        jobs=jobs,
        tpr=tpr,
        share=share,
    )
    finish([str(found)], results={"schema_version": 1, **asdict(found)} if as_json else None)
