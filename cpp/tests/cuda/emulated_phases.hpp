// The threads of a GPU's block on the host, for tests, where their code is made of phases between which they wait for
// each other.
#pragma once

#include <barrier>
#include <cstddef>
#include <thread>
#include <vector>

namespace dpinfer {

// The threads of a phase run one after the other, or all at the same time, as on a GPU: what a thread sanitizer then
// reports is a race there, too.
enum class ThreadOrder : int { forwards, backwards, at_once };

// Calls body(each), where each(phase) calls phase(thread, n_threads) for all threads; at once, every thread calls body.
template <typename Body>
void run_phases(int n_threads, ThreadOrder order, const Body& body) {
  if (order != ThreadOrder::at_once) {
    const bool backwards = order == ThreadOrder::backwards;
    body([&](const auto& phase) {
      for (int i = 0; i < n_threads; ++i) phase(backwards ? n_threads - 1 - i : i, n_threads);
    });
    return;
  }
  std::barrier together(n_threads);
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(n_threads));
  for (int thread = 0; thread < n_threads; ++thread) {
    threads.emplace_back([&, thread] {
      body([&](const auto& phase) {
        phase(thread, n_threads);
        together.arrive_and_wait();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace dpinfer
