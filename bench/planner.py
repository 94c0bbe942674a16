"""What the planner predicts against what fits give: conjugate models, linear regression, and UCI Adult.

1. Conjugate models and linear regression, recipe "tied", at the studies' settings: predicted and observed factor by
   which privacy widens the 90% interval of every parameter.  Observed: median over `--runs` simulated private runs.
2. Adult, the library's default recipe for logistic regression at the settings of bench/adult.py, with the posterior
   that a fit gives by default (full Hessian) and with a diagonal Hessian: predicted factor of a run's median parameter
   (pilot: features of 1000 rows of the *test* file, no label), and the observed one over `--adult-runs` private runs
   on the training file.  Without privacy: Laplace's approximation at the mode.
   "shares": the same with the shares of the categories known, as in bench/adult_coverage.py.
3. The same on `--tables` simulated tables (bench/adult_selection.py: public schema, random dependence, labels of
   weights from the prior), each with a pilot of 1000 of its rows: whether the prediction is right where nothing can be
   tuned.
   "explain": with a diagonal Hessian, the prediction with simulated weights from the prior, as a plan has them, and
   with Adult's own mode in their place.  That reads the training labels: it explains a difference, and is no plan.
4. Adult, the planner's recommended settings against the paper's (C = 11, T = 10^4, kappa = 0.1, the heuristic rate) at
   equal epsilon: widths on the real labels, and the share of weights covered on labels simulated from the model on
   Adult's own columns.  Both with every `--posterior`, the planner's settings also with the posterior that the planner
   chose, where that is another; then how much narrower the intervals are, run by run.

Monte Carlo errors: of a median over runs, 1.25 sd / sqrt(runs).

    DPINFER_DATA=../shared/data python bench/planner.py [--parts conjugate adult recommended] [--epsilons 0.1 1]
        [--posterior default hessian=diagonal,prior=weak] [--recipe plain]
"""

import argparse
import math
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import special

import dpinfer as dpi
from adult_coverage import census
from dpinfer.lab.studies.study import find_study
from dpinfer.planning.drift import LogisticPilot
from dpinfer.planning.simulated import PlainRun, predict_simulated
from dpinfer.testing import InsecureRNG

ROOT = Path(__file__).parents[1]
DELTA, SAMPLE_RATE, N_RECORDS = 1e-5, 0.1, 30_162
STUDIES = ("gamma-exponential", "beta-bernoulli", "dirichlet-categorical", "linear-regression")
NORMAL90 = 2.0 * special.ndtri(0.95)


