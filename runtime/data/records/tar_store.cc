#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/data/records/record_store.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 512;
constexpr int64_t kMostShards = 1 << 20;

// A header of POSIX's ustar: where its fields lie, and how long they are.
constexpr std::pair<int64_t, int64_t> kName{0, 100}, kSize{124, 12}, kChecksum{148, 8}, kPrefix{345, 155};
constexpr int64_t kType = 156, kMagic = 257;
constexpr char kSparse[] = "a member is stored without its zeros; pack it without --sparse";

std::string_view field_of(std::string_view header, std::pair<int64_t, int64_t> at) {
  const std::string_view text = header.substr(static_cast<size_t>(at.first), static_cast<size_t>(at.second));
  return text.substr(0, text.find('\0'));
}

// Octal digits, or, with the first bit set, a number of 7 + 8 k bits (GNU, for files of 8 GiB and more); -1: neither.
int64_t number_of(std::string_view header, std::pair<int64_t, int64_t> at) {
  const std::string_view raw = header.substr(static_cast<size_t>(at.first), static_cast<size_t>(at.second));
  int64_t value = 0;
  if (static_cast<uint8_t>(raw[0]) == 0x80) {
    for (char c : raw.substr(1)) {
      if (value >> 54 != 0) return -1;
      value = value << 8 | static_cast<uint8_t>(c);
    }
    return value;
  }
  const absl::string_view text =
      absl::StripAsciiWhitespace(absl::string_view(raw.data(), std::min(raw.find('\0'), raw.size())));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 8);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 ? value : -1;
}

bool checksum_holds(std::string_view header) {
  int64_t sum = 0;
  for (int64_t k = 0; k < kBlock; ++k) {
    const bool own = k >= kChecksum.first && k < kChecksum.first + kChecksum.second;
    sum += own ? ' ' : static_cast<uint8_t>(header[static_cast<size_t>(k)]);
  }
  return sum == number_of(header, kChecksum);
}

// "27 path=some/name\n", as many as there are.
absl::Status read_pax(std::string_view text, std::string& path, int64_t& size) {
  while (!text.empty()) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
    const size_t begin = static_cast<size_t>(end - text.data()) + 1;
    if (error != std::errc() || length <= begin || length > text.size())
      return absl::DataLossError("an extended header is damaged");
    const std::string_view record = text.substr(begin, length - begin - 1);
    const size_t equals = record.find('=');
    const std::string_view key = record.substr(0, equals),
                           value = record.substr(std::min(equals, record.size() - 1) + 1);
    if (key == "path") path = value;
    if (key.starts_with("GNU.sparse.")) return absl::InvalidArgumentError(kSparse);
    if (key == "size") {
      const auto parsed = std::from_chars(value.data(), value.data() + value.size(), size);
      if (parsed.ec != std::errc() || size < 0) return absl::DataLossError("an extended header is damaged");
    }
    text.remove_prefix(length);
  }
  return absl::OkStatus();
}

struct Member {
  std::string suffix;
  int64_t offset = 0, size = 0;
};

struct Record {
  uint32_t shard = 0;
  std::string key;
  std::vector<Member> members;
};

// Adds a member to the records of a shard: those with one key follow one another. False where it is there already.
bool take_member(uint32_t shard, const std::string& path, int64_t offset, int64_t size, std::vector<Record>& records) {
  const size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  const size_t dot = path.find('.', name);
  if (dot == std::string::npos || dot == name) return true;  // hidden files, and what has no suffix
  const std::string key = path.substr(0, dot);
  if (records.empty() || records.back().shard != shard || records.back().key != key)
    records.push_back({shard, key, {}});
  std::vector<Member>& members = records.back().members;
  std::string suffix = absl::AsciiStrToLower(path.substr(dot + 1));
  for (const Member& m : members) {
    if (m.suffix == suffix) return false;
  }
  members.push_back({std::move(suffix), offset, size});
  return true;
}

absl::Status read_members(const MappedFile& file, uint32_t shard, std::vector<Record>& records) {
  const std::string_view text = file.text();
  const auto fault = [&](int64_t at, std::string_view why) {
    return absl::DataLossError(cat("archive ", quote(file.path(), 1000), ": byte ", at, ": ", why));
  };
  if (text.starts_with("\x1f\x8b") || text.starts_with("\x28\xb5\x2f\xfd"))
    return absl::InvalidArgumentError(cat("archive ", quote(file.path(), 1000),
                                          " is compressed, so that no sample can be found alone; unpack it to .tar"));
  std::string long_path;  // of the next member
  int64_t long_size = -1;
  for (int64_t at = 0; at + kBlock <= file.size();) {
    const std::string_view header = text.substr(static_cast<size_t>(at), kBlock);
    if (header.find_first_not_of('\0') == std::string_view::npos) return absl::OkStatus();
    int64_t size = number_of(header, kSize);
    if (size < 0 || !checksum_holds(header)) return fault(at, "expected the header of a member of a tar, found none");
    const char type = header[kType];
    if (type == 'S') return fault(at, kSparse);
    const bool regular = type == '0' || type == '\0' || type == '7';
    if (regular && long_size >= 0) size = long_size;
    const int64_t data = at + kBlock;
    if (size > file.size() - data) return fault(at, cat("a member of ", size, " bytes is cut short"));
    const std::string_view content = text.substr(static_cast<size_t>(data), static_cast<size_t>(size));
    if (type == 'L') {
      long_path = content.substr(0, content.find('\0'));
    } else if (type == 'x') {
      if (const absl::Status read = read_pax(content, long_path, long_size); !read.ok())
        return fault(at, std::string(read.message()));
    } else {
      std::string path(long_path);
      if (path.empty()) {
        const std::string_view prefix = header.substr(kMagic, 5) == "ustar" ? field_of(header, kPrefix) : "";
        path = cat(prefix, prefix.empty() ? "" : "/", field_of(header, kName));
      }
      if (regular && !take_member(shard, path, data, size, records))
        return fault(at, cat("the sample has ", quote(path, 1000), " already"));
      long_path.clear();
      long_size = -1;
    }
    at = data + (size + kBlock - 1) / kBlock * kBlock;
  }
  return file.size() % kBlock == 0 ? absl::OkStatus() : fault(file.size(), "it is cut short");
}

