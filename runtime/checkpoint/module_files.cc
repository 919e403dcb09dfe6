#include "runtime/checkpoint/module_files.h"

#include <cstring>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/convert.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

using Memory = std::function<std::span<std::byte>(const Operand&)>;

absl::Status load_tensor(const ProgramState& s, std::span<const int64_t> coordinates, const SafetensorsFile& file,
                         const SafetensorsEntry& entry, std::span<std::byte> own) {
  PARTITA_ASSIGN_OR_RETURN(ConvertFunction convert, find_conversion(entry.dtype, s.operand.dtype));
  return for_each_piece(s.placement, coordinates, [&](const LogicalPiece& piece) -> absl::Status {
    const int64_t count = *element_count(piece.extent), to = dtype_size(s.operand.dtype);
    std::vector<std::byte> dense(static_cast<size_t>(count * dtype_size(entry.dtype))),
        converted(static_cast<size_t>(count * to));
    PARTITA_RETURN_IF_ERROR(file.read(entry.name, piece.offset, piece.extent, dense));
    if (convert(dense.data(), converted.data(), count) >= 0)
      return absl::InvalidArgumentError(cat(quote(file.path()), ": ", quote(entry.name), " holds a value that ",
                                            dtype_name(s.operand.dtype), " cannot"));
    unpack_piece(piece, to, converted.data(), own.data());
    return absl::OkStatus();
  });
}

// Takes what `wanted` names; `required` ones must be there. Frozen values are constants of the graph as often as
// buffers of the module, so they may be absent, or named alike with another shape.
class Loader {
 public:
  Loader(const SafetensorsFile& file, std::span<const int64_t> coordinates, const Memory& memory)
      : file_(file), coordinates_(coordinates), memory_(memory) {}

  absl::Status take(const ProgramState& s, bool required) {
    const std::string name = module_name(s.name, s.kind, s.parameter);
    const SafetensorsEntry* entry = file_.find(name);
    if (entry == nullptr) {
      if (required) missing_.push_back(name);
      return absl::OkStatus();
    }
    if (entry->shape != s.placement.logical || !is_float(entry->dtype)) {
      if (!required) return absl::OkStatus();
      const bool turned = entry->shape.size() == 2 && s.placement.logical.size() == 2 &&
                          entry->shape[0] == s.placement.logical[1] && entry->shape[1] == s.placement.logical[0];
      append(shapes_, shapes_.empty() ? "" : ", ", quote(name), " is ", entry->dtype_text, shape_text(entry->shape),
             " and not ", dtype_name(s.operand.dtype), shape_text(s.placement.logical),
             turned ? " (the exporter transposed it: export with optimize=False)" : "");
      return absl::OkStatus();
    }
    return load_tensor(s, coordinates_, file_, *entry, memory_(s.operand));
  }

  absl::Status outcome() const {
    if (missing_.empty() && shapes_.empty()) return absl::OkStatus();
    std::vector<std::string> known;
    for (const SafetensorsEntry& e : file_.entries()) known.push_back(e.name);
    return absl::InvalidArgumentError(
        cat(quote(file_.path()),
            " does not fit the model:", missing_.empty() ? "" : cat(" it lacks ", quote_list(missing_), ";"),
            shapes_.empty() ? "" : cat(" ", shapes_, ";"), " it has ", quote_list(known),
            ". Names are those of the ONNX initializers; `names` in train.yaml gives others"));
  }

 private:
  const SafetensorsFile& file_;
  std::span<const int64_t> coordinates_;
  const Memory& memory_;
  std::vector<std::string> missing_;
  std::string shapes_;
};

// A step counter from a scalar of any type, as PyTorch keeps it (f32).
absl::Status load_step(const ProgramState& s, const SafetensorsFile& file, const Memory& memory) {
  const SafetensorsEntry* entry = file.find("step");
  if (entry == nullptr || element_count(entry->shape) != 1) return absl::OkStatus();
  const std::byte* data = file.data(*entry).data();
  double value = 0;
  int64_t step = 0;
  if (is_float(entry->dtype)) {
    PARTITA_ASSIGN_OR_RETURN(ConvertFunction convert, find_conversion(entry->dtype, DType::kF64));
    convert(data, reinterpret_cast<std::byte*>(&value), 1);
    if (!(value >= 0 && value < 0x1p53)) return absl::InvalidArgumentError(cat(quote(file.path()), ": step ", value));
    step = static_cast<int64_t>(value);
  } else {
    PARTITA_ASSIGN_OR_RETURN(ConvertFunction convert, find_conversion(entry->dtype, DType::kI64));
    convert(data, reinterpret_cast<std::byte*>(&step), 1);
  }
  if (s.operand.dtype == DType::kI64) std::memcpy(memory(s.operand).data(), &step, sizeof step);
  return absl::OkStatus();
}

}  // namespace

std::string module_name(const std::string& state, StateKind kind, const std::string& parameter) {
  const std::string prefix = cat("optimizer/", parameter, "/");
  if (kind != StateKind::kOptimizer || !state.starts_with(prefix)) return state;
  return cat(parameter, ".", state.substr(prefix.size()));
}

absl::Status load_module(const Program& program, std::span<const int64_t> coordinates, const std::string& path,
                         const Memory& memory) {
  PARTITA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  Loader loader(file, coordinates, memory);
  for (const ProgramState& s : program.states) {
    if (s.kind == StateKind::kParameter || s.kind == StateKind::kFrozen || s.kind == StateKind::kRunning)
      PARTITA_RETURN_IF_ERROR(loader.take(s, s.kind == StateKind::kParameter));
  }
  return loader.outcome();
}

absl::Status load_module_optimizer(const Program& program, std::span<const int64_t> coordinates,
                                   const std::string& path, const Memory& memory) {
  PARTITA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  Loader loader(file, coordinates, memory);
  for (const ProgramState& s : program.states) {
    if (s.kind == StateKind::kOptimizer)
      PARTITA_RETURN_IF_ERROR(loader.take(s, !s.parameter.empty()));  // no loss scale needed
    if (s.kind == StateKind::kStep) PARTITA_RETURN_IF_ERROR(load_step(s, file, memory));
  }
  return loader.outcome();
}

}  // namespace partita::runtime
