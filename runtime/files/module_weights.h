// The weights of a module in one or more safetensors files, as Hugging Face's save_pretrained() leaves them: one file,
// or a folder with `model.safetensors`, or with `model.safetensors.index.json` and the files ("shards") that it names.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/files/safetensors.h"

namespace partita::runtime {

// Whether the path is a folder of such weights: of a whole model, of PEFT's adapters (`adapter_model.safetensors`) or
// of a part of diffusers' (`diffusion_pytorch_model.safetensors`). No folder of checkpoints is one.
bool is_module_folder(const std::string& path);

class ModuleWeights {
 public:
  // A .safetensors file, or a folder as above. Reads the headers alone. NotFound where a shard is missing;
  // InvalidArgument where the folder has no such weights, or where the index and a shard differ in a tensor: they name
  // the file and the tensor.
  static absl::StatusOr<ModuleWeights> open(const std::string& path);

  // As it was given to open().
  const std::string& path() const { return path_; }
  // "model.safetensors.index.json", of a folder that has one; else empty.
  const std::string& index() const { return index_name_; }
  // Names of the files within the folder, or the one file's path.
  const std::vector<std::string>& shards() const { return shards_; }
  // Of all files, shard by shard, each in file order.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // nullptr when absent.
  const SafetensorsEntry* find(std::string_view name) const;
  // Which of shards() holds the entry, one of entries().
  size_t shard_of(const SafetensorsEntry& entry) const {
    return shard_of_[static_cast<size_t>(&entry - entries_.data())];
  }
  // As SafetensorsFile's, of an entry of entries(). Reading takes no memory for long: the pages of the file that were
  // read are this process's no more when it is done.
  std::span<const std::byte> data(const SafetensorsEntry& entry) const { return files_[shard_of(entry)].data(entry); }
  absl::Status read(const SafetensorsEntry& entry, std::span<const int64_t> offset, std::span<const int64_t> extent,
                    std::span<std::byte> out) const;

 private:
  absl::Status add(const std::string& name, const std::string& path);
  absl::Status open_folder(const std::string& folder);
  absl::Status open_index(const std::string& folder);

  std::string path_, index_name_;
  std::vector<std::string> shards_;
  std::vector<SafetensorsFile> files_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<size_t> shard_of_;                      // by entry
  std::map<std::string, size_t, std::less<>> where_;  // name -> entry
};

}  // namespace partita::runtime
