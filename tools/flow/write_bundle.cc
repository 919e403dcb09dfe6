#include "tools/flow/write_bundle.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/data/convert.h"
#include "runtime/data/data_config_json.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/params.h"
#include "runtime/program/program_image.h"
#include "runtime/run_flags.h"
#include "tools/flow/describe_choices.h"
#include "tools/flow/device_code_summary.h"
#include "tools/flow/device_memory.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {
namespace {

// NaN anywhere, or infinity in what is trained, would make every later number NaN.
absl::Status check_values(const InitialTensor& w, const TensorType& type, std::span<const std::byte> bytes) {
  int64_t bad = runtime::find_unusable(type.dtype, bytes, w.trained);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      cat("initializer ", quote(w.name, 200), ": element ", bad, " of ", to_string(type), " is ",
          runtime::element_text(type.dtype, bytes.data() + bad * dtype_size(type.dtype)),
          ": expected finite numbers; export a model whose weights are sound, or give `init` rules in train.yaml"));
}

// `bytes` of the model, in the type that the program holds: a frozen weight in 16 bits is f32 in the model
// (passes/forward/narrow_frozen.h), and rounded here, some rows at a time.
absl::Status write_values(const InitialTensor& w, std::span<const std::byte> bytes, runtime::SafetensorsWriter& out) {
  constexpr int64_t kBlock = int64_t{1} << 22;  // elements
  const DType to = w.type.dtype, from = static_cast<int64_t>(bytes.size()) == byte_size(w.type) ? to : DType::kF32;
  PARTITA_RETURN_IF_ERROR(check_values(w, {from, w.type.shape}, bytes));
  if (from == to) return out.write(w.name, bytes);
  PARTITA_ASSIGN_OR_RETURN(const runtime::ConvertFunction convert, runtime::find_conversion(from, to));
  std::vector<int64_t> offset(w.type.shape.size(), 0), extent = w.type.shape;
  const int64_t rows = extent.empty() ? 1 : extent[0], row = elements(w.type.shape) / std::max<int64_t>(rows, 1);
  const int64_t most = std::max<int64_t>(1, kBlock / std::max<int64_t>(row, 1));
  std::vector<std::byte> block;
  for (int64_t at = 0; at < rows; at += most) {
    const int64_t count = std::min(most, rows - at);
    if (!extent.empty()) offset[0] = at, extent[0] = count;
    block.resize(static_cast<size_t>(count * row * dtype_size(to)));
    convert(bytes.data() + at * row * dtype_size(from), block.data(), count * row);  // between floats: all fit
    PARTITA_RETURN_IF_ERROR(out.write(w.name, offset, extent, block));
  }
  return absl::OkStatus();
}

absl::Status write_weights(const std::vector<InitialTensor>& weights, const std::string& path) {
  std::map<std::string, MappedFile> files;  // opened first: a missing one is found before space is claimed
  for (const InitialTensor& w : weights) {
    const FileRange* range = std::get_if<FileRange>(&w.value);
    if (range == nullptr || files.count(range->path)) continue;
    auto file = MappedFile::open(range->path);
    if (!file.ok()) {
      return with_context(
          file.status(),
          cat("weights of ", quote(w.name), " (give them, or `init` rules in train.yaml to start from random values)"));
    }
    files.emplace(range->path, *std::move(file));
  }
  std::vector<runtime::TensorInfo> tensors;
  for (const InitialTensor& w : weights) tensors.push_back({w.name, w.type.dtype, w.type.shape});
  PARTITA_ASSIGN_OR_RETURN(auto writer, runtime::SafetensorsWriter::create(path, std::move(tensors)));
  for (const InitialTensor& w : weights) {
    if (const Literal* literal = std::get_if<Literal>(&w.value)) {
      PARTITA_RETURN_IF_ERROR(write_values(w, literal->bytes(), *writer));
      continue;
    }
    const FileRange& range = std::get<FileRange>(w.value);
    const MappedFile& file = files.at(range.path);
    if (range.offset < 0 || range.bytes < 0 || range.offset > file.size() || range.bytes > file.size() - range.offset) {
      return absl::InvalidArgumentError(cat("weights of ", quote(w.name), ": expected bytes [", range.offset, ", ",
                                            range.offset + range.bytes, ") in ", quote(range.path),
                                            ", found a file of ", file.size()));
    }
    auto bytes = file.bytes().subspan(static_cast<size_t>(range.offset), static_cast<size_t>(range.bytes));
    PARTITA_RETURN_IF_ERROR(write_values(w, bytes, *writer));
  }
  return writer->finish();
}

