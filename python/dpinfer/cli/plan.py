"""``dpinfer plan``: predicted width of the posterior and settings, before any data is read."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpinfer import plots
from dpinfer._sinks import terminal_text
from dpinfer.cli.arguments import EXIT_DONE, UsageError, integer, interval, positive, public_arguments
from dpinfer.cli.output import output_folder
from dpinfer.cli.pictures import draw_picture
from dpinfer.cli.pipeline import logistic_on_columns
from dpinfer.fitting import plan_fit
from dpinfer.models import (
    BetaBernoulli,
    DirichletCategorical,
    GammaExponential,
    LinearRegression,
    LogisticRegression,
    Model,
)
from dpinfer.planning import plan_inference, widening_grid
from dpinfer.tabular import Schema

_CONJUGATE: dict[str, Callable[[], Model]] = {
    "gamma-exponential": GammaExponential,
    "beta-bernoulli": BetaBernoulli,
    "dirichlet-categorical": DirichletCategorical,
}
_MODELS = ("logistic", "linear", *_CONJUGATE)
_OF_TRACES = {
    "recipe": "auto", "hessian": "auto", "sample_rate": None, "steps": None, "max_grad_norm": None, "curvature": None,
    "pilot": None, "simulations": 4, "seed": 0, "out": None,
}  # fmt: skip
_PICTURE_BYTES = 2**20  # room for the plan's picture and table
_FIT_PRIOR_SCALE = 2.5  # of a regression with a link, as in `dpinfer fit`
_FEATURES = 10  # an example's size where the user gives none
_EPSILONS = (0.1, 0.3, 1.0, 3.0)  # of the picture: the grid of the documentation


def add_parser(verbs: Any) -> None:
    """Add the verb's arguments to the command's parser."""
    parser = verbs.add_parser(
        "plan",
        help="predicted width of the posterior, before any data is read",
        description="Predict the width of the noise-aware posterior and recommend settings. Reads no data.",
    )
    add = parser.add_argument
    add("--n-records", type=integer(1), required=True, metavar="N", help="public number of records")
    add("--epsilon", type=positive, required=True, metavar="E", help="budget")
    add("--delta", type=interval(0, 1), default=1e-5, metavar="D", help="well below 1/N (default: %(default)s)")
    add("--model", choices=_MODELS, default="logistic", help="model (default: %(default)s)")
    add("--n-features", type=integer(1), metavar="P", help=f"number of features of a regression (default: {_FEATURES})")
    add(
        "--schema",
        type=Path,
        metavar="SCHEMA.toml",
        help="schema with the features of a logistic regression, as in `dpinfer fit`, instead of --n-features",
    )
    add(
        "--method",
        choices=("auto", "newton", "statistic", "dpvi"),
        help="method, as in `dpinfer fit` (default: auto, or dpvi with an option of the gradient trace)",
    )
    add("--prior-scale", type=positive, metavar="S", help="prior sd of a regression's weights (default: the model's)")
    add(
        "--curvature",
        type=positive,
        metavar="A",
        help="information of one record about each parameter (default: expected under the model)",
    )
    add(
        "--pilot",
        type=Path,
        metavar="FILE",
        help="PUBLIC features of a regression, one row a line, comma-separated numbers without a header",
    )
    add("--recipe", choices=("auto", "tied", "plain"), default="auto", help="recipe (default: %(default)s)")
    add(
        "--hessian",
        choices=("auto", "diagonal"),
        default="auto",
        help="Hessian of the posterior; diagonal: without sampling (default: %(default)s, as in a fit)",
    )
    add("--sample-rate", type=interval(0, 1, high_open=False), metavar="Q", help="rate (default: recommended)")
    add("--steps", type=integer(1), metavar="T", help="steps (default: recommended)")
    add("--max-grad-norm", type=positive, metavar="C", help="clipping norm (default: recommended)")
    add("--simulations", type=integer(1), default=4, metavar="R", help="simulated runs (default: %(default)s)")
    add("--seed", type=integer(0), default=0, help="seed of the simulated runs (default: %(default)s)")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--out", type=Path, metavar="DIR", help="folder for the plan, a table and a picture over epsilon and N")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Predict, print and, with ``--out``, write."""
    given = [option for option, default in _OF_TRACES.items() if getattr(args, option) != default]
    of_traces = (args.method or ("dpvi" if given else "auto")) == "dpvi"
    model = _model(args, 1.0 if of_traces or args.model == "linear" else _FIT_PRIOR_SCALE)
    if not of_traces:
        if given:
            raise UsageError(f"--{given[0].replace('_', '-')} belongs to --method dpvi, the gradient trace")
        return _of_a_fit(model, args)
    options: dict[str, Any] = {
        "target_delta": args.delta,
        "recipe": args.recipe,
        "hessian": args.hessian,
        "sample_rate": args.sample_rate,
        "n_steps": args.steps,
        "max_grad_norm": args.max_grad_norm,
        "pilot": _pilot(args.pilot),
        "curvature": None if args.curvature is None else np.full(model.n_params, args.curvature),
        "n_simulations": args.simulations,
        "seed": args.seed,
        "progress": True,
    }
    with output_folder(args.out, need_bytes=_PICTURE_BYTES) as folder:
        with public_arguments():
            plan = plan_inference(model, n_records=args.n_records, target_epsilon=args.epsilon, **options)
            sys.stdout.write(terminal_text(json.dumps(plan.to_dict(), indent=1) if args.json else str(plan)) + "\n")
            if folder is None:
                return EXIT_DONE
            epsilons = sorted({*_EPSILONS, args.epsilon})
            counts = sorted({max(1, args.n_records // 3), args.n_records, 3 * args.n_records})
            if plan.learning_rate_factor is not None:
                options |= {"learning_rate_factor": plan.learning_rate_factor, "n_simulations": 2}
                options["prior"] = plan.posterior.get("prior")
            grid = widening_grid(model, n_records=counts, target_epsilon=epsilons, **options)
        folder.write("plan.json", json.dumps(plan.to_dict(), indent=1) + "\n")
        folder.write("widening.txt", f"{grid}\n")
        folder.write("widening.png", draw_picture(lambda ax: plots.widening(grid, ax=ax), (6.4, 4.2), "")[1])
    return EXIT_DONE


def _of_a_fit(model: Model, args: argparse.Namespace) -> int:
    """Predict for the method that a fit with the same numbers runs."""
    with public_arguments():
        terms = {"epsilon": args.epsilon, "delta": args.delta, "n_records": args.n_records}
        plan = plan_fit(model, method=args.method or "auto", **terms)
    text = (
        json.dumps(plan.to_dict(), indent=1) if args.json else f"{plan.choice}\n\n`dpinfer fit` runs {plan.method!r}."
    )
    sys.stdout.write(terminal_text(text) + "\n")
    return EXIT_DONE


def _model(args: argparse.Namespace, prior_scale: float) -> Model:
    if args.schema is not None:
        if args.model != "logistic" or args.n_features is not None:
            raise UsageError("--schema is for --model logistic, and replaces --n-features: leave one of them out")
        return logistic_on_columns(Schema.load(args.schema), args.prior_scale or prior_scale)
    if args.model in _CONJUGATE:
        if args.n_features is not None or args.prior_scale is not None:
            raise UsageError(f"--n-features and --prior-scale are for regressions, not for --model {args.model}")
        return _CONJUGATE[args.model]()
    kind = LinearRegression if args.model == "linear" else LogisticRegression
    return kind(args.n_features or _FEATURES, fit_intercept=True, prior_scale=args.prior_scale or prior_scale)


def _pilot(path: Path | None) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    if path is None:
        return None
    # NumPy's own error does not name the missing file.
    path.open("rb").close()
    try:
        return np.loadtxt(path, delimiter=",", ndmin=2)
    except ValueError as error:
        raise UsageError(f"--pilot must hold comma-separated numbers, as many on every line: {str(path)!r}") from error
