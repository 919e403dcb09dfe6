#include "tools/verify/kernels/written_parts.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

namespace partita::verifier {
namespace {

int64_t count_of(const WrittenPart& part) {
  int64_t n = 1;
  for (const auto& loop : part.loops) n *= loop.size;
  return n;
}

// A part as runs of adjacent elements, and the loops over the runs.
struct Runs {
  int64_t length = 1;
  std::vector<WrittenPart::Loop> loops;
};

Runs runs_of(const WrittenPart& part) {
  std::vector<WrittenPart::Loop> loops = part.loops;
  std::erase_if(loops, [](const auto& loop) { return loop.size == 1; });
  std::sort(loops.begin(), loops.end(),
            [](const auto& a, const auto& b) { return std::abs(a.stride) < std::abs(b.stride); });
  Runs runs;
  for (const auto& loop : loops) {
    if (runs.loops.empty() && loop.stride == runs.length) {
      runs.length *= loop.size;
    } else {
      runs.loops.push_back(loop);
    }
  }
  return runs;
}

// The longest block of elements that the part has whole or not at all, everywhere at multiples of it.
int64_t block_of(const WrittenPart& part) {
  const Runs runs = runs_of(part);
  int64_t block = std::gcd(runs.length, part.offset);
  for (const auto& loop : runs.loops) block = std::gcd(block, loop.stride);
  return block;
}

// Marks the blocks of a part; false where one is outside or has been marked.
bool mark(const WrittenPart& part, int64_t block, std::vector<bool>& marked) {
  const Runs runs = runs_of(part);
  std::vector<WrittenPart::Loop> loops{{runs.length / block, 1}};
  for (const auto& loop : runs.loops) loops.push_back({loop.size, loop.stride / block});
  if (count_of(part) == 0) return true;
  std::vector<int64_t> index(loops.size(), 0);
  for (int64_t at = part.offset / block;;) {
    if (at < 0 || at >= static_cast<int64_t>(marked.size()) || marked[static_cast<size_t>(at)]) return false;
    marked[static_cast<size_t>(at)] = true;
    size_t d = loops.size();
    for (; d > 0; --d) {
      at += loops[d - 1].stride;
      if (++index[d - 1] < loops[d - 1].size) break;
      at -= loops[d - 1].stride * loops[d - 1].size;
      index[d - 1] = 0;
    }
    if (d == 0) return true;
  }
}

}  // namespace

void WrittenParts::write(int value, int64_t size, const WrittenPart* part) {
  if (part == nullptr) {
    open_.erase(value);
    return;
  }
  Written& w = open_[value];
  if (tile(w)) w.parts.clear();  // it begins anew
  w.size = size;
  w.parts.push_back(*part);
}

bool WrittenParts::is_whole(int value) {
  auto at = open_.find(value);
  if (at == open_.end()) return true;
  if (!tile(at->second)) return false;
  open_.erase(at);
  return true;
}

int WrittenParts::broken() {
  while (!open_.empty()) {
    const int value = open_.begin()->first;
    if (!is_whole(value)) return value;
  }
  return -1;
}

bool WrittenParts::tile(const Written& w) {
  std::vector<int64_t> key{w.size};
  int64_t block = w.size, written = 0;
  for (const WrittenPart& part : w.parts) {
    key.insert(key.end(), {part.offset, static_cast<int64_t>(part.loops.size())});
    for (const auto& loop : part.loops) key.insert(key.end(), {loop.size, loop.stride});
    block = std::gcd(block, block_of(part));
    written += count_of(part);
  }
  if (known_.count(key)) return true;
  if (written != w.size || block == 0) return false;
  std::vector<bool> marked(static_cast<size_t>(w.size / block), false);
  // As many as there are, each once: all of them.
  for (const WrittenPart& part : w.parts) {
    if (!mark(part, block, marked)) return false;
  }
  known_.insert(std::move(key));
  return true;
}

}  // namespace partita::verifier
