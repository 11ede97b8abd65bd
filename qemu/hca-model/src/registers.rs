//! What register writes do: command queue address, command doorbell, UAR pages; and what register reads show.

use crate::bar::{BAR0_SIZE, BarWrite, INIT_SEG_SIZE};
use crate::hca::Hca;
use crate::log::{Level, Subject};
use crate::object::cq::ArmError;
use crate::object::uar::{BLUEFLAME, BUFFER, BlueFlame, CQ_DOORBELL, EQ_ARM_DOORBELL, EQ_DOORBELL, UAR_PAGE};
use crate::seams::Io;
use crate::transport;
use mlx5_prm::init_seg as reg;
use mlx5_prm::value::NicInterface;

/// Nanoseconds of a step of the health counter.
const SLOW: u64 = 10_000_000;
/// Time from reset until `initializing` clears.
const BOOT_TIME: u64 = 2_000_000;
/// Time that a software reset takes.
const SOFTWARE_RESET_TIME: u64 = 10_000_000;
/// Longest time between two movements of the health counter.
const HEALTH_PERIOD: u64 = 100_000_000;
/// Firmware version: major, minor, sub-minor of a ConnectX-5.
const FIRMWARE: (u32, u32, u32) = (16, 35, 2000);
/// `hw_id` of a ConnectX-5.
const HARDWARE_ID: u32 = 0x0000_020d;

/// State behind the registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Front {
    /// When `initializing` clears; `None` before the first poll after a reset, or when it has cleared.
    booting: Option<Option<u64>>,
    /// When a software reset is done.
    resetting: Option<u64>,
    cmdq_high: u32,
    cmdq_low: u32,
    doorbell: u32,
    /// Last `now`.
    now: u64,
    /// The slow counters as they were last shown, in units of 10 ms.
    shown: Option<u64>,
}

/// Register values after power-on.
pub(crate) fn power_on(hca: &mut Hca) {
    hca.front.booting = Some(None);
    let bar = &hca.bar;
    bar.zero_registers();
    let (major, minor, sub_minor) = FIRMWARE;
    bar.set32(reg::FW_REV_OFFSET, minor << 16 | major);
    bar.set32(reg::CMD_INTERFACE_REV_OFFSET, reg::CMD_INTERFACE_REV << 16 | sub_minor);
    bar.set32(reg::CMDQ_ADDR_L_SZ_OFFSET, sizes(hca));
    // Full driver, disabled, software reset.
    // A driver may ask for a reset after a fatal error.
    bar.set32(reg::INITIALIZING_OFFSET, reg::INITIALIZING | reg::FW_RESET_SUPPORTED | 0b011 << 24);
    bar.set32(reg::HEALTH_FW_VERSION_OFFSET, major << 24 | minor << 16 | sub_minor);
    bar.set32(reg::HEALTH_BUFFER_OFFSET + 0x34, HARDWARE_ID);
    bar.set_dead(false);
}

/// The read-only low byte of 0x014.
fn sizes(hca: &Hca) -> u32 {
    u32::from(hca.profile.log_cmdq_size.min(5)) << 4 | crate::cmd::LOG_STRIDE
}

/// Shows the health syndrome.
pub(crate) fn show_health(hca: &Hca) {
    let syndrome = u32::from(hca.health.syndrome.0);
    // Firmware asks for a reset; severity 0 is an emergency.
    let rfr = if syndrome == 0 { 0 } else { 1 << 31 | 1 << 27 };
    hca.bar.set32(reg::HEALTH_RFR_OFFSET, rfr);
    hca.bar.set32(reg::HEALTH_SYND_OFFSET, syndrome << 16);
    let counter = hca.bar.get32(reg::HEALTH_COUNTER_OFFSET) & 0x00ff_ffff;
    hca.bar.set32(reg::HEALTH_COUNTER_OFFSET, syndrome << 24 | counter);
}

