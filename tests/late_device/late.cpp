// A device on the processor that is as asynchronous as a GPU: PyTorch's PrivateUse1.
//
// It has one queue. Kernels are the processor's and compute at once, but the host learns of it only when it waits:
//   - a non-blocking copy to pinned memory leaves 0xFF bytes there (NaN, -1) until a wait of the host covers it;
//   - the pinned source of a non-blocking copy to the device has to keep its bytes until then.
// A violation is a hazard, and hazards are counted; so are the waits of the host, by their cause.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/library.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {
using at::Tensor;
using Lock = std::lock_guard<std::recursive_mutex>;
constexpr auto kLate = c10::DeviceType::PrivateUse1;
const c10::Device kDevice(kLate, 0);
std::recursive_mutex mutex;

// ---------------------------------------------------------------- the queue

// A copy that is under way. Its host tensor stays allocated until it has ended, as CUDA's allocator sees to.
struct Copy {
  int64_t number;
  Tensor host;
  std::string bytes;  // to the host: what will arrive; from the host: what has to be there still
  bool to_host;
};

auto& copies = *new std::deque<Copy>;  // never destroyed: at exit PyTorch may be gone before
int64_t num_enqueued = 0, num_ended = 0, num_hazards = 0;
std::map<std::string, int64_t> waits;
thread_local bool in_kernel = false;  // the processor's kernels copy their operands, of which a GPU knows nothing

void end_copy(Copy& copy) {
  char* host = static_cast<char*>(copy.host.data_ptr());
  const std::string expected = copy.to_host ? std::string(copy.bytes.size(), '\xff') : copy.bytes;
  num_hazards += std::memcmp(host, expected.data(), expected.size()) != 0;  // the host wrote there meanwhile
  if (copy.to_host) std::memcpy(host, copy.bytes.data(), copy.bytes.size());
}

void wait_until(int64_t number, const std::string& cause) {
  Lock lock(mutex);
  ++waits[cause];
  for (; !copies.empty() && copies.front().number <= number; copies.pop_front()) end_copy(copies.front());
  num_ended = std::max(num_ended, number);
}

void wait_for_all(const std::string& cause) { wait_until(num_enqueued, cause); }

// ---------------------------------------------------------------- memory

int64_t num_held = 0, num_held_at_most = 0, num_allowed = int64_t(1) << 40;  // bytes
std::map<const char*, size_t> pinned;                                       // sizes by address

bool is_pinned(const void* address) {
  Lock lock(mutex);
  auto after = pinned.upper_bound(static_cast<const char*>(address));
  return after != pinned.begin() && (--after, address < after->first + after->second);
}

struct Block {
  char* start;
  size_t size;
  bool is_own;  // of the device, rather than pinned memory of the host
};

void free_block(void* context) {
  Lock lock(mutex);
  auto* block = static_cast<Block*>(context);
  if (block->is_own) num_held -= block->size;
  else pinned.erase(block->start);
  std::free(block->start);
  delete block;
}

struct Memory final : at::Allocator {
  explicit Memory(bool is_own) : is_own(is_own) {}

  c10::DataPtr allocate(size_t size) override {
    Lock lock(mutex);
    TORCH_CHECK_WITH(OutOfMemoryError, !is_own || num_held + int64_t(size) <= num_allowed,
                     "late device: out of memory. Tried to allocate ", size, " bytes");
    auto* block = new Block{static_cast<char*>(std::aligned_alloc(64, (size / 64 + 1) * 64)), size, is_own};
    if (is_own) num_held_at_most = std::max(num_held_at_most, num_held += size);
    else pinned[block->start] = std::max<size_t>(size, 1);
    return {block->start, block, &free_block, is_own ? kDevice : c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }

  const bool is_own;
} own_memory(true), pinned_memory(false);

REGISTER_ALLOCATOR(kLate, &own_memory)

// ---------------------------------------------------------------- what PyTorch asks of a device

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
};

