#include "frontend/generate/graph_writer.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <map>
#include <span>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/math/philox.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "frontend/onnx/onnx_proto.h"

namespace partita {
namespace {

constexpr int64_t kMaxNodes = 1'000'000;  // what the importer reads
constexpr int64_t kMaxProduct = int64_t{1} << 60;
constexpr int kOpset = 18, kIrVersion = 10;

int onnx_element(Element e) {
  return e == Element::kFloat   ? onnx::TensorProto::FLOAT
         : e == Element::kInt64 ? onnx::TensorProto::INT64
                                : onnx::TensorProto::BOOL;
}

void describe(onnx::ValueInfoProto* info, const std::string& name, Element element, const std::vector<int64_t>& shape) {
  info->set_name(name);
  onnx::TypeProto::Tensor* type = info->mutable_type()->mutable_tensor_type();
  type->set_elem_type(onnx_element(element));
  type->mutable_shape();
  for (int64_t size : shape) {
    auto* dim = type->mutable_shape()->add_dim();
    if (size == kBatchSymbol || size == kSequenceSymbol) {
      dim->set_dim_param(size == kBatchSymbol ? "batch" : "sequence");
    } else {
      dim->set_dim_value(size);
    }
  }
}

void set_attribute(onnx::AttributeProto* a, const OnnxNodeAttribute& from) {
  a->set_name(from.name);
  if (const auto* i = std::get_if<int64_t>(&from.value)) {
    a->set_type(onnx::AttributeProto::INT);
    a->set_i(*i);
  } else if (const auto* f = std::get_if<float>(&from.value)) {
    a->set_type(onnx::AttributeProto::FLOAT);
    a->set_f(*f);
  } else if (const auto* s = std::get_if<std::string>(&from.value)) {
    a->set_type(onnx::AttributeProto::STRING);
    a->set_s(*s);
  } else {
    a->set_type(onnx::AttributeProto::INTS);
    for (int64_t v : std::get<std::vector<int64_t>>(from.value)) a->add_ints(v);
  }
}

}  // namespace

struct GraphWriter::Impl {
  struct Weight {
    int64_t elements;
    Fill fill;
  };
  onnx::ModelProto model;
  std::vector<Weight> weights;  // as the initializers
  std::map<std::string, std::string> constants;
  absl::Status status;
  int64_t parameters = 0, bytes = 0, next = 0;

  onnx::GraphProto* graph() { return model.mutable_graph(); }
  void fail(std::string message) {
    if (status.ok()) status = absl::InvalidArgumentError(std::move(message));
  }
  std::string add_weight(const std::string& name, const std::vector<int64_t>& shape, Fill fill, bool trained);
};

GraphWriter::GraphWriter(const std::string& graph_name) : impl_(std::make_unique<Impl>()) {
  impl_->model.set_ir_version(kIrVersion);
  impl_->model.set_producer_name("partita");
  impl_->model.add_opset_import()->set_version(kOpset);
  impl_->graph()->set_name(graph_name);
}
GraphWriter::GraphWriter(GraphWriter&&) noexcept = default;
GraphWriter& GraphWriter::operator=(GraphWriter&&) noexcept = default;
GraphWriter::~GraphWriter() = default;

const absl::Status& GraphWriter::status() const { return impl_->status; }
int64_t GraphWriter::parameters() const { return impl_->parameters; }
int64_t GraphWriter::weight_bytes() const { return impl_->bytes; }
int64_t GraphWriter::nodes() const { return impl_->model.graph().node_size(); }

std::string GraphWriter::input(const std::string& name, Element element, const std::vector<int64_t>& shape) {
  describe(impl_->graph()->add_input(), name, element, shape);
  return name;
}

void GraphWriter::output(const std::string& value, const std::vector<int64_t>& shape) {
  describe(impl_->graph()->add_output(), value, Element::kFloat, shape);
}

std::string GraphWriter::Impl::add_weight(const std::string& name, const std::vector<int64_t>& shape, Fill fill,
                                          bool trained) {
  if (!status.ok()) return name;
  int64_t elements = 1, end = 0;
  bool fits = true;
  for (int64_t size : shape) fits = fits && !__builtin_mul_overflow(elements, size, &elements);
  fits = fits && elements <= kMaxProduct && !__builtin_add_overflow(bytes, 4 * elements, &end);
  if (!fits) {
    fail(cat("weight ", quote(name), ": the sizes are too large, the model's weights pass 2^63 bytes"));
    return name;
  }
  onnx::TensorProto* t = graph()->add_initializer();
  t->set_name(name);
  t->set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t size : shape) t->add_dims(size);
  t->set_data_location(onnx::TensorProto::EXTERNAL);
  auto entry = [&](const char* key, std::string value) {
    auto* e = t->add_external_data();
    e->set_key(key);
    e->set_value(std::move(value));
  };
  entry("location", "");  // known when the file is written
  entry("offset", cat(bytes));
  entry("length", cat(4 * elements));
  weights.push_back({elements, fill});
  bytes = end;
  if (trained) parameters += elements;
  return name;
}

