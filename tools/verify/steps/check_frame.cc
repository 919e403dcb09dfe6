#include "tools/verify/steps/check_frame.h"
#include "runtime/program/sides.h"

#include <algorithm>
#include <map>

#include "base/quote.h"
#include "base/status.h"
#include "ir/graph/index_bounds.h"
#include "tools/verify/layout/mismatch.h"
#include "tools/verify/steps/check_steps.h"
#include "tools/verify/steps/contents.h"

namespace partita::verifier {
namespace {

using runtime::Operand;
using runtime::Program;
using runtime::Region;
using runtime::Step;

struct Named {
  Range range;
  std::string name;
};

absl::Status check_apart(std::vector<Named> all) {
  std::erase_if(all, [](const Named& x) { return x.range.empty(); });
  std::sort(all.begin(), all.end(), [](const Named& a, const Named& b) {
    return std::pair(a.range.region, a.range.begin) < std::pair(b.range.region, b.range.begin);
  });
  for (size_t k = 0; k + 1 < all.size(); ++k) {
    if (all[k].range.overlaps(all[k + 1].range))
      return differs(all[k + 1].name, ": expected memory of its own, found that of ", all[k].name);
  }
  return absl::OkStatus();
}

absl::Status check_places(const Program& p) {
  std::vector<Named> all;
  for (const auto& s : p.states) all.push_back({range_of(s.operand, 0), cat("state ", quote(s.name))});
  for (const auto& in : p.inputs) {
    const std::string name = cat("input ", quote(in.name));
    if (in.operand.address.region != Region::kInput)
      return differs(name, ": expected it among the inputs, found it in region ", enum_name(in.operand.address.region));
    for (int64_t slot = 0; slot < p.slots; ++slot) all.push_back({range_of(in.operand, slot), name});
  }
  return check_apart(std::move(all));
}

// The ends of what is used of each region.
class Reach {
 public:
  explicit Reach(const Program& p) : p_(p), last_slots_(p.segments.size(), 0) {
    for (const runtime::ScheduleEntry& e : p.schedule) {
      int64_t& last = last_slots_[static_cast<size_t>(e.segment)];
      last = std::max<int64_t>(last, e.slot);
      slots_ = std::max<int64_t>(slots_, e.slot + 1);
    }
    for (size_t s = 0; s < p.segments.size(); ++s) {
      for (const Step& step : p.segments[s].steps) {
        for (const Operand& o : step.operands) add(o, last_slots_[s]);
      }
    }
    for (const auto& s : p.states) add(s.operand, 0);
    for (const auto& in : p.inputs) add(in.operand, slots_ - 1);
    for (const auto& out : p.outputs) add(out.operand, 0);
  }

  absl::Status check() const {
    if (p_.slots != slots_) return differs("expected ", slots_, " slots, as the schedule uses, found ", p_.slots);
    for (int r = 0; r < runtime::kRegions; ++r) {
      const int64_t expected = (ends_[r] + 63) / 64 * 64;
      if (p_.region_bytes[r] != expected)
        return differs("region ", enum_name(static_cast<Region>(r)), ": expected ", expected,
                       " bytes, as what lies in it needs, found ", p_.region_bytes[r]);
    }
    const auto constants = static_cast<int64_t>(p_.constants.size());
    if (constants != p_.region_bytes[static_cast<int>(Region::kConstant)])
      return differs("expected constants of ", p_.region_bytes[static_cast<int>(Region::kConstant)], " bytes, found ",
                     constants);
    return absl::OkStatus();
  }

 private:
  void add(const Operand& o, int64_t last_slot) {
    int64_t& end = ends_[static_cast<int>(o.address.region)];
    if (o.dtype != DType::kInvalid) end = std::max(end, range_of(o, last_slot).end);
  }

