#include "runtime/checkpoint/module_files.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "absl/functional/function_ref.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/convert.h"
#include "runtime/files/module_weights.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

using Memory = std::function<std::span<std::byte>(const Operand&)>;

constexpr int64_t kBlockBytes = 4 << 20;  // converted at a time

// Calls `visit` with boxes that tile a box of this extent, each of at most `most` elements and in one run where the box
// is: the last dimensions whole, as many as there is room for, and a range of the one before.
absl::Status for_each_block(
    std::span<const int64_t> extent, int64_t most,
    absl::FunctionRef<absl::Status(const std::vector<int64_t>&, const std::vector<int64_t>&)> visit) {
  const size_t rank = extent.size();
  if (*element_count(extent) == 0) return absl::OkStatus();
  size_t cut = rank;  // dimensions from here on are whole
  int64_t whole = 1;
  while (cut > 0 && whole * extent[cut - 1] <= most) whole *= extent[--cut];
  std::vector<int64_t> at(rank, 0), size(extent.begin(), extent.end());
  if (cut == 0) return visit(at, size);
  const size_t d = cut - 1;
  const int64_t step = std::max<int64_t>(1, most / whole);
  for (size_t k = 0; k < d; ++k) size[k] = 1;
  while (true) {
    for (at[d] = 0; at[d] < extent[d]; at[d] += step) {
      size[d] = std::min(step, extent[d] - at[d]);
      PARTITA_RETURN_IF_ERROR(visit(at, size));
    }
    size_t k = d;
    while (k > 0 && ++at[k - 1] == extent[k - 1]) at[--k] = 0;
    if (k == 0) return absl::OkStatus();
  }
}

absl::Status load_tensor(const ProgramState& s, std::span<const int64_t> coordinates, const ModuleWeights& weights,
                         const SafetensorsEntry& entry, std::span<std::byte> own) {
  PARTITA_ASSIGN_OR_RETURN(ConvertFunction convert, find_conversion(entry.dtype, s.operand.dtype));
  const int64_t from = dtype_size(entry.dtype), to = dtype_size(s.operand.dtype);
  std::vector<std::byte> dense, converted;
  return for_each_piece(s.placement, coordinates, [&](const LogicalPiece& piece) -> absl::Status {
    return for_each_block(
        piece.extent, kBlockBytes / std::max(from, to),
        [&](const std::vector<int64_t>& at, const std::vector<int64_t>& extent) -> absl::Status {
          LogicalPiece block = {piece.offset, extent, piece.packed_offset, piece.packed_stride};
          for (size_t d = 0; d < at.size(); ++d) {
            block.offset[d] += at[d];
            block.packed_offset += at[d] * piece.packed_stride[d];
          }
          const int64_t count = *element_count(extent);
          dense.resize(static_cast<size_t>(count * from));
          converted.resize(static_cast<size_t>(count * to));
          PARTITA_RETURN_IF_ERROR(weights.read(entry, block.offset, extent, dense));
          if (convert(dense.data(), converted.data(), count) >= 0)
            return absl::InvalidArgumentError(cat(quote(weights.path(), 1000), ": ", quote(entry.name),
                                                  " holds a value that ", dtype_name(s.operand.dtype), " cannot"));
          unpack_piece(block, to, converted.data(), own.data());
          return absl::OkStatus();
        });
  });
}

bool is_of_module(StateKind kind) {
  return kind == StateKind::kParameter || kind == StateKind::kFrozen || kind == StateKind::kRunning;
}

