#include "runtime/checkpoint/checkpoint_manifest.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kFormat = "partita-checkpoint";
constexpr int64_t kLongestManifest = int64_t{1} << 30;

std::string hex(uint64_t value) { return fmt::format("{:016x}", value); }

absl::StatusOr<uint64_t> from_hex(const std::string& text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    return absl::DataLossError(cat(quote(text), " is no checksum"));
  return value;
}

// JSON with bytes that are no UTF-8 replaced.
std::string dumped(const json& j) { return j.dump(1, ' ', false, json::error_handler_t::replace); }

json body_of(const CheckpointManifest& m) {
  json tensors = json::array();
  for (const CheckpointTensor& t : m.tensors) {
    json entry = {{"name", t.name},
                  {"kind", enum_name(t.kind)},
                  {"dtype", dtype_name(t.dtype)},
                  {"shape", t.shape},
                  {"checksum", hex(t.checksum)}};
    if (!t.parameter.empty()) entry["parameter"] = t.parameter;
    tensors.push_back(std::move(entry));
  }
  json skipped = json::array();
  for (const SkippedSamples& s : m.skipped) skipped.push_back({s.first, s.count});
  json body = {{"format", kFormat},    {"version", kCheckpointVersion},
               {"model", m.model},     {"fingerprint", model_fingerprint(m.tensors)},
               {"plan", m.plan},       {"step", m.step},
               {"samples", m.samples}, {"samples_per_step", m.samples_per_step},
               {"seed", m.seed},       {"layout", m.shared ? "shared" : "boxes"},
               {"ranks", m.ranks},     {"data", m.data},
               {"metrics", m.metrics}, {"tensors", std::move(tensors)}};
  if (m.epoch_samples > 0) body["epoch_samples"] = m.epoch_samples;
  if (!m.data_fingerprint.empty()) body["data_fingerprint"] = m.data_fingerprint;
  if (!m.recipe.empty()) body["recipe"] = m.recipe;
  if (!m.losses.empty()) body["losses"] = m.losses;
  if (!skipped.empty()) body["skipped_samples"] = std::move(skipped);
  return body;
}

absl::StatusOr<CheckpointTensor> tensor_from(const json& j) {
  CheckpointTensor t;
  t.name = j.at("name").get<std::string>();
  const std::string kind = j.at("kind").get<std::string>();
  const std::optional<StateKind> known = parse_enum<StateKind>(kind);
  if (!known) return absl::DataLossError(cat("tensor ", quote(t.name), " is of unknown kind ", quote(kind)));
  t.kind = *known;
  t.parameter = j.value("parameter", "");
  t.dtype = parse_dtype(j.at("dtype").get<std::string>());
  t.shape = j.at("shape").get<std::vector<int64_t>>();
  if (t.dtype == DType::kInvalid || !element_count(t.shape))
    return absl::DataLossError(cat("tensor ", quote(t.name), " has no proper type"));
  PARTITA_ASSIGN_OR_RETURN(t.checksum, from_hex(j.at("checksum").get<std::string>()));
  return t;
}

absl::StatusOr<CheckpointManifest> manifest_from(const json& j) {
  CheckpointManifest m;
  m.model = j.at("model").get<std::string>();
  m.plan = j.value("plan", "");
  m.step = j.at("step").get<int64_t>();
  m.samples = j.at("samples").get<int64_t>();
  m.samples_per_step = j.at("samples_per_step").get<int64_t>();
  m.seed = j.value("seed", uint64_t{0});
  m.shared = j.at("layout").get<std::string>() == "shared";
  m.ranks = j.at("ranks").get<int64_t>();
  m.data = j.value("data", "");
  m.epoch_samples = j.value("epoch_samples", int64_t{0});
  m.data_fingerprint = j.value("data_fingerprint", "");
  m.metrics = j.value("metrics", m.metrics);
  m.recipe = j.value("recipe", m.recipe);
  m.losses = j.value("losses", m.losses);
  for (const json& s : j.value("skipped_samples", json::array()))
    m.skipped.push_back({s.at(0).get<int64_t>(), s.at(1).get<int64_t>()});
  for (const json& entry : j.at("tensors")) {
    PARTITA_ASSIGN_OR_RETURN(CheckpointTensor t, tensor_from(entry));
    m.tensors.push_back(std::move(t));
  }
  if (m.step < 0 || m.samples < 0 || m.ranks < 1) return absl::DataLossError("a count is negative");
  if (j.at("fingerprint").get<std::string>() != model_fingerprint(m.tensors))
    return absl::DataLossError("the fingerprint is not that of the tensors");
  return m;
}