/// What moves with time.
pub(crate) fn tick(hca: &mut Hca, now: u64) {
    hca.front.now = now;
    let bar = &hca.bar;
    let clock = Hca::device_clock(now);
    bar.set32(reg::INTERNAL_TIMER_H_OFFSET, (clock >> 32) as u32);
    bar.set32(reg::INTERNAL_TIMER_L_OFFSET, clock as u32);
    let slow = now / SLOW;
    if hca.front.shown != Some(slow) {
        hca.front.shown = Some(slow);
        bar.set32(reg::HEALTH_BUFFER_OFFSET + 0x2c, (slow / 100) as u32);
        if !hca.profile.misbehaviour.wedge_health {
            let counter = slow as u32 & 0x00ff_ffff;
            bar.set32(reg::HEALTH_COUNTER_OFFSET, u32::from(hca.health.syndrome.0) << 24 | counter);
        }
    }
    if hca.front.booting.is_none() && hca.front.resetting.is_none() {
        return;
    }
    match hca.front.booting {
        Some(None) => hca.front.booting = Some(Some(now.saturating_add(BOOT_TIME))),
        Some(Some(until)) if now >= until && !hca.profile.misbehaviour.never_initialized => {
            hca.front.booting = None;
            let value = bar.get32(reg::INITIALIZING_OFFSET);
            bar.set32(reg::INITIALIZING_OFFSET, value & !reg::INITIALIZING);
        }
        _ => {}
    }
    if hca.front.resetting.is_some_and(|until| now >= until) {
        hca.front.resetting = None;
        show_nic_interface(hca, NicInterface::DISABLED);
    }
}

/// When [`tick`] has something to show at the latest.
pub(crate) fn next_deadline(hca: &Hca) -> u64 {
    let mut deadline = hca.front.now.saturating_add(HEALTH_PERIOD);
    match hca.front.booting {
        Some(None) => deadline = hca.front.now,
        Some(Some(until)) if !hca.profile.misbehaviour.never_initialized => deadline = deadline.min(until),
        _ => {}
    }
    if let Some(until) = hca.front.resetting {
        deadline = deadline.min(until);
    }
    deadline
}

fn show_nic_interface(hca: &mut Hca, state: NicInterface) {
    let low = hca.bar.get32(reg::CMDQ_ADDR_L_SZ_OFFSET) & !reg::NIC_INTERFACE_MASK;
    hca.bar.set32(reg::CMDQ_ADDR_L_SZ_OFFSET, low | u32::from(state.0) << reg::NIC_INTERFACE_SHIFT);
}

/// Carries out one register write.
pub(crate) fn write(hca: &mut Hca, io: &mut Io<'_>, write: &BarWrite) {
    if write.len == 8 && write.offset >= INIT_SEG_SIZE && write.offset.is_multiple_of(8) {
        write_uar(hca, io, write.offset, &write.data);
        return;
    }
    // Piece by piece of at most one dword or one 64-bit register, in ascending order.
    let mut offset = write.offset;
    let mut bytes = write.bytes();
    while !bytes.is_empty() {
        let unit = if offset < INIT_SEG_SIZE { 4 } else { 8 };
        let len = bytes.len().min(unit - offset % unit);
        let (piece, rest) = bytes.split_at(len);
        if offset < INIT_SEG_SIZE {
            write_register(hca, offset, piece);
        } else if offset < BAR0_SIZE {
            write_uar(hca, io, offset, piece);
        }
        offset += len;
        bytes = rest;
    }
}

fn merge(value: u32, offset: usize, bytes: &[u8]) -> u32 {
    let mut whole = value.to_be_bytes();
    for (to, from) in whole.iter_mut().skip(offset % 4).zip(bytes) {
        *to = *from;
    }
    u32::from_be_bytes(whole)
}

fn write_register(hca: &mut Hca, offset: usize, bytes: &[u8]) {
    let last = (offset + bytes.len()).is_multiple_of(4);
    match offset & !3 {
        reg::CMDQ_ADDR_H_OFFSET => hca.front.cmdq_high = merge(hca.front.cmdq_high, offset, bytes),
        reg::CMDQ_ADDR_L_SZ_OFFSET => {
            hca.front.cmdq_low = merge(hca.front.cmdq_low, offset, bytes);
            if last {
                command_queue_address(hca);
            }
        }
        reg::CMD_DBELL_OFFSET => {
            hca.front.doorbell = merge(hca.front.doorbell, offset, bytes);
            if last {
                let vector = std::mem::take(&mut hca.front.doorbell);
                if hca.health.is_fatal() {
                    return;
                }
                if hca.cmd.started() {
                    hca.cmd.ring(vector);
                } else {
                    let text = "rung without a command queue, or with the interface disabled";
                    hca.log.refuse(Subject::Register { offset }, "initial_seg.command_doorbell_vector", text);
                }
            }
        }
        reg::CLR_INTX_OFFSET => {}
        _ => hca.log.warn(Subject::Register { offset }, "", "written, but read-only"),
    }
}

