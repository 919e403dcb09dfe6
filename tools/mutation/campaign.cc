#include "tools/mutation/campaign.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/status.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/program_image.h"
#include "tools/assembly/program_json.h"
#include "tools/mutation/mutations.h"
#include "tools/mutation/trial_run.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

using Json = nlohmann::ordered_json;
using verifier::Bundle;
using verifier::ProgramSet;

std::vector<runtime::Program> programs_of(const ProgramSet& set) {
  std::vector<runtime::Program> programs;
  for (const verifier::RankProgram& p : set.programs) programs.push_back(p.program);
  return programs;
}

absl::StatusOr<Json> json_of(const ProgramSet& set) {
  Json list = Json::array();
  for (const verifier::RankProgram& p : set.programs) {
    PARTITA_ASSIGN_OR_RETURN(Json one, program_json(p.program));
    list.push_back(std::move(one));
  }
  return list;
}

absl::Status take_json(const Json& list, const char* place, ProgramSet& set) {
  for (size_t k = 0; k < set.programs.size(); ++k) {
    if (k >= list.size()) return absl::InvalidArgumentError("a program is missing");
    PARTITA_ASSIGN_OR_RETURN(set.programs[k].program, parse_program_json(list[k], place));
  }
  if (list.size() != set.programs.size()) return absl::InvalidArgumentError("a program too many");
  return absl::OkStatus();
}

// As whoever reads its image has it.
absl::Status load(ProgramSet& set) {
  const std::string image = runtime::serialize_programs(programs_of(set));
  PARTITA_ASSIGN_OR_RETURN(std::vector<runtime::Program> loaded, runtime::parse_programs(as_byte_span(image)));
  for (size_t k = 0; k < set.programs.size(); ++k) set.programs[k].program = std::move(loaded[k]);
  return absl::OkStatus();
}

std::string fingerprint(const Bundle& b) {
  std::string text = runtime::serialize_programs(programs_of(b));
  if (b.evaluation) text += runtime::serialize_programs(programs_of(*b.evaluation));
  for (const verifier::RankProgram& p : b.programs) text += verifier::print_claims(p.claims);
  return sha256_hex(as_byte_span(text));
}

// The bundle but for what is inside of its kernel steps.
Bundle without_insides(Bundle b) {
  for (verifier::RankProgram& p : b.programs) {
    for (runtime::ProgramSegment& segment : p.program.segments) {
      for (runtime::Step& s : segment.steps) {
        if (s.kind != runtime::StepKind::kKernel) continue;
        s.name.clear(), s.params.clear();
        s.units = s.flops = s.inputs = 0;
        auto key = [](const runtime::Operand& o) {
          return std::tuple(o.address.region, o.address.offset, o.address.slot_stride, o.address.places, o.dtype,
                            o.shape);
        };
        std::sort(s.operands.begin(), s.operands.end(), [&](const auto& x, const auto& y) { return key(x) < key(y); });
        std::vector<int>& values = p.claims[s.id].values;
        std::sort(values.begin(), values.end());
      }
    }
  }
  if (b.evaluation) {
    Bundle evaluation;
    static_cast<ProgramSet&>(evaluation) = std::move(*b.evaluation);
    *b.evaluation = without_insides(std::move(evaluation));
  }
  return b;
}

class Campaign {
 public:
  Campaign(Bundle bundle, std::string initial, const CampaignOptions& options)
      : bundle_(std::move(bundle)), initial_(std::move(initial)), options_(options) {}

  absl::StatusOr<CampaignReport> run() {
    const absl::Status sound = verifier::check_bundle(bundle_).status();
    if (!sound.ok()) return absl::FailedPreconditionError(cat("the bundle itself is rejected: ", sound.message()));
    auto result = trial_run(trial(bundle_), options_.steps, options_.seconds);
    if (!result.ok()) return absl::FailedPreconditionError(cat("the bundle itself ", result.status().message()));
    result_ = *std::move(result);
    fingerprint_ = fingerprint(bundle_);
    outside_ = fingerprint(without_insides(bundle_));
    Json json = {{"programs", Json()}};
    PARTITA_ASSIGN_OR_RETURN(json["programs"], json_of(bundle_));
    if (bundle_.evaluation) {
      PARTITA_ASSIGN_OR_RETURN(json["evaluation"], json_of(*bundle_.evaluation));
    }
    BlindMutator blind(std::move(json));
    for (int k = 0; k < options_.mutations; ++k) {
      std::mt19937 rng(options_.seed + static_cast<uint32_t>(k));
      const bool blindly = options_.blind && (!options_.knowing || k % 2 == 0);
      blindly ? mutate_blindly(blind, k, rng) : mutate_knowingly(k, rng);
    }
    return std::move(report_);
  }