class TarStore : public RecordStore {
 public:
  TarStore(std::string path, std::vector<std::shared_ptr<const MappedFile>> shards, std::vector<Record> records)
      : path_(std::move(path)), shards_(std::move(shards)), records_(std::move(records)) {}

  int64_t records() const override { return static_cast<int64_t>(records_.size()); }
  std::string describe() const override { return cat("archive ", quote(path_, 1000)); }
  std::string locate(int64_t record) const override {
    return cat(quote(shard(record)->path(), 1000), ": ", quote(at(record).key, 1000));
  }
  std::vector<std::string> fields(int64_t record) const override {
    std::vector<std::string> names;
    for (const Member& m : at(record).members) names.push_back(m.suffix);
    return names;
  }
  std::optional<int64_t> folder_class(int64_t) const override { return std::nullopt; }
  std::vector<std::string> classes() const override { return {}; }
  absl::StatusOr<FieldBytes> field(int64_t record, std::string_view suffix) const override {
    for (const Member& m : at(record).members) {
      if (m.suffix == suffix)
        return FieldBytes{shard(record)->bytes().subspan(static_cast<size_t>(m.offset), static_cast<size_t>(m.size)),
                          shard(record)};
    }
    return absl::NotFoundError(cat(locate(record), " has no .", suffix, "; it has ", quote_list(fields(record))));
  }

 private:
  const Record& at(int64_t record) const { return records_[static_cast<size_t>(record)]; }
  const std::shared_ptr<const MappedFile>& shard(int64_t record) const { return shards_[at(record).shard]; }

  const std::string path_;
  const std::vector<std::shared_ptr<const MappedFile>> shards_;
  const std::vector<Record> records_;
};

// x-{008..012}.tar: x-008.tar to x-012.tar, with as many digits as the first number has.
absl::StatusOr<std::vector<std::string>> in_braces(const std::string& path) {
  const size_t open = path.find('{'), dots = path.find("..", open), close = path.find('}', open);
  const auto number = [&](size_t begin, size_t end, int64_t& value) {
    const auto [at, error] = std::from_chars(path.data() + begin, path.data() + end, value);
    return error == std::errc() && at == path.data() + end && value >= 0;
  };
  int64_t first = 0, last = 0;
  if (dots == std::string::npos || close == std::string::npos || dots > close || !number(open + 1, dots, first) ||
      !number(dots + 2, close, last) || last < first || last - first >= kMostShards)
    return absl::InvalidArgumentError(
        cat("data ", quote(path, 1000), ": expected numbers in braces, as in shard-{000..127}.tar"));
  std::vector<std::string> paths;
  for (int64_t k = first; k <= last; ++k) {
    std::string digits = cat(k);
    if (const size_t width = dots - open - 1; digits.size() < width) digits.insert(0, width - digits.size(), '0');
    paths.push_back(cat(path.substr(0, open), digits, path.substr(close + 1)));
  }
  return paths;
}

absl::StatusOr<std::vector<std::string>> shards_of(const std::string& path) {
  if (path.find('{') != std::string::npos) return in_braces(path);
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> paths;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (is_packed_archive(name) || name.ends_with(".tar"))
      paths.push_back(it->path());  // what is compressed is refused as it is read
  }
  std::sort(paths.begin(), paths.end());
  if (paths.empty()) return absl::NotFoundError(cat("folder ", quote(path, 1000), " holds no .tar"));
  return paths;
}

}  // namespace

bool is_packed_archive(std::string_view name) {
  constexpr std::string_view kEnds[] = {".tar.gz", ".tgz", ".tar.zst", ".tar.bz2", ".tar.xz"};
  return std::any_of(std::begin(kEnds), std::end(kEnds), [&](std::string_view end) { return name.ends_with(end); });
}

absl::StatusOr<std::unique_ptr<RecordStore>> open_tar_store(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<std::string> paths, shards_of(path));
  std::vector<std::shared_ptr<const MappedFile>> shards;
  std::vector<Record> records;
  for (const std::string& shard : paths) {
    PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(shard));
    file.expect_random_access();  // from header to header
    PARTITA_RETURN_IF_ERROR(read_members(file, static_cast<uint32_t>(shards.size()), records));
    shards.push_back(std::make_shared<MappedFile>(std::move(file)));
  }
  return std::make_unique<TarStore>(path, std::move(shards), std::move(records));
}

}  // namespace partita::runtime
