// The importer's inside: scopes of ONNX names, and the walk over nodes. frontend/onnx_import.h is the interface.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "frontend/import/conversion.h"
#include "frontend/import/imported_model.h"

namespace partita {

// Names of one graph or function body; a subgraph sees its parent's too.
struct ImportScope {
  const ImportScope* parent = nullptr;
  const OnnxOpsets* opsets = nullptr;
  const std::vector<OnnxAttribute>* bindings = nullptr;  // of the enclosing function's attributes
  absl::flat_hash_map<std::string, OnnxValue> values;
  int depth = 0;
  std::string prefix;  // of node names: "outer/" inside a function

  const OnnxValue* find(const std::string& name) const {
    for (const ImportScope* s = this; s; s = s->parent) {
      if (auto at = s->values.find(name); at != s->values.end()) return &at->second;
    }
    return nullptr;
  }
};

class Importer : public ImportServices {
 public:
  Importer(const OnnxModel& model, const ImportOptions& options);

  // Throws ImportError.
  ImportedModel run();
  // The values of a graph without data inputs (an initialization graph), by output name. Throws ImportError.
  std::map<std::string, Literal> evaluate(const OnnxGraph& graph);

  std::vector<OnnxValue> run_subgraph(const OnnxGraph& graph, const std::vector<OnnxValue>& inputs) override;
  ValueId step() override;
  ValueId micro_batch() override;
  int64_t next_instance() override { return instances_++; }
  int64_t seed() const override { return options_.seed; }
  bool training() const override { return options_.training; }
  bool batch_norm_training() const override { return options_.batch_norm_training; }
  std::string_view producer() const override { return model_.producer; }
  ValueId running(ValueId v) override;
  void set_running(ValueId v, ValueId next) override;
  void never_train(ValueId v) override { untrained_.push_back(v); }
  void warn(std::string message) override;

 private:
  static constexpr int kMaxDepth = 64;
  static constexpr int64_t kMaxNodes = 1'000'000;

  void bind_symbols(const OnnxGraph& graph);
  void add_inputs(const OnnxGraph& graph, ImportScope& scope);
  void add_initializers(const OnnxGraph& graph, ImportScope& scope);
  // Whether it is trained.
  bool add_initializer(const OnnxTensor& tensor, bool table, ImportScope& scope);
  void warn_unmatched(std::string_view key, const std::vector<std::string>& globs,
                      const std::vector<OnnxTensor>& initializers);
  Shape input_shape(const OnnxValueInfo& info) const;
  void run_nodes(const std::vector<OnnxNode>& nodes, ImportScope& scope);
  void run_node(const OnnxNode& node, ImportScope& scope);
  std::vector<OnnxValue> convert(const OnnxNode& node, ImportScope& scope, std::span<const OnnxValue* const> inputs);
  std::vector<OnnxValue> run_function(const OnnxFunction& function, const OnnxNode& node, const ImportScope& caller,
                                      std::span<const OnnxValue* const> inputs);
  std::vector<OnnxValue> run_schema_function(const OnnxNode& node, int version, const ImportScope& caller,
                                             std::span<const OnnxValue* const> inputs);
  void look_for_batch_norms();
  void finish();

  const OnnxModel& model_;
  const ImportOptions& options_;
  Emitter emitter_;
  ImportedModel result_;
  std::map<std::string, int64_t> symbols_;
  absl::flat_hash_map<std::string, const OnnxFunction*> functions_;  // domain, name and overload, separated by zeros
  std::vector<const OnnxFunction*> active_;                          // functions being expanded
  ImportScope* scope_ = nullptr;                                     // of the node at hand
  ValueId step_ = kNoValue, micro_batch_ = kNoValue;
  int64_t instances_ = 0, count_ = 0;
  std::vector<ValueId> untrained_;
  absl::flat_hash_set<std::string> statistics_;  // initializers that are running statistics: states, however small
  absl::flat_hash_set<std::string> settings_;    // initializers that are constants (constants_by_use.h)
  std::set<std::string> inner_weights_;          // initializers of subgraphs that look like weights
  absl::flat_hash_map<ValueId, int> state_of_;   // a state's value, and what becomes of it -> its index
};

// The forward graph of a model that has been read; its training_info is not looked at. Errors name the file.
absl::StatusOr<ImportedModel> import_forward(const OnnxModel& model, const ImportOptions& options);

// Drops what no output and no running statistic needs, and says which parameters are trained; kept apart for its
// length.
void finish_graph(Graph& graph, const ImportOptions& options, const std::vector<ValueId>& untrained,
                  std::vector<std::string>& warnings);

}  // namespace partita
