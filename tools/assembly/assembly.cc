#include "tools/assembly/assembly.h"

#include <filesystem>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
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
  std::string training, evaluation;       // "": none
  std::map<std::string, Images> lengths;  // by length
};

absl::StatusOr<Images> read_programs(const Json& json, const std::string& place, bool whole) {
  Images images;
  if (!json.is_object() || !json.contains("programs"))
    return absl::InvalidArgumentError(cat(place, "programs: expected a list of programs"));
  PARTITA_ASSIGN_OR_RETURN(images.training, read_images(json["programs"], cat(place, "programs")));
  if (json.contains("evaluation")) {
    PARTITA_ASSIGN_OR_RETURN(images.evaluation, read_images(json["evaluation"], cat(place, "evaluation")));
  }
  const Json lengths = whole ? json.value("lengths", Json::object()) : Json::object();
  for (const auto& [length, programs] : lengths.items()) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(length, &number) || number < 1 || cat(number) != length)
      return absl::InvalidArgumentError(cat("lengths: expected numbers, found ", quote(length, 100)));
    PARTITA_ASSIGN_OR_RETURN(images.lengths[length], read_programs(programs, cat("lengths.", length, "."), false));
  }
  return images;
}

absl::StatusOr<Images> read_file(const std::string& file, std::string& bundle) {
  PARTITA_ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMostBytes));
  const Json json = Json::parse(text, nullptr, false);
  auto wrong = [&](const std::string& what) { return absl::InvalidArgumentError(cat(shown_path(file), ": ", what)); };
  if (!json.is_object()) return wrong("expected JSON that `partita disassemble` wrote");
  if (json.value("version", Json()) != kVersion)
    return wrong(cat("expected version ", kVersion, "; disassemble the bundle with this release"));
  if (!json.contains("bundle") || !json["bundle"].is_string()) return wrong("bundle: expected a path");
  bundle = json["bundle"].get<std::string>();
  auto images = read_programs(json, "", true);
  if (!images.ok()) return with_context(images.status(), shown_path(file));
  return images;
}

// Everything of a bundle but its programs, and what says what its files are. The libraries are links where there are
// links, as in a bundle that was compiled; the first weights of a part are a link to the whole's.
absl::Status copy_rest(const std::string& from, const std::string& to, bool part) {
  std::error_code ec;
  for (fs::directory_iterator file(from, ec), end; !ec && file != end; file.increment(ec)) {
    const std::string name = file->path().filename().string();
    if (name == runtime::kImageName || name == runtime::kEvaluationName || name == runtime::kManifestName ||
        name == runtime::kCertificateName || name == runtime::kSignatureName || name == runtime::kPlansName ||
        name == runtime::kBatchesName || name == runtime::kLengthsName || name.ends_with(runtime::kChunksSuffix))
      continue;
    const auto how = name == runtime::kLibrariesName ? fs::copy_options::recursive | fs::copy_options::create_hard_links
                                                     : fs::copy_options::recursive;
    std::error_code no_link;
    if (part && name == runtime::kInitialName) {
      fs::copy_symlink(file->path(), fs::path(to) / name, ec);
      if (ec) break;
      continue;
    }
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

absl::Status add_programs(const runtime::BundleFiles& files, Json& json) {
  PARTITA_ASSIGN_OR_RETURN(json["programs"], programs_json(files, runtime::kImageName));
  if (files.has(runtime::kEvaluationName)) {
    PARTITA_ASSIGN_OR_RETURN(json["evaluation"], programs_json(files, runtime::kEvaluationName));
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> read_manifest(const std::string& bundle) {
  const std::string path = cat(bundle, "/", runtime::kManifestName);
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  nlohmann::json json = nlohmann::json::parse(file.text(), nullptr, false);
  if (!json.is_object()) return absl::DataLossError(cat(quote(path), ": expected an object in JSON"));
  return json;
}

// These programs and all else of `from`, but for the manifest, in a folder that is there.
absl::Status write_all(const Images& images, const std::string& from, const std::string& folder, bool part) {
  PARTITA_RETURN_IF_ERROR(copy_rest(from, folder, part));
  auto write = [&](const char* name, const std::string& image) {
    return write_file_atomically(cat(folder, "/", name), image, Durable::kNo);
  };
  if (!images.evaluation.empty()) PARTITA_RETURN_IF_ERROR(write(runtime::kEvaluationName, images.evaluation));
  return write(runtime::kImageName, images.training);
}

absl::Status seal_as(const std::string& from, const std::string& folder) {
  PARTITA_ASSIGN_OR_RETURN(nlohmann::json manifest, read_manifest(from));
  manifest.erase("also");  // of the programs alone
  return runtime::seal_bundle(folder, std::move(manifest));
}

}  // namespace

absl::StatusOr<std::string> disassemble(const std::string& bundle) {
  std::error_code ec;
  Json json = {{"version", kVersion}, {"bundle", fs::weakly_canonical(bundle, ec).string()}};
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(bundle));
  PARTITA_RETURN_IF_ERROR(add_programs(*files, json));
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> lengths, runtime::lengths_of(*files));
  for (const int64_t length : lengths) {
    if (length == lengths.back() || runtime::length_of(*files) != lengths.back()) continue;
    PARTITA_ASSIGN_OR_RETURN(const auto part, runtime::open_length(*files, length, nullptr));
    PARTITA_RETURN_IF_ERROR(add_programs(*part, json["lengths"][cat(length)]));
  }
  return indented(json);
}

absl::Status assemble(const std::string& file, const std::string& like, const std::string& folder) {
  std::string origin;
  PARTITA_ASSIGN_OR_RETURN(const Images images, read_file(file, origin));
  const std::string& from = like.empty() ? origin : like;
  std::error_code ec;
  if (!fs::exists(cat(from, "/", runtime::kManifestName), ec))
    return absl::NotFoundError(cat("the bundle that ", shown_path(file), " is from is not at ", quote(from, 1000),
                                   "; say where it is with --like"));
  return replace_bundle(folder, [&](const std::string& fresh) -> absl::Status {
    PARTITA_RETURN_IF_ERROR(write_all(images, from, fresh, /*part=*/false));
    for (const auto& [length, part] : images.lengths) {
      const std::string within = cat("/", runtime::kLengthsName, "/", length);
      fs::create_directories(fresh + within, ec);
      PARTITA_RETURN_IF_ERROR(write_all(part, from + within, fresh + within, /*part=*/true));
      PARTITA_RETURN_IF_ERROR(seal_as(from + within, fresh + within));
    }
    return seal_as(from, fresh);
  });
}

}  // namespace partita
