#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tools/mutation/mutations.h"

namespace partita {
namespace {

using runtime::Operand;
using runtime::Program;
using runtime::ProgramSegment;
using runtime::Step;
using runtime::StepKind;
using verifier::Bundle;
using verifier::RankProgram;

struct Place {
  size_t segment = 0, at = 0;
};

RankProgram& program_of(Bundle& b) { return b.programs[0]; }
Step& step_at(Bundle& b, const Place& p) { return program_of(b).program.segments[p.segment].steps[p.at]; }

template <typename List>
size_t any_of(const List& list, std::mt19937& rng) {
  return rng() % list.size();
}

template <typename Fits>
std::vector<Place> places(Bundle& b, Fits fits) {
  std::vector<Place> found;
  const auto& segments = program_of(b).program.segments;
  for (size_t s = 0; s < segments.size(); ++s) {
    for (size_t k = 0; k < segments[s].steps.size(); ++k) {
      if (fits(segments[s].steps[k])) found.push_back({s, k});
    }
  }
  return found;
}

bool computes(const Step& s) { return s.kind == StepKind::kKernel || s.kind == StepKind::kLibrary; }
bool same_type(const Operand& a, const Operand& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.dtype != DType::kInvalid;
}

// Moves a step, or a copy of it, in front of the place `to`; steps, claims and waits are numbered anew.
void move_step(Bundle& b, const Place& from, const Place& to, bool copies) {
  RankProgram& p = program_of(b);
  struct Entry {
    Step step;
    Claim claim;
    bool copied;
  };
  std::vector<std::vector<Entry>> all;
  for (ProgramSegment& segment : p.program.segments) {
    auto& own = all.emplace_back();
    for (Step& s : segment.steps) own.push_back({s, p.claims[s.id], false});
  }
  Entry moved = all[from.segment][from.at];
  moved.copied = copies;
  auto& target = all[to.segment];
  target.insert(target.begin() + static_cast<int64_t>(to.at), moved);
  if (!copies) {
    const bool shifted = from.segment == to.segment && to.at <= from.at;
    auto& source = all[from.segment];
    source.erase(source.begin() + static_cast<int64_t>(from.at + (shifted ? 1 : 0)));
  }
  std::vector<int64_t> now(p.claims.size(), 0);
  std::vector<Claim> claims;
  for (size_t s = 0; s < all.size(); ++s) {
    p.program.segments[s].steps.clear();
    for (Entry& e : all[s]) {
      if (!e.copied) now[e.step.id] = static_cast<int64_t>(claims.size());
      e.step.id = static_cast<uint32_t>(claims.size());
      claims.push_back(e.claim);
      p.program.segments[s].steps.push_back(e.step);
    }
  }
  p.claims = std::move(claims);
  for (ProgramSegment& segment : p.program.segments) {
    for (Step& s : segment.steps) {
      if (auto of = s.params.find("of"); of != s.params.end())
        of->second = now[static_cast<size_t>(std::get<int64_t>(of->second))];
    }
  }
}

bool repeated_step(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step&) { return true; });
  repeat_step(b, step_at(b, found[any_of(found, rng)]).id);
  return true;
}

bool repeated_update(Bundle& b, std::mt19937& rng) {
  const auto& segments = program_of(b).program.segments;
  const auto found = places(b, [&](const Step& s) {
    return std::any_of(segments.begin(), segments.end(), [&](const ProgramSegment& x) {
      return x.kind == Segment::kUpdate && !x.steps.empty() && x.steps.front().id <= s.id && s.id <= x.steps.back().id;
    });
  });
  if (found.empty()) return false;
  repeat_step(b, step_at(b, found[any_of(found, rng)]).id);
  return true;
}

// All of a group's steps once more.
bool repeated_group(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return s.kind == StepKind::kKernel; });
  if (found.empty()) return false;
  const Place p = found[any_of(found, rng)];
  auto& steps = program_of(b).program.segments[p.segment].steps;
  auto node = [&](size_t k) { return program_of(b).claims[steps[k].id].node; };
  size_t begin = p.at, end = p.at + 1;
  while (begin > 0 && node(begin - 1) == node(p.at)) --begin;
  while (end < steps.size() && node(end) == node(p.at)) ++end;
  for (size_t k = begin; k < end; ++k) move_step(b, {p.segment, k}, {p.segment, end + k - begin}, true);
  return true;
}

