#include "frontend/onnx/export_weights.h"

#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/onnx/onnx_proto.h"
#include "ir/type/literal.h"

namespace partita {
namespace {

constexpr int64_t kAlignment = 64;

void point_to(onnx::TensorProto& tensor, const std::string& location, int64_t offset, int64_t bytes) {
  tensor.clear_raw_data();
  tensor.clear_float_data();
  tensor.clear_int32_data();
  tensor.clear_int64_data();
  tensor.clear_double_data();
  tensor.clear_uint64_data();
  tensor.clear_external_data();
  tensor.set_data_location(onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] :
       {std::pair<std::string, std::string>{"location", location}, {"offset", cat(offset)}, {"length", cat(bytes)}}) {
    auto* entry = tensor.add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  }
}

}  // namespace

absl::StatusOr<int64_t> write_onnx_with_weights(const std::string& model, const std::string& output,
                                                const WeightValues& values) {
  PARTITA_ASSIGN_OR_RETURN(OnnxModel plain, load_onnx_model(model));  // checks the file
  PARTITA_ASSIGN_OR_RETURN(onnx::ModelProto proto, read_model_proto(model));
  const std::string location = std::filesystem::path(output).filename().string() + ".weights";
  const std::string weights = output + ".weights";
  PARTITA_ASSIGN_OR_RETURN(AtomicFile data, AtomicFile::create(weights));
  int64_t at = 0, replaced = 0;
  for (int k = 0; k < proto.graph().initializer_size(); ++k) {
    onnx::TensorProto& tensor = *proto.mutable_graph()->mutable_initializer(k);
    const OnnxTensor& known = plain.graph.initializers[static_cast<size_t>(k)];
    PARTITA_CHECK(known.name == tensor.name(), "initializers are read in their order");
    if (known.type.dtype == DType::kInvalid) continue;
    PARTITA_ASSIGN_OR_RETURN(std::optional<std::vector<std::byte>> fresh, values(known.name, known.type));
    std::span<const std::byte> bytes;
    if (fresh) {
      bytes = *fresh;
      ++replaced;
    } else if (tensor.data_location() != onnx::TensorProto::EXTERNAL) {
      continue;
    } else if (known.literal) {
      bytes = known.literal->bytes();
    } else {
      return absl::NotFoundError(cat(quote(model, 1000), ": the values of ", quote(known.name), " are not there"));
    }
    PARTITA_RETURN_IF_ERROR(data.write_at(at, bytes));
    point_to(tensor, location, at, static_cast<int64_t>(bytes.size()));
    at = (at + static_cast<int64_t>(bytes.size()) + kAlignment - 1) / kAlignment * kAlignment;
  }
  std::string text;
  if (!proto.SerializeToString(&text))
    return absl::InvalidArgumentError(cat(quote(model, 1000), ": cannot be written again"));
  PARTITA_RETURN_IF_ERROR(data.commit());
  PARTITA_RETURN_IF_ERROR(write_file_atomically(output, text));
  return replaced;
}

}  // namespace partita
