"""Two builds in turn, each pair in fresh processes: new over old by the fastest of seven calls, and whose bits differ.

OMP_NUM_THREADS=1 python bench/speed/two_builds.py OLD/python NEW/python [PAIRS]
"""

import os
import subprocess
import sys

import numpy as np

NAMES = ("import", "passes", "steps", "study")
RUN = """import time; start = time.perf_counter(); import dpinfer as dpi; seconds = [time.perf_counter() - start]
import hashlib, numpy as np; from dpinfer.testing import InsecureRNG; rng = np.random.default_rng(0)
X, y, model = rng.normal(size=(100_000, 20)), rng.integers(0, 2, 100_000) * 1.0, dpi.models.LogisticRegression(20)
newton = dict(plan=dpi.plan_newton(model, target_epsilon=1.0, target_delta=1e-6, n_records=len(X)))
plan = dpi.plan_privacy(target_epsilon=1.0, target_delta=1e-6, sample_rate=0.1, n_steps=60)
study = dict(epsilon=1.0, n_runs=4, n_draws=9, n_repeats=2, progress=False)
for call in (lambda given: dpi.run_newton(model, X, y, **newton, **given).scores,
             lambda given: dpi.run_dpvi(model, X, y, plan=plan, max_grad_norm=4.0, **given).noisy_gradients,
             lambda given: dpi.coverage_study("logistic-regression", **study).runs.z):
    taken = []
    for _ in range(8):  # the first one loads modules
        start = time.perf_counter(); found = call(dict(random_source=InsecureRNG(1), n_records=len(X), n_threads=1))
        taken.append(time.perf_counter() - start)
    seconds.append(min(taken)); print(hashlib.sha256(found.tobytes()).hexdigest()[:16], end=" ")
print(*seconds)"""

if __name__ == "__main__":
    paths, rows, other = sys.argv[1:3], [], set()
    for pair in range(int([*sys.argv, "20"][3])):
        found = {}
        for path in paths[:: 1 - 2 * (pair % 2)]:
            own = {**os.environ, "PYTHONPATH": path}
            found[path] = subprocess.run([sys.executable, "-c", RUN], env=own, stdout=-1, check=True).stdout.split()
        old, new = (found[path] for path in paths)
        other |= {name for name, a, b in zip(NAMES[1:], old, new, strict=False) if a != b}
        rows.append(np.array(new[3:], float) / np.array(old[3:], float))
    for name, ratios in zip(NAMES, np.transpose(rows), strict=True):
        text = "{} new / old {:.3f}, quartiles {:.3f} {:.3f}".format(name, *np.quantile(ratios, [0.5, 0.25, 0.75]))
        print(text + ", other bits" * (name in other))
