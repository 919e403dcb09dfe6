#include "ir/nest/device_schedule.h"

#include <algorithm>
#include <bit>
#include <cstdlib>

#include "base/cat.h"
#include "ir/nest/nest_text.h"

namespace partita {
namespace {

constexpr int kBlock = 256;            // threads of a block that has no reason for another number
constexpr int kMostTeam = 1024;        // threads of a block at most
constexpr int kMostVector = 8;         // points that a thread has side by side: 16 bytes of a 16-bit type
constexpr int kHeld = 8;               // vectors of a row in registers at most
constexpr int64_t kLoadedValues = 40;  // that a thread has under way at most
constexpr int64_t kHeldValues = 96;    // values in registers from pass to pass at most
constexpr int64_t kRegisters = 65536, kOtherRegisters = 24;  // of a multiprocessor; of a thread beside those
constexpr int64_t kHeldCode = 6000;                          // operations of an unrolled row at most
constexpr int64_t kTileElement = kTileRows * (kTileRows + 1);

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int power_of_two_from(int64_t n) {
  return static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1))));
}

// Calls f with every access to memory, and the size of its elements.
template <typename F>
void each_access(const LoopNest& nest, F f) {
  for (const NestNode& n : nest.nodes) {
    if (n.op == NestOp::kLoad) f(n.access);
  }
  for (const NestStore& s : nest.stores) f(s.access);
  for (const NestFold& s : nest.folds) f(s.access);
}

int64_t loads_of(const LoopNest& nest) {
  return std::count_if(nest.nodes.begin(), nest.nodes.end(), [](const NestNode& n) { return n.op == NestOp::kLoad; });
}

// Vectors of 16 bytes of the narrowest type where everything that is contiguous along the last loop is aligned to them:
// of a wider type they are two accesses, if there are registers for that.
int vector_of(const LoopNest& nest) {
  if (nest.sizes.empty()) return 1;
  size_t last = nest.sizes.size() - 1;
  int64_t widest = 1, narrowest = 16;
  bool contiguous = false;
  each_access(nest, [&](const NestAccess& a) {
    if (a.strides[last] != 1) return;
    contiguous = true;
    widest = std::max(widest, dtype_size(nest.operands[a.operand]));
    narrowest = std::min(narrowest, dtype_size(nest.operands[a.operand]));
  });
  if (!contiguous) return 1;
  const int64_t registers = kLoadedValues / std::max<int64_t>(loads_of(nest), 1);
  const int64_t most = std::max<int64_t>(16 / widest, std::min<int64_t>({16 / narrowest, 32 / widest, registers}));
  for (int v = static_cast<int>(std::min<int64_t>(kMostVector, std::bit_floor(static_cast<uint64_t>(most)))); v > 1;
       v /= 2) {
    bool fits = nest.sizes[last] % v == 0 && nest.clip % v == 0;
    each_access(nest, [&](const NestAccess& a) {
      if (a.strides[last] != 1) return;
      fits = fits && a.offset % v == 0;
      for (size_t k = 0; k < last; ++k) fits = fits && a.strides[k] % v == 0;
    });
    for (const NestFold& f : nest.folds) fits = fits && f.extent % v == 0;
    if (fits) return v;
  }
  return 1;
}

// Whether element numbers or counts of points need more than 31 bits.
bool needs_wide(const LoopNest& nest, int64_t partials) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  auto far = [&](const NestAccess& a) {
    int64_t reach = std::abs(a.offset);
    for (size_t k = 0; k < a.strides.size(); ++k) reach += std::abs(a.strides[k]) * (nest.sizes[k] - 1);
    return reach >= kLimit;
  };
  bool wide = row_points(nest) * column_points(nest) + 4 * kMostTeam >= kLimit;
  for (const NestNode& n : nest.nodes)
    wide = wide || ((n.op == NestOp::kLoad || n.op == NestOp::kIndex) && far(n.access));
  for (const NestStore& s : nest.stores) wide = wide || far(s.access);
  for (const NestFold& f : nest.folds) wide = wide || partials * f.extent >= kLimit;
  return wide;
}

