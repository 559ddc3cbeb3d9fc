# SPDX-License-Identifier: Apache-2.0
"""Registration: what torch.library.opcheck sees, and what the schema objects say."""

import pytest
import torch
from cases import CASES, Case
from torch.library import opcheck

import torch_offload  # noqa: F401  (registers the operators)

UTILITIES = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)
FIXED_ARITY = [getattr(torch.ops.offload, f"_sparse_copy_{n}").default for n in range(1, 5)]
PTRS = torch.ops.offload.sparse_copy_ptrs.default
CORES = torch.ops.offload._sparse_copy_cores.default
PTRS_CORES = torch.ops.offload._sparse_copy_ptrs_cores.default
OPERATORS = [torch.ops.offload.sparse_copy.default, *FIXED_ARITY, PTRS, CORES, PTRS_CORES]


def written(operator: torch._ops.OpOverload) -> list[str]:
    arguments = operator._schema.arguments
    return [a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sparse_copy(case: Case):
    sample = case.make()
    utilities = UTILITIES
    if any(tensor.dtype.is_floating_point and tensor.element_size() == 1 for tensor in sample.dst):
        utilities = UTILITIES[1:]  # test_schema compares by arithmetic that torch has not for float8
    opcheck(torch.ops.offload.sparse_copy.default, sample.args(), test_utils=utilities)
    opcheck(CORES, (*sample.args(), 7), test_utils=utilities)
    if len(sample.dst) <= len(FIXED_ARITY):
        operator = FIXED_ARITY[len(sample.dst) - 1]
        opcheck(operator, (*sample.dst, *sample.src, *sample.args()[2:]), test_utils=utilities)


@pytest.mark.parametrize("arity", range(1, 5))
def test_every_fixed_arity(arity: int):
    dst = [torch.zeros(6, 3 + c) for c in range(arity)]
    src = [torch.rand(9, 3 + c) for c in range(arity)]
    opcheck(
        FIXED_ARITY[arity - 1], (*dst, *src, torch.tensor([4, -1, 0]), torch.tensor([8, 2, 2])), test_utils=UTILITIES
    )


@pytest.mark.parametrize("lengths", [[16, 0, 3], [-1, 5, 1], []], ids=["some", "refused", "none"])
@pytest.mark.parametrize("address_dtype", [torch.int64, torch.uint64], ids=str)
def test_sparse_copy_ptrs(lengths: list[int], address_dtype: torch.dtype):
    src = torch.arange(64, dtype=torch.uint8)
    dst = torch.zeros(64, dtype=torch.uint8)
    sources = [src.data_ptr() + 20 * i for i in range(len(lengths))]
    destinations = [dst.data_ptr() + 20 * i for i in range(len(lengths))]
    tables = (
        torch.tensor(sources, dtype=torch.int64).view(address_dtype),
        torch.tensor(destinations, dtype=torch.int64).view(address_dtype),
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor([len(lengths)]),
    )
    opcheck(PTRS, (*tables, torch.full((4,), 77)), test_utils=UTILITIES)
    opcheck(PTRS_CORES, (*tables, torch.full((4,), 77), 7), test_utils=UTILITIES)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator._schema.name)
def test_schema_object(operator: torch._ops.OpOverload):
    name = operator._schema.name.removeprefix("offload::")
    expected = {
        "sparse_copy": ["dst"],
        "sparse_copy_ptrs": ["status"],
        "_sparse_copy_cores": ["dst"],
        "_sparse_copy_ptrs_cores": ["status"],
        **{f"_sparse_copy_{n}": [f"dst{c}" for c in range(n)] for n in range(1, 5)},
    }[name]
    assert written(operator) == expected
    if expected != ["dst"]:  # a list has its alias set inside of its type
        sets = [a.alias_info.before_set for a in operator._schema.arguments if a.alias_info is not None]
        assert len(set().union(*sets)) == len(sets) == len(expected), "two written arguments of one alias set"
    assert operator._schema.returns == []
    assert operator._schema.is_mutable
    assert torch.Tag.pt2_compliant_tag in operator.tags
    assert torch.Tag.needs_exact_strides in operator.tags
    assert not {torch.Tag.flexible_layout, torch.Tag.inplace, torch.Tag.out} & set(operator.tags)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator._schema.name)
def test_kernels_of_every_dispatch_key(operator: torch._ops.OpOverload):
    for key in ("CPU", "Meta", "Autograd", "ADInplaceOrView"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), key), key


def test_public_schemas():
    assert str(torch.ops.offload.sparse_copy.default._schema) == (
        "offload::sparse_copy(Tensor(a!)[] dst, Tensor[] src, Tensor? dst_index=None, Tensor? src_index=None, "
        "Tensor? count=None) -> ()"
    )
    assert str(PTRS._schema) == (
        "offload::sparse_copy_ptrs(Tensor src_ptrs, Tensor dst_ptrs, Tensor lengths, Tensor count, Tensor(a!) status)"
        " -> ()"
    )
