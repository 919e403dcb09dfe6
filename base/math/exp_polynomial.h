// e^x in f32, for whoever writes it out in vectors: x = n ln 2 + r with |r| <= ln 2 / 2, then e^r by a polynomial
// within 0.1 units in the last place, then times 2^n.
#pragma once

namespace partita {

constexpr double kLog2E = 1.44269504088896341;
// ln 2; n times the first part is exact.
constexpr double kLn2High = 0x1.62e400p-1, kLn2Low = 0x1.7f7d1cp-20;
// x kLog2E + kExpShift has n + 254 in the low bits of its mantissa.
constexpr double kExpShift = 12582912.0 + 254;  // 1.5 * 2^23
// Highest power first.
constexpr double kExpPolynomial[] = {
    0x1.694000p-10, 0x1.125edcp-7, 0x1.555b5ap-5, 0x1.555450p-3, 0x1.fffff6p-2, 1.0, 1.0};

}  // namespace partita
