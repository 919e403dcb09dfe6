// Every op on every case of the tables: its gradient against central differences, each split that its formula allows
// against the whole, its linearity.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/graph/evaluate.h"
#include "ir/graph/padding.h"
#include "ir/ops/indexing.h"
#include "tests/ir/support/op_cases.h"

namespace partita {
namespace {

std::vector<OpCase> all_cases() {
  std::vector<OpCase> cases = op_cases();
  for (OpCase& c : nn_op_cases()) cases.push_back(std::move(c));
  return cases;
}

double uniform_draw(std::mt19937_64& rng, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(rng);
}

double draw_float(Draw how, double fill, std::mt19937_64& rng) {
  switch (how) {
    case Draw::kPositive:
      return uniform_draw(rng, 0.5, 2);
    case Draw::kUnit:
      return uniform_draw(rng, -0.9, 0.9);
    case Draw::kAwayFromZero:
      return uniform_draw(rng, 0.3, 2) * (rng() % 2 ? 1 : -1);
    case Draw::kFill:
      return fill;
    default:
      return std::normal_distribution<double>()(rng);
  }
}

int64_t draw_integer(const CaseInput& in, std::mt19937_64& rng) {
  auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<uint64_t>(n)); };
  switch (in.draw) {
    case Draw::kIndex:
      return below(in.below);
    case Draw::kSignedIndex:
      return below(2 * in.below) - in.below;
    case Draw::kBool:
      return below(2);
    case Draw::kFill:
      return static_cast<int64_t>(in.fill);
    default:
      return is_unsigned(in.type.dtype) ? below(10) : below(19) - 9;
  }
}

Tensor draw(const CaseInput& in, std::mt19937_64& rng) {
  Tensor t = Tensor::zeros(in.type);
  for (double& x : t.f) x = draw_float(in.draw, in.fill, rng);
  for (int64_t& x : t.i) x = draw_integer(in, rng);
  if (in.draw == Draw::kDistinct) {
    for (size_t k = 0; k < t.f.size(); ++k)
      t.f[k] = (static_cast<double>(k) - static_cast<double>(t.f.size() / 2)) * 0.25 + 0.13;
    std::shuffle(t.f.begin(), t.f.end(), rng);
  }
  if (in.draw == Draw::kIota) std::iota(t.i.begin(), t.i.end(), int64_t{0});
  if (in.draw == Draw::kDistinctIndex) {
    for (size_t k = 0; k < t.i.size(); k += static_cast<size_t>(in.below)) {
      std::vector<int64_t> order(in.below);
      for (int64_t j = 0; j < in.below; ++j) order[j] = j;
      std::shuffle(order.begin(), order.end(), rng);
      for (size_t j = 0; j < order.size() && k + j < t.i.size(); ++j) t.i[k + j] = order[j];
    }
  }
  return t;
}

// A use of an op on drawn inputs.
struct Use {
  const OpCase& c;
  const OpDef& op;
  std::vector<Tensor> inputs;  // an invalid type where absent
  std::vector<TensorType> types;

  explicit Use(const OpCase& the_case, uint64_t seed = 1) : c(the_case), op(*find_op(the_case.op)) {
    std::mt19937_64 rng(seed);
    for (const CaseInput& in : c.inputs) {
      inputs.push_back(in.type.dtype == DType::kInvalid ? Tensor{} : draw(in, rng));
      types.push_back(in.type);
    }
  }
  bool absent(size_t k) const { return types[k].dtype == DType::kInvalid; }

  static std::vector<Tensor> run(const OpDef& op, const Attrs& attrs, const std::vector<Tensor>& inputs) {
    std::vector<const Tensor*> in;
    for (const Tensor& t : inputs) in.push_back(t.type.dtype == DType::kInvalid ? nullptr : &t);
    return evaluate_op(op, attrs, in);
  }
  std::vector<Tensor> run() const { return run(op, c.attrs, inputs); }
};

std::string describe(const OpCase& c) {
  std::string s = c.name + " (";
  for (const CaseInput& in : c.inputs) append(s, to_string(in.type), " ");
  return s + ")";
}

