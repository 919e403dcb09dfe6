#include "frontend/onnx/onnx_schema.h"

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/onnx/onnx_proto.h"
#include "onnx/defs/function.h"
#include "onnx/defs/schema.h"

namespace partita {
namespace {

const onnx::OpSchema* find_schema(const OnnxNode& node, int version) {
  return onnx::OpSchemaRegistry::Schema(node.op, version, node.domain);
}

onnx::AttributeProto::AttributeType type_of(const OnnxAttribute& a) {
  constexpr onnx::AttributeProto::AttributeType kTypes[] = {
      onnx::AttributeProto::UNDEFINED, onnx::AttributeProto::INT,    onnx::AttributeProto::FLOAT,
      onnx::AttributeProto::STRING,    onnx::AttributeProto::INTS,   onnx::AttributeProto::FLOATS,
      onnx::AttributeProto::STRINGS,   onnx::AttributeProto::TENSOR, onnx::AttributeProto::GRAPH};
  return kTypes[a.value.index()];
}

void put_tensor(const OnnxTensor& from, onnx::TensorProto* to) {
  to->set_data_type(from.element);
  for (int64_t d : from.type.shape) to->add_dims(d);
  if (from.literal) to->set_raw_data(from.literal->data, static_cast<size_t>(byte_size(from.type)));
}

// The node as protobuf, as far as a context-dependent body may look: attributes but graphs, and which inputs and
// outputs there are.
onnx::NodeProto proto_of(const OnnxNode& node) {
  onnx::NodeProto out;
  out.set_op_type(node.op);
  out.set_domain(node.domain);
  for (const std::string& name : node.inputs) out.add_input(name);
  for (const std::string& name : node.outputs) out.add_output(name);
  for (const OnnxAttribute& a : node.attributes) {
    onnx::AttributeProto* p = out.add_attribute();
    p->set_name(a.name);
    p->set_type(type_of(a));
    if (auto* i = std::get_if<int64_t>(&a.value)) p->set_i(*i);
    if (auto* f = std::get_if<float>(&a.value)) p->set_f(*f);
    if (auto* s = std::get_if<std::string>(&a.value)) p->set_s(*s);
    if (auto* v = std::get_if<std::vector<int64_t>>(&a.value)) p->mutable_ints()->Add(v->begin(), v->end());
    if (auto* v = std::get_if<std::vector<float>>(&a.value)) p->mutable_floats()->Add(v->begin(), v->end());
    if (auto* v = std::get_if<std::vector<std::string>>(&a.value)) p->mutable_strings()->Add(v->begin(), v->end());
    if (auto* t = std::get_if<std::shared_ptr<const OnnxTensor>>(&a.value)) put_tensor(**t, p->mutable_t());
  }
  return out;
}

absl::StatusOr<std::optional<OnnxFunction>> body_of(const onnx::OpSchema& schema, const OnnxNode& node, int version,
                                                    std::span<const TensorType> input_types) {
  onnx::FunctionProto proto;
  if (const onnx::FunctionProto* fixed = schema.HasFunction() ? schema.GetFunction(version) : nullptr) {
    proto = *fixed;
  } else if (schema.HasContextDependentFunction()) {
    std::vector<onnx::TypeProto> types(input_types.size());
    for (size_t k = 0; k < types.size(); ++k) {
      if (input_types[k].dtype == DType::kInvalid) continue;
      auto* t = types[k].mutable_tensor_type();
      t->set_elem_type(onnx_of_dtype(input_types[k].dtype));
      t->mutable_shape();
      for (int64_t d : input_types[k].shape) t->mutable_shape()->add_dim()->set_dim_value(d);
    }
    onnx::NodeProto use = proto_of(node);
    for (const auto& [name, attribute] : schema.attributes()) {
      if (!node.find(name) && attribute.default_value.type() != onnx::AttributeProto::UNDEFINED)
        *use.add_attribute() = attribute.default_value;
    }
    onnx::FunctionBodyBuildContextImpl context(use, types);
    if (!schema.BuildContextDependentFunction(context, proto, version)) return std::nullopt;
  } else {
    return std::nullopt;
  }
  for (const auto& [name, attribute] : schema.attributes()) {
    if (attribute.default_value.type() != onnx::AttributeProto::UNDEFINED)
      *proto.add_attribute_proto() = attribute.default_value;
  }
  PARTITA_ASSIGN_OR_RETURN(OnnxFunction function, plain_function(proto));
  function.domain = node.domain;
  for (OnnxAttribute& a : function.defaults) a.reference.clear();
  return function;
}

}  // namespace

int newest_opset(const std::string& domain) {
  const auto& map = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  auto at = map.find(domain);
  return at == map.end() ? 0 : at->second.second;
}

bool has_schema(const OnnxNode& node, int version) { return find_schema(node, version) != nullptr; }

absl::Status check_against_schema(const OnnxNode& node, int version) {
  const onnx::OpSchema* schema = find_schema(node, version);
  if (!schema) return absl::OkStatus();
  int inputs = static_cast<int>(node.inputs.size()), outputs = static_cast<int>(node.outputs.size());
  if (inputs < schema->min_input() || inputs > schema->max_input()) {
    return absl::InvalidArgumentError(
        cat("expected ", schema->min_input(), " to ", schema->max_input(), " inputs, found ", inputs));
  }
  if (outputs < schema->min_output() || outputs > schema->max_output()) {
    return absl::InvalidArgumentError(
        cat("expected ", schema->min_output(), " to ", schema->max_output(), " outputs, found ", outputs));
  }
  for (const OnnxAttribute& a : node.attributes) {
    auto known = schema->attributes().find(a.name);
    if (known == schema->attributes().end() || !a.reference.empty() || std::holds_alternative<OnnxOpaque>(a.value))
      continue;
    if (known->second.type != type_of(a)) {
      return absl::InvalidArgumentError(cat("attribute ", quote(a.name), ": expected ",
                                            onnx::AttributeProto::AttributeType_Name(known->second.type), ", found ",
                                            onnx::AttributeProto::AttributeType_Name(type_of(a))));
    }
  }
  for (const auto& [name, attribute] : schema->attributes()) {
    if (attribute.required && !node.find(name))
      return absl::InvalidArgumentError(cat("attribute ", quote(name), " is missing"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<OnnxFunction>> schema_function(const OnnxNode& node, int version,
                                                            std::span<const TensorType> input_types) {
  const onnx::OpSchema* schema = find_schema(node, version);
  if (!schema) return std::nullopt;
  try {  // the library reports faults of a body by throwing
    return body_of(*schema, node, version, input_types);
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(
        cat("the function body of ", quote(node.op), " cannot be built: ", quote(e.what())));
  }
}

}  // namespace partita
