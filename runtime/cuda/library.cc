#include "runtime/cuda/library.h"

#include <dlfcn.h>

#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/quote.h"

namespace partita::runtime {
namespace {

class Library {
 public:
  // The first of `files` that is there.
  Library(std::string what, const std::vector<std::string>& files, std::string advice)
      : what_(std::move(what)), advice_(std::move(advice)) {
    for (const std::string& file : files) {
      handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle_ != nullptr) return;
      const char* reason = ::dlerror();
      append(fault_, fault_.empty() ? "" : "; ", reason == nullptr ? file : std::string(reason));
    }
  }
  template <typename F>
  void find(F& function, const char* name) {
    void* address = handle_ == nullptr ? nullptr : ::dlsym(handle_, name);
    if (address == nullptr && handle_ != nullptr && fault_.empty()) fault_ = cat("it has no ", name);
    if (address == nullptr) failed_ = true;
    function = reinterpret_cast<F>(address);
  }
  void* handle() const { return handle_; }
  bool has(const char* name) const { return handle_ != nullptr && ::dlsym(handle_, name) != nullptr; }
  absl::Status status() const {
    if (handle_ != nullptr && !failed_) return absl::OkStatus();
    return absl::FailedPreconditionError(cat("this program needs ", what_,
                                             ", which cannot be loaded: ", quote(fault_, 600), "; get it with ",
                                             advice_, ", and put its folder into LD_LIBRARY_PATH"));
  }

 private:
  std::string what_, advice_, fault_;
  void* handle_ = nullptr;
  bool failed_ = false;
};

template <typename Table, typename Fill>
absl::StatusOr<const Table*> load_once(Fill fill) {
  static std::mutex mutex;
  static std::optional<absl::Status> outcome;
  static Table table;
  std::lock_guard lock(mutex);
  if (!outcome) outcome = fill(table);
  if (!outcome->ok()) return *outcome;
  return &table;
}

}  // namespace

absl::StatusOr<const CublasLt*> CublasLt::load() {
  return load_once<CublasLt>([](CublasLt& t) {
    Library l("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"},
              "apt-get install libcublas-13-0, or pip install nvidia-cublas");
    l.find(t.create, "cublasLtCreate");
    l.find(t.destroy, "cublasLtDestroy");
    l.find(t.matmul, "cublasLtMatmul");
    l.find(t.desc_create, "cublasLtMatmulDescCreate");
    l.find(t.desc_destroy, "cublasLtMatmulDescDestroy");
    l.find(t.desc_set, "cublasLtMatmulDescSetAttribute");
    l.find(t.layout_create, "cublasLtMatrixLayoutCreate");
    l.find(t.layout_destroy, "cublasLtMatrixLayoutDestroy");
    l.find(t.layout_set, "cublasLtMatrixLayoutSetAttribute");
    l.find(t.preference_create, "cublasLtMatmulPreferenceCreate");
    l.find(t.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    l.find(t.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    l.find(t.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    l.find(t.algorithm_check, "cublasLtMatmulAlgoCheck");
    l.find(t.status_text, "cublasLtGetStatusString");
    l.find(t.version, "cublasLtGetVersion");
    return l.status();
  });
}

absl::StatusOr<const Cudnn*> Cudnn::load() {
  return load_once<Cudnn>([](Cudnn& t) {
    Library l("cuDNN 9", {"libcudnn.so.9"}, "apt-get install cudnn9-cuda-13, or pip install nvidia-cudnn-cu13");
    t.library = l.handle();
    l.find(t.create, "cudnnCreate");
    l.find(t.destroy, "cudnnDestroy");
    l.find(t.set_stream, "cudnnSetStream");
    l.find(t.error_text, "cudnnGetErrorString");
    l.find(t.version, "cudnnGetVersion");
    l.find(t.tensor_create, "cudnnCreateTensorDescriptor");
    l.find(t.tensor_destroy, "cudnnDestroyTensorDescriptor");
    l.find(t.tensor_set, "cudnnSetTensorNdDescriptor");
    l.find(t.filter_create, "cudnnCreateFilterDescriptor");
    l.find(t.filter_destroy, "cudnnDestroyFilterDescriptor");
    l.find(t.filter_set, "cudnnSetFilterNdDescriptor");
    l.find(t.conv_create, "cudnnCreateConvolutionDescriptor");
    l.find(t.conv_destroy, "cudnnDestroyConvolutionDescriptor");
    l.find(t.conv_set, "cudnnSetConvolutionNdDescriptor");
    l.find(t.conv_groups, "cudnnSetConvolutionGroupCount");
    l.find(t.conv_math, "cudnnSetConvolutionMathType");
    l.find(t.forward_workspace, "cudnnGetConvolutionForwardWorkspaceSize");
    l.find(t.data_workspace, "cudnnGetConvolutionBackwardDataWorkspaceSize");
    l.find(t.filter_workspace, "cudnnGetConvolutionBackwardFilterWorkspaceSize");
    l.find(t.forward_choices, "cudnnGetConvolutionForwardAlgorithm_v7");
    l.find(t.data_choices, "cudnnGetConvolutionBackwardDataAlgorithm_v7");
    l.find(t.filter_choices, "cudnnGetConvolutionBackwardFilterAlgorithm_v7");
    l.find(t.forward, "cudnnConvolutionForward");
    l.find(t.backward_data, "cudnnConvolutionBackwardData");
    l.find(t.backward_filter, "cudnnConvolutionBackwardFilter");
    return l.status();
  });
}

absl::StatusOr<const Nccl*> Nccl::load() {
  return load_once<Nccl>([](Nccl& t) {
    Library l("NCCL", {"libnccl.so.2"}, "apt-get install libnccl2, or pip install nvidia-nccl-cu13");
    l.find(t.version, "ncclGetVersion");
    l.find(t.unique_id, "ncclGetUniqueId");
    l.find(t.init, "ncclCommInitRankConfig");
    l.find(t.abort, "ncclCommAbort");
    l.find(t.finalize, "ncclCommFinalize");
    l.find(t.destroy, "ncclCommDestroy");
    l.find(t.async_error, "ncclCommGetAsyncError");
    l.find(t.error_text, "ncclGetErrorString");
    l.find(t.last_error, "ncclGetLastError");
    l.find(t.group_start, "ncclGroupStart");
    l.find(t.group_end, "ncclGroupEnd");
    l.find(t.all_reduce, "ncclAllReduce");
    l.find(t.reduce_scatter, "ncclReduceScatter");
    l.find(t.all_gather, "ncclAllGather");
    l.find(t.broadcast, "ncclBroadcast");
    l.find(t.send, "ncclSend");
    l.find(t.recv, "ncclRecv");
    t.shares_devices = l.has("partita_nccl_shares_devices");
    return l.status();
  });
}

}  // namespace partita::runtime
