// One ONNX node on its way into the IR: what a converter (frontend/convert/*.cc) sees. Converters report faults by
// throwing through fail() and unsupported().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/import/emitter.h"
#include "frontend/onnx/onnx_model.h"

namespace partita {

// What an ONNX name stands for.
struct OnnxValue {
  enum class Kind {
    kTensor,
    kSequence,
    kNothing,
    kUnusable
  };  // kNothing: an optional without an element; kUnusable: an element type that the IR lacks
  Kind kind = Kind::kTensor;
  ValueId value = kNoValue;
  std::shared_ptr<const std::vector<ValueId>> sequence;
  std::string why;  // kUnusable

  static OnnxValue tensor(ValueId v) { return {Kind::kTensor, v, nullptr, {}}; }
  static OnnxValue list(std::vector<ValueId> v) {
    return {Kind::kSequence, kNoValue, std::make_shared<const std::vector<ValueId>>(std::move(v)), {}};
  }
};

// What the importer does for converters beyond emitting.
class ImportServices {
 public:
  virtual ~ImportServices() = default;
  // Imports a subgraph of the node at hand with its inputs bound; returns its outputs.
  virtual std::vector<OnnxValue> run_subgraph(const OnnxGraph& graph, const std::vector<OnnxValue>& inputs) = 0;
  virtual ValueId step() = 0;           // i64 scalar: optimizer steps taken
  virtual ValueId micro_batch() = 0;    // i64 scalar: which of the step's runs of the graph this is
  virtual int64_t next_instance() = 0;  // numbers the random ops of the graph
  virtual int64_t seed() const = 0;
  virtual bool training() const = 0;
  virtual bool batch_norm_training() const = 0;   // of nodes that say training_mode 0
  virtual std::string_view producer() const = 0;  // the exporter, as the file has it
  // Of a state's value, or of what one node has made of it: what the last one has.
  virtual ValueId running(ValueId v) = 0;
  // The state's value after a step, where `v` is a state's value or what a node has made of it; it is then no
  // parameter. Nothing where it is none.
  virtual void set_running(ValueId v, ValueId next) = 0;
  virtual void never_train(ValueId v) = 0;
  virtual void warn(std::string message) = 0;  // once for equal texts
};

class Conversion {
 public:
  Conversion(Emitter& emitter, ImportServices& services, const OnnxNode& node, int version,
             std::span<const OnnxAttribute* const> attributes, std::span<const OnnxValue* const> inputs)
      : e(emitter),
        services(services),
        node(node),
        version(version),
        outputs(node.outputs.size()),
        attributes_(attributes),
        inputs_(inputs) {}

  Emitter& e;
  ImportServices& services;
  const OnnxNode& node;
  const int version;  // of the operator set that the node's domain has here
  std::vector<OnnxValue> outputs;

  // Inputs. in() throws for an absent one.
  int count() const { return static_cast<int>(inputs_.size()); }
  bool has(int k) const {
    return k < count() && inputs_[k] != nullptr && inputs_[k]->kind != OnnxValue::Kind::kNothing;
  }
  const OnnxValue& any(int k) const;
  ValueId in(int k) const;
  const std::vector<ValueId>& sequence(int k) const;
  TensorType type(int k) const { return e.type(in(k)); }
  Shape shape(int k) const { return e.shape(in(k)); }
  int rank(int k) const { return e.rank(in(k)); }
  DType dtype(int k) const { return e.dtype(in(k)); }

  // Inputs that must be known when the model is compiled.
  Literal known(int k, std::string_view what) const;
  std::vector<int64_t> known_ints(int k, std::string_view what) const;
  int64_t known_int(int k, std::string_view what) const;
  double known_float(int k, std::string_view what) const;
  std::vector<double> known_floats(int k, std::string_view what) const;

  // Attributes; without a default, a missing one is the model's fault.
  bool set(std::string_view name) const { return find(name) != nullptr; }
  int64_t i(std::string_view name) const;
  int64_t i(std::string_view name, int64_t otherwise) const { return set(name) ? i(name) : otherwise; }
  double f(std::string_view name, double otherwise) const;
  std::string s(std::string_view name, std::string_view otherwise) const;
  std::vector<int64_t> ints(std::string_view name, std::vector<int64_t> otherwise = {}) const;
  std::vector<double> floats(std::string_view name, std::vector<double> otherwise = {}) const;
  std::vector<std::string> strings(std::string_view name, std::vector<std::string> otherwise = {}) const;
  const OnnxTensor* tensor(std::string_view name) const;  // nullptr where absent
  const OnnxGraph& graph(std::string_view name) const;
  DType element(int64_t onnx_element) const;  // throws for a type that the IR lacks

  bool wants(int k) const { return k < static_cast<int>(node.outputs.size()) && !node.outputs[k].empty(); }
  void out(int k, ValueId v) {
    if (k < static_cast<int>(outputs.size())) outputs[k] = OnnxValue::tensor(v);
  }
  void out(ValueId v) { out(0, v); }
  void out(int k, OnnxValue v) {
    if (k < static_cast<int>(outputs.size())) outputs[k] = std::move(v);
  }

  // 0 <= result < rank, counting negative ones from the end.
  int axis(int64_t axis, int rank) const;
  std::vector<int64_t> axes(std::vector<int64_t> axes, int rank) const;  // sorted, without repetitions
  void require(bool condition, std::string_view message) const {
    if (!condition) fail(std::string(message));
  }
  [[noreturn]] void fail(std::string message) const;         // the model is wrong
  [[noreturn]] void unsupported(std::string message) const;  // the model is right, but beyond us

 private:
  const OnnxAttribute* find(std::string_view name) const;
  template <typename T>
  const T* get(std::string_view name, std::string_view what) const;

  std::span<const OnnxAttribute* const> attributes_;  // with references resolved
  std::span<const OnnxValue* const> inputs_;          // nullptr where absent
};

// Thrown by a converter whose operator has a function body that says this use better.
struct UseFunctionBody {};

}  // namespace partita