struct Moment {
  int64_t number;
  std::chrono::steady_clock::time_point time;
};

struct Guard final : c10::impl::NoOpDeviceGuardImpl<kLate> {
  c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
  c10::Device getDevice() const override { return kDevice; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }

  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {
    Lock lock(mutex);
    if (!*event) *event = new Moment;
    *static_cast<Moment*>(*event) = {num_enqueued, std::chrono::steady_clock::now()};
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Moment*>(event); }
  bool queryEvent(void* event) const override { return static_cast<Moment*>(event)->number <= num_ended; }
  void synchronizeEvent(void* event) const override { wait_until(static_cast<Moment*>(event)->number, "event"); }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(static_cast<Moment*>(to)->time - static_cast<Moment*>(from)->time)
        .count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

// ---------------------------------------------------------------- operators

// The bytes of a tensor on the device, as a tensor that the processor's kernels take.
Tensor seen(const Tensor& x) {
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().device(at::kCPU).requires_grad(false));
}

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
             std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &own_memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &own_memory,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor reshape_alias(const Tensor& x, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(x, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

Tensor view(const Tensor& x, c10::SymIntArrayRef size) {
  return at::native::view(x, C10_AS_INTARRAYREF_SLOW(size));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowAutograd no_autograd;
  const Tensor value = from.is_cpu() ? from : seen(from);
  const Tensor target = to.is_cpu() ? to : seen(to);
  const Tensor& host = to.is_cpu() ? to : from;
  if (in_kernel || !host.is_cpu()) {
    target.copy_(value);
    return to;
  }

  Lock lock(mutex);
  ++num_enqueued;
  if (!non_blocking || !host.is_contiguous() || !is_pinned(host.data_ptr())) {
    wait_for_all(to.is_cpu() ? "copy to the host" : "copy to the device");
    target.copy_(value);
    return to;
  }
  const Tensor bytes = to.is_cpu() ? at::empty(to.sizes(), to.options()).copy_(value) : from;
  copies.push_back({num_enqueued, host.detach(),
                    std::string(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes()), to.is_cpu()});
  if (to.is_cpu()) {
    std::memset(to.data_ptr(), 0xFF, to.nbytes());
  } else {
    target.copy_(value);
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  at::native::resize_(to, from.sizes(), std::nullopt);
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const Tensor& x) {
  if (!in_kernel) wait_for_all("item");
  return at::native::_local_scalar_dense_cpu(seen(x));
}

// Kernels whose results have shapes that depend on values: a GPU's host waits for them.
const std::set<std::string> kWaiting{"aten::_unique2", "aten::equal", "aten::masked_select", "aten::nonzero"};

void compute_on_processor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  {
    Lock lock(mutex);
    ++num_enqueued;
    if (!in_kernel && kWaiting.count(name)) wait_for_all(name);
  }
  struct InKernel {
    const bool before = std::exchange(in_kernel, true);
    ~InKernel() { in_kernel = before; }
  } in_kernel_now;
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&compute_on_processor>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::cpu::as_strided_symint);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view", view);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
}

using at::autocast::CastPolicy;
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {  // CUDA's rules for what the program calls
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(scaled_dot_product_attention, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
}
}  // namespace

PYBIND11_MODULE(late, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  m.def("synchronize", [] { wait_for_all("synchronize"); });
  m.def("waits", [] { return waits; });
  m.def("hazards", [] { return num_hazards; });
  m.def("pin", [](uintptr_t address, size_t size) { pinned[reinterpret_cast<const char*>(address)] = size; });
  m.def("unpin", [](uintptr_t address) { pinned.erase(reinterpret_cast<const char*>(address)); });
  m.def("held", [] { return num_held; });
  m.def("held_at_most", [] { return num_held_at_most; });
  m.def("allowed", [] { return num_allowed; });
  m.def("reset_peak", [] { num_held_at_most = num_held; });
  m.def("allow", [](int64_t bytes) { num_allowed = bytes; });
}
