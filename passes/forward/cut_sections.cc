// For sections of so many bytes at most, the least sum of what is open at their ends, by dynamic programming over the
// nodes: least[end] is that of the sections before `end`. Halved from all bytes of the part on, the limit with the
// least sum of both is taken.
#include "passes/forward/cut_sections.h"

#include <algorithm>
#include <limits>

namespace partita {
namespace {

constexpr size_t kWorthWhile = 4;     // products of a part, or it stays whole
constexpr size_t kFewest = 2;         // products of a section, whatever it makes: one that follows another
constexpr size_t kMost = 6;           // as an inception module has, or
constexpr size_t kMostSections = 60;  // so many that there are about so many sections
constexpr int kHalvings = 8;
// Of several ends with as much open, one behind a product is taken: what it made is then kept, and only what follows it
// is computed again.
constexpr double kElsewhere = 1.001;

struct Sections {
  std::vector<size_t> ends;
  double bytes = std::numeric_limits<double>::infinity();  // open at the ends, and of the largest section
};

class SectionCutter {
 public:
  explicit SectionCutter(const std::vector<SectionNode>& nodes)
      : nodes_(nodes), products_(nodes.size() + 1, 0), bytes_(nodes.size() + 1, 0) {
    for (size_t k = 0; k < nodes.size(); ++k)
      products_[k + 1] = products_[k] + nodes[k].product, bytes_[k + 1] = bytes_[k] + nodes[k].bytes;
  }

  size_t products() const { return products_.back(); }
  double bytes() const { return bytes_.back(); }

  Sections within(double limit) const {
    const size_t size = nodes_.size(), most = std::max(kMost, kFewest + products() / kMostSections);
    std::vector<double> least(size + 1, std::numeric_limits<double>::infinity());
    std::vector<size_t> start(size + 1, 0);
    least[0] = 0;
    for (size_t end = 1; end <= size; ++end) {
      for (size_t from = end; from-- > 0;) {
        const size_t products = products_[end] - products_[from];
        if (products > most || (products > kFewest && bytes_[end] - bytes_[from] > limit)) break;
        if (products >= kFewest && least[from] < least[end]) least[end] = least[from], start[end] = from;
      }
      if (end < size) least[end] += nodes_[end - 1].open_bytes * (nodes_[end - 1].product ? 1 : kElsewhere);
    }
    Sections out;
    double largest = 0;
    for (size_t end = size; end > 0; end = start[end]) {
      out.ends.push_back(end);
      largest = std::max(largest, bytes_[end] - bytes_[start[end]]);
    }
    std::reverse(out.ends.begin(), out.ends.end());
    out.bytes = least[size] + largest;
    return out;
  }

 private:
  const std::vector<SectionNode>& nodes_;
  std::vector<size_t> products_;  // before each node, and in all
  std::vector<double> bytes_;
};

}  // namespace

std::vector<size_t> cut_sections(const std::vector<SectionNode>& nodes) {
  const SectionCutter cutter(nodes);
  if (cutter.products() < kWorthWhile) return {};
  Sections best;
  double limit = cutter.bytes();
  for (int k = 0; k <= kHalvings; ++k, limit /= 2) {
    if (Sections other = cutter.within(limit); other.bytes < best.bytes) best = std::move(other);
  }
  return std::move(best.ends);
}

}  // namespace partita
