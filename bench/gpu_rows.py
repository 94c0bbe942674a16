"""Passes on a GPU: the CPU's integers, time beside a copy of the same memory, and beside the CPU.

    python bench/gpu_rows.py [--megabytes 1600] [--features 10 20 32 50 100] [--repeats 9]

Needs a build with -DDPINFER_CUDA=ON, nvcc and a GPU. Answer first: integers of every pass are the CPU's on all rows.
Then medians over interleaved repeats. A pass is timed by the wall's clock from Python, what it is told and its sum's
way back included. "copy" is a copy of the rows from GPU memory to GPU memory, bytes read and written counted; the
share is bytes read in a pass, over its time, over that. Flops are those that the algorithm needs, as in roofline.py;
"fma" is the rate at which this GPU's vector units do fused multiply-adds in float64, measured by independent ones in
registers.
"""

import argparse
import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from dpinfer.mechanism import _cuda, _native

SOURCE = r"""
#include <cuda_runtime.h>
template <typename Work>
static double seconds(const Work& work) {
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  work();
  cudaEventRecord(start);
  work();
  cudaEventRecord(stop);
  cudaEventSynchronize(stop);
  float milliseconds = 0.0f;
  cudaEventElapsedTime(&milliseconds, start, stop);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  return cudaGetLastError() == cudaSuccess ? 1e-3 * milliseconds : -1.0;
}
extern "C" double copy_rate() {
  const size_t bytes = size_t{2} << 30;
  static char* memory = nullptr;
  if (memory == nullptr && cudaMalloc(&memory, 2 * bytes) != cudaSuccess) return -1.0;
  return 2.0 * bytes / seconds([&] { cudaMemcpyAsync(memory + bytes, memory, bytes, cudaMemcpyDeviceToDevice); });
}
__global__ void chains(double* out, double a, double b) {
  double x[8];
  for (int k = 0; k < 8; ++k) x[k] = k + threadIdx.x;
  for (int i = 0; i < 20000; ++i)
    for (int k = 0; k < 8; ++k) x[k] = fma(x[k], a, b);
  double sum = 0.0;
  for (int k = 0; k < 8; ++k) sum += x[k];
  if (sum == 0.5) *out = sum;
}
extern "C" double multiply_add_rate() {
  const double n = 2.0 * 8 * 20000 * 1056 * 256;
  return n / seconds([] { chains<<<1056, 256>>>(nullptr, 0.999, 1e-3); });
}
"""
NO_TABLE = {"centre": np.empty(0), "slope": np.empty(0), "first_node": 0.0, "spacing": 1.0}
BOUND = 1e3
PASSES = {"gradient": "add_scores", "second moment": "add_second_moments", "Jacobian": "add_curvature"}


def compiled(folder: str) -> ctypes.CDLL:
    """Return the functions of SOURCE, compiled for this GPU."""
    path = Path(folder) / "peaks.cu"
    path.write_text(SOURCE, encoding="utf-8")
    command = ["nvcc", "-O3", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-o", f"{folder}/peaks.so", str(path)]
    subprocess.run(command, check=True, timeout=300)
    library = ctypes.CDLL(f"{folder}/peaks.so")
    for function in (library.copy_rate, library.multiply_add_rate):
        function.restype = ctypes.c_double
    return library


def flops(kind: str, d: int) -> int:
    """Return the flops that a record needs."""
    white, predictor, norm = 2 * d * d, 2 * d, 2 * d
    return {
        "gradient": white + predictor + norm + 2 * d,
        "second moment": white + norm + d * (d + 1),
        "Jacobian": white + predictor + norm + d * (d + 1),
    }[kind]


def pass_of(rows, kind: str, d: int, transform, loc):
    residuals = _native.Residuals(link="logistic", loc=loc, bound=np.inf, **NO_TABLE)
    where = {"transform": transform, "bound": BOUND}
    length, largest = (d, 64.0) if kind == "gradient" else (d * (d + 1) // 2, 4096.0)

    def run():
        total = _native.PartialSum(length=length, max_norm=largest)
        add = getattr(rows, PASSES[kind])
        add(total, **where) if kind == "second moment" else add(total, residuals, **where)
        return total.integers

    return run


def seconds(run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(library: ctypes.CDLL, d: int, dtype, megabytes: float, repeats: int) -> None:
    size = np.dtype(dtype).itemsize
    n = int(megabytes * 1e6 / (d * size + 8))
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, d)).astype(dtype)
    y = (rng.random(n) < 0.5).astype(float)
    transform = np.eye(d) + 0.01 * rng.normal(size=(d, d))
    loc = rng.normal(size=d) / d
    device = _cuda.DeviceRows(features=X, response=y, intercept=False)
    host = _native.RegressionRows(features=X, response=y, intercept=False, n_threads=0)
    for kind in PASSES:
        own, peer = (pass_of(rows, kind, d, transform, loc) for rows in (device, host))
        np.testing.assert_array_equal(own(), peer())
        times, copies, hosts = [], [], []
        for repeat in range(repeats):
            times.append(seconds(own))
            copies.append(library.copy_rate())
            if repeat < 3:
                hosts.append(seconds(peer))
        spent, read = np.median(times), n * (d * size + (0 if kind == "second moment" else 8))
        print(
            f"{np.dtype(dtype).name:8} d {d:4d} {kind:14} rows {n:10d}  {1e3 * spent:8.3f} ms  "
            f"{n / spent / 1e9:7.3f} rows/ns  {read / spent / 1e9:7.0f} GB/s  of copy "
            f"{np.median([read / t / c for t, c in zip(times, copies, strict=True)]):.2f} "
            f"({min(times) * 1e3:.3f} to {max(times) * 1e3:.3f} ms)  {n * flops(kind, d) / spent / 1e12:6.2f} Tflop/s  "
            f"CPU {np.median(hosts) / spent:6.0f} times",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1600.0)
    parser.add_argument("--features", type=int, nargs="+", default=[10, 20, 32, 50, 100])
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = compiled(folder)
    print(f"copy {library.copy_rate() / 1e9:.0f} GB/s, fma {library.multiply_add_rate() / 1e12:.1f} Tflop/s")
    for dtype in (np.float64, np.float32):
        for d in arguments.features:
            measure(library, d, dtype, arguments.megabytes, arguments.repeats)


if __name__ == "__main__":
    main()
