#include "tools/proof/trials/nest_meaning.h"

#include <algorithm>

#include "tools/proof/trials/sampled_indices.h"

namespace partita {
namespace {

constexpr int64_t kFewColumns = 32;  // of a row, at least

}  // namespace

NestMeaning::NestMeaning(const LoopNest& nest, const std::vector<const std::byte*>& operands) : nest_(nest) {
  for (size_t k = 0; k < operands.size(); ++k) operands_.push_back({{nest.operands[k], {}}, nullptr, operands[k]});
  for (const std::vector<bool>& along : variation(nest))
    wide_.push_back(std::find(along.begin() + nest.rows(), along.end(), true) != along.end());
  const std::vector<int> level = levels(nest);
  passes_.resize(static_cast<size_t>(*std::max_element(level.begin(), level.end())) + 1);
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    const auto at = static_cast<size_t>(level[k]);
    operations_.emplace_back(
        n.scalar, n.scalar.a < 0 ? DType::kInvalid : nest.nodes[static_cast<size_t>(n.scalar.a)].scalar.type);
    if (n.op == NestOp::kReduce) {
      passes_[at - 1].reductions.push_back(static_cast<int>(k));
    } else if (!wide_[k]) {
      passes_[at].narrow.push_back(static_cast<int>(k));
    }
  }
  for (Pass& p : passes_) {
    std::vector<int> operands_of;
    for (int r : p.reductions) operands_of.push_back(nest.nodes[static_cast<size_t>(r)].scalar.a);
    p.wide = along_columns(operands_of);
  }
  // A place that is kept for later passes is written again by the last of them.
  const auto when = [&](const NestStore& s) {
    return is_wide(s.access) ? level[static_cast<size_t>(s.node)] : static_cast<int>(passes_.size());
  };
  for (const NestStore& s : nest.stores) {
    const bool again = std::any_of(nest.stores.begin(), nest.stores.end(), [&](const NestStore& t) {
      return t.access == s.access && (when(t) > when(s) || (when(t) == when(s) && &t > &s));
    });
    if (!again) stores_.push_back(s);
  }
  std::vector<int> left;
  for (const NestStore& s : stores_) left.push_back(s.node);
  for (const NestFold& f : nest.folds) left.push_back(f.node);
  at_end_ = along_columns(left);
  values_.resize(nest.nodes.size());
}

// The nodes that have to be computed at each column for these, in order.
std::vector<int> NestMeaning::along_columns(const std::vector<int>& targets) const {
  std::vector<bool> needed(nest_.nodes.size(), false);
  for (int t : targets) needed[static_cast<size_t>(t)] = true;
  std::vector<int> nodes;
  for (size_t k = nest_.nodes.size(); k-- > 0;) {
    const NestNode& n = nest_.nodes[k];
    if (!needed[k] || !wide_[k] || n.op == NestOp::kReduce) continue;
    nodes.push_back(static_cast<int>(k));
    for (int operand : {n.scalar.a, n.scalar.b, n.scalar.c}) {
      if (operand >= 0) needed[static_cast<size_t>(operand)] = true;
    }
  }
  std::reverse(nodes.begin(), nodes.end());
  return nodes;
}

double NestMeaning::work_of_row(int64_t columns) const {
  double work = static_cast<double>(columns) * static_cast<double>(at_end_.size() + stores_.size() + 1);
  for (const Pass& p : passes_)
    work += static_cast<double>(column_points(nest_) * static_cast<int64_t>(p.wide.size() + p.reductions.size()));
  return work;
}

double NestMeaning::least_work() const {
  const double row = work_of_row(std::min(kFewColumns, column_points(nest_)));
  return nest_.folds.empty() ? row : row * static_cast<double>(std::min(nest_.rows_per_unit, nest_.items()));
}

