#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/records/image.h"
#include "runtime/data/records/record_store.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

std::string suffix_of(const fs::path& path) {
  const std::string suffix = path.extension().string();
  return suffix.empty() ? "" : absl::AsciiStrToLower(suffix.substr(1));
}

// What torchvision's ImageFolder takes for a picture besides, and nothing here decodes: samples would be others
// without.
bool is_foreign_image(std::string_view suffix) {
  constexpr std::string_view kForeign[] = {"bmp", "pgm", "ppm", "tif", "tiff", "webp"};
  return std::find(std::begin(kForeign), std::end(kForeign), suffix) != std::end(kForeign);
}

struct Picture {
  std::string path;  // below the folder
  int64_t label = 0;
};

class ImageFolder : public RecordStore {
 public:
  ImageFolder(std::string folder, std::vector<std::string> classes, std::vector<Picture> pictures)
      : folder_(std::move(folder)), classes_(std::move(classes)), pictures_(std::move(pictures)) {}

  int64_t records() const override { return static_cast<int64_t>(pictures_.size()); }
  std::string describe() const override { return cat("image folder ", quote(folder_, 1000)); }
  std::string locate(int64_t record) const override { return quote(path(record), 1000); }
  std::vector<std::string> fields(int64_t record) const override { return {suffix_of(at(record).path)}; }
  std::vector<std::string> classes() const override { return classes_; }
  std::optional<int64_t> folder_class(int64_t record) const override {
    return classes_.empty() ? std::nullopt : std::optional<int64_t>(at(record).label);
  }
  absl::StatusOr<FieldBytes> field(int64_t record, std::string_view suffix) const override {
    const std::string own = suffix_of(at(record).path);
    if (own != suffix) return absl::NotFoundError(cat(locate(record), " is no .", suffix));
    PARTITA_ASSIGN_OR_RETURN(MappedFile opened, MappedFile::open(path(record)));
    const auto file = std::make_shared<MappedFile>(std::move(opened));
    return FieldBytes{file->bytes(), file};
  }

 private:
  const Picture& at(int64_t record) const { return pictures_[static_cast<size_t>(record)]; }
  std::string path(int64_t record) const { return cat(folder_, folder_.ends_with("/") ? "" : "/", at(record).path); }

  const std::string folder_;
  const std::vector<std::string> classes_;
  const std::vector<Picture> pictures_;
};

absl::Status unreadable(const std::string& folder, const std::error_code& error) {
  return absl::NotFoundError(cat("image folder ", quote(folder, 1000), " cannot be read: ", error.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordStore>> open_image_folder(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> classes;
  std::vector<std::pair<std::string, std::string>> files;  // the folder below this one, "" for itself, and the name
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_directory()) classes.push_back(it->path().filename());
  }
  if (error) return unreadable(folder, error);
  std::sort(classes.begin(), classes.end());
  const auto options = fs::directory_options::follow_directory_symlink;
  for (fs::recursive_directory_iterator it(folder, options, error), end; !error && it != end; it.increment(error)) {
    const std::string suffix = suffix_of(it->path());
    // A link that leads nowhere stays: reading it is the error that it is for others.
    if ((is_image_suffix(suffix) || is_foreign_image(suffix)) && !it->is_directory()) {
      const std::string path = it->path().lexically_relative(folder).string();
      const size_t name = path.rfind('/') + 1;
      files.emplace_back(path.substr(0, name == 0 ? 0 : name - 1), path.substr(name));
    }
  }
  if (error) return unreadable(folder, error);
  // As os.walk, sorted, gives them: a folder's own files before those of the folders in it.
  std::sort(files.begin(), files.end());

  std::vector<int64_t> count(classes.size(), 0);
  std::vector<Picture> pictures;
  const std::string who = cat("image folder ", quote(folder, 1000));
  for (const auto& [below, file] : files) {
    std::string path = cat(below, below.empty() ? "" : "/", file);
    const auto name = std::lower_bound(classes.begin(), classes.end(), path.substr(0, path.find('/')));
    const bool inside = path.find('/') != std::string::npos;
    if (!classes.empty() && !inside) continue;  // beside the classes' folders
    if (is_foreign_image(suffix_of(path)))
      return absl::InvalidArgumentError(
          cat(who, " holds ", quote(path, 1000),
              ", expected .jpg, .jpeg, .png alone; convert such pictures, or move them elsewhere"));
    const int64_t label = inside ? name - classes.begin() : 0;
    if (inside) ++count[static_cast<size_t>(label)];
    pictures.push_back({std::move(path), label});
  }
  if (pictures.empty())
    return absl::InvalidArgumentError(
        cat(who, " holds no picture (.jpg, .jpeg, .png)", classes.empty() ? "" : " in the folders of its classes"));
  if (const auto none = std::find(count.begin(), count.end(), 0); none != count.end())
    return absl::InvalidArgumentError(
        cat(who, ": class ", quote(classes[static_cast<size_t>(none - count.begin())]), " has no picture; remove it"));
  std::stable_sort(pictures.begin(), pictures.end(),
                   [](const Picture& a, const Picture& b) { return a.label < b.label; });
  return std::make_unique<ImageFolder>(folder, std::move(classes), std::move(pictures));
}

}  // namespace partita::runtime
