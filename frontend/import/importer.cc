// The walk over nodes: order, scopes, functions, subgraphs.
#include "frontend/import/importer.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/import/constant_weights.h"
#include "frontend/import/convert_table.h"
#include "frontend/import/lost_names.h"
#include "frontend/import/node_order.h"
#include "frontend/onnx/onnx_schema.h"

namespace partita {
namespace {

[[noreturn]] void fail(std::string message) { throw ImportError{absl::InvalidArgumentError(std::move(message))}; }

std::string function_key(const std::string& domain, const std::string& name, const std::string& overload) {
  std::string key = domain;
  key += '\0';
  key += name;
  key += '\0';
  return key += overload;
}

}  // namespace

Importer::Importer(const OnnxModel& model, const ImportOptions& options) : model_(model), options_(options) {
  for (const OnnxFunction& f : model.functions) {
    auto [at, fresh] = functions_.emplace(function_key(f.domain, f.name, f.overload), &f);
    if (!fresh) throw ImportError{absl::InvalidArgumentError(cat("function ", quote(f.name), " is defined twice"))};
  }
}

ImportedModel Importer::run() {
  const OnnxGraph& graph = model_.graph;
  result_.info.ir_version = model_.ir_version;
  result_.info.opsets = model_.opsets;
  result_.info.producer =
      model_.producer_version.empty() ? model_.producer : cat(model_.producer, " ", model_.producer_version);
  result_.info.nodes = static_cast<int64_t>(graph.nodes.size());
  ImportScope scope;
  scope.opsets = &model_.opsets;
  bind_symbols(graph);
  add_inputs(graph, scope);
  add_initializers(graph, scope);
  run_nodes(graph.nodes, scope);
  if (graph.outputs.empty()) fail("the graph has no outputs");
  for (const OnnxValueInfo& out : graph.outputs) {
    const OnnxValue* v = scope.find(out.name);
    if (!v) fail(cat("graph output ", quote(out.name), " is made by no node"));
    if (v->kind == OnnxValue::Kind::kUnusable) fail(cat("graph output ", quote(out.name), " is ", v->why));
    if (v->kind != OnnxValue::Kind::kTensor) fail(cat("graph output ", quote(out.name), " is not a tensor"));
    emitter_.builder().output(out.name, v->value);
  }
  for (const std::string& name : options_.outputs) {
    const OnnxValue* v = scope.find(name);
    const bool known = std::ranges::any_of(graph.outputs, [&](const OnnxValueInfo& out) { return out.name == name; });
    if (!known && v && v->kind == OnnxValue::Kind::kTensor && emitter_.builder().graph().producer(v->value))
      emitter_.builder().output(name, v->value);
  }
  finish();
  return std::move(result_);
}

std::map<std::string, Literal> Importer::evaluate(const OnnxGraph& graph) {
  ImportScope scope;
  scope.opsets = &model_.opsets;
  if (!graph.inputs.empty()) fail("an initialization graph must not have inputs");
  for (const OnnxTensor& t : graph.initializers) {
    if (!t.literal) fail(cat("initializer ", quote(t.name), " has no values"));
    scope.values[t.name] = OnnxValue::tensor(emitter_.constant(*t.literal));
  }
  step_ = micro_batch_ = emitter_.scalar(DType::kI64, 0);  // random ops draw for step 0
  run_nodes(graph.nodes, scope);
  std::map<std::string, Literal> results;
  for (const OnnxValueInfo& out : graph.outputs) {
    const OnnxValue* v = scope.find(out.name);
    if (!v || v->kind != OnnxValue::Kind::kTensor)
      fail(cat("output ", quote(out.name), " of the initialization graph is made by no node"));
    results[out.name] = emitter_.known(v->value, cat("output ", quote(out.name), " of the initialization graph"));
  }
  return results;
}

ValueId Importer::step() {
  if (step_ == kNoValue) {
    step_ = emitter_.builder().state(
        {.name = "partita.step", .kind = StateKind::kStep, .initial = scalar_literal(DType::kI64, 0)},
        {DType::kI64, {}});
  }
  return step_;
}

ValueId Importer::micro_batch() {
  if (micro_batch_ == kNoValue)
    micro_batch_ = emitter_.builder().input("partita.micro_batch", {DType::kI64, {}}, InputKind::kMicroBatch);
  return micro_batch_;
}

ValueId Importer::running(ValueId v) {
  auto at = state_of_.find(v);
  if (at == state_of_.end()) return v;
  const ValueId next = emitter_.builder().graph().states[at->second].next;
  return next == kNoValue ? v : next;
}

void Importer::set_running(ValueId v, ValueId next) {
  auto at = state_of_.find(v);
  if (at == state_of_.end()) return;
  const int state = at->second;
  emitter_.builder().make_running(state, next);
  state_of_[next] = state;
}

void Importer::warn(std::string message) {
  if (std::find(result_.warnings.begin(), result_.warnings.end(), message) == result_.warnings.end())
    result_.warnings.push_back(std::move(message));
}

void Importer::run_nodes(const std::vector<OnnxNode>& nodes, ImportScope& scope) {
  auto order = node_order(nodes, [&](const std::string& name) { return scope.find(name) != nullptr; });
  if (!order.ok()) throw ImportError{order.status()};
  ImportScope* outer = std::exchange(scope_, &scope);
  for (int k : *order) {
    if (++count_ > kMaxNodes)
      fail(cat("the model expands into more than ", kMaxNodes, " nodes (functions, loops and branches included)"));
    try {
      run_node(nodes[k], scope);
    } catch (const ImportError& e) {
      throw ImportError{with_context(e.status, node_title(nodes[k]))};
    }
  }
  scope_ = outer;
}

void Importer::run_node(const OnnxNode& node, ImportScope& scope) {
  std::vector<const OnnxValue*> inputs;
  inputs.reserve(node.inputs.size());
  for (const std::string& name : node.inputs) {
    const OnnxValue* v = name.empty() ? nullptr : scope.find(name);
    if (!v && !name.empty()) fail(cat("input ", quote(name), " is not defined"));
    inputs.push_back(v);
  }
  std::vector<OnnxValue> outputs = convert(node, scope, inputs);
  for (size_t k = 0; k < node.outputs.size(); ++k) {
    const std::string& name = node.outputs[k];
    if (name.empty()) continue;
    ValueId v = outputs[k].value;
    if (outputs[k].kind == OnnxValue::Kind::kTensor) {
      if (v == kNoValue)
        throw ImportError{absl::UnimplementedError(cat("output ", k, " (", quote(name), ") is not supported"))};
      if (scope.depth == 0 && emitter_.builder().graph().values[v].name.empty()) emitter_.builder().name(v, name);
    }
    if (!scope.values.emplace(name, std::move(outputs[k])).second)
      fail(cat("output ", quote(name), " is the name of another value too"));
  }
}

std::vector<OnnxValue> Importer::convert(const OnnxNode& original, ImportScope& scope,
                                         std::span<const OnnxValue* const> inputs) {
  const OnnxNode* node = &original;
  OnnxNode resolved;
  if (std::any_of(original.attributes.begin(), original.attributes.end(),
                  [](const OnnxAttribute& a) { return !a.reference.empty(); })) {
    resolved = original;
    resolved.attributes.clear();
    for (const OnnxAttribute& a : original.attributes) {
      if (a.reference.empty()) {
        resolved.attributes.push_back(a);
        continue;
      }
      if (!scope.bindings)
        fail(cat("attribute ", quote(a.name), " refers to a function's attribute, outside a function"));
      for (const OnnxAttribute& bound : *scope.bindings) {
        if (bound.name != a.reference) continue;
        resolved.attributes.push_back({a.name, "", bound.value});
        break;
      }
    }
    node = &resolved;
  }
  if (!functions_.empty()) {
    auto function = functions_.find(function_key(node->domain, node->op, node->overload));
    if (function != functions_.end()) return run_function(*function->second, *node, scope, inputs);
  }
  auto opset = scope.opsets->find(node->domain);
  bool implied = node->domain == "com.microsoft" ||
                 scope.prefix == "!";  // bodies of schemas do not always list their operator sets
  if (opset == scope.opsets->end() && !implied) {
    fail(cat("operator set ", quote(node->domain.empty() ? "ai.onnx" : node->domain), " is not imported by the model"));
  }
  int version = opset != scope.opsets->end() ? opset->second : std::max(1, newest_opset(node->domain));
  const ConvertEntry* entry = find_converter(node->domain, node->op, version);
  if (!entry && !has_schema(*node, version)) {
    const bool unknown = newest_opset(node->domain) == 0, fused = node->domain.starts_with("com.microsoft");
    throw ImportError{absl::UnimplementedError(
        fused ? "this operator of ONNX Runtime's is not supported; where its optimizer wrote it, write the file with "
                "ORT_ENABLE_BASIC, or take the one that went into it"
        : unknown ? cat("domain ", quote(node->domain),
                        " is not known; replace the operator by standard ones or add it as a model-local function")
                  : cat("operator set version ", version, " has no operator ", quote(node->op)))};
  }
  if (absl::Status status = check_against_schema(*node, version); !status.ok()) throw ImportError{status};
  ++result_.info.ops[node->domain.empty() ? node->op : cat(node->domain, "::", node->op)];
  if (scope.prefix.empty()) {
    emitter_.at_node(node_title(*node));
  } else if (!scope.prefix.ends_with('!')) {
    OnnxNode titled{.op = node->op,
                    .domain = node->domain,
                    .overload = "",
                    .name = scope.prefix + node->name,
                    .inputs = {},
                    .outputs = {},
                    .attributes = {}};
    emitter_.at_node(node_title(titled));
  }
  if (entry) {
    std::vector<const OnnxAttribute*> attributes;
    for (const OnnxAttribute& a : node->attributes) attributes.push_back(&a);
    Conversion conversion(emitter_, *this, *node, version, attributes, inputs);
    try {
      entry->convert(conversion);
      return std::move(conversion.outputs);
    } catch (const UseFunctionBody&) {
    }
  }
  return run_schema_function(*node, version, scope, inputs);
}

std::vector<OnnxValue> Importer::run_schema_function(const OnnxNode& node, int version, const ImportScope& caller,
                                                     std::span<const OnnxValue* const> inputs) {
  std::vector<TensorType> types;
  for (const OnnxValue* v : inputs)
    types.push_back(v && v->kind == OnnxValue::Kind::kTensor ? emitter_.type(v->value) : TensorType{});
  auto function = schema_function(node, version, types);
  if (!function.ok()) throw ImportError{function.status()};
  if (!*function) {
    std::string_view advice = advice_for(node.op);
    throw ImportError{
        absl::UnimplementedError(cat("this operator (domain ", quote(node.domain.empty() ? "ai.onnx" : node.domain),
                                     ", version ", version, ") is not supported", advice.empty() ? "" : ": ", advice))};
  }
  std::vector<std::string>& expanded = result_.info.expanded;
  if (std::find(expanded.begin(), expanded.end(), node.op) == expanded.end()) expanded.push_back(node.op);
  auto own = std::make_shared<OnnxFunction>(**std::move(function));
  return run_function(*own, node, caller, inputs);
}

std::vector<OnnxValue> Importer::run_function(const OnnxFunction& function, const OnnxNode& node,
                                              const ImportScope& caller, std::span<const OnnxValue* const> inputs) {
  bool local =
      !functions_.empty() && functions_.contains(function_key(function.domain, function.name, function.overload));
  if (std::find(active_.begin(), active_.end(), &function) != active_.end())
    fail(cat("function ", quote(function.name), " calls itself, directly or through others"));
  if (caller.depth + 1 > kMaxDepth) fail(cat("functions and subgraphs are nested more than ", kMaxDepth, " deep"));
  if (inputs.size() > function.inputs.size())
    fail(cat("function ", quote(function.name), " takes ", function.inputs.size(), " inputs, found ", inputs.size()));
  if (node.outputs.size() > function.outputs.size())
    fail(cat("function ", quote(function.name), " has ", function.outputs.size(), " outputs, found ",
             node.outputs.size()));
  std::vector<OnnxAttribute> bindings = node.attributes;
  for (const OnnxAttribute& a : function.defaults) {
    if (!node.find(a.name)) bindings.push_back(a);
  }
  ImportScope scope;
  scope.opsets = function.opsets.empty() ? caller.opsets : &function.opsets;
  scope.bindings = &bindings;
  scope.depth = caller.depth + 1;
  scope.prefix = local && !caller.prefix.ends_with('!') ? cat(caller.prefix, node.name, "/") : "!";
  for (size_t k = 0; k < function.inputs.size(); ++k) {
    if (k < inputs.size() && inputs[k]) {
      scope.values[function.inputs[k]] = *inputs[k];
    } else {
      scope.values[function.inputs[k]] = {OnnxValue::Kind::kNothing, kNoValue, nullptr, {}};
    }
  }
  active_.push_back(&function);
  run_nodes(function.nodes, scope);
  active_.pop_back();
  std::vector<OnnxValue> outputs(node.outputs.size());
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (node.outputs[k].empty()) continue;
    const OnnxValue* v = scope.find(function.outputs[k]);
    if (!v) fail(cat("function ", quote(function.name), " does not make its output ", quote(function.outputs[k])));
    outputs[k] = *v;
  }
  return outputs;
}