/// The low dword of the command queue's address was written: the driver takes the device over, or lets it go.
fn command_queue_address(hca: &mut Hca) {
    let low = hca.front.cmdq_low;
    let subject = Subject::Register { offset: reg::CMDQ_ADDR_L_SZ_OFFSET };
    let state = NicInterface(((low & reg::NIC_INTERFACE_MASK) >> reg::NIC_INTERFACE_SHIFT) as u8);
    match state {
        NicInterface::FULL_DRIVER => {
            if hca.front.booting.is_some() {
                let text = "written while `initializing` is set";
                hca.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", text);
                return;
            }
            if hca.health.is_fatal() || hca.front.resetting.is_some() {
                return;
            }
            let base = u64::from(hca.front.cmdq_high) << 32 | u64::from(low & !0xfff);
            if base == 0 {
                hca.log.refuse(subject, "initial_seg.cmdq_phy_addr_31_12", "address 0");
                return;
            }
            if hca.cmd.outstanding() != 0 {
                let text = format!("replaced while {} commands are outstanding", hca.cmd.outstanding());
                hca.log.warn(subject, "initial_seg.cmdq_phy_addr_31_12", text);
            }
            hca.budget.release(hca.cmd.memory());
            hca.cmd.start(base);
            let value = low & !0xfff | sizes(hca);
            hca.bar.set32(reg::CMDQ_ADDR_L_SZ_OFFSET, value);
        }
        NicInterface::DISABLED => {
            hca.log.info(subject, "interface disabled");
            hca.stop();
            show_nic_interface(hca, NicInterface::DISABLED);
        }
        NicInterface::SW_RESET => {
            hca.log.info(subject, "software reset");
            hca.stop();
            hca.health = crate::health::Health::default();
            show_health(hca);
            hca.front.resetting = Some(hca.front.now.saturating_add(SOFTWARE_RESET_TIME));
            show_nic_interface(hca, NicInterface::SW_RESET);
        }
        other => hca.log.refuse(subject, "initial_seg.nic_interface", format!("{other}")),
    }
}

/// A write of at most 8 bytes, within one 64-bit unit of a UAR page.
fn write_uar(hca: &mut Hca, io: &mut Io<'_>, offset: usize, bytes: &[u8]) {
    let subject = Subject::Register { offset };
    // A driver that has disabled the interface may still have an interrupt handler on its way out.
    if hca.health.is_fatal() || !hca.cmd.started() {
        return;
    }
    let page = (offset / UAR_PAGE) as u32;
    let inside = offset % UAR_PAGE;
    let Some(uar) = hca.uars.get_mut(page) else {
        hca.log.refuse(subject, "alloc_uar_out.uar", format!("UAR page {page:#x} is not allocated"));
        return;
    };
    let unit = inside & !7;
    if unit >= BLUEFLAME && !unit.is_multiple_of(BUFFER) {
        compare_blueflame(hca, io, page, inside, bytes);
        return;
    }
    // The EQ doorbells are dwords: they act when their last byte arrives, wherever the rest of the unit is.
    let end = inside % 8 + bytes.len();
    let acts_at = if unit == EQ_ARM_DOORBELL || unit == EQ_DOORBELL { 4 } else { 8 };
    let mut value = if uar.halves.is_empty() { None } else { uar.halves.remove(&unit) }.unwrap_or([0; 8]);
    for (to, from) in value.iter_mut().skip(inside % 8).zip(bytes) {
        *to = *from;
    }
    if end < acts_at {
        uar.halves.insert(unit, value);
        return;
    }
    let value = u64::from_be_bytes(value);
    match unit {
        EQ_ARM_DOORBELL | EQ_DOORBELL => {
            if inside % 8 < 4 {
                eq_doorbell(hca, io, page, (value >> 32) as u32, unit == EQ_ARM_DOORBELL);
            }
        }
        CQ_DOORBELL => cq_doorbell(hca, io, page, value),
        _ if unit >= BLUEFLAME => send_doorbell(hca, io, page, unit, value),
        _ => hca.log.refuse(subject, "", "no register here"),
    }
}

fn eq_doorbell(hca: &mut Hca, io: &mut Io<'_>, page: u32, value: u32, arm: bool) {
    let eqn = value >> 24;
    let subject = Subject::EventQueue { eqn };
    let Some(eq) = hca.queues.eqs.get_mut(eqn) else {
        hca.log.refuse(subject, "eq_doorbell.eqn", "no such EQ");
        return;
    };
    if eq.uar_page != page {
        let text = format!("rung through page {page:#x}, created with {:#x}", eq.uar_page);
        hca.log.refuse(subject, "eqc.uar_page", text);
        return;
    }
    let consumer = value & 0x00ff_ffff;
    if eq.doorbell(io, consumer, arm).is_err() {
        let text = format!("{consumer:#x} is outside {:#x} to {:#x}", eq.consumer, eq.producer);
        hca.log.refuse(subject, "eqc.consumer_counter", text);
    }
}

