#include "frontend/training/training_info.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/importer.h"
#include "frontend/import/node_order.h"

namespace partita {
namespace {

constexpr std::string_view kDomain = "ai.onnx.preview.training";

[[noreturn]] void fail(std::string message) {
  throw ImportError{absl::InvalidArgumentError("training_info: " + std::move(message))};
}
[[noreturn]] void unsupported(std::string message) {
  throw ImportError{absl::UnimplementedError("training_info: " + std::move(message))};
}

bool is_optimizer(const OnnxNode& n) {
  return n.domain == kDomain && (n.op == "Adam" || n.op == "Adagrad" || n.op == "Momentum");
}
bool is_gradient(const OnnxNode& n) { return n.domain == kDomain && n.op == "Gradient"; }

double number(const OnnxNode& n, std::string_view name, double otherwise) {
  const OnnxAttribute* a = n.find(name);
  const float* v = a ? std::get_if<float>(&a->value) : nullptr;
  if (a && !v) fail(cat(node_title(n), ": attribute ", quote(name), ": expected a number"));
  return v ? *v : otherwise;
}

std::string text(const OnnxNode& n, std::string_view name) {
  const OnnxAttribute* a = n.find(name);
  const std::string* v = a ? std::get_if<std::string>(&a->value) : nullptr;
  if (!v) fail(cat(node_title(n), ": attribute ", quote(name), ": expected a string"));
  return *v;
}

class Reader {
 public:
  Reader(const OnnxModel& model, const ImportOptions& options) : options_(options) {
    out_.model = model;
    out_.model.training.clear();
    out_.spec.source = "training_info";
  }

  TrainableModel run(const std::vector<OnnxTrainingInfo>& infos) {
    const OnnxTrainingInfo* info = nullptr;
    for (const OnnxTrainingInfo& one : infos) {
      if (one.algorithm.nodes.empty()) continue;
      if (info) unsupported("several training algorithms in one model");
      info = &one;
    }
    if (!info) unsupported("there is no algorithm");
    algorithm_ = &info->algorithm;
    for (const OnnxTensor& t : out_.model.graph.initializers) initial_[t.name] = &t;
    for (const OnnxTensor& t : algorithm_->initializers) {
      if (!initial_.emplace(t.name, &t).second) fail(cat("initializer ", quote(t.name), " is in both graphs"));
    }
    for (const OnnxTrainingInfo& one : infos) initialize(one);
    for (size_t k = 0; k < algorithm_->nodes.size(); ++k) {
      for (const std::string& name : algorithm_->nodes[k].outputs) maker_[name] = static_cast<int>(k);
    }
    for (const auto& [to, from] : info->update_binding) update_[to] = from;
    for (const OnnxNode& n : algorithm_->nodes) {
      if (is_gradient(n)) read_gradient(n);
    }
    if (out_.spec.loss.empty()) unsupported("the algorithm has no Gradient node");
    for (const OnnxNode& n : algorithm_->nodes) {
      if (is_optimizer(n)) read_optimizer(n);
    }
    if (out_.spec.groups.empty()) unsupported("the algorithm has no Adam, Adagrad or Momentum node");
    check_updates();
    add_loss();
    return std::move(out_);
  }

 private:
  std::string state_name(const std::string& name) const {
    auto at = options_.names.find(name);
    return at == options_.names.end() ? name : at->second;
  }

  // Values that the initialization graph makes replace those of the initializers they are bound to.
  void initialize(const OnnxTrainingInfo& info) {
    if (info.initialization_binding.empty()) return;
    OnnxModel shell;
    shell.opsets = out_.model.opsets;
    shell.functions = out_.model.functions;
    ImportOptions options;
    options.seed = options_.seed;
    std::map<std::string, Literal> made = Importer(shell, options).evaluate(info.initialization);
    for (const auto& [to, from] : info.initialization_binding) {
      auto value = made.find(from);
      auto target = initial_.find(to);
      if (value == made.end())
        fail(cat("initialization_binding: ", quote(from), " is no output of the initialization graph"));
      if (target == initial_.end()) fail(cat("initialization_binding: ", quote(to), " is no initializer"));
      if (value->second.type != target->second->type) {
        fail(cat("initialization_binding of ", quote(to), ": expected ", to_string(target->second->type), ", found ",
                 to_string(value->second.type)));
      }
      replaced_[to] = value->second;
      for (OnnxTensor& t : out_.model.graph.initializers) {
        if (t.name == to) t.literal = value->second, t.file.reset();
      }
    }
  }

