//! Bring-up by commands (PRM, "Driver Start-Up"; in the order of Linux's mlx5_core).

use super::access::{access_register, optional};
use super::segment::InitialSegment;
use super::wait::{ABSENCE_TIMEOUT, Wait, hand_over_queue};
use super::{Firmware, Memory};
use crate::caps::{Capabilities, PortType, RoceCapabilities};
use crate::cmd::input;
use crate::config::Config;
use crate::control;
use crate::error::{CommandError, Error, Step};
use crate::platform::Platform;
use mlx5_prm::caps::{atomic_caps, cmd_hca_cap};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::query_adapter_param_block;
use mlx5_prm::later;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{CapType, QueryPagesOp, RegisterId};

/// atomic_operations: compare-and-swap, fetch-and-add.
const ATOMICS: u32 = 0b11;
/// atomic_size_qp: 8 bytes.
const ATOMIC_8_BYTES: u32 = 1 << 3;
/// `atomic_caps.atomic_req_8B_endianness_mode`: as the host counts.
const HOST_BYTE_ORDER: u32 = 1;
/// Name of this driver in SET_DRIVER_VERSION.
const DRIVER_VERSION: &[u8] = concat!("Bare-metal,driver-mlx,", env!("CARGO_PKG_VERSION")).as_bytes();
impl<'s, P: Platform> Firmware<'s, P> {
    fn setup<'a, 'm>(&'a mut self, memory: &'a mut Memory<'m>) -> Setup<'a, 's, 'm, P> {
        Setup { firmware: self, memory }
    }

    /// Goes from ENABLE_HCA to a device that takes commands for objects.
    // Code size: inlined, its locals share a frame so large that each access takes four more bytes.
    #[inline(never)]
    pub(in crate::hca) fn start(&mut self, memory: &mut Memory<'_>) -> Result<(), Error> {
        self.enter(Step::EnableHca);
        if let Err(error) = self.setup(memory).enable() {
            let Error::Command(CommandError { status: CmdStatus::BAD_SYS_STATE, .. }) = error else {
                return Err(error);
            };
            // A predecessor left the function enabled. Only a reset surely ends its access to the
            // memory that the predecessor gave it.
            if !control::reset_function(&self.platform) {
                return Err(error);
            }
            let config = Config { recovery: true, ..self.config };
            self.enter(Step::Presence);
            InitialSegment::wait(&self.platform, &config, &self.limits, &mut self.log)?;
            control::set_bus_master(&self.platform, true);
            hand_over_queue(&self.platform, self.cmd.device_address(), &mut self.limits)?;
            self.enter(Step::EnableHca);
            self.setup(memory).enable()?;
        }
        self.enabled = true;
        // Linux's first look at `nic_interface` is one health interval after ENABLE_HCA.
        Wait::new(Step::EnableHca, self.limits.health_interval(), ABSENCE_TIMEOUT)
            .until_enabled(&self.platform)?;
        self.begin_health_poll();
        self.enter(Step::Issi);
        self.setup(memory).agree_on_issi()?;
        self.enter(Step::BootPages);
        let boot = self.pages(memory).supply(QueryPagesOp::BOOT)?;
        if self.limits.read_segment(self.platform.bar()) {
            self.setup(memory).read_default_timeouts()?;
        }
        if self.config.physical_function {
            self.enter(Step::HostEndianness);
            self.setup(memory).set_host_endianness()?;
        }
        self.enter(Step::Capabilities);
        let atomic = self.setup(memory).set_capabilities()?;
        self.enter(Step::InitPages);
        let init = self.pages(memory).supply(QueryPagesOp::INIT)?;
        self.start_pages = [boot, init];
        self.enter(Step::InitHca);
        let init = input::<{ init_hca_in::SIZE }>(Opcode::INIT_HCA, 0);
        self.exec(memory, &init, &mut [0; init_hca_out::SIZE])?;
        self.initialized = true;
        self.enter(Step::Identify);
        self.setup(memory).identify(atomic)
    }

    /// Enters a step whose commands are those of objects and of the port.
    pub(in crate::hca) fn enter(&mut self, next: Step) {
        self.log.enter(self.platform.now(), next);
    }

    /// Ends bring-up: from now on firmware has a share of the region to itself.
    pub(in crate::hca) fn started(&mut self, memory: &mut Memory<'_>) {
        memory.set_reserve(self.config.firmware_reserve, memory.firmware_pages());
        self.enter(Step::Running);
    }
}

/// Commands that agree with firmware on capabilities.
struct Setup<'a, 's, 'm, P: Platform> {
    firmware: &'a mut Firmware<'s, P>,
    memory: &'a mut Memory<'m>,
}

