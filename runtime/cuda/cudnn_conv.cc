#include "runtime/cuda/cudnn_conv.h"

#include "base/box.h"
#include "base/cat.h"
#include "base/status.h"
#include "runtime/cuda/cudnn_graph.h"
#include "runtime/cuda/library.h"

namespace partita::runtime {
namespace {

#ifdef PARTITA_CUDNN_FRONTEND

constexpr int64_t kMostConvWorkspace = int64_t{1} << 30;

class ConvPlan final : public CudnnConv {
 public:
  ConvPlan(cudnnHandle_t handle, const CudnnConvShape& shape) : handle_(handle), shape_(shape) {
    graph_.set_io_data_type(shape.dtype == DType::kBF16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
  }

  absl::Status build() {
    switch (shape_.direction) {
      case ConvDirection::kForward:
        result(graph_.conv_fprop(tensor(kX), tensor(kW), as<fe::graph::Conv_fprop_attributes>()), kY);
        break;
      case ConvDirection::kGradData:
        result(graph_.conv_dgrad(tensor(kY), tensor(kW), as<fe::graph::Conv_dgrad_attributes>()), kX);
        break;
      case ConvDirection::kGradWeight:
        result(graph_.conv_wgrad(tensor(kY), tensor(kX), as<fe::graph::Conv_wgrad_attributes>()), kW);
        break;
    }
    PARTITA_RETURN_IF_ERROR(to_status(graph_.validate()));
    PARTITA_RETURN_IF_ERROR(to_status(graph_.build_operation_graph(handle_)));
    PARTITA_RETURN_IF_ERROR(to_status(graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK})));
    graph_.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    graph_.deselect_workspace_greater_than(kMostConvWorkspace);
    PARTITA_RETURN_IF_ERROR(to_status(graph_.check_support()));
    PARTITA_RETURN_IF_ERROR(to_status(graph_.build_plans(fe::BuildPlanPolicy_t::HEURISTICS_CHOICE)));
    return to_status(graph_.get_workspace_size(workspace_));
  }

  int64_t workspace_bytes() const override { return workspace_; }

  absl::Status run(std::byte* x, std::byte* w, std::byte* y, std::byte* workspace) const override {
    std::unordered_map<int64_t, void*> at = {{kX, x}, {kW, w}, {kY, y}};
    return with_context(caught([&] { return to_status(graph_.execute(handle_, at, workspace)); }),
                        "cuDNN's convolution");
  }

 private:
  enum Uid : int64_t { kX = 1, kW, kY };

  const std::vector<int64_t>& dims(Uid uid) const { return shape_.dims[static_cast<size_t>(uid - kX)]; }
  std::vector<int64_t> strides(Uid uid) const {
    const std::vector<int64_t>& d = dims(uid);
    std::vector<int64_t> strides(d.size(), 1);
    int64_t stride = d[1];
    for (size_t k = d.size(); k-- > 2; stride *= d[k]) strides[k] = stride;
    strides[0] = stride;
    return strides;
  }
  TensorPtr tensor(Uid uid) {
    return graph_.tensor(fe::graph::Tensor_attributes().set_uid(uid).set_dim(dims(uid)).set_stride(strides(uid)));
  }
  void result(const TensorPtr& made, Uid uid) const {
    made->set_output(true).set_uid(uid).set_dim(dims(uid)).set_stride(strides(uid));
  }
  template <typename Attributes>
  Attributes as() const {
    return Attributes()
        .set_name("convolution")
        .set_padding(shape_.padding)
        .set_stride(shape_.stride)
        .set_dilation(shape_.dilation);
  }

  cudnnHandle_t handle_;
  CudnnConvShape shape_;
  fe::graph::Graph graph_;
  int64_t workspace_ = 0;
};

absl::StatusOr<std::shared_ptr<const CudnnConv>> make_conv(cudnnHandle_t handle, const CudnnConvShape& shape) {
  PARTITA_ASSIGN_OR_RETURN(const Cudnn* dnn, Cudnn::load());
  use_cudnn(dnn->library);
  auto made = std::make_shared<ConvPlan>(handle, shape);
  PARTITA_RETURN_IF_ERROR(caught([&] { return made->build(); }));
  return made;
}

#else

absl::StatusOr<std::shared_ptr<const CudnnConv>> make_conv(cudnnHandle_t, const CudnnConvShape&) {
  return absl::FailedPreconditionError("this build has not the headers of cudnn-frontend");
}

#endif

std::string describe(const CudnnConvShape& s) {
  constexpr std::array kOps = {"conv", "conv_grad_data", "conv_grad_weight"};
  return cat(kOps[static_cast<size_t>(s.direction)], " ", dtype_name(s.dtype), " x ", shape_text(s.dims[0]),
             ", weight ", shape_text(s.dims[1]), ", y ", shape_text(s.dims[2]), ", padding ", shape_text(s.padding),
             ", stride ", shape_text(s.stride), ", dilation ", shape_text(s.dilation));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CudnnConv>> CudnnConvs::plan(cudnnHandle_t handle, const CudnnConvShape& shape) {
  const std::string what = describe(shape);
  auto known = plans_.find(what);
  if (known == plans_.end()) {
    auto made = make_conv(handle, shape);
    if (!made.ok()) made = with_context(made.status(), what);
    known = plans_.emplace(what, std::move(made)).first;
  }
  return known->second;
}

}  // namespace partita::runtime
