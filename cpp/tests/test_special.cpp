// The eight-lane elementary functions against the C library's double precision, with the rounding of its arguments
// carried along where that would show.  (Not long double: valgrind has 64 bits of it, and so have some platforms.)
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

// exp(sign a^2) for sign 1 or -1, with the rounding of the square carried along.
double exp_square(double a, double sign) {
  const double square = a * a;
  return std::exp(sign * square) * (1.0 + sign * std::fma(a, a, -square));
}

// exp(z^2) erfc(z): as it stands while both factors are normal numbers, and Laplace's continued fraction,
// 1 / (sqrt(pi) (z + 1/2 / (z + 1 / (z + 3/2 / (z + ...))))), beyond.
double erfcx_product(double z) { return exp_square(z, 1.0) * std::erfc(z); }

double erfcx_fraction(double z) {
  double tail = z;
  for (int k = 60; k > 0; --k) tail = z + 0.5 * k / tail;
  return 1.0 / (1.7724538509055160273 * tail);
}

double erfcx_reference(double z) { return z < 20.0 ? erfcx_product(z) : erfcx_fraction(z); }

// 1 / (1 + exp(-x)), with the rounding of the sum carried along.
double sigmoid_reference(double x) {
  const double decay = std::exp(-std::fabs(x));
  const double sum = 1.0 + decay;
  const double lost = decay - (sum - 1.0);
  const double ratio = (x < 0 ? decay : 1.0) / sum;
  return ratio - ratio * lost / sum;
}

// cos and sin of 2 pi u: whole quarters are taken out exactly, and the rest is an angle and its rounding.
void turn_reference(double u, double& cosine, double& sine) {
  constexpr double kTurn = 6.283185307179586232;       // 2 pi, rounded
  constexpr double kRest = 2.4492935982947063545e-16;  // and what is left of it
  const double quarters = std::nearbyint(4.0 * u);
  const double r = u - 0.25 * quarters;
  const double angle = kTurn * r;
  const double rest = std::fma(kTurn, r, -angle) + kRest * r;
  const double c = std::cos(angle) - rest * std::sin(angle);
  const double s = std::sin(angle) + rest * std::cos(angle);
  const int quadrant = static_cast<int>(quarters) % 4;
  cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
  sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
}

}  // namespace

int main() {
  double worst_exp = 0.0;
  double worst_sigmoid = 0.0;
  double worst_pair = 0.0;
  for (int i = 0; i <= 3770; ++i) {
    const double x = -700.0 + 0.3713 * i;
    worst_exp = std::fmax(worst_exp, ulps(one(lanes::exp, x), std::exp(x)));
    const double want = sigmoid_reference(x);
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
    double want_cosine = 0.0;
    double want_sine = 0.0;
    turn_reference(u, want_cosine, want_sine);
    worst_turn = std::fmax(worst_turn, std::fabs(c[0] - want_cosine));
    worst_turn = std::fmax(worst_turn, std::fabs(s[0] - want_sine));
  }
  CHECK(worst_turn <= 4e-16);

  double worst_mills = 0.0;
  for (int i = 0; i <= 2839; ++i) {
    const double x = -60.0 + 0.0317 * i;
    const double root = 0.79788456080286535588;  // sqrt(2 / pi)
    const double square = 0.5 * x * x;
    const double gauss = std::exp(-square) * (1.0 - 0.5 * std::fma(x, x, -2.0 * square));
    const double tail = erfcx_reference(std::fabs(x) * 0.70710678118654752440);
    const double want = x < 0 ? root / tail : root * gauss / (2.0 - gauss * tail);
    // exp(-x^2 / 2) cannot be better than the rounding of its argument.
    worst_mills = std::fmax(worst_mills, std::fabs(one(lanes::inverse_mills, x) / want - 1.0) / (1.0 + 0.1 * x * x));
  }
  CHECK(worst_mills <= 4e-15);

  // The two references agree where both hold.
  double worst_reference = 0.0;
  for (double z = 6.0; z < 26.0; z += 0.13) {
    worst_reference = std::fmax(worst_reference, std::fabs(erfcx_product(z) / erfcx_fraction(z) - 1.0));
  }
  CHECK(worst_reference <= 2e-15);
  return check_result();
}
