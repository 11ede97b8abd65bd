//! Completion queues (PRM, work requests and completions).

use super::compression::{MiniFormat, Session, Written};
use super::distance24;
use super::pages::PageList;
use crate::seams::{DmaFault, Io};
use mlx5_prm::contexts::cqc;
use mlx5_prm::datapath::CQE_INIT_OP_OWN;
use mlx5_prm::value::{CqState, CqStatus};

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    /// The ring.
    pub(crate) buffer: PageList,
    /// log2 of its entries.
    pub(crate) log_size: u32,
    /// Bytes of an entry, 64 or 128; in a 128-byte entry the CQE is the second half.
    pub(crate) cqe_bytes: u32,
    /// The UAR whose arm doorbell it obeys.
    pub(crate) uar_page: u32,
    /// The EQ of its events.
    pub(crate) eqn: u32,
    /// Doorbell record: consumer index, arm word.
    pub(crate) dbr_addr: u64,
    /// `cqc.oi`: overruns are not an error.
    pub(crate) overrun_ignore: bool,
    /// `cqc.cc`: one entry, always overwritten.
    pub(crate) collapsed: bool,
    /// CQEs written, 24 bits.
    pub(crate) producer: u32,
    /// The consumer index last read from the doorbell record or an arm doorbell.
    pub(crate) consumer: u32,
    /// One past the last solicited (or error) CQE, `None` while there was none.
    pub(crate) last_solicited: Option<u32>,
    /// Events sent; arming counts only with its low two bits.
    pub(crate) arm_sn: u32,
    /// `cqc.st`; `None` before the first arm.
    pub(crate) state: Option<CqState>,
    /// `cqc.status`.
    pub(crate) status: CqStatus,
    /// How events are held back.
    pub(crate) moderation: Moderation,
    /// Its entry in the list of events that are held back.
    pub(crate) listed: Option<u64>,
    /// `cqc.cqe_comp_en`: completions are written in short where they can be, in this format.
    pub(crate) compression: Option<MiniFormat>,
    /// Completions that are held back for that.
    pub(crate) session: Option<Box<Session>>,
    /// The context as given, for QUERY_CQ.
    pub(crate) context: Vec<u8>,
}

/// Events that are held back until there are enough completions, or long enough (`cqc.cq_max_count`, `cq_period`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions that an event waits for; 0 does not count them.
    pub(crate) max_count: u32,
    /// Longest wait in nanoseconds; 0 does not wait.
    pub(crate) period: u64,
    /// `cq_period_mode` 1: the wait starts anew with every completion, not at the last event.
    pub(crate) from_cqe: bool,
    /// `scqe_break_moderation_en`: a solicited completion does not wait.
    pub(crate) solicited_breaks: bool,
    /// Completions since the CQ was armed that no event told of.
    unreported: u32,
    /// When the last event was sent.
    last_event: u64,
    /// When the event that is held back is due.
    due: Option<u64>,
}

impl Moderation {
    /// Takes over what a context says.
    pub fn configure(&mut self, context: &[u8]) {
        self.max_count = cqc::cq_max_count.get32(context);
        // Microseconds.
        self.period = cqc::cq_period.get(context) * 1000;
        self.from_cqe = cqc::cq_period_mode.get32(context) == 1;
        self.solicited_breaks = cqc::scqe_break_moderation_en.is_set(context);
    }

    /// One more completion that an event is wanted for. Answers whether the event is due now.
    fn completion(&mut self, now: u64, notify: bool) -> bool {
        if (self.max_count <= 1 && self.period == 0) || (notify && self.solicited_breaks) {
            return true;
        }
        self.unreported += 1;
        if self.max_count != 0 && self.unreported >= self.max_count {
            return true;
        }
        if self.period != 0 {
            let due = if self.from_cqe { now } else { self.last_event }.saturating_add(self.period);
            if due <= now {
                return true;
            }
            self.due = Some(due);
        }
        false
    }
}

/// Why a CQE could not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqError {
    /// The ring is full.
    Overrun,
    /// The ring or the doorbell record is inaccessible.
    Dma(DmaFault),
    /// The CQ failed before.
    Failed,
    /// There is no such CQ.
    Missing,
}