nlohmann::json manifest(const Compiled& compiled, const std::string& image) {
  const runtime::Program& p = compiled.programs.front();
  nlohmann::json mesh = nlohmann::json::object(), inputs = nlohmann::json::array();
  for (const auto& axis : p.mesh) mesh[axis.name] = axis.size;
  for (const auto& in : p.inputs) {
    if (in.kind == InputKind::kData)
      inputs.push_back({{"name", in.name}, {"dtype", dtype_name(in.operand.dtype)}, {"shape", in.placement.logical}});
  }
  nlohmann::json data = runtime::to_json(compiled.data);
  if (!compiled.data_kind_said) data.erase("kind");
  int64_t steps = 0;
  nlohmann::json memory = memory_bytes(p), stages = nlohmann::json::array();
  for (const runtime::Program& stage : compiled.programs) {
    nlohmann::json bytes = memory_bytes(stage);
    for (auto& [region, most] : memory.items()) most = std::max(most.get<int64_t>(), bytes.at(region).get<int64_t>());
    stages.push_back(std::move(bytes));
    if (!compiled.stage_axes.empty()) stages.back()["mesh"] = compiled.stage_axes[stages.size() - 1];
    for (const auto& s : stage.segments) steps += static_cast<int64_t>(s.steps.size());
  }
  nlohmann::json evaluate;
  if (!compiled.evaluation.programs.empty()) {
    evaluate = {{"every", compiled.evaluate_every},
                {"batches", compiled.evaluate_batches},
                {"data", runtime::to_json(compiled.evaluation_data)}};
  }
  nlohmann::json all = {{"version", 1},
                        {"model", p.model},
                        {"target", p.target},
                        {"ranks", compiled.ranks},
                        {"mesh", mesh},
                        {"samples_per_step", p.samples_per_step},
                        {"micro_batches", p.micro_batches},
                        {"inputs", inputs},
                        {"parameters", compiled.parameters},
                        {"steps", steps},
                        {"memory_bytes", memory},
                        {"image_sha256", sha256_hex(as_byte_span(image))},
                        {"warnings", compiled.warnings},
                        {"data", data},
                        {"seed", compiled.seed}};
  if (!compiled.evaluation.programs.empty()) all["evaluate"] = evaluate;
  if (compiled.programs.size() > 1) all["stages"] = stages;
  if (compiled.schedule) all["schedule"] = enum_name(*compiled.schedule);
  if (compiled.schedule == PipelineSchedule::kPipedream) {
    all["equal_to_serial"] = false;
    all["weight_versions"] = weight_versions(compiled);
  }
  if (compiled.statistic_samples > 0)
    all["semantics"] = {{"batch_norm", "replica"}, {"statistic_samples", compiled.statistic_samples}};
  if (compiled.capacity_samples > 0) all["semantics"]["capacity_samples"] = compiled.capacity_samples;
  if (compiled.gathered_bytes > 0) all["gathered_bytes"] = compiled.gathered_bytes;
  if (compiled.compress != Compression::kNone) {
    all["compress"] = {{"kind", enum_name(compiled.compress)},
                       {"sums", compiled.compressed.sums},
                       {"bytes", compiled.compressed.bytes},
                       {"plain_bytes", compiled.compressed.plain_bytes}};
  }
  if (DeviceCodeSummary code = device_code(compiled.programs); code.kernels > 0) {
    all["gpu_code"] = {{"kernels", code.kernels},
                       {"most_registers", code.most_registers},
                       {"spilling_kernels", code.spilling},
                       {"spilled_bytes", code.spilled_bytes},
                       {"kernel_steps", code.steps},
                       {"launches", code.launches},
                       {"communicator_bytes", code.communicator_bytes}};
  }
  return all;
}