bool moved_step(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step&) { return true; });
  const Place p = found[any_of(found, rng)], q = found[any_of(found, rng)];
  move_step(b, p, q, false);
  return true;
}

bool later_step(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step&) { return true; });
  const Place p = found[any_of(found, rng)];
  const size_t size = program_of(b).program.segments[p.segment].steps.size();
  if (p.at + 2 > size) return false;
  move_step(b, p, {p.segment, std::min(size, p.at + 2 + rng() % 3)}, false);
  return true;
}

bool dropped_step(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step&) { return true; });
  remove_step(b, step_at(b, found[any_of(found, rng)]).id);
  return true;
}

bool moved_wait(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return s.kind == StepKind::kCollectiveWait; });
  const auto all = places(b, [](const Step&) { return true; });
  if (found.empty()) return false;
  move_step(b, found[any_of(found, rng)], all[any_of(all, rng)], false);
  return true;
}

bool another_symbol(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return s.kind == StepKind::kKernel; });
  if (found.empty()) return false;
  Step &s = step_at(b, found[any_of(found, rng)]), &other = step_at(b, found[any_of(found, rng)]);
  if (s.name == other.name || s.operands.size() != other.operands.size() || s.inputs != other.inputs) return false;
  s.name = other.name;
  return true;
}

bool other_units(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return s.kind == StepKind::kKernel; });
  if (found.empty()) return false;
  int64_t& units = step_at(b, found[any_of(found, rng)]).units;
  const int64_t others[] = {0, units / 2, units - 1, units + 1, 2 * units, units + 100000};
  const int64_t other = others[rng() % std::size(others)];
  return std::exchange(units, other) != other;
}

bool another_group(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return s.kind == StepKind::kCollectiveStart; });
  Program& p = program_of(b).program;
  if (found.empty()) return false;
  Step& s = step_at(b, found[any_of(found, rng)]);
  runtime::Param& group = s.params["group"];
  const auto other = static_cast<int64_t>(rng() % (p.groups.size() + 1));
  if (group == runtime::Param(other)) return false;
  if (other == static_cast<int64_t>(p.groups.size()))
    p.groups.push_back(p.groups[static_cast<size_t>(std::get<int64_t>(group))]);
  group = other;
  return true;
}

bool other_groups(Bundle& b, std::mt19937& rng) {
  auto& groups = program_of(b).program.groups;
  if (groups.empty()) return false;
  const size_t k = any_of(groups, rng);
  switch (rng() % 4) {
    case 0:
      groups.push_back(groups[k]);
      break;
    case 1:
      std::reverse(groups[k].axes.begin(), groups[k].axes.end());
      break;
    case 2:
      std::swap(groups[k], groups[any_of(groups, rng)]);
      break;
    default:
      groups.push_back({});
  }
  return true;
}

bool exchanged_operands(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return computes(s) && s.operands.size() > 1; });
  if (found.empty()) return false;
  Step& s = step_at(b, found[any_of(found, rng)]);
  const size_t k = any_of(s.operands, rng), other = any_of(s.operands, rng);
  if (k == other || !same_type(s.operands[k], s.operands[other]) || s.operands[k].address == s.operands[other].address)
    return false;
  std::swap(s.operands[k], s.operands[other]);
  if (rng() % 2 == 0) {
    auto& values = program_of(b).claims[s.id].values;
    if (std::max(k, other) < values.size()) std::swap(values[k], values[other]);
  }
  return true;
}

// One operand where another step's of its type lies.
bool operand_of_another(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return !s.operands.empty(); });
  if (found.empty()) return false;
  Step& s = step_at(b, found[any_of(found, rng)]);
  Operand& o = s.operands[any_of(s.operands, rng)];
  for (int tries = 0; tries < 20; ++tries) {
    const Step& t = step_at(b, found[any_of(found, rng)]);
    const Operand& other = t.operands[any_of(t.operands, rng)];
    if (!same_type(o, other) || o.address == other.address) continue;
    o.address = other.address;
    return true;
  }
  return false;
}

