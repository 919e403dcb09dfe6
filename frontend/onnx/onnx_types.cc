// Element types of ONNX and of the IR.
#include "base/cat.h"
#include "frontend/onnx/onnx_proto.h"

namespace partita {

std::string onnx_element_name(int element) {
  return onnx::TensorProto::DataType_IsValid(element) ? onnx::TensorProto::DataType_Name(element)
                                                      : cat("element type ", element);
}

DType dtype_of_onnx(int element) {
  switch (element) {
    case onnx::TensorProto::BOOL:
      return DType::kBool;
    case onnx::TensorProto::INT8:
      return DType::kI8;
    case onnx::TensorProto::UINT8:
      return DType::kU8;
    case onnx::TensorProto::INT16:
      return DType::kI16;
    case onnx::TensorProto::UINT16:
      return DType::kU16;
    case onnx::TensorProto::INT32:
      return DType::kI32;
    case onnx::TensorProto::UINT32:
      return DType::kU32;
    case onnx::TensorProto::INT64:
      return DType::kI64;
    case onnx::TensorProto::UINT64:
      return DType::kU64;
    case onnx::TensorProto::FLOAT16:
      return DType::kF16;
    case onnx::TensorProto::BFLOAT16:
      return DType::kBF16;
    case onnx::TensorProto::FLOAT:
      return DType::kF32;
    case onnx::TensorProto::DOUBLE:
      return DType::kF64;
    default:
      return DType::kInvalid;
  }
}

int onnx_of_dtype(DType dtype) {
  for (int element = 1; element <= onnx::TensorProto::BFLOAT16; ++element) {
    if (dtype_of_onnx(element) == dtype) return element;
  }
  return onnx::TensorProto::UNDEFINED;
}

}  // namespace partita