std::string verdict_path(const std::string& folder, CheckpointVerdict verdict) {
  return cat(folder, "/", verdict == CheckpointVerdict::kGood ? "good" : "bad");
}

std::string type_text(const CheckpointTensor& t) { return cat(dtype_name(t.dtype), shape_text(t.shape)); }

}  // namespace

std::string model_fingerprint(const std::vector<CheckpointTensor>& tensors) {
  std::vector<std::string> lines;
  for (const CheckpointTensor& t : tensors) {
    std::string line = cat(t.name, "\n", enum_name(t.kind), "\n", dtype_name(t.dtype));
    for (int64_t d : t.shape) append(line, " ", d);
    lines.push_back(line + "\n");
  }
  std::sort(lines.begin(), lines.end());
  std::string all;
  for (const std::string& line : lines) all += line;
  return sha256_hex(as_byte_span(all));
}

// The whole is wrapped, so that a flipped bit anywhere is found: {"manifest": {…}, "checksum": …}.
std::string format_manifest(const CheckpointManifest& manifest) {
  json body = body_of(manifest);
  json whole = {{"checksum", hex(checksum64(as_byte_span(dumped(body))))}, {"manifest", std::move(body)}};
  return dumped(whole) + "\n";
}

absl::StatusOr<CheckpointManifest> parse_manifest(std::string_view text, const std::string& path) {
  auto damaged = [&](std::string_view why) {
    return absl::DataLossError(cat(quote(path, 1000), " is damaged: ", why, "; use an older checkpoint"));
  };
  const json whole = json::parse(text, nullptr, false);
  if (!whole.is_object() || !whole.contains("manifest") || !whole["manifest"].is_object())
    return damaged("it holds no checkpoint's manifest");
  const json& body = whole["manifest"];
  if (body.value("format", json()) != kFormat) return damaged("it holds no checkpoint's manifest");
  const json version = body.value("version", json());
  if (!version.is_number_integer()) return damaged("it has no version");
  if (version.get<int64_t>() > kCheckpointVersion) {
    return absl::FailedPreconditionError(cat(quote(path, 1000), " is of version ", version.get<int64_t>(),
                                             ", newer than ", kCheckpointVersion,
                                             ", which this program reads; use a newer program"));
  }
  if (whole.value("checksum", json()) != hex(checksum64(as_byte_span(dumped(body)))))
    return damaged("its checksum does not fit");
  try {
    auto manifest = manifest_from(body);
    return manifest.ok() ? std::move(manifest) : damaged(std::string(manifest.status().message()));
  } catch (const json::exception& e) {
    return damaged(e.what());
  }
}

absl::StatusOr<CheckpointManifest> read_manifest(const std::string& folder) {
  const std::string path = cat(folder, "/", kCheckpointManifest);
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  if (file.size() > kLongestManifest)
    return absl::DataLossError(cat(quote(path, 1000), " is damaged: it has ", file.size(), " bytes"));
  return parse_manifest(file.text(), path);
}

std::string checkpoint_name(int64_t step) { return fmt::format("step-{:012}", step); }

std::optional<int64_t> checkpoint_step(std::string_view name) {
  int64_t step = 0;
  if (!name.starts_with("step-")) return std::nullopt;
  auto [stop, bad] = std::from_chars(name.data() + 5, name.data() + name.size(), step);
  if (bad != std::errc() || stop != name.data() + name.size() || name != checkpoint_name(step)) return std::nullopt;
  return step;
}

namespace {

// What is gone, also from a server that still named it, is no error.
bool is_absent(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory ||
         error.value() == ESTALE;
}

// The steps of what can be seen; `hidden` is the first error of what cannot.
std::vector<int64_t> visible_checkpoints(const std::string& folder, absl::Status& hidden) {
  std::vector<int64_t> steps;
  const auto note = [&](std::string_view action, const std::string& path, const std::error_code& error) {
    if (error && !is_absent(error) && hidden.ok()) hidden = file_error(action, path, error.value());
  };
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::optional<int64_t> step = checkpoint_step(at->path().filename().string());
    if (!step) continue;
    std::error_code unseen;
    if (fs::exists(at->path() / kCheckpointManifest, unseen)) steps.push_back(*step);
    note("look into the checkpoint", at->path().string(), unseen);
  }
  note("list the folder", folder, error);
  std::sort(steps.begin(), steps.end());
  return steps;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> find_checkpoints(const std::string& folder) {
  absl::Status hidden;
  std::vector<int64_t> steps = visible_checkpoints(folder, hidden);
  PARTITA_RETURN_IF_ERROR(hidden);
  return steps;
}

std::vector<int64_t> list_checkpoints(const std::string& folder) {
  absl::Status ignored;
  return visible_checkpoints(folder, ignored);
}

absl::StatusOr<std::string> find_checkpoint(const std::string& path) {
  std::error_code ignored;
  if (fs::exists(fs::path(path) / kCheckpointManifest, ignored)) return path;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, find_checkpoints(path));
  for (size_t k = steps.size(); k-- > 0;) {
    std::string newest = cat(path, "/", checkpoint_name(steps[k]));
    if (verdict_on(newest) != CheckpointVerdict::kBad) return newest;
  }
  return absl::NotFoundError(
      cat(quote(path, 1000), " holds no complete checkpoint (a folder step-… with ", kCheckpointManifest, ")"));
}

