#include "tools/flow/write_bundle.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/device/device.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/program_check.h"
#include "runtime/program/program_image.h"
#include "runtime/program/sides.h"
#include "tools/flow/describe_choices.h"
#include "tools/flow/device_code_summary.h"
#include "tools/flow/weight_files.h"
#include "tools/verify/bundle/bundle.h"
#include "tools/verify/bundle/manifest.h"

namespace partita {
namespace {

absl::Status write_weights(const std::vector<InitialTensor>& weights, const std::string& path) {
  WeightFiles files;
  PARTITA_RETURN_IF_ERROR(files.open(weights));  // first: a missing one is found before space is claimed
  std::vector<runtime::TensorInfo> tensors;
  for (const InitialTensor& w : weights) tensors.push_back({w.name, w.type.dtype, w.type.shape});
  PARTITA_ASSIGN_OR_RETURN(auto writer, runtime::SafetensorsWriter::create(path, std::move(tensors)));
  for (const InitialTensor& w : weights) {
    PARTITA_RETURN_IF_ERROR(files.for_each_block(
        w, [&](std::span<const int64_t> offset, std::span<const int64_t> extent, std::span<const std::byte> block) {
          return writer->write(w.name, offset, extent, block);
        }));
  }
  return writer->finish();
}

// What was chosen that is not the serial program's.
void add_choices(const Compiled& compiled, nlohmann::json& all) {
  if (compiled.schedule) all["schedule"] = enum_name(*compiled.schedule);
  if (compiled.schedule == PipelineSchedule::kPipedream) {
    all["equal_to_serial"] = false;
    all["weight_versions"] = weight_versions(compiled);
  }
  if (compiled.statistic_samples > 0)
    all["semantics"] = {{"batch_norm", "replica"}, {"statistic_samples", compiled.statistic_samples}};
  if (compiled.capacity_samples > 0) all["semantics"]["capacity_samples"] = compiled.capacity_samples;
  if (compiled.compress != Compression::kNone) {
    all["compress"] = {{"kind", enum_name(compiled.compress)},
                       {"sums", compiled.compressed.sums},
                       {"bytes", compiled.compressed.bytes},
                       {"plain_bytes", compiled.compressed.plain_bytes}};
  }
}

nlohmann::json manifest(const Compiled& compiled) {
  std::vector<const runtime::Program*> programs;
  for (const runtime::Program& p : compiled.programs) programs.push_back(&p);
  nlohmann::json all = verifier::derived_manifest(programs, compiled.serial);
  all.update(compiled.run);
  all["form"] = to_json(compiled.form);
  if (compiled.length > 0) all["length"] = compiled.length;
  add_choices(compiled, all);
  all["warnings"] = compiled.warnings;
  if (!compiled.plan.is_null()) all["plan"] = compiled.plan;
  for (size_t k = 0; k < compiled.stage_axes.size(); ++k) all["stages"][k]["mesh"] = compiled.stage_axes[k];
  if (compiled.gathered_bytes > 0) all["gathered_bytes"] = compiled.gathered_bytes;
  if (DeviceCodeSummary code = device_code(compiled.programs); code.kernels > 0) {
    all["gpu_code"] = {{"kernels", code.kernels},
                       {"most_registers", code.most_registers},
                       {"spilling_kernels", code.spilling},
                       {"spilled_bytes", code.spilled_bytes},
                       {"kernel_steps", code.steps},
                       {"launches", code.launches},
                       {"communicator_bytes", code.communicator_bytes},
                       {"attention_scratch_bytes", code.attention_scratch_bytes}};
  }
  return all;
}

// Where the disk is full it says so, which std::filesystem::copy_file() takes for an I/O error.
absl::Status copy_bytes(const std::string& from, const std::string& to) {
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(from));
  return write_file_atomically(to, file.text(), Durable::kNo);
}

// The executable of a rank: the runner, as it is.
absl::Status copy_runner(const std::string& runner, const std::string& path) {
  PARTITA_RETURN_IF_ERROR(copy_bytes(runner, path));
  std::error_code ec;
  std::filesystem::permissions(path, std::filesystem::perms(0755), ec);
  return ec ? file_error("make an executable of", path, ec.value()) : absl::OkStatus();
}

// The shared libraries beside the runner: modules for MPI and, where the ranks have GPUs, for CUDA, and of what it
// links those that a bare system lacks. Links to them where the file system has links: the bundle keeps its own when
// another version is installed.
absl::Status copy_libraries(const std::string& runner, const std::string& folder, bool devices) {
  namespace fs = std::filesystem;
  std::error_code ec;
  fs::create_directory(folder, ec);
  for (fs::directory_iterator file(fs::path(runner).parent_path(), ec), end; !ec && file != end; file.increment(ec)) {
    const fs::path name = file->path().filename();
    if (name.string().find(".so") == std::string::npos || !file->is_regular_file(ec)) continue;
    if (name == runtime::kCudaModule && !devices) continue;
    std::error_code no_link;
    fs::create_hard_link(file->path(), folder / name, no_link);
    if (no_link) PARTITA_RETURN_IF_ERROR(copy_bytes(file->path().string(), (fs::path(folder) / name).string()));
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

absl::Status write_programs(const std::vector<runtime::Program>& programs, const verifier::SerialEvidence& serial,
                            const std::vector<ProgramClaims>& claims, const std::string& folder,
                            const verifier::ProgramFiles& files) {
  PARTITA_RETURN_IF_ERROR(runtime::check_programs(programs));
  PARTITA_RETURN_IF_ERROR(
      write_file_atomically(cat(folder, "/", files.image), runtime::serialize_programs(programs), Durable::kNo));
  return verifier::write_evidence(serial, evidence(claims), folder, files);
}

// Programs of training and evaluation, and their evidence.
absl::Status write_all_programs(const Compiled& compiled, const std::string& folder) {
  PARTITA_RETURN_IF_ERROR(write_programs(compiled.programs, {compiled.serial, compiled.samples, compiled.run},
                                         compiled.claims, folder, verifier::kTrainingFiles));
  if (compiled.evaluation.programs.empty()) return absl::OkStatus();
  return write_programs(compiled.evaluation.programs, {compiled.evaluation.serial, compiled.samples},
                        compiled.evaluation.claims, folder, verifier::kEvaluationFiles);
}

absl::Status write_within(const Compiled& compiled, const std::string& bundle, const std::string& name);

// The programs for steps of other numbers of samples, or of other lengths.
absl::Status write_parts(const Compiled& compiled, const std::string& folder) {
  for (const Compiled& other : compiled.batches)
    PARTITA_RETURN_IF_ERROR(write_within(other, folder, cat(runtime::kBatchesName, "/", other.samples)));
  for (const Compiled& other : compiled.lengths)
    PARTITA_RETURN_IF_ERROR(write_within(other, folder, cat(runtime::kLengthsName, "/", other.length)));
  return absl::OkStatus();
}

// All but the manifest.
absl::Status write_files(const Compiled& compiled, const std::string& runner, const std::string& folder) {
  PARTITA_RETURN_IF_ERROR(write_all_programs(compiled, folder));
  PARTITA_RETURN_IF_ERROR(with_context(write_weights(compiled.weights, cat(folder, "/", runtime::kInitialName)),
                                       quote(compiled.programs.front().model, 200)));
  PARTITA_RETURN_IF_ERROR(write_parts(compiled, folder));
  PARTITA_RETURN_IF_ERROR(copy_runner(runner, cat(folder, "/", runtime::kRankName)));
  return copy_libraries(runner, cat(folder, "/", runtime::kLibrariesName),
                        runtime::needs_device(compiled.programs.front()));
}

// A bundle within a bundle, in folder `name` of two parts: its first weights are the bundle's.
absl::Status write_within(const Compiled& compiled, const std::string& bundle, const std::string& name) {
  namespace fs = std::filesystem;
  const std::string folder = cat(bundle, "/", name);
  const fs::path weights = fs::path(folder) / runtime::kInitialName;
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (!ec) fs::create_symlink(fs::path("../..") / runtime::kInitialName, weights, ec);
  if (ec) return absl::InvalidArgumentError(cat("cannot write ", quote(weights.string()), ": ", ec.message()));
  PARTITA_RETURN_IF_ERROR(write_all_programs(compiled, folder));
  PARTITA_RETURN_IF_ERROR(write_parts(compiled, folder));
  return runtime::seal_bundle(folder, manifest(compiled));
}

constexpr const char* kUnfinished = ".partial.";

// Puts the finished folder `fresh` in the place of what is there, which then is at `fresh`. A kill at any moment leaves
// one of both whole under the name, where the file system can exchange two names.
absl::Status take_place(const std::string& fresh, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(folder, ec))) {
    fs::rename(fresh, folder, ec);
  } else if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    const std::string aside = cat(fresh, ".old");
    fs::rename(folder, aside, ec);
    if (!ec) fs::rename(fresh, folder, ec);
    std::error_code ignored;
    if (ec) fs::rename(aside, folder, ignored);
    if (!ec) fs::remove_all(aside, ignored);
  }
  if (ec) return absl::InvalidArgumentError(cat("cannot move the bundle to ", quote(folder), ": ", ec.message()));
  return absl::OkStatus();
}

