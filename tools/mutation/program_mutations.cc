#include <algorithm>
#include <map>

#include "tools/mutation/mutations.h"

namespace partita {
namespace {

using runtime::Operand;
using runtime::Program;
using runtime::Region;
using runtime::Step;
using runtime::StepKind;
using verifier::Bundle;

struct Place {
  runtime::ProgramSegment* segment = nullptr;
  size_t at = 0;
  Step& step() const { return segment->steps[at]; }
};

template <typename Fits>
Place pick(Bundle& b, std::mt19937& rng, Fits fits) {
  std::vector<Place> found;
  for (auto& segment : b.programs[0].program.segments) {
    for (size_t k = 0; k < segment.steps.size(); ++k) {
      if (fits(segment.steps[k])) found.push_back({&segment, k});
    }
  }
  return found.empty() ? Place{} : found[rng() % found.size()];
}

bool computes(const Step& s) { return s.kind == StepKind::kKernel || s.kind == StepKind::kLibrary; }

bool same(const Operand& a, const Operand& b) {
  return a.address == b.address && a.dtype == b.dtype && a.shape == b.shape;
}

bool writes_what_is_read(Bundle& b, const Step& step) {
  for (size_t o = static_cast<size_t>(step.inputs); o < step.operands.size(); ++o) {
    for (const auto& segment : b.programs[0].program.segments) {
      for (const Step& later : segment.steps) {
        for (size_t k = 0; later.id > step.id && k < static_cast<size_t>(later.inputs); ++k) {
          if (b.programs[0].claims[later.id].values.size() > k && b.programs[0].claims[step.id].values.size() > o &&
              b.programs[0].claims[later.id].values[k] == b.programs[0].claims[step.id].values[o])
            return true;
        }
      }
    }
  }
  return false;
}

// One of the steps that write a value in parts.
bool missing_part(Bundle& b, std::mt19937& rng) {
  std::map<int, int> writers;
  const auto& claims = b.programs[0].claims;
  const auto each_result = [&](const Step& s, auto f) {
    for (size_t k = static_cast<size_t>(s.inputs); s.kind == StepKind::kKernel && k < s.operands.size(); ++k)
      f(claims[s.id].values[k]);
  };
  for (const auto& segment : b.programs[0].program.segments) {
    for (const Step& s : segment.steps) each_result(s, [&](int v) { ++writers[v]; });
  }
  Place p = pick(b, rng, [&](const Step& s) {
    bool part = false;
    each_result(s, [&](int v) { part = part || writers[v] > 1; });
    return part;
  });
  if (p.segment == nullptr) return false;
  remove_step(b, p.step().id);
  return true;
}

bool missing_step(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [&](const Step& s) { return computes(s) && writes_what_is_read(b, s); });
  if (p.segment == nullptr) return false;
  remove_step(b, p.step().id);
  return true;
}

bool missing_wait(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.kind == StepKind::kCollectiveWait; });
  if (p.segment == nullptr) return false;
  remove_step(b, p.step().id);
  return true;
}

bool missing_collective(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.kind == StepKind::kCollectiveStart; });
  if (p.segment == nullptr) return false;
  // Its operand stays where its result should be.
  p.step().kind = StepKind::kCopy;
  p.step().name.clear();
  p.step().params.clear();
  return p.step().operands.size() == 2;
}

// A step before the one that makes its operand.
bool swapped_order(Bundle& b, std::mt19937& rng) {
  std::vector<Place> found;
  for (auto& segment : b.programs[0].program.segments) {
    for (size_t k = 0; k + 1 < segment.steps.size(); ++k) {
      const Step &first = segment.steps[k], &then = segment.steps[k + 1];
      bool reads = false;
      for (size_t o = static_cast<size_t>(first.inputs); o < first.operands.size(); ++o) {
        for (size_t i = 0; i < static_cast<size_t>(then.inputs); ++i)
          reads = reads || then.operands[i].address == first.operands[o].address;
      }
      bool apart = b.programs[0].claims[first.id].node != b.programs[0].claims[then.id].node;
      if (computes(first) && computes(then) && reads && apart) found.push_back({&segment, k});
    }
  }
  if (found.empty()) return false;
  Place p = found[rng() % found.size()];
  Step &first = p.segment->steps[p.at], &then = p.segment->steps[p.at + 1];
  std::swap(b.programs[0].claims[first.id], b.programs[0].claims[then.id]);
  std::swap(first, then);
  std::swap(first.id, then.id);
  return true;
}

