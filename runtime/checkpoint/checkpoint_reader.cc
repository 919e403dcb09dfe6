#include "runtime/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "base/box.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/data/convert.h"
#include "runtime/files/tensor_checksum.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

absl::Status torn(const std::string& folder, std::string_view why) {
  return absl::DataLossError(
      cat("checkpoint ", quote(folder, 1000), " is damaged: ", why, "; use an older checkpoint"));
}

// NotFound, and DataLoss of one that is no safetensors; one that may not be read is not damaged by that.
absl::StatusOr<SafetensorsFile> open_part(const std::string& folder, const std::string& name) {
  const std::string path = cat(folder, "/", name);
  PARTITA_RETURN_IF_ERROR(MappedFile::open(path).status());
  auto file = SafetensorsFile::open(path);
  if (!file.ok()) return torn(folder, std::string(file.status().message()));
  return file;
}

// "NAME@3,0" -> the offset; the name may hold '@' itself.
bool parse_key(std::string_view key, std::string& name, std::vector<int64_t>& offset) {
  const size_t at = key.rfind('@');
  if (at == std::string_view::npos) return false;
  name = key.substr(0, at);
  std::string_view rest = key.substr(at + 1);
  while (!rest.empty()) {
    int64_t value = 0;
    auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) return false;
    offset.push_back(value);
    rest.remove_prefix(static_cast<size_t>(end - rest.data()));
    if (!rest.empty() && rest[0] != ',') return false;
    if (!rest.empty()) rest.remove_prefix(1);
  }
  return true;
}

}  // namespace

std::string box_key(const std::string& name, std::span<const int64_t> offset) {
  std::string key = name + "@";
  for (size_t d = 0; d < offset.size(); ++d) append(key, d ? "," : "", offset[d]);
  return key;
}

std::string box_file(int64_t rank) { return fmt::format("boxes-{:05}.safetensors", rank); }

absl::StatusOr<CheckpointReader> CheckpointReader::open(const std::string& folder) {
  CheckpointReader reader;
  reader.folder_ = folder;
  PARTITA_ASSIGN_OR_RETURN(reader.manifest_, read_manifest(folder));
  for (size_t k = 0; k < reader.manifest_.tensors.size(); ++k) {
    if (!reader.index_.emplace(reader.manifest_.tensors[k].name, k).second)
      return torn(folder, cat("tensor ", quote(reader.manifest_.tensors[k].name), " is listed twice"));
  }
  if (reader.manifest_.shared) {
    auto file = open_part(folder, kCheckpointStates);
    if (absl::IsNotFound(file.status())) return torn(folder, std::string(file.status().message()));
    PARTITA_RETURN_IF_ERROR(file.status());
    reader.files_.push_back(*std::move(file));
    PARTITA_RETURN_IF_ERROR(reader.check_shared());
  } else {
    PARTITA_RETURN_IF_ERROR(reader.index_boxes());
  }
  return reader;
}

absl::Status CheckpointReader::check_shared() const {
  for (const CheckpointTensor& t : manifest_.tensors) {
    const SafetensorsEntry* entry = files_[0].find(t.name);
    if (entry == nullptr || entry->dtype != t.dtype || entry->shape != t.shape)
      return torn(folder_, cat(kCheckpointStates, " and the manifest differ in tensor ", quote(t.name)));
  }
  return absl::OkStatus();
}

absl::Status CheckpointReader::index_boxes() {
  std::vector<std::string> missing;
  for (int64_t rank = 0; rank < manifest_.ranks; ++rank) {
    auto file = open_part(folder_, box_file(rank));
    if (absl::IsNotFound(file.status())) {
      missing.push_back(box_file(rank));
      continue;
    }
    PARTITA_RETURN_IF_ERROR(file.status());
    for (const SafetensorsEntry& entry : file->entries()) {
      Box box{.file = files_.size(), .key = entry.name, .offset = {}, .extent = entry.shape};
      std::string name;
      const CheckpointTensor* tensor = parse_key(entry.name, name, box.offset) ? find(name) : nullptr;
      if (tensor == nullptr || tensor->dtype != entry.dtype || !check_box(tensor->shape, box.offset, box.extent).ok())
        return torn(folder_, cat(box_file(rank), " and the manifest differ in ", quote(entry.name)));
      std::vector<Box>& known = boxes_[name];
      const bool fresh = std::none_of(known.begin(), known.end(),
                                      [&](const Box& b) { return b.offset == box.offset && b.extent == box.extent; });
      if (fresh) known.push_back(std::move(box));
    }
    files_.push_back(*std::move(file));
  }
  // Each rank's file may lie on a host of its own; a run under the same plan needs only what its host has.
  for (const CheckpointTensor& t : manifest_.tensors) {
    if (boxes_.find(t.name) == boxes_.end() && element_count(t.shape) != 0)
      return torn(folder_, cat("tensor ", quote(t.name), " is in no file",
                               missing.empty() ? ""
                                               : cat("; missing: ", quote_list(missing),
                                                     " (gather the ranks' files into one folder)")));
  }
  return absl::OkStatus();
}

