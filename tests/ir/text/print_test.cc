// The text form: exact, readable, and safe to read from anywhere.
#include "ir/text/print.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/text/parse.h"

namespace partita {
namespace {

constexpr const char* kExample = R"(graph "mlp"
origin "MatMul '/fc/MatMul'"
origin "two\nlines \"quoted\" \\ \x01"
input %0 f32[2,3] data "x"
input %1 i64[] micro_batch "micro" as ""
input %2 i64[] coordinate "tensor"
state %3 f32[3,4] parameter "w" initial file "weights.bin" 64 48 next %10
state %4 f32[3,4] optimizer "w/m" of "w" initial rule normal 0.0 0.02
state %5 i64[] step "step" as "t" initial i64[] [0]
constant %6 f32[] = [0.1]
constant %7 u64[2] "big" = [18446744073709551615, 0]
constant %8 bf16[0] = []
%9 f32[2,4] "/fc" = matmul(%0, %3) {transpose_a=0, transpose_b=0} @forward origin 0 block 1
%10 f32[3,4] = mul(%3, %6) {} @update
%11 f32[2,2], %12 i64[2,2] "top" = topk(%9) {dim=1, k=2, largest=1} @backward origin 1 block 0 weight_gradient host chunk 1
output "y" %9
output "values" %11
)";

// Everything that a graph holds, compared.
void expect_same(const Graph& a, const Graph& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.origins, b.origins);
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t v = 0; v < a.values.size(); ++v) {
    EXPECT_EQ(a.values[v].type, b.values[v].type) << v;
    EXPECT_EQ(a.values[v].producer, b.values[v].producer) << v;
    EXPECT_EQ(a.values[v].output, b.values[v].output) << v;
    EXPECT_EQ(a.values[v].name, b.values[v].name) << v;
  }
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t n = 0; n < a.nodes.size(); ++n) {
    const Node &x = a.nodes[n], &y = b.nodes[n];
    EXPECT_TRUE(x.op == y.op && x.inputs == y.inputs && x.outputs == y.outputs && x.attrs == y.attrs &&
                x.origin == y.origin && x.block == y.block && x.segment == y.segment &&
                x.weight_gradient == y.weight_gradient && x.device == y.device && x.chunk == y.chunk)
        << n;
  }
  ASSERT_EQ(a.constants.size(), b.constants.size());
  for (size_t k = 0; k < a.constants.size(); ++k) {
    EXPECT_EQ(a.constants[k].value, b.constants[k].value);
    EXPECT_TRUE(std::ranges::equal(a.constants[k].literal.bytes(), b.constants[k].literal.bytes())) << k;
  }
  ASSERT_EQ(a.states.size(), b.states.size());
  for (size_t k = 0; k < a.states.size(); ++k) {
    const State &x = a.states[k], &y = b.states[k];
    EXPECT_TRUE(x.name == y.name && x.kind == y.kind && x.value == y.value && x.next == y.next &&
                x.parameter == y.parameter && x.initial.index() == y.initial.index())
        << x.name;
  }
  EXPECT_EQ(print(a), print(b));
}

std::string without(std::string text, std::string_view what) {
  for (size_t at; (at = text.find(what)) != text.npos;) text.erase(at, what.size());
  return text;
}

TEST(Print, ExampleReadsBackToItsOwnText) {
  auto g = parse_graph(kExample);
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_EQ(print(*g), without(kExample, " {}"));
  EXPECT_EQ(g->origins[1], "two\nlines \"quoted\" \\ \x01");
  EXPECT_EQ(g->values[1].name, "");
  EXPECT_EQ(g->values[5].name, "t");
  EXPECT_EQ(g->states[0].next, 10);
  EXPECT_EQ(std::get<FileRange>(g->states[0].initial).offset, 64);
  EXPECT_EQ(std::get<InitialRule>(g->states[1].initial).b, 0.02);
  EXPECT_EQ(g->nodes[2].device, DeviceKind::kHost);
  EXPECT_EQ(g->values[12].output, 1);
  EXPECT_EQ(element_f(g->constants[0].literal, 0), static_cast<double>(0.1f));
}

