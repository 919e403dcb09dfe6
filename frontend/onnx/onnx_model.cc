#include "frontend/onnx/onnx_model.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/onnx/external_data.h"
#include "frontend/onnx/onnx_proto.h"
#include "frontend/onnx/onnx_schema.h"
#include "frontend/onnx/torch_marks.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace partita {
namespace {

std::string normal_domain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

// Bytes of a numeric field whose elements are wider than (or as wide as) the tensor's.
template <typename To, typename Field>
std::vector<std::byte> narrow(const Field& field) {
  std::vector<std::byte> bytes(static_cast<size_t>(field.size()) * sizeof(To));
  for (int k = 0; k < field.size(); ++k) {
    To value = static_cast<To>(field.Get(k));
    std::memcpy(bytes.data() + static_cast<size_t>(k) * sizeof(To), &value, sizeof value);
  }
  return bytes;
}

std::vector<std::byte> typed_bytes(const onnx::TensorProto& t, DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return narrow<uint8_t>(t.int32_data());
    case DType::kI8:
      return narrow<int8_t>(t.int32_data());
    case DType::kI16:
      return narrow<int16_t>(t.int32_data());
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return narrow<uint16_t>(t.int32_data());
    case DType::kI32:
      return narrow<int32_t>(t.int32_data());
    case DType::kI64:
      return narrow<int64_t>(t.int64_data());
    case DType::kU32:
      return narrow<uint32_t>(t.uint64_data());
    case DType::kU64:
      return narrow<uint64_t>(t.uint64_data());
    case DType::kF32:
      return narrow<float>(t.float_data());
    case DType::kF64:
      return narrow<double>(t.double_data());
    case DType::kInvalid:
      break;
  }
  return {};
}

absl::StatusOr<int64_t> external_number(const std::string& text, std::string_view what) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    return absl::InvalidArgumentError(cat("external data ", what, " ", quote(text), " is not a 64-bit whole number"));
  }
  if (value < 0) return absl::InvalidArgumentError(cat("external data ", what, " ", value, " is negative"));
  return value;
}

// Files of the first IR versions do not state an attribute's type: it is the field that is there.
onnx::AttributeProto::AttributeType type_of(const onnx::AttributeProto& a) {
  if (a.type() != onnx::AttributeProto::UNDEFINED) return a.type();
  if (a.has_f()) return onnx::AttributeProto::FLOAT;
  if (a.has_i()) return onnx::AttributeProto::INT;
  if (a.has_s()) return onnx::AttributeProto::STRING;
  if (a.has_t()) return onnx::AttributeProto::TENSOR;
  if (a.has_g()) return onnx::AttributeProto::GRAPH;
  if (a.floats_size() > 0) return onnx::AttributeProto::FLOATS;
  if (a.ints_size() > 0) return onnx::AttributeProto::INTS;
  return onnx::AttributeProto::UNDEFINED;
}

// Turns protobuf messages into the plain structs; knows the folder for external data.
class Reader {
 public:
  explicit Reader(std::string folder) : external_(std::move(folder)) {}

  absl::StatusOr<OnnxTensor> tensor(onnx::TensorProto& t) {
    OnnxTensor out;
    out.name = t.name();
    out.element = t.data_type();
    out.type.dtype = dtype_of_onnx(out.element);
    out.type.shape.assign(t.dims().begin(), t.dims().end());
    absl::Status status = tensor_data(t, out);
    if (!status.ok()) return with_context(status, cat("tensor ", quote(out.name)));
    return out;
  }

  absl::StatusOr<OnnxGraph> graph(onnx::GraphProto& g, int depth = 0) {
    if (depth > kMaxDepth) return absl::InvalidArgumentError(cat("graphs are nested more than ", kMaxDepth, " deep"));
    OnnxGraph out;
    out.name = g.name();
    if (g.sparse_initializer_size() > 0) {
      return absl::InvalidArgumentError("sparse initializers are not supported: store them as dense tensors");
    }
    out.initializers.reserve(static_cast<size_t>(g.initializer_size()));
    const TorchMarks marks(g);
    for (onnx::TensorProto& t : *g.mutable_initializer()) {
      PARTITA_ASSIGN_OR_RETURN(OnnxTensor one, tensor(t));
      marks.mark(one);
      out.initializers.push_back(std::move(one));
    }
    PARTITA_ASSIGN_OR_RETURN(out.nodes, nodes(*g.mutable_node(), depth));
    for (const onnx::ValueInfoProto& v : g.input()) out.inputs.push_back(value_info(v));
    for (const onnx::ValueInfoProto& v : g.output()) out.outputs.push_back(value_info(v));
    return out;
  }