// "" where equal up to `tolerance` (relative, and absolute below 1), else the first difference.
std::string difference(const Tensor& a, const Tensor& b, double tolerance) {
  if (a.type != b.type) return cat(to_string(a.type), " and ", to_string(b.type));
  for (size_t k = 0; k < a.f.size(); ++k) {
    if (std::isnan(a.f[k]) && std::isnan(b.f[k])) continue;
    if (a.f[k] == b.f[k] || std::fabs(a.f[k] - b.f[k]) <= tolerance * std::max(1.0, std::fabs(b.f[k]))) continue;
    return cat("element ", k, " of ", to_string(a.type), ": ", a.f[k], " and ", b.f[k]);
  }
  for (size_t k = 0; k < a.i.size(); ++k) {
    if (a.i[k] != b.i[k]) return cat("element ", k, " of ", to_string(a.type), ": ", a.i[k], " and ", b.i[k]);
  }
  return "";
}

TEST(Ops, AllHaveCases) {
  std::set<std::string> covered;
  for (const OpCase& c : all_cases()) {
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
  for (const OpCase& c : all_cases()) {
    Use use(c);
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
  for (const OpCase& c : all_cases()) {
    Use use(c);
    if (!use.op.expand || !(use.op.evaluate || use.op.scalar)) continue;
    OpDef expansion = use.op;
    expansion.evaluate = nullptr;
    expansion.scalar = nullptr;
    std::vector<Tensor> own = use.run(), expanded = Use::run(expansion, c.attrs, use.inputs);
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
  for (const OpCase& c : all_cases()) {
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
std::vector<Tensor> gradients_of(const Use& use, const std::map<int, Tensor>& seeds) {
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

void check_gradient(const Use& use, const std::map<int, Tensor>& seeds, std::mt19937_64& rng) {
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
        return projected(Use::run(use.op, use.c.attrs, moved), seeds);
      };
      double expected = (at(kStep) - at(-kStep)) / (2 * kStep), found = 0;
      for (size_t e = 0; given && e < direction.f.size(); ++e) found += gradients[k].f[e] * direction.f[e];
      EXPECT_NEAR(found, expected, 1e-6 * std::max(1.0, std::fabs(expected)))
          << describe(use.c) << " input " << k << (given ? "" : ", which has no gradient");
    }
  }
}

TEST(Ops, GradientsMatchFiniteDifferences) {
  for (const OpCase& c : all_cases()) {
    Use use(c);
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

// ---- splits ----

TEST(Ops, FormsForSplitsEqualTheOp) {
  std::set<std::string> tried;
  for (const OpCase& c : all_cases()) {
    Use use(c);
    if (!use.op.split_form) continue;
    OpDef form = use.op;
    form.expand = use.op.split_form;
    form.evaluate = nullptr;
    std::vector<Tensor> own = use.run(), split = Use::run(form, c.attrs, use.inputs);
    if (split.empty()) continue;  // this use has no such form
    ASSERT_EQ(own.size(), split.size()) << describe(c);
    for (size_t k = 0; k < own.size(); ++k)
      EXPECT_EQ(difference(split[k], own[k], 1e-9), "") << describe(c) << " output " << k;
    tried.insert(c.op);
  }
  for (const char* op : {"attention", "attention_grad", "cross_entropy", "cross_entropy_grad", "gather", "gather_grad"})
    EXPECT_TRUE(tried.contains(op)) << op;
}

// ---- longer dimensions ----

// The shape with every dimension that is `factor` longer by two; nullopt where one is made of more than that.
std::optional<Shape> longer(const Formula& f, const FormulaOperand& operand, int factor) {
  Shape shape = operand_shape(f, operand);
  for (size_t d = 0; d < shape.size(); ++d) {
    const auto& dim = operand.dims[d];
    if (std::find(dim.begin(), dim.end(), factor) == dim.end()) continue;
    if (dim.size() != 1) return std::nullopt;
    shape[d] += 2;
  }
  return shape;
}

bool is_inside(const std::vector<int64_t>& index, const Shape& shape) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (index[d] >= shape[d]) return false;
  }
  return true;
}

// `t` as the beginning of a tensor of a longer shape, with numbers from `fill` beyond.
Tensor lengthened(const Tensor& t, const Shape& shape, const std::function<double()>& fill) {
  Tensor out = Tensor::zeros({t.type.dtype, shape});
  int64_t at = 0;
  for_each_index(shape, [&](const std::vector<int64_t>& index) {
    if (is_inside(index, t.type.shape)) {
      copy_element(t, position(index, t.type.shape), out, at);
    } else if (is_float(t.type.dtype)) {
      out.f[at] = fill();
    } else {
      out.i[at] = t.type.dtype == DType::kBool ? 1 : index[0];  // positions go on
    }
    ++at;
  });
  return out;
}

// Emits the use with `factor` longer, over zeros that are known as such or over anything; false where it is refused.
bool check_longer(const Use& use, const Formula& f, int factor, bool zeros) {
  Builder b;
  std::mt19937_64 rng(3);
  std::vector<PaddedValue> inputs;
  std::map<ValueId, Tensor> feeds;
  size_t operand = 0;
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    PaddedValue& x = inputs.emplace_back();
    if (use.absent(k)) continue;
    auto shape = longer(f, f.inputs[operand++], factor);
    if (!shape) return false;
    Tensor t = lengthened(use.inputs[k], *shape, [&] { return zeros ? 0 : uniform_draw(rng, -3, 3); });
    x.value = b.input(cat("x", k), t.type);
    if (*shape != use.types[k].shape && is_float(t.type.dtype)) x.holds = zeros ? PadValue::zero() : PadValue{};
    if (*shape != use.types[k].shape && !is_float(t.type.dtype)) x.holds = {.finite = true};
    feeds.emplace(x.value, std::move(t));
  }
  std::vector<Shape> shapes;
  for (const FormulaOperand& o : f.outputs) {
    auto shape = longer(f, o, factor);
    if (!shape) return false;
    shapes.push_back(*shape);
  }
  auto results = PaddedEmitter(b).emit(use.op, use.c.attrs, use.types, inputs, shapes);
  if (!results.ok()) return false;
  std::vector<ValueId> wanted;
  for (const PaddedValue& r : *results) wanted.push_back(r.value);
  std::vector<Tensor> expected = use.run(), found = evaluate_graph(b.graph(), feeds, wanted);
  for (size_t k = 0; k < found.size(); ++k) {
    Tensor whole = lengthened(expected[k], shapes[k], [] { return 0.0; }), got = found[k];
    int64_t at = 0;
    for_each_index(shapes[k], [&](const std::vector<int64_t>& index) {
      bool inside = is_inside(index, expected[k].type.shape), real = is_float(got.type.dtype);
      const PadValue& holds = (*results)[k].holds;
      if (!inside && holds.known) {
        bool same = real ? got.f[at] == holds.value.f || (std::isnan(got.f[at]) && std::isnan(holds.value.f))
                         : got.i[at] == holds.value.i;
        EXPECT_TRUE(same) << describe(use.c) << " output " << k;
      }
      if (!inside && holds.finite && real) {
        EXPECT_TRUE(std::isfinite(got.f[at])) << describe(use.c) << " output " << k;
      }
      if (!inside) copy_element(whole, at, got, at);
      ++at;
    });
    EXPECT_EQ(difference(got, whole, 1e-9), "")
        << describe(use.c) << " output " << k << ", factor " << f.factors[factor].name << " longer";
  }
  return true;
}

TEST(Ops, LongerDimensionsChangeNothing) {
  std::set<std::string> tried;
  for (const OpCase& c : all_cases()) {
    Use use(c);
    Formula f = bound_formula(use.op, {c.attrs, use.types});
    for (int factor = 0; factor < static_cast<int>(f.factors.size()); ++factor) {
      if (f.factors[factor].size < 1) continue;
      for (bool zeros : {true, false}) {
        if (check_longer(use, f, factor, zeros)) tried.insert(c.op);
      }
    }
  }
  for (const char* op : {"matmul", "grouped_matmul", "grouped_matmul_grad", "reduce_sum", "reduce_max", "reduce_min",
                         "gather_rows", "gather_rows_grad", "iota", "reshape", "transpose", "broadcast", "select",
                         "gelu", "opt_adam", "opt_lamb_direction", "accumulate", "exp", "cast"})
    EXPECT_TRUE(tried.contains(op)) << op;
}

// ---- parts ----

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

void check_split(const Use& use, const Formula& f, int factor, int64_t parts, const std::vector<Tensor>& expected) {
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
    std::vector<Tensor> outputs = Use::run(use.op, attrs, inputs);
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
  for (const OpCase& c : all_cases()) {
    Use use(c);
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

// ---- linearity ----

TEST(Ops, LinearOperandsAddUp) {
  for (const OpCase& c : all_cases()) {
    Use use(c), other(c, 3);
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
      std::vector<Tensor> a = use.run(), b = Use::run(use.op, c.attrs, second), both = Use::run(use.op, c.attrs, sum);
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