// What was left beside `folder` by processes of this host that were killed.
void remove_interrupted(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec, ignored;
  const fs::path path = fs::absolute(folder, ignored);
  const std::string begin = cat(path.filename().string(), kUnfinished);
  std::vector<fs::path> left;
  for (fs::directory_iterator at(path.parent_path(), ec), end; !ec && at != end; at.increment(ec)) {
    const std::string name = at->path().filename().string();
    pid_t process = 0;
    if (name.starts_with(begin) && absl::SimpleAtoi(name.substr(begin.size()), &process) && process > 0 &&
        ::kill(process, 0) != 0 && errno == ESRCH)
      left.push_back(at->path());
  }
  for (const fs::path& one : left) fs::remove_all(one, ignored);
}

}  // namespace

verifier::Bundle serial_part(const Compiled& compiled) {
  verifier::Bundle b;
  b.serial = compiled.serial;
  b.samples = compiled.samples;
  b.run = compiled.run;
  b.compress = enum_name(compiled.compress);
  if (!compiled.evaluation.programs.empty()) {
    verifier::ProgramSet& evaluation = b.evaluation.emplace();
    evaluation.serial = compiled.evaluation.serial;
    evaluation.samples = compiled.samples;
  }
  return b;
}

absl::Status replace_bundle(const std::string& place, absl::FunctionRef<absl::Status(const std::string&)> fill) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const std::string folder = place.substr(0, std::max<size_t>(1, place.find_last_not_of('/') + 1));
  if (fs::exists(folder, ec) && !fs::exists(fs::path(folder) / runtime::kManifestName, ec)) {
    return absl::FailedPreconditionError(
        cat(quote(folder), " exists and is no bundle; choose another place or remove it"));
  }
  remove_interrupted(folder);
  const std::string fresh = cat(folder, kUnfinished, getpid());
  fs::create_directories(fresh, ec);
  if (ec) return absl::InvalidArgumentError(cat("cannot create ", quote(fresh), ": ", ec.message()));
  absl::Status status = fill(fresh);
  if (status.ok()) status = take_place(fresh, folder);
  fs::remove_all(fresh, ec);
  return status;
}

absl::Status write_bundle(const Compiled& compiled, const std::string& runner, const std::string& folder,
                          const std::vector<Compiled>& also) {
  return replace_bundle(folder, [&](const std::string& fresh) -> absl::Status {
    PARTITA_RETURN_IF_ERROR(write_files(compiled, runner, fresh));
    nlohmann::json all = manifest(compiled);
    for (const Compiled& plan : also) {
      PARTITA_RETURN_IF_ERROR(write_within(plan, fresh, cat(runtime::kPlansName, "/", plan.ranks)));
      all["also"].push_back(plan.ranks);
    }
    return runtime::seal_bundle(fresh, std::move(all));
  });
}

}  // namespace partita