bool other_stride(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step& s) { return !s.operands.empty(); });
  if (found.empty()) return false;
  Step& s = step_at(b, found[any_of(found, rng)]);
  int64_t& stride = s.operands[any_of(s.operands, rng)].address.slot_stride;
  stride = stride == 0 ? 64 : rng() % 2 == 0 ? 0 : stride + 64;
  return true;
}

// From an ulp up to the double.
double scaled(double x, std::mt19937& rng) {
  if (rng() % 3 == 0) return std::nextafter(x, std::numeric_limits<double>::infinity());
  if (x == 0) return 1e-8;
  return x * std::exp2(static_cast<double>(rng() % 1000 + 1) / 1000);
}

bool other_scale(Bundle& b, std::mt19937& rng) {
  std::vector<double*> found;
  for (const Place& p : places(b, computes)) {
    for (auto& [name, value] : step_at(b, p).params) {
      if (double* x = std::get_if<double>(&value)) found.push_back(x);
    }
  }
  for (runtime::ProgramState& s : program_of(b).program.states) found.insert(found.end(), {&s.initial.a, &s.initial.b});
  if (found.empty()) return false;
  double& x = *found[any_of(found, rng)];
  x = scaled(x, rng);
  return true;
}

bool other_param(Bundle& b, std::mt19937& rng) {
  const auto found = places(b, [](const Step&) { return true; });
  Step& s = step_at(b, found[any_of(found, rng)]);
  constexpr const char* kNames[] = {"peer", "root", "shift", "wrap", "outbox", "reduce", "threads", "points", "group"};
  if (s.params.empty() || rng() % 3 == 0) {
    s.params[kNames[rng() % std::size(kNames)]] = static_cast<int64_t>(rng() % 3);
    return true;
  }
  auto at = std::next(s.params.begin(), static_cast<int64_t>(any_of(s.params, rng)));
  if (rng() % 3 == 0) {
    s.params.erase(at);
  } else if (int64_t* i = std::get_if<int64_t>(&at->second)) {
    *i += rng() % 2 == 0 ? 1 : -1;
  } else if (auto* list = std::get_if<std::vector<int64_t>>(&at->second)) {
    if (list->empty()) return false;
    std::swap(list->front(), list->back());
  } else {
    return false;
  }
  return true;
}

bool exchanged_states(Bundle& b, std::mt19937& rng) {
  auto& states = program_of(b).program.states;
  if (states.size() < 2) return false;
  runtime::ProgramState &s = states[any_of(states, rng)], &t = states[any_of(states, rng)];
  if (&s == &t) return false;
  switch (rng() % 5) {
    case 0:
      std::swap(s.operand.address, t.operand.address);
      break;
    case 1:
      std::swap(s.placement, t.placement);
      break;
    case 2:
      std::swap(s.initial, t.initial);
      break;
    case 3:
      std::swap(s.name, t.name);
      break;
    default:
      std::swap(s, t);
  }
  return true;
}

bool moved_state(Bundle& b, std::mt19937& rng) {
  Program& p = program_of(b).program;
  runtime::ProgramState& s = p.states[any_of(p.states, rng)];
  const runtime::ProgramState& t = p.states[any_of(p.states, rng)];
  s.operand.address.offset = rng() % 2 == 0 ? t.operand.address.offset : s.operand.address.offset + 64;
  return true;
}

bool other_bounds(Bundle& b, std::mt19937& rng) {
  auto& inputs = program_of(b).program.inputs;
  if (inputs.empty()) return false;
  IndexBounds& bounds = inputs[any_of(inputs, rng)].bounds;
  if (!bounds.known()) {
    bounds.low = 0, bounds.high = 2;
  } else if (rng() % 2 == 0) {
    bounds = {};
  } else {
    (rng() % 2 == 0 ? bounds.high : bounds.low) += rng() % 2 == 0 ? 1 : -1;
  }
  return true;
}

bool exchanged_inputs(Bundle& b, std::mt19937& rng) {
  auto& inputs = program_of(b).program.inputs;
  if (inputs.empty()) return false;
  runtime::ProgramInput &in = inputs[any_of(inputs, rng)], &other = inputs[any_of(inputs, rng)];
  switch (rng() % 4) {
    case 0:
      in.operand.address = other.operand.address;
      break;
    case 1:
      std::swap(in.placement, other.placement);
      break;
    case 2:
      in.slice_samples += 1;
      break;
    default:
      std::swap(in, other);
  }
  return true;
}

