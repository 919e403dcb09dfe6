// What a device can do: memory, peak rates, and how much of them kernels of a given size reach. Read from YAML, the
// built-in ones from partitioner/profiles (each constant with its source there); none of it is in code.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"
#include "partitioner/planner/cluster/failure_rates.h"

namespace partita {

inline constexpr int kPrecisions = 5;  // in the order of Precision

// Fraction of a peak against a size, linear between points in log(size), constant outside.
struct EfficiencyCurve {
  std::vector<std::pair<double, double>> points;  // size ascending
  double at(double size) const;
};

// A tile of the GEMM library: it computes m x n outputs at `relative` of the best tile's rate.
struct MatrixTile {
  double m = 128, n = 128, relative = 1;
};

// How time is lost beside kernels, and how memory is used, by the software that runs the step.
struct SoftwareProfile {
  double step_seconds = 0;            // host work of one step that nothing hides
  double micro_batch_seconds = 0;     // the same of one micro-batch on one stage
  double kernel_seconds = 0;          // gap between two kernels of a stream
  double recompute_seconds = 0;       // host work of recomputing one block for one micro-batch that nothing hides
  double overlap_data = 0;            // share of the gradients' reduction that can hide behind backward, without stages
  double overlap_gather = 0;          // share of ZeRO-3's gathers that can hide behind compute
  double overlap_send = 0;            // share of sends between stages that hides behind compute
  double overlap_slowdown = 0;        // compute slows by this share while a collective runs beside it
  double straggler_per_doubling = 0;  // share of the step lost at each doubling of the number of nodes
  double gradient_bytes = 4;          // of an accumulated gradient element in mixed precision
  double fragmentation = 0;           // share of activations lost to the allocator
  double math_score_bytes = 0;        // kept per attention score in units of one 16-bit element, where scores are kept
  double math_score_traffic =
      0;  // 16-bit elements moved per attention score in the forward pass, where scores are kept
  double fused_softmax_keys = 0;       // more keys than the fused softmax takes: 0 without a limit
  double unfused_score_traffic = 0;    // math_score_traffic of attention with more keys
  double accumulate_bytes = 0;         // moved per parameter where a micro-batch adds to its gradient
  double bucket_bytes = 0;             // gradients, and what ZeRO-1 gathers, travel in messages of so much,
  double shard_message_bytes = 0;      // those of ZeRO-1 between pipeline stages in such,
  double gather_message_bytes = 0;     // those of a unit under ZeRO-2 and 3 in such: 0 all at once
  double composed_forward_bytes = 0;   // moved per element by an op that is run as a chain of operations, beside what
  double composed_backward_bytes = 0;  // one kernel moves, in mixed precision
  double composed_saved_bytes = 0;     // and kept for backward beside its 16-bit operand and result
  double logit_bytes = 0;              // of transient memory per logit at the loss
  double gathered_logit_bytes = 0;     // the same where the tensor axis splits the vocabulary: each rank has all logits
  double memory_traffic = 1;           // measured over ideal bytes of fused elementwise kernels
  double copies = 0;                   // times that software writes and reads what a layout change makes
};

// What one processor of a GPU does in a clock, counted in threads.
struct ProcessorLanes {
  double issue = 0;     // instructions that start
  double fp32 = 0;      // additions, products, both in one
  double fp64 = 0;      // the same
  double integer = 0;   // additions, comparisons, bits
  double special = 0;   // approximations: exponentials, roots, reciprocals
  double convert = 0;   // between types
  double exchange = 0;  // shuffles
  double memory = 0;    // loads and stores, of 4 bytes each
};

struct DeviceProfile {
  // FLOP/s of matrix units; of a precision that the profile does not name, those of the fastest other but fp8: what a
  // device lacks is computed in another.
  double peak(Precision precision) const;

