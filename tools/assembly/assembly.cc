#include "tools/assembly/assembly.h"

#include <filesystem>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "nlohmann/json.hpp"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/program_image.h"
#include "tools/assembly/program_json.h"
#include "tools/flow/write_bundle.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr int64_t kMostBytes = int64_t{4} << 30;

absl::StatusOr<Json> programs_json(const runtime::BundleFiles& files, const char* name) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<runtime::Program> programs, files.programs(name));
  Json list = Json::array();
  for (const runtime::Program& p : programs) {
    PARTITA_ASSIGN_OR_RETURN(Json one, program_json(p));
    list.push_back(std::move(one));
  }
  return list;
}

absl::StatusOr<std::string> read_images(const Json& list, const std::string& place) {
  if (!list.is_array() || list.empty()) return absl::InvalidArgumentError(cat(place, ": expected a list of programs"));
  std::vector<runtime::Program> programs;
  for (size_t k = 0; k < list.size(); ++k) {
    PARTITA_ASSIGN_OR_RETURN(runtime::Program p, parse_program_json(list[k], cat(place, "[", k, "]")));
    programs.push_back(std::move(p));
  }
  return runtime::serialize_programs(programs);
}

struct Images {
  std::string bundle;                // that they are from
  std::string training, evaluation;  // "": none
};

absl::StatusOr<Images> read_file(const std::string& file) {
  PARTITA_ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMostBytes));
  const Json json = Json::parse(text, nullptr, false);
  auto wrong = [&](const std::string& what) { return absl::InvalidArgumentError(cat(shown_path(file), ": ", what)); };
  if (!json.is_object()) return wrong("expected JSON that `partita disassemble` wrote");
  if (json.value("version", Json()) != kVersion)
    return wrong(cat("expected version ", kVersion, "; disassemble the bundle with this release"));
  if (!json.contains("bundle") || !json["bundle"].is_string()) return wrong("bundle: expected a path");
  if (!json.contains("programs")) return wrong("programs: expected a list of programs");
  Images images{.bundle = json["bundle"].get<std::string>(), .training = {}, .evaluation = {}};
  auto training = read_images(json["programs"], "programs");
  if (!training.ok()) return with_context(training.status(), shown_path(file));
  images.training = *std::move(training);
  if (!json.contains("evaluation")) return images;
  auto evaluation = read_images(json["evaluation"], "evaluation");
  if (!evaluation.ok()) return with_context(evaluation.status(), shown_path(file));
  images.evaluation = *std::move(evaluation);
  return images;
}

// Everything of a bundle but its programs, and what says what its files are. The libraries are links where there are
// links, as in a bundle that was compiled.
absl::Status copy_rest(const std::string& from, const std::string& to) {
  std::error_code ec;
  for (fs::directory_iterator file(from, ec), end; !ec && file != end; file.increment(ec)) {
    const std::string name = file->path().filename().string();
    if (name == runtime::kImageName || name == runtime::kEvaluationName || name == runtime::kManifestName ||
        name == runtime::kCertificateName || name == runtime::kSignatureName || name == runtime::kPlansName ||
        name == runtime::kBatchesName || name.ends_with(runtime::kChunksSuffix))
      continue;
    const auto how = name == runtime::kLibrariesName ? fs::copy_options::recursive | fs::copy_options::create_hard_links
                                                     : fs::copy_options::recursive;
    std::error_code no_link;
    fs::copy(file->path(), fs::path(to) / name, how, no_link);
    if (no_link && name == runtime::kLibrariesName)
      fs::copy(file->path(), fs::path(to) / name, fs::copy_options::recursive | fs::copy_options::overwrite_existing,
               ec);
    else if (no_link)
      ec = no_link;
    if (ec) break;
  }
  if (ec) return absl::InvalidArgumentError(cat("cannot copy ", quote(from), ": ", ec.message()));
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> read_manifest(const std::string& bundle) {
  const std::string path = cat(bundle, "/", runtime::kManifestName);
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  nlohmann::json json = nlohmann::json::parse(file.text(), nullptr, false);
  if (!json.is_object()) return absl::DataLossError(cat(quote(path), ": expected an object in JSON"));
  return json;
}

}  // namespace

absl::StatusOr<std::string> disassemble(const std::string& bundle) {
  std::error_code ec;
  Json json = {{"version", kVersion}, {"bundle", fs::weakly_canonical(bundle, ec).string()}};
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(bundle));
  PARTITA_ASSIGN_OR_RETURN(json["programs"], programs_json(*files, runtime::kImageName));
  if (files->has(runtime::kEvaluationName)) {
    PARTITA_ASSIGN_OR_RETURN(json["evaluation"], programs_json(*files, runtime::kEvaluationName));
  }
  return indented(json);
}

absl::Status assemble(const std::string& file, const std::string& like, const std::string& folder) {
  PARTITA_ASSIGN_OR_RETURN(const Images images, read_file(file));
  const std::string& from = like.empty() ? images.bundle : like;
  std::error_code ec;
  if (!fs::exists(cat(from, "/", runtime::kManifestName), ec))
    return absl::NotFoundError(cat("the bundle that ", shown_path(file), " is from is not at ", quote(from, 1000),
                                   "; say where it is with --like"));
  return replace_bundle(folder, [&](const std::string& fresh) -> absl::Status {
    PARTITA_RETURN_IF_ERROR(copy_rest(from, fresh));
    auto write = [&](const char* name, const std::string& image) {
      return write_file_atomically(cat(fresh, "/", name), image, Durable::kNo);
    };
    PARTITA_RETURN_IF_ERROR(write(runtime::kImageName, images.training));
    if (!images.evaluation.empty()) PARTITA_RETURN_IF_ERROR(write(runtime::kEvaluationName, images.evaluation));
    PARTITA_ASSIGN_OR_RETURN(nlohmann::json manifest, read_manifest(from));
    manifest.erase("also");  // of the programs alone
    return runtime::seal_bundle(fresh, std::move(manifest));
  });
}

}  // namespace partita
