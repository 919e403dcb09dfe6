// Formulas: parsing, binding to shapes, and those that definitions write.
#include "ir/op/formula.h"

#include <gtest/gtest.h>

#include "base/cat.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

struct BindCase {
  const char* text;
  std::vector<Shape> inputs;
  std::vector<Shape> outputs;  // expected, unless
  const char* error = "";      // this is
};

// What binding gives: "[2,3] [4]" or the error's text.
std::string bound(const BindCase& c) {
  auto f = parse_formula(c.text);
  if (!f.ok()) return std::string(f.status().message());
  if (absl::Status s = bind_sizes(*f, c.inputs); !s.ok()) return std::string(s.message());
  std::string out;
  for (const FormulaOperand& o : f->outputs) append(out, out.empty() ? "" : " ", to_string(operand_shape(*f, o)));
  return out;
}

TEST(Formula, BindTable) {
  const BindCase kCases[] = {
      {"a -> a", {{3}}, {{3}}},
      {"->", {}, {{}}},
      {". ->", {{}}, {{}}},
      {"->", {{}}, {}, "expected 0 operands, found 1"},
      {"-> n=5^", {}, {{5}}},
      {",  -> ", {{}, {}}, {{}}},
      {"~ b m k+, ~ b k+ n -> b m n", {{2, 3, 4}, {2, 4, 5}}, {{2, 3, 5}}},
      {"~1 a b, ~1 * b -> a b", {{2, 3}, {1, 3}}, {{2, 3}}},
      {"~ (a b=2) c -> a (b c)", {{6, 5}}, {{3, 10}}},
      {"(a b) c, a -> b, c", {{6, 5}, {3}}, {{2}, {5}}},
      {"v=50^ d, t -> t d", {{50, 8}, {4}}, {{4, 8}}},
      {"(a=2 b=0) -> b a", {{0}}, {{0, 2}}},
      {"a b -> b a *", {{2, 3}}, {{3, 2, 1}}},
      {"a -> a", {{3}, {4}}, {}, "expected 1 operands, found 2"},
      {"a b -> a", {{3}}, {}, "operand 0: expected rank 2, found [3]"},
      {"a, a -> a", {{3}, {4}}, {}, "operand 1, dimension 0: expected 3, found 4"},
      {"a * -> a", {{3, 2}}, {}, "operand 0, dimension 1: expected 1, found 2"},
      {"(a=2 b) -> b", {{5}}, {}, "operand 0, dimension 0: expected a multiple of 2, found 5"},
      {"(a=0 b) -> b", {{5}}, {}, "operand 0, dimension 0: expected a multiple of 0, found 5"},
      {"(a b) -> a", {{6}}, {}, "factor 'a' has no size"},
      {"a -> b", {{6}}, {}, "factor 'b' has no size"},
      {"v=50 -> v", {{49}}, {}, "operand 0, dimension 0: expected 50, found 49"},
      {"a", {}, {}, "formula 'a', column 2: expected '->'"},
      {"a ->a )", {}, {}, "formula 'a ->a )', column 7: expected a factor"},
      {"(a -> a", {}, {}, "formula '(a -> a', column 4: expected a factor"},
      {"a= -> a", {}, {}, "formula 'a= -> a', column 3: expected a size"},
      {"a=99999999999999999999 -> a", {}, {}, "formula 'a=99999999999999999999 -> a', column 3: expected a size"},
      {"a! -> a", {}, {}, "formula 'a! -> a', column 2: expected a factor"},
  };
  for (const BindCase& c : kCases) {
    std::string expected = c.error;
    for (const Shape& s : c.outputs) append(expected, expected.empty() ? "" : " ", to_string(s));
    EXPECT_EQ(bound(c), expected) << c.text;
  }
}

