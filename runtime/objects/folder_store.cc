#include "runtime/objects/folder_store.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

class FolderStore : public ObjectStore {
 public:
  FolderStore(std::string folder, Transfers* transfers) : folder_(std::move(folder)), transfers_(transfers) {}

  absl::StatusOr<std::vector<ObjectInfo>> list(const std::string& prefix) override {
    std::vector<ObjectInfo> found;
    std::error_code error;
    for (fs::recursive_directory_iterator at(folder_, error), end; !error && at != end; at.increment(error)) {
      moved(transfers_);
      std::error_code gone;
      const std::string name = at->path().lexically_relative(folder_).string();
      // Folders that can hold nothing of the prefix are not walked: an index is looked for once a second.
      if (!cat(name, "/").starts_with(prefix) && !prefix.starts_with(cat(name, "/"))) at.disable_recursion_pending();
      // What is being written, here or by another program, is hidden.
      if (at->path().filename().string().starts_with('.') || !name.starts_with(prefix)) continue;
      if (!at->is_regular_file(gone)) continue;
      const auto bytes = static_cast<int64_t>(at->file_size(gone));
      if (!gone) found.push_back({name, bytes});
    }
    if (error) return file_error("list the folder", folder_, error.value());
    std::sort(found.begin(), found.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.name < b.name; });
    return found;
  }

  absl::Status put(const std::string& name, std::span<const std::byte> bytes) override {
    // What is not on the disk has not moved: without this the last flush would have all of it to wait for.
    constexpr size_t kChunk = 16 << 20, kFlushed = 4;  // bytes, chunks
    const std::string path = path_of(name);
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    if (error) return file_error("make the folder of", path, error.value());
    PARTITA_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::create(path));
    PARTITA_RETURN_IF_ERROR(file.reserve(static_cast<int64_t>(bytes.size())));
    for (size_t at = 0; at < bytes.size(); at += kChunk) {
      if (gives_up(transfers_)) return absl::CancelledError("told to give up");
      PARTITA_RETURN_IF_ERROR(file.append(bytes.subspan(at, std::min(kChunk, bytes.size() - at))));
      if (at / kChunk % kFlushed == kFlushed - 1) PARTITA_RETURN_IF_ERROR(file.flush());
      moved(transfers_);
    }
    PARTITA_RETURN_IF_ERROR(file.commit());
    moved(transfers_);
    return absl::OkStatus();
  }

  absl::Status read(const std::string& name, int64_t offset, std::span<std::byte> out) override {
    PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path_of(name)));
    if (offset < 0 || offset > file.size() || static_cast<int64_t>(out.size()) > file.size() - offset)
      return absl::InvalidArgumentError(cat(quote(file.path(), 1000), " has ", file.size(), " bytes; asked for ",
                                            out.size(), " from byte ", offset, " on"));
    if (!out.empty()) std::memcpy(out.data(), file.bytes().data() + offset, out.size());
    moved(transfers_);
    return absl::OkStatus();
  }

  absl::Status remove(const std::string& name) override {
    std::error_code error, ignored;
    const fs::path path = path_of(name);
    fs::remove(path, error);
    if (error) return file_error("remove", path.string(), error.value());
    // Folders are no objects: they go with what they held.
    for (fs::path up = path.parent_path(); up != fs::path(folder_) && fs::remove(up, ignored);) up = up.parent_path();
    moved(transfers_);
    return absl::OkStatus();
  }

  const std::string& place() const override { return folder_; }

 private:
  std::string path_of(const std::string& name) const { return cat(folder_, "/", name); }

  const std::string folder_;
  Transfers* const transfers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectStore>> open_folder_store(const std::string& folder, Transfers* transfers) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return file_error("make the folder", folder, error.value());
  return std::make_unique<FolderStore>(fs::path(folder).lexically_normal().string(), transfers);
}

}  // namespace partita::runtime
