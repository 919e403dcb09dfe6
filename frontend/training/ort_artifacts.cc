// The checkpoint is a FlatBuffer with identifier "ODTC", of these tables (fields in order; ONNX Runtime's
// ort_training_checkpoint.fbs and ort.fbs):
//   Checkpoint {version i32, module_state ModuleState, optimizer_groups [OptimizerGroup], property_bag}
//   ModuleState {requires_grad_params [Tensor], frozen_params [Tensor], is_nominal_state bool, has_external_data bool}
//   OptimizerGroup {group_name, step i64, initial_learning_rate f32, optimizer_states [OptimizerState]}
//   OptimizerState {param_name, momentums [Tensor]}
//   Tensor {name, doc_string, dims [i64], data_type i32 (ONNX's), raw_data [u8], string_data}
#include "frontend/training/ort_artifacts.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/import/importer.h"
#include "frontend/import/node_order.h"
#include "frontend/training/flat_buffer.h"

namespace partita {
namespace {

bool exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

[[noreturn]] void fail(std::string message) { throw ImportError{absl::InvalidArgumentError(std::move(message))}; }

struct OrtCheckpoint {
  std::vector<OnnxTensor> trained, frozen;
  bool has_optimizer = false;
  int64_t step = 0;
  double learning_rate = 0;
  std::map<std::string, std::vector<Literal>> moments;  // by parameter
};

OnnxTensor read_tensor(const FlatTable& t, const std::shared_ptr<const MappedFile>& file) {
  OnnxTensor out;
  out.name = std::string(t.text(0));
  FlatVector dims = t.vector(2, 8);
  for (uint32_t k = 0; k < dims.size; ++k)
    out.type.shape.push_back(t.buffer().read<int64_t>(dims.at + 8 * uint64_t{k}));
  out.element = t.scalar<int32_t>(3, 0);
  out.type.dtype = dtype_of_onnx(out.element);
  auto count = checked_elements(out.type.shape);
  if (!count || out.type.dtype == DType::kInvalid)
    fail(cat("checkpoint: tensor ", quote(out.name), " has an unsupported type or shape"));
  FlatVector data = t.vector(4, 1);
  int64_t bytes;
  if (__builtin_mul_overflow(*count, dtype_size(out.type.dtype), &bytes) || bytes != data.size) {
    fail(cat("checkpoint: tensor ", quote(out.name), " of type ", to_string(out.type), " has ", data.size, " bytes"));
  }
  out.literal = Literal{out.type, file, t.buffer().range(data.at, data.size).data()};
  return out;
}

std::vector<OnnxTensor> read_tensors(const FlatTable& t, unsigned id, const std::shared_ptr<const MappedFile>& file) {
  std::vector<OnnxTensor> out;
  FlatVector v = t.vector(id, 4);
  for (uint32_t k = 0; k < v.size; ++k) out.push_back(read_tensor(t.element(v, k), file));
  return out;
}

OrtCheckpoint read_checkpoint(const std::string& path) {
  auto opened = MappedFile::open(path);
  if (!opened.ok()) throw ImportError{opened.status()};
  auto file = std::make_shared<const MappedFile>(*std::move(opened));
  FlatBuffer buffer(file->bytes());
  if (file->size() < 8 || file->text().substr(4, 4) != "ODTC")
    fail("the checkpoint is no ONNX Runtime training checkpoint (identifier ODTC)");
  FlatTable root(buffer, buffer.follow(0));
  OrtCheckpoint out;
  if (!root.has(1)) fail("the checkpoint has no module state");
  FlatTable module = root.table(1);
  if (module.scalar<uint8_t>(2, 0) != 0) fail("the checkpoint is nominal: it holds no weights; save a full one");
  if (module.scalar<uint8_t>(3, 0) != 0)
    throw ImportError{
        absl::UnimplementedError("the checkpoint keeps its weights in an external file; save it in one file")};
  out.trained = read_tensors(module, 0, file);
  out.frozen = read_tensors(module, 1, file);
  FlatVector groups = root.vector(2, 4);
  if (groups.size > 1)
    throw ImportError{
        absl::UnimplementedError(cat("the checkpoint has ", groups.size, " optimizer groups; one is supported"))};
  if (groups.size == 1) {
    FlatTable g = root.element(groups, 0);
    out.has_optimizer = true;
    out.step = g.scalar<int64_t>(1, 0);
    out.learning_rate = g.scalar<float>(2, 0);
    FlatVector states = g.vector(3, 4);
    for (uint32_t k = 0; k < states.size; ++k) {
      FlatTable s = g.element(states, k);
      auto& moments = out.moments[std::string(s.text(0))];
      for (const OnnxTensor& t : read_tensors(s, 1, file)) moments.push_back(*t.literal);
    }
  }
  return out;
}

OnnxModel load(const std::string& path) {
  auto model = load_onnx_model(path);
  if (!model.ok()) throw ImportError{model.status()};
  return *std::move(model);
}

// The nodes that `output` depends on; the names they read are left in `seen`.
void keep_forward(OnnxGraph& g, const std::string& output, absl::flat_hash_set<std::string>& seen) {
  absl::flat_hash_map<std::string_view, size_t> maker;
  for (size_t k = 0; k < g.nodes.size(); ++k) {
    for (const std::string& name : g.nodes[k].outputs) maker[name] = k;
  }
  std::vector<bool> needed(g.nodes.size(), false);
  std::vector<std::string> stack = {output};
  while (!stack.empty()) {
    std::string name = std::move(stack.back());
    stack.pop_back();
    if (name.empty() || !seen.insert(name).second) continue;
    auto at = maker.find(name);
    if (at == maker.end() || needed[at->second]) continue;
    needed[at->second] = true;
    for (const std::string& in : g.nodes[at->second].inputs) stack.push_back(in);
  }
  std::vector<OnnxNode> kept;
  for (size_t k = 0; k < g.nodes.size(); ++k) {
    if (needed[k]) kept.push_back(std::move(g.nodes[k]));
  }
  g.nodes = std::move(kept);
}

// The training model without its backward part: weights are initializers, the loss is the one output.
OnnxModel forward_model(const std::string& path, const OrtCheckpoint& checkpoint, std::string& loss) {
  OnnxModel model = load(path);
  OnnxGraph& g = model.graph;
  for (const OnnxValueInfo& out : g.outputs) {
    if (is_float(out.dtype) && (!out.shape || out.shape->empty())) {
      loss = out.name;
      break;
    }
  }
  if (loss.empty()) throw ImportError{absl::InvalidArgumentError(cat(quote(path), ": no output is a scalar loss"))};
  absl::flat_hash_set<std::string> needed;
  keep_forward(g, loss, needed);
  absl::flat_hash_map<std::string, const OnnxTensor*> weights;
  for (const auto* list : {&checkpoint.trained, &checkpoint.frozen}) {
    for (const OnnxTensor& t : *list) {
      if (!weights.emplace(t.name, &t).second) fail(cat("checkpoint: ", quote(t.name), " is listed twice"));
    }
  }
  std::vector<OnnxValueInfo> data;
  std::vector<OnnxTensor> initializers;
  for (const OnnxValueInfo& in : g.inputs) {
    if (!needed.contains(in.name)) continue;  // accumulation buffers
    auto w = weights.find(in.name);
    if (w == weights.end()) {
      data.push_back(in);
      continue;
    }
    bool fits = in.dtype == w->second->type.dtype && in.shape && in.shape->size() == w->second->type.shape.size();
    for (size_t d = 0; fits && d < in.shape->size(); ++d)
      fits = (*in.shape)[d].size < 0 || (*in.shape)[d].size == w->second->type.shape[d];
    if (!fits)
      fail(cat("parameter ", quote(in.name), ": the checkpoint's type ", to_string(w->second->type),
               " does not fit the training model"));
    initializers.push_back(*w->second);
  }
  std::erase_if(g.initializers, [&](const OnnxTensor& t) { return !needed.contains(t.name); });
  for (OnnxTensor& t : g.initializers) initializers.push_back(std::move(t));
  g.inputs = std::move(data);
  g.initializers = std::move(initializers);
  std::erase_if(g.outputs, [&](const OnnxValueInfo& v) { return v.name != loss; });
  return model;
}

double number(const OnnxNode& n, std::string_view name, double otherwise) {
  const OnnxAttribute* a = n.find(name);
  if (!a) return otherwise;
  if (auto* f = std::get_if<float>(&a->value)) return *f;
  if (auto* i = std::get_if<int64_t>(&a->value)) return static_cast<double>(*i);
  fail(cat(node_title(n), ": attribute ", quote(name), ": expected a number"));
}

OptimizerGroup read_optimizer(const std::string& path, const OrtCheckpoint& checkpoint,
                              const std::vector<std::string>& trained, const ImportOptions& options) {
  OnnxModel model = load(path);
  const OnnxNode* update = nullptr;
  for (const OnnxNode& n : model.graph.nodes) {
    if (n.op != "AdamWOptimizer" || n.domain != "com.microsoft" || update) {
      throw ImportError{absl::UnimplementedError(
          cat(quote(path), ": ", node_title(n),
              ": expected one AdamWOptimizer; put clipping and other optimizers into train.yaml"))};
    }
    update = &n;
  }
  if (!update) fail(cat(quote(path), ": there is no optimizer node"));
  OptimizerGroup g;
  g.kind = "ort_adamw";
  // ONNX Runtime's defaults for this operator.
  constexpr std::pair<const char*, double> kHyper[] = {{"alpha", 0.9f},         {"beta", 0.999f}, {"epsilon", 1e-8f},
                                                       {"weight_decay", 1e-2f}, {"adam_mode", 0}, {"correct_bias", 1}};
  for (const auto& [name, otherwise] : kHyper) g.hyper[name] = number(*update, name, otherwise);
  g.step_counts = true;
  g.initial_step = checkpoint.step;
  if (checkpoint.has_optimizer) g.learning_rate = checkpoint.learning_rate;
  for (const std::string& name : trained) {
    auto renamed = options.names.find(name);
    const std::string& state = renamed == options.names.end() ? name : renamed->second;
    g.parameters.push_back(state);
    g.state_names.push_back({state + ".momentum0", state + ".momentum1"});
    auto& initials = g.state_initials.emplace_back(2);
    auto moments = checkpoint.moments.find(name);
    for (size_t k = 0; moments != checkpoint.moments.end() && k < std::min<size_t>(2, moments->second.size()); ++k)
      initials[k] = moments->second[k];
  }
  return g;
}

ImportedModel import_folder(const std::string& folder, const ImportOptions& options) {
  OrtCheckpoint checkpoint = read_checkpoint(folder + "/checkpoint");
  std::string loss;
  OnnxModel model = forward_model(folder + "/training_model.onnx", checkpoint, loss);
  absl::flat_hash_set<std::string> trainable;
  for (const OnnxTensor& t : checkpoint.trained) trainable.insert(t.name);
  ImportOptions own = options;
  std::vector<std::string> trained;
  for (const OnnxTensor& t : model.graph.initializers) {
    if (trainable.contains(t.name)) trained.push_back(t.name);
  }
  if (own.trainable.empty()) own.trainable = trained;
  auto result = import_forward(model, own);
  if (!result.ok()) throw ImportError{result.status()};
  absl::flat_hash_set<std::string> states;
  for (const State& s : result->graph.states) {
    if (s.kind == StateKind::kParameter) states.insert(s.name);
  }
  std::erase_if(trained, [&](const std::string& name) {
    auto renamed = options.names.find(name);
    return !states.contains(renamed == options.names.end() ? name : renamed->second);
  });
  TrainingSpec spec;
  spec.source = "onnxruntime";
  spec.loss = loss;
  if (exists(folder + "/optimizer_model.onnx")) {
    spec.groups.push_back(read_optimizer(folder + "/optimizer_model.onnx", checkpoint, trained, options));
    spec.parameters = spec.groups[0].parameters;
  }
  result->training = std::move(spec);
  return *std::move(result);
}

}  // namespace

bool is_ort_artifacts(const std::string& folder) {
  return exists(folder + "/training_model.onnx") && exists(folder + "/checkpoint");
}

absl::StatusOr<ImportedModel> import_ort_artifacts(const std::string& folder, const ImportOptions& options) {
  try {
    return import_folder(folder, options);
  } catch (const ImportError& e) {
    bool named = e.status.message().find(folder) != absl::string_view::npos;
    return named ? e.status : with_context(e.status, quote(folder));
  }
}

}  // namespace partita