TEST(Formula, RolesAndGroups) {
  Formula f = *parse_formula("~1 a+ b> c, ~1 d< e^, ~ f, g -> c f");
  const FactorRole kRoles[] = {FactorRole::kSum,   FactorRole::kMax,      FactorRole::kParallel, FactorRole::kMin,
                               FactorRole::kWhole, FactorRole::kParallel, FactorRole::kParallel};
  ASSERT_EQ(f.factors.size(), 7u);
  for (size_t k = 0; k < 7; ++k) EXPECT_EQ(f.factors[k].role, kRoles[k]) << f.factors[k].name;
  EXPECT_EQ(f.inputs[0].linear, 1);
  EXPECT_EQ(f.inputs[1].linear, 1);
  EXPECT_NE(f.inputs[2].linear, 1);
  EXPECT_GE(f.inputs[2].linear, 0);
  EXPECT_EQ(f.inputs[3].linear, -1);
}

TEST(Formula, PrintsBack) {
  for (const char* text : {"~ b m k+, ~ b k n -> b m n", "~1 a b, ~1 * b -> a b", "a> (b c^) -> (c b) *", "->"}) {
    Formula f = *parse_formula(text);
    Formula again = *parse_formula(to_string(f));
    EXPECT_EQ(to_string(f), to_string(again)) << text;
  }
}

TEST(Formula, FactorNamesAreDistinct) {
  EXPECT_EQ(factor_name(0), "a");
  EXPECT_EQ(factor_name(25), "z");
  EXPECT_EQ(factor_name(26), "x26");
}

// The formula that an op writes for operands of these shapes.
std::string written(std::string_view op, const std::vector<Shape>& shapes, const Attrs& attrs,
                    DType dtype = DType::kF32) {
  std::vector<TensorType> types;
  for (const Shape& s : shapes) types.push_back({dtype, s});
  const OpDef* def = find_op(op);
  auto inferred = infer_types(*def, {attrs, types});
  if (!inferred.ok()) return std::string(inferred.status().message());
  Formula f = bound_formula(*def, {attrs, types});
  for (size_t k = 0; k < inferred->size(); ++k)
    EXPECT_EQ(operand_shape(f, f.outputs[k]), (*inferred)[k].shape) << to_string(f);
  std::string sizes;
  for (const Factor& x : f.factors) append(sizes, " ", x.name, "=", x.size);
  return to_string(f) + ";" + sizes;
}

TEST(Formula, Reshape) {
  struct Case {
    Shape from, to;
    const char* expected;
  };
  const Case kCases[] = {
      {{6, 4}, {2, 3, 4}, "~ (a b) c -> a b c; a=2 b=3 c=4"},
      {{2, 3, 4}, {6, 4}, "~ a b c -> (a b) c; a=2 b=3 c=4"},
      {{12}, {3, 4}, "~ (a b) -> a b; a=3 b=4"},
      {{2, 1, 3}, {6}, "~ a * b -> (a b); a=2 b=3"},
      {{6}, {1, 6, 1}, "~ a -> * a *; a=6"},
      {{2, 12}, {8, 3}, "~ a (b c) -> (a b) c; a=2 b=4 c=3"},
      {{4, 6}, {6, 4}, "~ (a c^) (d^ b) -> (a e^) (f^ b); a=2 c=2 d=3 b=2 e=3 f=2"},
      {{3, 4}, {4, 3}, "~ a^ b^ -> c^ d^; a=3 b=4 c=4 d=3"},
      {{4, 2, 9}, {6, 12}, "~ (a c^) d^ (e^ b) -> (a f^) (g^ b); a=2 c=2 d=2 e=3 b=3 f=3 g=4"},
      // [b*s, 3*h*d] -> [b, s, 3, h, d]
      {{8, 36}, {2, 4, 3, 3, 4}, "~ (a b) (c d e) -> a b c d e; a=2 b=4 c=3 d=3 e=4"},
      {{1, 1}, {}, "~ * * -> .;"},
      {{}, {1}, "~ . -> *;"},
      {{0}, {0, 3}, "~ a^ -> b^ c^; a=0 b=0 c=3"},
      {{2, 0, 3}, {2, 0}, "~ a b^ c^ -> a d^; a=2 b=0 c=3 d=0"},
      {{2, 0, 3}, {2, 0, 3}, "~ a b^ c^ -> a d^ e^; a=2 b=0 c=3 d=0 e=3"},
      {{3, 0}, {0}, "~ a^ b^ -> c^; a=3 b=0 c=0"},
      {{0}, {5, 0, 7}, "~ a^ -> b^ c^ d^; a=0 b=5 c=0 d=7"},
      {{6}, {4}, "cannot reshape [6] into [4]: the element counts differ"},
      {{6}, {-6}, "cannot reshape [6] into [-6]: the element counts differ"},
      {{0},
       {int64_t{1} << 40, int64_t{1} << 40, 0},
       "cannot reshape [0] into [1099511627776,1099511627776,0]: the element counts differ"},
  };
  for (const Case& c : kCases)
    EXPECT_EQ(written("reshape", {c.from}, {{"shape", c.to}}), c.expected) << to_string(c.from) << to_string(c.to);
}

