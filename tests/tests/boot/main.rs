//! Unikernels under QEMU.

mod apps;
mod demo;
mod ground;
mod machines;
mod template;
mod unikernel;