const CheckpointTensor* CheckpointReader::find(std::string_view name) const {
  auto at = index_.find(name);
  return at == index_.end() ? nullptr : &manifest_.tensors[at->second];
}

absl::Status CheckpointReader::read(const CheckpointTensor& tensor, std::span<const int64_t> offset,
                                    std::span<const int64_t> extent, std::span<std::byte> out) const {
  if (manifest_.shared) return files_[0].read(tensor.name, offset, extent, out);
  const int64_t size = dtype_size(tensor.dtype);
  int64_t covered = 0;
  auto at = boxes_.find(tensor.name);
  const size_t rank = tensor.shape.size();
  for (const Box& box : at == boxes_.end() ? std::vector<Box>() : at->second) {
    std::vector<int64_t> in_box(rank), in_out(rank), common(rank);
    bool apart = false;
    for (size_t d = 0; d < rank; ++d) {
      const int64_t low = std::max(offset[d], box.offset[d]),
                    high = std::min(offset[d] + extent[d], box.offset[d] + box.extent[d]);
      apart |= high <= low;
      in_box[d] = low - box.offset[d];
      in_out[d] = low - offset[d];
      common[d] = high - low;
    }
    if (apart) continue;
    std::vector<std::byte> dense(static_cast<size_t>(*element_count(common) * size));
    PARTITA_RETURN_IF_ERROR(files_[box.file].read(box.key, in_box, common, dense));
    PARTITA_RETURN_IF_ERROR(for_each_run(extent, in_out, common, [&](int64_t to, int64_t from, int64_t count) {
      std::memcpy(out.data() + to * size, dense.data() + from * size, static_cast<size_t>(count * size));
      return absl::OkStatus();
    }));
    covered += *element_count(common);
  }
  if (covered == *element_count(extent)) return absl::OkStatus();
  return torn(folder_, cat("of tensor ", quote(tensor.name), " the box at ", shape_text(offset), " of extent ",
                           shape_text(extent), " is not in the files here; gather the files boxes-… of all ",
                           manifest_.ranks, " ranks into one folder"));
}

absl::Status CheckpointReader::damaged(const CheckpointTensor& tensor) const {
  return torn(folder_, cat("the bytes of tensor ", quote(tensor.name), " do not have its checksum"));
}

absl::StatusOr<std::vector<std::byte>> CheckpointReader::read_whole(const CheckpointTensor& tensor) const {
  const int64_t size = dtype_size(tensor.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(*element_count(tensor.shape) * size));
  const std::vector<int64_t> origin(tensor.shape.size(), 0);
  PARTITA_RETURN_IF_ERROR(read(tensor, origin, tensor.shape, bytes));
  if (box_checksum(tensor.shape, origin, tensor.shape, size, bytes) != tensor.checksum) return damaged(tensor);
  return bytes;
}

namespace {

// One state from its pieces; the sum of the words of what this rank owns.
absl::StatusOr<uint64_t> load_state(const ProgramState& state, std::span<const int64_t> coordinates,
                                    const CheckpointReader& reader, const CheckpointTensor& tensor, bool owner,
                                    std::span<std::byte> own) {
  const int64_t from = dtype_size(tensor.dtype), to = dtype_size(state.operand.dtype);
  const bool rounded = is_rounded_copy(state.kind, tensor.dtype, state.operand.dtype);
  ConvertFunction convert = nullptr;
  if (tensor.dtype != state.operand.dtype && !rounded) {
    PARTITA_ASSIGN_OR_RETURN(convert, find_conversion(tensor.dtype, state.operand.dtype));
  }
  uint64_t sum = 0;
  PARTITA_RETURN_IF_ERROR(for_each_piece(state.placement, coordinates, [&](const LogicalPiece& piece) -> absl::Status {
    const int64_t count = *element_count(piece.extent);
    std::vector<std::byte> dense(static_cast<size_t>(count * from)), converted;
    PARTITA_RETURN_IF_ERROR(reader.read(tensor, piece.offset, piece.extent, dense));
    if (owner) sum += box_checksum(tensor.shape, piece.offset, piece.extent, from, dense);
    if (rounded) {
      converted.resize(static_cast<size_t>(count * to));
      pack_piece(piece, to, own.data(), converted.data());
      PARTITA_RETURN_IF_ERROR(
          take_rounded(tensor.dtype, dense.data(), state.operand.dtype, converted.data(), count).status());
    } else if (convert != nullptr) {
      converted.resize(static_cast<size_t>(count * to));
      if (convert(dense.data(), converted.data(), count) >= 0)
        return absl::InvalidArgumentError(
            cat("tensor ", quote(tensor.name), " holds a value that ", dtype_name(state.operand.dtype), " cannot"));
    }
    unpack_piece(piece, to, converted.empty() ? dense.data() : converted.data(), own.data());
    return absl::OkStatus();
  }));
  return sum;
}

}  // namespace