CheckpointVerdict verdict_on(const std::string& folder, std::string* why) {
  for (const CheckpointVerdict verdict : {CheckpointVerdict::kBad, CheckpointVerdict::kGood}) {
    auto file = MappedFile::open(verdict_path(folder, verdict));
    if (!file.ok()) continue;
    if (why != nullptr) *why = std::string(file->text().substr(0, file->text().find('\n')));
    return verdict;
  }
  return CheckpointVerdict::kNone;
}

void write_verdict(const std::string& folder, CheckpointVerdict verdict, const std::string& why) {
  if (const absl::Status s = write_file_atomically(verdict_path(folder, verdict), why + "\n", Durable::kNo); !s.ok())
    std::fprintf(stderr, "warning: %s\n", std::string(s.message()).c_str());
}

bool is_kept(const ProgramState& state) { return state.kind != StateKind::kAccumulator; }

CheckpointTensor kept_tensor(const ProgramState& s) {
  return {s.name, s.kind, s.parameter, s.operand.dtype, s.placement.logical, 0};
}

std::vector<CheckpointTensor> kept_tensors(const Program& program) {
  std::vector<CheckpointTensor> tensors;
  for (const ProgramState& s : program.states) {
    if (is_kept(s)) tensors.push_back(kept_tensor(s));
  }
  return tensors;
}

namespace {

// What belongs to no parameter: the loss scale, which a run in another precision has not, and what error feedback keeps
// of compressed gradients, which is of one layout.
bool is_of_run(const CheckpointTensor& t) { return t.kind == StateKind::kOptimizer && t.parameter.empty(); }

}  // namespace

bool starts_anew(const CheckpointTensor& wanted, const CheckpointTensor* found) {
  return is_of_run(wanted) && (found == nullptr || found->shape != wanted.shape);
}

absl::Status check_same_model(const std::vector<CheckpointTensor>& wanted, const std::vector<CheckpointTensor>& found,
                              const std::string& path, bool all) {
  std::map<std::string_view, const CheckpointTensor*> have, need;
  for (const CheckpointTensor& t : found) have[t.name] = &t;
  for (const CheckpointTensor& t : wanted) need[t.name] = &t;
  std::vector<std::string> missing, extra;
  std::string shapes;
  int differing = 0;
  for (const CheckpointTensor& t : wanted) {
    auto at = have.find(t.name);
    if (starts_anew(t, at == have.end() ? nullptr : at->second)) continue;
    if (at == have.end()) {
      missing.push_back(cat(t.name, " ", type_text(t)));
    } else if (at->second->shape != t.shape || is_float(at->second->dtype) != is_float(t.dtype)) {
      if (++differing <= 8)
        append(shapes, differing > 1 ? ", " : "", quote(t.name), " is ", type_text(*at->second), " and not ",
               type_text(t));
    }
  }
  for (const CheckpointTensor& t : found) {
    if (all && need.find(t.name) == need.end() && !is_of_run(t)) extra.push_back(cat(t.name, " ", type_text(t)));
  }
  if (missing.empty() && extra.empty() && differing == 0) return absl::OkStatus();
  std::string text = cat("checkpoint ", quote(path, 1000), " is of another model or optimizer:");
  if (!missing.empty()) append(text, " it lacks ", quote_list(missing), ";");
  if (!extra.empty()) append(text, " it has besides ", quote_list(extra), ";");
  if (differing > 0) append(text, " ", shapes, differing > 8 ? cat(" and ", differing - 8, " more") : "", ";");
  append(text, all ? " start without --resume, or with --init to take the parameters alone"
                   : " give a checkpoint of this model's parameters");
  return absl::InvalidArgumentError(text);
}

}  // namespace partita::runtime
