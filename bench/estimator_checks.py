"""scikit-learn's own checks of the estimators: how many pass, and which are skipped or fail, with the reason.

    python bench/estimator_checks.py [--only NAME ...]

Private fits have no seed; for the checks, which compare two fits, a seeded source takes the place of the system's.
"""

import argparse
import functools
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
    warnings.simplefilter("ignore")
    print("| estimator | passed | skipped | failed | seconds |\n|---|---|---|---|---|")
    reasons: dict[tuple[str, str], str] = {}
    failed = False
    for name in parser.parse_args().only:
        start = time.perf_counter()
        source = functools.partial(InsecureRNG, 1)
        model = getattr(dpi, name)(
            epsilon=8.0, data_bounds=(-10.0, 10.0), random_source=source, n_threads=1, **ESTIMATORS[name]
        )
        results = check_estimator(model, on_fail=None, on_skip=None)
        count = Counter(result["status"] for result in results)
        failed |= count["passed"] + count["skipped"] < len(results)
        seconds = time.perf_counter() - start
        print(f"| {name} | {count['passed']} | {count['skipped']} | {count['failed']} | {seconds:.0f} |", flush=True)
        for result in results:
            if result["status"] != "passed":
                reasons[result["check_name"], result["status"]] = str(result["exception"])
    print("\n| check | | reason |\n|---|---|---|")
    for (check, status), reason in sorted(reasons.items()):
        print(f"| `{check}` | {status} | {reason} |")
    if failed:
        raise SystemExit("a check failed")


if __name__ == "__main__":
    main()
