// The smallest possible test harness: CHECK counts failures, check_result is what main returns.
#pragma once

#include <cstdio>

inline int& check_failures() {
  static int failures = 0;
  return failures;
}

#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      std::printf("%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, #condition); \
      ++check_failures();                                                       \
    }                                                                           \
  } while (false)

inline int check_result() {
  std::printf(check_failures() == 0 ? "ok\n" : "%d checks failed\n", check_failures());
  return check_failures() == 0 ? 0 : 1;
}