TEST(Formula, WrittenByDefinitions) {
  using Ints = std::vector<int64_t>;
  struct Case {
    const char* op;
    std::vector<Shape> shapes;
    Attrs attrs;
    const char* expected;
  };
  const Case kCases[] = {
      {"add", {{2, 3}, {3}}, {}, "~1 a b, ~1 b -> a b; a=2 b=3"},
      {"mul", {{2, 1}, {1, 3}}, {}, "~ a *, ~ * b -> a b; a=2 b=3"},
      {"add", {{2}, {3}}, {}, "expected shapes that broadcast together, found [2] and [3]"},
      {"transpose", {{2, 3, 4}}, {{"permutation", Ints{2, 0, 1}}}, "~ a b c -> c a b; a=2 b=3 c=4"},
      {"transpose", {{2, 3}}, {{"permutation", Ints{0, 0}}}, "attribute 'permutation': dimension 0 is listed twice"},
      {"transpose", {{2, 3}}, {}, "expected an attribute 'permutation' (ints), found none"},
      {"transpose",
       {{2, 3}},
       {{"permutation", int64_t{0}}},
       "attribute 'permutation': expected ints, found another type"},
      {"transpose",
       {{2}},
       {{"permutation", Ints{0}}, {"perm", Ints{0}}},
       "unknown attribute 'perm'; expected ints permutation"},
      {"transpose", {}, {{"permutation", Ints{}}}, "expected 1 inputs, found 0"},
      {"broadcast", {{4, 1}}, {{"shape", Ints{2, 4, 6}}}, "~ b * -> a b c; b=4 a=2 c=6"},
      {"broadcast", {{4}}, {{"shape", Ints{2, 3}}}, "cannot broadcast [4] to [2,3]"},
      {"slice",
       {{4, 6}},
       {{"starts", Ints{0, 1}}, {"limits", Ints{4, 6}}, {"strides", Ints{1, 2}}},
       "~ a b^ -> a o1^; a=4 b=6 o1=3"},
      {"slice",
       {{4}},
       {{"starts", Ints{0}}, {"limits", Ints{5}}, {"strides", Ints{1}}},
       "dimension 0: cannot take 0 to 5 in steps of 1 from [4]"},
      {"slice",
       {{4}},
       {{"starts", Ints{0}}, {"limits", Ints{4}}, {"strides", Ints{0}}},
       "dimension 0: cannot take 0 to 4 in steps of 0 from [4]"},
      {"pad", {{4, 6}, {}}, {{"low", Ints{0, 1}}, {"high", Ints{0, 2}}}, "~1 a b^, ~1 . -> a o1^; a=4 b=6 o1=9"},
      {"pad",
       {{4}, {}},
       {{"low", Ints{INT64_MAX}}, {"high", Ints{INT64_MAX}}},
       "dimension 0: cannot pad by 9223372036854775807 and 9223372036854775807"},
      {"pad",
       {{4}, {}},
       {{"low", Ints{int64_t{1} << 59}}, {"high", Ints{0}}},
       "a result of [576460752303423492] elements is too large"},
      {"concat", {{4, 2}, {4, 3}}, {{"dim", int64_t{1}}}, "~1 a m0^, ~1 a m1^ -> a total^; a=4 m0=2 m1=3 total=5"},
      {"slice",
       {{4, 18}},
       {{"starts", Ints{0, 6}}, {"limits", Ints{4, 12}}, {"strides", Ints{1, 1}}},
       "~ a (n1^ b) -> a b; a=4 n1=3 b=6"},
      {"slice",
       {{24}},
       {{"starts", Ints{6}}, {"limits", Ints{18}}, {"strides", Ints{1}}},
       "~ (n0^ a) -> (o0^ a); n0=4 a=6 o0=2"},
      {"pad", {{6}, {}}, {{"low", Ints{6}}, {"high", Ints{12}}}, "~1 a, ~1 . -> (o0^ a); a=6 o0=4"},
      {"concat",
       {{6, 2}, {12, 2}},
       {{"dim", int64_t{0}}},
       "~1 a b, ~1 (m1^ a) b -> (total^ a) b; a=6 b=2 m1=2 total=3"},
      {"concat",
       {{4, 2}, {3, 2}},
       {{"dim", int64_t{1}}},
       "input 1: cannot join f32[3,2] to f32[4,2] along dimension 1"},
      {"concat", {{4}}, {{"dim", int64_t{-1}}}, "attribute 'dim': expected a dimension below 1, found -1"},
      {"reverse", {{4, 2}}, {{"dims", Ints{1}}}, "~ a b^ -> a b; a=4 b=2"},
      {"iota", {}, {{"size", int64_t{4}}, {"to", DType::kI64}}, "-> a^; a=4"},
      {"iota", {}, {{"size", int64_t{-4}}, {"to", DType::kI64}}, "a result of [-4] elements is too large"},
      {"reduce_sum", {{2, 3}}, {{"dims", Ints{1}}, {"keep", int64_t{1}}}, "~ a b+ -> a *; a=2 b=3"},
      {"reduce_max", {{2, 3}}, {{"dims", Ints{0}}, {"keep", int64_t{0}}}, "a> b -> b; a=2 b=3"},
      {"reduce_min", {{2, 3}}, {{"dims", Ints{0, 1}}, {"keep", int64_t{0}}}, "a< b< -> .; a=2 b=3"},
      {"reduce_prod", {{2, 3}}, {{"dims", Ints{0}}, {"keep", int64_t{0}}}, "a^ b -> b; a=2 b=3"},
      {"reduce_sum",
       {{2, 3}},
       {{"dims", Ints{2}}, {"keep", int64_t{0}}},
       "attribute 'dims': expected a dimension below 2, found 2"},
      {"argmax",
       {{2, 0}},
       {{"dim", int64_t{1}}, {"keep", int64_t{0}}, {"last", int64_t{0}}},
       "expected elements along dimension 1, found [2,0]"},
      {"topk",
       {{2, 6}},
       {{"k", int64_t{3}}, {"dim", int64_t{1}}, {"largest", int64_t{1}}},
       "a b^ -> a top^, a top; a=2 b=6 top=3"},
      {"topk",
       {{2, 6}},
       {{"k", int64_t{7}}, {"dim", int64_t{1}}, {"largest", int64_t{1}}},
       "attribute 'k': expected 0 to 6, found 7"},
  };
  for (const Case& c : kCases) {
    std::string found = written(c.op, c.shapes, c.attrs);
    EXPECT_EQ(found, c.expected) << c.op;
  }
}

