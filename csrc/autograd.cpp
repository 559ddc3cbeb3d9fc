// SPDX-License-Identifier: Apache-2.0
//
// The operators are for inference: tensors that require grad are refused, and every write bumps the version
// counter of its tensor so that autograd notices when a saved tensor changes. Boxed, one pair for all
// operators: the schema says which arguments are written.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include "ops.h"

namespace torch_offload {
namespace {

template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  }
}

// What the user has called: "sparse_copy" of "offload::sparse_copy", and of "offload::_sparse_copy_3" or "..._cores".
std::string public_name(const c10::OperatorHandle& op) {
  const std::string& qualified = op.operator_name().name;
  const std::string name = qualified.substr(qualified.rfind(':') + 1);
  return name.front() == '_' ? name.substr(1, name.rfind('_') - 1) : name;
}

}  // namespace

void refuse_grad(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size();
  const bool backward = c10::GradMode::is_enabled();
  const bool forward = c10::AutogradState::get_tls_state().get_fw_grad_mode();
  if (backward || forward) {
    for (size_t i = 0; i < count; ++i) {
      visit_tensors(torch::jit::peek(*stack, i, count), [&](const at::Tensor& tensor) {
        const bool has_tangent = forward && tensor.defined() && tensor._fw_grad(/*level=*/0).defined();
        TORCH_CHECK_NOT_IMPLEMENTED(!has_tangent, public_name(op), ": expected ", schema.arguments()[i].name(),
                                    " to be no dual tensor (the operator has no derivative), got one with a tangent");
        TORCH_CHECK_NOT_IMPLEMENTED(!(backward && tensor.requires_grad()), public_name(op), ": expected ",
                                    schema.arguments()[i].name(),
                                    " not to require grad (the operator has no derivative), got a tensor that does; "
                                    "call it under torch.no_grad() or on detached tensors");
      });
    }
  }
  at::AutoDispatchBelowAutograd below;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

void bump_versions(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  c10::SmallVector<at::Tensor, 8> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
    visit_tensors(torch::jit::peek(*stack, i, arguments.size()),
                  [&](const at::Tensor& tensor) { written.push_back(tensor); });
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  }
  for (const at::Tensor& tensor : written) {
    if (!tensor.is_inference()) torch::autograd::increment_version(tensor);
  }
}

}  // namespace torch_offload
