// halo_dense(tensors...) raises a ValueError unless each tensor is dense from its start, in the memory of the CPU.
//
// A library's functions call it with the tensors that they are given: kernels read memory as if it were so.
//
// halo_rows(tensor, axis, first, count) is a view of `count` rows of `axis`, in front of which all axes are 1. It keeps
// the tensor alive. TVM's own views leave the address and set an offset, which kernels refuse. Rows and tensors are the
// library's own: none is outside.
#include <cstdint>
#include <cstdio>

namespace {

// As dlpack.h and tvm/ffi/c_api.h have them.
struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct Any {
  int32_t type_index;
  uint32_t padding;
  union {
    char* value;
    int64_t number;
  };
};
struct View {  // a DLManagedTensor
  Tensor tensor;
  char* whole;  // the object that it is a part of
  void (*deleter)(View*);
};
constexpr int32_t kPlainTensor = 7, kTensorObject = 70;
constexpr int kHeader = 24;  // bytes of an object in front of its tensor
constexpr int32_t kCpu = 1;

const char* wrong(const Tensor& tensor) {
  if (tensor.device_type != kCpu) return "in the memory of the CPU";
  if (tensor.byte_offset != 0) return "that begins where its data does (byte_offset 0)";
  int64_t expected = 1;
  bool dense = true;
  for (int i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides && tensor.strides[i] != expected) dense = false;
    expected *= tensor.shape[i];
  }
  if (expected == 0) return nullptr;  // strides of nothing may be any
  if (!dense) return "without gaps, its last axis the fastest (strides)";
  return tensor.data ? nullptr : "that has data";
}

}  // namespace

extern "C" {

void TVMFFIErrorSetRaisedFromCStr(const char* kind, const char* message);
int TVMFFITensorFromDLPack(View* from, int32_t require_alignment, int32_t require_contiguous, char** out);
int TVMFFIObjectIncRef(char* object);
int TVMFFIObjectDecRef(char* object);

__attribute__((visibility("default"))) int __tvm_ffi_halo_dense(void*, const Any* args, int32_t num_args, Any*) {
  for (int i = 0; i < num_args; ++i) {
    char* value = args[i].value;
    if (args[i].type_index == kTensorObject) {
      value += kHeader;
    } else if (args[i].type_index != kPlainTensor) {
      continue;  // the machine has checked what it is
    }
    if (const char* expected = wrong(*reinterpret_cast<const Tensor*>(value))) {
      char message[160];
      snprintf(message, sizeof message, "expected a tensor %s as tensor %d of the function: copy it there first", expected, i);
      TVMFFIErrorSetRaisedFromCStr("ValueError", message);
      return -1;
    }
  }
  return 0;
}

static void let_go(View* view) {
  TVMFFIObjectDecRef(view->whole);
  delete[] view->tensor.shape;
  delete view;
}

__attribute__((visibility("default"))) int __tvm_ffi_halo_rows(void*, const Any* args, int32_t, Any* result) {
  char* object = args[0].value;
  const Tensor& whole = *reinterpret_cast<const Tensor*>(object + kHeader);
  auto* view = new View{whole, object, let_go};
  int64_t* sizes = view->tensor.shape = new int64_t[2 * whole.ndim];
  int64_t* strides = view->tensor.strides = sizes + whole.ndim;
  const int64_t axis = args[1].number;
  int64_t step = 1;
  for (int i = whole.ndim - 1; i >= 0; --i) {
    sizes[i] = i == axis ? args[3].number : whole.shape[i];
    strides[i] = step;
    step *= sizes[i];
  }
  view->tensor.data = static_cast<char*>(whole.data) + args[2].number * strides[axis] * (whole.bits * whole.lanes / 8);
  TVMFFIObjectIncRef(object);
  *result = {kTensorObject, 0, {nullptr}};
  if (int failed = TVMFFITensorFromDLPack(view, 0, 0, &result->value)) {
    let_go(view);
    return failed;
  }
  return 0;
}
}