// The formula of a use as text, or what is wrong with it.
std::string formula(std::string_view op, const std::vector<TensorType>& types, const Attrs& attrs) {
  const OpDef* def = find_op(op);
  auto inferred = infer_types(*def, {attrs, types});
  return inferred.ok() ? to_string(bound_formula(*def, {attrs, types})) : std::string(inferred.status().message());
}

// A rank that has some of the matrices multiplies the rows that chose those: its share, if all are chosen alike.
TEST(Flops, OfGroupedProductsAreThoseOfTheMatricesThere) {
  const TensorType rows{DType::kF32, {6, 8}}, right{DType::kF32, {6, 3}}, chosen{DType::kI64, {6}};
  auto flops = [](std::string_view op, std::vector<TensorType> types, const Attrs& attrs) {
    const OpDef* def = find_op(op);
    EXPECT_TRUE(infer_types(*def, {attrs, types}).ok());
    return use_flops(*def, {attrs, types}, bound_formula(*def, {attrs, types}));
  };
  auto product = [&](int64_t matrices, int64_t parts) {
    return flops("grouped_matmul", {rows, {DType::kF32, {matrices, 8, 3}}, chosen, {DType::kI64, {parts}}},
                 {{"total", int64_t{4}}});
  };
  auto gradient = [&](int64_t size, int64_t parts) {
    return flops("grouped_matmul_grad", {rows, right, chosen, {DType::kI64, {parts}}},
                 {{"size", size}, {"total", int64_t{4}}});
  };
  const double all = 2 * 6 * 8 * 3;
  EXPECT_EQ(flops("grouped_matmul", {rows, {DType::kF32, {4, 8, 3}}, chosen}, {}), all);
  EXPECT_EQ(product(4, 2), all);
  EXPECT_EQ(product(2, 1), all / 2);
  EXPECT_EQ(flops("grouped_matmul_grad", {rows, right, chosen}, {{"size", int64_t{4}}}), all);
  EXPECT_EQ(gradient(2, 2), all);
  EXPECT_EQ(gradient(2, 1), all / 2);
}

