// One fault of each kind that a sanitizer must report, and one piece of code that it must not: without them, silence
// would say nothing.  Built only with a sanitizer, and called through ctypes by tests/sanitized_smoke.py.

#include <cstddef>
#include <limits>
#include <memory>

namespace {

int shared = 0;

}  // namespace

#define PLANTED extern "C" __attribute__((visibility("default"))) int

// Every thread writes; returns how many there were.
PLANTED planted_race(int threads) {
  int team = 0;
#pragma omp parallel num_threads(threads) reduction(+ : team)
  {
    team += 1;
    shared = team;
  }
  return team;
}

// One thread writes and, after a barrier, every thread reads: a race only to those who do not know OpenMP's barriers.
PLANTED planted_order(int threads) {
  int team = 0;
#pragma omp parallel num_threads(threads) reduction(+ : team)
  {
#pragma omp single
    shared = 1;
    team += shared;
  }
  return team;
}

PLANTED planted_overrun(int length) {
  const std::unique_ptr<char[]> bytes(new char[static_cast<std::size_t>(length)]());
  return bytes[static_cast<std::size_t>(length)];
}

PLANTED planted_overflow(int amount) { return std::numeric_limits<int>::max() + amount; }
