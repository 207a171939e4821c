"""The schedule, the last level of IR: the typed program that the compiler emits and the interpreters execute.

A `Program` needs no MLIR to run. It holds

* **tensors**: named regions with a shape, a dtype, a memory tier and an address;
* **bodies**: what one firing of a stage computes, on tiles of fixed shape;
* **kernels**: what the machine loads and launches: control around *pipelines*, each a graph of stages joined by
  on-chip buffers of bounded depth;
* **entries** (`prefill`, `decode`): control (loops, branches, scalar arithmetic) around kernel launches, whose
  arguments are strided views of tensors.

The file form is canonical JSON (`Program.to_json`): keys sorted, no spaces, so that equal programs are
equal bytes. Unknown fields, kinds or operations are refused at load.
"""

from sscc.ir.choices import Tier
from sscc.ir.operations import (
    CachedAttention,
    CausalAttention,
    ChunkAttention,
    DecodeAttention,
    GatherRows,
    MoreRows,
    ObservationScores,
    Observe,
    Pool,
    QuantizeRows,
    Segment,
    Select,
    UpdateRows,
)
from sscc.ir.schedule.program import (
    DTYPE_BYTES,
    FORMAT_VERSION,
    Access,
    Body,
    Buffer,
    Dtype,
    Entry,
    For,
    If,
    Instr,
    Item,
    Kernel,
    Launch,
    Local,
    Param,
    ParamAccess,
    Pipeline,
    Port,
    Product,
    Program,
    Reduction,
    Role,
    Scalar,
    ScalarOperand,
    Stage,
    Step,
    Tensor,
    Vector,
    View,
    When,
    Window,
    launches,
    pipelines,
    scalars,
)

__all__ = [
    "DTYPE_BYTES",
    "FORMAT_VERSION",
    "Access",
    "Body",
    "Buffer",
    "CachedAttention",
    "CausalAttention",
    "ChunkAttention",
    "DecodeAttention",
    "Dtype",
    "Entry",
    "For",
    "GatherRows",
    "If",
    "Instr",
    "Item",
    "Kernel",
    "Launch",
    "Local",
    "MoreRows",
    "ObservationScores",
    "Observe",
    "Param",
    "ParamAccess",
    "Pipeline",
    "Pool",
    "Port",
    "Product",
    "Program",
    "QuantizeRows",
    "Reduction",
    "Role",
    "Scalar",
    "ScalarOperand",
    "Segment",
    "Select",
    "Stage",
    "Step",
    "Tensor",
    "Tier",
    "UpdateRows",
    "Vector",
    "View",
    "When",
    "Window",
    "launches",
    "pipelines",
    "scalars",
]