absl::Status load_states(const Program& program, std::span<const int64_t> coordinates, const std::vector<bool>& owned,
                         const CheckpointReader& reader, bool parameters_only, Communicator* communicator,
                         const std::function<std::span<std::byte>(const Operand&)>& memory) {
  const CheckpointManifest& manifest = reader.manifest();
  std::vector<int64_t> sums(manifest.tensors.size(), 0);
  std::vector<int64_t> loaded(manifest.tensors.size(), 0);
  auto wanted_now = [&](StateKind kind) {
    return !parameters_only || kind == StateKind::kParameter || kind == StateKind::kRunning ||
           kind == StateKind::kFrozen;
  };
  std::vector<CheckpointTensor> wanted = kept_tensors(program);
  std::erase_if(wanted, [&](const CheckpointTensor& t) { return !wanted_now(t.kind); });
  std::vector<int64_t> mine(manifest.tensors.size(), 0);
  for (const CheckpointTensor& t : wanted) {
    if (const CheckpointTensor* at = reader.find(t.name)) mine[static_cast<size_t>(at - manifest.tensors.data())] = 1;
  }
  std::vector<int64_t> somebodys = mine;
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator, somebodys, ReduceOp::kMax, "checkpoint: tensors asked for"));
  std::vector<CheckpointTensor> found;  // without those of other stages alone
  for (size_t k = 0; k < mine.size(); ++k) {
    if (mine[k] != 0 || somebodys[k] == 0) found.push_back(manifest.tensors[k]);
  }
  std::vector<std::string> anew;
  auto load = [&]() -> absl::Status {
    PARTITA_RETURN_IF_ERROR(check_same_model(wanted, found, reader.folder(), !parameters_only));
    for (size_t k = 0; k < program.states.size(); ++k) {
      const ProgramState& s = program.states[k];
      if (!is_kept(s) || !wanted_now(s.kind)) continue;
      const CheckpointTensor* tensor = reader.find(s.name);
      if (starts_anew(kept_tensor(s), tensor)) {
        anew.push_back(s.name);
        continue;
      }
      if (tensor == nullptr) continue;  // as check_same_model allows
      const size_t at = static_cast<size_t>(tensor - manifest.tensors.data());
      PARTITA_ASSIGN_OR_RETURN(uint64_t sum, load_state(s, coordinates, reader, *tensor, owned[k], memory(s.operand)));
      sums[at] = static_cast<int64_t>(sum);
      loaded[at] = 1;
    }
    return absl::OkStatus();
  };
  PARTITA_RETURN_IF_ERROR(all_ok(communicator, load(), "loading the checkpoint"));
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator, sums, ReduceOp::kSum, "checkpoint: checksums"));
  auto sound = [&]() -> absl::Status {
    for (size_t k = 0; k < sums.size(); ++k) {
      if (loaded[k] != 0 && static_cast<uint64_t>(sums[k]) != manifest.tensors[k].checksum)
        return reader.damaged(manifest.tensors[k]);
    }
    return absl::OkStatus();
  };
  // Of a pipeline's stages, those whose tensors are sound hear of it, too.
  PARTITA_RETURN_IF_ERROR(all_ok(communicator, sound(), "the checkpoint's checksums"));
  if (!anew.empty() && (communicator == nullptr || communicator->rank() == 0)) {
    std::fprintf(stderr,
                 "note: the checkpoint has no state of this layout and precision for the loss scale or the error "
                 "feedback of compressed gradients, which start anew: %s\n",
                 quote_list(anew).c_str());
  }
  return absl::OkStatus();
}

}  // namespace partita::runtime
