//! From registers to a usable device and back (PRM, "Driver Start-Up"; in the order of Linux's mlx5_core).

use super::access::optional;
use super::exec::input;
use super::function::Function;
use super::health::Health;
use super::limits::Limits;
use super::recoveries::Recoveries;
use super::wait::{ABSENCE_TIMEOUT, Wait, hand_over_queue};
use super::{BLUEFLAME_PAGES, BlueFlamePage, EventRing, Hca, StepTime, StepTimes, page_list};
use crate::buddy::{self, BLOCK, Buddy};
use crate::caps::Capabilities;
use crate::cmd::{CommandQueue, MAILBOX_BYTES, Tail};
use crate::config::{Config, MAX_COMPLETION_EQS};
use crate::control;
use crate::dma::{DmaMemory, DmaRegion};
use crate::eq::Eq;
use crate::error::{CommandError, Error, Step};
use crate::host::{HostMemory, HostRegion};
use crate::life::Life;
use crate::log::log;
use crate::platform::{Bar, Platform};
use crate::storage::HcaParts;
use crate::trace::{Counters, Trace, TraceKind};
use crate::types::{Duration, EqNumber, LKey, UarPage};
use mlx5_prm::caps::{atomic_caps, cmd_hca_cap};
use mlx5_prm::commands::*;
use mlx5_prm::contexts::{eqc, query_adapter_param_block};
use mlx5_prm::datapath::DATA_LKEY_TERMINATOR;
use mlx5_prm::event::EventType;
use mlx5_prm::init_seg::{self, initial_seg, uar};
use mlx5_prm::later;
use mlx5_prm::opcode::Opcode;
use mlx5_prm::status::CmdStatus;
use mlx5_prm::value::{CapType, QueryPagesOp};

/// As [`Config::initializing_timeout`], of firmware that starts again after a fault.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(7200);
/// atomic_operations: compare-and-swap, fetch-and-add.
const ATOMICS: u32 = 0b11;
/// atomic_size_qp: 8 bytes.
const ATOMIC_8_BYTES: u32 = 1 << 3;
/// `atomic_caps.atomic_req_8B_endianness_mode`: as the host counts.
const HOST_BYTE_ORDER: u32 = 1;
/// What this driver calls itself in SET_DRIVER_VERSION.
const DRIVER_VERSION: &[u8] = concat!("Bare-metal,driver-mlx,", env!("CARGO_PKG_VERSION")).as_bytes();
/// The events that the asynchronous queue takes. Not COMM_EST, which nobody needs and every connection would send: what comes for each
/// object is bounded, see `event_room`.
const ASYNC_EVENTS: [EventType; 12] = [
    EventType::PATH_MIG,
    EventType::SQ_DRAINED,
    EventType::CQ_ERROR,
    EventType::WQ_CATAS_ERROR,
    EventType::PATH_MIG_FAILED,
    EventType::PORT_CHANGE,
    EventType::PAGE_REQUEST,
    EventType::WQ_INVAL_REQ_ERROR,
    EventType::WQ_ACCESS_ERROR,
    EventType::SRQ_CATAS_ERROR,
    EventType::SRQ_LAST_WQE,
    EventType::SRQ_RQ_LIMIT,
];

/// What the initialization segment says of the firmware before it has a command queue.
pub(super) struct Firmware {
    pub(super) version: (u16, u16, u16),
    pub(super) embedded_cpu: bool,
    pub(super) log_size: u32,
    pub(super) log_stride: u32,
}

impl Firmware {
    /// Waits until a reset that is under way is over and firmware has started; the steps from [`Step::Presence`] to
    /// [`Step::CommandQueue`].
    pub(super) fn wait<P: Platform>(
        platform: &P,
        config: &Config,
        limits: &Limits,
        steps: &mut StepTimes,
        trace: &mut Trace<'_>,
    ) -> Result<Self, Error> {
        let bar = platform.bar();
        let absence = if config.recovery { limits.firmware_reset } else { ABSENCE_TIMEOUT };
        let reset = Wait { step: Step::Presence, limit: limits.firmware_reset, absence };
        reset.until_reset_is_over(platform)?;
        steps.enter(platform, trace, Step::Presence, Step::Initializing);
        let limit = if config.recovery { RECOVERY_TIMEOUT } else { config.initializing_timeout };
        Wait { step: Step::Initializing, limit, absence }.until_initialized(platform)?;
        let version = bar.read32(init_seg::FW_REV_OFFSET);
        let revision = bar.read32(init_seg::CMD_INTERFACE_REV_OFFSET);
        if revision >> 16 != init_seg::CMD_INTERFACE_REV {
            return Err(Error::InterfaceRevision((revision >> 16) as u16));
        }
        // Boot code and a driver that stopped the device leave the interface disabled; it starts from there. What it says of itself is
        // meaningful only after ENABLE_HCA.
        let embedded_cpu = bar.read32(init_seg::INITIALIZING_OFFSET) & later::EMBEDDED_CPU != 0;
        steps.enter(platform, trace, Step::Initializing, Step::CommandQueue);
        let word = bar.read32(init_seg::CMDQ_ADDR_L_SZ_OFFSET).to_be_bytes();
        let mut segment = [0; 0x18];
        segment[init_seg::CMDQ_ADDR_L_SZ_OFFSET..].copy_from_slice(&word);
        Ok(Self {
            version: (version as u16, (version >> 16) as u16, revision as u16),
            embedded_cpu,
            log_size: initial_seg::log_cmdq_size.get32(&segment),
            log_stride: initial_seg::log_cmdq_stride.get32(&segment),
        })
    }
}

