"""A module of torch as a velocity field."""

import torch

import otflow as of

net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()
field = of.nn.ModuleField(net)
run = of.flow(of.Particles(torch.randn(10, 2).double()), field, of.RK4(), t1=1.0, dt=0.25)
run.x[-1].square().sum().backward()
assert all(p.grad is not None for p in net.parameters())
