#include "passes/recognize/recognize_activation.h"

#include <numbers>

#include "tests/passes/support/spelling.h"

namespace partita {
namespace {

constexpr double kRoot = 0.7978845608028654;  // sqrt(2/pi)

Graph activation(const std::function<ValueId(Builder&, ValueId)>& spell) {
  Builder b;
  ValueId x = f64_input(b, "x", {3, 5});
  b.output("y", spell(b, x));
  return recognised(recognize_activation, std::move(b));
}

ValueId one_plus(Builder& b, ValueId v) { return b.add(v, b.scalar(DType::kF64, 1)); }
ValueId cube(Builder& b, ValueId x) { return b.mul(b.mul(x, x), x); }

TEST(Activation_GeluErf, OrdersOfItsFactors) {
  const std::function<ValueId(Builder&, ValueId)> spellings[] = {
      [](Builder& b, ValueId x) {
        return b.mul(x,
                     b.scale(one_plus(b, b.emit("erf", {b.div(x, b.scalar(DType::kF64, std::numbers::sqrt2))})), 0.5));
      },
      [](Builder& b, ValueId x) {
        return b.mul(b.scale(x, 0.5), one_plus(b, b.emit("erf", {b.scale(x, std::sqrt(0.5))})));
      },
      [](Builder& b, ValueId x) {
        return b.scale(b.mul(one_plus(b, b.emit("erf", {b.scale(x, std::sqrt(0.5))})), x), 0.5);
      },
      [](Builder& b, ValueId x) {
        return b.div(b.mul(x, one_plus(b, b.emit("erf", {b.scale(x, std::sqrt(0.5))}))), b.scalar(DType::kF64, 2));
      },
  };
  for (const auto& spell : spellings) {
    Graph g = activation(spell);
    EXPECT_EQ(count(g, "gelu"), 1);
    EXPECT_EQ(g.nodes.size(), 1u);
    EXPECT_EQ(g.nodes[0].attrs.i("approximate"), 0);
  }
}

TEST(Activation_GeluTanh, OrdersOfItsFactors) {
  auto whole = [](Builder& b, ValueId x, ValueId inner) {
    return b.mul(b.scale(x, 0.5), one_plus(b, b.emit("tanh", {inner})));
  };
  const std::function<ValueId(Builder&, ValueId)> spellings[] = {
      [&](Builder& b, ValueId x) { return whole(b, x, b.scale(b.add(x, b.scale(cube(b, x), 0.044715)), kRoot)); },
      [&](Builder& b, ValueId x) {
        return whole(b, x, b.scale(b.add(b.mul(b.mul(b.scale(x, 0.044715), x), x), x), kRoot));
      },
      [&](Builder& b, ValueId x) {
        return whole(b, x, b.scale(b.add(x, b.scale(b.emit("pow", {x, b.scalar(DType::kF64, 3)}), 0.044715)), kRoot));
      },
      [&](Builder& b, ValueId x) {
        return whole(b, x, b.mul(b.scale(x, kRoot), one_plus(b, b.mul(b.scale(x, 0.044715), x))));
      },
      [&](Builder& b, ValueId x) {
        return b.scale(b.mul(x, one_plus(b, b.emit("tanh", {b.scale(b.add(x, b.scale(cube(b, x), 0.044715)), kRoot)}))),
                       0.5);
      },
  };
  for (const auto& spell : spellings) {
    Graph g = activation(spell);
    EXPECT_EQ(count(g, "gelu"), 1);
    EXPECT_EQ(g.nodes.size(), 1u);
  }
}

TEST(Activation_Silu, WithSigmoidAndSpelledOut) {
  EXPECT_EQ(activation([](Builder& b, ValueId x) { return b.mul(x, b.emit("sigmoid", {x})); }).nodes[0].op->name,
            "silu");
  EXPECT_EQ(activation([](Builder& b, ValueId x) { return b.mul(b.emit("sigmoid", {x}), x); }).nodes[0].op->name,
            "silu");
  EXPECT_EQ(activation([](Builder& b, ValueId x) { return b.div(x, one_plus(b, b.emit("exp", {b.neg(x)}))); })
                .nodes[0]
                .op->name,
            "silu");
}

TEST(Activation_SigmoidAndSoftplus, SpelledOut) {
  EXPECT_EQ(activation([](Builder& b, ValueId x) {
              return b.div(b.scalar(DType::kF64, 1), one_plus(b, b.emit("exp", {b.neg(x)})));
            })
                .nodes[0]
                .op->name,
            "sigmoid");
  EXPECT_EQ(activation([](Builder& b, ValueId x) { return b.emit("log", {one_plus(b, b.emit("exp", {x}))}); })
                .nodes[0]
                .op->name,
            "softplus");
  EXPECT_EQ(activation([](Builder& b, ValueId x) { return b.emit("log1p", {b.emit("exp", {x})}); }).nodes[0].op->name,
            "softplus");
}

TEST(Activation_NotRecognised, OtherReaderOfAValueBetween) {
  Builder b;
  ValueId x = f64_input(b, "x", {3}), s = b.emit("sigmoid", {x});
  b.output("y", b.mul(x, s));
  b.output("s", s);
  EXPECT_EQ(count(recognised(recognize_activation, std::move(b)), "silu"), 0);
}

TEST(Activation_NotRecognised, OtherConstants) {
  EXPECT_EQ(count(activation([](Builder& b, ValueId x) {
                    return b.mul(b.scale(x, 0.5), one_plus(b, b.emit("erf", {b.scale(x, 0.7)})));
                  }),
                  "gelu"),
            0);
  EXPECT_EQ(count(activation([](Builder& b, ValueId x) {
                    return b.mul(x, one_plus(b, b.emit("erf", {b.scale(x, std::sqrt(0.5))})));
                  }),
                  "gelu"),
            0);
  EXPECT_EQ(
      count(activation([](Builder& b, ValueId x) { return b.mul(x, b.emit("sigmoid", {b.scale(x, 1.702)})); }), "silu"),
      0);
}

TEST(Activation_NotRecognised, OtherOperand) {
  Builder b;
  ValueId x = f64_input(b, "x", {3}), z = f64_input(b, "z", {3});
  b.output("y", b.mul(z, b.emit("sigmoid", {x})));
  EXPECT_EQ(count(recognised(recognize_activation, std::move(b)), "silu"), 0);
}

TEST(Activation_Silu, OfAProduct) {
  Builder b;
  ValueId x = f64_input(b, "x", {3}), z = f64_input(b, "z", {3}), p = b.mul(x, z);
  b.output("y", b.mul(b.mul(p, b.emit("sigmoid", {p})), z));
  EXPECT_EQ(count(recognised(recognize_activation, std::move(b)), "silu"), 1);
}

}  // namespace
}  // namespace partita
