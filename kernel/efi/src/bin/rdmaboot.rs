//! `rdmaboot.efi`: a UEFI driver that makes each ConnectX function a boot option. A server has the image.
#![cfg_attr(target_os = "uefi", no_std, no_main)]

efi::start!(driver(efi::boot::RdmaBoot));