impl<'s, P: Platform> Hca<'s, P> {
    /// Brings the HCA up. Bus mastering and memory decoding of the function are on, and no other driver uses it.
    ///
    /// # Errors
    /// Any [`Error`]. What was begun has then been undone as far as the device let it; if it did not answer, only a
    /// function-level reset makes the region safe to use for anything else.
    pub fn bring_up(
        platform: P,
        region: DmaRegion,
        host: HostRegion,
        storage: HcaParts<'s>,
        config: &Config,
    ) -> Result<Self, Error> {
        if !(1..=MAX_COMPLETION_EQS).contains(&config.completion_eqs) {
            return Err(Error::InvalidArgument("completion_eqs"));
        }
        for (name, log_size) in
            [("log_eq_size", config.log_eq_size), ("log_async_eq_size", config.log_async_eq_size)]
        {
            if !(7..=16).contains(&log_size) {
                return Err(Error::InvalidArgument(name));
            }
        }
        let HcaParts { map, users, trace, events, region_in_use } = storage;
        *region_in_use = false;
        users.fill(0);
        let memory = region.into_memory();
        let blocks = memory.len() / BLOCK;
        let room = users.len().min(map.len() / 2);
        let mut buddy = Buddy::new(map, blocks)
            .filter(|_| blocks <= room)
            .ok_or(Error::StorageTooSmall { needed: blocks, available: room })?;

        let host = HostMemory::new(host).ok_or(Error::OutOfHostMemory { bytes: 0 })?;

        let mut trace = Trace::new(trace);
        let mut steps = StepTimes { began: platform.now(), ..StepTimes::default() };
        let bar = platform.bar();
        if bar.len() < init_seg::INIT_SEG_LEN {
            return Err(Error::InvalidArgument("BAR0 length"));
        }
        let mut limits = Limits::new(config);
        let Firmware { version, embedded_cpu, log_size, log_stride } =
            Firmware::wait(&platform, config, &limits, &mut steps, &mut trace)?;
        let mut take = |bytes: usize| {
            let order = buddy::order_for(bytes).ok_or(Error::OutOfMemory { bytes })?;
            let block = buddy.alloc(order).ok_or(Error::OutOfMemory { bytes })?;
            let slice = memory.slice(block * BLOCK, bytes).ok_or(Error::OutOfBounds)?;
            slice.fill(0, bytes, 0)?;
            Ok::<_, Error>(slice)
        };
        let cmd = CommandQueue::new(take(BLOCK)?, take(MAILBOX_BYTES)?, log_size, log_stride)
            .ok_or(Error::CommandQueue { log_size: log_size as u8, log_stride: log_stride as u8 })?;
        *region_in_use = true;
        hand_over_queue(&platform, cmd.device_address(), &mut limits)?;

        let mut hca = Self {
            platform,
            config: *config,
            region: memory,
            buddy,
            users,
            host,
            records: Default::default(),
            cmd,
            events: EventRing { slots: events, first: 0, len: 0 },
            trace,
            counters: Counters::default(),
            caps: Capabilities::default(),
            step: Step::CommandQueue,
            steps,
            fatal: None,
            life: Life::first(memory.va()),
            recoveries: Recoveries::default(),
            health: Health::default(),
            limits,
            firmware_pages: 0,
            boot_pages: 0,
            own_pages: Function { id: 0, embedded_cpu },
            embedded_cpu,
            terminator: LKey::new(DATA_LKEY_TERMINATOR),
            firmware_version: version,
            psid: [0; 16],
            issi: 0,
            owned: true,
            region_in_use,
            enabled: false,
            initialized: false,
            gave_back_foreign: false,
            mtu_is_assumed: false,
            atomics: false,
            uar: None,
            blueflame: [BlueFlamePage { page: None, used: 0 }; BLUEFLAME_PAGES],
            no_write_combining: false,
            async_eq: None,
            completion_eqs: [const { None }; MAX_COMPLETION_EQS as usize],
            reserved_lkey: LKey::new(0),
            last_variant: 0,
            variants: 0,
            expected_events: 0,
        };
        match hca.start() {
            Ok(()) => Ok(hca),
            Err(error) => {
                log!(error, "hca: bring-up ends in step {=str}: {}", hca.step.name(), error);
                // The error that stopped bring-up is the one to tell; what undoing meets is in the trace.
                let _ = hca.stop();
                Err(error)
            }
        }
    }