// The shared libraries beside the runner: modules for MPI and CUDA, and of what it links those that a bare system
// lacks. Links to them where the file system has links: the bundle keeps its own when another version is installed.
absl::Status copy_libraries(const std::string& runner, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::create_directory(folder, ec);
  for (fs::directory_iterator file(fs::path(runner).parent_path(), ec), end; !ec && file != end; file.increment(ec)) {
    const fs::path name = file->path().filename();
    if (name.string().find(".so") == std::string::npos || !file->is_regular_file(ec)) continue;
    std::error_code no_link;
    fs::create_hard_link(file->path(), folder / name, no_link);
    if (no_link) fs::copy_file(file->path(), folder / name, ec);
    if (ec) break;
  }
  if (ec)
    return absl::InvalidArgumentError(cat("cannot copy the runner's libraries to ", quote(folder), ": ", ec.message()));
  return absl::OkStatus();
}

std::vector<verifier::RankEvidence> evidence(const std::vector<ProgramClaims>& programs) {
  std::vector<verifier::RankEvidence> all;
  for (const ProgramClaims& program : programs) all.push_back({program.graph, program.steps, program.nests});
  return all;
}

}  // namespace

absl::Status write_bundle(const Compiled& compiled, const std::string& runner, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (fs::exists(folder, ec) && !fs::exists(fs::path(folder) / runtime::kManifestName, ec)) {
    return absl::FailedPreconditionError(
        cat(quote(folder), " exists and is no bundle; choose another place or remove it"));
  }
  std::string fresh = cat(folder, ".partial.", getpid());
  fs::create_directories(fresh, ec);
  if (ec) return absl::InvalidArgumentError(cat("cannot create ", quote(fresh), ": ", ec.message()));
  auto write = [&]() -> absl::Status {
    PARTITA_ASSIGN_OR_RETURN(std::string image, runtime::serialize_programs(compiled.programs));
    PARTITA_RETURN_IF_ERROR(write_file_atomically(cat(fresh, "/", runtime::kImageName), image, Durable::kNo));
    if (!compiled.evaluation.programs.empty()) {
      PARTITA_ASSIGN_OR_RETURN(std::string evaluation, runtime::serialize_programs(compiled.evaluation.programs));
      PARTITA_RETURN_IF_ERROR(
          write_file_atomically(cat(fresh, "/", runtime::kEvaluationName), evaluation, Durable::kNo));
    }
    PARTITA_RETURN_IF_ERROR(with_context(write_weights(compiled.weights, cat(fresh, "/", runtime::kInitialName)),
                                         quote(compiled.programs.front().model, 200)));
    PARTITA_RETURN_IF_ERROR(
        runtime::write_executable(runner, as_byte_span(image), cat(fresh, "/", runtime::kRankName)));
    PARTITA_RETURN_IF_ERROR(copy_libraries(runner, cat(fresh, "/", runtime::kLibrariesName)));
    PARTITA_RETURN_IF_ERROR(verifier::write_evidence(compiled.serial, compiled.samples, evidence(compiled.claims),
                                                     fresh, verifier::kTrainingFiles));
    if (!compiled.evaluation.programs.empty()) {
      PARTITA_RETURN_IF_ERROR(verifier::write_evidence(compiled.evaluation.serial, compiled.samples,
                                                       evidence(compiled.evaluation.claims), fresh,
                                                       verifier::kEvaluationFiles));
    }
    return write_file_atomically(cat(fresh, "/", runtime::kManifestName), manifest(compiled, image).dump(2) + "\n",
                                 Durable::kNo);
  };
  absl::Status status = write();
  if (status.ok()) {
    fs::remove_all(folder, ec);
    fs::rename(fresh, folder, ec);
    if (ec) status = absl::InvalidArgumentError(cat("cannot move the bundle to ", quote(folder), ": ", ec.message()));
  }
  if (!status.ok()) fs::remove_all(fresh, ec);
  return status;
}

}  // namespace partita
