"""scikit-learn's own checks of the estimators: how many pass, and which are skipped or fail, with the reason.

    SCIPY_ARRAY_API=1 python bench/estimator_checks.py [--only NAME ...] [--full]

Private fits have no seed; for the checks, which compare two fits, a seeded source takes the place of the system's.
The checks are of how an estimator behaves, not of how exact its numbers are: unless asked for --full, the chains of
private Newton posteriors are short.  Without the variable scikit-learn skips its check of array APIs.
"""

import argparse
import functools
import sys
import time
import warnings
from collections import Counter
from typing import Any

from sklearn.utils.estimator_checks import check_estimator

import dpinfer as dpi
from dpinfer.testing import InsecureRNG

ESTIMATORS: dict[str, dict[str, Any]] = {
    "BayesianLogisticRegression": {"n_steps": 200, "sample_rate": 0.5, "hessian": "diagonal"},
    "BayesianLinearRegression": {"target_bounds": (-500.0, 500.0)},
    "BayesianPoissonRegression": {},
    "BayesianProbitRegression": {},
    "BayesianMultinomialRegression": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    run(asked.only)


def run(names: list[str]) -> None:
    """Check these estimators and print the tables."""
    print("| estimator | passed | skipped | failed |\n|---|---|---|---|")
    reasons: dict[tuple[str, str], str] = {}
    failed = False
    for name in names:
        start = time.perf_counter()
        source = functools.partial(InsecureRNG, 1)
        model = getattr(dpi, name)(
            epsilon=8.0, data_bounds=(-10.0, 10.0), random_source=source, n_threads=1, **ESTIMATORS[name]
        )
        results = check_estimator(model, on_fail=None, on_skip=None)
        count = Counter(result["status"] for result in results)
        failed |= count["passed"] + count["skipped"] < len(results)
        print(f"| {name} | {count['passed']} | {count['skipped']} | {count['failed']} |", flush=True)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
        for result in results:
            if result["status"] != "passed":
                reasons[result["check_name"], result["status"]] = str(result["exception"]).replace(
                    name, "the estimator"
                )
    print("\n| check | | reason |\n|---|---|---|")
    for (check, status), reason in sorted(reasons.items()):
        print(f"| `{check}` | {status} | {reason} |")
    if failed:
        raise SystemExit("a check failed")


if __name__ == "__main__":
    main()
