// The graph: SSA values with static shapes, nodes in an order that respects them. A plain value: a pass takes one as it
// is and returns another, made by a Builder or from a copy of its own that it reorders or marks before it hands it on.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/kinds.h"
#include "ir/op/op_def.h"
#include "ir/type/attr.h"
#include "ir/type/literal.h"
#include "ir/type/tensor_type.h"

namespace partita {

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

enum class DeviceKind : uint8_t { kDefault, kHost };

struct Value {
  TensorType type;
  NodeId producer = kNoNode;  // none for inputs, states and constants
  int output = 0;             // which output of the producer
  std::string name;           // ONNX name where there is one; may be empty or shared
};

struct Node {
  const OpDef* op = nullptr;
  std::vector<ValueId> inputs;  // kNoValue for an absent optional input
  std::vector<ValueId> outputs;
  Attrs attrs;
  int32_t origin = -1;  // index into Graph::origins; a gradient has its forward node's
  int32_t block = -1;   // of the model (passes/forward/tag_blocks.h); -1 outside
  Segment segment = Segment::kForward;
  bool weight_gradient = false;  // backward: computes a parameter's gradient rather than an input's
  DeviceKind device = DeviceKind::kDefault;
  int32_t chunk = 0;  // of a pipeline's stage that has several: the one it runs in
  int32_t turn = 0;   // of a pass in which micro-batches take turns: the one it runs in
};

struct GraphInput {
  ValueId value;
  std::string name;
  InputKind kind = InputKind::kData;
};

// Where a state's first value comes from.
struct FileRange {
  std::string path;
  int64_t offset = 0;
  int64_t bytes = 0;
};
enum class InitialRuleKind : uint8_t {
  kConstant,  // `a`
  kNormal,    // mean `a`, deviation `b`
  kUniform,   // in [`a`, `b`)
};
template <>
inline constexpr auto kEnumNames<InitialRuleKind> = name_table("constant", "normal", "uniform");
struct InitialRule {
  InitialRuleKind kind = InitialRuleKind::kConstant;
  double a = 0, b = 0;
};
using Initial = std::variant<std::monostate, Literal, FileRange, InitialRule>;

// A value that outlives the step, under a logical name that never changes.
struct State {
  std::string name;
  StateKind kind = StateKind::kParameter;
  ValueId value = kNoValue;  // as read during the step
  ValueId next = kNoValue;   // what it becomes; kNoValue: unchanged
  std::string parameter;     // the parameter that an optimizer state or accumulator belongs to
  Initial initial;
};

struct Constant {
  ValueId value;
  Literal literal;
};

struct GraphOutput {
  std::string name;  // "loss", "grad_norm", "lr", "grad/NAME", …
  ValueId value;
};

struct Graph {
  std::string name;
  std::vector<Value> values;
  std::vector<Node> nodes;
  std::vector<GraphInput> inputs;
  std::vector<State> states;
  std::vector<Constant> constants;
  std::vector<GraphOutput> outputs;
  std::vector<std::string> origins;  // "MatMul '/layers.0/attn/MatMul'": ONNX op and node name, for messages

  const TensorType& type(ValueId v) const { return values[v].type; }
  const Node* producer(ValueId v) const { return values[v].producer < 0 ? nullptr : &nodes[values[v].producer]; }
  std::string origin(const Node& node) const {
    return node.origin < 0 ? std::string(node.op->name) : origins[node.origin];
  }
};

// The name of the ONNX node that a node comes from; empty where it has none.
std::string_view onnx_name(const Graph& graph, const Node& node);
// Types of a node's inputs (an invalid type for an absent one).
std::vector<TensorType> input_types(const Graph& graph, const Node& node);
// The bound formula of a node.
Formula bound_formula(const Graph& graph, const Node& node);
// Floating point operations of a node.
double node_flops(const Graph& graph, const Node& node);
// For each value, the nodes that read it, in order.
std::vector<std::vector<NodeId>> uses(const Graph& graph);
// For each value, the literal it is a constant of, or nullptr.
std::vector<const Literal*> constant_values(const Graph& graph);

}  // namespace partita