impl<P: Platform> Setup<'_, '_, '_, P> {
    /// ENABLE_HCA.
    fn enable(&mut self) -> Result<(), Error> {
        let mut enable = input::<{ enable_hca_in::SIZE }>(Opcode::ENABLE_HCA, 0);
        enable_hca_in::embedded_cpu_function.set(&mut enable, self.firmware.identity.embedded_cpu);
        // Real firmware accepts 16 bytes of output, though the PRM's structure has 12.
        self.firmware.exec(self.memory, &enable, &mut [0; 16])
    }

    fn agree_on_issi(&mut self) -> Result<(), Error> {
        let mut out = [0; query_issi_out::SIZE];
        match self.firmware.exec(
            self.memory,
            &input::<{ query_issi_in::SIZE }>(Opcode::QUERY_ISSI, 0),
            &mut out,
        ) {
            Ok(()) => {}
            // Old firmware lacks the command and has sequence 0.
            Err(Error::Command(error)) if error.status == CmdStatus::BAD_OP => return Ok(()),
            Err(error) => return Err(error),
        }
        if query_issi_out::supported_issi_dw0.get32(&out) & 2 == 0 {
            return Ok(());
        }
        let mut set = input::<{ set_issi_in::SIZE }>(Opcode::SET_ISSI, 0);
        set_issi_in::current_issi.set(&mut set, 1u32);
        self.firmware.exec(self.memory, &set, &mut [0; set_issi_out::SIZE])?;
        self.firmware.identity.issi = 1;
        Ok(())
    }

    /// Capabilities of a type: the maximum, or what holds now.
    fn query_caps(
        &mut self,
        kind: CapType,
        current: bool,
        out: &mut [u8; query_hca_cap_out::SIZE],
    ) -> Result<(), Error> {
        let op_mod = kind.query_op_mod(current);
        self.firmware.exec(
            self.memory,
            &input::<{ query_hca_cap_in::SIZE }>(Opcode::QUERY_HCA_CAP, op_mod),
            out,
        )
    }

    /// Returns whether atomics count in this processor's byte order.
    fn set_capabilities(&mut self) -> Result<bool, Error> {
        use cmd_hca_cap as cap;
        let mut block = [0; query_hca_cap_out::SIZE];
        self.query_caps(CapType::GENERAL, false, &mut block)?;
        let max = Capabilities::parse(query_hca_cap_out::capability.of(&block));
        if let Some(name) = max.missing() {
            return Err(Error::MissingCapability(name));
        }
        let most = query_hca_cap_out::capability.of(&block);
        let announces_ends = cap::release_all_pages.is_set(most);
        let switched = cap::roce_rw_supported.is_set(most).then(|| cap::roce.is_set(most));
        self.query_caps(CapType::GENERAL, true, &mut block)?;
        // A copy of what holds now is edited: reserved bits that firmware has set stay as they are.
        let mut set = input::<{ set_hca_cap_in::SIZE }>(Opcode::SET_HCA_CAP, CapType::GENERAL.set_op_mod());
        let target = set_hca_cap_in::capability.of_mut(&mut set);
        target.copy_from_slice(query_hca_cap_out::capability.of(&block));
        cap::pkey_table_size.set(target, 0u32);
        cap::log_max_qp.set(target, self.firmware.config.log_max_qp.min(max.log_max_qp));
        cap::cmdif_checksum.set(target, 0u32);
        cap::log_uar_page_sz.set(target, 0u32);
        // Have firmware announce a removed function with one event instead of reclaiming its pages one
        // by one.
        cap::release_all_pages.set(target, announces_ends);
        if let Some(roce) = switched {
            cap::roce.set(target, roce);
        }
        self.firmware.exec(self.memory, &set, &mut [0; set_hca_cap_out::SIZE])?;
        Ok(max.atomic && self.set_up_atomics(&mut set)?)
    }

    /// Lets atomics of 8 bytes count in this processor's byte order. Answers whether that, and both operations, are to be had: operands in
    /// another order would be silently wrong.
    fn set_up_atomics(&mut self, set: &mut [u8; set_hca_cap_in::SIZE]) -> Result<bool, Error> {
        let mut block = [0; query_hca_cap_out::SIZE];
        self.query_caps(CapType::ATOMIC, true, &mut block)?;
        let current = query_hca_cap_out::capability.of(&block);
        let operations = atomic_caps::atomic_operations.get32(current) & ATOMICS == ATOMICS;
        if !operations || atomic_caps::atomic_size_qp.get32(current) & ATOMIC_8_BYTES == 0 {
            return Ok(false);
        }
        if cfg!(target_endian = "big") {
            return Ok(true);
        }
        if !atomic_caps::supported_atomic_req_8B_endianness_mode_1.is_set(current) {
            return Ok(false);
        }
        *set = input::<{ set_hca_cap_in::SIZE }>(Opcode::SET_HCA_CAP, CapType::ATOMIC.set_op_mod());
        // As Linux sends it: the rest of the block is zero.
        let target = set_hca_cap_in::capability.of_mut(set);
        atomic_caps::atomic_req_8B_endianness_mode.set(target, HOST_BYTE_ORDER);
        optional(self.firmware.exec(self.memory, &*set, &mut [0; set_hca_cap_out::SIZE]))
    }

    /// Reads the capabilities that hold after INIT_HCA, and the name of the board.
    fn identify(&mut self, atomic: bool) -> Result<(), Error> {
        let mut block = [0; query_hca_cap_out::SIZE];
        self.query_caps(CapType::GENERAL, true, &mut block)?;
        let general = query_hca_cap_out::capability.of(&block);
        let names_driver = cmd_hca_cap::driver_version.is_set(general);
        let has_roce = cmd_hca_cap::roce.is_set(general);
        self.firmware.caps = Capabilities { atomic, ..Capabilities::parse(general) };
        if let Some(name) = self.firmware.caps.missing() {
            return Err(Error::MissingCapability(name));
        }
        if has_roce && self.firmware.caps.port_type == PortType::Ethernet {
            self.query_caps(CapType::ROCE, true, &mut block)?;
            let (roce, loops) = RoceCapabilities::parse(query_hca_cap_out::capability.of(&block));
            let caps = &mut self.firmware.caps;
            (caps.roce, caps.force_loopback) = (Some(roce), loops);
        }
        if names_driver {
            let mut set = input::<{ set_driver_version_in::SIZE }>(Opcode::SET_DRIVER_VERSION, 0);
            let text = set_driver_version_in::driver_version.of_mut(&mut set);
            text.iter_mut().zip(DRIVER_VERSION).for_each(|(to, from)| *to = *from);
            optional(self.firmware.exec(self.memory, &set, &mut [0; set_driver_version_out::SIZE]))?;
        }
        let mut out = [0; query_adapter_out::SIZE];
        self.firmware.exec(
            self.memory,
            &input::<{ query_adapter_in::SIZE }>(Opcode::QUERY_ADAPTER, 0),
            &mut out,
        )?;
        let adapter = query_adapter_out::query_adapter_struct.of(&out);
        let psid = query_adapter_param_block::vsd_contd_psid.of(adapter);
        self.firmware.identity.psid.iter_mut().zip(psid).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    /// A host in the byte order that the device expects can do without.
    fn set_host_endianness(&mut self) -> Result<(), Error> {
        let mut data = [0; 16];
        data[0] = if cfg!(target_endian = "big") { 0x80 } else { 0 };
        let written = access_register::<32, P>(
            self.firmware,
            self.memory,
            RegisterId::HOST_ENDIANNESS,
            true,
            &mut data,
        );
        if cfg!(target_endian = "big") { written } else { optional(written).map(|_| ()) }
    }

    /// Time-outs by DTOR. A device that refuses it leaves the defaults.
    fn read_default_timeouts(&mut self) -> Result<(), Error> {
        const LEN: usize = 16 + later::DTOR_LEN;
        let mut register = [0; later::DTOR_LEN];
        let read =
            access_register::<LEN, P>(self.firmware, self.memory, RegisterId::DTOR, false, &mut register);
        if optional(read)? {
            self.firmware.limits.read_register(&register);
        }
        Ok(())
    }
}
