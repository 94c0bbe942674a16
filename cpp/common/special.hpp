// Elementary functions of vectors, the same bits in every variant (see simd.hpp).
//
// Accuracy, checked by cpp/tests/test_special.cpp against the C library: exp, log, sin, cos and sigmoid within 4 units
// in the last place, two_sigmoids within 6, the inverse Mills ratio at x within 4e-15 (1 + x^2 / 10) relative, over the
// ranges stated at each.
#pragma once

#include "common/simd.hpp"

namespace dpinfer::DPINFER_SIMD_VARIANT {

inline constexpr double kLn2High = 6.93147180369123816490e-01;  // the upper bits of log 2: k * kLn2High is exact
inline constexpr double kLn2Low = 1.90821492927058770002e-10;
inline constexpr double kRoundMagic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to the nearest integer ...
inline constexpr std::uint64_t kRoundBits = 0x4338000000000000ULL;  // ... and leaves its bits in the integer's

// c[0] + c[1] x + ..., by Estrin's scheme: halves are independent, so that the chain of additions is short.
// `powers` holds x, x^2, x^4, x^8.
template <int kTerms>
DPINFER_INLINE Vec estrin(const double* c, const Vec* powers) {
  if constexpr (kTerms == 1) {
    return splat(c[0]);
  } else {
    constexpr int kLevel = kTerms > 8 ? 3 : kTerms > 4 ? 2 : kTerms > 2 ? 1 : 0;
    constexpr int kHalf = 1 << kLevel;
    return fused(estrin<kTerms - kHalf>(c + kHalf, powers), powers[kLevel], estrin<kHalf>(c, powers));
  }
}

template <int kTerms>
DPINFER_INLINE Vec polynomial(const double (&coefficients)[kTerms], const Vec& x) {
  static_assert(kTerms <= 16);
  const Vec x2 = x * x;
  const Vec x4 = x2 * x2;
  const Vec powers[4] = {x, x2, x4, x4 * x4};
  return estrin<kTerms>(coefficients, powers);
}

// exp(x), with x clamped to [-708, 709]; NaN gives NaN.
DPINFER_INLINE Vec exp(const Vec& x) {
  // Taylor coefficients: |r| <= log(2)/2, so the first term left out is below 5e-18.
  static constexpr double kTaylor[] = {1.0,
                                       1.0,
                                       0.5,
                                       0.1666666666666666667,
                                       0.04166666666666666667,
                                       0.008333333333333333333,
                                       0.001388888888888888889,
                                       0.0001984126984126984127,
                                       0.00002480158730158730159,
                                       2.755731922398589065e-6,
                                       2.755731922398589065e-7,
                                       2.505210838544171878e-8,
                                       2.087675698786809898e-9,
                                       1.60590438368216146e-10};
  // select_less keeps its last argument for NaN, so that NaN goes through both clamps.
  const Vec low = select_less(x, splat(-708.0), splat(-708.0), x);
  const Vec clamped = select_less(splat(709.0), low, splat(709.0), low);
  const Vec shifted = fused(clamped, splat(1.4426950408889634074), splat(kRoundMagic));
  const Vec k = shifted - splat(kRoundMagic);
  const Vec r = fused(k, splat(-kLn2Low), fused(k, splat(-kLn2High), clamped));
  const Bits power = shift_left<52>(as_bits(shifted) + splat_bits(1023));
  return polynomial(kTaylor, r) * as_vec(power);
}

// The mean of a Poisson response.  The exponent is capped where exp is 1e60: far beyond any clipping norm, and its
// square is still finite.
DPINFER_INLINE Vec poisson_rate(const Vec& exponent) { return exp(minimum(exponent, splat(138.0))); }

// log(x) for positive normal x.
DPINFER_INLINE Vec log(const Vec& x) {
  static constexpr double kSeries[] = {2.0,
                                       0.6666666666666666667,
                                       0.4,
                                       0.2857142857142857143,
                                       0.2222222222222222222,
                                       0.1818181818181818182,
                                       0.1538461538461538462,
                                       0.1333333333333333333,
                                       0.1176470588235294118,
                                       0.1052631578947368421,
                                       0.0952380952380952381,
                                       0.08695652173913043478};
  // Write x = 2^k m with m in [sqrt(1/2), sqrt(2)).
  const Bits offset = splat_bits(0x3fe6a09e667f3bcdULL);
  const Bits shifted = as_bits(x) - offset;
  const Bits exponent = shifted & splat_bits(0xfff0000000000000ULL);
  const Vec m = as_vec(as_bits(x) - exponent);
  // The signed exponent as a double, through the mantissa of a large number.
  const Bits biased = shift_right<52>(exponent + splat_bits(0x4000000000000000ULL));
  const Vec k = as_vec(biased | splat_bits(0x4330000000000000ULL)) - splat(4503599627370496.0 + 1024.0);
  const Vec s = (m - splat(1.0)) / (m + splat(1.0));
  return fused(k, splat(kLn2High), fused(s, polynomial(kSeries, s * s), k * splat(kLn2Low)));
}

// cos(2 pi u) and sin(2 pi u) for u in [0, 1).
DPINFER_INLINE void cos_sin_turns(const Vec& u, Vec& cosine, Vec& sine) {
  static constexpr double kSine[] = {6.283185307179586477,  -41.34170224039976023,  81.6052492760750542,
                                     -76.70585975306138584, 42.05869394489765314,   -15.09464257682299039,
                                     3.819952584848282128,  -0.7181223017785005122, 0.1042291622081398412};
  static constexpr double kCosine[] = {1.0,
                                       -19.73920880217871724,
                                       64.93939402266829149,
                                       -85.45681720669372774,
                                       60.24464137187666036,
                                       -26.42625678337439745,
                                       7.903536371318468804,
                                       -1.714390711088672065,
                                       0.2820059684557912151,
                                       -0.03638284114254567077};
  const Vec shifted = u * splat(4.0) + splat(kRoundMagic);
  const Bits quadrant = as_bits(shifted);
  const Vec r = u - (shifted - splat(kRoundMagic)) * splat(0.25);  // exact, |r| <= 1/8
  const Vec r2 = r * r;
  const Vec s = r * polynomial(kSine, r2);
  const Vec c = polynomial(kCosine, r2);
  const Bits swap = splat_bits(0) - (quadrant & splat_bits(1));
  const Bits keep = swap ^ splat_bits(~0ULL);
  const Bits high = splat_bits(2);
  const Bits cosine_sign = shift_left<62>((quadrant + splat_bits(1)) & high);
  const Bits sine_sign = shift_left<62>(quadrant & high);
  cosine = as_vec(((as_bits(c) & keep) | (as_bits(s) & swap)) ^ cosine_sign);
  sine = as_vec(((as_bits(s) & keep) | (as_bits(c) & swap)) ^ sine_sign);
}

// 1 / (1 + exp(-x)), without overflow for any x.
DPINFER_INLINE Vec sigmoid(const Vec& x) {
  const Vec decay = exp(splat(0.0) - absolute(x));
  const Vec numerator = select_less(x, splat(0.0), decay, splat(1.0));
  return numerator / (splat(1.0) + decay);
}

// The same at two points, with one division between them.
DPINFER_INLINE void two_sigmoids(const Vec& x, const Vec& y, Vec& at_x, Vec& at_y) {
  const Vec decay_x = exp(splat(0.0) - absolute(x));
  const Vec decay_y = exp(splat(0.0) - absolute(y));
  const Vec below_x = splat(1.0) + decay_x;
  const Vec below_y = splat(1.0) + decay_y;
  const Vec inverse = splat(1.0) / (below_x * below_y);
  at_x = select_less(x, splat(0.0), decay_x, splat(1.0)) * below_y * inverse;
  at_y = select_less(y, splat(0.0), decay_y, splat(1.0)) * below_x * inverse;
}

// exp(z^2) erfc(z) for z >= 0: (1 + 2z) erfcx(z) is smooth in t = (z - 3.75)/(z + 3.75), where it is summed as a
// Chebyshev series (the change of variable is Schonfelder's, 1978; the coefficients were computed to 40 digits).
DPINFER_INLINE Vec erfcx(const Vec& z) {
  static constexpr double kChebyshev[] = {
      1.177578934567401754,     -4.590054580646477331e-3,  -8.424913336651791558e-2,  5.92099399981918905e-2,
      -2.665866843530575228e-2, 9.074997670705265094e-3,   -2.413163540417608191e-3,  4.907758365258086323e-4,
      -6.916973302501206367e-5, 4.139027986073010168e-6,   7.740383066198490669e-7,   -2.188640104923439566e-7,
      1.076499946567091038e-8,  4.521959811218286898e-9,   -7.754400208831351106e-10, -6.318088340886684494e-11,
      2.868795010930669898e-11, 1.945586854577734723e-13,  -9.654696748433438906e-13, 3.252548148148739842e-14,
      3.347811948286805388e-14, -1.864562880419313102e-15, -1.250795053068864709e-15, 7.418235256624043463e-17,
  };
  static constexpr int kTerms = static_cast<int>(sizeof(kChebyshev) / sizeof(kChebyshev[0]));
  const Vec t = (z - splat(3.75)) / (z + splat(3.75));
  const Vec t2 = t + t;
  Vec b1 = splat(0.0);
  Vec b2 = splat(0.0);
  for (int k = kTerms - 1; k >= 1; --k) {
    const Vec b = fused(t2, b1, splat(kChebyshev[k]) - b2);
    b2 = b1;
    b1 = b;
  }
  return fused(t, b1, splat(kChebyshev[0]) - b2) / (splat(1.0) + (z + z));
}

// Phi(x), and exp(-x^2 / 2), of which the density is a multiple.  Beyond 37 the tail is below 1e-299.
DPINFER_INLINE void normal_cdf(const Vec& x, Vec& below, Vec& gauss) {
  const Vec magnitude = minimum(absolute(x), splat(37.0)) * splat(0.70710678118654752440);
  gauss = exp(splat(0.0) - magnitude * magnitude);
  const Vec tail = splat(0.5) * gauss * erfcx(magnitude);
  below = select_less(x, splat(0.0), tail, splat(1.0) - tail);
}

// phi(x) / Phi(x), the inverse Mills ratio of -x.
DPINFER_INLINE Vec inverse_mills(const Vec& x) {
  const Vec magnitude = absolute(x) * splat(0.70710678118654752440);
  const Vec tail = erfcx(magnitude);
  const Vec root = splat(0.79788456080286535588);  // sqrt(2/pi)
  const Vec gauss = exp(splat(0.0) - magnitude * magnitude);
  const Vec below = root / tail;
  const Vec above = root * gauss / (splat(2.0) - gauss * tail);
  return select_less(x, splat(0.0), below, above);
}

}  // namespace dpinfer::DPINFER_SIMD_VARIANT