// Values of one point that some later pass, or the folds, keep in registers: what is loaded, and conditions.
int64_t held_values(const LoopNest& nest) {
  const auto varies = variation(nest);
  const std::vector<int> level = levels(nest);
  std::vector<bool> read_later(nest.nodes.size(), false);
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const ScalarNode& s = nest.nodes[k].scalar;
    for (int operand : {s.a, s.b, s.c}) {
      if (operand >= 0 && nest.nodes[k].op == NestOp::kScalar && level[k] > level[static_cast<size_t>(operand)])
        read_later[static_cast<size_t>(operand)] = true;
    }
  }
  int64_t count = static_cast<int64_t>(nest.folds.size());
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    bool along = std::find(varies[k].begin() + nest.rows(), varies[k].end(), true) != varies[k].end();
    count += along && (n.op == NestOp::kLoad || (n.scalar.type == DType::kBool && read_later[k]));
  }
  return count;
}

// Of a strict nest: by the number of columns alone, which says in what order their values are added up.
void choose_strict_team(const LoopNest& nest, DeviceSchedule& s) {
  s.vector = 1;
  const int64_t columns = column_points(nest);
  s.team = std::clamp(power_of_two_from(divide_up(columns, kHeld)), kWarp, kMostTeam / 2);
  const int64_t held = divide_up(columns, s.team);
  s.held = held > kHeld ? 0 : static_cast<int>(held);
}

// Threads of a row: enough for few vectors each, which then stay in registers.
void choose_team(const LoopNest& nest, int least, DeviceSchedule& s) {
  if (nest.strict) return choose_strict_team(nest, s);
  int64_t vectors = divide_up(column_points(nest), s.vector), values = held_values(nest) * s.vector,
          code = static_cast<int64_t>(nest.nodes.size()) * s.vector;
  for (int team = std::max(least, std::min(power_of_two_from(vectors), kWarp)); team <= kMostTeam; team *= 2) {
    const int64_t held = divide_up(vectors, team), most = std::min(kHeldValues, kRegisters / team - kOtherRegisters);
    if (held > kHeld || held * values > most || held * code > kHeldCode) continue;
    s.team = team;
    s.held = static_cast<int>(held);
    return;
  }
  s.team = std::clamp(power_of_two_from(vectors / 4), std::max(least, kWarp), kMostTeam / 2);
}

// Teams that fill a block, as long as what all but the first have added up fits into shared memory.
int teams_of_unit(const LoopNest& nest, const DeviceSchedule& s) {
  if (s.held == 0 || nest.strict) return 1;  // each adds up in memory; or what fits depends on what else is added up
  const int64_t team = folded_words(nest, s) * folded_bytes(nest) * s.team,
                most = std::min<int64_t>(kBlock / s.team, nest.rows_per_unit);
  return static_cast<int>(
      std::clamp<int64_t>(1 + kSharedBytes * 3 / 4 / std::max<int64_t>(team, 1), 1, std::max<int64_t>(most, 1)));
}

// Several vectors a thread where there are plenty of them, and registers for what they load.
int vectors_of_thread(const LoopNest& nest, const DeviceSchedule& s) {
  constexpr int64_t kPlenty = int64_t{1} << 18;
  if (row_points(nest) * column_points(nest) / s.vector < kPlenty) return 1;
  return static_cast<int>(std::clamp<int64_t>(kLoadedValues / std::max<int64_t>(loads_of(nest) * s.vector, 1), 1, 4));
}

DeviceSchedule schedule_rows(const LoopNest& nest, DeviceSchedule s) {
  s.shape = DeviceShape::kRows;
  if (nest.lane_is_row) {
    s.vector = 1;
    s.lanes = kWarp;
    s.team = std::clamp(power_of_two_from(column_points(nest) / 8), 1, kWarp);
    s.threads = s.lanes * s.team;
    int64_t size = nest.sizes[static_cast<size_t>(nest.rows()) - 1];
    s.blocks = row_points(nest) / size * divide_up(size, s.lanes);
    return s;
  }
  choose_team(nest, 1, s);
  s.threads = s.team > kWarp ? s.team : kBlock / 2;  // teams of several warps meet at the block's barrier
  s.blocks = divide_up(row_points(nest), s.threads / s.team);
  return s;
}

}  // namespace

