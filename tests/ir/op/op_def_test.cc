// Every op on every case of the tables: what its definition says agrees with itself and holds for any use; its gradient
// against central differences.
#include "ir/op/op_def.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "tests/ir/support/drawn_use.h"

namespace partita {
namespace {

TEST(Ops, AllHaveCases) {
  std::set<std::string> covered;
  for (const OpCase& c : all_op_cases()) {
    ASSERT_NE(find_op(c.op), nullptr) << c.op;
    covered.insert(c.op);
  }
  std::string missing;
  for (const OpDef* op : all_ops()) {
    if (!op->communicates && !covered.contains(std::string(op->name))) append(missing, op->name, " ");
  }
  EXPECT_EQ(missing, "") << "add a line for each of these to tests/ir/support/op_cases.cc";
}

TEST(Ops, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const OpDef* op : all_ops()) EXPECT_TRUE(names.insert(op->name).second) << op->name;
}

TEST(Ops, HaveExactlyOneFormulaAndAMeaning) {
  for (const OpDef* op : all_ops()) {
    EXPECT_NE(op->formula.empty(), op->formula_of == nullptr) << op->name;
    EXPECT_TRUE(op->communicates || op->view || op->scalar || op->expand || op->evaluate) << op->name;
  }
}

TEST(Ops, FormulasGiveTheInferredShapes) {
  for (const OpCase& c : all_op_cases()) {
    DrawnUse use(c);
    auto types = infer_types(use.op, {c.attrs, use.types});
    ASSERT_TRUE(types.ok()) << describe(c) << types.status().message();
    Formula f = bound_formula(use.op, {c.attrs, use.types});
    ASSERT_EQ(f.outputs.size(), types->size()) << describe(c);
    for (size_t k = 0; k < types->size(); ++k)
      EXPECT_EQ(operand_shape(f, f.outputs[k]), (*types)[k].shape) << describe(c) << to_string(f);
  }
}

// Where an op has both, its expansion means the same as its own reference.
TEST(Ops, ExpansionsAgreeWithTheReference) {
  for (const OpCase& c : all_op_cases()) {
    DrawnUse use(c);
    if (!use.op.expand || !(use.op.evaluate || use.op.scalar)) continue;
    OpDef expansion = use.op;
    expansion.evaluate = nullptr;
    expansion.scalar = nullptr;
    std::vector<Tensor> own = use.run(), expanded = DrawnUse::run(expansion, c.attrs, use.inputs);
    ASSERT_EQ(own.size(), expanded.size()) << describe(c);
    for (size_t k = 0; k < own.size(); ++k)
      EXPECT_EQ(difference(expanded[k], own[k], 1e-9), "") << describe(c) << " output " << k;
  }
}

// ---- hostile uses ----

int64_t hostile_integer(int64_t now, std::mt19937_64& rng) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  const int64_t kValues[] = {
      0,     1,         -1,    2, 3, now ^ 1, now ^ 2, 64, int64_t{1} << 31, int64_t{1} << 40, int64_t{1} << 59,
      kMost, kMost - 1, kLeast};
  return kValues[rng() % std::size(kValues)];
}

AttrValue hostile_value(AttrValue value, std::mt19937_64& rng) {
  if (rng() % 12 == 0) return std::string("text");
  if (auto* i = std::get_if<int64_t>(&value)) *i = hostile_integer(*i, rng);
  if (auto* f = std::get_if<double>(&value)) *f = std::numeric_limits<double>::quiet_NaN();
  if (auto* t = std::get_if<DType>(&value)) *t = static_cast<DType>(rng() % 14);
  if (auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    if (!ints->empty() && rng() % 4) {
      int64_t& one = (*ints)[rng() % ints->size()];
      one = hostile_integer(one, rng);
    } else {
      ints->resize(rng() % 5, 1);
    }
  }
  return value;
}

TensorType hostile_type(TensorType t, std::mt19937_64& rng) {
  if (rng() % 4 == 0) t.dtype = static_cast<DType>(rng() % 14);
  if (t.dtype == DType::kInvalid) return {};
  if (!t.shape.empty() && rng() % 2) t.shape[rng() % t.shape.size()] = std::max(int64_t{0}, hostile_integer(3, rng));
  if (rng() % 6 == 0) t.shape.resize(rng() % 6, 2);
  return checked_elements(t.shape) ? t : TensorType{DType::kF64, {2}};
}

// Whatever the attributes and input types, there is an error or a sound use: no crash, and a formula that agrees with
// the types.
TEST(Ops, AnyUseIsAnErrorOrSound) {
  std::mt19937_64 rng(5);
  for (const OpCase& c : all_op_cases()) {
    const OpDef& op = *find_op(c.op);
    std::vector<TensorType> sound;
    for (const CaseInput& in : c.inputs) sound.push_back(in.type);
    for (int round = 0; round < 200; ++round) {
      Attrs attrs;
      for (const auto& [name, value] : c.attrs.items()) {
        if (rng() % 16) attrs.set(name, rng() % 2 ? value : hostile_value(value, rng));
      }
      std::vector<TensorType> types = sound;
      for (TensorType& t : types) {
        if (rng() % 3 == 0) t = hostile_type(t, rng);
      }
      if (rng() % 16 == 0) types.resize(rng() % 5, {DType::kI64, {3}});
      auto inferred = infer_types(op, {attrs, types});
      if (!inferred.ok()) {
        EXPECT_TRUE(absl::IsInvalidArgument(inferred.status())) << c.name << inferred.status().message();
        continue;
      }
      Formula f = bound_formula(op, {attrs, types});
      ASSERT_EQ(f.outputs.size(), inferred->size()) << c.name;
      for (size_t k = 0; k < inferred->size(); ++k) {
        const TensorType& t = (*inferred)[k];
        EXPECT_TRUE(t.dtype != DType::kInvalid && checked_elements(t.shape)) << c.name << to_string(t);
        EXPECT_EQ(operand_shape(f, f.outputs[k]), t.shape) << c.name << " " << to_string(f);
      }
    }
  }
}

