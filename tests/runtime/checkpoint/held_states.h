// States without a step of training, under several layouts: saved, loaded and compared.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "base/box.h"
#include "base/mix64.h"
#include "gtest/gtest.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/communicate/flag_exchange.h"
#include "runtime/program/placement.h"
#include "runtime/transports/collective_threads.h"
#include "tests/runtime/support/program_samples.h"

namespace partita::runtime {

// A program that only holds states: a parameter, its optimizer state, a packed weight [3*4*2, 6] split by heads, a step
// counter and a scalar. Layouts: how many ranks, over which axes of the mesh each state is split.
struct Layout {
  const char* name;
  std::vector<MeshAxis> mesh;
  std::vector<int32_t> rows, columns;  // mesh axes that split dimension 0 and 1 of "w" and its optimizer state
  int32_t heads = -1;                  // mesh axis that splits the heads of "qkv"
};

inline const std::vector<Layout>& layouts() {
  static const std::vector<Layout> kLayouts = {
      {"one", {{"data", 1}}, {}, {}, -1},
      {"dp4", {{"data", 4}}, {}, {}, -1},
      {"zero2", {{"data", 2}}, {0}, {}, -1},
      {"zero4", {{"data", 4}}, {0}, {}, -1},
      {"tp2dp2", {{"data", 2}, {"tensor", 2}}, {}, {1}, 1},
      {"tp2zero2", {{"data", 2}, {"tensor", 2}}, {0}, {1}, 1},
      {"tp4", {{"tensor", 4}}, {}, {0}, 0},
  };
  return kLayouts;
}

inline Placement split_over(const std::vector<MeshAxis>& mesh, size_t dim, const std::vector<int32_t>& axes,
                            Placement base) {
  for (int32_t a : axes) {
    base.local[dim] /= mesh[static_cast<size_t>(a)].size;
    base.axes[dim].push_back({a, base.local[dim]});
  }
  return base;
}

inline Program holder(const Layout& l, std::vector<int64_t> shape = {8, 12}) {
  Program p;
  p.model = "holder";
  p.target = "cpu:x86-64-v4";
  p.mesh = l.mesh;
  p.samples_per_step = 4;
  int64_t at = 0;
  auto add = [&](std::string name, StateKind kind, std::string parameter, DType dtype, Placement placement) {
    Operand o = operand(Region::kState, at, placement.local, dtype);
    at += (*element_count(o.shape) * dtype_size(dtype) + 63) / 64 * 64;
    p.states.push_back({name, kind, parameter, o, std::move(placement), {.kind = InitialKind::kFill}});
  };
  Placement w = split_over(l.mesh, 1, l.columns, split_over(l.mesh, 0, l.rows, whole(shape)));
  add("w", StateKind::kParameter, "", DType::kF32, w);
  add("optimizer/w/exp_avg", StateKind::kOptimizer, "w", DType::kF64, w);
  Placement qkv{.logical = {24, 6}, .shape = {3, 4, 2, 6}, .local = {3, 4, 2, 6}, .axes = {{}, {}, {}, {}}};
  if (l.heads >= 0) {
    qkv.local[1] /= l.mesh[static_cast<size_t>(l.heads)].size;
    qkv.axes[1] = {{l.heads, qkv.local[1]}};
  }
  add("qkv", StateKind::kParameter, "", DType::kBF16, qkv);
  add("step", StateKind::kStep, "", DType::kI64, whole({}));
  add("grad", StateKind::kAccumulator, "w", DType::kF32, w);
  p.region_bytes[static_cast<int>(Region::kState)] = at;
  return p;
}

// Every element of a state's own value, by its number in the whole tensor.
inline std::vector<std::byte> content(const ProgramState& s, uint64_t seed) {
  const int64_t n = *element_count(s.placement.logical), size = dtype_size(s.operand.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(n * size));
  for (int64_t k = 0; k < n; ++k) {
    const uint64_t value = mix64(seed + s.name.size(), static_cast<uint64_t>(k));
    std::memcpy(bytes.data() + k * size, &value, static_cast<size_t>(size));
  }
  return bytes;
}

using Visit = std::function<void(const ProgramState&, const LogicalPiece&, std::span<std::byte>)>;
inline void for_states(const Executor& executor, const Visit& visit) {
  for (const ProgramState& s : executor.program().states) {
    if (!is_kept(s)) continue;
    ASSERT_TRUE(for_each_piece(s.placement, executor.coordinates(), [&](const LogicalPiece& piece) {
                  visit(s, piece, executor.memory(s.operand));
                  return absl::OkStatus();
                }).ok());
  }
}

// This rank's parts of content(), put or compared.
inline void fill(const Executor& executor, uint64_t seed) {
  for_states(executor, [&](const ProgramState& s, const LogicalPiece& piece, std::span<std::byte> own) {
    const std::vector<std::byte> all = content(s, seed);
    const int64_t size = dtype_size(s.operand.dtype);
    std::vector<std::byte> dense(static_cast<size_t>(*element_count(piece.extent) * size));
    ASSERT_TRUE(for_each_run(s.placement.logical, piece.offset, piece.extent, [&](int64_t from, int64_t to, int64_t n) {
                  std::memcpy(dense.data() + to * size, all.data() + from * size, static_cast<size_t>(n * size));
                  return absl::OkStatus();
                }).ok());
    unpack_piece(piece, size, dense.data(), own.data());
  });
}

inline int64_t differences(const Executor& executor, uint64_t seed) {
  int64_t different = 0;
  for_states(executor, [&](const ProgramState& s, const LogicalPiece& piece, std::span<std::byte> own) {
    const std::vector<std::byte> all = content(s, seed);
    const int64_t size = dtype_size(s.operand.dtype);
    std::vector<std::byte> dense(static_cast<size_t>(*element_count(piece.extent) * size));
    pack_piece(piece, size, own.data(), dense.data());
    ASSERT_TRUE(for_each_run(s.placement.logical, piece.offset, piece.extent, [&](int64_t from, int64_t to, int64_t n) {
                  different += std::memcmp(dense.data() + to * size, all.data() + from * size,
                                           static_cast<size_t>(n * size)) != 0;
                  return absl::OkStatus();
                }).ok());
  });
  return different;
}

// One thread a rank; the first status that is the rank's own.
using RankWork = std::function<absl::Status(const Executor&, Communicator*)>;
inline absl::Status on_ranks(const Program& program, const RankWork& work) {
  auto loaded = LoadedProgram::load(program);
  if (!loaded.ok()) return loaded.status();
  const int ranks = static_cast<int>(mesh_size(program.mesh));
  ThreadWorld world(ranks);
  std::vector<absl::Status> results(static_cast<size_t>(ranks));
  std::vector<std::thread> team;
  for (int r = 0; r < ranks; ++r) {
    team.emplace_back([&, r] {
      auto communicator = world.communicator(r);
      auto executor = Executor::create(*loaded, communicator->get(), {});
      results[static_cast<size_t>(r)] = executor.ok() ? work(**executor, communicator->get()) : executor.status();
      if (!results[static_cast<size_t>(r)].ok()) (*communicator)->abort("test");
    });
  }
  for (std::thread& t : team) t.join();
  absl::Status first;
  for (const absl::Status& s : results) {
    if (!s.ok() && s.code() != absl::StatusCode::kUnavailable) return s;
    if (first.ok()) first = s;
  }
  return first;
}

inline CheckpointManifest head(int64_t step) {
  CheckpointManifest m;
  m.model = "holder";
  m.step = step;
  m.samples = 4 * step;
  m.samples_per_step = 4;
  return m;
}

// Saves content(seed + step) as each of `steps`.
inline absl::Status save(const Program& program, const CheckpointOptions& options, std::vector<int64_t> steps,
                         uint64_t seed) {
  return on_ranks(program, [&](const Executor& executor, Communicator* communicator) -> absl::Status {
    auto c = Checkpointer::open(options, executor, communicator);
    if (!c.ok()) return c.status();
    for (int64_t step : steps) {
      fill(executor, seed + static_cast<uint64_t>(step));
      if (auto s = (*c)->save(head(step)); !s.ok()) return s;
      fill(executor, 999);  // training goes on and must not touch what is being written
      FlagExchange exchange(communicator);
      const Checkpointer::Progress mine = (*c)->progress();
      exchange.begin({mine.writing, mine.failed, mine.archiving});
      auto all = exchange.end();
      if (!all.ok()) return all.status();
      if (auto s = (*c)->settle({(*all)[0], (*all)[1], (*all)[2]}); !s.ok()) return s;
    }
    if (auto s = (*c)->finish(); !s.ok()) return s;
    return (*c)->leave();
  });
}

// Loads, and gives the number of pieces that are not content(seed).
inline absl::StatusOr<int64_t> load(const Program& program, const CheckpointOptions& options, uint64_t seed) {
  std::atomic<int64_t> different = 0;
  absl::Status status = on_ranks(program, [&](const Executor& executor, Communicator* communicator) -> absl::Status {
    auto c = Checkpointer::open(options, executor, communicator);
    if (!c.ok()) return c.status();
    auto from = (*c)->resume();
    if (!from.ok()) return from.status();
    if (!from->has_value()) return absl::NotFoundError("nothing to resume from");
    different += differences(executor, seed);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return different.load();
}

}  // namespace partita::runtime