std::vector<OnnxValue> Importer::run_subgraph(const OnnxGraph& graph, const std::vector<OnnxValue>& inputs) {
  const ImportScope& outer = *scope_;
  if (outer.depth + 1 > kMaxDepth) fail(cat("functions and subgraphs are nested more than ", kMaxDepth, " deep"));
  if (graph.inputs.size() != inputs.size())
    fail(cat("subgraph ", quote(graph.name), " takes ", graph.inputs.size(), " inputs, found ", inputs.size()));
  ImportScope scope;
  scope.parent = &outer;
  scope.opsets = outer.opsets;
  scope.bindings = outer.bindings;
  scope.depth = outer.depth + 1;
  scope.prefix = outer.prefix;
  for (size_t k = 0; k < inputs.size(); ++k) scope.values[graph.inputs[k].name] = inputs[k];
  for (const OnnxTensor& t : graph.initializers) {
    if (t.literal) {
      scope.values[t.name] = OnnxValue::tensor(emitter_.constant(*t.literal));
      if (is_float(t.type.dtype) && t.type.rank() > 1 && !is_uniform(*t.literal)) inner_weights_.insert(t.name);
    } else {
      scope.values[t.name] = {OnnxValue::Kind::kUnusable, kNoValue, nullptr,
                              "an initializer of a subgraph whose values are not known or not supported"};
    }
  }
  run_nodes(graph.nodes, scope);
  std::vector<OnnxValue> outputs;
  for (const OnnxValueInfo& out : graph.outputs) {
    const OnnxValue* v = scope.find(out.name);
    if (!v) fail(cat("output ", quote(out.name), " of subgraph ", quote(graph.name), " is made by no node"));
    outputs.push_back(*v);
  }
  return outputs;
}

