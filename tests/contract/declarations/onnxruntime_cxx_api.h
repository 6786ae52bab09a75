// Declarations of the parts of onnxruntime's C++ API that the loop calls, so that a compiler can check it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

enum ONNXTensorElementDataType {
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
    ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10
};
enum OrtLoggingLevel { ORT_LOGGING_LEVEL_WARNING = 2 };
enum OrtAllocatorType { OrtDeviceAllocator = 0 };
enum OrtMemType { OrtMemTypeCPU = -1 };

namespace Ort {

struct Env { Env(OrtLoggingLevel level, const char* name); };
struct RunOptions { explicit RunOptions(std::nullptr_t); };
struct SessionOptions { explicit SessionOptions(std::nullptr_t); };
struct MemoryInfo { static MemoryInfo CreateCpu(OrtAllocatorType allocator, OrtMemType type); };
struct TensorTypeAndShapeInfo {
    ONNXTensorElementDataType GetElementType() const;
    std::size_t GetElementCount() const;
    std::vector<std::int64_t> GetShape() const;
};
struct Value {
    explicit Value(std::nullptr_t);
    Value(Value&&);
    Value& operator=(Value&&);
    explicit operator bool() const;
    template <typename T> T* GetTensorMutableData();
    template <typename T> const T* GetTensorData() const;
    TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const;
    static Value CreateTensor(const MemoryInfo& memory, void* data, std::size_t bytes, const std::int64_t* dims, std::size_t rank,
                              ONNXTensorElementDataType type);
};
struct Session {
    Session(const Env& env, const char* path, const SessionOptions& options);
    void Run(const RunOptions& options, const char* const* names, const Value* inputs, std::size_t count,
             const char* const* output_names, Value* outputs, std::size_t output_count);
};

}  // namespace Ort
