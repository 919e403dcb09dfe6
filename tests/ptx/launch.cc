#include "tests/ptx/launch.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <random>

#include "base/cat.h"
#include "tests/ptx/warp.h"

namespace partita::ptx {

uint64_t Counters::total() const { return std::accumulate(instructions.begin(), instructions.end(), uint64_t{0}); }

void Counters::add(const Counters& o) {
  for (size_t k = 0; k < instructions.size(); ++k) instructions[k] += o.instructions[k];
  lanes += o.lanes;
  branches += o.branches;
  divergent_branches += o.divergent_branches;
  sectors_read += o.sectors_read;
  sectors_written += o.sectors_written;
  shared_passes += o.shared_passes;
  bank_conflicts += o.bank_conflicts;
  local_accesses += o.local_accesses;
}

std::vector<uint32_t> in_order(uint32_t count, Order order) {
  std::vector<uint32_t> n(count);
  std::iota(n.begin(), n.end(), 0);
  if (order == Order::kBackward) std::reverse(n.begin(), n.end());
  if (order == Order::kShuffled) std::shuffle(n.begin(), n.end(), std::mt19937(7));
  return n;
}

Block::Block(Running& r) : running(r), shared(static_cast<size_t>(r.program.shared_bytes + r.grid.shared_bytes)) {
  shared_shadow = std::make_unique<Shadow>(static_cast<int64_t>(shared.size()));
  const uint32_t threads = r.grid.threads.count();
  for (uint32_t w = 0; w * kLanes < threads; ++w) warps_.push_back(std::make_unique<Warp>(*this, w, threads));
  const auto order = in_order(static_cast<uint32_t>(warps_.size()), r.options.order);
  order_.assign(order.begin(), order.end());
}

void Block::run(uint32_t which) {
  number = which;
  const Index3& of = running.grid.blocks;
  index = {which % of.x, which / of.x % of.y, which / of.x / of.y};
  std::fill(shared.begin(), shared.end(), std::byte{0xff});
  shared_shadow->forget();
  barriers_ = {};
  for (auto& w : warps_) w->begin();
  for (bool goes_on = true; goes_on && running.fault.ok();) {
    goes_on = false;
    for (size_t w : order_) {
      if (warps_[w]->state != Warp::State::kReady) continue;
      warps_[w]->run();
      goes_on = true;
      if (!running.fault.ok()) return;
    }
  }
  for (const Barrier& b : barriers_) {
    if (b.arrived == 0) continue;
    Warp& one = *warps_[b.warps == 0 ? 0 : static_cast<size_t>(std::countr_zero(b.warps))];
    one.fail(running.program.code[b.number], 0, absl::StatusCode::kFailedPrecondition,
             cat("waits at a barrier that ", b.arrived, " of ", b.expected, " threads have reached"));
  }
}

void Block::arrive(Warp& warp, const Instruction& i, uint32_t which, uint32_t count, bool waits) {
  if (which >= barriers_.size() || count % kLanes != 0) {
    warp.fail(i, std::countr_zero(warp.live()), absl::StatusCode::kFailedPrecondition,
              cat("has a barrier that is none: ", which, ", for ", count, " threads"));
    return;
  }
  Barrier& b = barriers_[which];
  const uint32_t expected = count == 0 ? running.grid.threads.count() : count;
  if (b.arrived != 0 && b.expected != expected) {
    warp.fail(i, std::countr_zero(warp.live()), absl::StatusCode::kFailedPrecondition,
              cat("awaits ", expected, " threads at a barrier where others await ", b.expected));
    return;
  }
  b.expected = expected;
  b.number = i.number;
  b.arrived += count == 0 ? static_cast<uint32_t>(std::popcount(warp.live())) : uint32_t{kLanes};
  warp.clock.known[warp.index()] = warp.clock.now++;
  for (size_t w = 0; w < b.known.size(); ++w) b.known[w] = std::max(b.known[w], warp.clock.known[w]);
  if (waits) {
    b.warps |= uint32_t{1} << warp.index();
    warp.state = Warp::State::kAtBarrier;
  }
  if (b.arrived < expected) return;
  for (uint32_t rest = b.warps; rest != 0; rest &= rest - 1) {
    Warp& w = *warps_[static_cast<size_t>(std::countr_zero(rest))];
    for (size_t k = 0; k < b.known.size(); ++k) w.clock.known[k] = std::max(w.clock.known[k], b.known[k]);
    w.state = Warp::State::kReady;
  }
  b = {};
}

void Block::end_warp_barrier(Warp& warp) { warp.clock.known[warp.index()] = warp.clock.now++; }

namespace {

void run_blocks(Running& running) {
  Block block(running);
  const auto run = [&](uint32_t number) {
    if (running.fault.ok()) block.run(number);
  };
  const std::span<const uint32_t> some = running.options.blocks;
  if (!some.empty()) {
    std::for_each(some.begin(), some.end(), run);
    return;
  }
  const auto all = in_order(running.grid.blocks.count(), running.options.order);
  std::for_each(all.begin(), all.end(), run);
}

}  // namespace

std::vector<std::byte> pack_arguments(const Program& program, void* const* arguments) {
  std::vector<std::byte> packed(static_cast<size_t>(program.parameter_bytes));
  for (size_t k = 0; k < program.parameters.size(); ++k)
    std::memcpy(packed.data() + program.parameter_offsets[k], arguments[k],
                static_cast<size_t>(program.parameters[k].bytes));
  return packed;
}

absl::Status launch(const Module& module, const Program& program, const Grid& grid, void* const* arguments,
                    std::vector<GlobalMemory::Range> memory, const LaunchOptions& options, Counters* counters) {
  return launch(module, program, grid, pack_arguments(program, arguments), std::move(memory), options, counters);
}

absl::Status launch(const Module& module, const Program& program, const Grid& grid, std::vector<std::byte> parameters,
                    std::vector<GlobalMemory::Range> memory, const LaunchOptions& options, Counters* counters) {
  const uint32_t threads = grid.threads.count();
  if (threads == 0 || threads > 1024 || grid.blocks.count() == 0 || grid.blocks.count() >> Moment::kBlockBits != 0)
    return absl::InvalidArgumentError(
        cat(program.name, ": ", threads, " threads a block, ", grid.blocks.count(), " blocks"));
  if (parameters.size() != static_cast<size_t>(program.parameter_bytes))
    return absl::InvalidArgumentError(cat(program.name, ": parameters of another size"));
  Running running{module,
                  program,
                  grid,
                  std::move(parameters),
                  GlobalMemory(std::move(memory), options.finds_races),
                  options,
                  {},
                  std::vector<uint32_t>(program.code.size()),
                  absl::OkStatus(),
                  {}};
  run_blocks(running);
  if (!running.fault.ok()) return running.fault;
  if (counters != nullptr) counters->add(running.counters);
  if (!running.replay.has_suspects()) return absl::OkStatus();
  // In place of what suspect reads found: a NaN, a large number, the largest below 0.
  running.is_again = true;
  const Replay::Bytes expected = running.replay.written();
  for (int poison : {0xff, 0x7f, 0xfe}) {
    running.poison = static_cast<std::byte>(poison);
    running.replay.undo();
    running.memory.forget();
    run_blocks(running);
    if (!running.fault.ok() || running.replay.written() != expected) return running.replay.first();
  }
  return absl::OkStatus();
}

}  // namespace partita::ptx
