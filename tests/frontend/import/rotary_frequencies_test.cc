#include "frontend/import/rotary_frequencies.h"

#include <gtest/gtest.h>

#include <functional>

#include "ir/graph/builder.h"

namespace partita {
namespace {

// The flag of "f", the frequencies of angles [positions, 4] that `read` makes something of. Positions are integers, or
// data of floats.
bool found(const std::function<void(Builder&, ValueId angles)>& read, bool data = false, bool bias = false) {
  Builder b;
  const ValueId p = b.input("p", {data ? DType::kF32 : DType::kI64, {6, 1}});
  const ValueId f = b.state({.name = "f", .kind = StateKind::kParameter}, {DType::kF32, {4}});
  const ValueId more = b.state({.name = "bias", .kind = StateKind::kParameter}, {DType::kF32, {4}});
  const ValueId angles = b.mul(data ? p : b.cast(p, DType::kF32), b.reshape(f, {1, 4}));
  read(b, bias ? b.add(angles, more) : angles);
  const Graph g = std::move(b).finish();
  const std::vector<bool> flags = rotary_frequencies(g);
  EXPECT_FALSE(flags[1]);
  return flags[0];
}

void sines_and_cosines(Builder& b, ValueId angles) {
  const ValueId x = b.input("x", {DType::kF32, {6, 4}});
  b.output("y", b.add(b.mul(x, b.emit("cos", {angles})), b.mul(x, b.scale(b.emit("sin", {angles}), 1.25))));
}

TEST(RotaryFrequencies, AreReadByBothOfPositions) { EXPECT_TRUE(found(sines_and_cosines)); }

TEST(RotaryFrequencies, AreNotThoseOfALayer) {
  EXPECT_FALSE(found(sines_and_cosines, /*data=*/true));  // random Fourier features
  EXPECT_FALSE(found(sines_and_cosines, false, /*bias=*/true));
  EXPECT_FALSE(found([](Builder& b, ValueId angles) { b.output("y", b.emit("sin", {angles})); }));
  EXPECT_FALSE(found([](Builder& b, ValueId angles) {
    sines_and_cosines(b, angles);
    b.output("angles", angles);
  }));
  EXPECT_FALSE(found([](Builder& b, ValueId angles) {
    sines_and_cosines(b, angles);
    b.output("z", b.mul(angles, b.input("w", {DType::kF32, {6, 4}})));
  }));
}

}  // namespace
}  // namespace partita