impl Cq {
    /// Host memory that it takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let session = if self.compression.is_some() { size_of::<Session>() } else { 0 };
        (size_of::<Self>() + session + self.context.len()) as u64 + self.buffer.memory()
    }

    /// Entries of the ring.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        1 << self.log_size
    }

    /// Writes one CQE. `first_half` is what a 128-byte entry carries in front of it. The owner bit is filled in here.
    /// `notify` counts for a CQ that is armed for solicited completions only (solicited, or an error). Answers whether a
    /// completion event is due.
    ///
    /// # Errors
    /// [`CqError`]; the CQ takes nothing more after an error.
    pub fn push(
        &mut self,
        io: &mut Io<'_>,
        cqe: &[u8; 64],
        first_half: Option<&[u8; 64]>,
        notify: bool,
    ) -> Result<bool, CqError> {
        self.find_room(io, 1)?;
        let written = self.write(io, cqe, first_half);
        self.note_written(written)?;
        self.producer = (self.producer + 1) & 0x00ff_ffff;
        if notify {
            self.last_solicited = Some(self.producer);
        }
        let wanted = match self.state {
            Some(CqState::ARMED) => true,
            Some(CqState::SOLICITED_ARMED) => notify,
            _ => false,
        };
        Ok(wanted && self.moderation.completion(io.now, notify) && self.fire(io.now))
    }

    /// There is room for `count` further CQEs.
    #[inline(always)]
    fn find_room(&mut self, io: &mut Io<'_>, count: u32) -> Result<(), CqError> {
        if self.status != CqStatus::OK {
            return Err(CqError::Failed);
        }
        let full = |cq: &Self| distance24(cq.producer, cq.consumer) + count > cq.entries();
        if !self.overrun_ignore && !self.collapsed && full(self) {
            // Only now is the record's fetch worth its cost.
            self.fetch_consumer(io).map_err(|fault| {
                self.status = CqStatus::WRITE_FAILURE;
                CqError::Dma(fault)
            })?;
            if full(self) {
                self.status = CqStatus::OVERFLOW;
                return Err(CqError::Overrun);
            }
        }
        Ok(())
    }

    /// Writes `cqe` as the next entry, its owner bit filled in.
    #[inline(always)]
    fn write(&self, io: &mut Io<'_>, cqe: &[u8; 64], first_half: Option<&[u8; 64]>) -> Result<(), DmaFault> {
        let mut entry = *cqe;
        entry[0x3f] = (entry[0x3f] & !1) | ((self.producer >> self.log_size) & 1) as u8;
        let mut at = self.place(0);
        if self.cqe_bytes == 128 {
            if let Some(half) = first_half {
                self.buffer.write(io.memory, at, half)?;
            }
            at += 64;
        }
        self.buffer.publish(io.memory, at, &entry)
    }

    /// Where the entry after `ahead` others lies.
    #[inline(always)]
    fn place(&self, ahead: u32) -> u64 {
        let index = self.producer.wrapping_add(ahead) & (self.entries() - 1);
        let slot = if self.collapsed { 0 } else { u64::from(index) };
        slot * u64::from(self.cqe_bytes)
    }

    #[inline(always)]
    fn note_written(&mut self, written: Result<(), DmaFault>) -> Result<(), CqError> {
        written.map_err(|fault| {
            self.status = CqStatus::WRITE_FAILURE;
            CqError::Dma(fault)
        })
    }

    /// Holds `cqe` back, to be written in short with those that follow. Answers whether it does; else the CQE is to be written, after
    /// what was held back before.
    pub fn hold(&mut self, cqe: &[u8; 64]) -> bool {
        match (&mut self.session, self.compression) {
            (Some(session), _) => session.add(cqe),
            (None, Some(format)) => {
                self.session = Session::begin(cqe, format).map(Box::new);
                self.session.is_some()
            }
            (None, None) => false,
        }
    }

    /// Writes what was held back. Answers whether a completion event is due.
    ///
    /// # Errors
    /// [`CqError`], as [`push`](Self::push).
    pub fn write_held(&mut self, io: &mut Io<'_>) -> Result<bool, CqError> {
        let Some(session) = self.session.take() else { return Ok(false) };
        let Written { title, array, entries } = session.written();
        self.find_room(io, entries)?;
        // The title is what software looks for: it comes last.
        let written = array.map_or(Ok(()), |array| {
            let at = self.place(1) + u64::from(self.cqe_bytes - 64);
            self.buffer.write(io.memory, at, &array)
        });
        let written = written.and_then(|()| self.write(io, &title, None));
        self.note_written(written)?;
        self.producer = (self.producer + entries) & 0x00ff_ffff;
        let armed = self.state == Some(CqState::ARMED);
        let due =
            armed && (0..entries).fold(false, |due, _| self.moderation.completion(io.now, false) || due);
        Ok(due && self.fire(io.now))
    }

    /// Writes an invalid CQE where the next one would go, as a card does that has begun one.
    pub fn write_late(&mut self, io: &mut Io<'_>) {
        if self.find_room(io, 1).is_ok() && !self.collapsed {
            let mut entry = [0; 64];
            entry[0x3f] = CQE_INIT_OP_OWN;
            let at = self.place(0) + u64::from(self.cqe_bytes - 64);
            // The ring may be gone, which is what the habit is for.
            let _ = self.buffer.publish(io.memory, at, &entry);
        }
    }

    fn fetch_consumer(&mut self, io: &mut Io<'_>) -> Result<(), DmaFault> {
        let consumer = io.memory.load32(self.dbr_addr)? & 0x00ff_ffff;
        // A record that claims more than was produced would hide an overrun: keep the last sane value.
        if distance24(consumer, self.consumer) <= distance24(self.producer, self.consumer) {
            self.consumer = consumer;
        }
        Ok(())
    }

    /// The arm doorbell. `Ok(true)` when a completion event is due at once because there are CQEs beyond the given
    /// consumer index.
    ///
    /// # Errors
    /// Why the doorbell has no effect: a sequence number that belongs to an event already sent, or an impossible index.
    pub fn arm(
        &mut self,
        now: u64,
        sequence: u32,
        solicited_only: bool,
        consumer: u32,
    ) -> Result<bool, ArmError> {
        if sequence & 3 != self.arm_sn & 3 {
            return Err(ArmError::StaleSequence);
        }
        let outstanding = distance24(self.producer, consumer);
        if outstanding > self.entries() && !self.overrun_ignore && !self.collapsed {
            return Err(ArmError::Index);
        }
        self.state = Some(if solicited_only { CqState::SOLICITED_ARMED } else { CqState::ARMED });
        let due = if solicited_only {
            self.last_solicited.is_some_and(|last| {
                // Within what is outstanding: produced - last < produced - consumer.
                distance24(self.producer, last) < outstanding
            })
        } else {
            outstanding != 0
        };
        Ok(due && self.fire(now))
    }

    /// Compares an arm doorbell with word 1 of the doorbell record, which software writes first.
    ///
    /// # Errors
    /// [`ArmError::Overtaken`] and [`ArmError::Record`].
    pub fn check_arm_record(&self, io: &Io<'_>, command: u32) -> Result<(), ArmError> {
        let record = io.memory.load32(self.dbr_addr.wrapping_add(4)).map_err(ArmError::Dma)?;
        let ahead = distance24(record & 0x00ff_ffff, command & 0x00ff_ffff);
        match record ^ command {
            0 => Ok(()),
            differs if differs >> 28 == 0 && ahead <= self.entries() => Err(ArmError::Overtaken),
            _ => Err(ArmError::Record(record)),
        }
    }

    /// When the event that is held back is due.
    #[must_use]
    pub const fn event_due(&self) -> Option<u64> {
        self.moderation.due
    }

    /// Sends the event that is held back if its time has come. Answers whether it is to be sent.
    pub fn expire(&mut self, now: u64) -> bool {
        let due = self.moderation.due.is_some_and(|due| due <= now);
        due && self.fire(now)
    }

    fn fire(&mut self, now: u64) -> bool {
        self.state = Some(CqState::FIRED);
        self.arm_sn = self.arm_sn.wrapping_add(1);
        self.moderation = Moderation { unreported: 0, last_event: now, due: None, ..self.moderation };
        true
    }

    /// CQEs that software has not consumed, by its doorbell record.
    ///
    /// # Errors
    /// [`DmaFault`] when the record cannot be read.
    pub fn outstanding(&mut self, io: &mut Io<'_>) -> Result<u32, DmaFault> {
        self.fetch_consumer(io)?;
        Ok(distance24(self.producer, self.consumer))
    }
}

/// Why an arm doorbell was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmError {
    /// `arm_sn` is that of an event that was already sent. Normal when arming crosses the event.
    StaleSequence,
    /// The consumer index lies ahead of the producer, or further behind than the ring is long.
    Index,
    /// Word 1 of the doorbell record belongs to a later doorbell.
    Overtaken,
    /// Word 1 of the doorbell record is not that of the doorbell.
    Record(u32),
    /// The doorbell record cannot be read.
    Dma(DmaFault),
}
