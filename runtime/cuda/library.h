// NVIDIA's libraries, found when they are first needed: a program without a convolution runs where there is no cuDNN.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>
#include <nccl.h>

#include "absl/status/statusor.h"

namespace partita::runtime {

// Each load() gives the one table of the process, or FailedPrecondition that names the library, what needs it and how
// to get it.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) algorithm_check;
  decltype(&cublasLtGetStatusString) status_text;
  decltype(&cublasLtGetVersion) version;
  static absl::StatusOr<const CublasLt*> load();
};

struct Cudnn {
  void* library;  // dlopen's
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnGetErrorString) error_text;
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnCreateTensorDescriptor) tensor_create;
  decltype(&cudnnDestroyTensorDescriptor) tensor_destroy;
  decltype(&cudnnSetTensorNdDescriptor) tensor_set;
  decltype(&cudnnCreateFilterDescriptor) filter_create;
  decltype(&cudnnDestroyFilterDescriptor) filter_destroy;
  decltype(&cudnnSetFilterNdDescriptor) filter_set;
  decltype(&cudnnCreateConvolutionDescriptor) conv_create;
  decltype(&cudnnDestroyConvolutionDescriptor) conv_destroy;
  decltype(&cudnnSetConvolutionNdDescriptor) conv_set;
  decltype(&cudnnSetConvolutionGroupCount) conv_groups;
  decltype(&cudnnSetConvolutionMathType) conv_math;
  decltype(&cudnnGetConvolutionForwardWorkspaceSize) forward_workspace;
  decltype(&cudnnGetConvolutionBackwardDataWorkspaceSize) data_workspace;
  decltype(&cudnnGetConvolutionBackwardFilterWorkspaceSize) filter_workspace;
  decltype(&cudnnGetConvolutionForwardAlgorithm_v7) forward_choices;
  decltype(&cudnnGetConvolutionBackwardDataAlgorithm_v7) data_choices;
  decltype(&cudnnGetConvolutionBackwardFilterAlgorithm_v7) filter_choices;
  decltype(&cudnnConvolutionForward) forward;
  decltype(&cudnnConvolutionBackwardData) backward_data;
  decltype(&cudnnConvolutionBackwardFilter) backward_filter;
  static absl::StatusOr<const Cudnn*> load();
};

struct Nccl {
  decltype(&ncclGetVersion) version;
  decltype(&ncclGetUniqueId) unique_id;
  decltype(&ncclCommInitRankConfig) init;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclCommFinalize) finalize;
  decltype(&ncclCommDestroy) destroy;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclGetErrorString) error_text;
  decltype(&ncclGetLastError) last_error;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclAllReduce) all_reduce;
  decltype(&ncclReduceScatter) reduce_scatter;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclBroadcast) broadcast;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  bool shares_devices = false;  // several ranks may have one device: NCCL's refuses that, a test's own does not
  static absl::StatusOr<const Nccl*> load();
};

}  // namespace partita::runtime
