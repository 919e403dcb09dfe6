// What a graph starts from: data inputs with bound sizes, and initializers as parameters, frozen states or constants.
#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/constant_kind.h"
#include "frontend/import/constants_by_use.h"
#include "frontend/import/importer.h"
#include "ir/recipe/recipe.h"

namespace partita {
namespace {

[[noreturn]] void fail(std::string message) { throw ImportError{absl::InvalidArgumentError(std::move(message))}; }

}  // namespace

void Importer::bind_symbols(const OnnxGraph& graph) {
  symbols_ = options_.bind;
  std::vector<std::string> all;
  for (const OnnxValueInfo& in : graph.inputs) {
    if (!in.shape) continue;
    for (size_t d = 0; d < in.shape->size(); ++d) {
      const OnnxDimension& dim = (*in.shape)[d];
      if (dim.size >= 0) continue;
      if (d == 0 && options_.batch && (dim.symbol.empty() || symbols_.emplace(dim.symbol, *options_.batch).second))
        result_.info.any_batch = true;
      if (!dim.symbol.empty()) all.push_back(dim.symbol);
    }
  }
  for (const auto& [name, size] : options_.bind) {
    if (size < 1) fail(cat("bind: ", quote(name), " = ", size, ": expected a positive size"));
    if (std::find(all.begin(), all.end(), name) == all.end()) {
      std::sort(all.begin(), all.end());
      all.erase(std::unique(all.begin(), all.end()), all.end());
      result_.warnings.push_back(
          cat("bind: the model has no symbolic dimension ", quote(name), " (it has: ", quote_list(all), ")"));
    }
  }
}

Shape Importer::input_shape(const OnnxValueInfo& info) const {
  if (!info.shape) fail(cat("input ", quote(info.name), " has no shape: export with shapes"));
  Shape shape;
  for (size_t d = 0; d < info.shape->size(); ++d) {
    const OnnxDimension& dim = (*info.shape)[d];
    auto bound = symbols_.find(dim.symbol);
    if (dim.size >= 0) {
      shape.push_back(dim.size);
    } else if (!dim.symbol.empty() && bound != symbols_.end()) {
      shape.push_back(bound->second);
    } else if (d == 0 && options_.batch) {
      shape.push_back(*options_.batch);
    } else {
      fail(cat("input ", quote(info.name), ": dimension ", d,
               dim.symbol.empty() ? " has no size and no name: export it with one"
                                  : cat(" is symbolic: give its size, as in bind: {", dim.symbol, ": 8}")));
    }
  }
  auto count = checked_elements(shape);
  if (!count || *count > Emitter::kMaxConstantBytes)
    fail(cat("input ", quote(info.name), ": ", to_string(shape), " is too large"));
  return shape;
}

void Importer::add_inputs(const OnnxGraph& graph, ImportScope& scope) {
  absl::flat_hash_map<std::string_view, bool> initialized;
  for (const OnnxTensor& t : graph.initializers) initialized[t.name] = true;
  for (const OnnxValueInfo& in : graph.inputs) {
    if (initialized.contains(in.name)) continue;  // IR version 3 lists initializers as inputs
    if (in.name.empty()) fail("a graph input has no name");
    if (scope.values.contains(in.name)) fail(cat("two graph inputs are named ", quote(in.name)));
    if (auto fixed = options_.fixed.find(in.name); fixed != options_.fixed.end()) {
      scope.values[in.name] = OnnxValue::tensor(emitter_.constant(fixed->second));
      continue;
    }
    if (in.kind != OnnxValueInfo::Kind::kTensor) fail(cat("input ", quote(in.name), " is not a tensor"));
    if (in.dtype == DType::kInvalid)
      fail(cat("input ", quote(in.name), ": element type ", onnx_element_name(in.element), " is not supported"));
    scope.values[in.name] = OnnxValue::tensor(emitter_.builder().input(in.name, {in.dtype, input_shape(in)}));
  }
}

void Importer::add_initializers(const OnnxGraph& graph, ImportScope& scope) {
  std::vector<bool> tables = rotary_tables(graph.initializers);
  absl::flat_hash_map<std::string, std::string> renamed;
  for (const OnnxNode& n : graph.nodes) {
    if (n.op == "BatchNormalization" && n.inputs.size() >= 5)
      statistics_.insert(n.inputs.begin() + 3, n.inputs.begin() + 5);
  }
  settings_ = constants_by_use(model_);
  for (const OnnxTensor& t : graph.initializers) {
    if (t.parameter || !is_float(t.type.dtype)) continue;
    if (is_sinusoidal(t) || (model_.producer == "pytorch" && is_named_constant(t.name))) settings_.insert(t.name);
  }
  std::vector<std::string> constants, computed, lost;
  for (size_t k = 0; k < graph.initializers.size(); ++k) {
    const OnnxTensor& t = graph.initializers[k];
    if (t.name.empty()) fail("an initializer has no name");
    if (scope.values.contains(t.name)) fail(cat("two initializers are named ", quote(t.name)));
    const bool trained = add_initializer(t, tables[k], scope);
    if (settings_.contains(t.name) && !t.buffer && !trained && !is_unnamed_scalar(t) &&
        !matches_any(options_.frozen, t.name))
      constants.push_back(t.name);
    if (!trained || t.computed_of.empty()) continue;
    computed.push_back(t.name);
    lost.insert(lost.end(), t.computed_of.begin(), t.computed_of.end());
  }
  if (!computed.empty()) {
    warn(cat("initializers that the exporter computed of parameters and that are trained in their place: ",
             quote_list(computed), ", of ", quote_list(lost),
             ": that is another training, but where they are the same numbers in another order; "
             "torch.onnx.export(..., optimize=False) leaves the parameters"));
  }
  if (!constants.empty()) {
    warn(
        cat("initializers that are constants and not trained, by what reads them, what they hold or what PyTorch calls "
            "them (exponents, epsilons, "
            "factors, first states, shifts and scales of inputs, sinusoidal positions): ",
            quote_list(constants), "; if one is a parameter, name it in `trainable`, beside '*' for the others"));
  }
  warn_unmatched("trainable", options_.trainable, graph.initializers);
  warn_unmatched("frozen", options_.frozen, graph.initializers);
  for (const auto& [from, to] : options_.names) {
    if (!scope.values.contains(from))
      result_.warnings.push_back(cat("names: the model has no initializer ", quote(from)));
    auto [at, fresh] = renamed.emplace(to, from);
    if (!fresh) fail(cat("names: ", quote(from), " and ", quote(at->second), " would both become ", quote(to)));
    if (scope.values.contains(to) && !options_.names.contains(to))
      fail(cat("names: the model has an initializer ", quote(to), " already"));
  }
}

// A pattern that is mistyped trains what was to be frozen.
void Importer::warn_unmatched(std::string_view key, const std::vector<std::string>& globs,
                              const std::vector<OnnxTensor>& initializers) {
  std::vector<std::string> names;
  for (const OnnxTensor& t : initializers) {
    names.push_back(t.name);
    if (auto mapped = options_.names.find(t.name); mapped != options_.names.end()) names.push_back(mapped->second);
  }
  for (const std::string& glob : globs) {
    if (std::any_of(names.begin(), names.end(), [&](const std::string& n) { return glob_match(glob, n); })) continue;
    const std::string near = nearest_name(glob, names);
    warn(cat(key, ": no initializer has a name that matches ", quote(glob),
             near.empty() ? "" : cat("; the nearest is ", quote(near))));
  }
}

bool Importer::add_initializer(const OnnxTensor& t, bool table, ImportScope& scope) {
  if (t.type.dtype == DType::kInvalid) {
    scope.values[t.name] = {OnnxValue::Kind::kUnusable, kNoValue, nullptr,
                            cat("of element type ", onnx_element_name(t.element), ", which is not supported")};
    return false;
  }
  auto mapped = options_.names.find(t.name);
  const std::string& name = mapped == options_.names.end() ? t.name : mapped->second;
  auto matches = [&](const std::vector<std::string>& globs) {
    return matches_any(globs, name) || matches_any(globs, t.name);
  };
  const bool number = is_float(t.type.dtype), statistic = statistics_.contains(t.name);
  const bool kept = t.buffer || settings_.contains(t.name);
  const bool traced = is_unnamed_scalar(t) && t.computed_of.empty();
  const bool weight = number && !kept && !table && !traced && !(t.literal && is_mask(*t.literal));
  bool trained = number && !statistic && !matches(options_.frozen);
  if (trained && kept) {  // a pattern that fits some of a layer's weights is not meant for its masks
    const std::vector<std::string>& named = options_.trainable;
    trained = std::any_of(named.begin(), named.end(), [&](const std::string& n) { return n == name || n == t.name; });
  } else if (trained) {
    trained = options_.trainable.empty() ? weight : matches(options_.trainable);
  }
  // A frozen weight is a state whatever its size: its values may come from another file than the model's.
  if (!trained && !weight && !statistic && t.literal &&
      elements(t.type.shape) <= (number ? kMaxConstant : Emitter::kMaxFolded)) {
    scope.values[t.name] = OnnxValue::tensor(emitter_.builder().constant(*t.literal, name));
    return false;
  }
  State state{.name = name, .kind = trained ? StateKind::kParameter : StateKind::kFrozen};
  if (t.literal) {
    state.initial = *t.literal;
  } else {
    state.initial = *t.file;
  }
  state_of_[static_cast<ValueId>(emitter_.builder().graph().values.size())] =
      static_cast<int>(emitter_.builder().graph().states.size());
  scope.values[t.name] = OnnxValue::tensor(emitter_.builder().state(std::move(state), t.type));
  return trained;
}

}  // namespace partita