TEST(Formula, GroupedProducts) {
  TensorType rows{DType::kBF16, {6, 8}}, experts{DType::kBF16, {4, 8, 3}}, chosen{DType::kI64, {6}};
  EXPECT_EQ(formula("grouped_matmul", {rows, experts, chosen}, {}), "~ r k+, ~ e^ k n, r -> r n");
  EXPECT_EQ(formula("grouped_matmul", {rows, experts, chosen}, {{"transpose_b", int64_t{1}}}),
            "cannot multiply rows [6,8] by matrices [4,8,3]: the inner dimensions differ");
  EXPECT_EQ(formula("grouped_matmul", {rows, experts, {DType::kI64, {4, 6}}}, {}),
            "expected an index for each of 6 rows, found i64[4,6]");
  EXPECT_EQ(formula("grouped_matmul", {rows, {DType::kBF16, {0, 8, 3}}, chosen}, {}),
            "expected matrices to choose from, found [0,8,3]");
  EXPECT_EQ(formula("grouped_matmul_grad", {rows, rows, chosen}, {{"size", int64_t{4}}}), "~ r+ k, ~ r n, r -> e^ k n");
  // Two parts of two matrices; a row for each index in each part, for each index, or for several.
  const TensorType first{DType::kI64, {2}}, all{DType::kBF16, {12, 8}}, few{DType::kBF16, {3, 8}};
  const Attrs parts = {{"total", int64_t{4}}}, of_gradient = {{"total", int64_t{4}}, {"size", int64_t{2}}};
  EXPECT_EQ(formula("grouped_matmul", {all, experts, chosen, first}, parts),
            "~ (p r) k+, ~ (p e^) k n, r, p -> (p r) n");
  EXPECT_EQ(formula("grouped_matmul", {rows, experts, chosen, first}, parts), "~ r k+, ~ (p e^) k n, r, p -> (p r) n");
  EXPECT_EQ(formula("grouped_matmul", {few, experts, chosen, first}, parts),
            "~ r k+, ~ (p e^) k n, (r j), p -> (p r j) n");
  EXPECT_EQ(formula("grouped_matmul_grad", {few, all, chosen, first}, of_gradient),
            "~ r+ k, ~ (p r j+) n, (r j), p -> (p e^) k n");
  EXPECT_EQ(formula("grouped_matmul_grad", {few, few, chosen, first}, of_gradient),
            "~ r+ k, ~ r n, (r j+), p -> (p e^) k n");
  EXPECT_EQ(formula("grouped_matmul", {rows, experts, chosen, {DType::kI64, {3}}}, parts),
            "cannot divide 4 matrices into 3 parts");
  EXPECT_EQ(formula("grouped_matmul", {{DType::kBF16, {5, 8}}, experts, chosen, first}, parts),
            "expected an index for each of 5 rows, found i64[6]");
  EXPECT_EQ(formula("grouped_matmul", {rows, experts, chosen, first}, {}),
            "expected the first matrix of each part as i64 and attribute 'total', found i64[2]");
  EXPECT_EQ(formula("grouped_matmul_grad", {rows, experts, chosen}, {{"size", int64_t{4}}}),
            "expected rows [r, k] and [r, n] of one float type, found bf16[6,8] and bf16[4,8,3]");
}

