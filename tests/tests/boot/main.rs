//! Unikernels under QEMU.

mod apps;
mod demo;
mod ground;
mod log;
mod machines;
mod template;
mod unikernel;
