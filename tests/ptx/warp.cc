#include "tests/ptx/warp.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/cat.h"

namespace partita::ptx {

Warp::Warp(Block& block, uint32_t index, uint32_t threads)
    : block_(block),
      code_(block.running.program.code),
      index_(index),
      all_(threads - index * kLanes >= kLanes ? kAllLanes : (uint32_t{1} << (threads - index * kLanes)) - 1),
      file_(block.running.program.file_bytes),
      local_(static_cast<size_t>(block.running.program.local_bytes) * kLanes) {
  for (const Constant& c : block.running.program.constants) {
    for (int lane = 0; lane < kLanes; ++lane)
      std::memcpy(file_.data() + c.row + lane * c.bytes, &c.bits, static_cast<size_t>(c.bytes));
  }
}

Running& Warp::running() { return block_.running; }

void Warp::begin() {
  live_ = all_;
  waiting_ = 0;
  pc_.fill(running().program.begin);
  state = State::kReady;
  clock = {.warp = index_};
  for (auto& c : copies_) c.clear();
  poisoned_.clear();
}

Index3 Warp::thread_index(int lane) const {
  const Index3& of = block_.running.grid.threads;
  const uint32_t t = thread(lane);
  return {t % of.x, t / of.x % of.y, t / of.x / of.y};
}

Moment Warp::moment(int lane) const { return {block_.number, thread(lane), clock.now}; }

void Warp::fail(const Instruction& i, int lane, absl::StatusCode code, const std::string& what) {
  if (running().fault.ok()) running().fault = failure(i, lane, code, what);
}

absl::Status Warp::failure(const Instruction& i, int lane, absl::StatusCode code, const std::string& what) const {
  const Running& r = block_.running;
  return absl::Status(code, cat(r.program.name, ", line ", i.line, " '", r.module.line(i.line), "': thread ",
                                thread(lane), " of block ", block_.number, " ", what));
}

// The lanes at the lowest place of the program are the next to run: they are behind, or in a branch that the others
// wait behind.
bool Warp::choose() {
  const uint32_t able = live_ & ~waiting_;
  if (able == 0) return false;
  at_ = next_ = ~uint32_t{0};
  group_ = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((able >> lane & 1) == 0) continue;
    const uint32_t pc = pc_[static_cast<size_t>(lane)];
    if (pc < at_) {
      next_ = at_;
      at_ = pc;
      group_ = 0;
    }
    if (pc == at_)
      group_ |= uint32_t{1} << lane;
    else
      next_ = std::min(next_, pc);
  }
  return true;
}

void Warp::run() {
  while (state == State::kReady && running().fault.ok()) {
    if (choose()) {
      advance();
    } else if (live_ == 0) {
      state = State::kEnded;
    } else {  // they wait for lanes that have ended, or that wait elsewhere
      const int lane = std::countr_zero(waiting_);
      fail(code_[pc_[static_cast<size_t>(lane)]], lane, absl::StatusCode::kFailedPrecondition,
           "waits for lanes of its warp that do not come");
    }
  }
}

void Warp::advance() {
  Running& r = running();
  uint64_t lanes_active = 0;
  const auto scatter = [&] {
    for (uint32_t rest = group_; rest != 0; rest &= rest - 1) pc_[static_cast<size_t>(std::countr_zero(rest))] = at_;
  };
  for (;;) {
    if (at_ >= next_) {  // others are here, or behind
      scatter();
      break;
    }
    const Instruction& i = code_[at_];
    uint32_t lanes = group_;
    if (i.guard != kNoRow) lanes &= i.guard_is_negated ? ~*mask(i.guard) : *mask(i.guard);
    ++r.counters.instructions[static_cast<size_t>(i.kind)];
    lanes_active += static_cast<uint64_t>(std::popcount(lanes));
    if (i.flow == Flow::kNext) {
      if (lanes != 0) i.run(*this, i, lanes);
      ++at_;
      continue;
    }
    if (i.flow == Flow::kMemory) {
      if (lanes != 0) i.run(*this, i, lanes);
      ++at_;
      if (r.fault.ok()) continue;
      scatter();
      break;
    }
    if (i.flow == Flow::kTogether || i.flow == Flow::kAligned || i.flow == Flow::kBarrier) {
      if (lanes == 0) {
        ++at_;
        continue;
      }
      for (uint32_t rest = group_ & ~lanes; rest != 0; rest &= rest - 1) {
        pc_[static_cast<size_t>(std::countr_zero(rest))] = at_ + 1;
        next_ = std::min(next_, at_ + 1);
      }
      group_ = lanes;
      if (!gather_lanes(i)) {
        --r.counters.instructions[static_cast<size_t>(i.kind)];  // once they are there
        break;
      }
      i.run(*this, i, group_);
      ++at_;
      if (r.fault.ok() && state == State::kReady) continue;
      scatter();
      break;
    }
    branch(i, lanes);
    if (group_ == 0) break;
  }
  r.counters.lanes += lanes_active;
}

