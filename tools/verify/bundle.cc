#include "tools/verify/bundle.h"

#include <charconv>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/parse.h"
#include "ir/print.h"
#include "runtime/program_image.h"
#include "tools/verify/serial_values.h"

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

}  // namespace

absl::StatusOr<Bundle> read_bundle(const std::string& folder) {
  Bundle b;
  PARTITA_ASSIGN_OR_RETURN(b.program, runtime::load_image(cat(folder, "/", kImageFile)));
  PARTITA_ASSIGN_OR_RETURN(b.serial, read_graph(cat(folder, "/", kSerialFile), &b.samples));
  PARTITA_ASSIGN_OR_RETURN(b.rank, read_graph(cat(folder, "/", kRankFile)));
  PARTITA_ASSIGN_OR_RETURN(b.code, expanded(b.rank, b.from));
  std::string path = cat(folder, "/", kClaimsFile);
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  auto claims = parse_claims(file.text(), b.code);
  if (!claims.ok()) return with_context(claims.status(), quote(path));
  b.claims = *std::move(claims);
  return b;
}

Graph without_weights(Graph graph) {
  for (State& s : graph.states) {
    if (std::holds_alternative<Literal>(s.initial) || std::holds_alternative<FileRange>(s.initial))
      s.initial = FileRange{"initial.safetensors", 0, 0};
  }
  return graph;
}

absl::Status write_evidence(const Graph& serial, int64_t samples, const Graph& rank, const std::vector<Claim>& claims,
                            const std::string& folder) {
  std::error_code ec;
  std::filesystem::create_directories(folder + "/verify", ec);
  if (ec) return absl::InvalidArgumentError(cat("cannot create ", quote(folder + "/verify"), ": ", ec.message()));
  PARTITA_RETURN_IF_ERROR(write_file_atomically(
      cat(folder, "/", kSerialFile), cat("# samples ", samples, "\n", print(without_weights(serial))), Durable::kNo));
  PARTITA_RETURN_IF_ERROR(
      write_file_atomically(cat(folder, "/", kRankFile), print(without_weights(rank)), Durable::kNo));
  return write_file_atomically(cat(folder, "/", kClaimsFile), print_claims(claims), Durable::kNo);
}

}  // namespace partita::verifier
