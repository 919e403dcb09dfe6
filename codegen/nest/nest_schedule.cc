#include "codegen/nest/nest_schedule.h"

#include <algorithm>

#include "ir/nest/reduction_order.h"

namespace partita {
namespace {

// Calls `f` with the strides of everything that depends on the loops.
template <typename F>
void each_strides(LoopNest& nest, F f) {
  for (NestNode& n : nest.nodes) {
    if (n.op == NestOp::kLoad || n.op == NestOp::kIndex) f(n.access.strides);
  }
  for (NestStore& s : nest.stores) f(s.access.strides);
  for (NestFold& s : nest.folds) f(s.access.strides);
}

void erase_loop(LoopNest& nest, std::vector<bool>& column, size_t k) {
  nest.sizes.erase(nest.sizes.begin() + static_cast<std::ptrdiff_t>(k));
  column.erase(column.begin() + static_cast<std::ptrdiff_t>(k));
  each_strides(nest, [&](std::vector<int64_t>& s) { s.erase(s.begin() + static_cast<std::ptrdiff_t>(k)); });
}

void permute_loops(LoopNest& nest, const std::vector<size_t>& order) {
  auto apply = [&](std::vector<int64_t>& v) {
    std::vector<int64_t> w;
    for (size_t k : order) w.push_back(v[k]);
    v = std::move(w);
  };
  apply(nest.sizes);
  each_strides(nest, apply);
}

void merge_loops(LoopNest& nest, std::vector<bool>& column) {
  for (size_t k = 0; k + 1 < nest.sizes.size();) {
    bool alike = column[k] == column[k + 1];
    each_strides(nest, [&](std::vector<int64_t>& s) { alike = alike && s[k] == nest.sizes[k + 1] * s[k + 1]; });
    if (!alike) {
      ++k;
      continue;
    }
    nest.sizes[k + 1] *= nest.sizes[k];
    erase_loop(nest, column, k);
  }
}

// Accesses whose elements lie apart along loop k.
int scattered(LoopNest& nest, size_t k) {
  int count = 0;
  each_strides(nest, [&](std::vector<int64_t>& s) { count += s[k] != 0 && s[k] != 1; });
  return count;
}

// Whether runs of columns are a quarter of a cache line or less, and the next row's lie behind them (batch norm of
// planes of 2 x 2): row by row the same lines would be read and written again and again, in few lanes at that. Of
// longer ones too much is gathered: planes of 3 x 3 take a third longer so.
bool rows_share_lines(LoopNest& nest) {
  constexpr int64_t kRun = 4, kLanes = 16;
  const size_t row = static_cast<size_t>(nest.rows()) - 1, column = nest.sizes.size() - 1;
  const int64_t run = nest.sizes[column];
  bool behind = nest.columns > 1 && run <= kRun && nest.sizes[row] >= kLanes;
  each_strides(nest, [&](std::vector<int64_t>& s) { behind = behind && (s[column] != 1 || s[row] == run); });
  return behind;
}

// True where reductions are read by folds alone, so that any part of the columns may become rows.
bool columns_are_cuttable(const LoopNest& nest) {
  for (const NestNode& n : nest.nodes) {
    for (int operand : {n.scalar.a, n.scalar.b, n.scalar.c}) {
      if (operand >= 0 && nest.nodes[operand].op == NestOp::kReduce) return false;
    }
  }
  for (const NestStore& s : nest.stores) {
    if (nest.nodes[s.node].op == NestOp::kReduce) return false;
  }
  for (const NestFold& f : nest.folds) {
    if (nest.nodes[f.node].op != NestOp::kReduce) return false;
  }
  return true;
}

// One long column loop becomes rows of kChunk columns.
void cut_columns(LoopNest& nest) {
  int64_t n = nest.sizes.back();
  if (nest.columns != 1 || n < 2 * kChunk || !columns_are_cuttable(nest)) return;
  size_t at = nest.sizes.size() - 1;
  each_strides(
      nest, [&](std::vector<int64_t>& s) { s.insert(s.begin() + static_cast<std::ptrdiff_t>(at), s.back() * kChunk); });
  nest.sizes.back() = kChunk;
  nest.sizes.insert(nest.sizes.begin() + static_cast<std::ptrdiff_t>(at), (n + kChunk - 1) / kChunk);
  nest.clip = n % kChunk == 0 ? 0 : n;
}

// Reductions over single columns are their operands.
void drop_reductions(LoopNest& nest) {
  std::vector<int> now(nest.nodes.size(), -1);
  std::vector<NestNode> kept;
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    NestNode n = nest.nodes[k];
    for (int* operand : {&n.scalar.a, &n.scalar.b, &n.scalar.c}) *operand = *operand >= 0 ? now[*operand] : -1;
    now[k] = n.op == NestOp::kReduce ? n.scalar.a : static_cast<int>(kept.size());
    if (n.op != NestOp::kReduce) kept.push_back(std::move(n));
  }
  nest.nodes = std::move(kept);
  for (NestStore& s : nest.stores) s.node = now[s.node];
}

// A row loop whose neighbours some load finds side by side, while the lanes' lie apart.
int tile_loop(const LoopNest& nest) {
  size_t lane = nest.sizes.size() - 1;
  for (const NestNode& n : nest.nodes) {
    if (n.op != NestOp::kLoad || n.access.strides[lane] == 0 || n.access.strides[lane] == 1) continue;
    for (size_t k = 0; k < lane; ++k) {
      if (n.access.strides[k] == 1 && nest.sizes[k] >= 8 && nest.sizes[lane] >= 8) return static_cast<int>(k);
    }
  }
  return -1;
}

}  // namespace