  const Program& p_;
  std::vector<int64_t> last_slots_;
  int64_t slots_ = 1;
  int64_t ends_[runtime::kRegions] = {};
};

std::string bounds_text(const IndexBounds& b) {
  if (!b.known()) return "no bounds";
  return cat("from ", b.low, " to ", b.high - 1, b.inside(b.mark) ? "" : cat(" or ", b.mark));
}

absl::Status check_bounds(const Graph& serial, const Program& p) {
  const std::map<std::string, IndexBounds> bounds = index_bounds(serial);
  for (const auto& in : p.inputs) {
    const auto at = bounds.find(in.name);
    const IndexBounds expected = at == bounds.end() ? IndexBounds{} : at->second;
    if (!(in.bounds == expected))
      return differs("input ", quote(in.name), ": expected numbers ", bounds_text(expected), ", found ",
                     bounds_text(in.bounds));
  }
  return absl::OkStatus();
}

bool is_from_file(const Initial& initial) {
  return std::holds_alternative<Literal>(initial) || std::holds_alternative<FileRange>(initial);
}

bool begin_alike(const Initial& a, const Initial& b) {
  const InitialRule *one = std::get_if<InitialRule>(&a), *other = std::get_if<InitialRule>(&b);
  if (one != nullptr && other != nullptr) return one->kind == other->kind && one->a == other->a && one->b == other->b;
  return one == nullptr && other == nullptr && is_from_file(a) == is_from_file(b);
}

// That the rank's graph begins as the serial one; that the program does as the rank's graph, check_interface() sees.
absl::Status check_first_values(const Graph& serial, const Graph& rank) {
  std::map<std::string, const State*> known;
  for (const State& s : serial.states) known[s.name] = &s;
  for (const State& s : rank.states) {
    const auto at = known.find(s.name);  // what compression keeps is none of the serial program's
    if (at != known.end() && !begin_alike(at->second->initial, s.initial))
      return differs("state ", quote(s.name), ": expected the first value of the serial program, found another");
  }
  return absl::OkStatus();
}

// What traces and messages say of a step.
absl::Status check_record(const RankProgram& p, const Step& step) {
  const NodeId n = p.claims[step.id].node;
  const Node* node = n < 0 ? nullptr : &p.code.nodes[static_cast<size_t>(n)];
  // A product with what follows it claims the last of its nodes, and names the first; what moves between the sides of a
  // device names what it is for, and so does a temporary's kernel.
  const bool other = node == nullptr || (step.kind == runtime::StepKind::kLibrary && step.name != node->op->name) ||
                     (step.kind == runtime::StepKind::kCopy && needs_device(p.program));
  const std::string expected =
      node == nullptr || node->origin < 0 ? "" : p.code.origins[static_cast<size_t>(node->origin)];
  const std::string found = step.origin < 0 ? "" : p.program.origins[static_cast<size_t>(step.origin)];
  if (!other && expected != found) return differs("expected it to be of ", quote(expected), ", found ", quote(found));
  if (!other && step.block != node->block) return differs("expected block ", node->block, ", found ", step.block);
  const bool on_host = node != nullptr && node->device == DeviceKind::kHost;
  // On a device with its own memory a step is where its operands are: who loads the program sees to that.
  if (!needs_device(p.program) && (step.device == runtime::DeviceTag::kHost) != on_host)
    return differs("expected it on the ", on_host ? "host" : "device", ", found it on the other");
  int64_t bytes = 0;
  const bool leaves = step.params.count("outbox") > 0;  // from where it is, whatever place it takes
  for (size_t k = 0; k < (leaves ? 1 : step.operands.size()); ++k) {
    const Range r = range_of(step.operands[k], 0);
    bytes += r.end - r.begin;
  }
  if (step.bytes != bytes) return differs("expected ", bytes, " bytes, found ", step.bytes);
  return absl::OkStatus();
}

}  // namespace

absl::Status check_frame(const Graph& serial, const RankProgram& p) {
  PARTITA_RETURN_IF_ERROR(Reach(p.program).check());
  PARTITA_RETURN_IF_ERROR(check_places(p.program));
  PARTITA_RETURN_IF_ERROR(check_bounds(serial, p.program));
  PARTITA_RETURN_IF_ERROR(check_first_values(serial, p.rank));
  for (const auto& segment : p.program.segments) {
    for (const Step& step : segment.steps) {
      const absl::Status status = check_record(p, step);
      if (!status.ok())
        return differs(describe_step(p.program, static_cast<int>(step.id)), ", on every rank: ", status.message());
    }
  }
  return absl::OkStatus();
}

}  // namespace partita::verifier
