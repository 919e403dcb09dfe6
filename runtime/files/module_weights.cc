#include "runtime/files/module_weights.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

// What the libraries call the weights of a model, of adapters, and of a part of a pipeline.
constexpr std::string_view kStems[] = {"model", "adapter_model", "diffusion_pytorch_model"};
constexpr std::string_view kShort = ".safetensors", kIndex = ".safetensors.index.json";

bool is_file(const std::string& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// The name in the folder of the one file to begin with, an index before a single file; "" where there is none.
std::string first_file(const std::string& folder) {
  for (std::string_view stem : kStems) {
    for (std::string_view end : {kIndex, kShort}) {
      std::string name = cat(stem, end);
      if (is_file(cat(folder, "/", name))) return name;
    }
  }
  return "";
}

}  // namespace

bool is_module_folder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error) && !first_file(path).empty();
}

absl::StatusOr<ModuleWeights> ModuleWeights::open(const std::string& path) {
  ModuleWeights weights;
  weights.path_ = path;
  std::error_code error;
  PARTITA_RETURN_IF_ERROR(fs::is_directory(path, error) ? weights.open_folder(path) : weights.add(path, path));
  return weights;
}

absl::Status ModuleWeights::add(const std::string& name, const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  for (const SafetensorsEntry& e : file.entries()) {
    const auto [at, fresh] = where_.try_emplace(e.name, entries_.size());
    if (!fresh)
      return absl::InvalidArgumentError(cat(quote(path_, 1000), ": tensor ", quote(e.name), " is in two files, ",
                                            quote(shards_[shard_of_[at->second]]), " and ", quote(name)));
    entries_.push_back(e);
    shard_of_.push_back(files_.size());
  }
  shards_.push_back(name);
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status ModuleWeights::open_folder(const std::string& folder) {
  const std::string first = first_file(folder);
  if (first.ends_with(kIndex)) {
    index_name_ = first;
    return open_index(folder);
  }
  if (!first.empty()) return add(first, cat(folder, "/", first));
  const bool pickled =
      is_file(cat(folder, "/pytorch_model.bin")) || is_file(cat(folder, "/pytorch_model.bin.index.json"));
  return absl::InvalidArgumentError(cat(quote(folder, 1000),
                                        ": expected model.safetensors or model.safetensors.index.json, found ",
                                        pickled ? "pytorch_model.bin, which may run code when read; in Python: "
                                                  "model.save_pretrained(FOLDER) writes safetensors"
                                                : "neither"));
}

// {"weight_map": {tensor: file}}
absl::Status ModuleWeights::open_index(const std::string& folder) {
  const std::string path = cat(folder, "/", index_name_);
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  const nlohmann::json json = nlohmann::json::parse(file.text(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object())
    return absl::InvalidArgumentError(
        cat(quote(path, 1000), ": expected JSON with `weight_map`, a mapping from tensors to files"));
  std::map<std::string, std::string> listed;
  std::set<std::string> names;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    const std::string name = shard.is_string() ? shard.get<std::string>() : "";
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..")
      return absl::InvalidArgumentError(cat(
          quote(path, 1000), ": weight_map: ", quote(tensor), ": expected the name of a file in this folder, found ",
          quote(shard.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))));
    listed[tensor] = name;
    names.insert(name);
  }
  for (const std::string& name : names)
    PARTITA_RETURN_IF_ERROR(with_context(add(name, cat(folder, "/", name)), cat(quote(index_name_), " names it")));
  std::vector<std::string> astray;
  for (const auto& [tensor, shard] : listed) {
    const SafetensorsEntry* entry = find(tensor);
    if (entry == nullptr || shards_[shard_of(*entry)] != shard) astray.push_back(cat(tensor, " in ", shard));
  }
  if (!astray.empty())
    return absl::InvalidArgumentError(cat(quote(path, 1000), ": ", astray.size(),
                                          " tensors are not in the files that it names: ", quote_list(astray),
                                          "; a file was exchanged, or the download is not complete"));
  return absl::OkStatus();
}

const SafetensorsEntry* ModuleWeights::find(std::string_view name) const {
  const auto at = where_.find(name);
  return at == where_.end() ? nullptr : &entries_[at->second];
}

absl::Status ModuleWeights::read(const SafetensorsEntry& entry, std::span<const int64_t> offset,
                                 std::span<const int64_t> extent, std::span<std::byte> out) const {
  const SafetensorsFile& file = files_[shard_of(entry)];
  PARTITA_RETURN_IF_ERROR(file.read(entry.name, offset, extent, out));
  MappedFile::let_go(file.data(entry));
  return absl::OkStatus();
}

}  // namespace partita::runtime
