#include "tools/verify/bundle/bundle.h"

#include <charconv>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "nlohmann/json.hpp"
#include "runtime/program/program_image.h"
#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {
namespace {

absl::StatusOr<Graph> read_graph(const std::string& path, int64_t* samples = nullptr) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  if (samples != nullptr) {
    constexpr std::string_view kHead = "# samples ";
    std::string_view text = file.text();
    bool said = text.starts_with(kHead) &&
                std::from_chars(text.data() + kHead.size(), text.data() + text.size(), *samples).ec == std::errc();
    if (!said) return absl::DataLossError(cat(quote(path), ": expected '# samples N' in the first line"));
  }
  auto graph = parse_graph(file.text());
  if (!graph.ok()) return with_context(graph.status(), quote(path));
  return graph;
}

// What the manifest says of how gradients travel.
absl::StatusOr<std::string> read_compression(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  nlohmann::json j = nlohmann::json::parse(file.text(), nullptr, false);
  if (!j.is_object()) return absl::DataLossError(cat(quote(path), ": expected an object in JSON"));
  if (!j.contains("compress")) return "none";
  const nlohmann::json& c = j["compress"];
  if (!c.is_object() || !c.contains("kind") || !c["kind"].is_string())
    return absl::DataLossError(cat(quote(path), ": compress: expected an object with a kind"));
  return c["kind"].get<std::string>();
}

absl::Status read_programs(const std::string& folder, const ProgramFiles& files, ProgramSet& set) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<runtime::Program> images, runtime::load_images(cat(folder, "/", files.image)));
  PARTITA_ASSIGN_OR_RETURN(set.serial, read_graph(cat(folder, "/", files.serial), &set.samples));
  for (size_t k = 0; k < images.size(); ++k) {
    RankProgram& p = set.programs.emplace_back();
    PARTITA_ASSIGN_OR_RETURN(p.rank, read_graph(cat(folder, "/", stage_file(files.rank, k, images.size()))));
    PARTITA_ASSIGN_OR_RETURN(p.code, expanded(p.rank, p.from));
    std::string path = cat(folder, "/", stage_file(files.claims, k, images.size()));
    PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
    auto claims = parse_claims(file.text(), p.code);
    if (!claims.ok()) return with_context(claims.status(), quote(path));
    p.claims = *std::move(claims);
    path = cat(folder, "/", stage_file(files.nests, k, images.size()));
    PARTITA_ASSIGN_OR_RETURN(MappedFile text, MappedFile::open(path));
    auto nests = parse_kernels(text.text());
    if (!nests.ok()) return with_context(nests.status(), quote(path));
    p.nests = *std::move(nests);
    p.program = std::move(images[k]);
  }
  return absl::OkStatus();
}

}  // namespace

std::string stage_file(std::string_view file, size_t stage, size_t stages) {
  if (stages == 1) return std::string(file);
  size_t dot = file.rfind('.');
  return cat(file.substr(0, dot), ".", stage, file.substr(dot));
}

absl::StatusOr<Bundle> read_bundle(const std::string& folder) {
  Bundle b;
  PARTITA_RETURN_IF_ERROR(read_programs(folder, kTrainingFiles, b));
  PARTITA_ASSIGN_OR_RETURN(b.compress, read_compression(cat(folder, "/", kManifestFile)));
  std::error_code ec;
  if (std::filesystem::exists(cat(folder, "/", kEvaluationFiles.image), ec))
    PARTITA_RETURN_IF_ERROR(read_programs(folder, kEvaluationFiles, b.evaluation.emplace()));
  return b;
}

Graph without_weights(Graph graph) {
  for (State& s : graph.states) {
    if (std::holds_alternative<Literal>(s.initial) || std::holds_alternative<FileRange>(s.initial))
      s.initial = FileRange{"initial.safetensors", 0, 0};
  }
  return graph;
}

absl::Status write_evidence(const Graph& serial, int64_t samples, const std::vector<RankEvidence>& programs,
                            const std::string& folder, const ProgramFiles& files) {
  std::error_code ec;
  std::filesystem::create_directories(folder + "/verify", ec);
  if (ec) return absl::InvalidArgumentError(cat("cannot create ", quote(folder + "/verify"), ": ", ec.message()));
  PARTITA_RETURN_IF_ERROR(write_file_atomically(
      cat(folder, "/", files.serial), cat("# samples ", samples, "\n", print(without_weights(serial))), Durable::kNo));
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