  absl::StatusOr<OnnxFunction> function(onnx::FunctionProto& f) {
    OnnxFunction out;
    out.name = f.name();
    out.domain = normal_domain(f.domain());
    out.overload = f.overload();
    out.inputs.assign(f.input().begin(), f.input().end());
    out.outputs.assign(f.output().begin(), f.output().end());
    for (const onnx::OperatorSetIdProto& o : f.opset_import())
      out.opsets[normal_domain(o.domain())] = static_cast<int>(o.version());
    for (onnx::AttributeProto& a : *f.mutable_attribute_proto()) {
      PARTITA_ASSIGN_OR_RETURN(OnnxAttribute one, attribute(a, 0));
      out.defaults.push_back(std::move(one));
    }
    PARTITA_ASSIGN_OR_RETURN(out.nodes, nodes(*f.mutable_node(), 0));
    return out;
  }

 private:
  static constexpr int kMaxDepth = 32;

  absl::Status tensor_data(onnx::TensorProto& t, OnnxTensor& out) {
    for (int64_t d : out.type.shape) {
      if (d < 0) return absl::InvalidArgumentError(cat("dimension ", d, " is negative"));
    }
    auto count = checked_elements(out.type.shape);
    if (!count || *count > std::numeric_limits<int64_t>::max() / 8) {
      return absl::InvalidArgumentError(cat("the number of elements of ", to_string(out.type.shape), " overflows"));
    }
    if (t.has_segment()) return absl::InvalidArgumentError("segmented tensors are not supported");
    if (out.type.dtype == DType::kInvalid) return absl::OkStatus();
    int64_t bytes = byte_size(out.type);
    if (t.data_location() == onnx::TensorProto::EXTERNAL) return external_data(t, out);
    if (t.has_raw_data()) {
      if (static_cast<int64_t>(t.raw_data().size()) != bytes) {
        return absl::InvalidArgumentError(
            cat(to_string(out.type), " takes ", bytes, " bytes, found ", t.raw_data().size()));
      }
      std::shared_ptr<const std::string> owner(t.release_raw_data());
      const auto* data = reinterpret_cast<const std::byte*>(owner->data());
      out.literal = Literal{out.type, std::move(owner), data};
      return absl::OkStatus();
    }
    std::vector<std::byte> values = typed_bytes(t, out.type.dtype);
    if (static_cast<int64_t>(values.size()) != bytes) {
      return absl::InvalidArgumentError(cat(to_string(out.type), " has ", *count, " elements, found ",
                                            values.size() / static_cast<size_t>(dtype_size(out.type.dtype))));
    }
    out.literal = make_literal(out.type, std::move(values));
    return absl::OkStatus();
  }

  absl::Status external_data(const onnx::TensorProto& t, OnnxTensor& out) {
    std::string location;
    int64_t offset = 0, length = -1;
    for (const onnx::StringStringEntryProto& entry : t.external_data()) {
      if (entry.key() == "location") location = entry.value();
      if (entry.key() == "offset") {
        PARTITA_ASSIGN_OR_RETURN(offset, external_number(entry.value(), "offset"));
      }
      if (entry.key() == "length") {
        PARTITA_ASSIGN_OR_RETURN(length, external_number(entry.value(), "length"));
      }
    }
    PARTITA_ASSIGN_OR_RETURN(auto found, external_.read(out.type, location, offset, length));
    if (auto* literal = std::get_if<Literal>(&found)) {
      out.literal = std::move(*literal);
    } else {
      out.file = std::get<FileRange>(std::move(found));
    }
    return absl::OkStatus();
  }

