//! Doorbell records taken and given back.

use super::record_pages::{FIRST, PAGE_RUNS, RECORD, RecordPages};
use super::{Memory, Usable};
use crate::buddy::BLOCK;
use crate::dma::DmaMemory;
use crate::error::Error;

/// The runs, each taken when those before it are full, and given back when it is empty.
#[derive(Debug, Default)]
pub(super) struct Records {
    runs: [Option<RecordPages>; PAGE_RUNS],
}

impl Memory<'_> {
    /// Takes a ring of `bytes` bytes and a doorbell record for it.
    pub(in crate::hca) fn take_ring(
        &mut self,
        usable: Usable,
        bytes: usize,
    ) -> Result<[DmaMemory; 2], Error> {
        let ring = self.take(usable, bytes, BLOCK)?;
        match self.take_record(usable) {
            Ok(record) => Ok([ring, record]),
            Err(error) => {
                self.release_unless(&Ok(()), ring);
                Err(error)
            }
        }
    }

    /// Releases a ring and its record, or quarantines them if their queue may still exist.
    pub(in crate::hca) fn release_ring_unless(
        &mut self,
        destroyed: &Result<(), Error>,
        [ring, record]: [DmaMemory; 2],
    ) {
        self.release_unless(destroyed, ring);
        self.release_record_unless(destroyed, record);
    }

    /// Takes a doorbell record.
    fn take_record(&mut self, usable: Usable) -> Result<DmaMemory, Error> {
        for index in 0..PAGE_RUNS {
            if self.records.runs.get(index).is_some_and(Option::is_none) {
                let memory = self.take(usable, BLOCK << index, BLOCK)?;
                let marks = match self.take_slots(RecordPages::slots_for(FIRST << index)) {
                    Ok(marks) => marks,
                    Err(error) => {
                        self.release(memory)?;
                        return Err(error);
                    }
                };
                if let Some(place) = self.records.runs.get_mut(index) {
                    *place = Some(RecordPages::new(memory, marks));
                }
            }
            let run = self.records.runs.get_mut(index).and_then(Option::as_mut);
            if let Some(record) = run.and_then(RecordPages::take) {
                return Ok(record);
            }
        }
        Err(Error::OutOfMemory { bytes: RECORD })
    }

    /// Gives a doorbell record back.
    fn give_record(&mut self, record: DmaMemory) -> Result<(), Error> {
        if self.records.runs.iter_mut().flatten().any(|run| run.release(record)) {
            return self.give_empty_runs();
        }
        Err(Error::NotAllocated)
    }

    /// Records of queues that could not be destroyed are free: the device has forgotten them.
    pub(super) fn release_quarantined_records(&mut self) -> Result<(), Error> {
        self.records.runs.iter_mut().flatten().for_each(RecordPages::release_quarantined);
        self.give_empty_runs()
    }

    fn give_empty_runs(&mut self) -> Result<(), Error> {
        for index in 0..PAGE_RUNS {
            let place = self.records.runs.get_mut(index);
            let run = place.and_then(|place| place.take_if(|run| run.is_empty()));
            if let Some((memory, marks)) = run.map(RecordPages::into_parts) {
                self.host.free(marks);
                self.release(memory)?;
            }
        }
        Ok(())
    }

    /// Gives a doorbell record back, or keeps it taken if destroying its queue did not succeed.
    fn release_record_unless(&mut self, destroyed: &Result<(), Error>, record: DmaMemory) {
        if destroyed.is_ok() && self.give_record(record).is_ok() {
            return;
        }
        self.count_quarantined(record);
        self.records.runs.iter_mut().flatten().any(|run| run.quarantine(record));
    }
}
