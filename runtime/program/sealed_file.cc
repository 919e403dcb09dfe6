#include "runtime/program/sealed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita::runtime {

absl::StatusOr<std::shared_ptr<const SealedFile>> SealedFile::open(const std::string& path, FileSeal seal) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return file_error("open", path, errno);
  auto file = MappedFile::map(descriptor, path);
  if (file.ok() && file->size() == seal.bytes)
    return std::shared_ptr<const SealedFile>(new SealedFile(descriptor, *std::move(file), std::move(seal)));
  ::close(descriptor);
  if (!file.ok()) return file.status();
  return absl::DataLossError(cat(quote(path, 1000), ": expected the ", seal.bytes,
                                 " bytes that its bundle lists, found ", file->size(),
                                 "; it is damaged or of another bundle: copy or compile the bundle again"));
}

SealedFile::SealedFile(int descriptor, MappedFile file, FileSeal seal)
    : descriptor_(descriptor),
      file_(std::move(file)),
      seal_(std::move(seal)),
      states_(std::make_unique<std::atomic<uint8_t>[]>(seal_.chunks.size())) {}

SealedFile::~SealedFile() { ::close(descriptor_); }

std::pair<size_t, size_t> SealedFile::chunks_of(int64_t begin, int64_t end) const {
  const size_t first = static_cast<size_t>(begin / seal_.chunk_bytes);
  const size_t last = static_cast<size_t>((std::max(begin + 1, end) + seal_.chunk_bytes - 1) / seal_.chunk_bytes);
  return {first, std::min(last, chunks())};
}

absl::Status SealedFile::check(int64_t begin, int64_t end) const {
  const auto [first, last] = chunks_of(begin, end);
  for (size_t k = first; k < last; ++k) PARTITA_RETURN_IF_ERROR(check_chunk(k));
  return absl::OkStatus();
}

absl::Status SealedFile::check_chunk(size_t chunk) const {
  std::atomic<uint8_t>& state = states_[chunk];
  const int64_t begin = static_cast<int64_t>(chunk) * seal_.chunk_bytes,
                end = std::min(begin + seal_.chunk_bytes, seal_.bytes);
  uint8_t seen = kNew;
  if (state.compare_exchange_strong(seen, kTaken)) {
    const auto bytes = file_.bytes().subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    seen = sha256(bytes) == seal_.chunks[chunk] ? kGood : kBad;
    MappedFile::let_go(bytes);  // libraries and programs are loaded otherwise, weights copied
    state.store(seen);
    state.notify_all();
  }
  for (; seen == kTaken; seen = state.load()) state.wait(kTaken);
  if (seen == kGood) return absl::OkStatus();
  return absl::DataLossError(
      cat(quote(path(), 1000), ": bytes [", begin, ", ", end,
          ") are not those that its bundle lists; the file is damaged or of another bundle: copy "
          "or compile the bundle again"));
}

absl::Status SealedFile::check_all(int threads) const {
  std::vector<CheckAhead::Chunk> all;
  for (size_t k = 0; k < chunks(); ++k) all.push_back({this, k});
  return CheckAhead(std::move(all), threads).wait();
}

CheckAhead::CheckAhead(std::vector<Chunk> chunks, int threads) : chunks_(std::move(chunks)) {
  const size_t size = std::min(chunks_.size(), static_cast<size_t>(std::max(threads, 1)));
  for (size_t t = 0; t < size; ++t) {
    team_.emplace_back([this] {
      for (size_t k; (k = next_.fetch_add(1)) < chunks_.size();) (void)chunks_[k].file->check_chunk(chunks_[k].chunk);
    });
  }
}

CheckAhead::~CheckAhead() {
  next_.store(chunks_.size());
  for (std::thread& t : team_) t.join();
}

absl::Status CheckAhead::wait() {
  for (const Chunk& c : chunks_) PARTITA_RETURN_IF_ERROR(c.file->check_chunk(c.chunk));
  return absl::OkStatus();
}

}  // namespace partita::runtime