  template <typename Field>
  absl::StatusOr<std::vector<OnnxNode>> nodes(Field& field, int depth) {
    std::vector<OnnxNode> out;
    out.reserve(static_cast<size_t>(field.size()));
    for (onnx::NodeProto& n : field) {
      OnnxNode& node = out.emplace_back();
      node.op = n.op_type();
      node.domain = normal_domain(n.domain());
      node.overload = n.overload();
      node.name = n.name();
      node.folded_norm = has_folded_norm(n);
      node.inputs.assign(n.input().begin(), n.input().end());
      node.outputs.assign(n.output().begin(), n.output().end());
      node.attributes.reserve(static_cast<size_t>(n.attribute_size()));
      for (onnx::AttributeProto& a : *n.mutable_attribute()) {
        auto one = attribute(a, depth);
        if (!one.ok())
          return with_context(one.status(),
                              cat("attribute ", quote(a.name()), " of ", quote(n.op_type()), " ", quote(n.name())));
        node.attributes.push_back(*std::move(one));
      }
    }
    return out;
  }

  absl::StatusOr<OnnxAttribute> attribute(onnx::AttributeProto& a, int depth) {
    OnnxAttribute out;
    out.name = a.name();
    out.reference = a.ref_attr_name();
    switch (type_of(a)) {
      case onnx::AttributeProto::FLOAT:
        out.value = a.f();
        break;
      case onnx::AttributeProto::INT:
        out.value = int64_t{a.i()};
        break;
      case onnx::AttributeProto::STRING:
        out.value = a.s();
        break;
      case onnx::AttributeProto::FLOATS:
        out.value = std::vector<float>(a.floats().begin(), a.floats().end());
        break;
      case onnx::AttributeProto::INTS:
        out.value = std::vector<int64_t>(a.ints().begin(), a.ints().end());
        break;
      case onnx::AttributeProto::STRINGS:
        out.value = std::vector<std::string>(a.strings().begin(), a.strings().end());
        break;
      case onnx::AttributeProto::TENSOR: {
        PARTITA_ASSIGN_OR_RETURN(OnnxTensor t, tensor(*a.mutable_t()));
        out.value = std::make_shared<const OnnxTensor>(std::move(t));
        break;
      }
      case onnx::AttributeProto::GRAPH: {
        PARTITA_ASSIGN_OR_RETURN(OnnxGraph g, graph(*a.mutable_g(), depth + 1));
        out.value = std::make_shared<const OnnxGraph>(std::move(g));
        break;
      }
      default:
        break;
    }
    return out;
  }

  static OnnxValueInfo value_info(const onnx::ValueInfoProto& v) {
    OnnxValueInfo out;
    out.name = v.name();
    if (!v.has_type() || v.type().value_case() == onnx::TypeProto::VALUE_NOT_SET) return out;
    out.kind = v.type().has_tensor_type() ? OnnxValueInfo::Kind::kTensor : OnnxValueInfo::Kind::kOther;
    if (!v.type().has_tensor_type()) return out;
    const onnx::TypeProto::Tensor& t = v.type().tensor_type();
    out.element = t.elem_type();
    out.dtype = dtype_of_onnx(out.element);
    if (!t.has_shape()) return out;
    out.shape.emplace();
    for (const auto& d : t.shape().dim()) out.shape->push_back({d.has_dim_value() ? d.dim_value() : -1, d.dim_param()});
    return out;
  }

  ExternalData external_;
};

std::string folder_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

bool looks_like_text(std::string_view bytes) {
  std::string_view head = bytes.substr(0, 256);
  return !head.empty() && std::all_of(head.begin(), head.end(), [](char c) {
    return (c >= 32 && c < 127) || c == '\n' || c == '\r' || c == '\t';
  });
}

template <typename Message>
bool parse(std::string_view bytes, Message& message) {
  google::protobuf::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedInputStream coded(&stream);
  coded.SetTotalBytesLimit(std::numeric_limits<int>::max());
  coded.SetRecursionLimit(100);
  return message.ParseFromCodedStream(&coded) && coded.ConsumedEntireMessage();
}