  std::optional<Literal> initial(const std::string& name) const {
    if (auto at = replaced_.find(name); at != replaced_.end()) return at->second;
    auto at = initial_.find(name);
    return at == initial_.end() ? std::nullopt : at->second->literal;
  }

  void read_gradient(const OnnxNode& n) {
    std::string loss = text(n, "y");
    if (!out_.spec.loss.empty() && out_.spec.loss != loss)
      unsupported(cat("gradients of two results, ", quote(out_.spec.loss), " and ", quote(loss)));
    out_.spec.loss = loss;
    const OnnxAttribute* a = n.find("xs");
    const auto* xs = a ? std::get_if<std::vector<std::string>>(&a->value) : nullptr;
    if (!xs || xs->size() < n.outputs.size() || xs->size() > n.inputs.size())
      fail(cat(node_title(n), ": attribute 'xs' does not fit the inputs and outputs"));
    for (size_t k = 0; k < n.outputs.size(); ++k) {
      if (n.inputs[k] != (*xs)[k])
        unsupported(
            cat(node_title(n), ": the gradient at another point (", quote(n.inputs[k]), " for ", quote((*xs)[k]), ")"));
      if (!n.outputs[k].empty()) gradient_of_[n.outputs[k]] = (*xs)[k];
    }
  }

  void read_optimizer(const OnnxNode& n) {
    OptimizerGroup g;
    int states = n.op == "Adam" ? 2 : 1;
    if (n.inputs.size() < 2 || (n.inputs.size() - 2) % static_cast<size_t>(2 + states) != 0)
      fail(cat(node_title(n), ": ", n.inputs.size(), " inputs do not divide into tensors, gradients and states"));
    size_t count = (n.inputs.size() - 2) / static_cast<size_t>(2 + states);
    if (n.outputs.size() != count * static_cast<size_t>(1 + states))
      fail(cat(node_title(n), ": expected ", count * static_cast<size_t>(1 + states), " outputs, found ",
               n.outputs.size()));
    g.kind = n.op == "Adam" ? "onnx_adam" : n.op == "Adagrad" ? "onnx_adagrad" : "onnx_momentum";
    g.hyper["norm_coefficient"] = number(n, "norm_coefficient", 0);
    if (n.op == "Adagrad") {
      g.hyper["decay_factor"] = number(n, "decay_factor", 0);
      g.hyper["epsilon"] = number(n, "epsilon", 1e-6f);
    } else {
      g.hyper["alpha"] = number(n, "alpha", 0.9f);
      g.hyper["beta"] = number(n, "beta", 0.999f);
    }
    if (n.op == "Adam") {
      g.hyper["epsilon"] = number(n, "epsilon", 1e-6f);
      g.hyper["norm_coefficient_post"] = number(n, "norm_coefficient_post", 0);
    }
    if (n.op == "Momentum") {
      std::string mode = text(n, "mode");
      if (mode != "standard" && mode != "nesterov")
        fail(cat(node_title(n), ": attribute 'mode': expected standard or nesterov, found ", quote(mode)));
      g.hyper["nesterov"] = mode == "nesterov";
    }
    read_rate_and_step(n, g);
    for (size_t k = 0; k < count; ++k) {
      const std::string &x = n.inputs[2 + k], &grad = n.inputs[2 + count + k];
      auto of = gradient_of_.find(grad);
      if (of == gradient_of_.end())
        unsupported(cat(node_title(n), ": gradient ", quote(grad), " does not come straight from a Gradient node"));
      if (of->second != x)
        fail(cat(node_title(n), ": ", quote(grad), " is the gradient of ", quote(of->second), ", not of ", quote(x)));
      bound(n, x, n.outputs[k]);
      g.parameters.push_back(state_name(x));
      out_.spec.parameters.push_back(state_name(x));
      if (!trained_.insert(x).second) fail(cat("initializer ", quote(x), " is updated twice"));
      auto& names = g.state_names.emplace_back();
      auto& initials = g.state_initials.emplace_back();
      for (int s = 0; s < states; ++s) {
        const std::string& state = n.inputs[2 + count * static_cast<size_t>(2 + s) + k];
        bound(n, state, n.outputs[count * static_cast<size_t>(1 + s) + k]);
        if (initial_.at(state)->type.shape != initial_.at(x)->type.shape)
          fail(cat(node_title(n), ": state ", quote(state), " does not have the shape of ", quote(x)));
        names.push_back(state);
        initials.push_back(initial(state));
      }
    }
    out_.spec.groups.push_back(std::move(g));
  }