 private:
  TrialPrograms trial(const Bundle& b) const {
    TrialPrograms programs{.training = programs_of(b), .evaluation = {}, .initial = initial_};
    if (b.evaluation) programs.evaluation = programs_of(*b.evaluation);
    return programs;
  }

  void mutate_blindly(BlindMutator& blind, int number, std::mt19937& rng) {
    const std::string what = blind.mutate(rng);
    Bundle b = bundle_;
    absl::Status status = take_json(blind.json()["programs"], "programs", b);
    if (status.ok() && b.evaluation) status = take_json(blind.json()["evaluation"], "evaluation", *b.evaluation);
    blind.undo();
    judge(std::move(b), status, {number, "blind", what, ""});
  }

  void mutate_knowingly(int number, std::mt19937& rng) {
    std::vector<Mutation> all(program_mutations().begin(), program_mutations().end());
    all.insert(all.end(), edit_mutations().begin(), edit_mutations().end());
    for (int tries = 0; tries < 100; ++tries) {
      const Mutation& m = all[rng() % all.size()];
      Bundle b = bundle_;
      // Of any stage, of training or of evaluation: mutations are of the first training program.
      const bool evaluation = b.evaluation && rng() % 4 == 0;
      auto turn = [&] {
        if (evaluation) std::swap(static_cast<ProgramSet&>(b), *b.evaluation);
      };
      turn();
      const size_t stage = rng() % b.programs.size();
      std::swap(b.programs[0], b.programs[stage]);
      const bool applied = m.apply(b, rng);
      std::swap(b.programs[0], b.programs[stage]);
      turn();
      if (!applied) continue;
      return judge(std::move(b), absl::OkStatus(),
                   {number, std::string(m.name), cat(evaluation ? "evaluation" : "training", ", stage ", stage), ""});
    }
    ++report_.unchanged;
  }

  void judge(Bundle b, absl::Status readable, Hole hole) {
    if (readable.ok() && fingerprint(b) == fingerprint_) return void(++report_.unchanged);
    if (readable.ok()) readable = load(b);
    if (readable.ok() && b.evaluation) readable = load(*b.evaluation);
    if (!readable.ok()) return void(++report_.refused);
    const absl::Status verdict = verifier::check_bundle(b).status();
    if (!verdict.ok()) return void(++report_.rejected);
    auto result = trial_run(trial(b), options_.steps, options_.seconds);
    if (result.ok() && *result == result_) {
      ++report_.equal;
      ++report_.equal_kinds[hole.kind == "blind" ? cat("blind ", without_indices(hole.what)) : hole.kind];
      return;
    }
    hole.in_kernel = fingerprint(without_insides(std::move(b))) == outside_;
    hole.outcome = result.ok() ? "other results" : std::string(result.status().message());
    report_.holes.push_back(std::move(hole));
  }

  // "/programs/0/segments/1/steps/4/inputs: 2 -> 3" without numbers and what follows.
  static std::string without_indices(const std::string& what) {
    std::string text;
    for (char c : what.substr(0, what.find(':'))) {
      if (c < '0' || c > '9') text += c;
    }
    return text;
  }

  const Bundle bundle_;
  const std::string initial_;
  const CampaignOptions options_;
  std::string result_, fingerprint_, outside_;  // the last: of all but the insides of kernels
  CampaignReport report_;
};

}  // namespace

nlohmann::json to_json(const CampaignReport& report) {
  nlohmann::json holes = nlohmann::json::array();
  for (const Hole& h : report.holes)
    holes.push_back({{"mutation", h.mutation},
                     {"kind", h.kind},
                     {"what", h.what},
                     {"outcome", h.outcome},
                     {"in_kernel", h.in_kernel}});
  return {{"mutations", report.mutations()},
          {"unchanged", report.unchanged},
          {"refused", report.refused},
          {"rejected", report.rejected},
          {"accepted_equal", report.equal},
          {"equal_kinds", report.equal_kinds},
          {"holes", holes}};
}

absl::StatusOr<CampaignReport> run_campaign(const std::string& bundle, const CampaignOptions& options) {
  PARTITA_ASSIGN_OR_RETURN(const auto files, runtime::BundleFiles::open_unproved(bundle));
  PARTITA_ASSIGN_OR_RETURN(Bundle read, verifier::read_bundle(*files));
  return Campaign(std::move(read), cat(bundle, "/", runtime::kInitialName), options).run();
}

}  // namespace partita