int64_t folded_words(const LoopNest& nest, const DeviceSchedule& s) {
  int64_t words = 0;
  for (const NestFold& f : nest.folds)
    words += nest.nodes[f.node].op == NestOp::kReduce ? 1 : int64_t{s.held} * s.vector;
  return words;
}

int64_t folded_bytes(const LoopNest& nest) {
  int64_t bytes = 4;
  for (const NestFold& f : nest.folds) bytes = std::max(bytes, dtype_size(nest.operands[f.access.operand]));
  return bytes;
}

LoopNest device_nest(LoopNest nest) {
  size_t loops = nest.sizes.size();
  if (nest.columns != 1 || loops < 2 || nest.tile >= 0 || has_reductions(nest) || !nest.folds.empty()) return nest;
  bool whole = true;
  auto each = [&](auto f) {
    for (NestNode& n : nest.nodes) {
      if (n.op == NestOp::kLoad || n.op == NestOp::kIndex) f(n.access.strides);
    }
    for (NestStore& s : nest.stores) f(s.access.strides);
  };
  each([&](const std::vector<int64_t>& s) { whole = whole && s[loops - 2] == s[loops - 1] * nest.sizes[loops - 1]; });
  if (!whole) return nest;
  each([&](std::vector<int64_t>& s) { s.erase(s.end() - 2); });
  nest.sizes[loops - 1] = nest.clip > 0 ? nest.clip : nest.sizes[loops - 1] * nest.sizes[loops - 2];
  nest.sizes.erase(nest.sizes.end() - 2);
  nest.clip = 0;
  return nest;
}

std::string batching_key(const LoopNest& nest, const DeviceSchedule& schedule) {
  if (schedule.shape != DeviceShape::kPoints || nest.sizes.size() != 1) return to_string(nest);
  LoopNest any = nest;
  any.sizes = {0};
  any.rows_per_unit = 1;
  any.lane_is_row = false;
  return cat(to_string(any), schedule.vectors, " vectors of ", schedule.vector, schedule.wide ? ", wide" : "");
}

std::vector<int> turned_loads(const LoopNest& nest) {
  std::vector<int> turned;
  if (nest.tile < 0) return turned;
  size_t lane = nest.sizes.size() - 1;
  int64_t bytes = 0;
  for (size_t k = 0; k < nest.nodes.size(); ++k) {
    const NestNode& n = nest.nodes[k];
    if (n.op != NestOp::kLoad || n.access.strides[lane] == 0 || n.access.strides[lane] == 1 ||
        n.access.strides[static_cast<size_t>(nest.tile)] != 1)
      continue;
    bytes += kTileElement * dtype_size(nest.operands[n.access.operand]);
    if (bytes > kSharedBytes) break;
    turned.push_back(static_cast<int>(k));
  }
  return turned;
}

DeviceSchedule device_schedule(const LoopNest& nest) {
  DeviceSchedule s;
  int64_t partials = divide_up(nest.items(), nest.rows_per_unit);
  s.vector = vector_of(nest);
  s.wide = needs_wide(nest, partials);
  if (!nest.folds.empty()) {
    s.shape = DeviceShape::kUnits;
    choose_team(nest, kWarp, s);
    s.teams = teams_of_unit(nest, s);
    s.threads = s.team * s.teams;
    s.blocks = partials;
    return s;
  }
  if (has_reductions(nest)) return schedule_rows(nest, s);
  s.threads = kBlock;
  if (!turned_loads(nest).empty()) {
    s.shape = DeviceShape::kTiles;
    s.vector = 1;
    int64_t tile = nest.sizes[static_cast<size_t>(nest.tile)], lane = nest.sizes.back();
    s.blocks = row_points(nest) / tile * divide_up(tile, kTileRows) * divide_up(lane, kTileRows);
    return s;
  }
  s.vectors = vectors_of_thread(nest, s);
  s.blocks = divide_up(row_points(nest) * column_points(nest) / s.vector, int64_t{s.threads} * s.vectors);
  return s;
}

}  // namespace partita