bool another_output(Bundle& b, std::mt19937& rng) {
  Program& p = program_of(b).program;
  if (p.outputs.empty()) return false;
  runtime::ProgramOutput& out = p.outputs[any_of(p.outputs, rng)];
  const auto found = places(b, [](const Step& s) { return !s.operands.empty(); });
  const Step& s = step_at(b, found[any_of(found, rng)]);
  const Operand& o = s.operands[any_of(s.operands, rng)];
  if (o.dtype != out.operand.dtype || runtime::Address(o.address) == out.operand.address) return false;
  out.operand.address = o.address;
  return true;
}

bool other_frame(Bundle& b, std::mt19937& rng) {
  Program& p = program_of(b).program;
  int64_t* const numbers[] = {&p.micro_batches, &p.micro_slices, &p.samples_per_step, &p.slots,
                              &p.region_bytes[rng() % runtime::kRegions]};
  int64_t& n = *numbers[rng() % std::size(numbers)];
  const int64_t others[] = {n + 1, n - 1, 2 * n, n / 2, n + 64};
  n = others[rng() % std::size(others)];
  return true;
}

bool other_schedule(Bundle& b, std::mt19937& rng) {
  auto& schedule = program_of(b).program.schedule;
  if (schedule.empty()) return false;
  const size_t k = any_of(schedule, rng), other = any_of(schedule, rng);
  switch (rng() % 5) {
    case 0:
      std::swap(schedule[k], schedule[other]);
      break;
    case 1:
      schedule.erase(schedule.begin() + static_cast<int64_t>(k));
      break;
    case 2:
      schedule.insert(schedule.begin() + static_cast<int64_t>(other), schedule[k]);
      break;
    case 3:
      schedule[k].slot = schedule[other].slot;
      break;
    default:
      schedule[k].micro_batch = schedule[other].micro_batch;
  }
  return true;
}

bool another_segment(Bundle& b, std::mt19937& rng) {
  auto& segments = program_of(b).program.segments;
  ProgramSegment& s = segments[any_of(segments, rng)];
  if (rng() % 2 == 0) {
    s.kind = static_cast<Segment>(rng() % enum_names<Segment>().size());
  } else {
    std::swap(s.chunk, segments[any_of(segments, rng)].chunk);
  }
  return true;
}

// Another stage's program in its place, or evaluation's.
bool another_program(Bundle& b, std::mt19937& rng) {
  std::vector<const Program*> others;
  for (const RankProgram& p : b.programs) others.push_back(&p.program);
  for (size_t k = 0; b.evaluation && k < b.evaluation->programs.size(); ++k)
    others.push_back(&b.evaluation->programs[k].program);
  const Program* other = others[any_of(others, rng)];
  if (other == &b.programs[0].program) return false;
  b.programs[0].program = Program(*other);
  return true;
}

constexpr Mutation kEdits[] = {
    {"repeated step", repeated_step},
    {"repeated update", repeated_update},
    {"repeated group", repeated_group},
    {"moved step", moved_step},
    {"later step", later_step},
    {"dropped step", dropped_step},
    {"moved wait", moved_wait},
    {"another symbol", another_symbol},
    {"other units", other_units},
    {"another group", another_group},
    {"other groups", other_groups},
    {"exchanged operands", exchanged_operands},
    {"operand of another step", operand_of_another},
    {"other stride", other_stride},
    {"other scale", other_scale},
    {"other parameter", other_param},
    {"exchanged states", exchanged_states},
    {"moved state", moved_state},
    {"other bounds", other_bounds},
    {"exchanged inputs", exchanged_inputs},
    {"another output", another_output},
    {"other frame", other_frame},
    {"other schedule", other_schedule},
    {"another segment", another_segment},
    {"another program", another_program},
};

}  // namespace

void repeat_step(Bundle& b, uint32_t id) {
  const Place p = places(b, [&](const Step& s) { return s.id == id; }).front();
  move_step(b, p, {p.segment, p.at + 1}, true);
}

std::span<const Mutation> edit_mutations() { return kEdits; }

}  // namespace partita
