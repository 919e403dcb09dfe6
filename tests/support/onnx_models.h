// Small ONNX models as protobuf, for tests to build and spoil.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "onnx/onnx_pb.h"

namespace partita {

inline constexpr int kFloat = onnx::TensorProto::FLOAT, kInt64 = onnx::TensorProto::INT64;

inline onnx::ModelProto empty_model(int opset = 18) {
  onnx::ModelProto m;
  m.set_ir_version(8);
  auto* o = m.add_opset_import();
  o->set_version(opset);
  m.mutable_graph()->set_name("g");
  return m;
}

inline void add_value(onnx::ValueInfoProto* v, const std::string& name, std::vector<int64_t> shape, int type = kFloat) {
  v->set_name(name);
  auto* t = v->mutable_type()->mutable_tensor_type();
  t->set_elem_type(type);
  t->mutable_shape();
  for (int64_t d : shape) t->mutable_shape()->add_dim()->set_dim_value(d);
}

inline onnx::NodeProto* add_node(onnx::GraphProto* g, const std::string& op, std::vector<std::string> in,
                                 std::vector<std::string> out, const std::string& name = "n") {
  auto* n = g->add_node();
  n->set_op_type(op);
  n->set_name(name);
  for (auto& s : in) n->add_input(s);
  for (auto& s : out) n->add_output(s);
  return n;
}

inline void add_ints(onnx::GraphProto* g, const std::string& name, std::vector<int64_t> values) {
  auto* t = g->add_initializer();
  t->set_name(name);
  t->set_data_type(kInt64);
  t->add_dims(static_cast<int64_t>(values.size()));
  for (int64_t v : values) t->add_int64_data(v);
}

inline void add_int(onnx::NodeProto* n, const std::string& name, int64_t value) {
  auto* a = n->add_attribute();
  a->set_name(name);
  a->set_type(onnx::AttributeProto::INT);
  a->set_i(value);
}

// x [2] -> op -> y, a sound model to spoil.
inline onnx::ModelProto relu_model() {
  onnx::ModelProto m = empty_model();
  add_value(m.mutable_graph()->add_input(), "x", {2});
  add_value(m.mutable_graph()->add_output(), "y", {2});
  add_node(m.mutable_graph(), "Relu", {"x"}, {"y"});
  return m;
}

inline void add_floats(onnx::GraphProto* g, const std::string& name, std::vector<int64_t> dims,
                       std::vector<float> values) {
  auto* t = g->add_initializer();
  t->set_name(name);
  t->set_data_type(kFloat);
  for (int64_t d : dims) t->add_dims(d);
  for (float v : values) t->add_float_data(v);
}

// x [4,3] times parameter w [3,2] -> y [4,2], a sound model to train with loss mse or to spoil.
inline onnx::ModelProto linear_model() {
  onnx::ModelProto m = empty_model();
  onnx::GraphProto* g = m.mutable_graph();
  add_value(g->add_input(), "x", {4, 3});
  add_value(g->add_output(), "y", {4, 2});
  add_floats(g, "w", {3, 2}, {1, -2, 3, 4, -5, 6});
  add_node(g, "MatMul", {"x", "w"}, {"y"});
  return m;
}

}  // namespace partita