  std::string name, source;
  double memory_bytes = 0;
  double reserve_bytes = 0;                                            // context, communicators, workspaces: assumed
  double reserved_communicators = 0;                                   // that it has room for
  double communicator_receive_bytes = 0, communicator_send_bytes = 0;  // of one, for what it receives and sends
  double attention_scratch_bytes = 0;  // at most, of the scores that attention's gradient keeps: 2 bytes each
  double bandwidth = 0;                // of device memory, bytes/s
  std::array<double, kPrecisions> flops = {0, 0, 0, 0, 0};  // peak of matrix units by Precision
  double processors = 1;                                    // tiles computed at once
  double clock = 0;                                         // of a GPU's processors, Hz; 0: not known
  double cache = 0;                                         // of a GPU, that all processors share, bytes
  ProcessorLanes lanes;                                     // of a GPU whose clock is known
  EfficiencyCurve matrix;                                   // of peak, by the contraction's length K
  EfficiencyCurve matrix_rows, matrix_columns;              // of `matrix`, by M and N: small products (cpu)
  EfficiencyCurve convolution;                              // of peak in place of `matrix`, by output channels (cpu)
  EfficiencyCurve convolution_plane;                        // of `convolution`, by positions of its result (cpu)
  double convolution_strided = 1;                           // share of both where windows move on by several positions
  std::vector<MatrixTile> tiles;
  EfficiencyCurve attention_flash, attention_math;  // of peak, by the size of a head
  double misaligned = 1;                            // share of it where rows of a head are not whole 16 bytes
  double attention_backward = 1;                    // efficiency of attention's gradient relative to the forward pass
  EfficiencyCurve memory;                           // of bandwidth, by bytes moved
  double launch_seconds = 0;
  double interference = 0;       // compute slows by this share of the time in which something travels beside it
  double host_bandwidth = 0;     // to host memory, bytes/s, per device
  double host_memory_bytes = 0;  // that activations may wait in, per device
  double host_update_rate = 0;   // optimizer elements/s on the host, per device; 0: the device is the host
  double price_per_hour = 0;
  SoftwareProfile software;
  FailureRates failures;
  // The same device as programs that are compiled here use it, where that is known to differ from the software whose
  // published steps the rest was fitted to; null: it is not.
  std::shared_ptr<const DeviceProfile> own;
  const DeviceProfile& of_own_programs() const { return own != nullptr ? *own : *this; }

  // Whether it is one beside a host, whose memory it reaches.
  bool has_host() const { return host_update_rate > 0 && host_bandwidth > 0; }

  // What communicators take beyond those that the reserve has room for: of groups, whose rings receive from one rank
  // and send to one, and of messages to and from single ranks.
  double beyond_reserve(double groups, double sends, double receives) const {
    const double more = communicator_receive_bytes * (groups + receives - reserved_communicators) +
                        communicator_send_bytes * (groups + sends - reserved_communicators);
    return more > 0 ? more : 0;
  }
};

// A kind of link: what `links:` of a cluster leaves out.
struct LinkProfile {
  std::string kind, source;
  double bandwidth = 0;    // bytes/s per device and direction
  double latency = 0;      // seconds a hop
  double efficiency = 1;   // of bandwidth, for large messages
  double half_bytes = 0;   // message per rank that reaches half of it
  bool multicast = false;  // the switch reduces (NVLS)
  double multicast_gain = 1;
  // Of a collective between ranks that have worked since the last one: until the last of them is there. Jitter, and
  // where ranks outnumber cores those that have to take turns.
  double wait_seconds = 0;
};

// A node as clouds rent it.
struct NodePreset {
  std::string name, device, source;
  int64_t devices = 8;
  std::string inner_link, outer_link;
  double outer_bandwidth = 0;  // bytes/s per device and direction
  double price_per_hour = 0;   // of one device
};

// Sets the keys of `node` over what `out` has; errors "line:column: path: …".
absl::Status parse_device(const YamlNode& node, const std::string& path, DeviceProfile& out);

// Whether what was read can be planned with: all that a plan divides by is there, and no gigabytes stand for bytes, no
// bits for them; errors as above, at `node`.
absl::Status check_device(const YamlNode& node, const std::string& path, const DeviceProfile& device);
absl::Status check_link(const YamlNode& node, const std::string& path, const LinkProfile& link);
// A figure per device above this is no network that exists; bits were written for bytes.
inline constexpr double kFastestNetwork = 2e11;
// Links whose rates people say in bits.
bool is_network(std::string_view kind);
// An error: no `known` one has that name, and which is nearest.
absl::Status unknown_name(const YamlNode& node, const std::string& path, const std::string& name,
                          const std::vector<std::string>& known);

// The built-in profiles, by name.
class ProfileLibrary {
 public:
  // Parses the embedded files; Internal where one is unsound.
  static absl::StatusOr<ProfileLibrary> load();
  // Sets what a YAML text of devices, links and software says over the built-in values. Devices, links and presets that
  // it names are whole then, and so are those that its presets name.
  absl::Status overlay(std::string_view text, const std::string& file);

  const DeviceProfile* device(std::string_view name) const;
  const LinkProfile* link(std::string_view kind) const;
  const NodePreset* preset(std::string_view name) const;
  std::vector<std::string> device_names() const;
  std::vector<std::string> link_kinds() const;
  std::vector<std::string> preset_names() const;

 private:
  absl::Status check_entries(const YamlNode& root) const;
  absl::Status check_preset(const YamlNode& node, const std::string& path, const NodePreset& preset) const;

  std::map<std::string, DeviceProfile, std::less<>> devices_;
  std::map<std::string, LinkProfile, std::less<>> links_;
  std::map<std::string, NodePreset, std::less<>> presets_;
};

// (file name, text) of the YAML files of partitioner/profiles, embedded by CMake.
std::vector<std::pair<std::string_view, std::string_view>> embedded_profiles();

}  // namespace partita
