//! EQs and CQs together: delivering a completion may take an event, and an event may stop the device.
//!
//! Kept apart from the other tables of [`Hca`](crate::Hca) so that the data path can hold a QP while it completes.

use super::cq::{ArmError, Cq, CqError};
use super::eq::{Eq, EqError};
use super::table::Table;
use crate::adversary::Adversary;
use crate::log::{Level, Log, Subject};
use crate::meter::{Meter, price};
use crate::seams::Io;
use mlx5_prm::event::{EventQueueType, EventType};
use mlx5_prm::status::{CqErrorSyndrome, HealthSyndrome};
use mlx5_prm::value::CqStatus;
use std::collections::BTreeSet;

/// First EQ number, as on a real ConnectX-4.
pub const FIRST_EQN: u32 = 0x10;
/// First CQ number.
pub const FIRST_CQN: u32 = 0x400;

/// What found no room since power-on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Overruns {
    /// Asynchronous events.
    pub(crate) async_eq: u32,
    /// Completion events.
    pub(crate) comp_eq: u32,
    /// Completions.
    pub(crate) cq: u32,
}

/// All EQs and CQs.
#[derive(Debug)]
pub struct Queues {
    /// Event queues.
    pub(crate) eqs: Table<Eq>,
    /// Completion queues.
    pub(crate) cqs: Table<Cq>,
    /// Set when an EQ failed: the device must stop with this syndrome.
    pub(crate) fatal: Option<HealthSyndrome>,
    /// CQs with an event that is held back, each once, by a time at which or before which it is due.
    moderated: BTreeSet<(u64, u32)>,
    /// CQs that failed; their QPs go to error at the next opportunity.
    pub(crate) failed_cqs: Vec<u32>,
    /// Counters of what went wrong.
    pub(crate) overruns: Overruns,
}

impl Queues {
    /// Empty tables.
    #[must_use]
    pub const fn new(max_eqs: u32, max_cqs: u32) -> Self {
        Self {
            eqs: Table::new(FIRST_EQN, max_eqs),
            cqs: Table::new(FIRST_CQN, max_cqs),
            fatal: None,
            moderated: BTreeSet::new(),
            failed_cqs: Vec::new(),
            overruns: Overruns { async_eq: 0, comp_eq: 0, cq: 0 },
        }
    }

    /// Delivers a CQE: writes it, sends the completion event if the CQ is armed for it. `first_half` goes in front of it
    /// in a CQ with 128-byte entries. `notify` marks solicited completions and errors.
    ///
    /// # Errors
    /// [`CqError`]; a failing CQ has then raised its CQ error event, and its QPs will be put to error.
    pub fn push_cqe(
        &mut self,
        io: &mut Io<'_>,
        log: &mut Log,
        cqn: u32,
        cqe: &[u8; 64],
        first_half: Option<&[u8; 64]>,
        notify: bool,
    ) -> Result<(), CqError> {
        let Some(cq) = self.cqs.get_mut(cqn) else {
            log.refuse(Subject::CompletionQueue { cqn }, "", "completion for a CQ that does not exist");
            return Err(CqError::Missing);
        };
        if cq.compression.is_some() {
            return self.push_in_short(io, log, cqn, cqe, first_half, notify);
        }
        let pushed = cq.push(io, cqe, first_half, notify);
        if pushed == Ok(false) && cq.event_due().is_none() {
            return Ok(());
        }
        self.follow(io, log, cqn, pushed)
    }

    /// The same for a CQ whose completions are written in short where they can be: after all that is due now.
    #[cold]
    fn push_in_short(
        &mut self,
        io: &mut Io<'_>,
        log: &mut Log,
        cqn: u32,
        cqe: &[u8; 64],
        first_half: Option<&[u8; 64]>,
        notify: bool,
    ) -> Result<(), CqError> {
        let Some(cq) = self.cqs.get_mut(cqn) else { return Err(CqError::Missing) };
        let short = first_half.is_none() && !notify;
        if short && cq.session.is_some() && cq.hold(cqe) {
            return Ok(());
        }
        self.write_held(io, log, cqn)?;
        let Some(cq) = self.cqs.get_mut(cqn) else { return Err(CqError::Missing) };
        if short && cq.status == CqStatus::OK && cq.hold(cqe) {
            if let Some(listed) = cq.listed.replace(io.now) {
                self.moderated.remove(&(listed, cqn));
            }
            self.moderated.insert((io.now, cqn));
            return Ok(());
        }
        let pushed = cq.push(io, cqe, first_half, notify);
        self.follow(io, log, cqn, pushed)
    }