TEST(Formula, Indexing) {
  TensorType table{DType::kF32, {50, 8}}, ids{DType::kI64, {4, 6}}, grad{DType::kF32, {4, 6, 8}};
  EXPECT_EQ(formula("gather", {table, ids}, {{"dim", int64_t{0}}}), "~ a^ b, i0 i1 -> i0 i1 b");
  EXPECT_EQ(formula("gather_grad", {grad, ids}, {{"dim", int64_t{0}}, {"size", int64_t{50}}}),
            "~ i0+ i1+ b, i0 i1 -> n0^ b");
  EXPECT_EQ(formula("gather", {table, table}, {{"dim", int64_t{0}}}),
            "expected indices of type i32 or i64, found f32[50,8]");
  EXPECT_EQ(formula("gather", {{DType::kF32, {0, 8}}, ids}, {{"dim", int64_t{0}}}),
            "expected something to index along dimension 0, found [0,8]");
  EXPECT_EQ(formula("gather_grad", {grad, ids}, {{"dim", int64_t{1}}, {"size", int64_t{50}}}),
            "expected the gradient of a gather along dimension 1 of 50, found [4,6,8] for indices [4,6]");
  EXPECT_EQ(formula("take_along", {{DType::kF32, {4, 9}}, ids}, {{"dim", int64_t{1}}}), "~ a n1^, a b -> a b");
  EXPECT_EQ(formula("take_along", {{DType::kF32, {5, 9}}, ids}, {{"dim", int64_t{1}}}), "~ n0^ n1^, a^ b -> a b");
  EXPECT_EQ(formula("gather_nd", {grad, {DType::kI32, {4, 3, 1}}}, {{"batch_dims", int64_t{1}}}),
            "~ a0 n1^ r2, a0 q1 k^ -> a0 q1 r2");
  EXPECT_EQ(formula("gather_nd_grad", {{DType::kF32, {4, 3, 8}}, {DType::kI32, {4, 3, 1}}},
                    {{"batch_dims", int64_t{1}}, {"shape", grad.shape}}),
            "~ a0 q1+ r2, a0 q1 k^ -> a0 n1^ r2");
  TensorType one{DType::kI64, {3, 1}}, rows{DType::kF32, {3, 8}};
  EXPECT_EQ(formula("scatter_nd", {table, one, rows}, {{"mode", std::string("add")}}),
            "~1 n0^ r1, q0^ k^, ~1 q0 r1 -> n0 r1");
  EXPECT_EQ(formula("scatter_nd", {table, one, rows}, {{"mode", std::string("max")}}),
            "n0^ r1, q0^ k^, q0 r1 -> n0 r1");
  EXPECT_EQ(formula("scatter_nd", {table, one, rows}, {{"mode", std::string("sum")}}),
            "attribute 'mode': expected none, add, mul, max or min, found 'sum'");
}

}  // namespace
}  // namespace partita
