// Every op on every case of the tables: each split that its formula allows against the whole, its linearity.
#include <gtest/gtest.h>

#include <set>

#include "base/cat.h"
#include "ir/op/op_def.h"
#include "ir/ops/indexing.h"
#include "tests/ir/support/drawn_use.h"

namespace partita {
namespace {

TEST(Ops, FormsForSplitsEqualTheOp) {
  std::set<std::string> tried;
  for (const OpCase& c : all_op_cases()) {
    DrawnUse use(c);
    if (!use.op.split_form) continue;
    OpDef form = use.op;
    form.expand = use.op.split_form;
    form.evaluate = nullptr;
    std::vector<Tensor> own = use.run(), split = DrawnUse::run(form, c.attrs, use.inputs);
    if (split.empty()) continue;  // this use has no such form
    ASSERT_EQ(own.size(), split.size()) << describe(c);
    for (size_t k = 0; k < own.size(); ++k)
      EXPECT_EQ(difference(split[k], own[k], 1e-9), "") << describe(c) << " output " << k;
    tried.insert(c.op);
  }
  for (const char* op : {"attention", "attention_grad", "cross_entropy", "cross_entropy_grad", "gather", "gather_grad"})
    EXPECT_TRUE(tried.contains(op)) << op;
}

// The dimensions of an operand as a list of factors, and the flat positions of part `p` of `parts` along `factor`, in
// the part's own row-major order.
std::vector<int64_t> part_positions(const Formula& f, const FormulaOperand& operand, int factor, int64_t parts,
                                    int64_t p) {
  std::vector<int> factors;
  Shape sizes;
  for (const auto& dim : operand.dims) {
    for (int x : dim) {
      factors.push_back(x);
      sizes.push_back(f.factors[x].size);
    }
  }
  std::vector<int64_t> positions;
  int64_t at = 0, chunk = f.factors[factor].size / parts;
  for_each_index(sizes, [&](const std::vector<int64_t>& index) {
    bool mine = true;
    for (size_t k = 0; k < factors.size(); ++k) mine &= factors[k] != factor || index[k] / chunk == p;
    if (mine) positions.push_back(at);
    ++at;
  });
  return positions;
}

// Adds what part `part` of an output tells to `whole`. Returns a complaint, or "".
std::string combine(const Formula& f, size_t k, int factor, int64_t parts, int64_t p, const Tensor& part,
                    Tensor& whole) {
  const FormulaOperand& operand = f.outputs[k];
  if (has_factor(operand, factor)) {
    std::vector<int64_t> positions = part_positions(f, operand, factor, parts, p);
    if (static_cast<int64_t>(positions.size()) != elements(part.type.shape))
      return cat("part of shape ", to_string(part.type.shape));
    for (size_t e = 0; e < positions.size(); ++e) copy_element(part, static_cast<int64_t>(e), whole, positions[e]);
    return "";
  }
  if (p == 0) {
    whole = part;
    return "";
  }
  FactorRole role = f.factors[factor].role;
  if (role == FactorRole::kParallel) return difference(part, whole, 1e-9);
  std::string mode = role == FactorRole::kSum ? "add" : role == FactorRole::kMax ? "max" : "min";
  for (int64_t e = 0; e < elements(whole.type.shape); ++e) scatter_element(mode, part, e, whole, e);
  return "";
}

void check_split(const DrawnUse& use, const Formula& f, int factor, int64_t parts,
                 const std::vector<Tensor>& expected) {
  std::string what =
      cat(describe(use.c), ", formula ", to_string(f), ", factor ", f.factors[factor].name, " in ", parts);
  Formula local = f;
  local.factors[factor].size /= parts;
  std::vector<Shape> local_outputs;
  for (const FormulaOperand& operand : f.outputs) local_outputs.push_back(operand_shape(local, operand));
  std::vector<Tensor> whole = expected;
  for (Tensor& t : whole) t = Tensor::zeros(t.type);
  for (int64_t p = 0; p < parts; ++p) {
    std::vector<Tensor> inputs;
    std::vector<Shape> local_inputs;
    size_t operand = 0;
    for (size_t k = 0; k < use.inputs.size(); ++k) {
      inputs.push_back(use.inputs[k]);
      if (use.absent(k)) continue;
      const FormulaOperand& o = f.inputs[operand++];
      if (has_factor(o, factor)) {
        std::vector<int64_t> positions = part_positions(f, o, factor, parts, p);
        inputs[k] = Tensor::zeros({use.types[k].dtype, operand_shape(local, o)});
        for (size_t e = 0; e < positions.size(); ++e)
          copy_element(use.inputs[k], positions[e], inputs[k], static_cast<int64_t>(e));
      }
      local_inputs.push_back(inputs[k].type.shape);
    }
    Attrs attrs = localized_attrs(use.op, use.c.attrs, local_inputs, local_outputs);
    std::vector<TensorType> types;
    for (const Tensor& t : inputs) types.push_back(t.type);
    auto inferred = infer_types(use.op, {attrs, types});
    ASSERT_TRUE(inferred.ok()) << what << ": " << inferred.status().message();
    std::vector<Tensor> outputs = DrawnUse::run(use.op, attrs, inputs);
    for (size_t k = 0; k < outputs.size(); ++k) {
      ASSERT_EQ(outputs[k].type.shape, local_outputs[k]) << what << ", output " << k;
      ASSERT_EQ(combine(f, k, factor, parts, p, outputs[k], whole[k]), "")
          << what << ", output " << k << ", part " << p;
    }
  }
  for (size_t k = 0; k < whole.size(); ++k)
    EXPECT_EQ(difference(whole[k], expected[k], 1e-9), "") << what << ", output " << k;
}

TEST(Ops, SplitsEqualTheWhole) {
  std::set<std::string> split;
  for (const OpCase& c : all_op_cases()) {
    DrawnUse use(c);
    if (use.op.communicates) continue;
    Formula f = bound_formula(use.op, {c.attrs, use.types});
    std::vector<Tensor> expected = use.run();
    for (size_t x = 0; x < f.factors.size(); ++x) {
      const Factor& factor = f.factors[x];
      if (factor.role == FactorRole::kWhole || factor.size < 2) continue;
      for (int64_t parts : {2, 3}) {
        if (factor.size % parts != 0) continue;
        check_split(use, f, static_cast<int>(x), parts, expected);
        split.insert(c.op);
        if (HasFatalFailure()) return;
      }
    }
  }
  for (const char* op : {"add", "matmul", "reshape", "slice", "concat", "broadcast", "reduce_sum", "gather",
                         "gather_grad", "grouped_matmul", "grouped_matmul_grad"})
    EXPECT_TRUE(split.contains(op)) << op;
}

TEST(Ops, LinearOperandsAddUp) {
  for (const OpCase& c : all_op_cases()) {
    DrawnUse use(c), other(c, 3);
    Formula f = bound_formula(use.op, {c.attrs, use.types});
    std::vector<size_t> input_of;  // formula operand -> input
    for (size_t k = 0; k < use.inputs.size(); ++k) {
      if (!use.absent(k)) input_of.push_back(k);
    }
    std::set<int> groups;
    for (const FormulaOperand& o : f.inputs) groups.insert(o.linear);
    for (int group : groups) {
      if (group < 0) continue;
      std::vector<Tensor> second = use.inputs, sum = use.inputs;
      for (size_t o = 0; o < f.inputs.size(); ++o) {
        if (f.inputs[o].linear != group) continue;
        size_t k = input_of[o];
        second[k] = other.inputs[k];
        for (int64_t e = 0; e < elements(use.types[k].shape); ++e) scatter_element("add", second[k], e, sum[k], e);
      }
      std::vector<Tensor> a = use.run(), b = DrawnUse::run(use.op, c.attrs, second),
                          both = DrawnUse::run(use.op, c.attrs, sum);
      for (size_t k = 0; k < a.size(); ++k) {
        for (int64_t e = 0; e < elements(a[k].type.shape); ++e) scatter_element("add", b[k], e, a[k], e);
        EXPECT_EQ(difference(a[k], both[k], 1e-9), "")
            << describe(c) << " is not linear in group " << group << " of " << to_string(f);
      }
    }
  }
}

}  // namespace
}  // namespace partita