bool wrong_group(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.kind == StepKind::kCollectiveStart; });
  if (p.segment == nullptr) return false;
  int64_t group = std::get<int64_t>(p.step().params["group"]);
  p.step().params["group"] = group + 1;
  if (group + 1 == static_cast<int64_t>(b.programs[0].program.groups.size()))
    b.programs[0].program.groups.push_back({{}});
  return b.programs[0].program.groups[static_cast<size_t>(group)].axes !=
         b.programs[0].program.groups[static_cast<size_t>(group) + 1].axes;
}

bool wrong_reduction(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) {
    return s.kind == StepKind::kCollectiveStart && (s.name == "all_reduce" || s.name == "reduce_scatter");
  });
  if (p.segment == nullptr) return false;
  p.step().params["reduce"] = std::string("max");
  return true;
}

bool another_collective(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.kind == StepKind::kCollectiveStart; });
  if (p.segment == nullptr) return false;
  p.step().name = p.step().name == "all_reduce" ? "broadcast" : "all_reduce";
  return true;
}

bool wrong_peer(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.kind == StepKind::kCollectiveStart; });
  if (p.segment == nullptr) return false;
  p.step().params["peer"] = int64_t{1};
  return true;
}

bool shifted_operand(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.inputs > 0 && s.kind != StepKind::kCollectiveWait; });
  if (p.segment == nullptr) return false;
  Operand& o = p.step().operands[rng() % static_cast<size_t>(p.step().inputs)];
  if (o.dtype == DType::kInvalid) return false;
  o.address.offset += 64;
  return true;
}

bool stale_buffer(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [&](const Step& s) { return computes(s) && writes_what_is_read(b, s); });
  if (p.segment == nullptr) return false;
  // Readers go on finding what was there before.
  int64_t& end = b.programs[0].program.region_bytes[static_cast<int>(Region::kArena)];
  for (size_t o = static_cast<size_t>(p.step().inputs); o < p.step().operands.size(); ++o) {
    Operand& out = p.step().operands[o];
    out.address.region = Region::kArena;
    out.address.offset = end;
    end += (elements(out.shape) * dtype_size(out.dtype) + 63) / 64 * 64;
  }
  return true;
}

bool overlapping_buffers(Bundle& b, std::mt19937& rng) {
  // A result that is read later is written where a parameter lies.
  Place p = pick(b, rng, [](const Step& s) { return computes(s); });
  if (p.segment == nullptr || b.programs[0].program.states.empty()) return false;
  const Operand& state = b.programs[0].program.states[rng() % b.programs[0].program.states.size()].operand;
  Operand& out = p.step().operands.back();
  if (out.address == state.address) return false;
  out.address = state.address;
  return true;
}

bool swapped_inputs(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) {
    return computes(s) && s.inputs > 1 && !same(s.operands[0], s.operands[1]) &&
           s.operands[0].address != s.operands[1].address && s.operands[0].dtype != DType::kInvalid;
  });
  if (p.segment == nullptr) return false;
  std::swap(p.step().operands[0].address, p.step().operands[1].address);
  return true;
}

bool wrong_dtype(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) {
    return s.inputs > 0 && s.kind != StepKind::kCollectiveWait && s.operands[0].dtype == DType::kF32;
  });
  if (p.segment == nullptr) return false;
  p.step().operands[0].dtype = DType::kI32;
  return p.step().kind != StepKind::kCopy;
}

bool wrong_parameter(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.kind == StepKind::kLibrary && !s.params.empty(); });
  if (p.segment == nullptr) return false;
  auto at = std::next(p.step().params.begin(), static_cast<int64_t>(rng() % p.step().params.size()));
  if (int64_t* i = std::get_if<int64_t>(&at->second)) {
    *i = *i == 0 ? 1 : *i - 1;
  } else if (double* f = std::get_if<double>(&at->second)) {
    *f = *f * 2 + 1;
  } else {
    p.step().params.erase(at);
  }
  return true;
}

bool another_library_kernel(Bundle& b, std::mt19937& rng) {
  Place p = pick(b, rng, [](const Step& s) { return s.kind == StepKind::kLibrary; });
  if (p.segment == nullptr) return false;
  p.step().name = p.step().name == "matmul" ? "gather" : "matmul";
  return true;
}

bool missing_entry(Bundle& b, std::mt19937& rng) {
  if (b.programs[0].program.schedule.empty()) return false;
  b.programs[0].program.schedule.erase(b.programs[0].program.schedule.begin() +
                                       static_cast<int64_t>(rng() % b.programs[0].program.schedule.size()));
  return true;
}