  // The node's result must go back into the initializer it was made from.
  void bound(const OnnxNode& n, const std::string& initializer, const std::string& result) {
    if (!initial_.contains(initializer))
      unsupported(cat(node_title(n), ": ", quote(initializer), " is no initializer"));
    auto at = update_.find(initializer);
    if (at == update_.end() || at->second != result)
      fail(cat(node_title(n), ": update_binding does not bind ", quote(initializer), " to ", quote(result)));
    done_.insert(initializer);
  }

  void read_rate_and_step(const OnnxNode& n, OptimizerGroup& g) {
    const std::string &rate = n.inputs[0], &step = n.inputs[1];
    if (auto value = initial(rate); value && !update_.contains(rate)) {
      if (elements(value->type.shape) != 1) fail(cat("learning rate ", quote(rate), " is not a scalar"));
      g.learning_rate = element_f(*value, 0);
    } else if (maker_.contains(rate) || update_.contains(rate)) {
      unsupported(cat("learning rate ", quote(rate), " is computed: give a constant, and the schedule in train.yaml"));
    }
    auto value = initial(step);
    if (!value || elements(value->type.shape) != 1)
      unsupported(cat("step counter ", quote(step), " is no scalar initializer"));
    g.initial_step = element_i(*value, 0);
    auto update = update_.find(step);
    g.step_counts = update != update_.end();
    if (!g.step_counts) return;
    auto maker = maker_.find(update->second);
    const OnnxNode* add = maker == maker_.end() ? nullptr : &algorithm_->nodes[maker->second];
    bool counts = add && add->op == "Add" && add->domain.empty() && add->inputs.size() == 2;
    if (counts) {
      const std::string& other = add->inputs[0] == step ? add->inputs[1] : add->inputs[0];
      auto one = initial(other);
      counts = (add->inputs[0] == step || add->inputs[1] == step) && one && elements(one->type.shape) == 1 &&
               element_i(*one, 0) == 1 && !update_.contains(other);
    }
    if (!counts) unsupported(cat("step counter ", quote(step), " is not updated by adding 1"));
    out_.spec.step_name = step;
    done_.insert(step);
  }

  void check_updates() {
    for (const auto& [to, from] : update_) {
      if (!done_.contains(to))
        unsupported(cat("update of ", quote(to), " by ", quote(from), ", which no optimizer node makes"));
    }
  }

  // The algorithm's nodes that the loss needs join the forward graph.
  void add_loss() {
    OnnxGraph& g = out_.model.graph;
    std::vector<std::string> stack = {out_.spec.loss};
    absl::flat_hash_set<std::string> seen;
    std::vector<bool> needed(algorithm_->nodes.size(), false);
    while (!stack.empty()) {
      std::string name = std::move(stack.back());
      stack.pop_back();
      auto maker = maker_.find(name);
      if (name.empty() || !seen.insert(name).second || maker == maker_.end() || needed[maker->second]) continue;
      const OnnxNode& n = algorithm_->nodes[maker->second];
      if (is_gradient(n) || is_optimizer(n)) unsupported(cat("the loss depends on ", node_title(n)));
      needed[maker->second] = true;
      for (const std::string& in : n.inputs) stack.push_back(in);
    }
    for (size_t k = 0; k < needed.size(); ++k) {
      if (needed[k]) g.nodes.push_back(algorithm_->nodes[k]);
    }
    for (const OnnxValueInfo& in : algorithm_->inputs) {
      bool known =
          std::any_of(g.inputs.begin(), g.inputs.end(), [&](const OnnxValueInfo& v) { return v.name == in.name; });
      if (seen.contains(in.name) && !known) g.inputs.push_back(in);
    }
    for (const OnnxTensor& t : algorithm_->initializers) {
      if (seen.contains(t.name)) g.initializers.push_back(t);
    }
    std::erase_if(g.outputs, [&](const OnnxValueInfo& v) { return v.name == out_.spec.loss; });
    OnnxValueInfo loss;
    loss.name = out_.spec.loss;
    g.outputs.insert(g.outputs.begin(), loss);
  }

  const ImportOptions& options_;
  TrainableModel out_;
  const OnnxGraph* algorithm_ = nullptr;
  absl::flat_hash_map<std::string, const OnnxTensor*> initial_;
  absl::flat_hash_map<std::string, Literal> replaced_;
  absl::flat_hash_map<std::string, int> maker_;
  std::map<std::string, std::string> update_;                  // initializer -> what it becomes
  absl::flat_hash_map<std::string, std::string> gradient_of_;  // gradient -> parameter
  absl::flat_hash_set<std::string> trained_, done_;
};

}  // namespace

TrainableModel read_training_info(const OnnxModel& model, const ImportOptions& options) {
  return Reader(model, options).run(model.training);
}

}  // namespace partita
