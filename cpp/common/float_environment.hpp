// The arithmetic that proofs assume: rounding to nearest, subnormal numbers kept.  Any library in the process may have
// set another (a directed rounding mode, or flush-to-zero by code linked with -ffast-math), and threads of a team keep
// what their creator had, so the guard stands at every entry from Python and inside every parallel region.
#pragma once

#include <atomic>
#include <cfenv>
#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace dpinfer {

// Holds the standard environment in the current thread while it lives, and puts back what was there.
class FloatEnvironment {
 public:
  FloatEnvironment() : before_(read()) { write(kStandard); }
  ~FloatEnvironment() { write(before_); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__) || defined(_M_X64)
  using Word = unsigned int;
  // Every exception masked, nearest, neither flush-to-zero nor denormals-are-zero.
  static constexpr Word kStandard = 0x1F80;
  static Word read() { return _mm_getcsr(); }
  static void set(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = std::uint64_t;
  static constexpr Word kStandard = 0;
  static Word read() {
    Word word = 0;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void set(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
  using Word = int;
  static constexpr Word kStandard = FE_TONEAREST;
  static Word read() { return std::fegetround(); }
  static void set(Word word) { std::fesetround(word); }
#endif

  // Numbers that are read from memory after this are not worked with before it.
  static void write(Word word) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
    set(word);
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }

  Word before_;
};

}  // namespace dpinfer
