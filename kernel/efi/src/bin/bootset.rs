//! `bootset.efi`: shows and sets where `rdmaboot.efi` gets its image.
#![cfg_attr(target_os = "uefi", no_std, no_main)]

efi::start!(program(None, efi::bootset::run));
