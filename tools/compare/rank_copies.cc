#include "tools/compare/rank_copies.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "base/cat.h"
#include "base/status.h"
#include "tools/verify/certificate.h"
#include "tools/verify/kernels/graph_expressions.h"
#include "tools/verify/layout/slices.h"

namespace partita {

using verifier::AxisDigit;
using verifier::Digit;
using Layout = verifier::IndexMap;

std::vector<int64_t> root_indices(const Layout& layout, int64_t count, const std::vector<int64_t>& coordinates) {
  int64_t base = 0;
  for (const AxisDigit& a : layout.axes)
    base += coordinates[static_cast<size_t>(a.axis)] / a.divisor % a.size * a.stride;
  std::vector<int64_t> all = {base};
  all.reserve(static_cast<size_t>(count));
  // Digit by digit from the outermost: each index that is there becomes one for each value of the digit.
  for (const Digit& d : layout.digits) {
    std::vector<int64_t> more;
    more.reserve(all.size() * static_cast<size_t>(d.size));
    for (int64_t at : all) {
      for (int64_t k = 0; k < d.size; ++k) more.push_back(at + k * d.stride);
    }
    all = std::move(more);
  }
  for (int64_t& at : all) {
    if (layout.through.empty()) break;
    int64_t rest = at, seen = 0;
    for (size_t k = layout.through.size(); k-- > 0;) {
      seen += rest % layout.through[k].size * layout.through[k].stride;
      rest /= layout.through[k].size;
    }
    at = seen;
  }
  return all;
}

absl::StatusOr<RankCopies> RankCopies::create(const verifier::Bundle& bundle) {
  PARTITA_ASSIGN_OR_RETURN(const verifier::FixedSums fixed, verifier::fixed_sums(bundle));
  PARTITA_ASSIGN_OR_RETURN(verifier::RankValues values, verifier::check_values(bundle, "none", fixed));
  RankCopies copies(bundle, std::move(values));
  PARTITA_RETURN_IF_ERROR(copies.count_runs());
  PARTITA_RETURN_IF_ERROR(copies.place_values());
  copies.find_begun();
  const Graph& g = copies.serial().graph();
  copies.elements_.assign(static_cast<size_t>(copies.serial().roots()), 1);
  for (size_t v = 0; v < g.values.size(); ++v) {
    const Layout& layout = copies.serial().layout(static_cast<ValueId>(v));
    int64_t last = 0;
    for (const Digit& d : layout.digits) last += (d.size - 1) * d.stride;
    int64_t& count = copies.elements_[static_cast<size_t>(layout.root)];
    count = std::max(count, last + 1);
  }
  return copies;
}

// How a step's micro-batches are runs of the serial graph.
absl::Status RankCopies::count_runs() {
  for (const verifier::RankProgram& p : set_->programs) {
    PARTITA_ASSIGN_OR_RETURN(const verifier::Slices slices, verifier::find_slices(serial().graph(), p.rank, p.program));
    micro_slices_ = p.program.micro_slices;
    if (slices.count > 1) slice_count_ = slices.count, slice_axes_ = slices.axes;
  }
  runs_ = set_->programs.front().program.micro_batches / micro_slices_ * slice_count_;
  return absl::OkStatus();
}

absl::Status RankCopies::place_values() {
  for (size_t s = 0; s < set_->programs.size(); ++s) {
    const verifier::RankProgram& p = set_->programs[s];
    std::vector<NodeId> from;
    std::vector<ValueId> in_code;
    PARTITA_ASSIGN_OR_RETURN(const Graph code, verifier::expanded(p.rank, from, &in_code));
    const std::vector<ValueId> storage = verifier::storage_of(code);
    std::vector<Layout>& layouts = layouts_.emplace_back(code.values.size());
    for (size_t v = 0; v < in_code.size(); ++v) {
      const ValueId whole = values_.values[s][v];
      if (whole == kNoValue || in_code[v] == kNoValue) continue;
      Layout& layout = layouts[static_cast<size_t>(storage[static_cast<size_t>(in_code[v])])];
      if (layout.root < 0) layout = values_.report.layouts[static_cast<size_t>(whole)];
    }
  }
  return absl::OkStatus();
}

void RankCopies::find_begun() {
  for (const verifier::RankProgram& p : set_->programs) {
    std::map<int64_t, int64_t>& begun = begun_.emplace_back();
    for (const auto& segment : p.program.segments) {
      std::map<std::pair<runtime::Region, int64_t>, int64_t> temporaries;  // by where they lie: who wrote them
      for (const runtime::Step& step : segment.steps) {
        const std::vector<int>& values = p.claims[step.id].values;
        for (size_t k = 0; k < std::min(values.size(), step.operands.size()); ++k) {
          const runtime::Operand& o = step.operands[k];
          if (values[k] >= 0 || o.dtype == DType::kInvalid) continue;
          const std::pair at(o.address.region, o.address.offset);
          if (k >= static_cast<size_t>(step.inputs)) {
            temporaries[at] = step.id;
          } else if (auto from = temporaries.find(at); from != temporaries.end()) {
            begun[step.id] = from->second;
          }
        }
      }
    }
  }
}

int64_t RankCopies::run_of(const Layout& layout, const std::vector<int64_t>& coordinates, int64_t micro_batch) const {
  if (!serial().per_run(layout.root)) return 0;
  if (micro_batch == kWholeStep) return runs_ - 1;
  int64_t run = micro_batch / micro_slices_ * slice_count_;
  for (const runtime::AxisStride& a : slice_axes_) {
    if (layout.sliced) run += coordinates[static_cast<size_t>(a.axis)] * a.stride;
  }
  return run;
}

namespace {

// The coordinates along which a copy is repeated: neither parts nor terms nor runs differ along them.
std::string replica_of(const Layout& layout, const std::vector<int64_t>& coordinates,
                       const std::vector<runtime::AxisStride>& slices) {
  std::string key;
  for (size_t a = 0; a < coordinates.size(); ++a) {
    const int axis = static_cast<int>(a);
    const bool sliced = layout.sliced && std::any_of(slices.begin(), slices.end(),
                                                     [&](const runtime::AxisStride& s) { return s.axis == axis; });
    if (!layout.depends_on(axis) && !layout.is_partial(axis) && !sliced) append(key, coordinates[a], ",");
  }
  return key;
}

Tensor empty_root(DType dtype, int64_t count, PartialKind kind, bool partial) {
  Tensor t = Tensor::zeros({dtype, {count}});
  if (!partial || kind == PartialKind::kSum) return t;
  const bool max = kind == PartialKind::kMax;
  std::fill(t.f.begin(), t.f.end(), max ? -INFINITY : INFINITY);
  std::fill(t.i.begin(), t.i.end(), max ? std::numeric_limits<int64_t>::min() : std::numeric_limits<int64_t>::max());
  return t;
}

template <typename T>
void combine(T& into, T term, bool partial, PartialKind kind) {
  if (!partial) {
    into = term;
  } else if (kind == PartialKind::kSum) {
    into += term;
  } else {
    into = kind == PartialKind::kMax ? std::max(into, term) : std::min(into, term);
  }
}

bool same_bits(const RootCopy& a, const RootCopy& b) {
  return a.filled == b.filled && a.values.i == b.values.i &&
         std::equal(a.values.f.begin(), a.values.f.end(), b.values.f.begin(),
                    [](double x, double y) { return x == y || (x != x && y != y); });
}

}  // namespace

RootCopy RankCopies::join(size_t stage, int value, const std::vector<Part>& parts) const {
  const Layout& l = layout(stage, value);
  const TensorType& type = set_->programs[stage].code.type(value);
  const bool partial = !l.partial.empty();
  RootCopy copy{.values = empty_root(type.dtype, elements(l.root), l.kind, partial)};
  copy.filled.assign(static_cast<size_t>(elements(l.root)), false);
  copy.summed = l.summed;
  copy.stage = stage;
  copy.value = value;
  std::vector<int> taken(copy.filled.size(), -1);
  for (size_t k = 0; k < parts.size(); ++k) {
    const Tensor own = to_tensor(make_literal(type, parts[k].capture->bytes));
    std::vector<int64_t> at = root_indices(l, partita::elements(type.shape), parts[k].coordinates);
    for (size_t i = 0; i < at.size(); ++i) {
      const size_t to = static_cast<size_t>(at[i]);
      if (taken[to] == static_cast<int>(k)) continue;  // constant along a dimension
      taken[to] = static_cast<int>(k);
      copy.filled[to] = true;
      if (is_float(type.dtype)) {
        combine(copy.values.f[to], own.f[i], partial, l.kind);
      } else {
        combine(copy.values.i[to], own.i[i], partial, l.kind);
      }
    }
    copy.ranks.push_back(parts[k].rank);
    copy.indices.push_back(std::move(at));
    copy.step = parts[k].capture->step;
    copy.written = parts[k].capture->written;
  }
  const auto begun = begun_[stage].find(copy.step);
  copy.begun = begun == begun_[stage].end() ? copy.step : begun->second;
  copy.whole = std::find(copy.filled.begin(), copy.filled.end(), false) == copy.filled.end();
  return copy;
}

std::vector<RootCopy> RankCopies::join_all(const std::vector<Holders>& holders) const {
  std::vector<RootCopy> all;
  for (const Holders& h : holders) {
    for (const auto& [replica, parts] : h.parts) {
      RootCopy copy = join(h.stage, h.value, parts);
      const RootCopy* before = all.empty() ? nullptr : &all.back();
      if (before != nullptr && before->stage == copy.stage && before->value == copy.value &&
          before->written == copy.written && !same_bits(*before, copy))
        copy.torn = cat("other bits than rank ", before->ranks.front(), " holds");
      all.push_back(std::move(copy));
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const RootCopy& a, const RootCopy& b) {
    return std::pair(a.stage, a.step) < std::pair(b.stage, b.step);
  });
  return all;
}

RankCopies::Copies RankCopies::collect(const Captures& captures) const {
  std::map<std::tuple<size_t, int, int64_t>, Holders> groups;  // by stage, value and run
  for (int64_t r = 0; r < captures.ranks(); ++r) {
    const size_t stage = captures.stage_of(r);
    for (const auto& [key, capture] : captures.of(r)) {
      const auto& [value, micro_batch] = key;
      const Layout& l = layout(stage, value);
      if (l.root < 0) continue;
      if (static_cast<int64_t>(capture.bytes.size()) != byte_size(set_->programs[stage].code.type(value))) continue;
      std::vector<int64_t> c = captures.coordinates(r);
      c.push_back(micro_batch == kWholeStep ? 0 : micro_batch % micro_slices_);  // the axis in time
      Holders& h = groups[{stage, value, run_of(l, c, micro_batch)}];
      h.stage = stage;
      h.value = value;
      h.parts[replica_of(l, c, slice_axes_)].push_back({static_cast<int>(r), &capture, c});
    }
  }
  std::map<std::pair<int32_t, int64_t>, std::vector<Holders>> by_root;
  for (auto& [key, h] : groups) by_root[{layout(h.stage, h.value).root, std::get<2>(key)}].push_back(std::move(h));
  Copies copies;
  for (auto& [key, holders] : by_root) {
    Held& held = copies[key];
    held.summed =
        std::any_of(holders.begin(), holders.end(), [&](const Holders& h) { return layout(h.stage, h.value).summed; });
    held.copies = [this, holders = std::move(holders)] { return join_all(holders); };
  }
  return copies;
}

}  // namespace partita
