#include "tests/ptx/memory.h"

#include <algorithm>

#include "base/cat.h"

namespace partita::ptx {

void Shadow::refine(std::unique_ptr<Page>& page, int bytes) {
  if (page == nullptr) page = std::make_unique<Page>();
  for (; (bytes >> page->shift) == 0; --page->shift) {
    std::vector<Cell> cells;
    cells.reserve(2 * page->cells.size());
    for (const Cell& c : page->cells) cells.insert(cells.end(), 2, c);
    page->cells = std::move(cells);
  }
}

void Shadow::write(Cell& cell, Access access, const Moment& now, const WarpClock& clock, Race& race) {
  const bool both_atomic = access == Access::kAtomic && cell.by_atomic;
  if (cell.in_flight || (!both_atomic && !clock.has_seen(cell.writer, now))) race = {cell.writer, true, true};
  for (const Moment& reader : {cell.reader, cell.other_reader}) {
    if (!race.of_writers && !clock.has_seen(reader, now)) race = {reader, true, false};
  }
  cell.writer = now;
  cell.by_atomic = access == Access::kAtomic;
}

Shadow::Race Shadow::begin_copy(int64_t at, int bytes, const Moment& now, const WarpClock& clock) {
  Race race = touch(at, bytes, std::min(bytes, 4), Access::kWrite, now, clock);
  Page& page = page_at(at, 4);
  const int64_t within = at % kPageBytes;
  for (int64_t c = within >> page.shift; c < (within + bytes) >> page.shift; ++c)
    page.cells[static_cast<size_t>(c)].in_flight = true;
  race.of_writers = race.happened;
  return race;
}

void Shadow::end_copy(int64_t at, int bytes, const Moment& now) {
  Page& page = page_at(at, 4);
  const int64_t within = at % kPageBytes;
  for (int64_t c = within >> page.shift; c < (within + bytes) >> page.shift; ++c) {
    Cell& cell = page.cells[static_cast<size_t>(c)];
    cell.in_flight = false;
    cell.writer = now;
  }
}

void Shadow::forget() {
  for (auto& page : pages_) {
    if (page != nullptr) std::fill(page->cells.begin(), page->cells.end(), Cell{});
  }
}

GlobalMemory::GlobalMemory(std::vector<Range> ranges, bool with_shadows) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& r : ranges) {
    if (r.bytes == 0) continue;
    if (!ranges_.empty() && r.begin < ranges_.back().begin + ranges_.back().bytes)
      ranges_.back().bytes = std::max(ranges_.back().bytes, r.begin + r.bytes - ranges_.back().begin);
    else
      ranges_.push_back(r);
  }
  if (!with_shadows) return;
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