    /// Writes what a CQ holds back to write it in short.
    ///
    /// # Errors
    /// As [`push_cqe`](Self::push_cqe).
    pub fn write_held(&mut self, io: &mut Io<'_>, log: &mut Log, cqn: u32) -> Result<(), CqError> {
        let Some(cq) = self.cqs.get_mut(cqn).filter(|cq| cq.session.is_some()) else { return Ok(()) };
        let written = cq.write_held(io);
        self.follow(io, log, cqn, written)
    }

    /// What comes of a completion: its event now or later, or a CQ that has failed.
    fn follow(
        &mut self,
        io: &mut Io<'_>,
        log: &mut Log,
        cqn: u32,
        pushed: Result<bool, CqError>,
    ) -> Result<(), CqError> {
        let Some(cq) = self.cqs.get_mut(cqn) else { return Err(CqError::Missing) };
        let eqn = cq.eqn;
        match pushed {
            Ok(false) => {
                // An entry that is too early is put right when its time comes.
                if let Some(due) = cq.event_due()
                    && cq.listed.is_none_or(|listed| due < listed)
                {
                    if let Some(listed) = cq.listed.replace(due) {
                        self.moderated.remove(&(listed, cqn));
                    }
                    self.moderated.insert((due, cqn));
                }
                Ok(())
            }
            Ok(true) => {
                self.completion_event(io, log, eqn, cqn);
                Ok(())
            }
            Err(CqError::Failed) => Err(CqError::Failed),
            Err(error) => {
                let (syndrome, text) = match error {
                    CqError::Dma(fault) => (CqErrorSyndrome::CQ_ACCESS_VIOLATION, fault.to_string()),
                    _ => {
                        self.overruns.cq = self.overruns.cq.wrapping_add(1);
                        (CqErrorSyndrome::CQ_OVERRUN, "overrun".to_owned())
                    }
                };
                log.refuse(Subject::CompletionQueue { cqn }, "cqc.status", text);
                self.failed_cqs.push(cqn);
                let mut data = [0; 28];
                data[..4].copy_from_slice(&cqn.to_be_bytes());
                data[0x0b] = syndrome.0;
                self.event(io, log, EventType::CQ_ERROR, 0, &data);
                Err(error)
            }
        }
    }