// All rows of a unit: its items, where rows go in blocks those of the blocks.
std::vector<NestMeaning::Index> NestMeaning::rows_of(int64_t unit) const {
  std::vector<Index> rows;
  const int64_t first = unit * nest_.rows_per_unit, last = std::min(first + nest_.rows_per_unit, nest_.items());
  for (int64_t item = first; item < last; ++item) {
    Index block(nest_.sizes.size(), 0);
    int64_t rest = item;
    for (int k = nest_.rows() - 1; k >= 0; --k) {
      block[static_cast<size_t>(k)] = rest % nest_.blocks(k);
      rest /= nest_.blocks(k);
    }
    std::vector<Index> of_item{block};
    for (int k = 0; k < nest_.rows(); ++k) {
      const auto loop = static_cast<size_t>(k);
      if (nest_.blocks(k) == nest_.sizes[loop] && !is_blocked(k)) continue;
      const int64_t side = k == nest_.tile ? kTileRows : kLaneBlock;
      std::vector<Index> cut;
      for (const Index& at : of_item) {
        for (int64_t i = at[loop] * side; i < std::min((at[loop] + 1) * side, nest_.sizes[loop]); ++i) {
          cut.push_back(at);
          cut.back()[loop] = i;
        }
      }
      of_item = std::move(cut);
    }
    rows.insert(rows.end(), of_item.begin(), of_item.end());
  }
  return rows;
}

bool NestMeaning::is_blocked(int loop) const {
  return loop == nest_.tile || (nest_.lane_is_row && loop == nest_.rows() - 1);
}

int64_t NestMeaning::columns_of(const Index& row) const {
  const int64_t all = column_points(nest_);
  if (nest_.clip == 0 || nest_.columns == 0) return all;
  const int64_t last = nest_.sizes.back(), begun = row[static_cast<size_t>(nest_.rows()) - 1] * last;
  return all / last * std::min(last, nest_.clip - begun);
}

void NestMeaning::set_column(Index& at, int64_t columns, int64_t column) const {
  const int64_t of_last = nest_.columns == 0 ? 1 : columns / (column_points(nest_) / nest_.sizes.back());
  for (size_t k = nest_.sizes.size(); k-- > static_cast<size_t>(nest_.rows());) {
    const int64_t size = k + 1 == nest_.sizes.size() ? of_last : nest_.sizes[k];
    at[k] = column % size;
    column /= size;
  }
}

int64_t NestMeaning::element(const NestAccess& access, const Index& at) {
  int64_t e = access.offset;
  for (size_t k = 0; k < at.size(); ++k) e += access.strides[k] * at[k];
  return e;
}

bool NestMeaning::is_wide(const NestAccess& access) const {
  return std::any_of(access.strides.begin() + nest_.rows(), access.strides.end(), [](int64_t s) { return s != 0; });
}

void NestMeaning::compute(int node, const Index& at) {
  const NestNode& n = nest_.nodes[static_cast<size_t>(node)];
  BoundedValue& v = values_[static_cast<size_t>(node)];
  const auto of = [&](int id) { return id < 0 ? BoundedValue{} : values_[static_cast<size_t>(id)]; };
  if (n.op == NestOp::kLoad) {
    const Literal& operand = operands_[static_cast<size_t>(n.access.operand)];
    const int64_t e = element(n.access, at);
    v = is_float(operand.type.dtype) ? BoundedValue{{element_f(operand, e), 0}, 0}
                                     : BoundedValue{{0, element_i(operand, e)}, 0};
  } else if (n.op == NestOp::kIndex) {
    v = {{0, element(n.access, at)}, 0};
  } else {
    v = operations_[static_cast<size_t>(node)].apply(of(n.scalar.a), of(n.scalar.b), of(n.scalar.c));
  }
}

// Everything of a row that is the same for all of its columns.
void NestMeaning::begin_row(Index& at) {
  const int64_t columns = columns_of(at);
  for (const Pass& p : passes_) {
    for (int n : p.narrow) compute(n, at);
    std::vector<BoundedReduction> sums;
    for (int r : p.reductions) {
      const NestNode& n = nest_.nodes[static_cast<size_t>(r)];
      sums.emplace_back(n.reduce, n.scalar.type);
    }
    for (int64_t c = 0; c < columns && !sums.empty(); ++c) {
      set_column(at, columns, c);
      for (int n : p.wide) compute(n, at);
      for (size_t k = 0; k < sums.size(); ++k)
        sums[k].add(values_[static_cast<size_t>(nest_.nodes[static_cast<size_t>(p.reductions[k])].scalar.a)]);
    }
    for (size_t k = 0; k < sums.size(); ++k) values_[static_cast<size_t>(p.reductions[k])] = sums[k].result();
  }
}

