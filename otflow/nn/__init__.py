"""Fields in training: flows as modules of torch, modules of torch as fields."""

from otflow.nn.attention import from_torch, to_torch
from otflow.nn.field_module import FieldModule
from otflow.nn.flow import Flow
from otflow.nn.module_field import ModuleField

__all__ = ["FieldModule", "Flow", "ModuleField", "from_torch", "to_torch"]