TEST(Print, EveryAttributeType) {
  Builder b;
  b.input("x", {DType::kF64, {2}});
  Graph g = std::move(b).finish();
  Node n{.op = find_op("relu"), .inputs = {0}, .outputs = {1}, .attrs = {}};
  double nan = std::bit_cast<double>(uint64_t{0xfff8000000000123});
  n.attrs = {{"int", int64_t{-5}},
             {"least", std::numeric_limits<int64_t>::min()},
             {"real", 1.0},
             {"tiny", 5e-324},
             {"third", 1.0 / 3},
             {"minus", -0.0},
             {"inf", -std::numeric_limits<double>::infinity()},
             {"nan", std::nan("")},
             {"payload", nan},
             {"text", std::string("a\"b\\c\n\x7f\xc3\xa9")},
             {"type", DType::kBF16},
             {"ints", std::vector<int64_t>{1, -2}},
             {"none", std::vector<int64_t>{}},
             {"reals", std::vector<double>{1, 0.5, 1e300}},
             {"noreals", std::vector<double>{}}};
  g.nodes.push_back(n);
  g.values.push_back({.type = {DType::kF64, {2}}, .producer = 0, .name = {}});
  std::string text = print(g);
  EXPECT_NE(text.find("payload=0xfff8000000000123"), text.npos) << text;
  EXPECT_NE(text.find("real=1.0,"), text.npos) << text;
  EXPECT_NE(text.find("tiny=5e-324"), text.npos) << text;
  EXPECT_NE(text.find("minus=-0.0"), text.npos) << text;
  EXPECT_NE(text.find("noreals=floats[]"), text.npos) << text;
  EXPECT_NE(text.find("none=[]"), text.npos) << text;
  // All of it can be read; only then is it noticed that relu knows no attributes.
  EXPECT_EQ(std::string(parse_graph(text).status().message()),
            "line 3, column 13: relu: unknown attribute 'inf'; expected none");
}

TEST(Print, DoublesReadBackToTheSameBits) {
  std::mt19937_64 rng(1);
  for (int k = 0; k < 20000; ++k) {
    double x = std::bit_cast<double>(rng());
    auto back = parse_double(double_text(x));
    ASSERT_TRUE(back.has_value()) << double_text(x);
    ASSERT_EQ(std::bit_cast<uint64_t>(*back), std::bit_cast<uint64_t>(x)) << double_text(x);
  }
  for (const char* bad : {"", "1.5x", "infinity", "nan(1)", "0x12", "0xZff8000000000123", "--1", "1e999"})
    EXPECT_FALSE(parse_double(bad).has_value()) << bad;
}

TEST(Print, LiteralsOfEveryTypeAreExact) {
  std::mt19937_64 rng(1);
  for (int t = 1; t <= static_cast<int>(DType::kF64); ++t) {
    DType dtype = static_cast<DType>(t);
    for (int64_t count : {0, 1, 40, 100}) {
      std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_size(dtype)));
      for (std::byte& x : bytes) x = static_cast<std::byte>(rng());
      Builder b;
      b.constant(make_literal({dtype, {count}}, bytes), "c");
      Graph g = std::move(b).finish();
      auto back = parse_graph(print(g));
      ASSERT_TRUE(back.ok()) << back.status().message();
      expect_same(g, *back);
    }
  }
}

TEST(Print, DumpElidesLongLiterals) {
  Builder b;
  b.constant(to_literal(Tensor::zeros({DType::kF32, {100}})));
  b.constant(to_literal(Tensor::zeros({DType::kF32, {2}})));
  std::string dump = print(b.graph(), TextMode::kDump);
  EXPECT_NE(dump.find("constant %0 f32[100] = elided "), dump.npos) << dump;
  EXPECT_NE(dump.find("constant %1 f32[2] = [0, 0]"), dump.npos) << dump;
  EXPECT_EQ(parse_graph(dump).status().message(),
            "line 2, column 24: this literal is elided: the text is a dump for people, not an exact one");
}

TEST(Print, BuiltGraphsRoundTrip) {
  Builder b;
  ValueId x = b.input("x", {DType::kF32, {4, 6}}),
          w = b.state({.name = "w", .initial = scalar_literal(DType::kF32, 2)}, {DType::kF32, {6, 2}});
  b.context() = {.segment = Segment::kForward, .origin = b.origin("Gemm 'fc'"), .block = 3};
  ValueId y = b.reduce_sum(b.emit("gelu", {b.matmul(x, w)}), {0, 1}, false);
  b.context() = {.segment = Segment::kUpdate};
  b.set_next("w", b.scale(w, 0.99));
  b.output("loss", y);
  Graph g = std::move(b).finish();
  auto back = parse_graph(print(g));
  ASSERT_TRUE(back.ok()) << back.status().message();
  expect_same(g, *back);
}