bool repeated_entry(Bundle& b, std::mt19937& rng) {
  size_t k = rng() % b.programs[0].program.schedule.size();
  b.programs[0].program.schedule.insert(b.programs[0].program.schedule.begin() + static_cast<int64_t>(k),
                                        b.programs[0].program.schedule[k]);
  return true;
}

bool swapped_entries(Bundle& b, std::mt19937& rng) {
  if (b.programs[0].program.schedule.size() < 2) return false;
  size_t k = rng() % (b.programs[0].program.schedule.size() - 1);
  auto &x = b.programs[0].program.schedule[k], &y = b.programs[0].program.schedule[k + 1];
  // Segments that share nothing may change places; these do not. A sum that has what it needs may start later.
  const auto kind = [&](const runtime::ScheduleEntry& e) { return b.programs[0].program.segments[e.segment].kind; };
  if (x.segment == y.segment || (kind(x) == Segment::kReduce && kind(y) == Segment::kBackward)) return false;
  std::swap(x, y);
  return true;
}

bool wrong_micro_batch(Bundle& b, std::mt19937& rng) {
  if (b.programs[0].program.micro_batches < 2) return false;
  auto& e = b.programs[0].program.schedule[rng() % b.programs[0].program.schedule.size()];
  if (b.programs[0].program.segments[e.segment].kind == Segment::kPrologue) return false;
  e.micro_batch = (e.micro_batch + 1) % static_cast<int32_t>(b.programs[0].program.micro_batches);
  auto kind = b.programs[0].program.segments[e.segment].kind;
  return kind == Segment::kForward || kind == Segment::kBackward;
}

bool wrong_slot(Bundle& b, std::mt19937& rng) {
  Program& program = b.programs[0].program;
  auto& e = program.schedule[rng() % program.schedule.size()];
  auto kind = program.segments[e.segment].kind;
  if (program.slots < 2 || (kind != Segment::kForward && kind != Segment::kBackward)) return false;
  e.slot = (e.slot + 1) % static_cast<int32_t>(program.slots);
  return true;
}

bool wrong_state_address(Bundle& b, std::mt19937& rng) {
  auto& states = b.programs[0].program.states;
  if (states.size() < 2) return false;
  size_t k = rng() % (states.size() - 1);
  std::swap(states[k].operand.address, states[k + 1].operand.address);
  return true;
}

bool wrong_first_value(Bundle& b, std::mt19937& rng) {
  auto& initial = b.programs[0].program.states[rng() % b.programs[0].program.states.size()].initial;
  if (initial.kind == runtime::InitialKind::kFile) {
    initial.kind = runtime::InitialKind::kFill;
  } else {
    initial.a += 1;
  }
  return true;
}

bool wrong_output_address(Bundle& b, std::mt19937& rng) {
  if (b.programs[0].program.outputs.empty()) return false;
  b.programs[0].program.outputs[rng() % b.programs[0].program.outputs.size()].operand.address.offset += 64;
  return true;
}

constexpr Mutation kMutations[] = {
    {"missing step", missing_step},
    {"missing part", missing_part},
    {"missing wait", missing_wait},
    {"missing collective", missing_collective},
    {"swapped order", swapped_order},
    {"wrong group", wrong_group},
    {"wrong reduction", wrong_reduction},
    {"another collective", another_collective},
    {"wrong peer", wrong_peer},
    {"shifted operand", shifted_operand},
    {"stale buffer", stale_buffer},
    {"overlapping buffers", overlapping_buffers},
    {"swapped inputs", swapped_inputs},
    {"wrong dtype", wrong_dtype},
    {"wrong parameter", wrong_parameter},
    {"another library kernel", another_library_kernel},
    {"missing entry", missing_entry},
    {"repeated entry", repeated_entry},
    {"swapped entries", swapped_entries},
    {"wrong micro-batch", wrong_micro_batch},
    {"wrong slot", wrong_slot},
    {"wrong state address", wrong_state_address},
    {"wrong first value", wrong_first_value},
    {"wrong output address", wrong_output_address},
};

}  // namespace

void remove_step(Bundle& b, uint32_t id) {
  for (auto& segment : b.programs[0].program.segments)
    std::erase_if(segment.steps, [&](const Step& s) { return s.id == id; });
  b.programs[0].claims.erase(b.programs[0].claims.begin() + id);
  for (auto& segment : b.programs[0].program.segments) {
    for (Step& s : segment.steps) {
      if (s.id > id) --s.id;
      auto of = s.params.find("of");
      if (of == s.params.end()) continue;
      int64_t start = std::get<int64_t>(of->second);
      if (start > static_cast<int64_t>(id)) of->second = start - 1;
    }
  }
}

std::span<const Mutation> program_mutations() { return kMutations; }

}  // namespace partita