absl::Status check_versions(const onnx::ModelProto& proto, const OnnxModel& model) {
  if (!proto.has_ir_version() || !proto.has_graph()) {
    return absl::InvalidArgumentError("this is not an ONNX model: it has no IR version or no graph");
  }
  if (model.ir_version < 3 || model.ir_version > kNewestIrVersion) {
    return absl::InvalidArgumentError(cat("IR version ", model.ir_version, " is not supported (3 to ", kNewestIrVersion,
                                          " are): export again for a version in this range"));
  }
  if (model.opsets.empty()) return absl::InvalidArgumentError("the model imports no operator set");
  for (const auto& [domain, version] : model.opsets) {
    int newest = newest_opset(domain);
    if (version < 1)
      return absl::InvalidArgumentError(
          cat("version ", version, " of operator set ", quote(domain.empty() ? "ai.onnx" : domain), " does not exist"));
    if (newest > 0 && version > newest) {
      return absl::InvalidArgumentError(cat("version ", version, " of operator set ",
                                            quote(domain.empty() ? "ai.onnx" : domain),
                                            " is newer than the newest known, ", newest));
    }
    if (domain.empty() && version < kOldestOpset) {
      return absl::InvalidArgumentError(cat("opset ", version, " is older than the oldest supported, ", kOldestOpset,
                                            ": convert the model with onnx.version_converter"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OnnxModel> read_model(std::string_view bytes, const std::string& path) {
  if (bytes.empty()) return absl::InvalidArgumentError("the file is empty");
  if (bytes.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
    return absl::InvalidArgumentError(
        "the file is larger than 2 GiB, which protobuf cannot hold: save the weights as external data");
  }
  onnx::ModelProto proto;
  if (!parse(bytes, proto)) {
    return absl::InvalidArgumentError(looks_like_text(bytes)
                                          ? "this is a text file, not an ONNX model"
                                          : "this is not an ONNX model, or it is damaged or cut short");
  }
  OnnxModel model;
  model.path = path;
  model.ir_version = proto.ir_version();
  model.producer = proto.producer_name();
  model.producer_version = proto.producer_version();
  for (const onnx::OperatorSetIdProto& o : proto.opset_import()) {
    int64_t version = std::clamp<int64_t>(o.version(), -1, std::numeric_limits<int>::max());
    model.opsets[normal_domain(o.domain())] = static_cast<int>(version);
  }
  PARTITA_RETURN_IF_ERROR(check_versions(proto, model));
  Reader reader(folder_of(path));
  PARTITA_ASSIGN_OR_RETURN(model.graph, reader.graph(*proto.mutable_graph()));
  for (onnx::FunctionProto& f : *proto.mutable_functions()) {
    auto function = reader.function(f);
    if (!function.ok()) return with_context(function.status(), cat("function ", quote(f.name())));
    model.functions.push_back(*std::move(function));
  }
  for (onnx::TrainingInfoProto& t : *proto.mutable_training_info()) {
    OnnxTrainingInfo info;
    if (t.has_initialization()) {
      PARTITA_ASSIGN_OR_RETURN(info.initialization, reader.graph(*t.mutable_initialization()));
    }
    if (t.has_algorithm()) {
      PARTITA_ASSIGN_OR_RETURN(info.algorithm, reader.graph(*t.mutable_algorithm()));
    }
    for (const auto& e : t.initialization_binding()) info.initialization_binding.emplace_back(e.key(), e.value());
    for (const auto& e : t.update_binding()) info.update_binding.emplace_back(e.key(), e.value());
    model.training.push_back(std::move(info));
  }
  return model;
}

}  // namespace

absl::StatusOr<OnnxModel> parse_onnx_model(std::string_view bytes, const std::string& path) {
  auto model = read_model(bytes, path);
  if (!model.ok()) return with_context(model.status(), quote(path));
  return model;
}

absl::StatusOr<OnnxModel> load_onnx_model(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  return parse_onnx_model(file.text(), path);
}

absl::StatusOr<onnx::ModelProto> read_model_proto(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  onnx::ModelProto proto;
  if (file.size() > std::numeric_limits<int>::max() || !parse(file.text(), proto))
    return absl::InvalidArgumentError(cat(quote(path, 1000), ": expected an ONNX model"));
  return proto;
}

absl::StatusOr<OnnxTensor> parse_onnx_tensor(std::string_view bytes, const std::string& path) {
  onnx::TensorProto proto;
  if (!parse(bytes, proto))
    return absl::InvalidArgumentError(cat(quote(path), ": this is not an ONNX tensor, or it is damaged"));
  Reader reader(folder_of(path));
  auto tensor = reader.tensor(proto);
  if (!tensor.ok()) return with_context(tensor.status(), quote(path));
  return tensor;
}

absl::StatusOr<OnnxFunction> plain_function(onnx::FunctionProto& proto) { return Reader(".").function(proto); }

}  // namespace partita
