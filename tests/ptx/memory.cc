#include "tests/ptx/memory.h"

#include <algorithm>

#include "base/cat.h"

namespace partita::ptx {

Shadow::Page& Shadow::page_at(int64_t at, int bytes) {
  std::unique_ptr<Page>& page = pages_[static_cast<size_t>(at / kPageBytes)];
  if (page == nullptr) page = std::make_unique<Page>();
  if (bytes < page->unit) {
    std::vector<Cell> cells;
    cells.reserve(static_cast<size_t>(kPageBytes / bytes));
    for (const Cell& c : page->cells) cells.insert(cells.end(), static_cast<size_t>(page->unit / bytes), c);
    page->cells = std::move(cells);
    page->unit = bytes;
  }
  return *page;
}

Shadow::Race Shadow::touch(int64_t at, int bytes, Access access, uint32_t block, uint32_t thread,
                           const WarpClock& clock) {
  Page& page = page_at(at, std::min(bytes, 4));
  const int64_t within = at % kPageBytes;
  Race race;
  const Moment now{block, thread, clock.now};
  const auto with = [&](const Moment& other, bool of_writers) {
    if (!race.happened || of_writers) race = {other, true, of_writers};
  };
  for (int64_t c = within / page.unit; c < (within + bytes) / page.unit; ++c) {
    Cell& cell = page.cells[static_cast<size_t>(c)];
    const bool both_atomic = access == Access::kAtomic && cell.by_atomic;
    if (cell.in_flight || (!both_atomic && !clock.has_seen(cell.writer, block, thread)))
      with(cell.writer, cell.in_flight || access != Access::kRead);
    if (access == Access::kRead) {
      if (cell.reader.thread != thread || cell.reader.block != block) cell.other_reader = cell.reader;
      cell.reader = now;
      continue;
    }
    if (!clock.has_seen(cell.reader, block, thread)) with(cell.reader, false);
    if (!clock.has_seen(cell.other_reader, block, thread)) with(cell.other_reader, false);
    cell.writer = now;
    cell.by_atomic = access == Access::kAtomic;
  }
  return race;
}

Shadow::Race Shadow::begin_copy(int64_t at, int bytes, uint32_t block, uint32_t thread, const WarpClock& clock) {
  Race race = touch(at, bytes, Access::kWrite, block, thread, clock);
  Page& page = page_at(at, std::min(bytes, 4));
  const int64_t within = at % kPageBytes;
  for (int64_t c = within / page.unit; c < (within + bytes) / page.unit; ++c)
    page.cells[static_cast<size_t>(c)].in_flight = true;
  race.of_writers = race.happened;
  return race;
}

void Shadow::end_copy(int64_t at, int bytes, uint32_t block, uint32_t thread, const WarpClock& clock) {
  Page& page = page_at(at, std::min(bytes, 4));
  const int64_t within = at % kPageBytes;
  for (int64_t c = within / page.unit; c < (within + bytes) / page.unit; ++c) {
    Cell& cell = page.cells[static_cast<size_t>(c)];
    cell.in_flight = false;
    cell.writer = {block, thread, clock.now};
  }
}

void Shadow::forget() {
  for (auto& page : pages_) {
    if (page != nullptr) std::fill(page->cells.begin(), page->cells.end(), Cell{});
  }
}

GlobalMemory::GlobalMemory(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& r : ranges) {
    if (r.bytes == 0) continue;
    if (!ranges_.empty() && r.begin < ranges_.back().begin + ranges_.back().bytes)
      ranges_.back().bytes = std::max(ranges_.back().bytes, r.begin + r.bytes - ranges_.back().begin);
    else
      ranges_.push_back(r);
  }
  for (const Range& r : ranges_) shadows_.emplace_back(static_cast<int64_t>(r.bytes));
}

uint32_t GlobalMemory::search(uint64_t address, uint64_t bytes) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](uint64_t at, const Range& r) { return at < r.begin; });
  if (after == ranges_.begin() || !holds(*(after - 1), address, bytes)) return kNowhere;
  return static_cast<uint32_t>(after - ranges_.begin() - 1);
}

std::string GlobalMemory::describe(uint64_t address) const {
  auto after = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                [](uint64_t at, const Range& r) { return at < r.begin; });
  std::string text;
  if (after != ranges_.begin()) {
    const Range& r = *(after - 1);
    text = cat(address - r.begin, " bytes into a range of ", r.bytes);
  }
  if (after != ranges_.end()) append(text, text.empty() ? "" : ", ", after->begin - address, " bytes before the next");
  return text.empty() ? "there is no memory" : text;
}

}  // namespace partita::ptx
