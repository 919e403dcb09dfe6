#include "tests/ir/support/op_cases.h"

#include <limits>

namespace partita {
namespace {

using Ints = std::vector<int64_t>;

// Unary float ops, each with the inputs it is smooth on.
void add_unary(std::vector<OpCase>& cases) {
  for (const char* op : {"neg", "exp", "expm1", "sin", "cos", "atan", "sinh", "cosh", "tanh", "erf", "sigmoid", "silu",
                         "softplus", "gelu"}) {
    cases.push_back({op, op, {}, {f64({2, 6})}});
  }
  for (const char* op : {"abs", "sign", "relu", "floor", "ceil", "round", "power_of_two"})
    cases.push_back({op, op, {}, {f64({2, 6}, Draw::kDistinct)}});
  for (const char* op : {"log", "log1p", "sqrt", "rsqrt"})
    cases.push_back({op, op, {}, {f64({2, 6}, Draw::kPositive)}});
  for (const char* op : {"asin", "acos", "tan"}) cases.push_back({op, op, {}, {f64({2, 6}, Draw::kUnit)}});
  cases.push_back({"gelu_Approximate", "gelu", {{"approximate", int64_t{1}}}, {f64({2, 6})}});
  cases.push_back({"gelu_grad", "gelu_grad", {}, {f64({2, 6}), f64({2, 6})}});
  cases.push_back({"silu_grad", "silu_grad", {}, {f64({2, 6}), f64({2, 6})}});
  cases.push_back({"relu_grad", "relu_grad", {}, {f64({2, 6}), f64({2, 6}, Draw::kDistinct)}});
  for (const char* op : {"is_nan", "is_inf"}) cases.push_back({op, op, {}, {f64({2, 6})}});
  for (const char* op : {"exp", "neg", "gelu"}) cases.push_back({std::string(op) + "_Scalar", op, {}, {f64({})}});
  cases.push_back({"stash", "stash", {}, {f64({2, 6})}});
  CaseInput stopped = f64({2, 6});
  stopped.constant = true;
  cases.push_back({"stop_gradient", "stop_gradient", {}, {stopped}});
  cases.push_back({"neg_Integers", "neg", {}, {i64({4})}});
  cases.push_back({"abs_Integers", "abs", {}, {i64({4})}});
  cases.push_back({"not", "not", {}, {boolean({2, 6})}});
  cases.push_back({"not_Integers", "not", {}, {i64({4})}});
  cases.push_back({"cast_ToInteger", "cast", {{"to", DType::kI32}}, {f64({2, 6})}});
  cases.push_back({"cast_ToFloat", "cast", {{"to", DType::kF32}}, {f64({2, 6})}});
  cases.push_back({"cast_FromBool", "cast", {{"to", DType::kF64}}, {boolean({2, 6})}});
  cases.push_back({"cast_FromInteger", "cast", {{"to", DType::kF64}}, {i64({2, 6})}});
}

void add_binary(std::vector<OpCase>& cases) {
  auto both = [&](const std::string& op, Draw a, Draw b) {
    cases.push_back({op, op, {}, {f64({2, 6}, a), f64({2, 6}, b)}});
    cases.push_back({op + "_Broadcast", op, {}, {f64({2, 1, 6}, a), f64({4, 1}, b)}});
    cases.push_back({op + "_Scalar", op, {}, {f64({}, a), f64({2, 6}, b)}});
  };
  for (const char* op : {"add", "accumulate", "sub", "mul", "max", "min", "eq", "ne", "lt", "le"})
    both(op, Draw::kNormal, Draw::kNormal);
  both("div", Draw::kNormal, Draw::kAwayFromZero);
  both("mod", Draw::kDistinct, Draw::kPositive);
  both("pow", Draw::kPositive, Draw::kNormal);
  for (double e : {0.0, 1.0, 2.0, 3.0, 0.5, -1.0}) {
    CaseInput exponent = f64({}, Draw::kFill);
    exponent.fill = e;
    exponent.constant = true;
    cases.push_back({"pow_Constant", "pow", {}, {f64({2, 6}, Draw::kPositive), exponent}});
  }
  for (const char* op : {"add", "sub", "mul", "div", "mod", "max", "min", "pow", "eq", "lt", "and", "or", "xor"}) {
    cases.push_back({std::string(op) + "_Integers", op, {}, {i64({2, 6}), i64({6})}});
  }
  for (const char* op : {"and", "or", "xor", "eq"})
    cases.push_back({std::string(op) + "_Bool", op, {}, {boolean({2, 6}), boolean({6})}});
  for (const char* op : {"shl", "shr"}) {
    CaseInput value{{DType::kU64, {2, 6}}, Draw::kIndex, 1000}, count{{DType::kU64, {6}}, Draw::kIndex, 70};
    cases.push_back({op, op, {}, {value, count}});
  }
  cases.push_back({"select", "select", {}, {boolean({2, 6}), f64({2, 6}), f64({2, 6})}});
  cases.push_back({"select_Broadcast", "select", {}, {boolean({4, 1}), f64({2, 1, 6}), f64({})}});
  for (const char* op : {"uniform", "normal"}) {
    cases.push_back({op,
                     op,
                     {{"seed", int64_t{7}}, {"instance", int64_t{3}}},
                     {i64({4, 6}, Draw::kIndex, 1 << 20), i64({}, Draw::kIndex, 10)}});
  }
}

void add_structure(std::vector<OpCase>& cases) {
  auto reshape = [&](Shape from, Shape to) {
    cases.push_back({"reshape", "reshape", {{"shape", std::move(to)}}, {f64(std::move(from))}});
  };
  reshape({6, 4}, {2, 3, 4});
  reshape({2, 3, 4}, {6, 4});
  reshape({12}, {3, 4});
  reshape({2, 1, 3}, {6});
  reshape({4, 6}, {6, 4});
  reshape({4, 6, 8}, {6, 4, 4, 2});
  reshape({4, 3, 4}, {6, 8});
  reshape({8, 6}, {2, 4, 3, 1, 2});
  reshape({1}, {});
  reshape({}, {1, 1});
  cases.push_back({"transpose", "transpose", {{"permutation", Ints{2, 0, 1}}}, {f64({2, 4, 6})}});
  cases.push_back({"transpose_Integers", "transpose", {{"permutation", Ints{1, 0}}}, {i64({4, 6})}});
  cases.push_back({"broadcast", "broadcast", {{"shape", Ints{2, 4, 6}}}, {f64({4, 1})}});
  cases.push_back({"broadcast_Scalar", "broadcast", {{"shape", Ints{2, 3}}}, {f64({})}});
  cases.push_back(
      {"slice", "slice", {{"starts", Ints{0, 1}}, {"limits", Ints{4, 5}}, {"strides", Ints{1, 1}}}, {f64({4, 6})}});
  cases.push_back({"slice_Strided",
                   "slice",
                   {{"starts", Ints{0, 1, 0}}, {"limits", Ints{4, 8, 7}}, {"strides", Ints{1, 3, 2}}},
                   {f64({4, 9, 7})}});
  cases.push_back({"slice_LongStride",
                   "slice",
                   {{"starts", Ints{3}}, {"limits", Ints{4}}, {"strides", Ints{std::numeric_limits<int64_t>::max()}}},
                   {f64({4})}});
  cases.push_back({"slice_Empty",
                   "slice",
                   {{"starts", Ints{2, 0}}, {"limits", Ints{2, 6}}, {"strides", Ints{2, 1}}},
                   {f64({4, 6})}});
  cases.push_back({"slice_Block",
                   "slice",
                   {{"starts", Ints{0, 6}}, {"limits", Ints{4, 12}}, {"strides", Ints{1, 1}}},
                   {f64({4, 18})}});
  cases.push_back({"slice_Blocks",
                   "slice",
                   {{"starts", Ints{0, 6}}, {"limits", Ints{4, 18}}, {"strides", Ints{1, 1}}},
                   {f64({4, 24})}});
  cases.push_back({"pad_Block", "pad", {{"low", Ints{0, 6}}, {"high", Ints{0, 12}}}, {f64({4, 6}), f64({})}});
  cases.push_back({"pad_Blocks", "pad", {{"low", Ints{0, 6}}, {"high", Ints{0, 0}}}, {f64({4, 12}), f64({})}});
  cases.push_back({"concat_Blocks", "concat", {{"dim", int64_t{1}}}, {f64({4, 6}), f64({4, 12})}});
  cases.push_back({"pad", "pad", {{"low", Ints{0, 1}}, {"high", Ints{0, 2}}}, {f64({4, 6}), f64({})}});
  cases.push_back({"pad_Integers", "pad", {{"low", Ints{2, 0}}, {"high", Ints{0, 0}}}, {i64({4, 6}), i64({})}});
  cases.push_back({"concat", "concat", {{"dim", int64_t{1}}}, {f64({4, 2}), f64({4, 3}), f64({4, 0})}});
  cases.push_back({"concat_One", "concat", {{"dim", int64_t{0}}}, {f64({4, 2})}});
  cases.push_back({"reverse", "reverse", {{"dims", Ints{1, 0}}}, {f64({3, 4, 6})}});
  CaseInput coordinate = i64({}, Draw::kFill);
  coordinate.fill = 1;
  cases.push_back(
      {"shard_slice", "shard_slice", {{"dim", int64_t{1}}, {"parts", int64_t{3}}}, {f64({4, 6}), coordinate}});
  cases.push_back({"iota", "iota", {{"size", int64_t{6}}, {"to", DType::kI64}}, {}});
  cases.push_back({"iota_Float", "iota", {{"size", int64_t{6}}, {"to", DType::kF64}}, {}});
}

void add_reductions(std::vector<OpCase>& cases) {
  for (const char* op : {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"}) {
    for (int64_t keep : {0, 1}) {
      cases.push_back({op, op, {{"dims", Ints{1}}, {"keep", keep}}, {f64({2, 6, 4}, Draw::kDistinct)}});
      cases.push_back({op, op, {{"dims", Ints{2, 0}}, {"keep", keep}}, {f64({2, 6, 4}, Draw::kDistinct)}});
    }
    cases.push_back({op, op, {{"dims", Ints{0, 1}}, {"keep", int64_t{0}}}, {f64({2, 3}, Draw::kDistinct)}});
    cases.push_back({std::string(op) + "_Integers", op, {{"dims", Ints{0}}, {"keep", int64_t{0}}}, {i64({4, 6})}});
    cases.push_back({std::string(op) + "_Scalar", op, {{"dims", Ints{}}, {"keep", int64_t{0}}}, {f64({})}});
    cases.push_back({std::string(op) + "_Empty", op, {{"dims", Ints{0}}, {"keep", int64_t{0}}}, {f64({0, 6})}});
  }
  for (int64_t keep : {0, 1}) {
    cases.push_back(
        {"argmax", "argmax", {{"dim", int64_t{1}}, {"keep", keep}, {"last", int64_t{0}}}, {f64({2, 6, 4})}});
    cases.push_back({"argmax_Ties",
                     "argmax",
                     {{"dim", int64_t{0}}, {"keep", keep}, {"last", int64_t{1}}},
                     {i64({6, 4}, Draw::kIndex, 3)}});
    for (int64_t reverse : {0, 1}) {
      cases.push_back(
          {"cumsum", "cumsum", {{"dim", int64_t{1}}, {"exclusive", keep}, {"reverse", reverse}}, {f64({2, 6, 4})}});
    }
    cases.push_back({"topk",
                     "topk",
                     {{"k", int64_t{3}}, {"dim", int64_t{1}}, {"largest", keep}},
                     {f64({2, 6, 4}, Draw::kDistinct)}});
  }
  cases.push_back({"accumulate_tree", "accumulate_tree", {{"micro_batches", int64_t{4}}}, {f64({3, 4}), f64({3, 4})}});
  cases.push_back({"sum_tree", "sum_tree", {}, {f64({8})}});
  cases.push_back({"block_squares", "block_squares", {}, {f64({3, 4, 5})}});
  cases.push_back({"cumsum_Integers",
                   "cumsum",
                   {{"dim", int64_t{0}}, {"exclusive", int64_t{0}}, {"reverse", int64_t{0}}},
                   {i64({6, 2})}});
  cases.push_back({"topk_Ties",
                   "topk",
                   {{"k", int64_t{6}}, {"dim", int64_t{0}}, {"largest", int64_t{1}}},
                   {i64({6, 4}, Draw::kIndex, 3)}});
}

void add_indexing(std::vector<OpCase>& cases) {
  const int64_t zero = 0, one = 1;
  cases.push_back({"gather_Embedding", "gather", {{"dim", zero}}, {f64({6, 4}), i64({2, 4}, Draw::kIndex, 6)}});
  cases.push_back({"gather", "gather", {{"dim", one}}, {f64({2, 5, 4}), i64({6}, Draw::kSignedIndex, 5)}});
  cases.push_back({"gather_Scalar", "gather", {{"dim", one}}, {f64({2, 5, 4}), i64({}, Draw::kIndex, 5)}});
  cases.push_back({"gather_OutOfBounds", "gather", {{"dim", zero}}, {f64({3, 4}), i64({4}, Draw::kSignedIndex, 50)}});
  cases.push_back({"gather_rows",
                   "gather_rows",
                   {{"dim", one}, {"size", int64_t{6}}},
                   {f64({2, 6, 4}), i64({6}, Draw::kIota), i64({5}, Draw::kSignedIndex, 6)}});
  cases.push_back({"gather_rows_grad",
                   "gather_rows_grad",
                   {{"dim", one}, {"size", int64_t{6}}},
                   {f64({2, 5, 4}), i64({6}, Draw::kIota), i64({5}, Draw::kSignedIndex, 6)}});
  cases.push_back({"dispatch", "dispatch", {}, {f64({6, 4}), i64({9}, Draw::kSignedIndex, 6), f64({9})}});
  cases.push_back(
      {"combine", "combine", {{"size", int64_t{6}}}, {f64({9, 4}), i64({9}, Draw::kSignedIndex, 6), f64({9})}});
  cases.push_back({"gather_grad",
                   "gather_grad",
                   {{"dim", one}, {"size", int64_t{5}}},
                   {f64({2, 4, 6, 4}), i64({4, 6}, Draw::kSignedIndex, 5)}});
  cases.push_back({"gather_grad_Scalar",
                   "gather_grad",
                   {{"dim", zero}, {"size", int64_t{5}}},
                   {f64({4}), i64({}, Draw::kIndex, 5)}});
  cases.push_back(
      {"take_along", "take_along", {{"dim", one}}, {f64({4, 5, 6}), i64({4, 2, 6}, Draw::kSignedIndex, 5)}});
  cases.push_back(
      {"take_along_LargerX", "take_along", {{"dim", zero}}, {f64({5, 6, 4}), i64({2, 3, 4}, Draw::kSignedIndex, 5)}});
  cases.push_back({"take_along_grad",
                   "take_along_grad",
                   {{"dim", one}, {"size", int64_t{5}}},
                   {f64({4, 2, 6}), i64({4, 2, 6}, Draw::kSignedIndex, 5)}});
  cases.push_back(
      {"gather_nd", "gather_nd", {{"batch_dims", zero}}, {f64({4, 3, 6}), i64({6, 2}, Draw::kSignedIndex, 3)}});
  cases.push_back(
      {"gather_nd_Batch", "gather_nd", {{"batch_dims", one}}, {f64({4, 3, 6}), i64({4, 2, 1}, Draw::kSignedIndex, 3)}});
  cases.push_back({"gather_nd_grad",
                   "gather_nd_grad",
                   {{"batch_dims", one}, {"shape", Ints{4, 3, 6}}},
                   {f64({4, 2, 6}), i64({4, 2, 1}, Draw::kIndex, 3)}});
  cases.push_back({"gather_nd_grad_Points",
                   "gather_nd_grad",
                   {{"batch_dims", zero}, {"shape", Ints{4, 3}}},
                   {f64({6}), i64({6, 2}, Draw::kIndex, 3)}});
  for (const char* mode : {"none", "add", "mul", "max", "min"}) {
    // Places updated once: so is every mode's gradient exact.
    Attrs nd = {{"mode", std::string(mode)}}, along = {{"mode", std::string(mode)}, {"dim", one}};
    cases.push_back(
        {"scatter_nd",
         "scatter_nd",
         nd,
         {f64({5, 6}, Draw::kDistinct), i64({4, 1}, Draw::kDistinctIndex, 5), f64({4, 6}, Draw::kAwayFromZero)}});
    cases.push_back(
        {"scatter_elements",
         "scatter_elements",
         along,
         {f64({6, 4}, Draw::kDistinct), i64({6, 4}, Draw::kDistinctIndex, 4), f64({6, 4}, Draw::kAwayFromZero)}});
    cases.push_back(
        {"scatter_elements_LargerX",
         "scatter_elements",
         along,
         {f64({6, 8}, Draw::kDistinct), i64({3, 2}, Draw::kDistinctIndex, 8), f64({3, 2}, Draw::kAwayFromZero)}});
    if (std::string(mode) == "none") continue;
    cases.push_back(
        {"scatter_nd_Again",
         "scatter_nd",
         nd,
         {f64({3, 6}, Draw::kDistinct), i64({8, 1}, Draw::kSignedIndex, 3), f64({8, 6}, Draw::kAwayFromZero)}});
    cases.push_back(
        {"scatter_elements_Again",
         "scatter_elements",
         along,
         {f64({6, 3}, Draw::kDistinct), i64({6, 8}, Draw::kSignedIndex, 3), f64({6, 8}, Draw::kAwayFromZero)}});
  }
}

}  // namespace

std::vector<OpCase> op_cases() {
  std::vector<OpCase> cases;
  add_unary(cases);
  add_binary(cases);
  add_structure(cases);
  add_reductions(cases);
  add_indexing(cases);
  return cases;
}

}  // namespace partita
