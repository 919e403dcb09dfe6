#include "tools/verify/bundle/bundle.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "tools/verify/bundle/turned_values.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {
namespace {

constexpr std::string_view kSamples = "# samples ", kRun = "# run ";

using File = std::shared_ptr<const runtime::SealedFile>;

absl::StatusOr<Graph> read_graph(const runtime::SealedFile& file) {
  auto graph = parse_graph(as_text(file.bytes()));
  if (!graph.ok()) return with_context(graph.status(), quote(file.path()));
  return graph;
}

// The lines above the serial graph.
absl::Status read_head(const runtime::SealedFile& file, ProgramSet& set) {
  std::string_view text = as_text(file.bytes());
  const bool said =
      text.starts_with(kSamples) &&
      std::from_chars(text.data() + kSamples.size(), text.data() + text.size(), set.samples).ec == std::errc();
  if (!said) return absl::DataLossError(cat(quote(file.path()), ": expected '", kSamples, "N' in the first line"));
  text.remove_prefix(std::min(text.find('\n') + 1, text.size()));
  if (!text.starts_with(kRun)) return absl::OkStatus();
  set.run = nlohmann::json::parse(text.substr(kRun.size(), text.find('\n') - kRun.size()), nullptr, false);
  if (!set.run.is_object())
    return absl::DataLossError(cat(quote(file.path()), ": expected an object in JSON behind '", kRun, "'"));
  return absl::OkStatus();
}

// What the manifest says of how gradients travel.
absl::StatusOr<std::string> read_compression(const runtime::BundleFiles& files) {
  if (!files.manifest().contains("compress")) return "none";
  const nlohmann::json& c = files.manifest()["compress"];
  if (!c.is_object() || !c.contains("kind") || !c["kind"].is_string())
    return absl::DataLossError(
        cat(quote(cat(files.folder(), "/", runtime::kManifestName)), ": compress: expected an object with a kind"));
  return c["kind"].get<std::string>();
}

absl::Status read_programs(const runtime::BundleFiles& bundle, const ProgramFiles& files, ProgramSet& set) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<runtime::Program> images, bundle.programs(files.image));
  PARTITA_ASSIGN_OR_RETURN(const File serial, bundle.checked(files.serial));
  PARTITA_RETURN_IF_ERROR(read_head(*serial, set));
  PARTITA_ASSIGN_OR_RETURN(set.serial, read_graph(*serial));
  for (size_t k = 0; k < images.size(); ++k) {
    RankProgram& p = set.programs.emplace_back();
    PARTITA_ASSIGN_OR_RETURN(const File rank, bundle.checked(stage_file(files.rank, k, images.size())));
    PARTITA_ASSIGN_OR_RETURN(p.rank, read_graph(*rank));
    PARTITA_RETURN_IF_ERROR(expand_rank(p));
    PARTITA_ASSIGN_OR_RETURN(const File lines, bundle.checked(stage_file(files.claims, k, images.size())));
    auto claims = parse_claims(as_text(lines->bytes()), p.code);
    if (!claims.ok()) return with_context(claims.status(), quote(lines->path()));
    p.claims = *std::move(claims);
    p.code = with_turned_values(std::move(p.code), p.claims, p.from);
    PARTITA_ASSIGN_OR_RETURN(const File text, bundle.checked(stage_file(files.nests, k, images.size())));
    auto nests = parse_kernels(as_text(text->bytes()));
    if (!nests.ok()) return with_context(nests.status(), quote(text->path()));
    p.nests = *std::move(nests);
    p.program = std::move(images[k]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status expand_rank(RankProgram& p) {
  std::vector<ValueId> became;
  PARTITA_ASSIGN_OR_RETURN(p.code, expanded(p.rank, p.from, &became));
  p.roundings = fp8_roundings(p.rank, p.code, became);
  return absl::OkStatus();
}

std::string stage_file(std::string_view file, size_t stage, size_t stages) {
  if (stages == 1) return std::string(file);
  size_t dot = file.rfind('.');
  return cat(file.substr(0, dot), ".", stage, file.substr(dot));
}

absl::StatusOr<Bundle> read_bundle(const runtime::BundleFiles& files) {
  Bundle b;
  PARTITA_RETURN_IF_ERROR(read_programs(files, kTrainingFiles, b));
  PARTITA_ASSIGN_OR_RETURN(b.compress, read_compression(files));
  if (files.has(kEvaluationFiles.image))
    PARTITA_RETURN_IF_ERROR(read_programs(files, kEvaluationFiles, b.evaluation.emplace()));
  return b;
}

Graph without_weights(Graph graph) {
  for (State& s : graph.states) {
    if (std::holds_alternative<Literal>(s.initial) || std::holds_alternative<FileRange>(s.initial))
      s.initial = FileRange{"initial.safetensors", 0, 0};
  }
  return graph;
}

absl::Status write_evidence(const SerialEvidence& serial, const std::vector<RankEvidence>& programs,
                            const std::string& folder, const ProgramFiles& files) {
  std::error_code ec;
  std::filesystem::create_directories(folder + "/verify", ec);
  if (ec) return absl::InvalidArgumentError(cat("cannot create ", quote(folder + "/verify"), ": ", ec.message()));
  std::string head = cat(kSamples, serial.samples, "\n");
  if (!serial.run.is_null()) append(head, kRun, serial.run.dump(), "\n");
  PARTITA_RETURN_IF_ERROR(
      write_file_atomically(cat(folder, "/", files.serial), head + print(without_weights(serial.graph)), Durable::kNo));
  for (size_t k = 0; k < programs.size(); ++k) {
    auto path = [&](std::string_view file) { return cat(folder, "/", stage_file(file, k, programs.size())); };
    PARTITA_RETURN_IF_ERROR(
        write_file_atomically(path(files.rank), print(without_weights(programs[k].graph)), Durable::kNo));
    PARTITA_RETURN_IF_ERROR(write_file_atomically(path(files.claims), print_claims(programs[k].claims), Durable::kNo));
    PARTITA_RETURN_IF_ERROR(write_file_atomically(path(files.nests), print_kernels(programs[k].nests), Durable::kNo));
  }
  return absl::OkStatus();
}

}  // namespace partita::verifier
