// Preloaded into a CUDA build of torch: its autograd engine then takes tensors on "cuda" without a driver.
// Only for tensors that have no memory (FakeTensor); nothing is ever launched.
#include <ATen/detail/CUDAHooksInterface.h>

namespace {
struct Pretended : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCuDNN() const override { return true; }
  long versionCuDNN() const override { return 92000; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
};
}  // namespace

namespace at::detail {
__attribute__((visibility("default"))) const CUDAHooksInterface& getCUDAHooks() {
  static Pretended* hooks = new Pretended();
  return *hooks;
}
}  // namespace at::detail
