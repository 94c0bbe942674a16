// The eight-lane elementary functions against the C library.
#include <cmath>
#include <initializer_list>
#include <limits>

#include "check.hpp"
#include "common/special.hpp"

namespace lanes = dpinfer::portable;

namespace {

double ulps(double got, double want) {
  if (got == want) return 0.0;
  const double spacing = std::nextafter(std::fabs(want), std::numeric_limits<double>::infinity()) - std::fabs(want);
  return std::fabs(got - want) / spacing;
}

template <typename Function>
double one(Function function, double x) {
  double out[lanes::kLanes];
  lanes::store(out, function(lanes::splat(x)));
  for (int i = 1; i < lanes::kLanes; ++i) CHECK(out[i] == out[0] || out[0] != out[0]);
  return out[0];
}

// In long double, whose exponent range lets exp(z^2) and erfc(z) live for all z used here.
long double erfcx_reference(long double z) { return std::exp(z * z) * std::erfc(z); }

}  // namespace

int main() {
  double worst_exp = 0.0;
  double worst_sigmoid = 0.0;
  double worst_pair = 0.0;
  for (int i = 0; i <= 3770; ++i) {
    const double x = -700.0 + 0.3713 * i;
    worst_exp = std::fmax(worst_exp, ulps(one(lanes::exp, x), std::exp(x)));
    const long double decay = std::exp(-std::fabs(static_cast<long double>(x)));
    const auto want = static_cast<double>((x < 0 ? decay : 1.0L) / (1.0L + decay));
    worst_sigmoid = std::fmax(worst_sigmoid, ulps(one(lanes::sigmoid, x), want));
    // The pair of x and a point far from it.
    const auto either = [x](bool second) {
      return [x, second](const lanes::Vec& point) {
        lanes::Vec at_x;
        lanes::Vec at_y;
        lanes::two_sigmoids(second ? lanes::splat(0.71 * x - 3.0) : point, second ? point : lanes::splat(-1.3 * x),
                            at_x, at_y);
        return second ? at_y : at_x;
      };
    };
    worst_pair = std::fmax(worst_pair, ulps(one(either(false), x), want));
    worst_pair = std::fmax(worst_pair, ulps(one(either(true), x), want));
  }
  CHECK(worst_exp <= 4.0);
  CHECK(worst_sigmoid <= 4.0);
  CHECK(worst_pair <= 6.0);
  CHECK(one(lanes::exp, 0.0) == 1.0);
  CHECK(std::isnan(one(lanes::exp, std::numeric_limits<double>::quiet_NaN())));
  CHECK(std::isfinite(one(lanes::exp, 1e300)));
  CHECK(one(lanes::exp, -1e300) < 1e-300);
  CHECK(one(lanes::sigmoid, 1e308) == 1.0);

  double worst_log = 0.0;
  for (int i = 0; i <= 2700; ++i) {
    const double x = 0x1.0p-53 * std::pow(1.0137, i);
    worst_log = std::fmax(worst_log, ulps(one(lanes::log, x), std::log(x)));
  }
  CHECK(worst_log <= 4.0);
  CHECK(one(lanes::log, 1.0) == 0.0);

  double worst_turn = 0.0;
  for (int i = 0; i < 1024; ++i) {
    const double u = 0.000976 * i;
    lanes::Vec cosine;
    lanes::Vec sine;
    lanes::cos_sin_turns(lanes::splat(u), cosine, sine);
    double c[lanes::kLanes];
    double s[lanes::kLanes];
    lanes::store(c, cosine);
    lanes::store(s, sine);
    const long double angle = 6.283185307179586476925286766559005768L * static_cast<long double>(u);
    worst_turn = std::fmax(worst_turn, std::fabs(c[0] - static_cast<double>(std::cos(angle))));
    worst_turn = std::fmax(worst_turn, std::fabs(s[0] - static_cast<double>(std::sin(angle))));
  }
  CHECK(worst_turn <= 4e-16);

  double worst_mills = 0.0;
  for (int i = 0; i <= 2839; ++i) {
    const double x = -60.0 + 0.0317 * i;
    const long double root = std::sqrt(2.0L / 3.14159265358979323846264338327950288L);
    const long double z = std::fabs(static_cast<long double>(x)) / std::sqrt(2.0L);
    const long double gauss = std::exp(-0.5L * static_cast<long double>(x) * x);
    const long double tail = erfcx_reference(z);
    const auto want = static_cast<double>(x < 0 ? root / tail : root * gauss / (2.0L - gauss * tail));
    // exp(-x^2 / 2) cannot be better than the rounding of its argument.
    worst_mills = std::fmax(worst_mills, std::fabs(one(lanes::inverse_mills, x) / want - 1.0) / (1.0 + 0.1 * x * x));
  }
  CHECK(worst_mills <= 4e-15);
  return check_result();
}
