// The parts of onnxruntime's C++ API that the loops call; whoever reads the output of the program runs the models.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
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

struct Env { Env(OrtLoggingLevel, const char*) {} };
struct RunOptions { explicit RunOptions(std::nullptr_t) {} };
struct SessionOptions { explicit SessionOptions(std::nullptr_t) {} };
struct MemoryInfo { static MemoryInfo CreateCpu(OrtAllocatorType, OrtMemType) { return {}; } };

class TensorTypeAndShapeInfo {
public:
    TensorTypeAndShapeInfo(ONNXTensorElementDataType type, std::vector<std::int64_t> dims) : type_(type), dims_(dims) {}
    ONNXTensorElementDataType GetElementType() const { return type_; }
    std::vector<std::int64_t> GetShape() const { return dims_; }
    std::size_t GetElementCount() const {
        std::size_t count = 1;
        for (std::int64_t dim : dims_) count *= static_cast<std::size_t>(dim);
        return count;
    }

private:
    ONNXTensorElementDataType type_;
    std::vector<std::int64_t> dims_;
};

class Value {
public:
    explicit Value(std::nullptr_t) {}
    Value(const Value&) = delete;
    Value(Value&&) = default;
    Value& operator=(Value&&) = default;
    explicit operator bool() const { return type_ != 0; }
    template <typename T> T* GetTensorMutableData() { return reinterpret_cast<T*>(data_ ? data_ : owned_.data()); }
    template <typename T> const T* GetTensorData() const { return reinterpret_cast<const T*>(data_ ? data_ : owned_.data()); }
    TensorTypeAndShapeInfo GetTensorTypeAndShapeInfo() const { return {static_cast<ONNXTensorElementDataType>(type_), dims_}; }
    static Value CreateTensor(const MemoryInfo&, void* data, std::size_t bytes, const std::int64_t* dims, std::size_t rank,
                              ONNXTensorElementDataType type) {
        Value made{nullptr};
        made.data_ = static_cast<std::uint8_t*>(data);
        made.size_ = bytes;
        made.dims_.assign(dims, dims + rank);
        made.type_ = type;
        return made;
    }

private:
    friend struct Session;
    std::uint8_t* data_ = nullptr;  // of the caller
    std::vector<std::uint8_t> owned_;
    std::size_t size_ = 0;
    std::vector<std::int64_t> dims_;
    int type_ = 0;
};

struct Session {
    Session(const Env&, const char* path, const SessionOptions&) : path_(path) {}

    // Prints the inputs, one a line, and reads how many outputs there are, and each: name, type, dims and bytes.
    void Run(const RunOptions&, const char* const* names, const Value* inputs, std::size_t count, const char* const*,
             Value* outputs, std::size_t output_count) {
        static const std::map<int, std::string> types = {{1, "float32"}, {6, "int32"}, {7, "int64"}, {9, "bool"}, {10, "float16"}};
        std::cout << "run " << path_.substr(path_.rfind('/') + 1) << " " << count << "\n";
        for (std::size_t i = 0; i < count; i++) {
            const Value& value = inputs[i];
            std::cout << names[i] << "|" << types.at(value.type_) << "|[";
            for (std::size_t at = 0; at < value.dims_.size(); at++) std::cout << (at ? "," : "") << value.dims_[at];
            std::cout << "]|[";
            for (std::size_t at = 0; at < value.size_; at++) std::cout << (at ? "," : "") << int(value.GetTensorData<std::uint8_t>()[at]);
            std::cout << "]\n";
        }
        std::cout << std::flush;
        std::cin.ignore(80, '\n');  // how many there are
        for (std::size_t i = 0; i < output_count; i++) {
            std::string dtype, dims, bytes;
            std::cin.ignore(1000, '|');  // the name
            std::getline(std::cin, dtype, '|');
            std::getline(std::cin, dims, '|');
            std::getline(std::cin, bytes);
            Value given{nullptr};
            for (const auto& [code, known] : types) if (known == dtype) given.type_ = code;
            given.dims_ = numbers<std::int64_t>(dims);
            given.owned_ = numbers<std::uint8_t>(bytes);
            if (!outputs[i]) outputs[i] = std::move(given);
            else std::memcpy(outputs[i].GetTensorMutableData<std::uint8_t>(), given.owned_.data(), given.owned_.size());
        }
    }

private:
    template <typename T> static std::vector<T> numbers(const std::string& text) {
        std::vector<T> found;
        for (std::size_t at = 0; at < text.size(); at = std::min(text.size(), text.find(',', at)) + 1) {
            found.push_back(static_cast<T>(std::stoll(text.substr(at))));
        }
        return found;
    }

    std::string path_;
};

}  // namespace Ort