// What is on one side alone, and what was taken for a tied weight.
std::vector<std::string> notes_of(const std::vector<CheckpointTensor>& tensors, const ModuleWeights& weights,
                                  const ModulePlaces& places) {
  std::vector<std::string> notes, unused, own;
  for (size_t k = 0; k < places.sources.size(); ++k) {
    if (places.sources[k] == nullptr) unused.push_back(weights.entries()[k].name);
  }
  for (const CheckpointTensor& t : tensors) {
    if (is_of_module(t.kind) && std::count(places.sources.begin(), places.sources.end(), &t) == 0)
      own.push_back(t.name);
  }
  const std::string path = quote(weights.path(), 1000);
  if (!unused.empty())
    notes.push_back(cat(unused.size(), " of ", places.sources.size(), " tensors of ", path,
                        " are none of the model's: ", quote_list(unused)));
  if (!own.empty())
    notes.push_back(cat(own.size(), " values that are not trained are not in ", path,
                        " and stay as the model has them: ", quote_list(own)));
  for (const std::string& tie : places.tied)
    notes.push_back(cat("taken for a tied weight, the only ones of their shape: ", tie));
  return notes;
}

// A step counter from a scalar of any type, as PyTorch keeps it (f32).
absl::Status load_step(const ProgramState& s, const ModuleWeights& file, const Memory& memory) {
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

bool is_module_path(const std::string& path) { return path.ends_with(".safetensors") || is_module_folder(path); }

absl::StatusOr<std::vector<std::string>> load_module(const Program& program, std::span<const int64_t> coordinates,
                                                     const std::vector<CheckpointTensor>& tensors,
                                                     const ModuleSource& from, const Memory& memory) {
  PARTITA_ASSIGN_OR_RETURN(const ModuleWeights weights, ModuleWeights::open(from.path));
  const ModulePlaces places = place_in_module(tensors, weights, from.renaming, /*copies=*/false);
  PARTITA_RETURN_IF_ERROR(check_all_placed(tensors, weights, from.renaming, places));
  std::map<std::string_view, const ProgramState*> states;
  for (const ProgramState& s : program.states) {
    if (is_of_module(s.kind)) states[s.name] = &s;
  }
  // In the order of the files.
  for (size_t k = 0; k < places.sources.size(); ++k) {
    const auto at = places.sources[k] == nullptr ? states.end() : states.find(places.sources[k]->name);
    if (at == states.end()) continue;
    PARTITA_RETURN_IF_ERROR(
        load_tensor(*at->second, coordinates, weights, weights.entries()[k], memory(at->second->operand)));
  }
  return notes_of(tensors, weights, places);
}

absl::Status load_module_optimizer(const Program& program, std::span<const int64_t> coordinates,
                                   const ModuleSource& from, const Memory& memory) {
  PARTITA_ASSIGN_OR_RETURN(const ModuleWeights weights, ModuleWeights::open(from.path));
  std::vector<std::string> missing, known;
  std::string shapes;
  for (const ProgramState& s : program.states) {
    if (s.kind == StateKind::kStep) PARTITA_RETURN_IF_ERROR(load_step(s, weights, memory));
    if (s.kind != StateKind::kOptimizer) continue;
    const std::string name = from.renaming(module_name(s.name, s.kind, s.parameter));
    const SafetensorsEntry* entry = weights.find(name);
    const bool fits = entry != nullptr && entry->shape == s.placement.logical &&
                      (is_float(s.operand.dtype) ? is_float(entry->dtype) : entry->dtype == s.operand.dtype);
    if (fits) {
      PARTITA_RETURN_IF_ERROR(load_tensor(s, coordinates, weights, *entry, memory(s.operand)));
    } else if (!s.parameter.empty() && entry != nullptr) {  // no loss scale needed
      append(shapes, "; ", quote(name), " is ", entry->dtype_text, shape_text(entry->shape), " there and ",
             dtype_name(s.operand.dtype), shape_text(s.placement.logical), " here");
    } else if (!s.parameter.empty()) {
      missing.push_back(name);
    }
  }
  if (missing.empty() && shapes.empty()) return absl::OkStatus();
  for (const SafetensorsEntry& e : weights.entries()) known.push_back(e.name);
  return absl::InvalidArgumentError(cat(quote(from.path, 1000), " does not fit the optimizer",
                                        missing.empty() ? "" : cat(": it lacks ", quote_list(missing)), shapes,
                                        "; it has ", quote_list(known),
                                        ". Names begin with those of the ONNX initializers"));
}

}  // namespace partita::runtime
