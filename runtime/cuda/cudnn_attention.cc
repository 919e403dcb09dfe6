#include "runtime/cuda/cudnn_attention.h"

#include <cstdlib>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/cuda/cudnn_graph.h"
#include "runtime/cuda/library.h"
#include "runtime/device/attention_scratch.h"

#ifdef PARTITA_CUDNN_FRONTEND
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where it looks for cuDNN
}
#endif

namespace partita::runtime {
namespace {

std::string version_text(size_t version) {
  return cat("cuDNN ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

std::string describe(const AttentionShape& a, DType dtype, bool gradient) {
  return cat(gradient ? "gradient of " : "", dtype_name(dtype), " q [", a.batch, ", ", a.heads, ", ", a.s, ", ", a.d,
             "], k [", a.batch, ", ", a.kv_heads, ", ", a.t, ", ", a.d, "], v of ", a.e, a.causal ? ", causal" : "",
             a.mask == DType::kInvalid ? "" : cat(", mask of ", dtype_name(a.mask)), ", scale ", a.scale);
}

// Plans differ by where rows lie, too.
std::string describe_rows(const AttentionShape& a) {
  std::string text;
  for (const AttentionRows* rows : {&a.q, &a.k, &a.v, &a.out, &a.g, &a.dq, &a.dk, &a.dv})
    append(text, " ", rows->offset, "+", rows->batch, "+", rows->head, "+", rows->row);
  return text;
}

// What cuDNN is not asked for.
absl::Status check_ours(const AttentionShape& a, DType dtype) {
  if (dtype != DType::kBF16 && dtype != DType::kF16) return absl::UnimplementedError("it is for bf16 and fp16");
  // A row that no key is left for is 0 here, with a log-sum of minus infinity; and cuDNN 9.19's gradients were wrong on
  // an H200 where a mask leaves keys out (partita_attention_check's padded cases).
  if (a.mask != DType::kInvalid) return absl::UnimplementedError("a mask may leave a query without keys");
  if (a.causal && a.s > a.t) return absl::UnimplementedError("causality leaves the first queries without keys");
  return absl::OkStatus();
}

#ifdef PARTITA_CUDNN_FRONTEND

// One kernel of cuDNN's, run for each of some equal parts of the whole.
class Plan final : public CudnnAttention {
 public:
  Plan(cudnnHandle_t handle, const AttentionShape& whole, int64_t parts, DType dtype)
      : handle_(handle),
        parts_(attention_parts(whole, parts)),
        a_(parts_[0].shape),
        size_(dtype_size(dtype)),
        row_sums_{0, whole.heads * whole.s, whole.s, 1} {
    graph_.set_io_data_type(dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  absl::Status build(bool gradient) {
    gradient_ = gradient;
    const TensorPtr q = tensor(kQ, queries(a_.d), a_.q), k = tensor(kK, keys(a_.d), a_.k),
                    v = tensor(kV, keys(a_.e), a_.v);
    if (gradient) {
      const TensorPtr out = tensor(kOut, queries(a_.e), a_.out), g = tensor(kG, queries(a_.e), a_.g),
                      lse = tensor(kLse, queries(1), row_sums_);
      lse->set_data_type(fe::DataType_t::FLOAT);
      auto options = fe::graph::SDPA_backward_attributes().set_name("attention_grad").set_deterministic_algorithm(true);
      const auto grads = graph_.sdpa_backward(q, k, v, out, g, lse, with_scores(options));
      result(grads[0], kDq, queries(a_.d), a_.dq);
      result(grads[1], kDk, keys(a_.d), a_.dk);
      result(grads[2], kDv, keys(a_.e), a_.dv);
    } else {
      auto options = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(true);
      const auto [out, lse] = graph_.sdpa(q, k, v, with_scores(options));
      result(out, kOut, queries(a_.e), a_.out);
      result(lse, kLse, queries(1), row_sums_);
      lse->set_data_type(fe::DataType_t::FLOAT);
    }
    PARTITA_RETURN_IF_ERROR(to_status(graph_.validate()));
    PARTITA_RETURN_IF_ERROR(to_status(graph_.build_operation_graph(handle_)));
    PARTITA_RETURN_IF_ERROR(to_status(graph_.create_execution_plans({fe::HeurMode_t::A})));
    PARTITA_RETURN_IF_ERROR(to_status(graph_.check_support()));
    PARTITA_RETURN_IF_ERROR(to_status(graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE)));
    return to_status(graph_.get_workspace_size(workspace_));
  }

  int64_t workspace_bytes() const override { return workspace_; }

  absl::Status run(std::span<std::byte* const> b, std::byte* workspace) const override {
    for (const AttentionPart& part : parts_) {
      std::unordered_map<int64_t, void*> at = addresses(b, part);
      PARTITA_RETURN_IF_ERROR(
          with_context(caught([&] { return to_status(graph_.execute(handle_, at, workspace)); }), "cuDNN's attention"));
    }
    return absl::OkStatus();
  }

 private:
  enum Uid : int64_t { kQ = 1, kK, kV, kOut, kLse, kG, kDq, kDk, kDv };
  using Dims = std::vector<int64_t>;

  std::unordered_map<int64_t, void*> addresses(std::span<std::byte* const> b, const AttentionPart& part) const {
    const AttentionShape& a = part.shape;
    const auto rows = [&](std::byte* operand, const AttentionRows& of) { return operand + of.offset * size_; };
    const auto sums = [&](std::byte* operand) { return operand + part.first_row * dtype_size(DType::kF32); };
    if (!gradient_) {
      return {{kQ, rows(b[0], a.q)},
              {kK, rows(b[1], a.k)},
              {kV, rows(b[2], a.v)},
              {kOut, rows(b[b.size() - 2], a.out)},
              {kLse, sums(b.back())}};
    }
    std::byte *dk = b.size() > 8 ? b[8] : b[7], *dv = b.size() > 8 ? b[9] : b[7];  // or all in one
    return {{kG, rows(b[0], a.g)},   {kQ, rows(b[1], a.q)},     {kK, rows(b[2], a.k)},
            {kV, rows(b[3], a.v)},   {kOut, rows(b[5], a.out)}, {kLse, sums(b[6])},
            {kDq, rows(b[7], a.dq)}, {kDk, rows(dk, a.dk)},     {kDv, rows(dv, a.dv)}};
  }

  Dims queries(int64_t width) const { return {a_.batch, a_.heads, a_.s, width}; }
  Dims keys(int64_t width) const { return {a_.batch, a_.kv_heads, a_.t, width}; }
  // Of one sample, head or row there is no next one: any stride will do but 0, which would be a broadcast.
  static Dims strides(const Dims& d, const AttentionRows& rows) {
    return {d[0] == 1 ? d[1] * d[2] * d[3] : rows.batch, d[1] == 1 ? d[2] * d[3] : rows.head,
            d[2] == 1 ? d[3] : rows.row, 1};
  }
  TensorPtr tensor(Uid uid, const Dims& dims, const AttentionRows& rows) {
    return graph_.tensor(fe::graph::Tensor_attributes().set_uid(uid).set_dim(dims).set_stride(strides(dims, rows)));
  }
  static void result(const TensorPtr& made, Uid uid, const Dims& dims, const AttentionRows& rows) {
    made->set_output(true).set_uid(uid).set_dim(dims).set_stride(strides(dims, rows));
  }
  // The last query looks at the last key.
  template <typename Options>
  Options& with_scores(Options& options) const {
    options.set_attn_scale(static_cast<float>(a_.scale));
    if (a_.causal) {
      options.set_diagonal_alignment(a_.s == a_.t ? fe::DiagonalAlignment_t::TOP_LEFT
                                                  : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
      options.set_diagonal_band_right_bound(0);
    }
    return options;
  }

  cudnnHandle_t handle_;
  std::vector<AttentionPart> parts_;
  AttentionShape a_;        // of a part
  int64_t size_;            // of an element
  AttentionRows row_sums_;  // where those of a part lie, from its first
  bool gradient_ = false;
  fe::graph::Graph graph_;
  int64_t workspace_ = 0;
};

absl::StatusOr<std::shared_ptr<const CudnnAttention>> make(cudnnHandle_t handle, const AttentionShape& shape,
                                                           DType dtype, bool gradient) {
  // On Hopper, from cuDNN 9.25 on, gradients whose scores are too large for us take turns instead. It reads this when
  // it is first asked.
  [[maybe_unused]] static const int kTold =
      ::setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", cat(kMostScoreBytes).c_str(), /*overwrite=*/0);
  int64_t wanted = 0;
  for (int64_t parts = 1; parts > 0; parts = score_parts(shape.batch, shape.kv_heads, wanted * parts, parts)) {
    auto made = std::make_shared<Plan>(handle, shape, parts, dtype);
    PARTITA_RETURN_IF_ERROR(caught([&] { return made->build(gradient); }));
    wanted = made->workspace_bytes();
    if (wanted <= kMostScoreBytes) return made;
  }
  return absl::UnimplementedError(
      cat("it wants ", wanted, " bytes of memory for a head, and gets ", kMostScoreBytes, " at most"));
}

#else

absl::StatusOr<std::shared_ptr<const CudnnAttention>> make(cudnnHandle_t, const AttentionShape&, DType, bool) {
  return absl::FailedPreconditionError("this build has not the headers of cudnn-frontend");
}

#endif

absl::StatusOr<std::shared_ptr<const CudnnAttention>> ask(cudnnHandle_t handle, const AttentionShape& shape,
                                                          DType dtype, bool gradient) {
  PARTITA_RETURN_IF_ERROR(check_ours(shape, dtype));
  PARTITA_ASSIGN_OR_RETURN(const Cudnn* dnn, Cudnn::load());
#ifdef PARTITA_CUDNN_FRONTEND
  use_cudnn(dnn->library);
#endif
  auto made = make(handle, shape, dtype, gradient);
  if (!made.ok()) return with_context(made.status(), version_text(dnn->version()));
  return made;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CudnnAttention>> CudnnAttentions::plan(cudnnHandle_t handle,
                                                                            const AttentionShape& shape, DType dtype,
                                                                            bool gradient) {
  const std::string what = describe(shape, dtype, gradient);
  const std::string key = cat(what, describe_rows(shape));
  auto known = plans_.find(key);
  if (known == plans_.end()) {
    auto made = ask(handle, shape, dtype, gradient);
    if (!made.ok()) made = with_context(made.status(), what);
    known = plans_.emplace(key, std::move(made)).first;
  }
  return known->second;
}

bool has_cudnn_attention() {
#ifdef PARTITA_CUDNN_FRONTEND
  return true;
#else
  return false;
#endif
}

}  // namespace partita::runtime
