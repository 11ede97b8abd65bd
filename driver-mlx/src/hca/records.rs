//! Doorbell records taken and given back.

use super::Hca;
use super::record_pages::{BITS, FIRST, PAGE_RUNS, RECORD, RecordPages};
use crate::buddy::BLOCK;
use crate::dma::DmaMemory;
use crate::error::Error;
use crate::platform::Platform;

impl<P: Platform> Hca<'_, P> {
    /// Takes a doorbell record.
    pub(super) fn take_record(&mut self) -> Result<DmaMemory, Error> {
        for index in 0..PAGE_RUNS {
            if self.records.runs.get(index).is_some_and(Option::is_none) {
                let memory = self.take_memory(BLOCK << index, BLOCK)?;
                let Some(taken) = self.host.alloc((FIRST << index).div_ceil(BITS)) else {
                    self.release(memory)?;
                    return Err(Error::OutOfHostMemory { bytes: FIRST << index >> 3 });
                };
                if let Some(place) = self.records.runs.get_mut(index) {
                    *place = Some(RecordPages { memory, taken, count: 0 });
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
    pub(super) fn give_record(&mut self, record: DmaMemory) -> Result<(), Error> {
        for place in &mut self.records.runs {
            let Some(run) = place.as_mut().filter(|run| run.memory.contains(&record)) else { continue };
            run.flip((record.va() - run.memory.va()) / RECORD);
            run.count -= 1;
            if run.count == 0
                && let Some(RecordPages { memory, taken, .. }) = place.take()
            {
                self.host.free(taken);
                self.release(memory)?;
            }
            return Ok(());
        }
        Err(Error::NotAllocated)
    }

    /// Gives a doorbell record back, or keeps it taken if destroying its queue did not succeed.
    pub(super) fn give_record_unless(&mut self, destroyed: &Result<(), Error>, record: DmaMemory) {
        if destroyed.is_err() || self.give_record(record).is_err() {
            self.leak(record);
        }
    }
}
