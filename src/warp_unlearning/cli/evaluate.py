"""`warp evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import ConfigFile, Json, Overrides, Threads, UserModel, prepare

if TYPE_CHECKING:
    from ..unlearning.judge import ModelComparison


def evaluate(
    original: Annotated[Path, typer.Argument(help="The model before: a run of `warp train`, or a weight file.")],
    unlearned: Annotated[Path, typer.Argument(help="The model after: a run of `warp unlearn`, or a weight file.")],
    retrained: Annotated[
        Path | None, typer.Option(help="A model retrained without the forget set, as by `--method retrain`.")
    ] = None,
    split: Annotated[
        Path | None, typer.Option(help="Split folder, where the unlearned model is a weight file.")
    ] = None,
    config: ConfigFile = None,
    override: Overrides = None,
    model: UserModel = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show what was forgotten and what was kept, and how far that is from a retrained model."""
    from ..workflows.evaluate import EvaluateRequest, evaluate_run

    builder = prepare(threads, model)
    request = EvaluateRequest(original, unlearned, retrained, split, config, tuple(override or ()))
    comparison = evaluate_run(request, builder=builder)
    if as_json:
        typer.echo(json.dumps(comparison.as_json(), indent=2))
    else:
        show(comparison)


def show(comparison: ModelComparison) -> None:
    """The comparison as tables."""
    from .table import print_table

    sets = [f"{what} (n={count})" for what, count in comparison.counts.items()]
    print_table(
        "Accuracy, with 95 % intervals",
        ["model", *sets],
        [
            [name, *(str(scores.accuracy[what]) for what in comparison.counts)]
            for name, scores in comparison.models.items()
        ],
    )
    quantiles = list(next(iter(comparison.models.values())).forget_loss_quantiles)
    print_table(
        "Loss on the forget set",
        ["model", "mean", *(f"{float(q):.0%} quantile" for q in quantiles)],
        [
            [name, str(scores.forget_loss_mean), *(f"{scores.forget_loss_quantiles[q]:.4f}" for q in quantiles)]
            for name, scores in comparison.models.items()
        ],
    )
    if comparison.gaps:
        _show_gaps(comparison)
    else:
        typer.echo(
            "no reference: give --retrained to see how far the unlearned model is from one that never saw the examples"
        )


def _show_gaps(comparison: ModelComparison) -> None:
    from .table import print_table

    print_table(
        "Gap to the retrained model (0 is none)",
        [
            "model",
            "outputs on forget (TV)",
            "losses on forget (KS)",
            *(f"{what} accuracy" for what in comparison.counts),
        ],
        [
            [
                name,
                str(gap.forget_output),
                f"{gap.forget_loss:.3f}",
                *(f"{gap.accuracy[w]:+.4f}" for w in comparison.counts),
            ]
            for name, gap in comparison.gaps.items()
        ],
    )