// Batch norms that are no longer there cannot normalize by the batch.
void Importer::look_for_batch_norms() {
  std::vector<std::string> folded;
  for (const OnnxNode& node : model_.graph.nodes) {
    if (node.folded_norm) folded.push_back(node.name);
  }
  if (!options_.training) return;
  if (!folded.empty()) {
    std::string what =
        cat("PyTorch's exporter has multiplied batch norms into the weights before them: ", quote_list(folded), "; ");
    if (options_.batch_norm_training)
      fail(cat(what, "semantics: {batch_norm_training: true} needs the norms: torch.onnx.export(..., optimize=False)"));
    warn(cat(what,
             "nothing is normalized there, and the products are trained as they stand; to train the norms, export with "
             "optimize=False and say semantics: {batch_norm_training: true}"));
  } else if (options_.batch_norm_training && !result_.info.ops.contains("BatchNormalization")) {
    fail(
        "semantics: {batch_norm_training: true} in train.yaml: the model has no BatchNormalization; where the module "
        "has, its exporter has multiplied it into other weights and has to be told not to");
  }
}

void Importer::finish() {
  look_for_batch_norms();
  std::vector<ValueId> untrained = untrained_;
  for (ValueId v : emitter_.used_states()) {
    untrained.push_back(v);
    const std::string& name = emitter_.builder().graph().values[v].name;
    result_.warnings.push_back(
        cat("initializer ", quote(name),
            " decides shapes or settings: it is a constant of the compiled program and is not trained"));
  }
  result_.graph = std::move(emitter_.builder()).finish();
  result_.graph.name = model_.graph.name;
  finish_graph(result_.graph, options_, untrained, result_.warnings);
  if (!inner_weights_.empty()) {
    warn(cat("initializers of a branch or of a loop's body are constants and not trained: ",
             quote_list({inner_weights_.begin(), inner_weights_.end()}),
             "; what is a parameter belongs among the initializers of the model's main graph"));
  }
  for (std::string& w : lost_name_warnings(result_.graph)) result_.warnings.push_back(std::move(w));
  for (const State& s : result_.graph.states) {
    if (s.kind == StateKind::kParameter) result_.info.trained_elements += elements(result_.graph.type(s.value).shape);
  }
}

absl::StatusOr<ImportedModel> import_forward(const OnnxModel& model, const ImportOptions& options) {
  std::vector<std::string> left;
  const std::optional<OnnxModel> moved = with_constant_weights(model, options.trainable, left);
  try {
    ImportedModel out = Importer(moved ? *moved : model, options).run();
    if (!left.empty()) {
      out.warnings.push_back(cat("weights that the file has as Constant nodes are not trained: ", quote_list(left),
                                 "; name them in `trainable`, beside '*' for the initializers"));
    }
    if (const std::vector<std::string> inner = weights_of_functions(model); !inner.empty()) {
      out.warnings.push_back(
          cat("weights that the file has as Constant nodes of its functions are not trained: ", quote_list(inner),
              "; onnx.inliner.inline_local_functions makes them nodes of the graph, which "
              "`trainable` can name"));
    }
    return out;
  } catch (const ImportError& e) {
    return with_context(e.status, quote(model.path));
  }
}

}  // namespace partita