    /// When [`Self::expire`] has something to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        self.moderated.first().map(|(due, _)| *due)
    }

    /// Sends the completion events that were held back until now, as far as the meter goes.
    pub fn expire(&mut self, io: &mut Io<'_>, log: &mut Log, meter: &mut Meter) {
        while !meter.is_spent()
            && let Some(entry) = self.moderated.first().copied().filter(|(due, _)| *due <= io.now)
        {
            meter.charge(price::LOOK);
            self.moderated.remove(&entry);
            let (_, cqn) = entry;
            let Some(cq) = self.cqs.get_mut(cqn) else { continue };
            cq.listed = None;
            if cq.session.is_some() {
                // A failure is told by an event, and its QPs are looked after.
                let _ = self.write_held(io, log, cqn);
            }
            let Some(cq) = self.cqs.get_mut(cqn) else { continue };
            let eqn = cq.eqn;
            if cq.expire(io.now) {
                self.completion_event(io, log, eqn, cqn);
            } else if let Some(due) = cq.event_due() {
                // Completions since have put it off.
                cq.listed = Some(due);
                self.moderated.insert((due, cqn));
            }
        }
    }

    /// Sends the completion event of `cqn` to EQ `eqn`.
    pub fn completion_event(&mut self, io: &mut Io<'_>, log: &mut Log, eqn: u32, cqn: u32) {
        let mut data = [0; 28];
        data[0x18..].copy_from_slice(&cqn.to_be_bytes());
        self.push_event(io, log, eqn, EventType::COMP, 0, &data);
    }

    /// Sends an asynchronous event to the EQ that `kind` is mapped to. Answers whether there is one.
    pub fn event(
        &mut self,
        io: &mut Io<'_>,
        log: &mut Log,
        kind: EventType,
        sub_type: u8,
        data: &[u8; 28],
    ) -> bool {
        let Some(eqn) = self.eqs.iter().find(|(_, eq)| eq.takes(kind)).map(|(eqn, _)| eqn) else {
            return false;
        };
        self.push_event(io, log, eqn, kind, sub_type, data);
        true
    }

    /// Sends an event in QP form: `queue` says which queue of the QP, or SRQ form with the SRQ's number.
    pub fn qp_event(
        &mut self,
        io: &mut Io<'_>,
        log: &mut Log,
        kind: EventType,
        queue: EventQueueType,
        number: u32,
    ) -> bool {
        let mut data = [0; 28];
        data[0x14] = queue.0;
        data[0x18..].copy_from_slice(&(number & 0x00ff_ffff).to_be_bytes());
        self.event(io, log, kind, 0, &data)
    }

    fn push_event(
        &mut self,
        io: &mut Io<'_>,
        log: &mut Log,
        eqn: u32,
        kind: EventType,
        sub_type: u8,
        data: &[u8; 28],
    ) {
        let Some(eq) = self.eqs.get_mut(eqn) else { return };
        if eq.is_full() {
            let Overruns { comp_eq, async_eq, .. } = &mut self.overruns;
            let count = if kind == EventType::COMP { comp_eq } else { async_eq };
            *count = count.wrapping_add(1);
        }
        match eq.push(io, kind, sub_type, data) {
            Ok(()) => {}
            Err(EqError::Overrun) => {
                log.refuse(
                    Subject::EventQueue { eqn },
                    "eqc.consumer_counter",
                    format!("overrun by {kind}: {} entries not consumed", eq.entries()),
                );
                self.fatal.get_or_insert(HealthSyndrome::ASYNCHRONOUS_EQ_BUF_OVERRUN);
            }
            Err(EqError::Dma(fault)) => {
                log.refuse(Subject::EventQueue { eqn }, "create_eq_in.pas", fault.to_string());
                self.fatal.get_or_insert(HealthSyndrome::EQ_IN_ERR);
            }
        }
    }

    /// The EQ doorbell of UAR page `page` was rung.
    pub(crate) fn ring_eq(&mut self, io: &mut Io<'_>, log: &mut Log, page: u32, value: u32, arm: bool) {
        let eqn = value >> 24;
        let subject = Subject::EventQueue { eqn };
        let Some(eq) = self.eqs.get_mut(eqn) else {
            log.refuse(subject, "eq_doorbell.eqn", "no such EQ");
            return;
        };
        if eq.uar_page != page {
            let text = format!("rung through page {page:#x}, created with {:#x}", eq.uar_page);
            log.refuse(subject, "eqc.uar_page", text);
            return;
        }
        let consumer = value & 0x00ff_ffff;
        if eq.doorbell(io, consumer, arm).is_err() {
            let text = format!("{consumer:#x} is outside {:#x} to {:#x}", eq.consumer, eq.producer);
            log.refuse(subject, "eqc.consumer_counter", text);
        }
    }

    /// The CQ doorbell of UAR page `page` was rung.
    pub(crate) fn ring_cq(
        &mut self,
        io: &mut Io<'_>,
        log: &mut Log,
        habits: &Adversary,
        page: u32,
        value: u64,
    ) {
        let cqn = value as u32 & 0x00ff_ffff;
        let command = (value >> 32) as u32;
        let subject = Subject::CompletionQueue { cqn };
        let Some(cq) = self.cqs.get_mut(cqn) else {
            log.refuse(subject, "cq_doorbell.cqn", "no such CQ");
            return;
        };
        if cq.uar_page != page {
            let text = format!("rung through page {page:#x}, created with {:#x}", cq.uar_page);
            log.refuse(subject, "cqc.uar_page", text);
            return;
        }
        let solicited_only = match command >> 24 & 0xf {
            0 => false,
            1 => true,
            other => {
                log.refuse(subject, "cq_doorbell.cmd", format!("{other}"));
                return;
            }
        };
        let consumer = command & 0x00ff_ffff;
        let sequence = command >> 28;
        let (expected, eqn) = (cq.arm_sn & 3, cq.eqn);
        let checked = match habits.arm_record && sequence & 3 == expected {
            true => cq.check_arm_record(io, command),
            false => Ok(()),
        };
        match checked.and_then(|()| cq.arm(io.now, sequence, solicited_only, consumer)) {
            Ok(true) => self.completion_event(io, log, eqn, cqn),
            Ok(false) => {}
            Err(ArmError::StaleSequence) => {
                let text = format!("{sequence}, the next event is number {expected}: ignored");
                log.add(Level::Info, subject, "cq_doorbell.arm_sn", text);
            }
            Err(ArmError::Index) => {
                let text = format!("{consumer:#x} is no possible consumer index");
                log.refuse(subject, "cq_doorbell.ci", text);
            }
            Err(ArmError::Overtaken) => {
                log.add(Level::Info, subject, "", "the doorbell record belongs to a later doorbell");
            }
            Err(ArmError::Record(record)) => {
                let text = format!("{record:#x}, the doorbell has {command:#x}");
                log.refuse(subject, "cq_doorbell_record.arm", text);
            }
            Err(ArmError::Dma(fault)) => log.refuse(subject, "cqc.dbr_addr", fault.to_string()),
        }
    }

    /// Removes everything.
    pub fn clear(&mut self) {
        self.eqs.clear();
        self.cqs.clear();
        self.fatal = None;
        self.moderated.clear();
        self.failed_cqs.clear();
    }
}
