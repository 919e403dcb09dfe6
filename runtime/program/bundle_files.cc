#include "runtime/program/bundle_files.h"

#include <algorithm>
#include <filesystem>
#include <thread>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/host/processors.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/program_image.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t kChunkBytes = int64_t{1} << 20, kWholeBytes = int64_t{1} << 24;  // above: in chunks
constexpr int64_t kLineBytes = 65;                                                 // of a list of chunks
constexpr const char* kOwnHash = "sha256";                                         // of the manifest

absl::Status damaged(const std::string& path, std::string_view why) {
  return absl::DataLossError(
      cat(quote(path, 1000), " is damaged or of no bundle: ", why, "; copy or compile the bundle again"));
}

// Of what a manifest says, without its own hash.
std::string hash_of(Json manifest) {
  manifest.erase(kOwnHash);
  return sha256_hex(as_byte_span(manifest.dump(2)));
}

// A name inside the folder, and no way out of it.
bool is_inside(const std::string& name) {
  const fs::path path(name);
  return !name.empty() && path.is_relative() && path.lexically_normal() == path && *path.begin() != "..";
}

// A number of the manifest's, or -1.
int64_t number(const Json& entry, const char* key) {
  auto at = entry.find(key);
  return at != entry.end() && at->is_number_integer() && at->get<double>() < 9e18 ? at->get<int64_t>() : -1;
}

std::string text(const Json& entry, const char* key) {
  auto at = entry.find(key);
  return at != entry.end() && at->is_string() ? at->get<std::string>() : "";
}