    fn enter(&mut self, next: Step) {
        self.steps.enter(&self.platform, &mut self.trace, self.step, next);
        self.step = next;
    }

    /// Everything that goes by commands.
    pub(super) fn start(&mut self) -> Result<(), Error> {
        self.enter(Step::EnableHca);
        if let Err(error) = self.enable() {
            let Error::Command(CommandError { status: CmdStatus::BAD_SYS_STATE, .. }) = error else {
                return Err(error);
            };
            // Somebody left the function enabled, and only a reset surely takes it, and the memory that it knows of, away from them.
            if !control::reset_function(&self.platform) {
                return Err(error);
            }
            let config = Config { recovery: true, ..self.config };
            let address = self.cmd.device_address();
            Firmware::wait(&self.platform, &config, &self.limits, &mut self.steps, &mut self.trace)?;
            control::set_bus_master(&self.platform, true);
            hand_over_queue(&self.platform, address, &mut self.limits)?;
            self.enable()?;
        }
        self.enabled = true;
        // Linux's first look at `nic_interface` is one health interval after ENABLE_HCA.
        Wait { step: Step::EnableHca, limit: self.limits.health_interval, absence: ABSENCE_TIMEOUT }
            .until_enabled(&self.platform)?;
        self.begin_health_poll();
        self.enter(Step::Issi);
        self.agree_on_issi()?;
        self.enter(Step::BootPages);
        self.supply_pages(QueryPagesOp::BOOT)?;
        if self.limits.read_segment(self.platform.bar()) {
            self.read_default_timeouts()?;
        }
        if self.config.physical_function {
            self.enter(Step::HostEndianness);
            self.set_host_endianness()?;
        }
        self.enter(Step::Capabilities);
        self.set_capabilities()?;
        self.enter(Step::InitPages);
        self.supply_pages(QueryPagesOp::INIT)?;
        self.enter(Step::InitHca);
        self.exec(&input::<{ init_hca_in::SIZE }>(Opcode::INIT_HCA, 0), &mut [0; init_hca_out::SIZE])?;
        self.initialized = true;
        self.enter(Step::Identify);
        self.identify()?;
        self.enter(Step::Uar);
        let page = self.alloc_uar()?;
        self.uar = Some(page);
        self.enter(Step::EventQueues);
        self.create_event_queues(page)?;
        self.enter(Step::Resources);
        let query = input::<{ query_special_contexts_in::SIZE }>(Opcode::QUERY_SPECIAL_CONTEXTS, 0);
        let mut out = [0; query_special_contexts_out::SIZE];
        self.exec(&query, &mut out)?;
        self.reserved_lkey = LKey::new(query_special_contexts_out::resd_lkey.get32(&out));
        if self.caps.terminate_scatter_list_mkey {
            self.terminator = LKey::new(later::TERMINATE_SCATTER_LIST_MKEY.get32(&out));
        }
        self.enter(Step::Port);
        if self.config.physical_function {
            self.port_up()?;
        }
        self.port()?;
        self.boot_pages = self.firmware_pages;
        self.enter(Step::Running);
        Ok(())
    }

    /// ENABLE_HCA.
    fn enable(&mut self) -> Result<(), Error> {
        let mut enable = input::<{ enable_hca_in::SIZE }>(Opcode::ENABLE_HCA, 0);
        enable_hca_in::embedded_cpu_function.set(&mut enable, self.embedded_cpu);
        // Real firmware accepts 16 bytes of output, though the PRM's structure has 12.
        self.exec(&enable, &mut [0; 16])
    }

