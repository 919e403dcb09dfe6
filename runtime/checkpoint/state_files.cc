#include "runtime/checkpoint/state_files.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <optional>

#include "base/box.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/float16.h"
#include "base/math/philox.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/checkpoint/tensor_owners.h"
#include "runtime/communicate/work_together.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

void store(DType dtype, std::byte* to, double value) {
  auto put = [&](auto v) { std::memcpy(to, &v, sizeof v); };
  switch (dtype) {
    case DType::kF64:
      return put(value);
    case DType::kF32:
      return put(static_cast<float>(value));
    case DType::kF16:
      return put(float_to_f16(static_cast<float>(value)));
    case DType::kBF16:
      return put(float_to_bf16(static_cast<float>(value)));
    default: {
      int64_t i = static_cast<int64_t>(value);
      std::memcpy(to, &i, static_cast<size_t>(dtype_size(dtype)));
    }
  }
}

// Uniform in [0, 1), from the top 53 bits of two words.
double unit(uint32_t high, uint32_t low) {
  return static_cast<double>((static_cast<uint64_t>(high) << 21) | (low >> 11)) * 0x1p-53;
}

double draw(const InitialValue& initial, uint64_t key, int64_t index) {
  if (initial.kind == InitialKind::kFill) return initial.a;
  auto w = philox(static_cast<uint64_t>(index), 0, key);
  double u = unit(w[0], w[1]), v = unit(w[2], w[3]);
  if (initial.kind == InitialKind::kUniform) return initial.a + (initial.b - initial.a) * u;
  return initial.a + initial.b * std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v);  // Box and Muller
}

// Draws a piece's elements by their number in the whole tensor.
void draw_piece(const ProgramState& s, const LogicalPiece& piece, uint64_t key, int threads, std::byte* own) {
  constexpr int64_t kChunk = 1 << 14;
  const auto& shape = s.placement.logical;
  const int64_t size = dtype_size(s.operand.dtype), n = *element_count(piece.extent),
                chunks = (n + kChunk - 1) / kChunk;
#pragma omp parallel for schedule(static) num_threads(threads) if (chunks > 1)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    std::vector<int64_t> index(shape.size(), 0);
    int64_t first = chunk * kChunk, last = std::min(n, first + kChunk), rest = first;
    for (size_t d = shape.size(); d-- > 0; rest /= piece.extent[d]) index[d] = rest % piece.extent[d];
    for (int64_t k = first; k < last; ++k) {
      int64_t global = 0, packed = piece.packed_offset;
      for (size_t d = 0; d < shape.size(); ++d) {
        global = global * shape[d] + piece.offset[d] + index[d];
        packed += index[d] * piece.packed_stride[d];
      }
      store(s.operand.dtype, own + packed * size, draw(s.initial, key, global));
      for (size_t d = shape.size(); d-- > 0 && ++index[d] == piece.extent[d];) index[d] = 0;
    }
  }
}

void fill(std::span<std::byte> own, DType type, double value, int threads) {
  constexpr size_t kChunk = 1 << 20;
  const auto size = static_cast<size_t>(dtype_size(type));
  std::vector<std::byte> pattern(std::min(own.size(), kChunk));
  for (size_t at = 0; at < pattern.size(); at += size) store(type, pattern.data() + at, value);
  const auto chunks = static_cast<int64_t>((own.size() + kChunk - 1) / kChunk);
#pragma omp parallel for schedule(static) num_threads(threads) if (chunks > 1)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const size_t at = static_cast<size_t>(chunk) * kChunk;
    std::memcpy(own.data() + at, pattern.data(), std::min(kChunk, own.size() - at));
  }
}

absl::Status check_entry(const ProgramState& s, const SafetensorsFile& file) {
  PARTITA_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, file.get(s.name));
  if (entry->shape != s.placement.logical || entry->dtype != s.operand.dtype) {
    return absl::InvalidArgumentError(cat(quote(file.path()), ": tensor ", quote(s.name), ": expected ",
                                          dtype_name(s.operand.dtype), shape_text(s.placement.logical), ", found ",
                                          entry->dtype_text, shape_text(entry->shape)));
  }
  return absl::OkStatus();
}

}  // namespace