def conjugate(arguments):
    print(f"recipe 'tied', N = 5000, T = 2500, kappa = {SAMPLE_RATE}: widening of the 90% intervals")
    worst = {}
    for study in STUDIES:
        found = find_study(study)
        runs = arguments.runs if study != "linear-regression" else max(10, arguments.runs // 8)
        for epsilon in arguments.epsilons:
            plan = dpi.plan_inference(
                found.model,
                n_records=5000,
                target_epsilon=epsilon,
                target_delta=DELTA,
                sample_rate=SAMPLE_RATE,
                n_steps=2500,
            )
            ratios = []
            for first in range(0, runs, 50):
                chunk = found.run_chunk(
                    first,
                    min(50, runs - first),
                    method="exact",
                    epsilon=epsilon,
                    seed=11,
                    settings={"n_draws": 2, "n_threads": arguments.threads},
                )
                ratios.append(chunk.width90 / chunk.reference_width90)
            ratio = np.concatenate(ratios)
            ratio = ratio[np.all(np.isfinite(ratio), axis=1)]
            seen = np.median(ratio, axis=0)
            error = 1.25 * np.std(ratio, axis=0, ddof=1) / math.sqrt(len(ratio))
            off = plan.widening / seen - 1.0
            worst[study, epsilon] = np.max(np.abs(off))
            print(f"  {study}, epsilon {epsilon:g} ({len(ratio)} runs)")
            for name, predicted, own, err, part in zip(plan.names, plan.widening, seen, error, off, strict=True):
                print(f"    {name:<16} predicted {predicted:6.3f}   observed {own:6.3f} +- {err:.3f}   off {part:+.1%}")
    print("largest error over the parameters (target 15%):")
    for (study, epsilon), value in worst.items():
        print(f"  {study:<22} epsilon {epsilon:<4g} {value:.1%} {'' if value <= 0.15 else '  <-- beyond the target'}")


def shares(arguments):
    """Do what :func:`adult` does for somebody who knows the shares of the categories."""
    adult(arguments, known=True)


def adult_tables():
    folder = Path(os.environ.get("DPINFER_DATA", ROOT.parent / "shared" / "data"))
    schema = dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml")
    train = dpi.tabular.read_table(folder / "adult.data.csv.gz", schema)
    test = dpi.tabular.read_table(folder / "adult.test.csv.gz", schema)
    rows = np.random.default_rng(3).choice(len(test.X), 1000, replace=False)
    model = dpi.models.LogisticRegression(
        train.X.shape[1], fit_intercept=True, feature_names=train.feature_names, feature_moments=schema.feature_moments
    )
    return model, np.ascontiguousarray(train.X), np.asarray(train.y, dtype=np.float64), test.X[rows]


def laplace(X, y):
    """Return the posterior mode and the Hessian there (prior N(0, 1))."""
    design = np.column_stack((X, np.ones(len(X))))
    weights = np.zeros(design.shape[1])
    for _ in range(30):
        p = special.expit(design @ weights)
        hessian = (design.T * (p * (1.0 - p))) @ design + np.eye(len(weights))
        weights -= np.linalg.solve(hessian, design.T @ (p - y) + weights)
    return weights, hessian


def laplace_width(X, y):
    """Return 90% widths without privacy."""
    return NORMAL90 * np.sqrt(np.diag(np.linalg.inv(laplace(X, y)[1])))


def private_intervals(model, X, y, seed, threads, posteriors=({},), **options):
    release = dpi.run_dpvi(
        model, X, y, n_records=N_RECORDS, random_source=InsecureRNG(seed), n_threads=threads, **options
    )
    return [dpi.noise_aware_posterior(release, **each).quantile([0.05, 0.95]) for each in posteriors]


def adult_plans(model, epsilon, pilot, steps, simulations):
    """Return plans at the fixed settings of bench/adult.py, by posterior, and the seconds that they took."""
    cases = {"default": ({}, simulations), "diagonal": ({"hessian": "diagonal", "prior": "weak"}, 2 * simulations)}
    found = {}
    for name, (posterior, count) in cases.items():
        start = time.perf_counter()
        plan = dpi.plan_inference(
            model,
            n_records=N_RECORDS,
            target_epsilon=epsilon,
            target_delta=DELTA,
            sample_rate=SAMPLE_RATE,
            n_steps=steps,
            max_grad_norm=math.sqrt(12.0),
            learning_rate_factor=1.0,
            pilot=pilot,
            n_simulations=count,
            **posterior,
        )
        found[name] = (plan, time.perf_counter() - start)
    return found


def widenings(model, X, y, reference, plans, seed, threads):
    """Return what one private run widens every interval by, (n,), for the posterior of each plan."""
    posteriors = [plan.posterior for plan, _ in plans.values()]
    privacy = next(iter(plans.values()))[0].privacy
    intervals = private_intervals(model, X, y, seed, threads, posteriors, plan=privacy, max_grad_norm=math.sqrt(12.0))
    return {name: (high - low) / reference for name, (low, high) in zip(plans, intervals, strict=True)}


def adult(arguments, *, known=False):
    model, X, y, pilot = adult_tables()
    if known:
        schema = census(X, dpi.tabular.Schema.load(ROOT / "examples" / "adult.toml"))
        model = replace(model, feature_moments=schema.feature_moments, feature_moments_known=True)
    reference = laplace_width(X, y)
    kind = "Adult, shares known" if known else "Adult"
    print(f"\n{kind}, default recipe ('plain'), C = sqrt(12), T = {arguments.adult_steps}, kappa = {SAMPLE_RATE}")
    for epsilon in arguments.epsilons:
        plans = adult_plans(model, epsilon, pilot, arguments.adult_steps, arguments.simulations)
        seen = {name: [] for name in plans}
        for run in range(arguments.adult_runs):
            for name, ratio in widenings(model, X, y, reference, plans, run, arguments.threads).items():
                seen[name].append(ratio)
        for name, (plan, seconds) in plans.items():
            ratios = np.array(seen[name])
            medians = np.median(ratios, axis=1)
            observed = np.median(medians)
            error = 1.25 * np.std(medians, ddof=1) / math.sqrt(len(medians))
            per_parameter = plan.widening / np.median(ratios, axis=0)
            predicted, own = plan.prediction.typical_widening, plan.prediction.typical_stderr
            off = predicted / observed - 1.0
            doubt = predicted / observed * math.hypot(own / predicted, error / observed)
            print(
                f"  epsilon {epsilon:g}, {name}: median parameter predicted {predicted:.3f} +- {own:.3f}, observed "
                f"{observed:.3f} +- {error:.3f} ({len(medians)} runs): off {off:+.1%} +- {doubt:.1%} (target 15%); "
                f"predicted over observed, parameter by parameter: 10%, 50%, 90% quantiles "
                f"{np.round(np.quantile(per_parameter, [0.1, 0.5, 0.9]), 2).tolist()}; planned in {seconds:.0f} s",
                flush=True,
            )


def explain(arguments):
    model, X, y, pilot = adult_tables()
    mode, _ = laplace(X, y)
    design, norm, count = np.column_stack((pilot, np.ones(len(pilot)))), math.sqrt(12.0), 2 * arguments.simulations
    grad_scale = np.repeat([1.0, 550.0], len(mode))
    print(f"\nAdult, diagonal Hessian: the same prediction for other weights, {count} simulated runs")
    for epsilon in arguments.epsilons:
        privacy = dpi.plan_privacy(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=SAMPLE_RATE, n_steps=arguments.adult_steps
        )
        rate = grad_scale / (privacy.noise_multiplier * norm * math.sqrt(arguments.adult_steps))
        start = np.concatenate(model.default_start())
        run = PlainRun(arguments.adult_steps, SAMPLE_RATE, privacy.noise_multiplier, norm, grad_scale, rate, start)
        truths = {"the prior's": model.sample_prior(count, 5), "Adult's own": np.tile(mode, (count, 1))}
        for name, truth in truths.items():
            drift = LogisticPilot(design, truth, N_RECORDS / len(design), 1.0, norm, 550.0)
            posterior = {"hessian": "diagonal", "prior": "weak"}
            (found,) = predict_simulated(run, drift, model, [posterior], n_records=N_RECORDS, seed=1)
            print(
                f"  epsilon {epsilon:g}, {name} weights: {found.typical_widening:.3f} +- {found.typical_stderr:.3f}",
                flush=True,
            )


def tables(arguments):
    from adult_selection import load_schema, synthetic_records

    print(f"\n{arguments.tables} simulated tables of Adult's schema, each with a pilot and weights of its own")
    moments = load_schema().feature_moments
    off = {}
    for index in range(arguments.tables):
        rng = np.random.default_rng((77, index))
        X = synthetic_records(N_RECORDS, rng)
        model = dpi.models.LogisticRegression(X.shape[1], fit_intercept=True, feature_moments=moments)
        truth = model.sample_prior(1, rng)[0]
        y = model.simulate(truth, X, rng)
        reference = laplace_width(X, y)
        for epsilon in arguments.epsilons:
            plans = adult_plans(model, epsilon, X[:1000], arguments.adult_steps, max(2, arguments.simulations // 4))
            ratios = widenings(model, X, y, reference, plans, index, arguments.threads)
            for name, (plan, _) in plans.items():
                typical = plan.prediction.typical_widening
                off.setdefault((name, epsilon), []).append(math.log(typical / np.median(ratios[name])))
    for (name, epsilon), values in off.items():
        mean, error = math.exp(np.mean(values)), np.std(values, ddof=1) / math.sqrt(len(values))
        print(
            f"  epsilon {epsilon:g}, {name}: predicted over observed, mean {mean:.3f} +- {error:.3f}, single tables "
            f"{math.exp(min(values)):.2f} to {math.exp(max(values)):.2f}",
            flush=True,
        )


def posterior_arguments(text):
    """Return the arguments of noise_aware_posterior that "name=value,name=value" stands for; none for "default"."""
    if text == "default":
        return {}
    pairs = (each.split("=", 1) for each in text.split(","))
    return {name: float(value) if value[:1].isdigit() else value for name, value in pairs}


def compare(arguments, model, X, y, cases):
    """Return (runs,) median widths on real labels and shares covered on simulated ones, by settings and posterior."""
    found = {}
    for run in range(arguments.adult_runs):
        rng = np.random.default_rng(run)
        truth = model.sample_prior(1, rng)[0]
        labels = model.simulate(truth, X, rng)
        for name, (options, posteriors) in cases.items():
            shared = {"posteriors": list(posteriors.values()), **options}
            real = private_intervals(model, X, y, run, arguments.threads, **shared)
            simulated = private_intervals(model, X, labels, run, arguments.threads, **shared)
            for each, (low, high), (bottom, top) in zip(posteriors, real, simulated, strict=True):
                widths, covered = found.setdefault((name, each), ([], []))
                widths.append(np.median(high - low))
                covered.append(np.mean((bottom <= truth) & (truth <= top)))
    return {key: (np.array(widths), np.array(covered)) for key, (widths, covered) in found.items()}


def recommended(arguments):
    model, X, y, pilot = adult_tables()
    print("\nAdult: the planner's settings against the paper's at the same epsilon")
    given = {text: posterior_arguments(text) for text in arguments.posterior}
    count = math.sqrt(arguments.adult_runs)
    for epsilon in arguments.epsilons:
        start = time.perf_counter()
        plan = dpi.plan_inference(
            model,
            n_records=N_RECORDS,
            target_epsilon=epsilon,
            target_delta=DELTA,
            recipe=arguments.recipe,
            pilot=pilot,
            n_simulations=arguments.simulations,
        )
        seconds = time.perf_counter() - start
        paper = dpi.plan_privacy(
            target_epsilon=epsilon, target_delta=DELTA, sample_rate=SAMPLE_RATE, n_steps=arguments.adult_steps
        )
        ours = {name: value for name, value in plan.run_arguments().items() if name != "n_records"}
        planned = {} if plan.posterior in given.values() else {"the plan's": plan.posterior}
        cases = {
            "paper": ({"plan": paper, "max_grad_norm": 11.0, "recipe": plan.recipe}, given),
            "planner": (ours, {**planned, **given}),
        }
        factor, expected = plan.learning_rate_factor, plan.prediction
        print(
            f"  epsilon {epsilon:g}: planner takes T = {plan.privacy.n_steps}, kappa = {plan.privacy.sample_rate:g},"
            f" C = {plan.max_grad_norm:.2f}, "
            f"{'' if factor is None else f'rate {factor:g} times the heuristic, '}posterior {plan.posterior}; expects"
            f" coverage {expected.coverage90:.2f}, median 90% width {np.median(expected.width90):.2f}, widened"
            f" {expected.typical_widening:.2f} +- {expected.typical_stderr:.2f} times; planned in {seconds:.0f} s",
            flush=True,
        )
        results = compare(arguments, model, X, y, cases)
        for (name, each), (width, share) in results.items():
            print(
                f"    {name + ', ' + each:<28} median 90% width {np.mean(width):6.3f} +- "
                f"{np.std(width, ddof=1) / count:.3f}, simulated labels: covered {np.mean(share):.3f} +- "
                f"{np.std(share, ddof=1) / count:.3f} (nominal 0.90)",
                flush=True,
            )
        for own, theirs in [*((each, arguments.posterior[0]) for each in planned), *((each, each) for each in given)]:
            narrower = results["planner", own][0] / results["paper", theirs][0]
            change = results["planner", own][1] - results["paper", theirs][1]
            print(
                f"    planner ({own}) over paper ({theirs}): width x {np.mean(narrower):.3f} +- "
                f"{np.std(narrower, ddof=1) / count:.3f}, coverage {np.mean(change):+.3f} +- "
                f"{np.std(change, ddof=1) / count:.3f}",
                flush=True,
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {
        "conjugate": conjugate,
        "adult": adult,
        "shares": shares,
        "tables": tables,
        "explain": explain,
        "recommended": recommended,
    }
    parser.add_argument("--parts", nargs="+", choices=parts, default=["conjugate", "adult", "tables", "recommended"])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--adult-runs", type=int, default=5)
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--adult-steps", type=int, default=10_000)
    parser.add_argument("--simulations", type=int, default=12)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 0.3, 1.0])
    parser.add_argument("--posterior", nargs="+", default=["default"])
    parser.add_argument("--recipe", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if min(arguments.adult_runs, arguments.tables, arguments.simulations) < 2:
        parser.error("--adult-runs, --tables and --simulations must be at least 2: the errors need two")
    for part in arguments.parts:
        parts[part](arguments)


if __name__ == "__main__":
    main()