    fn agree_on_issi(&mut self) -> Result<(), Error> {
        let mut out = [0; query_issi_out::SIZE];
        match self.exec(&input::<{ query_issi_in::SIZE }>(Opcode::QUERY_ISSI, 0), &mut out) {
            Ok(()) => {}
            // Old firmware does not know the command and means sequence 0.
            Err(Error::Command(error)) if error.status == CmdStatus::BAD_OP => return Ok(()),
            Err(error) => return Err(error),
        }
        if query_issi_out::supported_issi_dw0.get32(&out) & 2 == 0 {
            return Ok(());
        }
        let mut set = input::<{ set_issi_in::SIZE }>(Opcode::SET_ISSI, 0);
        set_issi_in::current_issi.set(&mut set, 1u32);
        self.exec(&set, &mut [0; set_issi_out::SIZE])?;
        self.issi = 1;
        Ok(())
    }

    /// The general capabilities: the maximum, or what holds now.
    fn query_caps(&mut self, current: bool, out: &mut [u8; query_hca_cap_out::SIZE]) -> Result<(), Error> {
        let op_mod = CapType::GENERAL.query_op_mod(current);
        self.exec(&input::<{ query_hca_cap_in::SIZE }>(Opcode::QUERY_HCA_CAP, op_mod), out)
    }

    fn set_capabilities(&mut self) -> Result<(), Error> {
        use cmd_hca_cap as cap;
        let mut block = [0; query_hca_cap_out::SIZE];
        self.query_caps(false, &mut block)?;
        let max = Capabilities::parse(query_hca_cap_out::capability.of(&block));
        // Said before anything is given for a port that cannot be used.
        if !max.infiniband {
            return Err(Error::NotInfiniBand);
        }
        if let Some(name) = max.missing() {
            return Err(Error::MissingCapability(name));
        }
        let announces_ends = cap::release_all_pages.is_set(query_hca_cap_out::capability.of(&block));
        self.query_caps(true, &mut block)?;
        // A copy of what holds now is edited: reserved bits that firmware has set stay as they are.
        let mut set = input::<{ set_hca_cap_in::SIZE }>(Opcode::SET_HCA_CAP, CapType::GENERAL.set_op_mod());
        let target = set_hca_cap_in::capability.of_mut(&mut set);
        target.copy_from_slice(query_hca_cap_out::capability.of(&block));
        cap::pkey_table_size.set(target, 0u32);
        cap::log_max_qp.set(target, self.config.log_max_qp.min(max.log_max_qp));
        cap::cmdif_checksum.set(target, 0u32);
        cap::log_uar_page_sz.set(target, 0u32);
        // A function that ends, a virtual one say, is told of at once, and its pages are not asked for back one after another.
        cap::release_all_pages.set(target, announces_ends);
        self.exec(&set, &mut [0; set_hca_cap_out::SIZE])?;
        self.atomics = max.atomic && self.set_up_atomics(&mut set)?;
        Ok(())
    }

    /// Lets atomics of 8 bytes count in this processor's byte order. Answers whether that, and both operations, are to be had: operands in
    /// another order would be silently wrong.
    fn set_up_atomics(&mut self, set: &mut [u8; set_hca_cap_in::SIZE]) -> Result<bool, Error> {
        let mut block = [0; query_hca_cap_out::SIZE];
        let query = CapType::ATOMIC.query_op_mod(true);
        self.exec(&input::<{ query_hca_cap_in::SIZE }>(Opcode::QUERY_HCA_CAP, query), &mut block)?;
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
        optional(self.exec(&*set, &mut [0; set_hca_cap_out::SIZE]))
    }

    /// What holds after INIT_HCA.
    fn identify(&mut self) -> Result<(), Error> {
        let mut block = [0; query_hca_cap_out::SIZE];
        self.query_caps(true, &mut block)?;
        let general = query_hca_cap_out::capability.of(&block);
        let names_driver = cmd_hca_cap::driver_version.is_set(general);
        self.caps = Capabilities { atomic: self.atomics, ..Capabilities::parse(general) };
        if let Some(name) = self.caps.missing() {
            return Err(Error::MissingCapability(name));
        }
        if names_driver {
            let mut set = input::<{ set_driver_version_in::SIZE }>(Opcode::SET_DRIVER_VERSION, 0);
            let text = set_driver_version_in::driver_version.of_mut(&mut set);
            text.iter_mut().zip(DRIVER_VERSION).for_each(|(to, from)| *to = *from);
            optional(self.exec(&set, &mut [0; set_driver_version_out::SIZE]))?;
        }
        let mut out = [0; query_adapter_out::SIZE];
        self.exec(&input::<{ query_adapter_in::SIZE }>(Opcode::QUERY_ADAPTER, 0), &mut out)?;
        let adapter = query_adapter_out::query_adapter_struct.of(&out);
        let psid = query_adapter_param_block::vsd_contd_psid.of(adapter);
        self.psid.iter_mut().zip(psid).for_each(|(to, from)| *to = *from);
        Ok(())
    }