int64_t count_chunks(int64_t bytes, int64_t chunk_bytes) { return std::max<int64_t>(1, (bytes - 1) / chunk_bytes + 1); }

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (!fs::is_directory(it->symlink_status(ec))) names.push_back(it->path().lexically_relative(folder).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const BundleFiles>> BundleFiles::open(const std::string& folder,
                                                                     const BundleTrust& trust) {
  PARTITA_ASSIGN_OR_RETURN(auto bundle, open_unproved(folder));
  PARTITA_RETURN_IF_ERROR(check_certificate(folder, bundle->root_, trust));
  PARTITA_RETURN_IF_ERROR(bundle->check_manifest());
  return bundle;
}

absl::StatusOr<std::shared_ptr<const BundleFiles>> BundleFiles::open_unproved(const std::string& folder) {
  const std::string path = cat(folder, "/", kManifestName);
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  Json manifest = Json::parse(file.text(), nullptr, false);
  if (!manifest.is_object()) return damaged(path, "expected an object in JSON");
  std::shared_ptr<BundleFiles> bundle(new BundleFiles(folder, sha256_hex(file.bytes()), std::move(manifest)));
  PARTITA_RETURN_IF_ERROR(bundle->read_seals());
  PARTITA_RETURN_IF_ERROR(bundle->check_strangers());
  PARTITA_RETURN_IF_ERROR(bundle->read_chunks());
  return bundle;
}

// The seed, the data's order, when there is an evaluation: a run takes them from here, and a letter that is another one
// would train something else without a word. A certificate is of the manifest as it is, edited or not.
absl::Status BundleFiles::check_manifest() const {
  std::error_code ec;
  const auto own = manifest_.find(kOwnHash);
  const bool older = own == manifest_.end();  // of a compiler that wrote none
  if (older || *own == hash_of(manifest_) || fs::exists(cat(folder_, "/", kCertificateName), ec))
    return absl::OkStatus();
  return absl::DataLossError(
      cat(quote(cat(folder_, "/", kManifestName), 1000),
          " is not as it was written: it was damaged or edited, and a run would be another than "
          "was compiled; copy or compile the bundle again (flags of `partita run` change a run)"));
}

absl::Status BundleFiles::read_seals() {
  const std::string path = cat(folder_, "/", kManifestName);
  auto list = manifest_.find("files");
  if (list == manifest_.end() || !list->is_object()) return damaged(path, "expected `files`, an object");
  if (manifest_.value("version", Json()) != kManifestVersion)
    return absl::FailedPreconditionError(cat(quote(path, 1000), ": expected version ", kManifestVersion,
                                             "; compile the bundle again with this compiler"));
  for (const auto& [name, entry] : list->items()) {
    if (!is_inside(name) || !entry.is_object()) return damaged(path, cat("files: ", quote(name)));
    FileSeal seal{number(entry, "bytes"), number(entry, "chunk_bytes"), {}};
    const auto whole = sha256_from_hex(text(entry, "sha256"));
    if (whole) seal.chunk_bytes = std::max<int64_t>(1, seal.bytes), seal.chunks = {*whole};
    if (seal.bytes < 0 || seal.chunk_bytes < 1 || (!whole && text(entry, "chunks").empty()))
      return damaged(path,
                     cat("files: ", quote(name), ": expected bytes and sha256, or bytes, chunk_bytes and chunks"));
    seals_.emplace(name, std::move(seal));
  }
  return absl::OkStatus();
}

absl::Status BundleFiles::read_chunks() {
  for (auto& [name, seal] : seals_) {
    if (!seal.chunks.empty()) continue;
    PARTITA_ASSIGN_OR_RETURN(const auto list, checked(text(manifest_["files"][name], "chunks")));
    const std::string_view lines = as_text(list->bytes());
    const int64_t count = count_chunks(seal.bytes, seal.chunk_bytes);
    const auto bad = [&] { return damaged(list->path(), cat("expected ", count, " lines of 64 hex digits")); };
    if (static_cast<int64_t>(lines.size()) != count * kLineBytes) return bad();
    for (int64_t k = 0; k < count; ++k) {
      const auto hash = sha256_from_hex(lines.substr(static_cast<size_t>(k * kLineBytes), kLineBytes - 1));
      if (!hash) return bad();
      seal.chunks.push_back(*hash);
    }
  }
  return absl::OkStatus();
}

// What the loader or the verifier would take up by its name alone.
absl::Status BundleFiles::check_strangers() const {
  for (const char* folder : {kLibrariesName, kEvidenceName}) {
    for (const std::string& file : files_of(cat(folder_, "/", folder))) {
      const std::string name = cat(folder, "/", file);
      if (!has(name))
        return absl::FailedPreconditionError(cat(quote(cat(folder_, "/", name), 1000), " is not among the files that ",
                                                 kManifestName, " lists; remove it, or compile the bundle again"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> BundleFiles::names() const {
  std::vector<std::string> all;
  for (const auto& [name, seal] : seals_) all.push_back(name);
  return all;
}

absl::StatusOr<std::shared_ptr<const SealedFile>> BundleFiles::file(const std::string& name) const {
  auto seal = seals_.find(name);
  if (seal == seals_.end())
    return absl::FailedPreconditionError(
        cat(quote(name), " is not among the files that ", quote(cat(folder_, "/", kManifestName), 1000), " lists"));
  const std::lock_guard lock(mutex_);
  std::shared_ptr<const SealedFile>& open = open_[name];
  if (open == nullptr) {
    PARTITA_ASSIGN_OR_RETURN(open, SealedFile::open(cat(folder_, "/", name), seal->second));
  }
  return open;
}

absl::StatusOr<std::shared_ptr<const SealedFile>> BundleFiles::checked(const std::string& name) const {
  PARTITA_ASSIGN_OR_RETURN(auto opened, file(name));
  PARTITA_RETURN_IF_ERROR(opened->check_all(1));
  return opened;
}

absl::StatusOr<std::vector<Program>> BundleFiles::programs(const std::string& name) const {
  PARTITA_ASSIGN_OR_RETURN(const auto image, checked(name));
  auto programs = parse_programs(image->bytes());
  if (!programs.ok()) return with_context(programs.status(), quote(image->path(), 1000));
  return programs;
}

absl::Status BundleFiles::check_copy(const std::string& name, const std::string& path) const {
  PARTITA_RETURN_IF_ERROR(file(name).status());
  PARTITA_ASSIGN_OR_RETURN(const auto copy, SealedFile::open(path, seals_.at(name)));
  return copy->check_all(1);
}

absl::Status BundleFiles::check(int threads, bool weights) const {
  std::vector<CheckAhead::Chunk> chunks;
  for (const auto& [name, seal] : seals_) {
    PARTITA_ASSIGN_OR_RETURN(const auto opened, file(name));
    for (size_t k = 0; k < opened->chunks() && (weights || name != kInitialName); ++k)
      chunks.push_back({opened.get(), k});
  }
  return CheckAhead(std::move(chunks), threads).wait();
}

namespace {

// Of a bundle within this one.
bool is_within(const std::string& name) {
  for (const char* folder : {kPlansName, kBatchesName, kLengthsName}) {
    if (name.starts_with(cat(folder, "/"))) return true;
  }
  return false;
}

// The entry of `files`, and the list of chunks of a large file.
absl::StatusOr<Json> seal_file(const std::string& folder, const std::string& name) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(cat(folder, "/", name)));
  const std::span<const std::byte> bytes = file.bytes();
  if (file.size() <= kWholeBytes) return Json{{"bytes", file.size()}, {"sha256", sha256_hex(bytes)}};
  const int64_t count = count_chunks(file.size(), kChunkBytes);
  std::vector<Sha256> hashes(static_cast<size_t>(count));
  std::atomic<int64_t> next = 0;
  std::vector<std::thread> team;
  for (int t = 0; t < usable_processors(); ++t) {
    team.emplace_back([&] {
      for (int64_t k; (k = next.fetch_add(1)) < count;) {
        const int64_t begin = k * kChunkBytes, size = std::min(kChunkBytes, file.size() - begin);
        hashes[static_cast<size_t>(k)] = sha256(bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(size)));
      }
    });
  }
  for (std::thread& t : team) t.join();
  std::string list;
  for (const Sha256& hash : hashes) append(list, to_hex(hash), "\n");
  const std::string chunks = name + kChunksSuffix;
  PARTITA_RETURN_IF_ERROR(write_file_atomically(cat(folder, "/", chunks), list, Durable::kNo));
  return Json{{"bytes", file.size()}, {"chunk_bytes", kChunkBytes}, {"chunks", chunks}};
}

}  // namespace

absl::Status seal_bundle(const std::string& folder, Json manifest) {
  std::error_code ec;
  for (const char* name : {kManifestName, kCertificateName, kSignatureName}) fs::remove(cat(folder, "/", name), ec);
  for (const std::string& name : files_of(folder)) {
    if (name.ends_with(kChunksSuffix) && !is_within(name)) fs::remove(cat(folder, "/", name), ec);
  }
  Json files = Json::object();
  for (const std::string& name : files_of(folder)) {
    // Of a bundle within, its manifest stands for the rest.
    if (is_within(name) && fs::path(name).filename() != kManifestName) continue;
    PARTITA_ASSIGN_OR_RETURN(files[name], seal_file(folder, name));
    if (!files[name].contains("chunks")) continue;
    const std::string list = files[name]["chunks"];
    PARTITA_ASSIGN_OR_RETURN(files[list], seal_file(folder, list));
  }
  manifest["files"] = std::move(files);
  manifest[kOwnHash] = hash_of(manifest);
  return write_file_atomically(cat(folder, "/", kManifestName), manifest.dump(2) + "\n", Durable::kNo);
}

}  // namespace partita::runtime