namespace {

// What this rank reads of the file.
std::vector<SafetensorsFile::Box> boxes_to_read(const Program& program, std::span<const int64_t> coordinates) {
  std::vector<SafetensorsFile::Box> boxes;
  for (const ProgramState& s : program.states) {
    if (s.initial.kind != InitialKind::kFile) continue;
    (void)for_each_piece(s.placement, coordinates, [&](const LogicalPiece& piece) {
      boxes.push_back({s.name, piece.offset, piece.extent});
      return absl::OkStatus();
    });
  }
  return boxes;
}

absl::Status read_state(const ProgramState& s, std::span<const int64_t> coordinates, const SafetensorsFile& file,
                        std::byte* own) {
  PARTITA_RETURN_IF_ERROR(check_entry(s, file));
  const int64_t size = dtype_size(s.operand.dtype);
  return for_each_piece(s.placement, coordinates, [&](const LogicalPiece& piece) -> absl::Status {
    const auto bytes = static_cast<size_t>(*element_count(piece.extent) * size);
    if (is_dense(piece))
      return file.read(s.name, piece.offset, piece.extent, {own + piece.packed_offset * size, bytes});
    std::vector<std::byte> dense(bytes);
    PARTITA_RETURN_IF_ERROR(file.read(s.name, piece.offset, piece.extent, dense));
    unpack_piece(piece, size, dense.data(), own);
    return absl::OkStatus();
  });
}

}  // namespace

std::unique_ptr<CheckAhead> check_first_values(const Program& program, std::span<const int64_t> coordinates,
                                               const FirstValues& first) {
  if (first.file == nullptr) return nullptr;
  std::vector<CheckAhead::Chunk> chunks = first.file->chunks_of(boxes_to_read(program, coordinates));
  return chunks.empty() ? nullptr : std::make_unique<CheckAhead>(std::move(chunks), first.threads);
}

absl::Status initialize_states(const Program& program, std::span<const int64_t> coordinates, const FirstValues& first,
                               const std::function<std::span<std::byte>(const Operand&)>& memory) {
  for (const ProgramState& s : program.states) {
    std::span<std::byte> own = memory(s.operand);
    if (s.initial.kind == InitialKind::kFile) {
      if (first.file == nullptr)
        return absl::NotFoundError(cat("state ", quote(s.name), ": there is no file of first weights"));
      PARTITA_RETURN_IF_ERROR(read_state(s, coordinates, *first.file, own.data()));
    } else if (s.initial.kind == InitialKind::kFill && !is_padded(s.placement)) {
      fill(own, s.operand.dtype, s.initial.a, first.threads);
    } else {
      const uint64_t key = checksum64(as_byte_span(s.name), first.seed);
      PARTITA_RETURN_IF_ERROR(for_each_piece(s.placement, coordinates, [&](const LogicalPiece& piece) {
        draw_piece(s, piece, key, first.threads, own.data());
        return absl::OkStatus();
      }));
    }
  }
  return absl::OkStatus();
}

absl::Status save_tensors(const std::string& path, const std::vector<HeldTensor>& tensors,
                          std::span<const int64_t> coordinates, Communicator* communicator, FlightRecorder* recorder) {
  constexpr const char* kToken = "ranks";
  const bool alone = communicator == nullptr || communicator->size() == 1, creator = alone || communicator->rank() == 0;
  std::vector<TensorBox> boxes;
  for (const HeldTensor& t : tensors)
    boxes.push_back({{t.name, {}, {}, t.dtype, t.placement->logical, 0}, t.placement});
  PARTITA_ASSIGN_OR_RETURN(TensorOwners owners, agree_on_owners(boxes, coordinates, communicator));
  std::vector<TensorInfo> infos;
  for (const CheckpointTensor& t : owners.tensors) infos.push_back({t.name, t.dtype, t.shape});
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};
  std::unique_ptr<SafetensorsWriter> writer;
  const auto create = [&]() -> absl::Status {
    if (!creator) return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(writer, SafetensorsWriter::create(path, infos, metadata, alone ? "" : kToken));
    return absl::OkStatus();
  };
  const auto write_piece = [&](const HeldTensor& t, const LogicalPiece& piece) {
    const int64_t size = dtype_size(t.dtype);
    std::vector<std::byte> dense(static_cast<size_t>(*element_count(piece.extent) * size));
    pack_piece(piece, size, t.memory.data(), dense.data());
    if (recorder != nullptr) recorder->progress();
    return writer->write(t.name, piece.offset, piece.extent, dense);
  };
  const auto write = [&]() -> absl::Status {
    if (!creator) {
      PARTITA_ASSIGN_OR_RETURN(writer, SafetensorsWriter::join(path, infos, metadata, kToken));
    }
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (!owners.owned[k]) continue;
      PARTITA_RETURN_IF_ERROR(for_each_piece(*tensors[k].placement, coordinates, [&](const LogicalPiece& piece) {
        return write_piece(tensors[k], piece);
      }));
    }
    return creator ? absl::OkStatus() : writer->finish();
  };
  PARTITA_RETURN_IF_ERROR(work_together(communicator, "save: created", recorder, create));
  PARTITA_RETURN_IF_ERROR(work_together(communicator, "save: written", recorder, write));
  return work_together(communicator, "save: finished", recorder,
                       [&] { return creator ? writer->finish() : absl::OkStatus(); });
}

}  // namespace partita::runtime