std::string GraphWriter::weight(const std::string& name, const std::vector<int64_t>& shape, Fill fill) {
  return impl_->add_weight(name, shape, fill, true);
}
std::string GraphWriter::statistic(const std::string& name, const std::vector<int64_t>& shape, Fill fill) {
  return impl_->add_weight(name, shape, fill, false);
}

std::string GraphWriter::add_node(const std::string& op, const std::vector<std::string>& inputs,
                                  const std::vector<OnnxNodeAttribute>& attributes, const std::string& output) {
  std::string name = add_nodes(op, inputs, 1, attributes)[0];
  if (output.empty() || !impl_->status.ok()) return name;
  impl_->graph()->mutable_node()->rbegin()->set_output(0, output);
  return output;
}

std::vector<std::string> GraphWriter::add_nodes(const std::string& op, const std::vector<std::string>& inputs,
                                                int outputs, const std::vector<OnnxNodeAttribute>& attributes) {
  if (impl_->status.ok() && nodes() >= kMaxNodes)
    impl_->fail(cat("the model has more than ", kMaxNodes, " nodes: ask for fewer layers"));
  std::vector<std::string> names(outputs);
  if (!impl_->status.ok()) return names;
  std::string stem;
  for (char c : op) stem += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  onnx::NodeProto* node = impl_->graph()->add_node();
  node->set_op_type(op);
  for (const std::string& in : inputs) node->add_input(in);
  for (std::string& name : names) node->add_output(name = cat(stem, "_", impl_->next++));
  node->set_name(cat("node_", names[0]));
  for (const OnnxNodeAttribute& a : attributes) set_attribute(node->add_attribute(), a);
  return names;
}

std::string GraphWriter::constant(std::string key, const std::vector<int64_t>* ints, const std::vector<float>* floats,
                                  bool scalar) {
  auto [at, fresh] = impl_->constants.try_emplace(std::move(key));
  if (!fresh) return at->second;
  at->second = add_node("Constant", {});
  if (!impl_->status.ok()) return at->second;
  onnx::AttributeProto* a = impl_->graph()->mutable_node()->rbegin()->add_attribute();
  a->set_name("value");
  a->set_type(onnx::AttributeProto::TENSOR);
  onnx::TensorProto* t = a->mutable_t();
  t->set_data_type(ints ? onnx::TensorProto::INT64 : onnx::TensorProto::FLOAT);
  if (!scalar) t->add_dims(static_cast<int64_t>(ints ? ints->size() : floats->size()));
  if (ints) {
    for (int64_t v : *ints) t->add_int64_data(v);
  } else {
    for (float v : *floats) t->add_float_data(v);
  }
  return at->second;
}

std::string GraphWriter::ints(const std::vector<int64_t>& values) {
  return constant(cat("i[", fmt::format("{}", fmt::join(values, ",")), "]"), &values, nullptr, false);
}

std::string GraphWriter::integer(int64_t value) {
  std::vector<int64_t> one = {value};
  return constant(cat("i", value), &one, nullptr, true);
}

std::string GraphWriter::number(float value) {
  std::vector<float> one = {value};
  return constant(cat("f", std::bit_cast<uint32_t>(value)), nullptr, &one, true);
}

std::string GraphWriter::numbers(const std::vector<float>& values) {
  std::string key = "f[";
  for (float v : values) append(key, std::bit_cast<uint32_t>(v), ",");
  return constant(std::move(key), nullptr, &values, false);
}

std::string GraphWriter::cast(const std::string& x, Element to) {
  return add_node("Cast", {x}, {{"to", int64_t{onnx_element(to)}}});
}

