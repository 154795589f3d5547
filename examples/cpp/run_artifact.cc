// Runs an artifact of halo_tvm for a CPU from C++: TVM's runtime and FFI, no Python.
//
//     run_artifact ARTIFACT THREADS [SHAPE FILE]...
//     run_artifact mlp.halo 2 4x1024 x.bin
//
// One shape and one file of raw little-endian elements for each input, in the order of the manifest. Every output is
// written as raw elements to <name>.bin. docs/runtime.md has the command that builds it. What `load` of the Python
// package does beyond this is left out: hashes, the choice among several libraries, values within declared ranges.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/tvm_ffi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;
using ffi::json::Array;
using ffi::json::Object;

struct Allocated {  // memory of an input
  void AllocData(DLTensor* t) { t->data = std::aligned_alloc(64, (ffi::GetDataSize(*t) + 64) / 64 * 64); }
  void FreeData(DLTensor* t) { std::free(t->data); }
};

struct Mapped {  // memory of a weight, which stays mapped until the process ends
  void* at;
  void AllocData(DLTensor* t) { t->data = at; }
  void FreeData(DLTensor*) {}
};

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) TVM_FFI_THROW(ValueError) << "expected the file " << path << ", found none: check the path";
  return {std::istreambuf_iterator<char>(file), {}};
}

Object parsed(const std::string& text) { return ffi::json::Parse(text).cast<Object>(); }

ffi::Tensor weight(char* data, const Object& entry) {  // {"dtype": "F32", "shape": [..], "data_offsets": [from, to]}
  auto dtype = entry["dtype"].cast<ffi::String>();
  std::string name = dtype == "BOOL" ? "bool" : dtype == "BF16" ? "bfloat16" : "";
  if (name.empty()) name = (dtype.data()[0] == 'F' ? "float" : dtype.data()[0] == 'U' ? "uint" : "int");
  if (dtype != "BOOL" && dtype != "BF16") name += dtype.data() + 1;
  std::vector<int64_t> shape;
  for (const auto& size : entry["shape"].cast<Array>()) shape.push_back(size.cast<int64_t>());
  int64_t offset = entry["data_offsets"].cast<Array>()[0].cast<int64_t>();
  return ffi::Tensor::FromNDAlloc(Mapped{data + offset}, ffi::Shape(shape), ffi::StringToDLDataType(name),
                                  DLDevice{kDLCPU, 0});
}

ffi::Tensor input(const Object& spec, const std::string& sizes, const std::string& path) {
  std::vector<int64_t> shape;
  std::stringstream words(sizes);
  for (std::string size; std::getline(words, size, 'x');) shape.push_back(std::stoll(size));
  DLDataType dtype = ffi::StringToDLDataType(spec["dtype"].cast<ffi::String>());
  auto tensor = ffi::Tensor::FromNDAlloc(Allocated(), ffi::Shape(shape), dtype, DLDevice{kDLCPU, 0});
  std::string bytes = read(path);
  size_t needed = ffi::GetDataSize(*tensor.GetDLTensorPtr());
  if (bytes.size() != needed) {
    TVM_FFI_THROW(ValueError) << "expected " << needed << " bytes of " << sizes << " in " << path << ", found "
                              << bytes.size() << ": give another shape or file";
  }
  std::memcpy(tensor.data_ptr(), bytes.data(), needed);
  return tensor;
}

int run(const std::string& artifact, int threads, const std::vector<std::string>& given) {
  Object manifest = parsed(read(artifact + "/manifest.json"));
  Object main = manifest["functions"].cast<Object>()["main"].cast<Object>();
  Object variant = manifest["variants"].cast<Array>()[0].cast<Object>();
  Array inputs = main["inputs"].cast<Array>(), outputs = main["outputs"].cast<Array>();
  if (given.size() != 2 * inputs.size()) {
    TVM_FFI_THROW(ValueError) << "expected a shape and a file for each of " << inputs.size() << " inputs, found "
                              << given.size() << " words: name them in the order of the manifest";
  }
  std::vector<ffi::Any> arguments;  // inputs, then weights: what the function takes
  for (size_t i = 0; i < inputs.size(); ++i) {
    arguments.push_back(input(inputs[i].cast<Object>(), given[2 * i], given[2 * i + 1]));
  }
  Array params = main["params"].cast<Array>();
  if (!params.empty()) {  // a safetensors container: the header's length, the header, the weights
    std::string path = artifact + "/" + std::string(variant["params"].cast<ffi::String>());
    int file = open(path.c_str(), O_RDONLY);
    struct stat size;
    if (file < 0 || fstat(file, &size)) TVM_FFI_THROW(ValueError) << "expected the file " << path << ": compile again";
    void* mapped = mmap(nullptr, size.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
    if (mapped == MAP_FAILED) TVM_FFI_THROW(ValueError) << path << " cannot be mapped: free some memory";
    char* data = static_cast<char*>(mapped);
    uint64_t length;
    std::memcpy(&length, data, sizeof length);
    Object header = parsed(std::string(data + sizeof length, length));
    for (const auto& name : params) {
      arguments.push_back(weight(data + sizeof length + length, header[name].cast<Object>()));
    }
  }
  ffi::Module library =
      ffi::Module::LoadFromFile(artifact + "/" + std::string(variant["library"].cast<ffi::String>()));
  ffi::Module machine = library->GetFunction("vm_load_executable").value()().cast<ffi::Module>();
  machine->GetFunction("vm_initialization").value()(static_cast<int>(kDLCPU), 0, 2);  // 2: memory from pools
  auto begin = library->GetFunction("halo_pool", true), use = library->GetFunction("halo_use", true);
  int64_t pool = 0;
  if (begin && use) {  // a library of the target c has no threads of its own
    pool = (*begin)(threads).cast<int64_t>();
    (*use)(pool);  // from here on, this thread's loops run on the library's threads
  }
  ffi::Any result;
  std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  machine->GetFunction("main").value().CallPacked(views.data(), views.size(), &result);
  for (size_t i = 0; i < outputs.size(); ++i) {
    auto tensor = outputs.size() == 1 ? result.cast<ffi::Tensor>() : result.cast<Array>()[i].cast<ffi::Tensor>();
    std::string name = outputs[i].cast<Object>()["name"].cast<ffi::String>();
    std::ofstream file(name + ".bin", std::ios::binary);
    file.write(static_cast<char*>(tensor.data_ptr()), ffi::GetDataSize(*tensor.GetDLTensorPtr()));
    std::printf("%s:", name.c_str());
    for (int64_t size : tensor.shape()) std::printf(" %lld", static_cast<long long>(size));
    std::printf("\n");
  }
  if (pool) {
    (*use)(0);
    library->GetFunction("halo_end", true).value()(pool);
  }
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "expected ARTIFACT THREADS [SHAPE FILE]..., found %d words\n", argc - 1);
    return 1;
  }
  try {
    return run(argv[1], std::atoi(argv[2]), std::vector<std::string>(argv + 3, argv + argc));
  } catch (const ffi::Error& error) {
    std::fprintf(stderr, "%s: %s\n", error.kind().c_str(), error.message().c_str());
    return 1;
  }
}
