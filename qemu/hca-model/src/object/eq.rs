//! Event queues (PRM, work requests and completions).

use super::distance24;
use super::pages::PageList;
use crate::seams::{DmaFault, Io};
use mlx5_prm::event::EventType;
use mlx5_prm::value::{EqState, EqStatus};

/// An event queue.
#[derive(Clone, Debug)]
pub struct Eq {
    /// The ring.
    pub(crate) buffer: PageList,
    /// log2 of its entries.
    pub(crate) log_size: u32,
    /// The UAR whose doorbells it obeys.
    pub(crate) uar_page: u32,
    /// MSI-X vector.
    pub(crate) intr: u16,
    /// Event types mapped here; all zero makes it a completion EQ.
    pub(crate) event_bitmask: [u64; 4],
    /// `eqc.oi`: overruns are not an error.
    pub(crate) overrun_ignore: bool,
    /// Entries written, 24 bits.
    pub(crate) producer: u32,
    /// What software said it consumed, 24 bits.
    pub(crate) consumer: u32,
    /// `eqc.st`; `None` before the first arm.
    pub(crate) state: Option<EqState>,
    /// `eqc.status`.
    pub(crate) status: EqStatus,
    /// The context as given, for QUERY_EQ.
    pub(crate) context: Vec<u8>,
}

/// Why an event could not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EqError {
    /// Software did not consume in time: the device stops.
    Overrun,
    /// The ring cannot be written.
    Dma(DmaFault),
}

impl Eq {
    /// Host memory that it takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (size_of::<Self>() + self.context.len()) as u64 + self.buffer.memory()
    }

    /// Whether events of `kind` are mapped here.
    #[must_use]
    pub fn takes(&self, kind: EventType) -> bool {
        let (word, bit) = kind.mask_bit();
        self.event_bitmask.get(word).is_some_and(|mask| mask & bit != 0)
    }

    /// Entries of the ring.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        1 << self.log_size
    }

    /// Whether the next event overwrites one that software has not consumed.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        distance24(self.producer, self.consumer) >= self.entries()
    }

    /// Writes one event and raises the interrupt if the queue is armed. `data` goes to bytes 0x20 to 0x3b.
    ///
    /// # Errors
    /// [`EqError`] on overrun or when the ring cannot be written; nothing is queued then.
    pub fn push(
        &mut self,
        io: &mut Io<'_>,
        kind: EventType,
        sub_type: u8,
        data: &[u8; 28],
    ) -> Result<(), EqError> {
        if self.is_full() && !self.overrun_ignore {
            return Err(EqError::Overrun);
        }
        let mut entry = [0u8; 64];
        entry[1] = kind.0;
        entry[3] = sub_type;
        entry[0x20..0x3c].copy_from_slice(data);
        entry[0x3f] = ((self.producer >> self.log_size) & 1) as u8;
        let slot = u64::from(self.producer & (self.entries() - 1));
        if let Err(fault) = self.buffer.publish(io.memory, slot * 64, &entry) {
            self.status = EqStatus::WRITE_FAILURE;
            return Err(EqError::Dma(fault));
        }
        self.producer = (self.producer + 1) & 0x00ff_ffff;
        if self.state == Some(EqState::ARMED) {
            self.fire(io);
        }
        Ok(())
    }

    /// Writes an entry of the driver's where the next event would go, as a card does that has begun one.
    pub fn write_late(&self, io: &Io<'_>) {
        if !self.is_full() {
            let mut entry = [0; 64];
            entry[0x3f] = !((self.producer >> self.log_size) as u8) & 1;
            let slot = u64::from(self.producer & (self.entries() - 1));
            // The ring may be gone, which is what the habit is for.
            let _ = self.buffer.publish(io.memory, slot * 64, &entry);
        }
    }

    /// The EQ doorbell: software consumed up to `consumer`; `arm` asks for an interrupt at the next event, which comes at
    /// once when there are events beyond `consumer`.
    ///
    /// # Errors
    /// The distance by which `consumer` is ahead of what was produced, or behind what was consumed before; the doorbell
    /// then has no effect.
    pub fn doorbell(&mut self, io: &mut Io<'_>, consumer: u32, arm: bool) -> Result<(), u32> {
        let advance = distance24(consumer, self.consumer);
        if advance > distance24(self.producer, self.consumer) {
            return Err(advance);
        }
        self.consumer = consumer & 0x00ff_ffff;
        if arm {
            self.state = Some(EqState::ARMED);
            if self.producer != self.consumer {
                self.fire(io);
            }
        }
        Ok(())
    }

    fn fire(&mut self, io: &mut Io<'_>) {
        self.state = Some(EqState::FIRED);
        io.interrupts.raise(self.intr);
    }
}