// An instruction that lanes do together: those which came here first wait for the rest.
bool Warp::gather_lanes(const Instruction& i) {
  uint32_t here = group_;
  for (uint32_t rest = waiting_; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (pc_[static_cast<size_t>(lane)] == at_) here |= uint32_t{1} << lane;
  }
  uint32_t needed = live_;
  if (i.flow == Flow::kTogether) {
    const uint32_t* members = row<uint32_t>(i.at[13]);
    const int first = std::countr_zero(group_);
    needed = members[first] & all_;
    for (uint32_t rest = group_; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      if (members[lane] != members[first] || (members[lane] >> lane & 1) == 0)
        fail(i, lane, absl::StatusCode::kFailedPrecondition,
             "names lanes among which it is not, or others than they do");
    }
    if ((needed & ~live_) != 0) fail(i, first, absl::StatusCode::kFailedPrecondition, "names lanes that have ended");
  }
  if ((needed & ~here) == 0) {
    waiting_ &= ~here;
    group_ = here;
    return true;
  }
  for (uint32_t rest = group_; rest != 0; rest &= rest - 1) pc_[static_cast<size_t>(std::countr_zero(rest))] = at_;
  waiting_ |= group_;
  group_ = 0;
  return false;
}

void Warp::branch(const Instruction& i, uint32_t lanes) {
  Counters& counters = running().counters;
  if (i.flow == Flow::kEnd) return end(i, lanes);
  ++counters.branches;
  if (i.flow == Flow::kCall) {
    uint32_t* back = row<uint32_t>(i.at[0]);
    for (int lane = 0; lane < kLanes; ++lane) back[lane] = lanes >> lane & 1 ? at_ + 1 : back[lane];
  } else if (i.flow == Flow::kReturn) {
    const uint32_t* back = row<uint32_t>(i.at[0]);
    for (int lane = 0; lane < kLanes; ++lane) {
      if (group_ >> lane & 1) pc_[static_cast<size_t>(lane)] = lanes >> lane & 1 ? back[lane] : at_ + 1;
    }
    group_ = 0;
    return;
  }
  if (lanes == group_) {
    at_ = i.target;
  } else if (lanes == 0) {
    ++at_;
  } else {
    ++counters.divergent_branches;
    for (int lane = 0; lane < kLanes; ++lane) {
      if (group_ >> lane & 1) pc_[static_cast<size_t>(lane)] = lanes >> lane & 1 ? i.target : at_ + 1;
    }
    group_ = 0;
  }
}

void Warp::end(const Instruction& i, uint32_t lanes) {
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (const std::vector<AsyncCopy>& group : copies_[static_cast<size_t>(lane)]) {
      if (!group.empty()) fail(i, lane, absl::StatusCode::kFailedPrecondition, "ends before its copies have arrived");
    }
  }
  live_ &= ~lanes;
  for (uint32_t rest = group_ & ~lanes; rest != 0; rest &= rest - 1)
    pc_[static_cast<size_t>(std::countr_zero(rest))] = at_ + 1;
  group_ = 0;
}

bool Warp::is_aligned(const Instruction& i, int lane, uint64_t address, int bytes) {
  if (address % static_cast<uint64_t>(bytes) == 0) return true;
  fail(i, lane, absl::StatusCode::kOutOfRange, cat("has an address that is no multiple of ", bytes, ": ", address));
  return false;
}

void Warp::judge(const Instruction& i, int lane, const Shadow::Race& race, Shadow& shadow, int64_t at, uint64_t address,
                 int bytes, int each, Access access, bool shared) {
  Running& r = running();
  if (!race.of_writers && r.is_again) return;
  const absl::Status what = failure(i, lane, absl::StatusCode::kAborted,
                                    cat("races in ", shared ? "shared" : "global", " memory with thread ",
                                        race.other.thread(), " of block ", race.other.block()));
  if (race.of_writers) {
    if (r.fault.ok()) r.fault = what;
    return;
  }
  const Moment now = moment(lane);
  const uint32_t block = shared ? block_.number : Replay::kAnyBlock;
  if (access != Access::kRead) return r.replay.suspect_before(address, bytes, block, now, clock, what);
  for (int k = 0; k < bytes; k += each) {  // of a vector not all may race
    if (shadow.touch(at + k, each, each, access, now, clock).happened)
      r.replay.suspect(address + static_cast<uint64_t>(k), each, block, now, what);
  }
}