    /// A UAR page that lies inside the BAR, behind the initialization segment.
    pub(super) fn alloc_uar(&mut self) -> Result<UarPage, Error> {
        let mut out = [0; alloc_uar_out::SIZE];
        self.exec(&input::<{ alloc_uar_in::SIZE }>(Opcode::ALLOC_UAR, 0), &mut out)?;
        let page = UarPage::new(alloc_uar_out::uar.get32(&out));
        let start = page.get() as usize * uar::PAGE_SIZE;
        if start < init_seg::INIT_SEG_LEN || start + uar::PAGE_SIZE > self.platform.bar().len() {
            return Err(Error::BadAnswer { step: self.step, field: "uar", value: u64::from(page.get()) });
        }
        Ok(page)
    }

    pub(super) fn dealloc_uar(&mut self, page: UarPage) -> Result<(), Error> {
        let mut free = input::<{ dealloc_uar_in::SIZE }>(Opcode::DEALLOC_UAR, 0);
        dealloc_uar_in::uar.set(&mut free, page.get());
        self.exec(&free, &mut [0; dealloc_uar_out::SIZE])
    }

    fn create_event_queues(&mut self, page: UarPage) -> Result<(), Error> {
        let limit = self.caps.log_max_eq_sz;
        // What the device cannot do makes room for fewer objects.
        self.config.log_async_eq_size = self.config.log_async_eq_size.min(limit);
        self.config.log_eq_size = self.config.log_eq_size.min(limit);
        let (async_size, size) = (self.config.log_async_eq_size, self.config.log_eq_size);
        let mask = ASYNC_EVENTS.iter().fold(0, |mask, event| mask | event.mask_bit().1);
        self.async_eq = Some(self.create_eq(page, self.config.async_vector, mask, async_size)?);
        for index in 0..self.config.completion_eqs {
            let vector = self.config.completion_vector.saturating_add(u16::from(index));
            let eq = self.create_eq(page, vector, 0, size)?;
            if let Some(slot) = self.completion_eqs.get_mut(usize::from(index)) {
                *slot = Some(eq);
            }
        }
        self.arm_events();
        Ok(())
    }

    fn create_eq(&mut self, page: UarPage, vector: u16, mask: u64, log_size: u8) -> Result<Eq, Error> {
        if vector > 0xfff {
            return Err(Error::InvalidArgument("vector"));
        }
        let log_size = u32::from(log_size);
        let memory = self.take_memory(64 << log_size, BLOCK)?;
        let made = self.create_eq_over(memory, page, vector, mask, log_size);
        if let Err(error) = &made {
            self.free_unless(&super::not_created(error), memory);
        }
        made
    }

    fn create_eq_over(
        &mut self,
        memory: DmaMemory,
        page: UarPage,
        vector: u16,
        mask: u64,
        log_size: u32,
    ) -> Result<Eq, Error> {
        let offset = page.get() as usize * uar::PAGE_SIZE;
        let mut eq = Eq::new(memory, log_size, offset).ok_or(Error::OutOfBounds)?;
        let mut create = input::<{ create_eq_in::SIZE }>(Opcode::CREATE_EQ, 0);
        let context = create_eq_in::eq_context_entry.of_mut(&mut create);
        let (log_page, pages) = page_list(memory, memory.len());
        eqc::log_eq_size.set(context, log_size);
        eqc::uar_page.set(context, page.get());
        eqc::intr.set(context, vector);
        eqc::log_page_size.set(context, log_page);
        if let Some(word) = create_eq_in::event_bitmask.of_mut(&mut create).first_chunk_mut() {
            *word = mask.to_be_bytes();
        }
        let address = memory.device_address();
        let tail = Tail { count: pages, entry: &|index| address + ((index as u64) << (log_page + 12)) };
        let mut out = [0; create_eq_out::SIZE];
        self.exec_with(&create, tail, &mut out)?;
        eq.set_number(EqNumber::new(create_eq_out::eq_number.get(&out) as u8));
        Ok(eq)
    }
}

impl StepTimes {
    /// Books the time of step `ended`.
    fn enter<P: Platform>(&mut self, platform: &P, trace: &mut Trace<'_>, ended: Step, next: Step) {
        let now = platform.now();
        if let Some(slot) = self.times.get_mut(self.len) {
            *slot = StepTime { step: ended, took: now - self.began };
            self.len += 1;
        }
        self.began = now;
        trace.push(now, TraceKind::Step(next));
    }
}
