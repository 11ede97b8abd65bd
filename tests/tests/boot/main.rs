//! Unikernels under QEMU.

mod apps;
mod demo;
mod ground;
mod template;
mod unikernel;