namespace {

// Box-Muller over Philox: value k of weight n comes from counter k / 4.
void fill_values(std::vector<float>& values, int64_t first, uint64_t weight, const Fill& fill, uint64_t seed) {
  if (fill.kind != Fill::Kind::kNormal) {
    std::fill(values.begin(), values.end(), fill.kind == Fill::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  constexpr double kScale = 1.0 / 4294967296.0, kTau = 6.283185307179586;
  for (size_t k = 0; k < values.size(); k += 4) {
    std::array<uint32_t, 4> u = philox((static_cast<uint64_t>(first) + k) / 4, weight, seed);
    float z[4];
    for (int pair = 0; pair < 4; pair += 2) {
      double radius = fill.deviation * std::sqrt(-2 * std::log((u[pair] + 0.5) * kScale)),
             angle = kTau * (u[pair + 1] * kScale);
      z[pair] = static_cast<float>(radius * std::cos(angle));
      z[pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
    for (size_t j = 0; j < 4 && k + j < values.size(); ++j) values[k + j] = z[j];
  }
}

}  // namespace

absl::Status write_generated(GraphWriter& graph, const std::string& path, std::optional<int64_t> seed) {
  PARTITA_RETURN_IF_ERROR(graph.status());
  GraphWriter::Impl& impl = *graph.impl_;
  std::string file = std::filesystem::path(path).filename().string(), location = file + ".weights",
              weights_path = path + ".weights";
  if (file.empty() || !is_utf8(file) || file.find('\\') != std::string::npos)
    return absl::InvalidArgumentError(
        cat("cannot write a model to ", quote(path), ": expected a file name without backslashes, in UTF-8"));
  std::error_code ec;
  if (!seed && std::filesystem::exists(weights_path, ec)) {
    return absl::FailedPreconditionError(cat(
        quote(weights_path),
        " exists and would be taken for this model's weights: delete it, add --with-weights, or choose another name"));
  }
  if (seed) {
    PARTITA_ASSIGN_OR_RETURN(AtomicFile out, AtomicFile::create(weights_path));
    PARTITA_RETURN_IF_ERROR(out.reserve(impl.bytes));
    constexpr int64_t kChunk = 1 << 20;  // a multiple of 4, the values of one counter
    std::vector<float> values;
    for (size_t w = 0; w < impl.weights.size(); ++w) {
      for (int64_t first = 0; first < impl.weights[w].elements; first += kChunk) {
        values.resize(static_cast<size_t>(std::min(kChunk, impl.weights[w].elements - first)));
        fill_values(values, first, w, impl.weights[w].fill, static_cast<uint64_t>(*seed));
        PARTITA_RETURN_IF_ERROR(out.append(std::as_bytes(std::span<const float>(values))));
      }
    }
    PARTITA_RETURN_IF_ERROR(out.commit());
  }
  for (onnx::TensorProto& t : *impl.graph()->mutable_initializer()) t.mutable_external_data(0)->set_value(location);
  std::string bytes;
  if (!impl.model.SerializeToString(&bytes))
    return absl::InvalidArgumentError("the model's graph passes 2 GiB, the limit of ONNX files: ask for fewer layers");
  return write_file_atomically(path, bytes);
}

absl::Status check_sizes(const std::vector<SizeFlag>& sizes) {
  for (const SizeFlag& s : sizes) {
    if (s.value < 1 || s.value > s.limit)
      return absl::InvalidArgumentError(cat(s.flag, ": expected an integer from 1 to ", s.limit, ", found ", s.value));
  }
  return absl::OkStatus();
}

absl::Status check_divides(const char* part_flag, int64_t part, const char* whole_flag, int64_t whole) {
  if (whole % part == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(cat(part_flag, " ", part, " does not divide ", whole_flag, " ", whole));
}

absl::Status check_product(const char* what, const std::vector<int64_t>& factors) {
  int64_t product = 1;
  std::vector<int64_t> known;
  for (int64_t f : factors) {
    if (f != kBatchSymbol) known.push_back(f);
  }
  for (int64_t f : known) {
    if (__builtin_mul_overflow(product, f, &product) || product > kMaxProduct) {
      return absl::InvalidArgumentError(
          cat(what, " (", fmt::format("{}", fmt::join(known, " x ")), " elements) is too large: choose smaller sizes"));
    }
  }
  return absl::OkStatus();
}

}  // namespace partita