// ---- gradients ----

// sum over the outputs in `seeds` of <seed, output>.
double projected(const std::vector<Tensor>& outputs, const std::map<int, Tensor>& seeds) {
  double sum = 0;
  for (const auto& [k, seed] : seeds) {
    for (size_t e = 0; e < seed.f.size(); ++e) {
      if (!std::isinf(outputs[k].f[e]))
        sum += seed.f[e] * outputs[k].f[e];  // of nothing at all (an empty maximum) there is no derivative
    }
  }
  return sum;
}

// The op's gradients of that sum, by its own gradient graph; an invalid type for kNoValue.
std::vector<Tensor> gradients_of(const DrawnUse& use, const std::map<int, Tensor>& seeds) {
  Builder b;
  std::map<ValueId, Tensor> feeds;
  std::vector<ValueId> inputs, outputs, seed_values;
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    if (use.absent(k)) {
      inputs.push_back(kNoValue);
    } else if (use.c.inputs[k].constant) {
      inputs.push_back(b.constant(to_literal(use.inputs[k])));
    } else {
      inputs.push_back(b.input(cat("x", k), use.types[k]));
      feeds[inputs.back()] = use.inputs[k];
    }
  }
  outputs = b.emit_all(use.op.name, inputs, use.c.attrs);
  for (size_t k = 0; k < outputs.size(); ++k) {
    auto seed = seeds.find(static_cast<int>(k));
    seed_values.push_back(seed == seeds.end() ? kNoValue : b.input(cat("g", k), b.type(outputs[k])));
    if (seed != seeds.end()) feeds[seed_values.back()] = seed->second;
  }
  std::vector<ValueId> gradients = use.op.gradient({b, use.c.attrs, use.types, inputs, outputs, seed_values});
  EXPECT_EQ(gradients.size(), inputs.size()) << describe(use.c);
  std::vector<ValueId> wanted;
  for (ValueId v : gradients) {
    if (v != kNoValue) wanted.push_back(v);
  }
  std::vector<Tensor> values = evaluate_graph(b.graph(), feeds, wanted), result;
  size_t at = 0;
  for (ValueId v : gradients) result.push_back(v == kNoValue ? Tensor{} : values[at++]);
  return result;
}

void check_gradient(const DrawnUse& use, const std::map<int, Tensor>& seeds, std::mt19937_64& rng) {
  std::vector<Tensor> gradients = gradients_of(use, seeds);
  for (size_t k = 0; k < use.inputs.size() && k < gradients.size(); ++k) {
    bool given = gradients[k].type.dtype != DType::kInvalid;
    if (use.absent(k) || use.c.inputs[k].constant || !is_float(use.types[k].dtype)) continue;
    if (given) {
      ASSERT_EQ(to_string(gradients[k].type), to_string(use.types[k])) << describe(use.c) << " input " << k;
    }
    for (int repeat = 0; repeat < 3; ++repeat) {
      Tensor direction = draw({use.types[k], Draw::kNormal}, rng);
      constexpr double kStep = 1e-5;
      auto at = [&](double t) {
        std::vector<Tensor> moved = use.inputs;
        for (size_t e = 0; e < direction.f.size(); ++e) moved[k].f[e] += t * direction.f[e];
        return projected(DrawnUse::run(use.op, use.c.attrs, moved), seeds);
      };
      double expected = (at(kStep) - at(-kStep)) / (2 * kStep), found = 0;
      for (size_t e = 0; given && e < direction.f.size(); ++e) found += gradients[k].f[e] * direction.f[e];
      EXPECT_NEAR(found, expected, 1e-6 * std::max(1.0, std::fabs(expected)))
          << describe(use.c) << " input " << k << (given ? "" : ", which has no gradient");
    }
  }
}

TEST(Ops, GradientsMatchFiniteDifferences) {
  for (const OpCase& c : all_op_cases()) {
    DrawnUse use(c);
    if (!use.op.gradient) continue;
    std::vector<Tensor> outputs = use.run();
    std::mt19937_64 rng(2);
    std::map<int, Tensor> seeds;
    for (size_t k = 0; k < outputs.size(); ++k) {
      bool saved =
          std::find(c.saved_outputs.begin(), c.saved_outputs.end(), static_cast<int>(k)) != c.saved_outputs.end();
      if (is_float(outputs[k].type.dtype) && !saved)
        seeds[static_cast<int>(k)] = draw({outputs[k].type, Draw::kNormal}, rng);
    }
    if (seeds.empty()) continue;
    check_gradient(use, seeds, rng);
    if (seeds.size() == 1) continue;
    for (const auto& seed : seeds) check_gradient(use, {seed}, rng);
  }
}

}  // namespace
}  // namespace partita