std::vector<WrittenElement> NestMeaning::sample(int64_t unit, double work, std::mt19937_64& draw) {
  const std::vector<Index> rows = rows_of(unit);
  const int64_t all = column_points(nest_), few = std::min(kFewColumns, all);
  const auto affordable = static_cast<int64_t>(work / work_of_row(few));
  const bool folds = !nest_.folds.empty();
  const int64_t count = folds ? static_cast<int64_t>(rows.size()) : std::max<int64_t>(1, affordable);
  const std::vector<int64_t> chosen = sampled_indices(static_cast<int64_t>(rows.size()), count, draw);
  const double more = (work / static_cast<double>(chosen.size()) - work_of_row(0)) / (work_of_row(1) - work_of_row(0));
  const auto per_row = std::clamp(static_cast<int64_t>(more), few, all);
  const std::vector<int64_t> columns = sampled_indices(all, per_row, draw);
  std::vector<WrittenElement> written;
  std::vector<BoundedReduction> sums;
  for (const NestFold& f : nest_.folds) {
    for (size_t c = 0; c < columns.size(); ++c)
      sums.emplace_back(f.reduce, nest_.nodes[static_cast<size_t>(f.node)].scalar.type);
  }
  for (int64_t r : chosen) {
    Index at = rows[static_cast<size_t>(r)];
    begin_row(at);
    const int64_t there = columns_of(at);
    for (size_t c = 0; c < columns.size(); ++c) {
      // Of a row that ends before, its last one.
      const int64_t column = std::min(columns[c], there - 1);
      set_column(at, there, column);
      for (int n : at_end_) compute(n, at);
      for (const NestStore& s : stores_) {
        if (c == 0 || is_wide(s.access))
          written.push_back({s.access.operand, element(s.access, at), values_[static_cast<size_t>(s.node)]});
      }
      for (size_t k = 0; k < nest_.folds.size(); ++k) {
        const NestFold& f = nest_.folds[k];
        const bool of_row = nest_.nodes[static_cast<size_t>(f.node)].op == NestOp::kReduce;
        if (of_row ? c == 0 : columns[c] < there)
          sums[k * columns.size() + c].add(values_[static_cast<size_t>(f.node)]);
      }
    }
  }
  for (size_t k = 0; k < nest_.folds.size(); ++k) {
    const NestFold& f = nest_.folds[k];
    const bool of_row = nest_.nodes[static_cast<size_t>(f.node)].op == NestOp::kReduce;
    Index at(nest_.sizes.size(), 0);
    for (size_t c = 0; c < (of_row ? 1 : columns.size()); ++c) {
      set_column(at, all, columns[c]);
      const int64_t e = of_row ? unit : unit * f.extent + element(f.access, at);
      written.push_back({f.access.operand, e, sums[k * columns.size() + c].result()});
    }
  }
  for (WrittenElement& w : written) w.value = stored(nest_.operands[static_cast<size_t>(w.operand)], w.value);
  return written;
}

void NestMeaning::each_written(int64_t unit, absl::FunctionRef<void(int, int64_t)> f) const {
  for (const NestFold& fold : nest_.folds) {
    for (int64_t e = unit * fold.extent; e < (unit + 1) * fold.extent; ++e) f(fold.access.operand, e);
  }
  if (stores_.empty()) return;
  for (Index& at : rows_of(unit)) {
    const int64_t columns = columns_of(at);
    for (int64_t c = 0; c < columns; ++c) {
      set_column(at, columns, c);
      for (const NestStore& s : stores_) {
        if (c == 0 || is_wide(s.access)) f(s.access.operand, element(s.access, at));
      }
    }
  }
}

}  // namespace partita