fn cq_doorbell(hca: &mut Hca, io: &mut Io<'_>, page: u32, value: u64) {
    let cqn = value as u32 & 0x00ff_ffff;
    let command = (value >> 32) as u32;
    let subject = Subject::CompletionQueue { cqn };
    let Some(cq) = hca.queues.cqs.get_mut(cqn) else {
        hca.log.refuse(subject, "cq_doorbell.cqn", "no such CQ");
        return;
    };
    if cq.uar_page != page {
        let text = format!("rung through page {page:#x}, created with {:#x}", cq.uar_page);
        hca.log.refuse(subject, "cqc.uar_page", text);
        return;
    }
    let solicited_only = match command >> 24 & 0xf {
        0 => false,
        1 => true,
        other => {
            hca.log.refuse(subject, "cq_doorbell.cmd", format!("{other}"));
            return;
        }
    };
    let consumer = command & 0x00ff_ffff;
    let sequence = command >> 28;
    let (expected, eqn) = (cq.arm_sn & 3, cq.eqn);
    match cq.arm(io.now, sequence, solicited_only, consumer) {
        Ok(true) => hca.queues.completion_event(io, &mut hca.log, eqn, cqn),
        Ok(false) => {}
        Err(ArmError::StaleSequence) => {
            let text = format!("{sequence}, the next event is number {expected}: ignored");
            hca.log.add(Level::Info, subject, "cq_doorbell.arm_sn", text);
        }
        Err(ArmError::Index) => {
            let text = format!("{consumer:#x} is no possible consumer index");
            hca.log.refuse(subject, "cq_doorbell.ci", text);
        }
    }
}

/// The first 8 bytes of a work queue entry were written to a BlueFlame buffer.
fn send_doorbell(hca: &mut Hca, io: &mut Io<'_>, page: u32, unit: usize, wqe_head: u64) {
    let qpn = (wqe_head as u32) >> 8;
    let subject = Subject::WorkQueue { qpn };
    let Some(qp) = hca.qps.table.get(qpn) else {
        hca.log.refuse(subject, "wqe_ctrl_seg.qpn_ds", "doorbell of a QP that does not exist");
        return;
    };
    if qp.uar_page != page {
        let text = format!("rung through page {page:#x}, created with {:#x}", qp.uar_page);
        hca.log.refuse(subject, "qpc.uar_page", text);
        return;
    }
    if qp.sq.is_none() {
        hca.log.refuse(subject, "qpc.no_sq", "doorbell of a QP without a send queue");
        return;
    }
    let wqe_index = (wqe_head >> 40) as u16;
    hca.transport.counters.doorbells += 1;
    if let Some(uar) = hca.uars.get_mut(page) {
        uar.ring(unit, BlueFlame { qpn, wqe_index });
    }
    transport::doorbell(hca, io, qpn, wqe_head);
}

/// Further bytes of a BlueFlame post: the ring in memory must hold the same.
fn compare_blueflame(hca: &mut Hca, io: &mut Io<'_>, page: u32, inside: usize, bytes: &[u8]) {
    let buffer = inside - inside % BUFFER;
    let rung = hca.uars.get(page).and_then(|uar| uar.rung(buffer));
    let Some(BlueFlame { qpn, wqe_index }) = rung else {
        let subject = Subject::Register { offset: page as usize * UAR_PAGE + inside };
        hca.log.refuse(subject, "", "BlueFlame data without the start of an entry");
        return;
    };
    if inside % BUFFER < 16 {
        hca.transport.counters.blueflame += 1;
    }
    let Some(qp) = hca.qps.table.get(qpn) else { return };
    let Some(sq) = qp.sq else { return };
    let ring = 64u64 << sq.log_size;
    let at = (u64::from(wqe_index) * 64 + (inside % BUFFER) as u64) % ring;
    let mut held = [0; 8];
    let Some(held) = held.get_mut(..bytes.len()) else { return };
    let subject = Subject::WorkQueue { qpn };
    if let Err(fault) = qp.buffer.read(io.memory, sq.offset + at, held) {
        hca.log.refuse(subject, "create_qp_in.pas", fault.to_string());
    } else if held != bytes {
        // Linux finds out by such a difference whether write combining works, so it is no mistake in itself.
        let new = hca.uars.get_mut(page).is_some_and(|uar| uar.differs(qpn));
        if new {
            let text = format!("BlueFlame data differs from the ring at byte {at:#x}; the ring counts");
            hca.log.info(subject, text);
        }
    }
}