std::byte* Warp::with_poison(std::byte* held, uint64_t address, int bytes, int each, int lane, bool shared) {
  const Running& r = running();
  std::array<std::byte, 16>* made = nullptr;
  for (int k = 0; k < bytes; k += each) {
    if (!r.replay.is_suspect(address + static_cast<uint64_t>(k), each, moment(lane), clock, shared)) continue;
    if (made == nullptr) {
      made = &poisoned_.emplace_back();
      std::memcpy(made->data(), held, static_cast<size_t>(bytes));
    }
    std::memset(made->data() + k, static_cast<int>(r.poison), static_cast<size_t>(each));
  }
  return made == nullptr ? held : made->data();
}

std::byte* Warp::shared(const Instruction& i, int lane, uint64_t address, int bytes, int each, Access access) {
  if (!is_aligned(i, lane, address, bytes)) return nullptr;
  if (address + static_cast<uint64_t>(bytes) > block_.shared.size()) {
    fail(i, lane, absl::StatusCode::kOutOfRange,
         cat("touches ", bytes, " bytes at ", address, " of ", block_.shared.size(), " bytes of shared memory"));
    return nullptr;
  }
  std::byte* held = block_.shared.data() + address;
  if (!running().options.finds_races) return held;
  const Shadow::Race race =
      block_.shared_shadow->touch(static_cast<int64_t>(address), bytes, each, access, moment(lane), clock);
  if (race.happened)
    judge(i, lane, race, *block_.shared_shadow, static_cast<int64_t>(address), address, bytes, each, access, true);
  return running().is_again && access == Access::kRead ? with_poison(held, address, bytes, each, lane, true) : held;
}

std::byte* Warp::global(const Instruction& i, int lane, uint64_t address, int bytes, int each, Access access) {
  if (!is_aligned(i, lane, address, bytes)) return nullptr;
  Running& r = running();
  uint32_t& hint = r.ranges[i.number];
  const uint32_t found = r.memory.find(address, static_cast<uint64_t>(bytes), hint);
  if (found == GlobalMemory::kNowhere) {
    fail(i, lane, absl::StatusCode::kOutOfRange,
         cat("touches ", bytes, " bytes outside of global memory: ", r.memory.describe(address)));
    return nullptr;
  }
  hint = found;
  auto* held = reinterpret_cast<std::byte*>(address);
  if (!r.options.finds_races) return held;
  const int64_t at = static_cast<int64_t>(address - r.memory.range(found).begin / 16 * 16);
  const Shadow::Race race = r.memory.shadow(found).touch(at, bytes, each, access, moment(lane), clock);
  if (race.happened) judge(i, lane, race, r.memory.shadow(found), at, address, bytes, each, access, false);
  if (access != Access::kRead) r.replay.remember(held, bytes);
  return r.is_again && access == Access::kRead ? with_poison(held, address, bytes, each, lane, false) : held;
}

std::byte* Warp::local(const Instruction& i, int lane, uint64_t address, int bytes) {
  if (!is_aligned(i, lane, address, bytes)) return nullptr;
  const auto size = static_cast<uint64_t>(running().program.local_bytes);
  if (address + static_cast<uint64_t>(bytes) > size) {
    fail(i, lane, absl::StatusCode::kOutOfRange,
         cat("touches ", bytes, " bytes at ", address, " of ", size, " bytes of local memory"));
    return nullptr;
  }
  return local_.data() + static_cast<uint64_t>(lane) * size + address;
}

// Copies happen as late as they may: when their thread waits for them.
void Warp::begin_copy(const Instruction& i, int lane, const AsyncCopy& copy) {
  if (running().options.finds_races) {
    const Shadow::Race race =
        block_.shared_shadow->begin_copy(static_cast<int64_t>(copy.to), copy.bytes, moment(lane), clock);
    if (race.happened)
      judge(i, lane, race, *block_.shared_shadow, static_cast<int64_t>(copy.to), copy.to, copy.bytes, copy.bytes,
            Access::kWrite, true);
  }
  auto& groups = copies_[static_cast<size_t>(lane)];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back(copy);
}

void Warp::commit_copies(uint32_t lanes) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    auto& groups = copies_[static_cast<size_t>(lane)];
    if (groups.empty()) groups.emplace_back();
    groups.emplace_back();
  }
}

void Warp::wait_for_copies(uint32_t lanes, size_t open) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    auto& groups = copies_[static_cast<size_t>(lane)];
    for (; groups.size() > open + 1; groups.pop_front()) {
      for (const AsyncCopy& c : groups.front()) {
        std::byte* to = block_.shared.data() + c.to;
        if (c.existing > 0) std::memcpy(to, c.from, static_cast<size_t>(c.existing));  // else from nowhere
        std::memset(to + c.existing, 0, static_cast<size_t>(c.bytes - c.existing));
        if (running().options.finds_races)
          block_.shared_shadow->end_copy(static_cast<int64_t>(c.to), c.bytes, moment(lane));
      }
    }
  }
}

}  // namespace partita::ptx