TEST(Parse, Faults) {
  struct Case {
    const char* text;
    const char* error;
  };
  const Case kCases[] = {
      {"", "line 1, column 1: expected 'graph', found the end"},
      {"graph g", "line 1, column 7: expected the graph's name, found 'g'"},
      {"graph \"g", "line 1, column 7: this string does not end on its line"},
      {"graph \"\\q\"", "line 1, column 8: expected \\n, \\\", \\\\ or \\x and two hex digits"},
      {"graph \"g\"\nfoo", "line 2, column 1: expected '%', origin, input, state, constant or output, found 'foo'"},
      {"graph \"g\"\n# note\n  input %0 f33[2] data \"x\"", "line 3, column 12: expected an element type, found 'f33'"},
      {"graph \"g\" input %0 f32[2,] data \"x\"", "line 1, column 26: expected a dimension, found ']'"},
      {"graph \"g\" input %0 f32[-1] data \"x\"", "line 1, column 24: expected a dimension, found '-'"},
      {"graph \"g\" input %0 f32[9999999999,9999999999] data \"x\"",
       "line 1, column 20: type f32[9999999999,9999999999] is too large"},
      {"graph \"g\" input %0 f32[2] date \"x\"",
       "line 1, column 27: expected data, micro_batch or coordinate, found 'date'"},
      {"graph \"g\" input %0 f32[] data \"x\" input %0 f32[] data \"y\"",
       "line 1, column 41: value %0 is defined twice"},
      {"graph \"g\" input %1 f32[] data \"x\"",
       "line 1, column 17: value %1: expected numbers without a gap, and there are 1 values"},
      {"graph \"g\" input %99999999999 f32[] data \"x\"",
       "line 1, column 18: expected a value's number, found '99999999999'"},
      {"graph \"g\" output \"y\" %0", "line 1, column 22: value %0 is not defined"},
      {"graph \"g\" state %0 f32[] frozen \"s\" next %5", "line 1, column 42: value %5 is not defined"},
      {"graph \"g\" state %0 f32[] kept \"s\"",
       "line 1, column 26: expected parameter, frozen, running, optimizer, step or accumulator, found 'kept'"},
      {"graph \"g\" constant %0 f32[3] = [1, 2]", "line 1, column 32: expected 3 values for f32[3], found 2"},
      {"graph \"g\" constant %0 i8[] = [128]", "line 1, column 31: expected a value of type i8, found '128'"},
      {"graph \"g\" constant %0 f32[] = [x]", "line 1, column 32: expected a value of type f32, found 'x'"},
      {"graph \"g\" constant %0 f32[1000000000000] = hex 00",
       "line 1, column 48: expected 4000000000000 bytes in hex, found fewer"},
      {"graph \"g\" constant %0 i8[2] = hex 00g0", "line 1, column 37: expected 2 bytes in hex"},
      {"graph \"g\" constant %0 i8[1] = hex 0000", "line 1, column 37: expected 1 bytes in hex, found more"},
      {"graph \"g\" %0 f32[] = nope() @forward", "line 1, column 22: no op 'nope'"},
      {"graph \"g\" %0 f32[] = relu(%0) @forward", "line 1, column 27: value %0 is read before it is defined"},
      {"graph \"g\" %0 f32[] = relu(_) @forward", "line 1, column 22: relu: input 0 is required"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[3] = relu(%0) @forward",
       "line 1, column 36: relu: expected a result f32[2], found f32[3]"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2], %2 f32[2] = relu(%0) @forward",
       "line 1, column 59: relu: expected 1 results, found 2"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2] = relu(%0, %0) @forward",
       "line 1, column 48: relu: expected 1 inputs, found 2"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2] = relu(%0) forward",
       "line 1, column 57: expected '@', found 'forward'"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2] = relu(%0) @sideways",
       "line 1, column 58: expected prologue, forward, backward, reduce, update or evaluation, found 'sideways'"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2] = relu(%0) @forward origin 0",
       "line 1, column 73: expected the number of an origin, found '0'"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2] = reshape(%0) {shape=[2], shape=[2]} @forward",
       "line 1, column 72: attribute 'shape' is given twice"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2] = reshape(%0) {shape=} @forward",
       "line 1, column 67: expected an attribute's value, found '}'"},
      {"graph \"g\" input %0 f32[2] data \"x\" %1 f32[2] = reshape(%0) {shape=2} @forward",
       "line 1, column 48: reshape: attribute 'shape': expected ints, found another type"},
  };
  for (const Case& c : kCases) {
    auto g = parse_graph(c.text);
    EXPECT_FALSE(g.ok()) << c.text;
    EXPECT_EQ(std::string(g.status().message()), c.error) << c.text;
  }
}

// Damaged text gives an error or another sound graph, never a crash.
TEST(Parse, SurvivesDamage) {
  std::mt19937_64 rng(1);
  const std::string text = kExample;
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = text;
    for (int k = static_cast<int>(rng() % 3) + 1; k > 0; --k) {
      size_t at = rng() % damaged.size();
      switch (rng() % 4) {
        case 0:
          damaged[at] = static_cast<char>(rng());
          break;
        case 1:
          damaged.erase(at, rng() % 8);
          break;
        case 2:
          damaged.insert(at, text.substr(rng() % text.size(), rng() % 12));
          break;
        default:
          damaged[at] = "0123456789%[]{}=,_\"-."[rng() % 21];
          break;
      }
    }
    auto g = parse_graph(damaged);
    if (g.ok()) print(*g);
  }
}

}  // namespace
}  // namespace partita