void schedule(LoopNest& nest, std::vector<bool> column, int64_t fold_units, bool on_gpu) {
  for (size_t k = nest.sizes.size(); k-- > 0;) {
    if (nest.sizes[k] == 1) erase_loop(nest, column, k);
  }
  std::vector<size_t> order;
  for (bool columns : {false, true}) {
    for (size_t k = 0; k < column.size(); ++k) {
      if (column[k] == columns) order.push_back(k);
    }
  }
  permute_loops(nest, order);
  std::stable_sort(column.begin(), column.end());
  if (nest.folds.empty() && std::count(column.begin(), column.end(), true) == 0) drop_reductions(nest);
  bool reduces = has_reductions(nest) || !nest.folds.empty();
  if (!reduces) std::fill(column.begin(), column.end(), false);
  merge_loops(nest, column);
  nest.columns = static_cast<int>(std::count(column.begin(), column.end(), true));
  if (!reduces && !nest.sizes.empty()) nest.columns = 1;
  if (reduces && nest.columns > 0 && nest.rows() > 0 && nest.folds.empty()) {
    int along_columns = scattered(nest, nest.sizes.size() - 1),
        along_rows = scattered(nest, static_cast<size_t>(nest.rows()) - 1);
    nest.lane_is_row = along_rows < along_columns || (!on_gpu && !nest.strict && rows_share_lines(nest));
  }
  if (!reduces && nest.columns == 1) nest.tile = tile_loop(nest);
  if (!nest.lane_is_row && !nest.sizes.empty() && nest.tile < 0) cut_columns(nest);
  int64_t points = column_points(nest) * (nest.lane_is_row ? std::min(kLaneBlock, nest.sizes[nest.rows() - 1])
                                          : nest.tile >= 0 ? kTileRows
                                                           : 1);
  int64_t count = nest.items();
  nest.rows_per_unit = std::clamp<int64_t>(kUnitPoints / std::max<int64_t>(points, 1), 1, std::max<int64_t>(count, 1));
  if (nest.folds.empty()) return;
  const bool total = nest.nodes[static_cast<size_t>(nest.folds[0].node)].op == NestOp::kReduce;
  nest.rows_per_unit = nest.strict && !total ? strict_rows_per_unit(count)
                                             : std::max(nest.rows_per_unit, (count + fold_units - 1) / fold_units);
}

bool may_share(const LoopNest& nest, int input, int output) {
  auto level = levels(nest);
  auto varies = variation(nest);
  int last = *std::max_element(level.begin(), level.end());
  auto along_columns = [&](int node) {
    return std::find(varies[node].begin() + nest.rows(), varies[node].end(), true) != varies[node].end();
  };
  auto is_kept = [&](int node) {
    return std::any_of(nest.kept.begin(), nest.kept.end(), [&](const NestStore& s) { return s.node == node; });
  };
  const NestStore* store = nullptr;  // the first to write
  for (const NestStore& s : nest.stores) {
    if (s.access.operand != output) continue;
    if (store != nullptr && s.access != store->access) return false;
    if (store == nullptr || level[s.node] < level[store->node]) store = &s;
  }
  if (store == nullptr || dtype_size(nest.operands[input]) != dtype_size(nest.operands[output])) return false;
  bool wide = false;  // stored at every column
  for (size_t d = static_cast<size_t>(nest.rows()); d < nest.sizes.size(); ++d)
    wide = wide || store->access.strides[d] != 0;
  int when = wide ? level[store->node] : last + 1;
  std::vector<bool> reads(nest.nodes.size(),
                          false);  // whether a node is made from a load of `input`, its own columns' only
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    if (n.op == NestOp::kLoad && n.access.operand == input) {
      if (n.access.strides != store->access.strides || n.access.offset != store->access.offset) return false;
      reads[k] = true;
    }
    for (int operand : {n.scalar.a, n.scalar.b, n.scalar.c}) {
      if (operand < 0 || !reads[operand]) continue;
      // The pass that reads it; a kept operand is read back from where it is kept.
      int pass = n.op == NestOp::kReduce ? level[k] - 1 : level[k];
      if (pass > level[operand] && is_kept(operand)) continue;
      if (n.op != NestOp::kReduce && along_columns(operand)) reads[k] = true;
      // A row's value is made once, before the pass that first needs it.
      if (n.op == NestOp::kReduce && pass > when) return false;
    }
  }
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    if (reads[k] && !along_columns(static_cast<int>(k)) && wide)
      return false;  // one element of a row, read by all of its columns
  }
  for (const NestStore& s : nest.stores) {
    if (reads[s.node] && &s != store && level[s.node] > when) return false;
  }
  for (const NestFold& f : nest.folds) {
    if (reads[f.node] && level[f.node] > when) return false;
  }
  return true;
}

}  // namespace partita
